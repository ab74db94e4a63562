#ifndef INFERSCALE_ENGINE_VLLM_COMPLETION_H_
#define INFERSCALE_ENGINE_VLLM_COMPLETION_H_

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>

#include <nlohmann/json.hpp>

#include "inferscale/engine.h"
#include "inferscale/result.h"

namespace inferscale {

/// The body of a streamed /v1/completions request, without transfer parameters. kUnsupported for
/// sampling that vLLM has no words for.
Result<nlohmann::json> CompletionBody(const std::string& model, const TokenIds& prompt,
                                      const Sampling& sampling, const std::string& salt,
                                      std::int32_t context_tokens);

/// The id in "token_id:17", as return_tokens_as_token_ids writes tokens; -1 for anything else.
TokenId TokenIdOf(std::string_view text);

/// Reads the events of a streamed completion. Not thread-safe.
class CompletionReader {
 public:
  explicit CompletionReader(std::function<void(const TokenEvent&)> on_token)
      : on_token_(std::move(on_token)) {}

  /// Takes an event's data. false: the answer is at its end, or is no answer.
  bool Take(std::string_view data);

  bool started() const { return started_; }  ///< something was handed on
  bool ended() const { return ended_; }      ///< the stream said that it is whole
  const Status& status() const { return status_; }
  const std::string& text() const { return text_; }
  const TokenIds& generated() const { return generated_; }
  FinishReason finish() const { return finish_; }
  std::int64_t cached_tokens() const { return cached_tokens_; }  ///< -1: not told

 private:
  Status TakeChoice(const nlohmann::json& choice);

  const std::function<void(const TokenEvent&)> on_token_;
  bool started_ = false, ended_ = false, finished_ = false;
  Status status_;
  std::string text_;
  TokenIds generated_;
  FinishReason finish_ = FinishReason::kStop;
  std::int64_t cached_tokens_ = -1;
};

}  // namespace inferscale

#endif  // INFERSCALE_ENGINE_VLLM_COMPLETION_H_
