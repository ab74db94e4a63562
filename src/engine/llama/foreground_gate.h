#ifndef INFERSCALE_ENGINE_LLAMA_FOREGROUND_GATE_H_
#define INFERSCALE_ENGINE_LLAMA_FOREGROUND_GATE_H_

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <mutex>

namespace inferscale {

/// Counts generations that run or wait, so that background work can give way. Thread-safe.
class ForegroundGate {
 public:
  void Begin() { busy_.fetch_add(1); }
  void End() {
    if (busy_.fetch_sub(1) == 1) {
      const std::scoped_lock lock(mutex_);
      idle_.notify_all();
    }
  }
  bool busy() const { return busy_.load() > 0; }

  /// Waits until nothing runs, `Interrupt` or `Nudge` is called, or the time is over. \return
  /// whether idle.
  bool WaitIdle(std::chrono::milliseconds timeout) {
    std::unique_lock lock(mutex_);
    const std::int64_t nudges = nudges_;
    idle_.wait_for(lock, timeout, [&] { return !busy() || interrupted_ || nudges_ != nudges; });
    return !busy();
  }
  /// Ends this and every later wait at once.
  void Interrupt() {
    const std::scoped_lock lock(mutex_);
    interrupted_ = true;
    idle_.notify_all();
  }
  /// Ends a running wait, so that its caller looks again.
  void Nudge() {
    const std::scoped_lock lock(mutex_);
    ++nudges_;
    idle_.notify_all();
  }

 private:
  std::atomic<std::int32_t> busy_{0};
  std::mutex mutex_;
  std::condition_variable idle_;
  bool interrupted_ = false;
  std::int64_t nudges_ = 0;
};

}  // namespace inferscale

#endif  // INFERSCALE_ENGINE_LLAMA_FOREGROUND_GATE_H_
