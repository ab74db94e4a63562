#include "eval/evaluation.h"

#include <algorithm>
#include <atomic>
#include <map>
#include <memory>
#include <random>
#include <set>
#include <tuple>

#include "base/files.h"
#include "compose/composer.h"
#include "encode/recipe.h"
#include "eval/eval_report.h"
#include "eval/progress.h"
#include "eval/results.h"
#include "eval/session.h"
#include "eval/system_text.h"

namespace inferscale {
namespace {

/// Tokens of text's first distribution that are kept for KL.
constexpr std::size_t kKeptTokens = 128;
constexpr std::int32_t kLeastRetrieved = 50;
constexpr std::int32_t kTokensAroundFacts = 700;
constexpr std::int32_t kTokensPerFact = 160;
constexpr std::size_t kMaxListedBytes = 500;
constexpr TimeMs kDayMs = 24LL * 3600 * 1000;

struct AskedQuestion {
  const EvalConversation* conversation = nullptr;
  const EvalQuestion* question = nullptr;
};

class Evaluation {
 public:
  Evaluation(EvalContext& context, EvalOptions options, EvalDataset dataset)
      : context_(context), options_(std::move(options)), dataset_(std::move(dataset)) {}

  Status Run() {
    INFERSCALE_RETURN_IF_ERROR(CheckOptions());
    INFERSCALE_ASSIGN_OR_RETURN(judge_, OpenJudge(options_.judge, options_.generate > 0));
    INFERSCALE_RETURN_IF_ERROR(ChooseQuestions());
    now_->store(today_);
    const std::filesystem::path out(options_.out);
    INFERSCALE_RETURN_IF_ERROR(CreatePrivateFolder(out));
    INFERSCALE_ASSIGN_OR_RETURN(ResultFile results,
                                ResultFile::Open(out / "results.jsonl", Header()));
    const std::filesystem::path folder =
        context_.data_dir.empty() ? out / "data" : context_.data_dir;

    bool first = true;
    for (const std::string& recipe : options_.recipes) {
      for (const std::string& codec : options_.codecs) {
        INFERSCALE_RETURN_IF_ERROR(RunOne(folder, recipe, codec, first, &results));
        first = false;
        if (!Wants("kv")) break;
      }
      if (!Wants("kv")) break;
    }
    if (judge_) INFERSCALE_RETURN_IF_ERROR(Judge(&results));
    ReportScope scope;
    scope.ks = options_.ks;
    for (const AskedQuestion& asked : asked_) scope.questions.insert(asked.question->id);
    scope.seed = options_.seed;
    return WriteEvalReport(context_, results, scope, out);
  }

 private:
  /// What the history does not answer has no right answer to be judged by.
  Status Judge(ResultFile* results) {
    std::map<std::string, const EvalQuestion*> questions;
    for (const AskedQuestion& asked : asked_) questions[asked.question->id] = asked.question;
    std::vector<JudgeItem> items;
    for (const auto& [key, result] : results->results()) {
      const auto found = questions.find(key.question);
      if (found == questions.end() || result.adversarial || !result.answer) continue;
      items.push_back({key, found->second->question, found->second->answer});
    }
    JudgeOptions judge_options;
    judge_options.model = options_.judge.model;
    INFERSCALE_ASSIGN_OR_RETURN(const JudgeOutcome outcome,
                                JudgeAnswers(context_, judge_, judge_options, items, results));
    if (const std::string note = JudgeNote(outcome); !note.empty()) Say(context_, note);
    return OkStatus();
  }

  bool Wants(const std::string& mode) const {
    return std::find(options_.modes.begin(), options_.modes.end(), mode) != options_.modes.end();
  }

  /// The same for every choice of k up to it, so that a file of results serves them all.
  std::int32_t Retrieved() const { return std::max(kLeastRetrieved, options_.ks.back()); }

  Status CheckOptions() {
    for (std::string& name : options_.recipes) {
      INFERSCALE_ASSIGN_OR_RETURN(const Recipe recipe, Recipe::Parse(name));
      name = recipe.Name();
    }
    for (const std::string& name : options_.codecs) {
      INFERSCALE_ASSIGN_OR_RETURN([[maybe_unused]] const KvCodec codec, ParseKvCodec(name));
    }
    for (std::vector<std::int32_t>* list : {&options_.ks, &options_.best}) {
      std::sort(list->begin(), list->end());
      list->erase(std::unique(list->begin(), list->end()), list->end());
    }
    const bool facts_given = std::any_of(
        dataset_.conversations.begin(), dataset_.conversations.end(),
        [](const EvalConversation& conversation) { return !conversation.facts.empty(); });
    if (options_.ingest == "facts" && !facts_given) options_.ingest = "verbatim";
    INFERSCALE_ASSIGN_OR_RETURN(system_, SystemTextSpec::Parse(options_.system));
    INFERSCALE_ASSIGN_OR_RETURN(const EvalNames names, ParseEvalNames(options_.names));
    ApplyNames(names, &dataset_);
    // Every figure is a difference to text.
    if (!Wants("text")) options_.modes.emplace_back("text");
    return OkStatus();
  }

  /// Settings that a newer version added are in it only when they are set, so that the results of
  /// an older one are gone on with.
  nlohmann::json Header() const {
    nlohmann::json header{{"model", context_.model},
                          {"ingest", options_.ingest},
                          {"generate", options_.generate},
                          {"retrieved", Retrieved()},
                          {"file", std::filesystem::path(options_.file).filename().string()}};
    if (!system_.empty()) header["system"] = system_.Identity();
    if (options_.names != "given") {
      header["names"] = options_.names;
      // Results of another form of such facts are not gone on with.
      header["unnamed"] = "no subject, behind the owner's own";
    }
    if (options_.profile > 0) header["profile"] = options_.profile;
    return header;
  }

  Status ChooseQuestions() {
    const std::set<std::string> categories(options_.categories.begin(), options_.categories.end());
    for (const EvalConversation& conversation : dataset_.conversations) {
      for (const EvalQuestion& question : conversation.questions) {
        if (categories.empty() || categories.contains(question.category))
          asked_.push_back({&conversation, &question});
      }
      if (!conversation.turns.empty())
        today_ = std::max(today_, conversation.turns.back().time_ms + kDayMs);
    }
    if (asked_.empty())
      return InvalidArgument("no question of " + options_.file + " is in the chosen categories");
    Draw();
    return KeepConversations();
  }

  void Draw() {
    const auto wanted = static_cast<std::size_t>(options_.questions);
    if (wanted == 0 || wanted >= asked_.size()) return;
    // A shuffle of our own: std::shuffle differs between standard libraries.
    std::mt19937_64 random(options_.seed);
    for (std::size_t i = 0; i < wanted; ++i) {
      std::swap(asked_[i], asked_[i + static_cast<std::size_t>(random() % (asked_.size() - i))]);
    }
    asked_.resize(wanted);
    // Conversation by conversation, so that what is loaded for one serves all its questions.
    std::sort(asked_.begin(), asked_.end(), [](const AskedQuestion& a, const AskedQuestion& b) {
      return std::tie(a.conversation, a.question) < std::tie(b.conversation, b.question);
    });
  }

  /// After the draw, which is of the whole file: shards of it together ask what one run would.
  Status KeepConversations() {
    if (options_.conversations.empty()) return OkStatus();
    const std::set<std::string> kept(options_.conversations.begin(), options_.conversations.end());
    for (const std::string& id : kept) {
      const bool known =
          std::any_of(dataset_.conversations.begin(), dataset_.conversations.end(),
                      [&](const EvalConversation& conversation) { return conversation.id == id; });
      if (!known) {
        std::string ids;
        for (const EvalConversation& conversation : dataset_.conversations) {
          ids += (ids.empty() ? "" : ", ") + conversation.id;
          if (ids.size() > kMaxListedBytes) break;
        }
        return InvalidArgument("--conversations: " + options_.file + " has no \"" + id +
                               "\"; it has " + ids);
      }
    }
    std::erase_if(
        asked_, [&](const AskedQuestion& asked) { return !kept.contains(asked.conversation->id); });
    if (asked_.empty())
      return InvalidArgument(
          "no question of the chosen conversations was drawn; raise --questions");
    return OkStatus();
  }

  /// What is still to be measured for a question, text first: the others are compared with it.
  std::vector<ResultKey> Missing(const std::string& question, const std::string& recipe,
                                 const std::string& codec, bool baselines,
                                 const ResultFile& results) const {
    std::vector<ResultKey> keys;
    for (const std::int32_t k : options_.ks) keys.push_back({question, k, "text", "", ""});
    if (baselines && Wants("none")) keys.push_back({question, 0, "none", "", ""});
    if (Wants("kv")) {
      for (const std::int32_t k : options_.ks) {
        for (const std::int32_t best : options_.best) {
          if (best <= k) keys.push_back({question, k, "kv", recipe, codec, best});
        }
      }
    }
    std::erase_if(keys, [&](const ResultKey& key) { return results.Find(key) != nullptr; });
    return keys;
  }

  Status RunOne(const std::filesystem::path& folder, const std::string& recipe,
                const std::string& codec, bool baselines, ResultFile* results) {
    std::int64_t missing = 0;
    std::set<const EvalConversation*> conversations;
    for (const AskedQuestion& asked : asked_) {
      const std::size_t count =
          Missing(asked.question->id, recipe, codec, baselines, *results).size();
      if (count > 0) conversations.insert(asked.conversation);
      missing += static_cast<std::int64_t>(count);
    }
    if (missing == 0) return OkStatus();

    EvalServiceOptions service_options;
    service_options.folder = folder;
    service_options.recipe = recipe;
    INFERSCALE_ASSIGN_OR_RETURN(service_options.codec, ParseKvCodec(codec));
    service_options.threads = context_.threads;
    // Generous, since the engine gives no more than the model was trained for: the facts' real
    // tokens decide how many fit, and what has no room is left out of text and KV alike.
    service_options.context_tokens = kTokensAroundFacts + system_.MostTokens() +
                                     (options_.ks.back() + options_.profile) * kTokensPerFact;
    service_options.max_fact_tokens = service_options.context_tokens;
    service_options.parallel_sequences = 1;
    service_options.clock = [now = now_] { return now->load(); };
    INFERSCALE_ASSIGN_OR_RETURN(EvalSession session, EvalSession::Open(context_, service_options));
    const bool kv = session.capabilities().kv_injection;
    if (Wants("kv") && !kv) Say(context_, "KV refused: " + session.capabilities().kv_refusal);
    IngestOptions ingest;
    INFERSCALE_ASSIGN_OR_RETURN(ingest.source, ParseIngestSource(options_.ingest));
    ingest.names = options_.names == "given";
    for (const EvalConversation* conversation : conversations) {
      INFERSCALE_RETURN_IF_ERROR(session.Ingest(ScopeOf(*conversation), *conversation, ingest));
    }
    system_text_ = system_.Build(session.engine());
    if (kv) INFERSCALE_RETURN_IF_ERROR(session.WaitIdle("encoding facts, " + recipe + " " + codec));

    EvalProgress progress(context_, "measurements, " + recipe + " " + codec, missing);
    for (const AskedQuestion& asked : asked_) {
      const std::vector<ResultKey> keys =
          Missing(asked.question->id, recipe, codec, baselines, *results);
      if (keys.empty()) continue;
      SetClock(*asked.question);
      INFERSCALE_ASSIGN_OR_RETURN(const std::vector<Fact> facts, Retrieve(session, asked, results));
      for (const ResultKey& key : keys) {
        INFERSCALE_RETURN_IF_ERROR(CheckStop(context_));
        if (key.mode == "kv" && !kv) continue;
        INFERSCALE_RETURN_IF_ERROR(Measure(session, asked, facts, key, results));
        progress.Add();
      }
    }
    return OkStatus();
  }

  Scope ScopeOf(const EvalConversation& conversation) const {
    Scope scope;
    scope.user = "inferscale-eval-" + options_.ingest + "-" +
                 (options_.names == "given" ? "" : "nameless-" + options_.names + "-") +
                 conversation.id;
    return scope;
  }

  /// The same facts for every mode, recipe and codec.
  Result<std::vector<Fact>> Retrieve(EvalSession& session, const AskedQuestion& asked,
                                     ResultFile* results) {
    if (const std::vector<std::string>* ids = results->FindRetrieved(asked.question->id)) {
      INFERSCALE_ASSIGN_OR_RETURN(std::vector<Fact> facts,
                                  session.service().catalog().GetFacts(*ids));
      if (facts.size() == ids->size()) return facts;
      return FailedPrecondition("the data folder no longer holds the facts that " + options_.out +
                                "/results.jsonl was measured with; give another folder with --out");
    }
    Status embedding;
    INFERSCALE_ASSIGN_OR_RETURN(
        const std::vector<SearchHit> hits,
        session.service().Search(ScopeOf(*asked.conversation), asked.question->question,
                                 Retrieved(), nullptr, 0.0, false, &embedding));
    // What is measured must not depend on whether an endpoint happened to answer.
    INFERSCALE_RETURN_IF_ERROR(embedding);
    std::vector<Fact> facts = FactsOf(hits);
    std::vector<std::string> ids;
    for (const Fact& fact : facts) ids.push_back(fact.id);
    INFERSCALE_RETURN_IF_ERROR(results->AddRetrieved(asked.question->id, std::move(ids)));
    return facts;
  }

  /// Best first, so that the profile, which stands in front of the others, comes last.
  Result<std::vector<Fact>> WithProfile(EvalSession& session, const AskedQuestion& asked,
                                        std::span<const Fact> retrieved) {
    std::vector<Fact> facts(retrieved.begin(), retrieved.end());
    if (options_.profile == 0) return facts;
    Catalog& catalog = session.service().catalog();
    INFERSCALE_ASSIGN_OR_RETURN(const ScopeInfo scope,
                                catalog.EnsureScope(ScopeOf(*asked.conversation)));
    INFERSCALE_ASSIGN_OR_RETURN(const std::vector<Fact> oldest,
                                catalog.OldestFacts(scope.id, options_.profile, WhichFacts::kAll));
    std::set<std::string> ids;
    for (const Fact& fact : oldest) ids.insert(fact.id);
    std::erase_if(facts, [&](const Fact& fact) { return ids.contains(fact.id); });
    facts.insert(facts.end(), oldest.rbegin(), oldest.rend());
    return facts;
  }

  Status Measure(EvalSession& session, const AskedQuestion& asked, const std::vector<Fact>& facts,
                 const ResultKey& key, ResultFile* results) {
    INFERSCALE_ASSIGN_OR_RETURN(const std::vector<Fact> served,
                                WithProfile(session, asked, FirstFacts(facts, key.k)));
    INFERSCALE_ASSIGN_OR_RETURN(QuestionResult result,
                                MeasureOnce(session, asked, served, key, *results));
    if (result.not_injected > 0) {
      // Evicted since they were encoded: composing has queued them again.
      INFERSCALE_RETURN_IF_ERROR(session.WaitIdle("encoding evicted facts"));
      INFERSCALE_ASSIGN_OR_RETURN(result, MeasureOnce(session, asked, served, key, *results));
    }
    return results->Add(std::move(result));
  }

  /// The date that stands in the prompt.
  void SetClock(const EvalQuestion& question) {
    now_->store(question.time_ms != 0 ? question.time_ms : today_);
  }

  Result<QuestionResult> MeasureOnce(EvalSession& session, const AskedQuestion& asked,
                                     std::span<const Fact> facts, const ResultKey& key,
                                     const ResultFile& results) {
    const MemoryMode mode = key.mode == "kv"     ? MemoryMode::kKv
                            : key.mode == "text" ? MemoryMode::kText
                                                 : MemoryMode::kOff;
    INFERSCALE_ASSIGN_OR_RETURN(
        EvalPrompt prompt,
        session.Compose(ScopeOf(*asked.conversation), asked.question->question,
                        mode == MemoryMode::kOff ? std::span<const Fact>() : facts, mode,
                        {system_text_, key.best}));
    Composition& composition = prompt.composition;
    QuestionResult result;
    result.key = key;
    result.left_out = prompt.left_out;
    std::int32_t blocks = 0;
    if (mode == MemoryMode::kKv) {
      const auto placed = static_cast<std::int32_t>(facts.size()) - prompt.left_out;
      std::int32_t computed = 0;
      for (std::int32_t i = 0; i < placed; ++i) {
        const bool unnamed = i < UnnamedComputed(static_cast<std::size_t>(placed)) &&
                             facts[static_cast<std::size_t>(i)].name.empty();
        if (i < key.best || unnamed) ++computed;
      }
      if (placed > computed) blocks = placed - computed + 1;  // with the exact prefix
    }
    result.category = asked.question->category;
    result.adversarial = asked.question->adversarial;
    std::optional<GenerationReport> generated;
    if (options_.generate > 0) {
      INFERSCALE_ASSIGN_OR_RETURN(Answer answer, session.Generate(composition, options_.generate));
      result.answer = answer.generation.text;
      result.f1 = TokenF1(*result.answer, asked.question->answer);
      result.bleu1 = Bleu1(*result.answer, asked.question->answer);
      result.exact = ExactMatch(*result.answer, asked.question->answer);
      generated = std::move(answer.generation);
    }
    INFERSCALE_ASSIGN_OR_RETURN(
        const Answer answer,
        session.Score(std::move(composition), asked.question->answer, true, generated.has_value()));
    const GenerationReport& report = generated ? *generated : answer.generation;
    result.logprob = answer.logprob;
    result.ttft_ms = report.ttft_ms;
    result.injected_tokens = report.injected_tokens;
    result.computed_tokens = report.computed_tokens;
    result.not_injected = std::max(0, blocks - report.injected_blocks);
    const SparseDistribution first = Sparsify(answer.first_logprobs, kKeptTokens);
    result.top = first.top();
    if (key.mode == "text") {
      result.first = first;
    } else if (const QuestionResult* text = results.Find({key.question, key.k, "text", "", ""})) {
      result.kl = KlDivergence(text->first, answer.first_logprobs);
    }
    return result;
  }

  EvalContext& context_;
  EvalOptions options_;
  EvalDataset dataset_;
  std::vector<AskedQuestion> asked_;
  CompletionFunction judge_;
  SystemTextSpec system_;
  std::string system_text_;
  TimeMs today_ = 0;
  /// The service's; shared, since its worker reads it too.
  std::shared_ptr<std::atomic<TimeMs>> now_ = std::make_shared<std::atomic<TimeMs>>(0);
};

}  // namespace

Status RunEvaluation(EvalContext& context, EvalOptions options, EvalDataset dataset) {
  return Evaluation(context, std::move(options), std::move(dataset)).Run();
}

}  // namespace inferscale
