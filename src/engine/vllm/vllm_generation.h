#ifndef INFERSCALE_ENGINE_VLLM_VLLM_GENERATION_H_
#define INFERSCALE_ENGINE_VLLM_VLLM_GENERATION_H_

#include <chrono>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <optional>

#include "base/http_client.h"
#include "engine/vllm/vllm_cluster.h"
#include "engine/vllm/vllm_encoder.h"
#include "inferscale/engine.h"

namespace inferscale {

/// One prompt on its way through a vLLM server. Thread-safe.
class VllmGeneration final : public Generation {
 public:
  void Cancel() override { cancellation_.Cancel(); }
  void Wait() override;
  void MarkDone();
  HttpCancellation& cancellation() { return cancellation_; }

 private:
  HttpCancellation cancellation_;
  std::mutex mutex_;
  std::condition_variable finished_;
  bool done_ = false;
};

struct VllmPrompt {
  Composition composition;
  Sampling sampling;
  std::function<void(const TokenEvent&)> on_token;
  std::optional<std::chrono::steady_clock::time_point> deadline;
  std::chrono::steady_clock::time_point submitted;
};

/// Carries a prompt out, on another core if the first one is away. Blocks. \param encoder null
/// without KV.
GenerationReport CarryOut(const VllmCluster& cluster, VllmEncoder* encoder, VllmPrompt& prompt,
                          HttpCancellation& cancellation);

/// Log-probabilities of a continuation, a request a token: vLLM computes prompts' log-probabilities
/// without stored KV. kUnsupported: the server gives no distribution of the whole vocabulary.
Result<ScoreReport> ScoreContinuation(const VllmCluster& cluster, VllmEncoder* encoder,
                                      const Composition& composition, const TokenIds& continuation,
                                      bool first_distribution);

}  // namespace inferscale

#endif  // INFERSCALE_ENGINE_VLLM_VLLM_GENERATION_H_
