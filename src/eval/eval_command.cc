#include <algorithm>
#include <numeric>
#include <ostream>
#include <random>
#include <set>

#include "base/clock.h"
#include "base/files.h"
#include "encode/recipe.h"
#include "eval/commands.h"
#include "eval/dataset.h"
#include "eval/eval_report.h"
#include "eval/progress.h"
#include "eval/results.h"
#include "eval/session.h"

namespace inferscale {
namespace {

/// Tokens of text's first distribution that are kept for KL.
constexpr std::size_t kKeptTokens = 128;
constexpr std::int32_t kLeastRetrieved = 50;
constexpr std::int32_t kTokensAroundFacts = 700;
constexpr std::int32_t kTokensPerFact = 64;
constexpr TimeMs kDayMs = 24LL * 3600 * 1000;

struct EvalOptions {
  std::string file;
  std::string out = "inferscale-eval";
  std::vector<std::int32_t> ks{5, 20, 50};
  std::vector<std::string> modes{"none", "text", "kv"};
  std::vector<std::string> recipes{"primer"};
  std::vector<std::string> codecs{"int4"};
  std::vector<std::string> categories;
  std::string ingest = "facts";
  std::int32_t questions = 0;
  std::uint64_t seed = 1;
  std::int32_t generate = 0;
};

struct AskedQuestion {
  const EvalConversation* conversation = nullptr;
  const EvalQuestion* question = nullptr;
};

class Evaluation {
 public:
  Evaluation(EvalContext& context, EvalOptions options)
      : context_(context), options_(std::move(options)) {}

  Status Run() {
    INFERSCALE_RETURN_IF_ERROR(CheckOptions());
    INFERSCALE_ASSIGN_OR_RETURN(dataset_, LoadLocomo(options_.file));
    ChooseQuestions();
    if (asked_.empty())
      return InvalidArgument("no question of " + options_.file + " is in the chosen categories");
    const std::filesystem::path out(options_.out);
    INFERSCALE_RETURN_IF_ERROR(CreatePrivateFolder(out));
    const nlohmann::json header{{"model", context_.model},
                                {"ingest", options_.ingest},
                                {"generate", options_.generate},
                                {"retrieved", Retrieved()},
                                {"file", std::filesystem::path(options_.file).filename().string()}};
    INFERSCALE_ASSIGN_OR_RETURN(ResultFile results,
                                ResultFile::Open(out / "results.jsonl", header));
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
    return Report(results, out);
  }

 private:
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
    std::sort(options_.ks.begin(), options_.ks.end());
    options_.ks.erase(std::unique(options_.ks.begin(), options_.ks.end()), options_.ks.end());
    // Every figure is a difference to text.
    if (!Wants("text")) options_.modes.emplace_back("text");
    return OkStatus();
  }

  void ChooseQuestions() {
    const std::set<std::string> categories(options_.categories.begin(), options_.categories.end());
    for (const EvalConversation& conversation : dataset_.conversations) {
      for (const EvalQuestion& question : conversation.questions) {
        if (categories.empty() || categories.contains(question.category))
          asked_.push_back({&conversation, &question});
      }
      if (!conversation.turns.empty())
        today_ = std::max(today_, conversation.turns.back().time_ms + kDayMs);
    }
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

  /// What is still to be measured for a question, text first: the others are compared with it.
  std::vector<ResultKey> Missing(const std::string& question, const std::string& recipe,
                                 const std::string& codec, bool baselines,
                                 const ResultFile& results) const {
    std::vector<ResultKey> keys;
    for (const std::int32_t k : options_.ks) keys.push_back({question, k, "text", "", ""});
    if (baselines && Wants("none")) keys.push_back({question, 0, "none", "", ""});
    if (Wants("kv")) {
      for (const std::int32_t k : options_.ks) keys.push_back({question, k, "kv", recipe, codec});
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
    service_options.context_tokens = kTokensAroundFacts + options_.ks.back() * kTokensPerFact;
    service_options.max_fact_tokens = options_.ks.back() * kTokensPerFact;
    service_options.clock = [today = today_] { return today; };
    INFERSCALE_ASSIGN_OR_RETURN(EvalSession session, EvalSession::Open(context_, service_options));
    const bool kv = session.capabilities().kv_injection;
    if (Wants("kv") && !kv) Say(context_, "KV refused: " + session.capabilities().kv_refusal);
    INFERSCALE_ASSIGN_OR_RETURN(const IngestSource source, ParseIngestSource(options_.ingest));
    for (const EvalConversation* conversation : conversations) {
      INFERSCALE_RETURN_IF_ERROR(session.Ingest(ScopeOf(*conversation), *conversation, source));
    }
    if (kv) INFERSCALE_RETURN_IF_ERROR(session.WaitIdle("encoding facts, " + recipe + " " + codec));

    EvalProgress progress(context_, "measurements, " + recipe + " " + codec, missing);
    for (const AskedQuestion& asked : asked_) {
      const std::vector<ResultKey> keys =
          Missing(asked.question->id, recipe, codec, baselines, *results);
      if (keys.empty()) continue;
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
    scope.user = "inferscale-eval-" + options_.ingest + "-" + conversation.id;
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

  Status Measure(EvalSession& session, const AskedQuestion& asked, const std::vector<Fact>& facts,
                 const ResultKey& key, ResultFile* results) {
    const MemoryMode mode = key.mode == "kv"     ? MemoryMode::kKv
                            : key.mode == "text" ? MemoryMode::kText
                                                 : MemoryMode::kOff;
    INFERSCALE_ASSIGN_OR_RETURN(
        Composition composition,
        session.Compose(ScopeOf(*asked.conversation), asked.question->question,
                        FirstFacts(facts, key.k), mode));
    QuestionResult result;
    result.key = key;
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
    const SparseDistribution first = Sparsify(answer.first_logprobs, kKeptTokens);
    result.top = first.top();
    if (key.mode == "text") {
      result.first = first;
    } else if (const QuestionResult* text = results->Find({key.question, key.k, "text", "", ""})) {
      result.kl = KlDivergence(text->first, answer.first_logprobs);
    }
    return results->Add(std::move(result));
  }

  Status Report(const ResultFile& results, const std::filesystem::path& out) {
    EvalReport report;
    report.title = "Evaluation on " + std::filesystem::path(options_.file).filename().string();
    report.settings = {
        {"model", context_.model},
        {"facts", options_.ingest == "facts" ? "given observations" : "verbatim turns"},
        {"questions", std::to_string(asked_.size())},
        {"seed", std::to_string(options_.seed)}};
    std::set<std::string> categories, questions;
    for (const AskedQuestion& asked : asked_) {
      questions.insert(asked.question->id);
      if (!asked.question->adversarial) categories.insert(asked.question->category);
    }
    report.rows = Summarize(results, options_.ks, {questions, false, ""}, options_.seed);
    report.adversarial = Summarize(results, options_.ks, {questions, true, ""}, options_.seed);
    for (const std::string& category : categories) {
      report.categories.emplace_back(
          category, Summarize(results, options_.ks, {questions, false, category}, options_.seed));
    }
    const std::filesystem::path path = out / "report.md";
    INFERSCALE_RETURN_IF_ERROR(AtomicWriteFile(path, EvalReportMarkdown(report)));
    std::ostream& tables = context_.json ? *context_.progress : *context_.out;
    tables << "\n" << SummaryTable(report.rows).ToText();
    if (!report.adversarial.empty()) {
      tables << "\nquestions that the history does not answer (category 5)\n"
             << SummaryTable(report.adversarial).ToText();
    }
    tables << "\nreport: " << std::filesystem::absolute(path).string() << std::endl;
    if (context_.json) {
      nlohmann::ordered_json json{{"rows", ToJson(report.rows)},
                                  {"adversarial", ToJson(report.adversarial)}};
      for (const auto& [category, rows] : report.categories)
        json["categories"][category] = ToJson(rows);
      json["report"] = std::filesystem::absolute(path).string();
      *context_.out << json.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace)
                    << std::endl;
    }
    return OkStatus();
  }

  EvalContext& context_;
  EvalOptions options_;
  EvalDataset dataset_;
  std::vector<AskedQuestion> asked_;
  TimeMs today_ = 0;
};

}  // namespace

EvalCommand AddEvalCommand(CLI::App& parent) {
  auto options = std::make_shared<EvalOptions>();
  CLI::App* app = parent.add_subcommand(
      "eval", "Compare answers with facts as KV and as text, question by question");
  app->require_subcommand(1)->fallthrough();
  app->footer("Example: inferscale eval locomo locomo10.json --k 5,20 --questions 50");
  CLI::App* locomo = app->add_subcommand("locomo", "LoCoMo's long conversations and questions");
  locomo->fallthrough();
  locomo->add_option("file", options->file, "LoCoMo's JSON file")
      ->required()
      ->check(CLI::ExistingFile);
  locomo->add_option("--k", options->ks, "Numbers of facts")
      ->delimiter(',')
      ->check(CLI::Range(1, 200))
      ->capture_default_str();
  locomo->add_option("--modes", options->modes, "none, text, kv")
      ->delimiter(',')
      ->check(CLI::IsMember({"none", "text", "kv"}))
      ->capture_default_str();
  locomo->add_option("--recipes", options->recipes, "Encoding recipes")
      ->delimiter(',')
      ->capture_default_str();
  locomo->add_option("--codecs", options->codecs, "f32, f16, bf16, int8, int4")
      ->delimiter(',')
      ->capture_default_str();
  locomo->add_option("--categories", options->categories, "Only these categories of question")
      ->delimiter(',');
  locomo
      ->add_option("--ingest", options->ingest,
                   "facts: the given observations; verbatim: every turn is a fact")
      ->check(CLI::IsMember({"facts", "verbatim"}))
      ->capture_default_str();
  locomo->add_option("--questions", options->questions, "Questions, drawn by the seed; 0: all")
      ->check(CLI::Range(0, 1'000'000))
      ->capture_default_str();
  locomo->add_option("--seed", options->seed, "Of the draw and of the intervals")
      ->capture_default_str();
  locomo
      ->add_option("--generate", options->generate,
                   "Also answer greedily with this many tokens, for F1, BLEU-1 and exact match")
      ->check(CLI::Range(0, 256))
      ->capture_default_str();
  locomo
      ->add_option("--out", options->out,
                   "Folder of results and report; a stopped run goes on from it")
      ->capture_default_str();
  locomo->footer(
      "Example: inferscale eval locomo locomo10.json --k 5,20,50 --modes none,text,kv --recipes "
      "primer,bare,window:20 "
      "--codecs f16,int4 --questions 100 --seed 1 --json");
  return {app, [options](EvalContext& context) { return Evaluation(context, *options).Run(); }};
}

}  // namespace inferscale
