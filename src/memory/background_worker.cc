#include "memory/background_worker.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include <spdlog/spdlog.h>

namespace inferscale {
namespace {

constexpr std::chrono::milliseconds kFirstPause{250};
constexpr std::chrono::milliseconds kLongestPause{30'000};

}  // namespace

BackgroundWorker::BackgroundWorker(std::function<Result<bool>()> slice)
    : slice_(std::move(slice)), thread_([this] { Run(); }) {}

BackgroundWorker::~BackgroundWorker() {
  {
    std::lock_guard lock(mutex_);
    stop_ = true;
  }
  changed_.notify_all();
  thread_.join();
}

void BackgroundWorker::Post(std::function<void()> task) {
  {
    std::lock_guard lock(mutex_);
    tasks_.push_back(std::move(task));
  }
  changed_.notify_all();
}

void BackgroundWorker::Wake() {
  {
    std::lock_guard lock(mutex_);
    work_ = true;
  }
  changed_.notify_all();
}

Status BackgroundWorker::Stuck() const {
  constexpr int kFailures = 3;
  std::lock_guard lock(mutex_);
  return failures_ >= kFailures ? last_error_ : OkStatus();
}

void BackgroundWorker::Run() {
  std::chrono::milliseconds pause{0};
  std::unique_lock lock(mutex_);
  while (true) {
    const auto due = [this] { return stop_ || !tasks_.empty(); };
    if (pause.count() > 0) {
      changed_.wait_for(lock, pause, due);
    } else {
      changed_.wait(lock, [&] { return due() || work_; });
    }
    if (!tasks_.empty()) {
      std::function<void()> task = std::move(tasks_.front());
      tasks_.pop_front();
      lock.unlock();
      task();
      lock.lock();
      continue;
    }
    if (stop_) return;
    work_ = false;  // before the slice: work that arrives meanwhile sets it again
    lock.unlock();
    const Result<bool> more = slice_();
    lock.lock();
    if (!more.ok()) {
      pause = pause.count() == 0 ? kFirstPause : std::min(pause * 2, kLongestPause);
      work_ = true;
      ++failures_;
      last_error_ = more.status();
      spdlog::warn("background work failed and will be tried again in {} ms: {}", pause.count(),
                   more.status().ToString());
    } else {
      failures_ = 0;
      pause = std::chrono::milliseconds{0};
      work_ = work_ || *more;
    }
  }
}

}  // namespace inferscale
