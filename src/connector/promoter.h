#ifndef INFERSCALE_CONNECTOR_PROMOTER_H_
#define INFERSCALE_CONNECTOR_PROMOTER_H_

/// \file promoter.h
/// Promoter: a thread that copies KV blocks up into places reserved in a device's memory: from
/// pinned memory where they are there, else from the KvStore (host memory or a file) by way of it.
/// Guarantees: no other thread reads a file or copies memory for a promotion; while one block is on
/// its way to the device the next one is read; what is abandoned is not read any more when Abandon
/// returns. The caller keeps a job's place until its result has been taken. The methods are for one
/// thread.

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "inferscale/kv_store.h"
#include "inferscale/result.h"
#include "kernels/device.h"
#include "kv/pinned_ring.h"
#include "kv/pinned_tier.h"

namespace inferscale {

struct PromotionJob {
  std::uint64_t id = 0;
  DeviceBlockInfo info;        ///< bytes: of the place
  std::uint8_t* to = nullptr;  ///< the device's
};

struct PromotionResult {
  std::uint64_t id = 0;
  Status status;  ///< kNotFound, kDataLoss: no tier has the block; kFailedPrecondition: abandoned
};

class Promoter {
 public:
  /// All must outlive it. \param pinned nullptr: every payload goes through staging buffers.
  static Result<std::unique_ptr<Promoter>> Create(kernels::Device& device, KvStore& store,
                                                  PinnedTier* pinned, kernels::CodecView view);
  ~Promoter();
  Promoter(const Promoter&) = delete;
  Promoter& operator=(const Promoter&) = delete;

  void Add(PromotionJob job);
  std::vector<PromotionResult> TakeFinished();
  /// Waits until a result can be taken. \return false at once if nothing is under way.
  bool WaitForResult();
  /// Jobs that match are not carried out, one whose block is being read is waited for; every job
  /// still has a result.
  void Abandon(const std::function<bool(const DeviceBlockInfo&)>& matches);

 private:
  struct Copy {
    std::uint64_t id = 0, event = 0;
    PinnedTier::Pin source;
  };
  Promoter(kernels::Device& device, KvStore& store, PinnedTier* pinned, kernels::CodecView view)
      : device_(device), store_(store), pinned_(pinned), view_(view) {}
  void Run();
  Status Start(const PromotionJob& job);
  void TakeCopied(bool wait);
  void Finish(std::uint64_t id, Status status);

  kernels::Device& device_;
  KvStore& store_;
  PinnedTier* const pinned_;
  const kernels::CodecView view_;
  // The thread's own.
  std::unique_ptr<PinnedRing> staging_;
  std::deque<Copy> copying_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<PromotionJob> jobs_;
  std::vector<PromotionResult> results_;
  std::int64_t under_way_ = 0;  ///< jobs without a result
  const DeviceBlockInfo* reading_ = nullptr;
  bool stopping_ = false;
  std::thread thread_;
};

}  // namespace inferscale

#endif  // INFERSCALE_CONNECTOR_PROMOTER_H_
