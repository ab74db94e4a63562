#include "memory/background_worker.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include <spdlog/spdlog.h>

namespace inferscale {
namespace {

constexpr std::chrono::milliseconds kFirstPause{250};
/// Whoever has come back finds its work within this time.
constexpr std::chrono::milliseconds kLongestPause{5'000};

}  // namespace

BackgroundWorker::BackgroundWorker(std::function<Result<bool>()> slice)
    : slice_(std::move(slice)),
      tasks_thread_([this] { RunTasks(); }),
      slices_thread_([this] { RunSlices(); }) {}

BackgroundWorker::~BackgroundWorker() {
  {
    std::lock_guard lock(mutex_);
    stop_ = true;
  }
  changed_.notify_all();
  slices_thread_.join();
  tasks_thread_.join();
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

void BackgroundWorker::RunTasks() {
  std::unique_lock lock(mutex_);
  while (true) {
    changed_.wait(lock, [this] { return stop_ || !tasks_.empty(); });
    if (tasks_.empty()) return;
    std::function<void()> task = std::move(tasks_.front());
    tasks_.pop_front();
    lock.unlock();
    task();
    task = nullptr;  // what it holds goes before the lock is taken
    lock.lock();
  }
}

void BackgroundWorker::RunSlices() {
  std::chrono::milliseconds pause{0};
  std::unique_lock lock(mutex_);
  while (true) {
    if (pause.count() > 0) {
      changed_.wait_for(lock, pause, [this] { return stop_; });
    } else {
      changed_.wait(lock, [this] { return stop_ || work_; });
    }
    if (stop_) return;
    work_ = false;  // before the slice: work that arrives meanwhile sets it again
    lock.unlock();
    const Result<bool> more = slice_();
    lock.lock();
    if (!more.ok()) {
      const bool said = pause == kLongestPause && last_error_.message() == more.status().message();
      pause = pause.count() == 0 ? kFirstPause : std::min(pause * 2, kLongestPause);
      work_ = true;
      ++failures_;
      last_error_ = more.status();
      if (!said) {
        spdlog::warn("background work failed and will be tried again in {} ms: {}", pause.count(),
                     more.status().ToString());
      }
    } else {
      failures_ = 0;
      pause = std::chrono::milliseconds{0};
      work_ = work_ || *more;
    }
  }
}

}  // namespace inferscale
