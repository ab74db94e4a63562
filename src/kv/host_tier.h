#ifndef INFERSCALE_KV_HOST_TIER_H_
#define INFERSCALE_KV_HOST_TIER_H_

/// \file host_tier.h
/// HostTier: the blocks in memory and their pins, under a byte budget. Guarantees: a pinned block
/// is never evicted; whenever the bytes exceed the budget, every block left is pinned. Does no I/O.
/// Not thread-safe: the store's directory mutex guards it.
///
/// The least recently used unpinned block is evicted first. Sizes play no part in the order: what a
/// miss costs (reading or encoding again) is proportional to a block's size, and GreedyDual-Size
/// with such a cost is the order of last use.

#include <cstdint>
#include <list>
#include <memory>
#include <unordered_map>

#include "inferscale/kv_block.h"
#include "inferscale/types.h"

namespace inferscale {

class HostTier {
 public:
  explicit HostTier(std::int64_t budget_bytes) : budget_bytes_(budget_bytes) {}

  /// Makes `block` the one of its key, most recently used, and evicts others as needed. An unpinned
  /// block larger than the budget is not kept. A pinned block that it replaces stays readable.
  void Insert(std::shared_ptr<const KvBlock> block);
  /// The same, with one pin on the block.
  void InsertPinned(std::shared_ptr<const KvBlock> block);

  /// Adds a pin. nullptr when the key is not here.
  std::shared_ptr<const KvBlock> Pin(const KvKey& key);
  /// Takes back one pin of exactly this block, which may have been erased or replaced since.
  void Unpin(const KvBlock& block);

  bool Contains(const KvKey& key) const { return entries_.contains(key); }
  /// Removes a key at once. A pinned block stays readable, and counted, until its last pin goes.
  void Erase(const KvKey& key);
  /// The same, unless another block has taken this one's place.
  void EraseExactly(const KvBlock& block);
  void EraseScope(std::uint64_t scope_tag);

  /// This block is in no file, or is in one, if it is the one of its key here; what is put in is
  /// taken to be in one. Unfiled blocks go as any other does.
  void MarkUnfiled(const KvBlock& block);
  void MarkFiled(const KvBlock& block);
  /// The one that was marked first; nullptr when there is none.
  std::shared_ptr<const KvBlock> OldestUnfiled() const;

  std::int64_t blocks() const { return static_cast<std::int64_t>(entries_.size()); }
  /// Bytes of all blocks held here, erased ones that are still pinned included.
  std::int64_t bytes() const { return bytes_; }
  std::int64_t pinned_blocks() const { return pinned_blocks_; }
  std::int64_t evictions() const { return evictions_; }

 private:
  struct Entry {
    std::shared_ptr<const KvBlock> block;
    std::int64_t bytes = 0;
    std::int64_t pins = 0;
    std::list<KvKey>::iterator unpinned_place;  ///< valid when pins == 0
    std::list<KvKey>::iterator unfiled_place;   ///< the end of unfiled_: it is in a file
  };
  struct Detached {
    std::int64_t bytes = 0;
    std::int64_t pins = 0;
  };
  using Entries = std::unordered_map<KvKey, Entry>;

  void Insert(std::shared_ptr<const KvBlock> block, std::int64_t pins);
  void Remove(Entries::iterator place);
  Entry* FindExactly(const KvBlock& block);
  void EvictToBudget();

  const std::int64_t budget_bytes_;
  Entries entries_;
  std::list<KvKey> unpinned_;                              ///< most recently used first
  std::list<KvKey> unfiled_;                               ///< in the order they were marked
  std::unordered_map<const KvBlock*, Detached> detached_;  ///< erased or replaced while pinned
  std::int64_t bytes_ = 0;
  std::int64_t pinned_blocks_ = 0;
  std::int64_t evictions_ = 0;
};

}  // namespace inferscale

#endif  // INFERSCALE_KV_HOST_TIER_H_
