#include <algorithm>
#include <condition_variable>
#include <mutex>
#include <optional>

#include "eval/bench.h"
#include "eval/progress.h"

namespace inferscale {
namespace {

using TimePoint = std::chrono::steady_clock::time_point;

constexpr std::int32_t kTokens = 96;
constexpr std::int32_t kContextTokens = 1536;
constexpr std::int32_t kInjectedFacts = 20;

/// Several generations at once, with the time of every token.
class Chorus {
 public:
  explicit Chorus(std::size_t count) : times_(count), texts_(count) {}

  void Start(Engine& engine, const std::vector<Composition>& prompts, std::int32_t tokens) {
    Sampling sampling;
    sampling.max_tokens = tokens;
    for (std::size_t i = 0; i < prompts.size(); ++i) {
      GenerationCallbacks callbacks;
      callbacks.on_token = [this, i](const TokenEvent&) {
        std::lock_guard lock(mutex_);
        times_[i].push_back(std::chrono::steady_clock::now());
        changed_.notify_all();
      };
      callbacks.on_done = [this, i](GenerationReport report) {
        std::lock_guard lock(mutex_);
        if (!report.status.ok()) failed_ = report.status;
        texts_[i] = std::move(report.text);
        ++done_;
        changed_.notify_all();
      };
      generations_.push_back(engine.Generate(prompts[i], sampling, std::move(callbacks)));
    }
  }

  /// Until every sequence has `tokens` tokens, or one has ended.
  void WaitForTokens(std::size_t tokens) {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] {
      return done_ > 0 || std::all_of(times_.begin(), times_.end(),
                                      [&](const auto& t) { return t.size() >= tokens; });
    });
  }

  /// Ctrl-C cancels what still runs.
  Status WaitDone(const EvalContext& context) {
    bool cancelled = false;
    std::unique_lock lock(mutex_);
    while (!changed_.wait_for(lock, std::chrono::milliseconds(200),
                              [&] { return done_ == times_.size(); })) {
      if (cancelled || CheckStop(context).ok()) continue;
      cancelled = true;
      lock.unlock();
      for (const auto& generation : generations_) generation->Cancel();
      lock.lock();
    }
    lock.unlock();
    // The engine is done with the callbacks, and so with this object, only then.
    for (const auto& generation : generations_) generation->Wait();
    INFERSCALE_RETURN_IF_ERROR(CheckStop(context));
    return failed_;
  }

  /// While all sequences run: from the last first token to the first last one.
  std::pair<TimePoint, TimePoint> Window() const {
    TimePoint begin{}, end = TimePoint::max();
    for (const auto& times : times_) {
      if (times.empty()) continue;
      begin = std::max(begin, times.front());
      end = std::min(end, times.back());
    }
    return {begin, end};
  }

  double TokensASecond() const {
    const auto [begin, end] = Window();
    std::size_t tokens = 0;
    for (const auto& times : times_) {
      for (const TimePoint time : times) tokens += time > begin && time <= end;
    }
    const double seconds = std::chrono::duration<double>(end - begin).count();
    return seconds > 0 ? static_cast<double>(tokens) / seconds : 0;
  }

  /// Milliseconds between a sequence's tokens, within the window.
  std::vector<double> Gaps() const {
    const auto [begin, end] = Window();
    std::vector<double> gaps;
    for (const auto& times : times_) {
      for (std::size_t i = 1; i < times.size(); ++i) {
        if (times[i - 1] < begin || times[i] > end) continue;
        gaps.push_back(std::chrono::duration<double, std::milli>(times[i] - times[i - 1]).count());
      }
    }
    return gaps;
  }

  const std::vector<std::string>& texts() const { return texts_; }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<std::vector<TimePoint>> times_;
  std::vector<std::string> texts_;
  std::vector<std::shared_ptr<Generation>> generations_;
  std::size_t done_ = 0;
  Status failed_;
};

Result<std::vector<Composition>> Prompts(EvalSession& session, const Scope& scope,
                                         std::int32_t count) {
  std::vector<Composition> prompts;
  for (std::int32_t i = 0; i < count; ++i) {
    const ChatMessage messages[] = {
        {"user",
         "Tell a long story about a lighthouse keeper and " + std::to_string(i + 2) + " ships.",
         ""}};
    INFERSCALE_ASSIGN_OR_RETURN(
        Composition prompt, session.service().ComposeFor(scope, messages, {}, MemoryMode::kOff));
    prompt.salt = FreshSalt();
    prompts.push_back(std::move(prompt));
  }
  return prompts;
}

}  // namespace

Result<BenchReport> BenchDecode(EvalContext& context, const BenchOptions& options) {
  INFERSCALE_ASSIGN_OR_RETURN(const EvalConversation demo, BuiltInDemo());
  INFERSCALE_ASSIGN_OR_RETURN(const WorkFolder folder, WorkFolder::Create({}));
  EvalServiceOptions service_options;
  service_options.folder = folder.path();
  service_options.threads = context.threads;
  service_options.context_tokens = kContextTokens;
  service_options.parallel_sequences =
      *std::max_element(options.sequences.begin(), options.sequences.end()) + 1;
  INFERSCALE_ASSIGN_OR_RETURN(EvalSession session, EvalSession::Open(context, service_options));
  Scope scope;
  scope.user = "inferscale-bench";
  const auto stored = static_cast<std::size_t>(options.facts > 0 ? options.facts : 60);
  INFERSCALE_RETURN_IF_ERROR(session.Ingest(scope, demo, {.max_facts = stored}));
  INFERSCALE_RETURN_IF_ERROR(session.WaitIdle("encoding facts"));
  INFERSCALE_ASSIGN_OR_RETURN(
      const std::vector<SearchHit> hits,
      session.service().Search(scope, demo.questions.front().question, kInjectedFacts));
  const std::vector<Fact> facts = FactsOf(hits);

  BenchReport report;
  const std::int32_t room = session.capabilities().parallel_sequences;
  for (const std::int32_t count : options.sequences) {
    if (count + 1 > room) {
      report.notes.push_back("the engine has room for " + std::to_string(room) + " sequences: " +
                             std::to_string(count) + " with one injected left out");
      continue;
    }
    // Reading the prompts first leaves nothing but decoding in the runs: each finds its prompt in
    // the cache.
    INFERSCALE_ASSIGN_OR_RETURN(const std::vector<Composition> prompts,
                                Prompts(session, scope, count));
    {
      Chorus warm_up(prompts.size());
      warm_up.Start(session.engine(), prompts, 1);
      INFERSCALE_RETURN_IF_ERROR(warm_up.WaitDone(context));
    }
    double without_facts = 0;
    std::vector<std::string> undisturbed_texts;
    // A request without facts has the same tail to compute: what an injection costs comes on top of
    // it.
    for (const char* const visitor_name : {"none", "no facts", "kv", "text"}) {
      const std::string visitor = visitor_name;
      if (visitor == "kv" && !session.capabilities().kv_injection) continue;
      INFERSCALE_RETURN_IF_ERROR(CheckStop(context));
      Say(context, std::to_string(count) + " sequences, request in between: " + visitor);
      std::optional<Composition> visit;
      if (visitor != "none") {
        INFERSCALE_ASSIGN_OR_RETURN(
            visit, session.Compose(scope, demo.questions.front().question,
                                   visitor == "no facts" ? std::span<const Fact>() : facts,
                                   visitor == "kv" ? MemoryMode::kKv : MemoryMode::kText));
      }
      Chorus chorus(prompts.size());
      chorus.Start(session.engine(), prompts, kTokens);
      double visit_ttft = 0;
      Status visit_status;
      if (visit) {
        chorus.WaitForTokens(kTokens / 3);
        const Result<Answer> answer = session.Generate(std::move(*visit), 1);
        visit_status = answer.status();
        if (answer.ok()) visit_ttft = answer->generation.ttft_ms;
      }
      INFERSCALE_RETURN_IF_ERROR(chorus.WaitDone(context));
      INFERSCALE_RETURN_IF_ERROR(visit_status);
      const std::vector<double> gaps = chorus.Gaps();
      const double rate = chorus.TokensASecond();
      const double longest = gaps.empty() ? 0 : *std::max_element(gaps.begin(), gaps.end());
      if (visitor == "none") undisturbed_texts = chorus.texts();
      if (visitor == "no facts") without_facts = rate;
      report.rows.push_back(
          {{"sequences", count},
           {"request_between", visitor},
           {"tokens_per_second", rate},
           {"median_gap_ms", Median(gaps)},
           {"longest_gap_ms", longest},
           {"its_ttft_ms", visitor == "none" ? nlohmann::ordered_json(nullptr)
                                             : nlohmann::ordered_json(visit_ttft)},
           {"same_answers", visitor == "none"
                                ? nlohmann::ordered_json(nullptr)
                                : nlohmann::ordered_json(chorus.texts() == undisturbed_texts)}});
      if (visitor == "kv") {
        report.claims.push_back(
            {"tokens a second of " + std::to_string(count) +
                 " sequences with an injected request in between / one without facts",
             without_facts > 0 ? rate / without_facts : 0, 0.9, false});
      }
    }
  }
  return report;
}

}  // namespace inferscale
