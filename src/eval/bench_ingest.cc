#include <algorithm>
#include <condition_variable>
#include <mutex>

#include "encode/fact_encoder.h"
#include "encode/recipe.h"
#include "eval/bench.h"
#include "eval/progress.h"

namespace inferscale {
namespace {

constexpr std::int32_t kChatFacts = 20;
constexpr std::int32_t kChatTokens = 4;
constexpr std::int32_t kIdleChats = 40;
constexpr std::size_t kBatchedFacts = 96, kSingleFacts = 12;

/// Encodes the requests in one call and waits. \return facts a second
Result<double> EncodeRate(Engine& engine, std::vector<EncodeRequest> requests) {
  std::mutex mutex;
  std::condition_variable changed;
  std::size_t left = requests.size();
  Status failed;
  const auto count = static_cast<double>(requests.size());
  const auto start = std::chrono::steady_clock::now();
  engine.Encode(std::move(requests), [&](const EncodeOutcome& outcome) {
    std::lock_guard lock(mutex);
    if (!outcome.status.ok()) failed = outcome.status;
    --left;
    changed.notify_all();
  });
  std::unique_lock lock(mutex);
  changed.wait(lock, [&] { return left == 0; });
  INFERSCALE_RETURN_IF_ERROR(failed);
  return count / MillisecondsSince(start) * 1000;
}

/// Chats about the demo, one after the other. \return TTFT of each
Result<std::vector<double>> Chats(EvalContext& context, EvalSession& session, const Scope& scope,
                                  const EvalConversation& demo,
                                  const std::function<bool(std::size_t)>& go_on) {
  std::vector<double> ttft_ms;
  while (go_on(ttft_ms.size())) {
    INFERSCALE_RETURN_IF_ERROR(CheckStop(context));
    const std::string& question = demo.questions[ttft_ms.size() % demo.questions.size()].question;
    INFERSCALE_ASSIGN_OR_RETURN(const std::vector<SearchHit> hits,
                                session.service().Search(scope, question, kChatFacts));
    INFERSCALE_ASSIGN_OR_RETURN(Composition composition,
                                session.Compose(scope, question, FactsOf(hits), MemoryMode::kKv));
    INFERSCALE_ASSIGN_OR_RETURN(const Answer answer,
                                session.Generate(std::move(composition), kChatTokens));
    ttft_ms.push_back(answer.generation.ttft_ms);
  }
  return ttft_ms;
}

}  // namespace

Result<BenchReport> BenchIngest(EvalContext& context, const BenchOptions& options) {
  INFERSCALE_ASSIGN_OR_RETURN(const EvalConversation demo, BuiltInDemo());
  INFERSCALE_ASSIGN_OR_RETURN(const WorkFolder folder, WorkFolder::Create(context.data_dir));
  EvalServiceOptions service_options;
  service_options.folder = folder.path();
  service_options.threads = context.threads > 0 ? context.threads : 1;
  INFERSCALE_ASSIGN_OR_RETURN(EvalSession session, EvalSession::Open(context, service_options));
  if (!session.capabilities().kv_injection) return Unsupported(session.capabilities().kv_refusal);
  Engine& engine = session.engine();
  Scope scope;
  scope.user = "inferscale-bench";
  INFERSCALE_RETURN_IF_ERROR(session.Ingest(scope, demo, {}));
  INFERSCALE_RETURN_IF_ERROR(session.WaitIdle("encoding facts"));
  BenchReport report;

  // Rates of encoding facts that no store has yet, under an owner of their own.
  Scope rate_scope;
  rate_scope.user = "inferscale-bench-rate";
  INFERSCALE_ASSIGN_OR_RETURN(const ScopeInfo rate_owner,
                              session.service().catalog().EnsureScope(rate_scope));
  INFERSCALE_ASSIGN_OR_RETURN(const Recipe recipe,
                              Recipe::Parse(session.service().options().recipe));
  FactEncoder encoder(engine, session.service().catalog(), recipe,
                      session.service().options().codec);
  INFERSCALE_ASSIGN_OR_RETURN(const std::vector<NewFact> samples,
                              SampleFacts(kBatchedFacts + 2 * kSingleFacts));
  std::vector<EncodeRequest> requests;
  for (const NewFact& sample : samples) {
    INFERSCALE_ASSIGN_OR_RETURN(const FactEncoding encoding,
                                encoder.Encode(sample.fact, rate_owner));
    EncodeRequest request;
    request.info.key = encoding.key;
    request.info.scope_tag = rate_owner.tag;
    request.info.epoch = rate_owner.epoch;
    request.info.codec = encoder.codec();
    request.info.tokens = encoding.own;
    request.info.saw = encoding.saw;
    request.context = encoding.context;
    requests.push_back(std::move(request));
  }
  Say(context, "measuring the encoding rate");
  const auto prompt_start = std::chrono::steady_clock::now();
  for (std::size_t i = 0; i < kSingleFacts; ++i) {
    Composition prompt;
    prompt.ids = *requests.back().context;
    prompt.ids.insert(prompt.ids.end(), requests.back().info.tokens.begin(),
                      requests.back().info.tokens.end());
    prompt.salt = FreshSalt();
    prompt.inject = false;
    INFERSCALE_ASSIGN_OR_RETURN([[maybe_unused]] const Answer answer,
                                session.Generate(std::move(prompt), 1));
    requests.pop_back();
  }
  const double prompt_rate = kSingleFacts / MillisecondsSince(prompt_start) * 1000;
  double single_rate = 0;
  for (std::size_t i = 0; i < kSingleFacts; ++i) {
    std::vector<EncodeRequest> one;
    one.push_back(std::move(requests.back()));
    requests.pop_back();
    INFERSCALE_ASSIGN_OR_RETURN(const double rate, EncodeRate(engine, std::move(one)));
    single_rate += 1 / rate;
  }
  single_rate = kSingleFacts / single_rate;
  INFERSCALE_ASSIGN_OR_RETURN(const double batched_rate, EncodeRate(engine, std::move(requests)));
  report.rows.push_back({{"what", "encoding, one prompt a fact"},
                         {"facts_per_second", prompt_rate},
                         {"ttft_p50_ms", nullptr},
                         {"ttft_p95_ms", nullptr},
                         {"n", kSingleFacts}});
  report.rows.push_back({{"what", "encoding, one call a fact"},
                         {"facts_per_second", single_rate},
                         {"n", kSingleFacts}});
  report.rows.push_back({{"what", "encoding, many facts a call"},
                         {"facts_per_second", batched_rate},
                         {"n", kBatchedFacts}});
  report.claims.push_back(
      {"encoding many facts / one request a fact", batched_rate / prompt_rate, 3, false});

  Say(context, "chats while nothing else runs");
  INFERSCALE_ASSIGN_OR_RETURN(const std::vector<double> idle,
                              Chats(context, session, scope, demo, [](std::size_t n) {
                                return n < static_cast<std::size_t>(kIdleChats);
                              }));
  const auto count = static_cast<std::size_t>(options.facts > 0 ? options.facts : 1000);
  INFERSCALE_ASSIGN_OR_RETURN(std::vector<NewFact> facts, SampleFacts(count));
  Scope ingest_scope;
  ingest_scope.user = "inferscale-bench-ingest";
  const auto ingest_start = std::chrono::steady_clock::now();
  INFERSCALE_ASSIGN_OR_RETURN([[maybe_unused]] const IngestOutcome outcome,
                              session.service().AddFacts(ingest_scope, {}, std::move(facts)));
  EvalProgress progress(context, "facts encoded while chatting", static_cast<std::int64_t>(count));
  Status pending_status;
  INFERSCALE_ASSIGN_OR_RETURN(
      const std::vector<double> busy, Chats(context, session, scope, demo, [&](std::size_t) {
        const Result<PendingWork> pending = session.service().Pending();
        if (!pending.ok()) {
          pending_status = pending.status();
          return false;
        }
        const std::int64_t left = std::max(pending->encodings, pending->embeddings);
        progress.Set(static_cast<std::int64_t>(count) - left);
        return left > 0;
      }));
  INFERSCALE_RETURN_IF_ERROR(pending_status);
  const double seconds = MillisecondsSince(ingest_start) / 1000;
  report.rows.push_back({{"what", "chats, idle"},
                         {"ttft_p50_ms", Median(idle)},
                         {"ttft_p95_ms", Percentile(idle, 95)},
                         {"n", idle.size()}});
  report.rows.push_back({{"what", "chats during an ingest of " + std::to_string(count) + " facts"},
                         {"facts_per_second", static_cast<double>(count) / seconds},
                         {"ttft_p50_ms", Median(busy)},
                         {"ttft_p95_ms", Percentile(busy, 95)},
                         {"n", busy.size()}});
  report.claims.push_back(
      {"p95 of TTFT during ingest / idle", Percentile(busy, 95) / Percentile(idle, 95), 2, true});
  return report;
}

}  // namespace inferscale
