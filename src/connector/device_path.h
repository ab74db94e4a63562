#ifndef INFERSCALE_CONNECTOR_DEVICE_PATH_H_
#define INFERSCALE_CONNECTOR_DEVICE_PATH_H_

/// \file device_path.h
/// DevicePath: how a worker moves KV between its blocks and an engine's cache on a device. Facts
/// are read from and captured into the arena by one kernel launch each way a step; captured ones
/// are written behind. Blocks that are only in host memory or files come up before their request is
/// scheduled, when the scheduler asks for them: a thread reads them, into pinned memory, and copies
/// them on a stream of their own. Guarantees: no step waits for what was asked for in time; what is
/// kept for a request stays until it is released, unless a step's own blocks find no other room.
/// What was not asked for in time is read and copied up when it is loaded. Not thread-safe.

#include <cstdint>
#include <deque>
#include <memory>
#include <span>
#include <unordered_map>
#include <vector>

#include "connector/promoter.h"
#include "connector/step.h"
#include "connector/write_behind.h"
#include "inferscale/kv_store.h"
#include "inferscale/result.h"
#include "inferscale/rope.h"
#include "kernels/device.h"
#include "kv/device_tier.h"
#include "kv/pinned_tier.h"

namespace inferscale {

/// An engine's paged cache on a device: addresses [layers], strides in bytes.
struct DeviceCache {
  kernels::ScalarType type = kernels::ScalarType::kBF16;
  std::vector<std::uintptr_t> key_base, value_base;
  std::int64_t key_block_stride = 0, key_slot_stride = 0, key_head_stride = 0, key_dim_stride = 0;
  std::int64_t value_block_stride = 0, value_slot_stride = 0, value_head_stride = 0,
               value_dim_stride = 0;
};

struct DevicePathOptions {
  DeviceCache cache;
  kernels::CodecView view;
  std::int32_t block_slots = 0;
  std::int64_t engine_blocks = 0;
  std::int32_t max_position = 0;
  std::int64_t arena_bytes = 0;
  std::int64_t pinned_bytes = 0;  ///< host memory to promote from; 0: staging buffers alone
};

/// What became of blocks in the arena since the last call.
struct ArenaChanges {
  std::vector<KvKey> resident;           ///< came into it and are there
  std::vector<KvKey> evicted;            ///< left it
  std::vector<KvKey> unpromoted;         ///< were to come and cannot
  std::vector<KvKey> lost;               ///< no tier has them any more
  std::vector<DeviceBlockInfo> unfiled;  ///< are in the store's memory, and in no file
};

class DevicePath {
 public:
  /// Allocates the arena and the pinned memory. \return kResourceExhausted if the device has too
  /// little left.
  static Result<std::unique_ptr<DevicePath>> Create(std::unique_ptr<kernels::Device> device,
                                                    DevicePathOptions options, KvStore& store);
  ~DevicePath();

  /// Nothing is moved before.
  Status SetRope(const RopeTables& rope);
  /// Another store, after `Clear`.
  Status SetStore(KvStore& store);

  /// Adds a piece to the next launch of LaunchInject. \param table_begin the position that the
  /// table's first block begins with. \return kNotFound if no tier has the block.
  Status AddLoad(const LoadPiece& piece, std::span<const std::int32_t> table,
                 std::int32_t table_begin, std::uintptr_t stream);
  /// To be called before the AddLoad of many pieces.
  void PrepareLoads(std::span<const LoadPiece> pieces) { tier_->Prefetch(pieces); }
  Status LaunchInject(std::uintptr_t stream);
  /// Forgets what has been added and not launched.
  void Discard();

  /// Adds a run to the next launch of LaunchCapture; `item` has been checked against the cache.
  /// Whether a run has been stored is told by Holds, after that launch.
  Status AddCapture(const CaptureItem& item, const KvBlockInfo& info, std::uintptr_t stream);
  Status LaunchCapture(std::uintptr_t stream);
  bool Holds(const KvKey& key) const;  ///< in the arena or in the store

  /// Blocks to have in the arena, and to keep there until they are released: those that are there
  /// are kept from now on, others come with Advance.
  void Promote(std::span<const PromoteItem> items);
  void Release(std::span<const KvKey> keys);
  /// Finds room for blocks that are to come and hands them to the thread, takes in what it has
  /// done. Waits for nothing. It ends a step: what the step's launches use may be evicted.
  void Advance();

  /// What is removed from the store must go from here first.
  void Erase(std::span<const KvKey> keys);
  void EraseScope(std::uint64_t scope_tag);
  /// Everything goes, and what is being written is waited for.
  void Clear();

  /// Takes in what has been written behind and promoted.
  ArenaChanges TakeChanges();
  /// Waits until everything captured is in the store.
  void Flush();

  DeviceTierStats Stats() const { return tier_->Stats(); }
  DeviceTierStats PinnedStats() const {
    return pinned_ != nullptr ? pinned_->Stats() : DeviceTierStats{};
  }

 private:
  struct Batch {
    std::vector<kernels::FactDescriptor> facts;
    std::vector<std::int32_t> table;
    std::vector<DeviceTier::Pin> pins;
    const std::int32_t* last_table = nullptr;  ///< the caller's, to know it again
    std::int32_t last_begin = 0, last_start = 0;
    void Clear();
  };

  DevicePath(std::unique_ptr<kernels::Device> device, DevicePathOptions options, KvStore& store)
      : device_(std::move(device)), options_(std::move(options)), store_(&store) {}
  bool Stored(const KvKey& key) const;
  bool Fits(std::int64_t table_blocks) const;
  /// Slot of `position` in the batch's table, to which [.., position + count) is added.
  std::int32_t Place(std::span<const std::int32_t> table, std::int32_t table_begin,
                     std::int32_t position, std::int32_t count);
  struct Promotion {
    DeviceTier::Pin place;
    bool called_off = false;
  };

  Result<DeviceTier::Pin> PromoteNow(const KvKey& key);
  Status AwaitWrites(std::int64_t bytes, std::uintptr_t stream);
  void TakeWritten();
  void TakePromoted();
  template <typename Predicate>
  void CallOff(Predicate matches);
  template <typename Attempt>
  Result<DeviceTier::Pin> WithRoom(Attempt attempt, std::uintptr_t stream);
  Status Launch(std::uintptr_t stream);

  const std::unique_ptr<kernels::Device> device_;
  const DevicePathOptions options_;
  KvStore* store_;
  std::unique_ptr<kernels::DeviceTransfer> transfer_;
  std::unique_ptr<PinnedTier> pinned_;
  std::unique_ptr<DeviceTier> tier_;  ///< waits for launches before the transfer goes
  bool capturing_ = false;
  Batch batch_;
  std::vector<KvBlockInfo> captured_;  ///< of the batch
  std::uint64_t next_job_ = 0;
  std::unordered_map<std::uint64_t, DeviceTier::Pin> under_way_;  ///< by job
  std::int64_t under_way_bytes_ = 0;
  std::unique_ptr<WriteBehind> writer_;
  std::deque<PromoteItem> to_promote_;
  std::unordered_map<std::uint64_t, Promotion> promoting_;  ///< by job
  std::unordered_map<KvKey, DeviceTier::Pin> kept_;         ///< empty: not there yet
  std::vector<DeviceTier::Pin> used_;                       ///< by this step's launches
  ArenaChanges changes_;
  std::unique_ptr<Promoter> promoter_;
};

}  // namespace inferscale

#endif  // INFERSCALE_CONNECTOR_DEVICE_PATH_H_
