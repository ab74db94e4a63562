#ifndef INFERSCALE_KV_BLOCK_DIRECTORY_H_
#define INFERSCALE_KV_BLOCK_DIRECTORY_H_

/// \file block_directory.h
/// BlockDirectory: which KV blocks exist on the ranks of an engine, without their bytes. It alone
/// decides what is stored and what is evicted; ranks obey and report. Guarantees: a block is ready
/// only when every rank has reported it; a pinned block is never evicted; a fenced scope takes no
/// new block of an earlier epoch; bytes of all entries are within the budget, pinned ones apart.
/// Does no I/O. Not thread-safe.

#include <cstddef>
#include <cstdint>
#include <memory_resource>
#include <span>
#include <unordered_map>
#include <vector>

#include "inferscale/result.h"
#include "inferscale/types.h"
#include "kv/by_key.h"
#include "kv/recency.h"

namespace inferscale {

/// Stands for a block's own ids, to be compared with a prompt's: their count and a hash of them.
/// Who asks has the gateway's secret, and the key is made of the ids as well; what is to be found
/// is a mistake. The ids themselves would be three more cache lines a block to fetch.
struct TokenDigest {
  std::uint64_t hash = 0;
  std::int32_t count = 0;

  static TokenDigest Of(std::span<const TokenId> tokens);
  bool operator==(const TokenDigest&) const = default;
};

/// What the directory keeps of a block.
struct DirectoryBlock {
  KvKey key;
  std::uint64_t scope_tag = 0;
  std::uint64_t epoch = 0;
  std::int64_t bytes = 0;  ///< of one rank
  TokenDigest tokens;
  std::uint64_t arenas = 0;  ///< bit r: rank r has said that it is in its device's memory
};

class BlockDirectory {
 public:
  /// \param budget_bytes of one rank. \param ranks at least 1.
  BlockDirectory(std::int64_t budget_bytes, std::int32_t ranks)
      : budget_bytes_(budget_bytes), ranks_(ranks) {}
  ~BlockDirectory() { Clear(); }
  BlockDirectory(const BlockDirectory&) = delete;
  BlockDirectory& operator=(const BlockDirectory&) = delete;

  /// A place for a block that the ranks are about to store, and what they drop before.
  struct Reservation {
    std::uint64_t serial = 0;  ///< of this storing; never used twice, never 0
    std::vector<KvKey> evict;
  };
  /// kAlreadyExists if it is here or under way, kFailedPrecondition if its scope is fenced,
  /// kResourceExhausted if it does not fit beside what is pinned.
  Result<Reservation> Reserve(const DirectoryBlock& block);
  /// One rank has stored what was reserved; nothing happens if it has been erased since. \return
  /// whether the block is ready now.
  bool Stored(const KvKey& key, std::uint64_t serial);
  /// One rank holds it from before a restart. \return false if it cannot stay (its scope is fenced,
  /// it does not fit, or the ranks' copies differ): the ranks are to drop it.
  bool Restored(const DirectoryBlock& block);
  /// Removes what not every rank has stored. \return the keys.
  std::vector<KvKey> DropIncomplete();
  /// A rank could not store it, or has lost it (serial 0: whichever it was): it is gone from the
  /// directory. \return whether it was here, so that the other ranks are told to drop it.
  bool Lost(const KvKey& key, std::uint64_t serial = 0);

  /// A ready block whose tokens are these; else nullptr. The pointer is valid until the next call
  /// that is not const.
  const DirectoryBlock* Find(const KvKey& key, std::span<const TokenId> tokens) const;
  /// To be called before Find and Pin of many blocks; `items` have a `key`.
  template <typename Items>
  void Prefetch(const Items& items) const {
    entries_.Prefetch(items, /*lines=*/2);
  }
  bool Ready(const KvKey& key) const;
  /// A block, ready or not, without using it; nullptr when it is not here.
  const DirectoryBlock* Get(const KvKey& key) const;
  /// A rank says that the block came into its device's memory, or left it.
  void SetInArena(const KvKey& key, std::int32_t rank, bool is_there);
  bool Contains(const KvKey& key) const { return entries_.Contains(key); }

  /// Adds a pin to a ready block, which becomes the most recently used with the last of them.
  /// \return the serial to give back; 0 when it is not ready.
  std::uint64_t Pin(const KvKey& key);
  /// Takes back one pin; harmless when the block has been erased, or stored anew, since.
  void Unpin(const KvKey& key, std::uint64_t serial);

  /// Removes a block at once, pinned or not. \return whether it was here.
  bool Erase(const KvKey& key);
  /// Refuses new blocks of a scope below `epoch`, as those of a request that was under way when one
  /// of its blocks was erased; keeps what is here.
  void Fence(std::uint64_t scope_tag, std::uint64_t epoch);
  /// Removes a scope's blocks and refuses later ones below `epoch`. \return the removed keys.
  std::vector<KvKey> EraseScope(std::uint64_t scope_tag, std::uint64_t epoch);
  /// Forgets every block. Fences stay.
  void Clear();

  std::int64_t blocks() const { return static_cast<std::int64_t>(entries_.size()); }
  std::int64_t bytes() const { return bytes_; }
  std::int64_t pins() const { return pins_; }
  std::int64_t evictions() const { return evictions_; }

 private:
  // What a match needs of it is in its first two lines of the processor's cache.
  struct alignas(64) Entry {
    const KvKey& key() const { return block.key; }

    DirectoryBlock block;
    KeyHook by_key;  ///< in entries_
    std::uint64_t serial = 0;
    std::int32_t stored_ranks = 0;
    std::int32_t pins = 0;
    RecencyHook recent;  ///< in recency_
  };

  Result<Reservation> Place(const DirectoryBlock& block);
  void Remove(Entry& entry);

  const std::int64_t budget_bytes_;
  const std::int32_t ranks_;
  std::pmr::unsynchronized_pool_resource pool_;  ///< of the entries: next to each other
  ByKey<Entry, &Entry::by_key> entries_;
  Recency<Entry, &Entry::recent> recency_;
  std::unordered_map<std::uint64_t, std::uint64_t> fences_;  ///< scope -> epoch for new blocks
  std::unordered_map<std::uint64_t, std::uint64_t> erased_;  ///< the same for any
  std::uint64_t last_serial_ = 0;
  std::int64_t bytes_ = 0;
  std::int64_t pins_ = 0;
  std::int64_t evictions_ = 0;
};

}  // namespace inferscale

#endif  // INFERSCALE_KV_BLOCK_DIRECTORY_H_
