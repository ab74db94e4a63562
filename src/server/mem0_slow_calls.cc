#include "server/mem0_slow_calls.h"

#include <utility>

namespace inferscale::mem0 {

SlowCalls::SlowCalls(std::size_t threads, std::size_t most_waiting) : most_waiting_(most_waiting) {
  for (std::size_t i = 0; i < threads; ++i) threads_.emplace_back([this] { Run(); });
}

SlowCalls::~SlowCalls() {
  std::deque<std::function<void()>> dropped;
  {
    const std::lock_guard lock(mutex_);
    ended_ = true;
    dropped.swap(waiting_);
  }
  changed_.notify_all();
  threads_.clear();
}

bool SlowCalls::Post(std::function<void()> call) {
  {
    const std::lock_guard lock(mutex_);
    if (waiting_.size() >= most_waiting_) return false;
    waiting_.push_back(std::move(call));
  }
  changed_.notify_one();
  return true;
}

void SlowCalls::Run() {
  while (true) {
    std::function<void()> call;
    {
      std::unique_lock lock(mutex_);
      changed_.wait(lock, [this] { return ended_ || !waiting_.empty(); });
      if (ended_) return;
      call = std::move(waiting_.front());
      waiting_.pop_front();
    }
    call();
  }
}

}  // namespace inferscale::mem0
