#ifndef INFERSCALE_KV_STORE_H_
#define INFERSCALE_KV_STORE_H_

/// \file kv_store.h
/// KvStore: where KV blocks live, in a host tier (memory) over a file tier, each under a byte
/// budget. Guarantees: a block is visible whole or not at all, also after kill -9 (files are
/// written to a temporary name, synced and renamed); a corrupt or foreign file is a miss, is
/// removed, and never crashes; an erased block is never returned again, and an encode that was
/// under way when its scope was erased cannot bring it back (epochs fence it). Any block may vanish
/// by eviction: a miss is always legal. All methods are thread-safe.

#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>
#include <vector>

#include "inferscale/kv_block.h"
#include "inferscale/result.h"

namespace inferscale {

struct KvStoreOptions {
  std::filesystem::path folder;  ///< empty: no file tier
  std::int64_t host_budget_bytes = std::int64_t{1} << 30;
  std::int64_t file_budget_bytes = std::int64_t{16} << 30;
  Fingerprint fingerprint{};  ///< blocks of another fingerprint are never returned
  /// How often a disk that was full is tried again while blocks are in memory alone.
  std::int64_t file_again_ms = 30'000;
};

enum class KvTier : std::uint8_t { kNone, kFile, kHost };

struct KvStoreStats {
  std::int64_t host_blocks = 0, host_bytes = 0, file_blocks = 0, file_bytes = 0, pinned_blocks = 0;
  std::int64_t hits_host = 0, hits_file = 0, misses = 0, evictions_host = 0, evictions_file = 0,
               corrupt = 0;
};

class KvStore {
 public:
  /// A block that cannot be evicted or freed while this object lives. Movable; empty when moved
  /// from.
  class Pin;

  /// Opens or creates the folder (0700) and lists its files; removes temporaries of a killed
  /// process. Reads names and sizes only, so that 10,000 blocks open in well under a second.
  static Result<std::unique_ptr<KvStore>> Open(KvStoreOptions options);
  ~KvStore();
  KvStore(const KvStore&) = delete;
  KvStore& operator=(const KvStore&) = delete;

  /// Stores a block in both tiers. kFailedPrecondition if its scope has been erased at a later
  /// epoch or its fingerprint is not the store's; a full disk (kResourceExhausted), or a folder
  /// that cannot be written, leaves it in the host tier, from where it is written to a file when
  /// that is possible again, unless it has been erased or evicted by then.
  Status Put(std::shared_ptr<const KvBlock> block);

  /// Whether the whole budget of one of the tiers holds such a block: else no Put of it succeeds.
  bool CanHold(const KvBlock& block) const;

  /// kNotFound, or kDataLoss when the file was corrupt (and is now gone).
  Result<Pin> Acquire(const KvKey& key);

  /// Where each key is, without loading anything.
  std::vector<KvTier> Presence(std::span<const KvKey> keys) const;

  /// Removes blocks from every tier and from the folders of all other fingerprints too.
  Status Erase(std::span<const KvKey> keys);
  /// The same for everything of a scope; later Puts with an epoch below `epoch` are refused.
  Status EraseScope(std::uint64_t scope_tag, std::uint64_t epoch);
  /// Refuses later Puts of this scope below `epoch`, erasing nothing.
  void FenceScope(std::uint64_t scope_tag, std::uint64_t epoch);

  /// From now on nothing that is in memory alone is written to a file: for a store that another one
  /// is to take the place of. Waits for what is being written so.
  void StopFiling();

  KvStoreStats Stats() const;
  /// What the blocks of these scopes take in the file tier.
  std::int64_t BytesOf(std::span<const std::uint64_t> scope_tags) const;

 private:
  struct Impl;
  explicit KvStore(std::unique_ptr<Impl> impl);
  std::shared_ptr<Impl> impl_;
};

class KvStore::Pin {
 public:
  Pin() = default;
  Pin(Pin&& other) noexcept = default;
  Pin& operator=(Pin&& other) noexcept;
  ~Pin();
  const KvBlock* operator->() const { return block_.get(); }
  const KvBlock& operator*() const { return *block_; }
  explicit operator bool() const { return block_ != nullptr; }

 private:
  friend class KvStore;
  std::shared_ptr<Impl> store_;
  std::shared_ptr<const KvBlock> block_;
};

}  // namespace inferscale

#endif  // INFERSCALE_KV_STORE_H_
