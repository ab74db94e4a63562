#ifndef INFERSCALE_KV_UNFILED_BLOCKS_H_
#define INFERSCALE_KV_UNFILED_BLOCKS_H_

/// \file unfiled_blocks.h
/// UnfiledBlocks: blocks that a KvStore could keep in memory alone, because its disk is full or
/// cannot be written. They are stored as long as they are there, and nobody is told when the store
/// lets go of one: they are looked at in turn, a few a step. Not thread-safe.

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <span>
#include <unordered_map>
#include <vector>

#include "inferscale/types.h"

namespace inferscale {

class UnfiledBlocks {
 public:
  /// How many are looked at a time.
  static constexpr std::size_t kLook = 64;

  void Add(const KvKey& key, std::uint64_t scope_tag);
  /// What goes because it is asked to is not missed.
  void Erase(std::span<const KvKey> keys);
  void EraseScope(std::uint64_t scope_tag);
  void Clear();
  /// Looks at the next few. \return those that are held nowhere any more; each is told of once.
  std::vector<KvKey> TakeGone(const std::function<bool(const KvKey&)>& held);
  std::size_t size() const { return scopes_.size(); }

 private:
  std::unordered_map<KvKey, std::uint64_t> scopes_;
  std::deque<KvKey> turns_;  ///< each key once at least; others have been erased
};

}  // namespace inferscale

#endif  // INFERSCALE_KV_UNFILED_BLOCKS_H_
