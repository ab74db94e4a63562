#ifndef INFERSCALE_EVAL_SESSION_H_
#define INFERSCALE_EVAL_SESSION_H_

/// \file session.h
/// EvalSession: a service over a folder, and the measurements taken on it. Guarantees that no
/// measurement is helped by what an earlier one left in the engine's cache: each uses a salt of its
/// own, and one that reports reused tokens is an error. Not thread-safe.

#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "eval/commands.h"
#include "eval/dataset.h"
#include "eval/statistics.h"

namespace inferscale {

/// What becomes facts: those that the dataset gives (its turns where it gives none), the turns, or
/// what the extractor makes of the turns.
enum class IngestSource { kFacts, kVerbatim, kExtract };
Result<IngestSource> ParseIngestSource(
    const std::string& name);  ///< "facts", "verbatim", "extract"

/// A folder that goes away with its owner, or a given one that stays.
class WorkFolder {
 public:
  /// \param given empty: a new temporary folder
  static Result<WorkFolder> Create(const std::filesystem::path& given);
  WorkFolder(WorkFolder&& other) noexcept;
  WorkFolder& operator=(WorkFolder&&) = delete;
  ~WorkFolder();
  const std::filesystem::path& path() const { return path_; }

 private:
  WorkFolder(std::filesystem::path path, bool temporary)
      : path_(std::move(path)), temporary_(temporary) {}
  std::filesystem::path path_;
  bool temporary_;
};

/// What a prompt has besides its question and facts.
struct PromptOptions {
  std::string system;             ///< empty: the service's own sentence
  std::int32_t compute_best = 0;  ///< facts that are computed although their KV is there
};

/// A prompt, and how many of its facts had no room in the context.
struct EvalPrompt {
  Composition composition;
  std::int32_t left_out = 0;
};

/// How a conversation is stored.
struct IngestOptions {
  IngestSource source = IngestSource::kFacts;
  bool names = true;          ///< false: facts and turns name nobody, as if names were unknown
  std::size_t max_facts = 0;  ///< 0: all
};

/// Time and tokens of one prompt.
struct Answer {
  GenerationReport generation;
  double logprob = 0;                 ///< of the gold answer, per token (Score only)
  std::vector<float> first_logprobs;  ///< [vocabulary] (Score only)
};

class EvalSession {
 public:
  /// Opens the service and checks that it has an engine.
  static Result<EvalSession> Open(EvalContext& context, const EvalServiceOptions& options);

  MemoryService& service() { return *service_; }
  Engine& engine() { return *service_->engine(); }
  const EngineCapabilities& capabilities() { return engine().capabilities(); }

  /// Stores a conversation under `scope` unless that has been done; a killed run goes on where it
  /// stopped.
  Status Ingest(const Scope& scope, const EvalConversation& conversation,
                const IngestOptions& options);
  /// Waits for all pending work, with a progress line.
  Status WaitIdle(const std::string& what);

  /// The prompt of a question with these facts (best first), under a new salt.
  Result<Composition> Compose(const Scope& scope, const std::string& question,
                              std::span<const Fact> facts, MemoryMode mode);
  Result<EvalPrompt> Compose(const Scope& scope, const std::string& question,
                             std::span<const Fact> facts, MemoryMode mode,
                             const PromptOptions& options);
  /// Time to first token and up to `max_tokens` of the greedy answer, nothing reused.
  Result<Answer> Generate(Composition composition, std::int32_t max_tokens);
  /// \param may_reuse the same prompt was generated before under the same salt.
  Result<Answer> Score(Composition composition, const std::string& gold, bool first_distribution,
                       bool may_reuse = false);

  /// Text prefill speed in tokens a second, from prompts of about 250 tokens after a warm-up.
  Result<double> MeasurePrefill(const Scope& scope, std::span<const Fact> facts);

 private:
  EvalSession(EvalContext& context, std::unique_ptr<MemoryService> service)
      : context_(&context), service_(std::move(service)) {}

  EvalContext* context_;
  std::unique_ptr<MemoryService> service_;
};

std::vector<ChatMessage> QuestionMessages(const std::string& question);
/// A salt that no other prompt of this machine has.
std::string FreshSalt();
/// The first `k` of the facts, or all.
std::span<const Fact> FirstFacts(const std::vector<Fact>& facts, std::int32_t k);
std::vector<Fact> FactsOf(std::span<const SearchHit> hits);

}  // namespace inferscale

#endif  // INFERSCALE_EVAL_SESSION_H_
