#ifndef INFERSCALE_ENGINE_VLLM_VLLM_ENCODER_H_
#define INFERSCALE_ENGINE_VLLM_VLLM_ENCODER_H_

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <thread>
#include <utility>
#include <vector>

#include "engine/vllm/capture_history.h"
#include "engine/vllm/vllm_cluster.h"
#include "inferscale/engine.h"

namespace inferscale {

/// Encodes facts by requests of one token each, whose KV the connector captures. A fact sees its
/// context and itself; the context is computed once an owner and comes from vLLM's prefix cache
/// from then on. A few run at a time, and one beside generations. Thread-safe.
class VllmEncoder {
 public:
  /// \param cluster must outlive this.
  explicit VllmEncoder(const VllmCluster& cluster);
  /// What is queued ends as cancelled; what is under way ends first.
  ~VllmEncoder();

  void Encode(std::vector<EncodeRequest> requests,
              std::function<void(const EncodeOutcome&)> on_outcome);
  /// Captures a prompt's exact prefix on a core that lacks it: facts behind it could not be
  /// injected there. Waits for it, no longer than whoever asked does, and fails by leaving it away;
  /// so does one that has failed of late (CaptureHistory).
  void HoldPrefix(VllmServer& server, const Composition& composition,
                  std::optional<VllmServer::SteadyTime> deadline, HttpCancellation* cancellation);
  /// Ends encodings of a scope below `epoch` without a block, now and from now on, and waits for
  /// those under way. kUnavailable if they take too long.
  Status Fence(std::uint64_t scope_tag, std::uint64_t epoch);

 private:
  struct Item {
    EncodeRequest request;
    std::shared_ptr<const std::function<void(const EncodeOutcome&)>> on_outcome;
  };
  struct Running {
    std::uint64_t scope_tag = 0, epoch = 0;
    bool operator<(const Running& other) const {
      return std::pair(scope_tag, epoch) < std::pair(other.scope_tag, other.epoch);
    }
  };
  void Work();
  bool Fenced(const KvBlockInfo& info) const;
  Status Carry(const EncodeRequest& request) const;
  /// \return how it ended, or would again.
  Status Capture(VllmServer& server, const EncodeRequest& request, const TokenIds& prompt,
                 std::optional<VllmServer::SteadyTime> deadline = std::nullopt,
                 HttpCancellation* cancellation = nullptr) const;
  Status CaptureNow(VllmServer& server, const EncodeRequest& request, const TokenIds& prompt,
                    std::optional<VllmServer::SteadyTime> deadline,
                    HttpCancellation* cancellation) const;
  bool MayStart() const;
  bool Foreground() const;

  const VllmCluster& cluster_;
  mutable CaptureHistory history_;
  mutable std::mutex mutex_;
  std::condition_variable work_, ended_;
  std::deque<Item> urgent_, queue_;
  std::multiset<Running> running_;
  std::map<std::uint64_t, std::uint64_t> fences_;  ///< scope -> least epoch
  bool stopping_ = false;
  std::vector<std::thread> threads_;
};

}  // namespace inferscale

#endif  // INFERSCALE_ENGINE_VLLM_VLLM_ENCODER_H_
