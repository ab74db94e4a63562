#ifndef INFERSCALE_MEMORY_EXTRACTOR_H_
#define INFERSCALE_MEMORY_EXTRACTOR_H_

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "inferscale/engine.h"
#include "inferscale/result.h"
#include "inferscale/types.h"

namespace inferscale {

/// The bounds of what one turn may yield. Verbatim facts have the second one alone: nothing is
/// lost.
inline constexpr std::size_t kMaxFactsPerTurn = 5;
inline constexpr std::size_t kMaxFactCharacters = 600;

struct ExistingFact {
  std::string id;
  std::string text;
};

struct ExtractRequest {
  std::vector<Turn> turns;             ///< in order; those of users and assistants yield facts
  std::vector<ExistingFact> existing;  ///< the nearest facts stored, best first
  std::vector<std::string> exclude;    ///< texts injected as memory: never extracted again
};

struct ExtractedFact {
  std::string text;
  std::string name;                               ///< whom it is about; empty: not known
  TimeMs event_time_ms = 0;                       ///< time of the source turn
  std::vector<std::int32_t> source_turn_indexes;  ///< into ExtractRequest::turns
  std::vector<std::string> supersedes;            ///< ids out of ExtractRequest::existing
};

/// Facts out of conversation turns. Implementations are thread-safe.
class Extractor {
 public:
  virtual ~Extractor() = default;
  virtual Result<std::vector<ExtractedFact>> Extract(const ExtractRequest& request) = 0;
};

/// Every turn with text is a fact, byte for byte, split at sentence borders only when it is longer
/// than kMaxFactCharacters. Never fails.
class VerbatimExtractor : public Extractor {
 public:
  Result<std::vector<ExtractedFact>> Extract(const ExtractRequest& request) override;
};

/// Completes a chat greedily; the grammar (GBNF) is a wish that a server without grammars ignores.
using CompletionFunction = std::function<Result<std::string>(
    const std::vector<ChatMessage>& messages, const std::string& grammar)>;

/// Asks a model for the facts of one turn at a time, so that each fact's source is certain. An
/// answer that cannot be understood yields what it holds in complete items, perhaps nothing; a
/// completion that fails is the error of the whole request, so that it can be tried again.
class LlmExtractor : public Extractor {
 public:
  explicit LlmExtractor(CompletionFunction complete) : complete_(std::move(complete)) {}
  Result<std::vector<ExtractedFact>> Extract(const ExtractRequest& request) override;

 private:
  CompletionFunction complete_;
};

/// The grammar of {"facts":[{"text":…,"name":…,"contradicts":[n…]}]}.
const std::string& ExtractionGrammar();

/// Completions of an OpenAI-compatible server, temperature 0. \param url ".../v1" or
/// ".../v1/chat/completions". The function's errors: kUnavailable (no answer, 408, 429, 5xx),
/// kInvalidArgument (the server refuses the request), with the URL and never the key.
Result<CompletionFunction> MakeEndpointCompletion(
    const std::string& url, const std::string& model, const std::string& api_key,
    std::chrono::milliseconds timeout = std::chrono::seconds(120));

}  // namespace inferscale

#endif  // INFERSCALE_MEMORY_EXTRACTOR_H_
