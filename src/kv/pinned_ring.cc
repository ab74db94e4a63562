#include "kv/pinned_ring.h"

#include <algorithm>
#include <cstring>

namespace inferscale {

Result<std::unique_ptr<PinnedRing>> PinnedRing::Create(kernels::Device& device, std::size_t slots,
                                                       std::int64_t slot_bytes) {
  if (slots == 0 || slot_bytes <= 0) {
    return InvalidArgument("a ring of pinned memory has at least one slot of one byte");
  }
  std::unique_ptr<PinnedRing> ring(new PinnedRing(device, slot_bytes));
  for (std::size_t i = 0; i < slots; ++i) {
    INFERSCALE_ASSIGN_OR_RETURN(std::uint8_t* const memory, device.AllocatePinned(slot_bytes));
    ring->slots_.push_back({memory});
  }
  return ring;
}

PinnedRing::~PinnedRing() {
  for (Slot& slot : slots_) {
    static_cast<void>(Empty(slot));
    device_.FreePinned(slot.memory);
  }
}

Status PinnedRing::Empty(Slot& slot) {
  if (slot.unrecorded) {
    // Behind the copy, as behind all that the stream was given since.
    INFERSCALE_ASSIGN_OR_RETURN(slot.event, device_.Record(device_.copy_stream()));
    slot.unrecorded = false;
    last_event_ = slot.event;
  }
  return slot.event != 0 ? device_.Wait(slot.event) : OkStatus();
}

Status PinnedRing::Copy(std::uint8_t* to, std::span<const std::uint8_t> payload) {
  Status status = CopyPieces(to, payload);
  if (!status.ok()) {
    for (Slot& slot : slots_) static_cast<void>(Empty(slot));
  }
  return status;
}

Status PinnedRing::CopyPieces(std::uint8_t* to, std::span<const std::uint8_t> payload) {
  const std::uintptr_t stream = device_.copy_stream();
  const auto bytes = static_cast<std::int64_t>(payload.size());
  for (std::int64_t done = 0; done < bytes; done += slot_bytes_) {
    Slot& slot = slots_[next_];
    INFERSCALE_RETURN_IF_ERROR(Empty(slot));
    next_ = (next_ + 1) % slots_.size();
    const std::int64_t count = std::min(slot_bytes_, bytes - done);
    std::memcpy(slot.memory, payload.data() + done, static_cast<std::size_t>(count));
    slot.unrecorded = true;
    INFERSCALE_RETURN_IF_ERROR(device_.CopyToDevice(to + done, slot.memory, count, stream));
    INFERSCALE_ASSIGN_OR_RETURN(slot.event, device_.Record(stream));
    slot.unrecorded = false;
    last_event_ = slot.event;
  }
  return OkStatus();
}

}  // namespace inferscale
