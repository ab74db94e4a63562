#ifndef INFERSCALE_KV_BY_KEY_H_
#define INFERSCALE_KV_BY_KEY_H_

/// \file by_key.h
/// ByKey: blocks found by their KV key, without owning them. Made for looking up hundreds of blocks
/// at a time that have all left the processor's cache: fetched one after the other, each costs two
/// or three waits for memory; Prefetch lets all of them wait at once. Not thread-safe.

#include <cassert>
#include <cstddef>
#include <functional>
#include <vector>

#include <boost/intrusive/unordered_set.hpp>

#include "inferscale/types.h"

namespace inferscale {

using KeyHook = boost::intrusive::unordered_set_member_hook<>;

/// \tparam Block has a member `key()`; its `hook` is this table's.
template <typename Block, KeyHook Block::*hook>
class ByKey {
 private:
  struct KeyOf {
    using type = KvKey;
    const KvKey& operator()(const Block& block) const { return block.key(); }
  };
  using Set =
      boost::intrusive::unordered_set<Block, boost::intrusive::member_hook<Block, KeyHook, hook>,
                                      boost::intrusive::key_of_value<KeyOf>,
                                      boost::intrusive::hash<std::hash<KvKey>>,
                                      boost::intrusive::power_2_buckets<true>>;

 public:
  ByKey() : buckets_(kLeastBuckets), set_(Traits(buckets_)) {}
  ~ByKey() { set_.clear(); }
  ByKey(const ByKey&) = delete;
  ByKey& operator=(const ByKey&) = delete;

  /// nullptr when it is not here.
  Block* Find(const KvKey& key) {
    const auto found = set_.find(key);
    return found == set_.end() ? nullptr : &*found;
  }
  const Block* Find(const KvKey& key) const { return const_cast<ByKey*>(this)->Find(key); }
  bool Contains(const KvKey& key) const { return Find(key) != nullptr; }
  std::size_t size() const { return set_.size(); }

  /// None of its key may be here.
  void Insert(Block& block) {
    if (2 * set_.size() >= buckets_.size()) {
      std::vector<typename Set::bucket_type> more(2 * buckets_.size());
      set_.rehash(Traits(more));
      buckets_.swap(more);
    }
    const bool is_new = set_.insert(block).second;
    assert(is_new);
    static_cast<void>(is_new);
  }
  void Erase(Block& block) { set_.erase(set_.iterator_to(block)); }

  /// Brings into the processor's cache what looking these up, and changing what is found, touches
  /// of the table and of the first `lines` lines of each block; `items` have a `key`.
  template <typename Items>
  void Prefetch(const Items& items, std::size_t lines = 1) const {
    constexpr std::size_t kLine = 64;
    const std::size_t mask = buckets_.size() - 1;
    for (const auto& item : items) {
      __builtin_prefetch(&buckets_[std::hash<KvKey>()(item.key) & mask]);
    }
    for (const auto& item : items) {
      const std::size_t bucket = std::hash<KvKey>()(item.key) & mask;
      const auto first = set_.begin(bucket);
      if (first == set_.end(bucket)) continue;
      const auto* const bytes = reinterpret_cast<const char*>(&*first);
      for (std::size_t i = 0; i < lines; ++i) {
        __builtin_prefetch(bytes + i * kLine, /*write=*/1);
      }
    }
  }

 private:
  static constexpr std::size_t kLeastBuckets = 64;  // a power of two
  using Buckets = std::vector<typename Set::bucket_type>;
  static typename Set::bucket_traits Traits(Buckets& buckets) {
    return {buckets.data(), buckets.size()};
  }

  Buckets buckets_;
  Set set_;
};

}  // namespace inferscale

#endif  // INFERSCALE_KV_BY_KEY_H_
