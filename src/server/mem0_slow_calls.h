#ifndef INFERSCALE_SERVER_MEM0_SLOW_CALLS_H_
#define INFERSCALE_SERVER_MEM0_SLOW_CALLS_H_

/// \file mem0_slow_calls.h
/// SlowCalls: answers that wait for a language model, on threads of their own, so that none of the
/// server's workers waits with them. Thread-safe.

#include <condition_variable>
#include <deque>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

namespace inferscale::mem0 {

class SlowCalls {
 public:
  SlowCalls(std::size_t threads, std::size_t most_waiting);
  /// Ends after the calls under way; those that wait are dropped, and their exchanges with them.
  ~SlowCalls();
  SlowCalls(const SlowCalls&) = delete;
  SlowCalls& operator=(const SlowCalls&) = delete;

  /// \return false: too many wait already.
  bool Post(std::function<void()> call);

 private:
  void Run();

  const std::size_t most_waiting_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::function<void()>> waiting_;
  bool ended_ = false;
  std::vector<std::jthread> threads_;
};

}  // namespace inferscale::mem0

#endif  // INFERSCALE_SERVER_MEM0_SLOW_CALLS_H_
