#ifndef INFERSCALE_CONNECTOR_WRITE_BEHIND_H_
#define INFERSCALE_CONNECTOR_WRITE_BEHIND_H_

/// \file write_behind.h
/// WriteBehind: a thread that copies captured blocks from a device's memory into a KvStore, so that
/// neither the copy nor the file is waited for by an engine step; and into pinned memory while
/// there is room, so that it comes up again from there. Guarantees: what is abandoned is not in the
/// store when Abandon returns, unless it was there before; the destructor finishes what it was
/// given. The caller keeps a block's payload in place until its result has been taken. The methods
/// are for one thread.

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "inferscale/kv_block.h"
#include "inferscale/kv_store.h"
#include "inferscale/result.h"
#include "kernels/device.h"
#include "kv/pinned_tier.h"

namespace inferscale {

struct WriteBehindJob {
  std::uint64_t id = 0;
  const std::uint8_t* payload = nullptr;  ///< the device's
  std::int64_t bytes = 0;
  std::uint64_t after = 0;  ///< the event behind which the payload is complete
  KvBlockInfo info;
};

struct WriteBehindResult {
  std::uint64_t id = 0;
  Status status;
  bool abandoned = false;  ///< then the status is no ok
};

class WriteBehind {
 public:
  /// All must outlive it. \param pinned may be nullptr. What is abandoned may be there.
  static Result<std::unique_ptr<WriteBehind>> Create(kernels::Device& device, KvStore& store,
                                                     PinnedTier* pinned);
  ~WriteBehind();
  WriteBehind(const WriteBehind&) = delete;
  WriteBehind& operator=(const WriteBehind&) = delete;

  void Add(WriteBehindJob job);
  std::vector<WriteBehindResult> TakeFinished();
  /// Waits until a result can be taken. \return false at once if nothing is under way.
  bool WaitForResult();
  /// Waits until every job has its result.
  void Flush();
  /// Jobs that match are not carried out; one that is being written is waited for and erased.
  void Abandon(const std::function<bool(const KvBlockInfo&)>& matches);

 private:
  WriteBehind(kernels::Device& device, KvStore& store, PinnedTier* pinned)
      : device_(device), store_(store), pinned_(pinned) {}
  void Run();
  Result<std::vector<std::uint8_t>> Fetch(const WriteBehindJob& job, const PinnedTier::Pin& place);
  Status Write(WriteBehindJob job);

  struct Slot {
    std::uint8_t* memory = nullptr;  ///< pinned
    std::uint64_t event = 0;
    std::int64_t offset = 0, count = 0;
  };

  kernels::Device& device_;
  KvStore& store_;
  PinnedTier* const pinned_;
  std::vector<Slot> slots_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<WriteBehindJob> jobs_;
  std::vector<WriteBehindResult> results_;
  const KvBlockInfo* running_ = nullptr;
  bool abandoned_ = false;      ///< the running job
  std::uint64_t finished_ = 0;  ///< jobs that have run
  bool stopping_ = false;
  std::thread thread_;
};

}  // namespace inferscale

#endif  // INFERSCALE_CONNECTOR_WRITE_BEHIND_H_
