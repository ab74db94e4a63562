#include "connector/promoter.h"

#include <exception>
#include <utility>

namespace inferscale {
namespace {

constexpr std::int64_t kSlotBytes = std::int64_t{8} << 20;
constexpr std::size_t kSlots = 2;

Status Abandoned() { return FailedPrecondition("the KV block's promotion was called off"); }

}  // namespace

Result<std::unique_ptr<Promoter>> Promoter::Create(kernels::Device& device, KvStore& store,
                                                   PinnedTier* pinned, kernels::CodecView view) {
  std::unique_ptr<Promoter> promoter(new Promoter(device, store, pinned, view));
  INFERSCALE_ASSIGN_OR_RETURN(promoter->staging_, PinnedRing::Create(device, kSlots, kSlotBytes));
  promoter->thread_ = std::thread([self = promoter.get()] { self->Run(); });
  return promoter;
}

Promoter::~Promoter() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
    jobs_.clear();
  }
  changed_.notify_all();
  if (thread_.joinable()) thread_.join();
}

void Promoter::Add(PromotionJob job) {
  {
    const std::lock_guard lock(mutex_);
    jobs_.push_back(job);
    ++under_way_;
  }
  changed_.notify_all();
}

std::vector<PromotionResult> Promoter::TakeFinished() {
  const std::lock_guard lock(mutex_);
  return std::exchange(results_, {});
}

bool Promoter::WaitForResult() {
  std::unique_lock lock(mutex_);
  if (results_.empty() && under_way_ == 0) return false;
  changed_.wait(lock, [&] { return !results_.empty(); });
  return true;
}

void Promoter::Abandon(const std::function<bool(const DeviceBlockInfo&)>& matches) {
  std::unique_lock lock(mutex_);
  std::erase_if(jobs_, [&](const PromotionJob& job) {
    if (!matches(job.info)) return false;
    results_.push_back({job.id, Abandoned()});
    --under_way_;
    return true;
  });
  changed_.wait(lock, [&] { return reading_ == nullptr || !matches(*reading_); });
}

void Promoter::Finish(std::uint64_t id, Status status) {
  {
    const std::lock_guard lock(mutex_);
    results_.push_back({id, std::move(status)});
    --under_way_;
  }
  changed_.notify_all();
}

void Promoter::Run() {
  for (;;) {
    std::unique_lock lock(mutex_);
    if (copying_.empty()) changed_.wait(lock, [&] { return stopping_ || !jobs_.empty(); });
    if (jobs_.empty()) {
      lock.unlock();
      if (copying_.empty()) return;
      TakeCopied(true);
      continue;
    }
    const PromotionJob job = jobs_.front();
    jobs_.pop_front();
    reading_ = &job.info;
    lock.unlock();
    Status status;
    try {
      status = Start(job);
    } catch (const std::exception& error) {  // of memory: it would end the process
      status = ResourceExhausted(error.what());
    }
    lock.lock();
    reading_ = nullptr;
    lock.unlock();
    changed_.notify_all();
    if (!status.ok()) Finish(job.id, std::move(status));
    TakeCopied(false);
  }
}

void Promoter::TakeCopied(bool wait) {
  // In the order of the copy stream: who is not done keeps those behind it.
  while (!copying_.empty()) {
    const std::uint64_t event = copying_.front().event;
    Status status;
    if (wait) {
      status = device_.Wait(event);
      wait = false;
    } else {
      const Result<bool> done = device_.Done(event);
      if (done.ok() && !*done) return;
      status = done.status();
    }
    const std::uint64_t id = copying_.front().id;
    copying_.pop_front();
    Finish(id, std::move(status));
  }
}

Status Promoter::Start(const PromotionJob& job) {
  PinnedTier::Pin source = pinned_ != nullptr ? pinned_->Acquire(job.info.key) : PinnedTier::Pin();
  if (!source) {
    INFERSCALE_ASSIGN_OR_RETURN(const KvStore::Pin stored, store_.Acquire(job.info.key));
    const KvBlockInfo& info = stored->info();
    const KvGeometry geometry{view_.layers, view_.kv_heads, view_.key_dim, view_.value_dim};
    if (info.geometry != geometry || info.codec != view_.codec ||
        stored->tokens() != job.info.tokens ||
        static_cast<std::int64_t>(stored->payload().size()) != job.info.bytes) {
      return NotFound("the KV block is of another shape, length or codec");
    }
    if (pinned_ != nullptr) {
      Result<PinnedTier::Pin> copy = pinned_->Insert(job.info, stored->payload());
      if (copy.ok()) source = std::move(*copy);
    }
    if (!source) {
      INFERSCALE_RETURN_IF_ERROR(staging_->Copy(job.to, stored->payload()));
      copying_.push_back({job.id, staging_->last_event(), {}});
      return OkStatus();
    }
  } else if (static_cast<std::int64_t>(source.payload().size()) != job.info.bytes) {
    return NotFound("the KV block is of another length");
  }
  const std::uintptr_t stream = device_.copy_stream();
  INFERSCALE_RETURN_IF_ERROR(
      device_.CopyToDevice(job.to, source.payload().data(), job.info.bytes, stream));
  const Result<std::uint64_t> event = device_.Record(stream);
  if (!event.ok()) return event.status();
  copying_.push_back({job.id, *event, std::move(source)});
  return OkStatus();
}

}  // namespace inferscale
