#ifndef INFERSCALE_SERVER_COMPLETION_ANSWER_H_
#define INFERSCALE_SERVER_COMPLETION_ANSWER_H_

/// \file completion_answer.h
/// CompletionAnswer: one or more generations become one OpenAI answer, whole or as server-sent
/// events. Kept alive by the generations' callbacks; a client that goes away cancels them.
/// Guarantees: every exchange gets exactly one end. Thread-safe; nothing here blocks.

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "inferscale/memory_service.h"
#include "server/exchange.h"
#include "server/metrics.h"
#include "server/openai_request.h"
#include "server/tool_stream.h"

namespace inferscale {

class CompletionAnswer : public std::enable_shared_from_this<CompletionAnswer> {
 public:
  struct Parts {
    ExchangePtr exchange;
    CompletionOptions options;
    std::int32_t choices = 1;  ///< n for each prompt
    std::string model;
    const Engine* engine = nullptr;  ///< outlives the generations
    std::shared_ptr<Metrics> metrics;
    std::shared_ptr<std::atomic<std::int32_t>> in_flight;  ///< lowered at the end
  };
  static std::shared_ptr<CompletionAnswer> Make(Parts parts);
  ~CompletionAnswer();

  /// Keeps a generation to cancel; at once if there is nobody to answer any more.
  void Started(std::size_t choice, std::shared_ptr<Generation> generation);
  void OnToken(std::size_t choice, const TokenEvent& event);
  void OnDone(std::size_t choice, ChatReport report);
  /// Answers with this error, and cancels what has been started.
  void Fail(const Status& status);
  bool failed() const;

 private:
  using Json = nlohmann::ordered_json;
  struct Choice {
    std::shared_ptr<Generation> generation;
    bool role_sent = false, done = false;
    Json logprobs = Json::array();
    std::string text;                 // so far, of a text completion with logprobs
    std::optional<ToolStream> tools;  // of a stream that may call tools
    ChatReport report;
  };

  explicit CompletionAnswer(Parts parts);
  bool Begin();
  bool Send(const Json& chunk);
  Json Envelope() const;
  Json Chunk(std::size_t choice, const std::string& text, Json logprobs,
             const Json& finish_reason) const;
  Json ChunkOf(std::size_t choice, Json delta, Json logprobs, const Json& finish_reason) const;
  /// Sends what is new of a choice that may call tools, with the log-probabilities that wait.
  bool SendDeltas(std::size_t choice, const std::vector<ToolStream::Delta>& deltas);
  const char* FinishName(std::size_t choice) const;
  Json Usage() const;
  Json Memory() const;
  Json TokenLogprob(const Choice& choice, const TokenEvent& event) const;
  Json LogprobsOf(const Json& entries) const;
  void FinishStream(std::size_t last_choice);
  void FinishWhole();
  void CancelAll();
  void CountMetrics(const ChatReport& report);

  Parts parts_;
  const std::string id_;
  const std::int64_t created_;
  mutable std::mutex mutex_;
  std::vector<Choice> choices_;
  std::size_t left_;
  bool begun_ = false, over_ = false;
};

/// How the OpenAI routes answer an error: what cannot be done is a 400 "unsupported_parameter".
HttpResponse OpenAiError(const HttpRequest& request, const Status& status);

}  // namespace inferscale

#endif  // INFERSCALE_SERVER_COMPLETION_ANSWER_H_
