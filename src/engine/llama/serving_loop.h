#ifndef INFERSCALE_ENGINE_LLAMA_SERVING_LOOP_H_
#define INFERSCALE_ENGINE_LLAMA_SERVING_LOOP_H_

#include <cstdint>
#include <deque>
#include <future>
#include <list>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "engine/llama/foreground_gate.h"
#include "engine/llama/prompt_injector.h"
#include "engine/llama/sequence_cache.h"
#include "engine/llama/serving_job.h"
#include "inferscale/engine.h"
#include "llama/llama_context.h"
#include "llama/tokenizer.h"

namespace inferscale {

/// Owns the serving context and the one thread that uses it: continuous batching of all running
/// generations. Thread-safe. Callbacks run on that thread, under no lock. Destroying it cancels
/// what is left.
class ServingLoop {
 public:
  struct Options {
    std::unique_ptr<LlamaContext> context;
    std::shared_ptr<const LlamaTokenizer> tokenizer;
    PromptInjector::Options injection;
    std::shared_ptr<ForegroundGate> gate;
    std::int32_t window = 0;  ///< of the model's sliding-window layers; 0: none
    bool removable = true;    ///< parts of a sequence can be removed (not in a recurrent model)
  };
  explicit ServingLoop(Options options);
  ~ServingLoop();

  /// Takes a job whose request part is filled in and checked.
  std::shared_ptr<Generation> Submit(std::unique_ptr<ServingJob> job);
  /// Forgets cached sequences of a scope; running generations of it finish but leave nothing
  /// behind.
  void DropScope(std::uint64_t scope_tag);

 private:
  struct DropRequest {
    std::uint64_t scope_tag;
    std::promise<void> done;
  };

  void Run();
  /// Moves what callers have handed in to this thread's lists. \return false: stop.
  bool TakeWork();
  void EndCancelled();
  void AdmitQueued();
  bool Admit(ServingJob& job);
  bool CanKeepPrefix(std::int32_t sequence, std::int32_t tokens) const;
  void Step();
  std::int32_t SliceTokens(bool alone) const;
  void AfterStep(ServingJob& job);
  void AfterScored(ServingJob& job, std::int32_t index, std::int32_t token);
  void AfterSampled(ServingJob& job, const float* logits);
  void RollBack(ServingJob& job, std::int32_t computed_to);
  void End(ServingJob& job, FinishReason reason, Status status);
  void Sweep();
  void Drop(std::uint64_t scope_tag);
  bool ShouldAbort() const;

  std::unique_ptr<LlamaContext> context_;
  std::shared_ptr<const LlamaTokenizer> tokenizer_;
  PromptInjector injector_;
  std::int32_t window_;
  std::shared_ptr<ForegroundGate> gate_;
  bool removable_;
  std::shared_ptr<ServingSignal> signal_ = std::make_shared<ServingSignal>();

  // Under signal_->mutex.
  bool stop_ = false;
  std::vector<std::unique_ptr<ServingJob>> incoming_;
  std::vector<DropRequest> incoming_drops_;

  // The serving thread's own.
  SequenceCache cache_;
  std::deque<std::unique_ptr<ServingJob>> queue_;
  std::list<std::unique_ptr<ServingJob>> active_;
  bool no_room_ = false;  ///< nothing runs and yet nothing could be admitted
  double tokens_per_second_ = 200;
  std::atomic<std::int64_t> nearest_deadline_{INT64_MAX};  ///< nanoseconds of SteadyClock
  std::atomic<bool> long_step_{false};  ///< a newcomer may interrupt the running computation

  std::thread thread_;
};

}  // namespace inferscale

#endif  // INFERSCALE_ENGINE_LLAMA_SERVING_LOOP_H_
