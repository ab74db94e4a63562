#include "eval/session.h"

#include <algorithm>
#include <map>
#include <system_error>

#include "base/files.h"
#include "base/hash.h"
#include "base/random.h"
#include "eval/progress.h"

namespace inferscale {
namespace {

/// A UUID that depends on the data alone, so that results of an earlier run still name the same
/// facts.
std::string StableFactId(const Scope& scope, std::size_t index, const std::string& text) {
  std::string id =
      HexEncode(Sha256(scope.user + "\n" + std::to_string(index) + "\n" + text)).substr(0, 32);
  id[12] = '8';  // RFC 9562: version 8, a form of one's own
  id[16] = 'a';
  for (const std::size_t at : {8, 13, 18, 23}) id.insert(at, "-");
  return id;
}

std::string IngestedMark(const Scope& scope, std::int32_t session) {
  return "eval.ingested." + scope.user + "." + std::to_string(session);
}

}  // namespace

Result<IngestSource> ParseIngestSource(const std::string& name) {
  if (name == "facts") return IngestSource::kFacts;
  if (name == "verbatim") return IngestSource::kVerbatim;
  if (name == "extract") return IngestSource::kExtract;
  return InvalidArgument("--ingest must be \"facts\", \"verbatim\" or \"extract\", not \"" + name +
                         "\"");
}

Result<WorkFolder> WorkFolder::Create(const std::filesystem::path& given) {
  if (!given.empty()) return WorkFolder(given, false);
  std::error_code error;
  const std::filesystem::path base = std::filesystem::temp_directory_path(error);
  if (error)
    return FailedPrecondition("no folder for temporary files: " + error.message() + "; set TMPDIR");
  const std::filesystem::path folder = base / ("inferscale-" + NewUuid());
  INFERSCALE_RETURN_IF_ERROR(CreatePrivateFolder(folder));
  return WorkFolder(folder, true);
}

WorkFolder::WorkFolder(WorkFolder&& other) noexcept
    : path_(std::move(other.path_)), temporary_(other.temporary_) {
  other.temporary_ = false;
}

WorkFolder::~WorkFolder() {
  if (!temporary_) return;
  std::error_code ignored;
  std::filesystem::remove_all(path_, ignored);
}

Result<EvalSession> EvalSession::Open(EvalContext& context, const EvalServiceOptions& options) {
  INFERSCALE_ASSIGN_OR_RETURN(std::unique_ptr<MemoryService> service,
                              context.open_service(options));
  if (options.with_engine && service->engine() == nullptr) {
    return FailedPrecondition("this command needs a language model: give --model FILE.gguf");
  }
  return EvalSession(context, std::move(service));
}

Status EvalSession::Ingest(const Scope& scope, const EvalConversation& conversation,
                           const IngestOptions& options) {
  const IngestSource source = options.source == IngestSource::kFacts && conversation.facts.empty()
                                  ? IngestSource::kVerbatim
                                  : options.source;
  const std::size_t max_facts = options.max_facts;
  std::map<std::int32_t, IngestBatch> sessions;
  std::map<std::int32_t, std::map<std::string, std::int32_t>> turn_indexes;
  for (const EvalTurn& turn : conversation.turns) {
    IngestBatch& batch = sessions[turn.session];
    turn_indexes[turn.session][turn.id] = static_cast<std::int32_t>(batch.turns.size());
    Turn stored;
    stored.role = !conversation.speakers.empty() && turn.speaker == conversation.speakers.front()
                      ? "user"
                      : "assistant";
    if (options.names) stored.name = turn.speaker;
    stored.content = turn.text;
    stored.time_ms = turn.time_ms;
    batch.turns.push_back(std::move(stored));
  }
  const std::size_t count =
      max_facts == 0 ? conversation.facts.size() : std::min(max_facts, conversation.facts.size());
  for (std::size_t f = 0; source == IngestSource::kFacts && f < count; ++f) {
    const EvalFact& fact = conversation.facts[f];
    NewFact stored;
    stored.fact.id = StableFactId(scope, f, fact.text);
    stored.fact.text = fact.text;
    if (options.names) stored.fact.name = fact.speaker;
    stored.fact.event_time_ms = fact.time_ms;
    for (const std::string& id : fact.sources) {
      const auto& indexes = turn_indexes[fact.session];
      if (const auto found = indexes.find(id); found != indexes.end()) {
        stored.source_turn_indexes.push_back(found->second);
      }
    }
    if (fact.supersedes) {
      stored.supersedes = {
          StableFactId(scope, *fact.supersedes, conversation.facts[*fact.supersedes].text)};
    }
    sessions[fact.session].facts.push_back(std::move(stored));
  }

  EvalProgress progress(*context_, "storing " + conversation.id + ", session",
                        static_cast<std::int64_t>(sessions.size()));
  for (auto& [number, batch] : sessions) {
    INFERSCALE_RETURN_IF_ERROR(CheckStop(*context_));
    const std::string mark = IngestedMark(scope, number);
    INFERSCALE_ASSIGN_OR_RETURN(const std::string done, service_->catalog().GetMeta(mark));
    if (done.empty()) {
      if (source != IngestSource::kFacts) {
        if (max_facts != 0 && batch.turns.size() > max_facts) batch.turns.resize(max_facts);
        AddRequest request;
        request.scope = scope;
        request.turns = std::move(batch.turns);
        request.mode =
            source == IngestSource::kExtract ? ExtractionMode::kLlm : ExtractionMode::kVerbatim;
        INFERSCALE_ASSIGN_OR_RETURN([[maybe_unused]] const AddOutcome outcome,
                                    service_->Add(request));
      } else {
        INFERSCALE_ASSIGN_OR_RETURN(
            [[maybe_unused]] const IngestOutcome outcome,
            service_->AddFacts(scope, std::move(batch.turns), std::move(batch.facts)));
      }
      INFERSCALE_RETURN_IF_ERROR(service_->catalog().SetMeta(mark, "1"));
    }
    progress.Add();
  }
  return OkStatus();
}

Status EvalSession::WaitIdle(const std::string& what) {
  INFERSCALE_ASSIGN_OR_RETURN(const PendingWork before, service_->Pending());
  const std::int64_t total = std::max(before.encodings, before.embeddings);
  if (total == 0 && before.extractions == 0 && before.erasures == 0) return OkStatus();
  EvalProgress progress(*context_, what, total);
  INFERSCALE_RETURN_IF_ERROR(service_->WaitIdle([&](const PendingWork& pending) {
    progress.Set(
        std::max<std::int64_t>(total - std::max(pending.encodings, pending.embeddings), 0));
    return CheckStop(*context_).ok();
  }));
  INFERSCALE_RETURN_IF_ERROR(CheckStop(*context_));
  progress.Set(total);
  return OkStatus();
}

Result<Composition> EvalSession::Compose(const Scope& scope, const std::string& question,
                                         std::span<const Fact> facts, MemoryMode mode) {
  INFERSCALE_ASSIGN_OR_RETURN(EvalPrompt prompt, Compose(scope, question, facts, mode, {}));
  return std::move(prompt.composition);
}

Result<EvalPrompt> EvalSession::Compose(const Scope& scope, const std::string& question,
                                        std::span<const Fact> facts, MemoryMode mode,
                                        const PromptOptions& options) {
  std::vector<ChatMessage> messages = QuestionMessages(question);
  if (!options.system.empty()) messages.insert(messages.begin(), {"system", options.system, ""});
  std::vector<Fallback> fallbacks;
  EvalPrompt prompt;
  INFERSCALE_ASSIGN_OR_RETURN(
      prompt.composition,
      service_->ComposeFor(scope, messages, facts, mode, options.compute_best, &fallbacks));
  prompt.composition.salt = FreshSalt();
  for (const Fallback& fallback : fallbacks) {
    if (fallback.reason == "over_budget") prompt.left_out += fallback.count;
  }
  return prompt;
}

Result<Answer> EvalSession::Generate(Composition composition, std::int32_t max_tokens) {
  Sampling sampling;
  sampling.max_tokens = max_tokens;
  Answer answer;
  answer.generation = GenerateBlocking(engine(), std::move(composition), sampling);
  INFERSCALE_RETURN_IF_ERROR(answer.generation.status);
  if (answer.generation.reused_tokens != 0) {
    return Internal(
        "a measurement reused " + std::to_string(answer.generation.reused_tokens) +
        " tokens of an earlier prompt although its salt is new: its time would mean nothing");
  }
  return answer;
}

Result<Answer> EvalSession::Score(Composition composition, const std::string& gold,
                                  bool first_distribution, bool may_reuse) {
  TokenIds continuation = engine().Tokenize(gold);
  if (continuation.empty()) return InvalidArgument("the gold answer has no token");
  INFERSCALE_ASSIGN_OR_RETURN(
      ScoreReport report,
      engine().Score(std::move(composition), std::move(continuation), first_distribution));
  INFERSCALE_RETURN_IF_ERROR(report.generation.status);
  if (!may_reuse && report.generation.reused_tokens != 0) {
    return Internal("a score reused tokens of an earlier prompt although its salt is new");
  }
  Answer answer;
  const std::vector<double> logprobs(report.logprobs.begin(), report.logprobs.end());
  answer.logprob = Mean(logprobs);
  answer.first_logprobs = std::move(report.first_logprobs);
  answer.generation = std::move(report.generation);
  return answer;
}

Result<double> EvalSession::MeasurePrefill(const Scope& scope, std::span<const Fact> facts) {
  double speed = 0;
  // The first is a warm-up; of the others the fastest counts, since another process may have been
  // in the way.
  for (const std::size_t count : {std::size_t{2}, std::size_t{6}, std::size_t{5}}) {
    INFERSCALE_ASSIGN_OR_RETURN(
        Composition composition,
        Compose(scope, "How are you?", facts.first(std::min(count, facts.size())),
                MemoryMode::kText));
    INFERSCALE_ASSIGN_OR_RETURN(const Answer answer, Generate(std::move(composition), 1));
    speed = std::max(speed, answer.generation.computed_tokens /
                                std::max(answer.generation.ttft_ms, 0.001) * 1000);
    // A slow machine is known well enough after one.
    if (count == 6 && answer.generation.ttft_ms > 20'000) break;
  }
  return speed;
}

std::vector<ChatMessage> QuestionMessages(const std::string& question) {
  return {{"user", question + "\nAnswer with a short phrase.", ""}};
}

std::string FreshSalt() { return "measurement " + NewUuid(); }

std::span<const Fact> FirstFacts(const std::vector<Fact>& facts, std::int32_t k) {
  return std::span(facts).first(std::min(static_cast<std::size_t>(std::max(k, 0)), facts.size()));
}

std::vector<Fact> FactsOf(std::span<const SearchHit> hits) {
  std::vector<Fact> facts;
  facts.reserve(hits.size());
  for (const SearchHit& hit : hits) facts.push_back(hit.fact);
  return facts;
}

}  // namespace inferscale
