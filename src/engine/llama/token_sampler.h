#ifndef INFERSCALE_ENGINE_LLAMA_TOKEN_SAMPLER_H_
#define INFERSCALE_ENGINE_LLAMA_TOKEN_SAMPLER_H_

#include <memory>
#include <utility>
#include <vector>

#include "inferscale/engine.h"
#include "inferscale/result.h"

struct llama_vocab;

namespace inferscale {

/// Checks what a caller asks for. kInvalidArgument names the value.
Status ValidateSampling(const Sampling& sampling);

/// log Σ exp(logits), in double.
double LogSumExp(const float* logits, std::int32_t count);

/// Picks tokens by one request's rules. Not thread-safe.
class TokenSampler {
 public:
  struct Choice {
    TokenId id = 0;
    float logprob = 0;  ///< under the model, before temperature and filters; 0 if not asked for
    std::vector<std::pair<TokenId, float>> top;
  };

  /// kInvalidArgument: the grammar does not parse.
  static Result<std::unique_ptr<TokenSampler>> Create(const llama_vocab* vocab,
                                                      std::int32_t vocabulary,
                                                      const Sampling& sampling);
  ~TokenSampler();

  /// \param logits [vocabulary]. The choice counts as generated.
  Result<Choice> Sample(const float* logits);

 private:
  struct Impl;
  TokenSampler();
  std::unique_ptr<Impl> impl_;
};

}  // namespace inferscale

#endif  // INFERSCALE_ENGINE_LLAMA_TOKEN_SAMPLER_H_
