#include "connector/write_behind.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <exception>
#include <utility>

namespace inferscale {
namespace {

constexpr std::int64_t kSlotBytes = std::int64_t{8} << 20;
constexpr std::size_t kSlots = 2;

Status Abandoned() {
  return FailedPrecondition("the KV block was erased before it had been written behind");
}

// Zeros. A block's memory is new to the process, and taken from the system a page at a time, on the
// first write to each, it takes twice as long as the copy into it. Large pages only where they lie
// whole inside the block: no more memory is taken than it has.
std::vector<std::uint8_t> FreshBytes(std::size_t bytes) {
  std::vector<std::uint8_t> out;
  out.reserve(bytes);
#ifdef MADV_POPULATE_WRITE
  const auto advise = [&](std::uintptr_t page, int advice) {
    const auto begin = reinterpret_cast<std::uintptr_t>(out.data());
    const std::uintptr_t first = (begin + page - 1) / page * page;
    const std::uintptr_t last = (begin + bytes) / page * page;
    if (first >= last) return;
    // Advice only: an older system takes pages as they are written.
    static_cast<void>(madvise(reinterpret_cast<void*>(first), last - first, advice));  // NOLINT
  };
  advise(std::uintptr_t{2} << 20, MADV_HUGEPAGE);
  advise(static_cast<std::uintptr_t>(sysconf(_SC_PAGESIZE)), MADV_POPULATE_WRITE);
#endif
  out.resize(bytes);
  return out;
}

}  // namespace

Result<std::unique_ptr<WriteBehind>> WriteBehind::Create(kernels::Device& device, KvStore& store,
                                                         PinnedTier* pinned) {
  std::unique_ptr<WriteBehind> writer(new WriteBehind(device, store, pinned));
  for (std::size_t i = 0; i < kSlots; ++i) {
    INFERSCALE_ASSIGN_OR_RETURN(std::uint8_t* const memory, device.AllocatePinned(kSlotBytes));
    writer->slots_.push_back({memory, 0, 0, 0});
  }
  writer->thread_ = std::thread([self = writer.get()] { self->Run(); });
  return writer;
}

WriteBehind::~WriteBehind() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  changed_.notify_all();
  if (thread_.joinable()) thread_.join();
  for (const Slot& slot : slots_) device_.FreePinned(slot.memory);
}

void WriteBehind::Add(WriteBehindJob job) {
  {
    const std::lock_guard lock(mutex_);
    jobs_.push_back(std::move(job));
  }
  changed_.notify_all();
}

std::vector<WriteBehindResult> WriteBehind::TakeFinished() {
  const std::lock_guard lock(mutex_);
  return std::exchange(results_, {});
}

bool WriteBehind::WaitForResult() {
  std::unique_lock lock(mutex_);
  if (results_.empty() && jobs_.empty() && running_ == nullptr) return false;
  changed_.wait(lock, [&] { return !results_.empty(); });
  return true;
}

void WriteBehind::Flush() {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return jobs_.empty() && running_ == nullptr; });
}

void WriteBehind::Abandon(const std::function<bool(const KvBlockInfo&)>& matches) {
  std::unique_lock lock(mutex_);
  std::erase_if(jobs_, [&](const WriteBehindJob& job) {
    if (!matches(job.info)) return false;
    results_.push_back({job.id, Abandoned(), true});
    return true;
  });
  if (running_ == nullptr || !matches(*running_)) return;
  abandoned_ = true;
  const std::uint64_t before = finished_;
  changed_.wait(lock, [&] { return finished_ != before; });
}

void WriteBehind::Run() {
  std::unique_lock lock(mutex_);
  for (;;) {
    changed_.wait(lock, [&] { return stopping_ || !jobs_.empty(); });
    if (jobs_.empty()) return;
    WriteBehindJob job = std::move(jobs_.front());
    jobs_.pop_front();
    const std::uint64_t id = job.id;
    const KvBlockInfo info = job.info;
    running_ = &info;
    abandoned_ = false;
    lock.unlock();
    Status status;
    try {
      status = Write(std::move(job));
    } catch (const std::exception& error) {  // of memory: it would end the process
      status = ResourceExhausted(error.what());
    }
    lock.lock();
    const bool abandoned = abandoned_;
    if (abandoned) {
      lock.unlock();
      if (status.ok()) static_cast<void>(store_.Erase(std::span(&info.key, 1)));
      status = Abandoned();
      lock.lock();
    }
    results_.push_back({id, std::move(status), abandoned});
    running_ = nullptr;
    ++finished_;
    changed_.notify_all();
  }
}

Status WriteBehind::Write(WriteBehindJob job) {
  PinnedTier::Pin place;
  if (pinned_ != nullptr) {
    auto free =
        pinned_->ReserveFree({job.info.key, job.info.scope_tag,
                              static_cast<std::int32_t>(job.info.tokens.size()), job.bytes});
    if (free.ok()) place = std::move(*free);
  }
  INFERSCALE_ASSIGN_OR_RETURN(std::vector<std::uint8_t> payload, Fetch(job, place));
  {
    const std::lock_guard lock(mutex_);
    if (abandoned_) return Abandoned();
  }
  INFERSCALE_ASSIGN_OR_RETURN(auto block, KvBlock::Create(std::move(job.info), std::move(payload)));
  INFERSCALE_RETURN_IF_ERROR(store_.Put(std::move(block)));
  if (place) pinned_->Publish(place);
  return OkStatus();
}

Result<std::vector<std::uint8_t>> WriteBehind::Fetch(const WriteBehindJob& job,
                                                     const PinnedTier::Pin& place) {
  std::vector<std::uint8_t> payload = FreshBytes(static_cast<std::size_t>(job.bytes));
  const std::uintptr_t stream = device_.copy_stream();
  // Waited for here and not by the copy stream: promotions of other blocks must not queue behind
  // it.
  INFERSCALE_RETURN_IF_ERROR(device_.Wait(job.after));
  if (place) {
    const std::span<std::uint8_t> pinned = place.payload();
    INFERSCALE_RETURN_IF_ERROR(device_.CopyToHost(pinned.data(), job.payload, job.bytes, stream));
    INFERSCALE_ASSIGN_OR_RETURN(const std::uint64_t copied, device_.Record(stream));
    INFERSCALE_RETURN_IF_ERROR(device_.Wait(copied));
    std::memcpy(payload.data(), pinned.data(), pinned.size());
    return payload;
  }
  const auto drain = [&](Slot& slot) -> Status {
    if (slot.count == 0) return OkStatus();
    INFERSCALE_RETURN_IF_ERROR(device_.Wait(slot.event));
    std::memcpy(payload.data() + slot.offset, slot.memory, static_cast<std::size_t>(slot.count));
    slot.count = 0;
    return OkStatus();
  };
  // One slot is on its way while the other is emptied. A failure leaves nothing in flight that is
  // read later: the slots' counts are set only for copies of this job.
  for (Slot& slot : slots_) slot.count = 0;
  std::size_t next = 0;
  for (std::int64_t done = 0; done < job.bytes; done += kSlotBytes) {
    Slot& slot = slots_[next];
    next = (next + 1) % slots_.size();
    INFERSCALE_RETURN_IF_ERROR(drain(slot));
    const std::int64_t count = std::min(kSlotBytes, job.bytes - done);
    INFERSCALE_RETURN_IF_ERROR(device_.CopyToHost(slot.memory, job.payload + done, count, stream));
    INFERSCALE_ASSIGN_OR_RETURN(slot.event, device_.Record(stream));
    slot.offset = done;
    slot.count = count;
  }
  for (std::size_t i = 0; i < slots_.size(); ++i) {
    INFERSCALE_RETURN_IF_ERROR(drain(slots_[(next + i) % slots_.size()]));
  }
  return payload;
}

}  // namespace inferscale
