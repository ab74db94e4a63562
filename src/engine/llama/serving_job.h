#ifndef INFERSCALE_ENGINE_LLAMA_SERVING_JOB_H_
#define INFERSCALE_ENGINE_LLAMA_SERVING_JOB_H_

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <vector>

#include "engine/llama/composition_match.h"
#include "engine/llama/text_stream.h"
#include "engine/llama/token_sampler.h"
#include "inferscale/engine.h"

namespace inferscale {

using SteadyClock = std::chrono::steady_clock;

/// Wakes the serving thread; outlives it in the hands of generations.
struct ServingSignal {
  std::mutex mutex;
  std::condition_variable changed;
  bool pending = false;
  std::atomic<bool> interrupt{false};  ///< asks a running computation to stop at the next node

  void Raise() {
    {
      const std::scoped_lock lock(mutex);
      pending = true;
    }
    changed.notify_all();
  }
};

class ServingGeneration final : public Generation {
 public:
  explicit ServingGeneration(std::shared_ptr<ServingSignal> signal) : signal_(std::move(signal)) {}
  void Cancel() override {
    cancelled_ = true;
    signal_->interrupt = true;
    signal_->Raise();
  }
  void Wait() override {
    std::unique_lock lock(mutex_);
    finished_.wait(lock, [&] { return done_; });
  }
  bool cancelled() const { return cancelled_; }
  void MarkDone() {
    const std::scoped_lock lock(mutex_);
    done_ = true;
    finished_.notify_all();
  }

 private:
  std::shared_ptr<ServingSignal> signal_;
  std::atomic<bool> cancelled_{false};
  std::mutex mutex_;
  std::condition_variable finished_;
  bool done_ = false;
};

/// One prompt on its way through the serving thread. Before admission only the request; the rest
/// belongs to that thread.
struct ServingJob {
  Composition composition;
  Sampling sampling;
  GenerationCallbacks callbacks;
  std::optional<SteadyClock::time_point> deadline;
  std::shared_ptr<ServingGeneration> handle;
  SteadyClock::time_point submitted;
  Status rejected;  ///< not ok: the request is wrong, only on_done is due

  /// Scoring: tokens whose probabilities are wanted; nothing is sampled.
  TokenIds continuation;
  bool first_distribution = false;
  std::function<void(ScoreReport)> on_score;  ///< set: this is a scoring job

  std::unique_ptr<TokenSampler> sampler;
  std::unique_ptr<TextStream> stream;
  std::int32_t sequence = -1;
  TokenIds tokens;               ///< the prompt and what follows it, in order
  std::int32_t computed_to = 0;  ///< tokens [0, computed_to) have KV
  std::int32_t prompt_tokens = 0;
  std::vector<std::int32_t> starts;  ///< where computed runs of the prompt began
  bool drop_sequence = false;        ///< its scope was erased meanwhile
  std::vector<std::pair<std::int32_t, std::int32_t>>
      outputs;  ///< (batch index, token) of this step
  GenerationReport report;
  FallbackCounter fallbacks;
  ScoreReport score;

  bool scoring() const { return static_cast<bool>(on_score); }
  /// Tokens that can be computed now without another one being sampled.
  std::int32_t known() const { return static_cast<std::int32_t>(tokens.size()); }
};

}  // namespace inferscale

#endif  // INFERSCALE_ENGINE_LLAMA_SERVING_JOB_H_
