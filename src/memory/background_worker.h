#ifndef INFERSCALE_MEMORY_BACKGROUND_WORKER_H_
#define INFERSCALE_MEMORY_BACKGROUND_WORKER_H_

#include <condition_variable>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>

#include "inferscale/result.h"

namespace inferscale {

/// A thread that runs posted tasks in order, and one that does slices of background work until
/// there is no more: a slow slice (an extraction server that takes its time) holds up no task.
/// Destruction finishes the tasks already posted, not the background work.
class BackgroundWorker {
 public:
  /// \param slice does one slice; false: nothing left until Wake(). Errors are logged and retried
  /// after a growing pause.
  explicit BackgroundWorker(std::function<Result<bool>()> slice);
  ~BackgroundWorker();

  void Post(std::function<void()> task);
  /// There may be new background work.
  void Wake();
  /// The error that keeps coming back, once it has come three times in a row; ok otherwise.
  Status Stuck() const;

 private:
  void RunTasks();
  void RunSlices();

  const std::function<Result<bool>()> slice_;
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::function<void()>> tasks_;
  bool work_ = true;
  bool stop_ = false;
  int failures_ = 0;  // in a row
  Status last_error_;
  // Last: they start when everything above exists.
  std::thread tasks_thread_, slices_thread_;
};

}  // namespace inferscale

#endif  // INFERSCALE_MEMORY_BACKGROUND_WORKER_H_
