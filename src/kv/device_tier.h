#ifndef INFERSCALE_KV_DEVICE_TIER_H_
#define INFERSCALE_KV_DEVICE_TIER_H_

/// \file device_tier.h
/// DeviceTier: the arena. Payloads of KV blocks in one allocation of a device's memory, above the
/// host and file tiers. Guarantees: a block is contiguous and 256-byte aligned; a pinned one is
/// neither moved, evicted nor overwritten; others go least recently used first, and only when less
/// than a twentieth of the budget is free: until then blocks are moved together, on the device's
/// copy stream, so that no churn wastes more than that twentieth and one block. What a stream does
/// with payloads goes between BeforeUse and AfterUse, which order it against writes and moves.
/// Nothing waits on the host but a promotion whose staging is still in flight. Not thread-safe: the
/// thread that launches the kernels calls it. It must outlive its pins, and its Device outlives it.

#include <cstdint>
#include <map>
#include <memory>
#include <memory_resource>
#include <set>
#include <span>
#include <utility>
#include <vector>

#include "inferscale/result.h"
#include "inferscale/types.h"
#include "kernels/device.h"
#include "kv/by_key.h"
#include "kv/pinned_ring.h"
#include "kv/recency.h"

namespace inferscale {

/// What the arena keeps of a block beside its payload.
struct DeviceBlockInfo {
  KvKey key;
  std::uint64_t scope_tag = 0;
  std::int32_t tokens = 0;
  std::int64_t bytes = 0;  ///< of the payload
};

struct DeviceTierStats {
  std::int64_t budget_bytes = 0;
  std::int64_t blocks = 0, payload_bytes = 0;
  std::int64_t free_bytes = 0;  ///< in no block; alignment counts as the block's
  std::int64_t hits = 0, misses = 0, evictions = 0, moved_bytes = 0;
  std::int64_t promotions = 0, promoted_bytes = 0;
};

class DeviceTier {
 private:
  struct Block;

 public:
  /// A block that stays where it is while this object lives. Movable; empty when moved from.
  class Pin {
   public:
    Pin() = default;
    Pin(Pin&& other) noexcept : tier_(other.tier_), block_(std::exchange(other.block_, nullptr)) {}
    Pin& operator=(Pin&& other) noexcept;
    ~Pin() { Reset(); }
    explicit operator bool() const { return block_ != nullptr; }
    const DeviceBlockInfo& info() const;
    std::uint8_t* payload() const;
    /// The block is in another tier as well: evicting it from here loses nothing.
    void MarkBacked();
    void Reset();

   private:
    friend class DeviceTier;
    Pin(DeviceTier* tier, Block* block) : tier_(tier), block_(block) {}
    DeviceTier* tier_ = nullptr;
    Block* block_ = nullptr;
  };

  /// Allocates `budget_bytes` and a little more to move blocks through. kResourceExhausted if the
  /// device does not have them. \param promotes whether Promote may be called: it has staging
  /// buffers in pinned memory.
  static Result<std::unique_ptr<DeviceTier>> Create(kernels::Device& device,
                                                    std::int64_t budget_bytes,
                                                    bool promotes = true);
  ~DeviceTier();
  DeviceTier(const DeviceTier&) = delete;
  DeviceTier& operator=(const DeviceTier&) = delete;

  /// Pins a block, which becomes the most recently used with its last pin; empty when it is not
  /// here.
  Pin Acquire(const KvKey& key);
  /// The same, counted as neither hit nor miss.
  Pin Hold(const KvKey& key);
  bool Contains(const KvKey& key) const { return directory_.Contains(key); }
  /// Whether a block of so many bytes fits if nothing else is here.
  bool CanHold(std::int64_t bytes) const { return bytes <= budget_bytes_; }
  /// To be called before Acquire of many blocks; `items` have a `key`.
  template <typename Items>
  void Prefetch(const Items& items) const {
    directory_.Prefetch(items, /*lines=*/2);
  }

  /// A place for a block that a kernel is about to write, instead of any block of this key.
  /// kResourceExhausted when it does not fit beside what is pinned.
  Result<Pin> Reserve(const DeviceBlockInfo& info);
  /// The same, filled on the copy stream from host memory of info.bytes bytes, which is not read
  /// any more afterwards. The block is backed.
  Result<Pin> Promote(const DeviceBlockInfo& info, std::span<const std::uint8_t> payload);

  /// A place for a block that another thread is about to fill on the copy stream, once
  /// BeforeCopies has been called; the block is not found before Publish. Errors as of Reserve.
  Result<Pin> ReserveHidden(const DeviceBlockInfo& info);
  /// Copies that the copy stream is given from now on come after what other streams do with
  /// payloads that have been evicted.
  Status BeforeCopies() { return BeginCopies(); }
  /// The place has been filled: the block is found, and backed. Nothing happens if another block of
  /// its key has come meanwhile.
  void Publish(const Pin& pin);

  Status BeforeUse(std::uintptr_t stream);
  Status AfterUse(std::uintptr_t stream);

  /// Not found any more; the place of a pinned block becomes free with its last pin.
  void Erase(const KvKey& key);
  void EraseScope(std::uint64_t scope_tag);
  void Clear();
  /// Blocks that were evicted and not known to be in another tier, since the last call.
  std::vector<KvKey> TakeLost() { return std::exchange(lost_, {}); }
  /// Every block that was evicted since the last call; it may be here again.
  std::vector<KvKey> TakeEvicted() { return std::exchange(evicted_, {}); }

  DeviceTierStats Stats() const;

 private:
  // What a launch, and its end, need of it is in its first two lines of the processor's cache.
  struct alignas(64) Block {
    const KvKey& key() const { return info.key; }

    DeviceBlockInfo info;
    std::int64_t offset = 0;
    KeyHook by_key;  ///< in directory_, unless hidden
    std::int32_t pins = 0;
    bool backed = false;
    bool hidden = false;  ///< is not found; freed with its last pin
    RecencyHook recent;   ///< in recency_, unless hidden
  };

  DeviceTier(kernels::Device& device, std::int64_t budget_bytes)
      : device_(device), budget_bytes_(budget_bytes) {}
  Status Allocate(bool promotes);
  void AddGap(std::int64_t offset, std::int64_t size);
  void RemoveGap(std::map<std::int64_t, std::int64_t>::iterator gap);
  void Free(Block* block);
  Result<Block*> Place(const DeviceBlockInfo& info);
  void Show(Block* block);
  bool EvictOne();
  /// Whether blocks could be moved so that a gap of `size` bytes exists now.
  Result<bool> Compact(std::int64_t size);
  Status Move(std::int64_t from, std::int64_t to, std::int64_t size);
  Status BeginCopies();
  Status EndCopies();
  Status Fill(const Block& block, std::span<const std::uint8_t> payload);
  void Unpin(Block* block);

  kernels::Device& device_;
  const std::int64_t budget_bytes_;
  std::uint8_t* memory_ = nullptr;  ///< the budget, then the bounce buffer
  std::int64_t bounce_bytes_ = 0;
  std::unique_ptr<PinnedRing> staging_;  ///< null: nothing is promoted

  std::pmr::unsynchronized_pool_resource pool_;  ///< of the blocks: next to each other
  std::map<std::int64_t, Block*> blocks_;        ///< by offset
  ByKey<Block, &Block::by_key> directory_;
  Recency<Block, &Block::recent> recency_;
  std::map<std::int64_t, std::int64_t> gaps_;              ///< offset -> size
  std::set<std::pair<std::int64_t, std::int64_t>> sizes_;  ///< (size, offset) of the gaps
  std::int64_t free_bytes_ = 0;
  std::vector<KvKey> lost_, evicted_;

  // The last event of each side, and what the other side has been told to wait for.
  std::uint64_t copied_ = 0, used_ = 0, copies_wait_for_ = 0;
  std::uintptr_t user_ = 0;  ///< the stream of `used_`
  std::uint64_t user_waits_for_ = 0;
  DeviceTierStats counters_;
};

}  // namespace inferscale

#endif  // INFERSCALE_KV_DEVICE_TIER_H_
