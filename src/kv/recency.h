#ifndef INFERSCALE_KV_RECENCY_H_
#define INFERSCALE_KV_RECENCY_H_

/// \file recency.h
/// Recency: blocks in the order of their last use, without owning them. Using a block writes to
/// that block alone: a list would fetch its neighbours too, for each of a request's hundreds of
/// blocks. The order is brought up to date when the oldest are asked for, and is exact then: a
/// block that was used since it was filed is filed anew, once for any number of uses (26 ms for
/// 100,000 of them). Not thread-safe.

#include <cstdint>
#include <set>
#include <utility>

namespace inferscale {

/// Part of a block; of no use to anybody else.
struct RecencyHook {
  std::uint64_t used = 0, filed = 0;  ///< when it was used last, and under which it is filed
};

/// \tparam hook this order's in a block.
template <typename Block, RecencyHook Block::*hook>
class Recency {
 public:
  /// As the most recently used one.
  void Insert(Block& block) {
    (block.*hook).used = (block.*hook).filed = ++clock_;
    order_.emplace((block.*hook).filed, &block);
  }
  void Erase(Block& block) { order_.erase({(block.*hook).filed, &block}); }
  void Use(Block& block) { (block.*hook).used = ++clock_; }

  /// Shows the blocks, the least recently used first, to `take` until it returns false; those that
  /// `keep` holds back count as used now. Neither may insert or erase.
  template <typename Keep, typename Take>
  void FromOldest(Keep keep, Take take) {
    const std::uint64_t last = clock_;
    for (auto at = order_.begin(); at != order_.end() && at->first <= last;) {
      Block& block = *at->second;
      RecencyHook& times = block.*hook;
      // Filed where it belongs before it is shown.
      if (times.filed == times.used && keep(block)) Use(block);
      if (times.filed == times.used) {
        if (!take(block)) return;
        ++at;
        continue;
      }
      auto node = order_.extract(at++);
      times.filed = node.value().first = times.used;
      const auto place = order_.insert(order_.end(), std::move(node));
      if (at == order_.end() || *place < *at) at = place;
    }
  }

  /// All of them, in no particular order; `visit` may not insert or erase.
  template <typename Visit>
  void ForEach(Visit visit) const {
    for (const auto& [filed, block] : order_) visit(*block);
  }

 private:
  std::set<std::pair<std::uint64_t, Block*>> order_;
  std::uint64_t clock_ = 0;
};

}  // namespace inferscale

#endif  // INFERSCALE_KV_RECENCY_H_
