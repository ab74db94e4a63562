#include <algorithm>
#include <array>
#include <chrono>
#include <cmath>
#include <map>
#include <ostream>
#include <set>

#include "base/files.h"
#include "eval/commands.h"
#include "eval/demo_result.h"
#include "eval/progress.h"
#include "eval/session.h"

namespace inferscale {
namespace {

constexpr double kBudgetSeconds = 270;
/// Estimated minutes from which the demo is cut to its least instead of running as it is.
constexpr double kHugeSeconds = 20 * 60;
constexpr std::size_t kGoodAccuracyQuestions = 10;
/// Questions that are asked however slow the machine turns out to be.
constexpr std::size_t kLeastQuestions = 3;
constexpr std::int32_t kContextTokens = 4096;
/// Tokens of a prompt apart from its facts, and of a fact, when estimating.
constexpr std::int32_t kTailTokens = 90, kFactTokens = 42;
constexpr std::int32_t kAnswerTokens = 40;

struct DemoOptions {
  std::string page = "inferscale-demo.html";
  std::string ingest = "facts";
  std::int32_t questions = 0;
  bool quick = false;
};

struct Plan {
  std::vector<std::int32_t> ks{0, 5, 10, 20, 50};
  std::vector<std::int32_t> accuracy_ks{5, 20, 50};
  std::int32_t ttft_questions = 7;
  std::int32_t least_accuracy_questions = 10, most_accuracy_questions = 30;
  std::int32_t side_by_side = 4, side_by_side_k = 20;
  std::size_t facts = 0;  // 0: all
  bool bare = true;
};

/// A question with its facts, retrieved once for every mode.
struct Item {
  const EvalQuestion* question = nullptr;
  std::vector<Fact> facts;
  std::map<std::int32_t, TokenId> text_top1;
};

struct Sums {
  std::vector<double> logprobs;
  std::int32_t top1 = 0;
};

class Demo {
 public:
  Demo(EvalContext& context, const DemoOptions& options) : context_(context), options_(options) {}

  Result<DemoResult> Run() {
    INFERSCALE_ASSIGN_OR_RETURN(const IngestSource source, ParseIngestSource(options_.ingest));
    INFERSCALE_ASSIGN_OR_RETURN(const EvalConversation history, BuiltInDemo());
    INFERSCALE_ASSIGN_OR_RETURN(const WorkFolder folder, WorkFolder::Create(context_.data_dir));
    scope_.user = "inferscale-demo-" + options_.ingest + (options_.quick ? "-quick" : "");
    EvalServiceOptions service_options;
    service_options.folder = folder.path();
    service_options.context_tokens = kContextTokens;
    service_options.threads = context_.threads;
    service_options.max_fact_tokens = kContextTokens - 512;
    Say(context_, "loading the model");
    {
      INFERSCALE_ASSIGN_OR_RETURN(EvalSession session,
                                  EvalSession::Open(context_, service_options));
      INFERSCALE_RETURN_IF_ERROR(MakePlan(session, history));
      INFERSCALE_RETURN_IF_ERROR(Ingest(session, history, source));
      INFERSCALE_RETURN_IF_ERROR(Retrieve(session, history));
      INFERSCALE_RETURN_IF_ERROR(MeasureAll(session));
    }
    if (plan_.bare && kv_) {
      service_options.recipe = "bare";
      INFERSCALE_ASSIGN_OR_RETURN(EvalSession session,
                                  EvalSession::Open(context_, service_options));
      INFERSCALE_RETURN_IF_ERROR(session.WaitIdle("encoding the same facts bare, for comparison"));
      INFERSCALE_RETURN_IF_ERROR(ScoreBare(session));
    }
    Summarize();
    return std::move(result_);
  }

 private:
  double Elapsed() const {
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - start_).count();
  }
  void Note(const std::string& note) {
    Say(context_, "note: " + note);
    result_.notes.push_back(note);
  }

  Status MakePlan(EvalSession& session, const EvalConversation& history) {
    result_.model = context_.model;
    result_.turns = static_cast<std::int64_t>(history.turns.size());
    result_.codec = KvCodecName(session.service().options().codec);
    result_.recipe = session.service().options().recipe;
    kv_ = session.capabilities().kv_injection;
    result_.kv_refusal = session.capabilities().kv_refusal;
    if (!kv_) {
      if (result_.kv_refusal.empty())
        result_.kv_refusal = "the engine cannot inject KV for this model";
      Note("KV refused: " + result_.kv_refusal + "; facts are served as text");
    }
    if (options_.quick) {
      plan_.ks = {0, 5, 10};
      plan_.accuracy_ks = {5, 10};
      plan_.ttft_questions = plan_.least_accuracy_questions = plan_.most_accuracy_questions = 2;
      plan_.side_by_side = 1;
      plan_.side_by_side_k = 5;
      plan_.facts = 20;
      Note(
          "--quick: 20 facts, two questions, k up to 10; the figures are a check that everything "
          "works, no more");
    }
    std::vector<Fact> sample;
    for (std::size_t i = 0; i < 10 && i < history.facts.size(); ++i) {
      Fact fact;
      fact.id = "sample";
      fact.text = history.facts[i].text;
      fact.name = history.facts[i].speaker;
      fact.event_time_ms = history.facts[i].time_ms;
      sample.push_back(std::move(fact));
    }
    INFERSCALE_ASSIGN_OR_RETURN(speed_, session.MeasurePrefill(scope_, sample));
    result_.prefill_tokens_a_second = speed_;
    CutToContext(session.capabilities().context_tokens);
    if (!options_.quick) CutToTime(static_cast<double>(history.facts.size()));
    if (options_.questions > 0) {
      plan_.ttft_questions = plan_.least_accuracy_questions = plan_.most_accuracy_questions =
          options_.questions;
    }
    return OkStatus();
  }

  void CutToContext(std::int32_t context_tokens) {
    const auto too_long = [&](std::int32_t k) {
      return context_tokens > 0 && kTailTokens + k * kFactTokens + kAnswerTokens > context_tokens;
    };
    const std::size_t before = plan_.ks.size();
    std::erase_if(plan_.ks, too_long);
    std::erase_if(plan_.accuracy_ks, too_long);
    if (plan_.ks.size() < before) {
      Note("the context of " + std::to_string(context_tokens) + " tokens holds at most " +
           std::to_string(plan_.ks.back()) + " facts; larger k left out");
    }
    plan_.side_by_side_k = std::min(plan_.side_by_side_k, plan_.ks.back());
  }

  double TextSeconds(const std::vector<std::int32_t>& ks) const {
    double tokens = 0;
    for (const std::int32_t k : ks) tokens += kTailTokens + static_cast<double>(k) * kFactTokens;
    return tokens / speed_;
  }

  void CutToTime(double facts) {
    const auto estimate = [&] {
      const double encode = kv_ ? facts * kFactTokens / speed_ * 1.2 * (plan_.bare ? 1.8 : 1.0) : 0;
      return encode + plan_.ttft_questions * TextSeconds(plan_.ks) +
             std::max(0, plan_.least_accuracy_questions - plan_.ttft_questions) *
                 TextSeconds(plan_.accuracy_ks) +
             plan_.side_by_side * 2 *
                 (kAnswerTokens * 4.0 / speed_ + TextSeconds({plan_.side_by_side_k}) / 2);
    };
    if (estimate() > kBudgetSeconds) {
      plan_.least_accuracy_questions = plan_.ttft_questions;
      plan_.side_by_side = 2;
      Note("this machine reads " + Decimal(speed_, 0) +
           " tokens a second with this model: accuracy on " +
           std::to_string(plan_.least_accuracy_questions) + " questions only");
    }
    if (estimate() > kHugeSeconds) {
      plan_.facts = 80;
      facts = 80;
      plan_.ttft_questions = plan_.least_accuracy_questions = 3;
      plan_.bare = false;
      plan_.side_by_side = 1;
      Note(
          "the model is large for this machine: 80 facts, three questions, no comparison with bare "
          "KV");
    }
    Say(context_, "prefill " + Decimal(speed_, 0) + " tokens a second; this will take about " +
                      Decimal(std::max(1.0, std::ceil(estimate() / 60)), 0) + " minutes");
  }

  Status Ingest(EvalSession& session, const EvalConversation& history, IngestSource source) {
    INFERSCALE_RETURN_IF_ERROR(
        session.Ingest(scope_, history, {.source = source, .max_facts = plan_.facts}));
    const double before = Elapsed();
    INFERSCALE_RETURN_IF_ERROR(session.WaitIdle("encoding facts"));
    result_.encode_seconds = Elapsed() - before;
    INFERSCALE_ASSIGN_OR_RETURN(result_.facts, session.service().Count(scope_));
    const KvStoreStats stats = session.engine().StoreStats();
    result_.store_bytes = std::max(stats.file_bytes, stats.host_bytes);
    return OkStatus();
  }

  Status Retrieve(EvalSession& session, const EvalConversation& history) {
    const std::size_t count = history.questions.size();
    // Spread over the kinds of question; a quick run asks about the first facts, which it has.
    const std::size_t stride = options_.quick ? 1 : 7;
    const auto wanted =
        static_cast<std::size_t>(std::max(plan_.most_accuracy_questions, plan_.ttft_questions));
    for (std::size_t i = 0; i < std::min(wanted, count); ++i) {
      Item item;
      item.question = &history.questions[i * stride % count];
      INFERSCALE_ASSIGN_OR_RETURN(
          const std::vector<SearchHit> hits,
          session.service().Search(scope_, item.question->question, plan_.ks.back()));
      item.facts = FactsOf(hits);
      items_.push_back(std::move(item));
    }
    if (!items_.empty() &&
        items_.front().facts.size() < static_cast<std::size_t>(plan_.ks.back())) {
      Note("only " + std::to_string(items_.front().facts.size()) +
           " facts were found for the largest k");
    }
    return OkStatus();
  }

  bool Wants(const std::vector<std::int32_t>& ks, std::int32_t k) const {
    return std::find(ks.begin(), ks.end(), k) != ks.end();
  }

  Status MeasureAll(EvalSession& session) {
    EvalProgress progress(context_, "questions", static_cast<std::int64_t>(items_.size()));
    // The estimate comes from the first seconds; a shared machine may be half as fast afterwards.
    const bool chosen = options_.questions > 0 || options_.quick;
    double extra_seconds = 0;
    std::size_t asked = 0;
    for (; asked < items_.size(); ++asked) {
      INFERSCALE_RETURN_IF_ERROR(CheckStop(context_));
      const bool timed = asked < static_cast<std::size_t>(plan_.ttft_questions);
      if (!chosen && asked >= kLeastQuestions &&
          Elapsed() + extra_seconds + BareSeconds() > kBudgetSeconds) {
        break;
      }
      const double before = Elapsed();
      INFERSCALE_RETURN_IF_ERROR(MeasureItem(session, asked, timed));
      extra_seconds = Elapsed() - before;
      progress.Add();
    }
    if (asked < kGoodAccuracyQuestions && options_.questions == 0 && !options_.quick) {
      Note("accuracy on " + std::to_string(asked) +
           " questions only, to end in time: too few to tell much");
    }
    items_.resize(asked);
    return OkStatus();
  }

  /// What the comparison with bare KV will still take.
  double BareSeconds() const { return plan_.bare && kv_ ? result_.encode_seconds * 0.9 + 10 : 0; }

  Status MeasureItem(EvalSession& session, std::size_t index, bool timed) {
    Item& item = items_[index];
    const std::set<std::int32_t> ks = [&] {
      std::set<std::int32_t> all(plan_.accuracy_ks.begin(), plan_.accuracy_ks.end());
      if (timed) all.insert(plan_.ks.begin(), plan_.ks.end());
      return all;
    }();
    for (const std::int32_t k : ks) {
      // Alternating which goes first keeps warm caches and clock changes from favouring one.
      const bool text_first = (index + static_cast<std::size_t>(k)) % 2 == 0;
      for (const bool kv : {!text_first, text_first}) {
        if (kv && !kv_) continue;
        INFERSCALE_RETURN_IF_ERROR(
            MeasureOne(session, &item, index, k, kv, timed && Wants(plan_.ks, k)));
      }
    }
    if (!plan_.accuracy_ks.empty()) {
      INFERSCALE_ASSIGN_OR_RETURN(
          Composition none, session.Compose(scope_, item.question->question, {}, MemoryMode::kOff));
      INFERSCALE_ASSIGN_OR_RETURN(const Answer answer,
                                  session.Score(std::move(none), item.question->answer, true));
      for (const std::int32_t k : plan_.accuracy_ks) Record(item, k, "none", answer);
    }
    for (const std::int32_t k : plan_.accuracy_ks) {
      if (const auto found = pending_kv_.find(k); found != pending_kv_.end())
        Record(item, k, "kv", found->second);
    }
    pending_kv_.clear();
    return OkStatus();
  }

  Status MeasureOne(EvalSession& session, Item* item, std::size_t index, std::int32_t k, bool kv,
                    bool timed) {
    INFERSCALE_ASSIGN_OR_RETURN(
        Composition composition,
        session.Compose(scope_, item->question->question, FirstFacts(item->facts, k),
                        kv ? MemoryMode::kKv : MemoryMode::kText));
    if (timed) {
      const bool shown =
          static_cast<std::int32_t>(index) < plan_.side_by_side && k == plan_.side_by_side_k;
      INFERSCALE_ASSIGN_OR_RETURN(const Answer answer,
                                  session.Generate(composition, shown ? kAnswerTokens : 1));
      const GenerationReport& report = answer.generation;
      ttft_[{k, kv}].push_back({report.ttft_ms, static_cast<double>(report.injected_tokens),
                                static_cast<double>(report.computed_tokens)});
      for (const Fallback& fallback : report.fallbacks) {
        if (kv) fallbacks_[fallback.reason] += fallback.count;
      }
      if (shown) AddSideBySide(*item, k, kv, report);
    }
    if (!Wants(plan_.accuracy_ks, k)) return OkStatus();
    INFERSCALE_ASSIGN_OR_RETURN(
        Answer answer, session.Score(std::move(composition), item->question->answer, true, timed));
    if (kv) {
      pending_kv_[k] = std::move(answer);  // text may not have been asked yet
    } else {
      item->text_top1[k] = Sparsify(answer.first_logprobs, 1).top();
      Record(*item, k, "text", answer);
    }
    return OkStatus();
  }

  void AddSideBySide(const Item& item, std::int32_t k, bool kv, const GenerationReport& report) {
    auto found =
        std::find_if(result_.answers.begin(), result_.answers.end(),
                     [&](const auto& pair) { return pair.question == item.question->question; });
    if (found == result_.answers.end()) {
      found = result_.answers.insert(
          found, {item.question->question, item.question->answer, "", "", k, 0, 0});
    }
    (kv ? found->kv : found->text) = report.text;
    (kv ? found->kv_ttft_ms : found->text_ttft_ms) = report.ttft_ms;
  }

  void Record(const Item& item, std::int32_t k, const std::string& mode, const Answer& answer) {
    Sums& sums = accuracy_[{k, mode}];
    sums.logprobs.push_back(answer.logprob);
    const auto text = item.text_top1.find(k);
    if (text != item.text_top1.end() && Sparsify(answer.first_logprobs, 1).top() == text->second)
      ++sums.top1;
  }

  Status ScoreBare(EvalSession& session) {
    EvalProgress progress(context_, "questions with bare KV",
                          static_cast<std::int64_t>(items_.size()));
    for (const Item& item : items_) {
      INFERSCALE_RETURN_IF_ERROR(CheckStop(context_));
      for (const std::int32_t k : plan_.accuracy_ks) {
        INFERSCALE_ASSIGN_OR_RETURN(Composition composition,
                                    session.Compose(scope_, item.question->question,
                                                    FirstFacts(item.facts, k), MemoryMode::kKv));
        INFERSCALE_ASSIGN_OR_RETURN(
            const Answer answer,
            session.Score(std::move(composition), item.question->answer, true));
        Record(item, k, "kv-bare", answer);
      }
      progress.Add();
    }
    return OkStatus();
  }

  void Summarize() {
    for (const std::int32_t k : plan_.ks) {
      for (const bool kv : {false, true}) {
        const auto found = ttft_.find({k, kv});
        if (found == ttft_.end()) continue;
        std::vector<double> ms, injected, computed;
        for (const auto& sample : found->second) {
          ms.push_back(sample[0]);
          injected.push_back(sample[1]);
          computed.push_back(sample[2]);
        }
        result_.ttft.push_back({k, kv, Median(ms), Median(injected), Median(computed),
                                static_cast<std::int32_t>(ms.size())});
      }
    }
    for (const std::int32_t k : plan_.accuracy_ks) {
      for (const char* mode : {"none", "text", "kv", "kv-bare"}) {
        const auto found = accuracy_.find({k, mode});
        if (found == accuracy_.end()) continue;
        const auto n = static_cast<std::int32_t>(found->second.logprobs.size());
        result_.accuracy.push_back({k, mode, Mean(found->second.logprobs),
                                    static_cast<double>(found->second.top1) / n, n});
      }
    }
    for (const auto& [reason, count] : fallbacks_) {
      Note("fell back to computing " + std::to_string(count) + " times: " + reason);
    }
    result_.total_seconds = Elapsed();
  }

  EvalContext& context_;
  const DemoOptions& options_;
  const std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
  Plan plan_;
  Scope scope_;
  bool kv_ = true;
  double speed_ = 1;
  std::vector<Item> items_;
  std::map<std::pair<std::int32_t, bool>, std::vector<std::array<double, 3>>> ttft_;
  std::map<std::pair<std::int32_t, std::string>, Sums> accuracy_;
  std::map<std::int32_t, Answer> pending_kv_;
  std::map<std::string, std::int32_t> fallbacks_;
  DemoResult result_;
};

Status RunDemo(EvalContext& context, const DemoOptions& options) {
  INFERSCALE_ASSIGN_OR_RETURN(const DemoResult result, Demo(context, options).Run());
  std::ostream& tables = context.json ? *context.progress : *context.out;
  tables << "\nTime to first token, median of "
         << (result.ttft.empty() ? 0 : result.ttft.front().questions)
         << " questions, text and KV in turn\n"
         << DemoTtftTable(result).ToText();
  if (!result.kv_refusal.empty()) tables << "  KV refused: " << result.kv_refusal << "\n";
  tables << "\nAccuracy: log-probability of the right answer, first token as with text\n"
         << DemoAccuracyTable(result).ToText() << "\n";
  INFERSCALE_RETURN_IF_ERROR(AtomicWriteFile(options.page, DemoPage(result)));
  tables << "page: " << std::filesystem::absolute(options.page).string() << "\n";
  if (context.json) {
    nlohmann::ordered_json json = DemoJson(result);
    json["page"] = std::filesystem::absolute(options.page).string();
    *context.out << json.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace)
                 << "\n";
  }
  context.out->flush();
  return OkStatus();
}

}  // namespace

EvalCommand AddDemoCommand(CLI::App& parent) {
  auto options = std::make_shared<DemoOptions>();
  CLI::App* app = parent.add_subcommand(
      "demo", "See it work: a long history, 30 questions, facts as text and as KV");
  app->add_option("--page", options->page, "HTML page to write")->capture_default_str();
  app->add_option("--ingest", options->ingest,
                  "facts: the written facts; verbatim: every turn is a fact")
      ->capture_default_str()
      ->check(CLI::IsMember({"facts", "verbatim"}));
  app->add_option("--questions", options->questions,
                  "Questions for every measurement; 0: as many as fit five minutes")
      ->capture_default_str()
      ->check(CLI::Range(0, 30));
  app->add_flag("--quick", options->quick,
                "A small run of under a minute that only checks that everything works");
  app->footer("Example: inferscale demo --page demo.html");
  return {app, [options](EvalContext& context) { return RunDemo(context, *options); }};
}

}  // namespace inferscale
