#include "kv/pinned_tier.h"

#include <algorithm>
#include <cstring>
#include <utility>

namespace inferscale {

// Pinned memory as a device of its own, whose copies are done when a call returns.
class PinnedTier::HostMemory : public kernels::Device {
 public:
  explicit HostMemory(kernels::Device& device) : device_(device) {}

  Result<std::uint8_t*> Allocate(std::int64_t bytes) override {
    return device_.AllocatePinned(bytes);
  }
  void Free(std::uint8_t* memory) override { device_.FreePinned(memory); }
  Result<std::uint8_t*> AllocatePinned(std::int64_t bytes) override { return Allocate(bytes); }
  void FreePinned(std::uint8_t* memory) override { Free(memory); }
  Status CopyToDevice(std::uint8_t* to, const std::uint8_t* from, std::int64_t bytes,
                      std::uintptr_t) override {
    std::memcpy(to, from, static_cast<std::size_t>(bytes));
    return OkStatus();
  }
  Status CopyToHost(std::uint8_t* to, const std::uint8_t* from, std::int64_t bytes,
                    std::uintptr_t stream) override {
    return CopyToDevice(to, from, bytes, stream);
  }
  Status CopyOnDevice(std::uint8_t* to, const std::uint8_t* from, std::int64_t bytes,
                      std::uintptr_t stream) override {
    return CopyToDevice(to, from, bytes, stream);
  }
  Result<std::uint64_t> Record(std::uintptr_t) override { return ++recorded_; }
  Result<bool> Done(std::uint64_t) override { return true; }
  Status Wait(std::uint64_t) override { return OkStatus(); }
  Status StreamWait(std::uintptr_t, std::uint64_t) override { return OkStatus(); }
  std::uintptr_t copy_stream() override { return 0; }
  Result<std::int64_t> FreeBytes() override { return Unsupported("host memory is not counted"); }
  Result<std::unique_ptr<kernels::DeviceTransfer>> MakeTransfer(
      const kernels::TransferSetup&) override {
    return Unsupported("no kernel runs in host memory");
  }

 private:
  kernels::Device& device_;
  std::uint64_t recorded_ = 0;
};

PinnedTier::Pin& PinnedTier::Pin::operator=(Pin&& other) noexcept {
  if (this != &other) {
    Reset();
    tier_ = other.tier_;
    pin_ = std::move(other.pin_);
  }
  return *this;
}

std::span<std::uint8_t> PinnedTier::Pin::payload() const {
  return {pin_.payload(), static_cast<std::size_t>(pin_.info().bytes)};
}

void PinnedTier::Pin::Reset() {
  if (!pin_) return;
  const std::lock_guard lock(tier_->mutex_);
  pin_.Reset();
}

Result<std::unique_ptr<PinnedTier>> PinnedTier::Create(kernels::Device& device,
                                                       std::int64_t budget_bytes) {
  std::unique_ptr<PinnedTier> tier(new PinnedTier());
  tier->memory_ = std::make_unique<HostMemory>(device);
  INFERSCALE_ASSIGN_OR_RETURN(tier->tier_, DeviceTier::Create(*tier->memory_, budget_bytes, false));
  return tier;
}

PinnedTier::~PinnedTier() = default;

PinnedTier::Pin PinnedTier::Acquire(const KvKey& key) {
  const std::lock_guard lock(mutex_);
  return {this, tier_->Acquire(key)};
}

Result<PinnedTier::Pin> PinnedTier::Insert(const DeviceBlockInfo& info,
                                           std::span<const std::uint8_t> payload) {
  if (static_cast<std::int64_t>(payload.size()) != info.bytes) {
    return InvalidArgument("the payload is not as long as the block");
  }
  std::unique_lock lock(mutex_);
  INFERSCALE_ASSIGN_OR_RETURN(DeviceTier::Pin place, tier_->ReserveHidden(info));
  Pin pin(this, std::move(place));
  lock.unlock();
  std::memcpy(pin.pin_.payload(), payload.data(), payload.size());
  Publish(pin);
  return pin;
}

Result<PinnedTier::Pin> PinnedTier::ReserveFree(const DeviceBlockInfo& info) {
  const std::lock_guard lock(mutex_);
  const DeviceTierStats stats = tier_->Stats();
  // With less free than that, the tier would evict rather than move blocks.
  if (stats.free_bytes < info.bytes + stats.budget_bytes / 16) {
    return ResourceExhausted("pinned memory is full");
  }
  INFERSCALE_ASSIGN_OR_RETURN(DeviceTier::Pin place, tier_->ReserveHidden(info));
  return Pin(this, std::move(place));
}

void PinnedTier::Publish(const Pin& pin) {
  const std::lock_guard lock(mutex_);
  tier_->Publish(pin.pin_);
  static_cast<void>(tier_->TakeEvicted());  // nobody has to be told
}

void PinnedTier::Erase(const KvKey& key) {
  const std::lock_guard lock(mutex_);
  tier_->Erase(key);
}

void PinnedTier::EraseScope(std::uint64_t scope_tag) {
  const std::lock_guard lock(mutex_);
  tier_->EraseScope(scope_tag);
}

void PinnedTier::Clear() {
  const std::lock_guard lock(mutex_);
  tier_->Clear();
}

DeviceTierStats PinnedTier::Stats() const {
  const std::lock_guard lock(mutex_);
  return tier_->Stats();
}

}  // namespace inferscale
