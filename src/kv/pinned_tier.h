#ifndef INFERSCALE_KV_PINNED_TIER_H_
#define INFERSCALE_KV_PINNED_TIER_H_

/// \file pinned_tier.h
/// PinnedTier: payloads of KV blocks in one piece of host memory that a device copies from
/// directly, between its arena and the KvStore. Guarantees: a block that somebody reads stays where
/// it is; its bytes never exceed the budget. It is the arena's own class (DeviceTier) over host
/// memory, so its rule is the same: least recently used out first, in any size, since what a miss
/// costs (reading the block again) is proportional to its size; blocks are moved together rather
/// than evicted while less than a twentieth is lost in gaps. Whatever it holds is in the KvStore as
/// well: any block may go at any time. Thread-safe; its Device must outlive it.

#include <cstdint>
#include <memory>
#include <mutex>
#include <span>

#include "inferscale/result.h"
#include "inferscale/types.h"
#include "kernels/device.h"
#include "kv/device_tier.h"

namespace inferscale {

class PinnedTier {
 public:
  /// A block that stays in place while this object lives; it must not outlive the tier.
  class Pin {
   public:
    Pin() = default;
    Pin(Pin&& other) noexcept = default;
    Pin& operator=(Pin&& other) noexcept;
    ~Pin() { Reset(); }
    explicit operator bool() const { return static_cast<bool>(pin_); }
    std::span<std::uint8_t> payload() const;
    const DeviceBlockInfo& info() const { return pin_.info(); }

   private:
    friend class PinnedTier;
    Pin(PinnedTier* tier, DeviceTier::Pin pin) : tier_(tier), pin_(std::move(pin)) {}
    void Reset();
    PinnedTier* tier_ = nullptr;
    DeviceTier::Pin pin_;
  };

  static Result<std::unique_ptr<PinnedTier>> Create(kernels::Device& device,
                                                    std::int64_t budget_bytes);
  ~PinnedTier();

  /// Pins a block and makes it the most recently used; empty when it is not here.
  Pin Acquire(const KvKey& key);
  /// A copy of `payload`, of info.bytes bytes. kResourceExhausted when it does not fit beside what
  /// is read.
  Result<Pin> Insert(const DeviceBlockInfo& info, std::span<const std::uint8_t> payload);
  /// A place to fill, if one is free without evicting anything; found from Publish on.
  Result<Pin> ReserveFree(const DeviceBlockInfo& info);
  void Publish(const Pin& pin);

  void Erase(const KvKey& key);
  void EraseScope(std::uint64_t scope_tag);
  void Clear();
  DeviceTierStats Stats() const;

 private:
  class HostMemory;
  PinnedTier() = default;

  mutable std::mutex mutex_;
  std::unique_ptr<HostMemory> memory_;
  std::unique_ptr<DeviceTier> tier_;
};

}  // namespace inferscale

#endif  // INFERSCALE_KV_PINNED_TIER_H_
