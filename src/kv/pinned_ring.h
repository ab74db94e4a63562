#ifndef INFERSCALE_KV_PINNED_RING_H_
#define INFERSCALE_KV_PINNED_RING_H_

/// \file pinned_ring.h
/// PinnedRing: copies payloads from ordinary host memory to a device by way of a few slots of
/// pinned memory, on the device's copy stream. Guarantees: a slot is not written while a copy out
/// of it may be under way, also after an error; a payload is not read any more when Copy returns;
/// the memory stays until the last copy has ended. Who copies waits on the host for a slot whose
/// last copy has not ended, and after an error for what had begun; no stream waits here. Not
/// thread-safe; its Device must outlive it.

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "inferscale/result.h"
#include "kernels/device.h"

namespace inferscale {

class PinnedRing {
 public:
  /// kResourceExhausted if so much memory cannot be pinned.
  static Result<std::unique_ptr<PinnedRing>> Create(kernels::Device& device, std::size_t slots,
                                                    std::int64_t slot_bytes);
  ~PinnedRing();
  PinnedRing(const PinnedRing&) = delete;
  PinnedRing& operator=(const PinnedRing&) = delete;

  /// A slot's worth after the other: fills the slot, copies it, records an event behind it. After
  /// an error some of it has been copied, and nothing is under way.
  Status Copy(std::uint8_t* to, std::span<const std::uint8_t> payload);
  /// Behind the last copy that was recorded; 0: none was.
  std::uint64_t last_event() const { return last_event_; }

 private:
  struct Slot {
    std::uint8_t* memory = nullptr;
    std::uint64_t event = 0;  ///< behind the last copy out of it; 0: none
    bool unrecorded = false;  ///< a copy out of it has no event
  };
  PinnedRing(kernels::Device& device, std::int64_t slot_bytes)
      : device_(device), slot_bytes_(slot_bytes) {}
  Status CopyPieces(std::uint8_t* to, std::span<const std::uint8_t> payload);
  Status Empty(Slot& slot);

  kernels::Device& device_;
  const std::int64_t slot_bytes_;
  std::vector<Slot> slots_;
  std::size_t next_ = 0;
  std::uint64_t last_event_ = 0;
};

}  // namespace inferscale

#endif  // INFERSCALE_KV_PINNED_RING_H_
