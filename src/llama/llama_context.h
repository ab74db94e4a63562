#ifndef INFERSCALE_LLAMA_LLAMA_CONTEXT_H_
#define INFERSCALE_LLAMA_LLAMA_CONTEXT_H_

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "inferscale/result.h"
#include "inferscale/types.h"
#include "llama/llama_model.h"

struct llama_context;

namespace inferscale {

/// Rotation settings that override the model's; zero or negative: the model's own.
struct LlamaRopeOverrides {
  float base = 0;
  float frequency_scale = 0;
  float yarn_extrapolation = -1;
  float yarn_attention = -1;
  float yarn_beta_fast = -1;
  float yarn_beta_slow = -1;
  std::uint32_t yarn_original_context = 0;

  bool operator==(const LlamaRopeOverrides&) const = default;
};

struct LlamaContextOptions {
  std::int32_t tokens_per_sequence = 512;  ///< with a shared cache: cells of all sequences together
  std::int32_t sequences = 1;
  std::int32_t batch_tokens = 512;  ///< most tokens of one Decode
  std::int32_t outputs = 1;         ///< most logits of one Decode
  std::int32_t threads = 1;
  bool shared_cache = false;  ///< one cell pool for all sequences (llama.cpp: kv_unified)
  bool flash_attention = false;
  bool f32_cache = false;
  bool embeddings = false;  ///< mean-pooled embeddings instead of logits
  bool offload = false;     ///< keep the cache on the GPU
  LlamaRopeOverrides rope;
};

/// One token of a batch.
struct BatchToken {
  TokenId id = 0;
  std::int32_t position = 0;
  std::int32_t sequence = 0;
  bool output = false;  ///< logits wanted
};

enum class DecodeOutcome { kOk, kAborted };

/// A llama.cpp context: one KV cache and its computation. Not thread-safe: one thread owns it,
/// except that the abort flag may be raised by any. Every argument is checked before llama.cpp sees
/// it, because its own checks end the process.
class LlamaContext {
 public:
  static Result<std::unique_ptr<LlamaContext>> Create(std::shared_ptr<const LlamaModel> model,
                                                      const LlamaContextOptions& options);
  ~LlamaContext();
  LlamaContext(const LlamaContext&) = delete;
  LlamaContext& operator=(const LlamaContext&) = delete;

  const LlamaModel& model() const { return *model_; }
  const LlamaContextOptions& options() const { return options_; }
  llama_context* get() const { return context_; }
  std::int32_t tokens_per_sequence() const { return tokens_per_sequence_; }
  std::int32_t batch_tokens() const { return batch_tokens_; }
  std::int32_t vocabulary() const { return vocabulary_; }

  /// Computes a batch of 1 … batch_tokens() tokens. kResourceExhausted: no room in the cache.
  /// kAborted: `should_abort` said so (CPU only); what was computed of the batch must be removed.
  Result<DecodeOutcome> Decode(std::span<const BatchToken> batch);
  /// Asked during Decode; null: never abort.
  void SetAbort(std::function<bool()> should_abort) { should_abort_ = std::move(should_abort); }

  /// [vocabulary] logits of the batch's token `index`, which had `output`; nullptr if it had not.
  /// Valid until the next Decode.
  const float* Logits(std::int32_t index) const;
  /// Pooled embedding of a sequence of the last batch; nullptr if there is none.
  const float* Embedding(std::int32_t sequence) const;

  void ClearAll();
  /// Removes positions [begin, end) of a sequence; end < 0: to the end. False: this kind of model
  /// cannot remove a part; the sequence is unchanged.
  bool Remove(std::int32_t sequence, std::int32_t begin, std::int32_t end);
  void CopySequence(std::int32_t from, std::int32_t to, std::int32_t begin, std::int32_t end);
  std::int32_t FirstPosition(std::int32_t sequence) const;  ///< -1: empty
  std::int32_t LastPosition(std::int32_t sequence) const;   ///< -1: empty

  /// The state of one sequence in llama.cpp's format. Reuses `bytes`' memory.
  Status GetState(std::int32_t sequence, std::vector<std::uint8_t>& bytes) const;
  /// Replaces a sequence by a state. kInternal: llama.cpp refused it; the sequence is then empty.
  Status SetState(std::int32_t sequence, std::span<const std::uint8_t> bytes);

 private:
  struct Batch;
  LlamaContext() = default;
  bool ValidSequence(std::int32_t sequence) const {
    return sequence >= 0 && sequence < options_.sequences;
  }

  std::shared_ptr<const LlamaModel> model_;
  LlamaContextOptions options_;
  llama_context* context_ = nullptr;
  std::unique_ptr<Batch> batch_;
  std::function<bool()> should_abort_;
  std::int32_t tokens_per_sequence_ = 0;
  std::int32_t batch_tokens_ = 0;
  std::int32_t vocabulary_ = 0;
  std::vector<bool> outputs_;  ///< of the last batch
};

}  // namespace inferscale

#endif  // INFERSCALE_LLAMA_LLAMA_CONTEXT_H_
