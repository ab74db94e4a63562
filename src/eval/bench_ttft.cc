#include <algorithm>
#include <map>
#include <random>

#include "eval/bench.h"
#include "eval/progress.h"

namespace inferscale {
namespace {

constexpr std::int32_t kContextTokens = 4096;
constexpr std::int32_t kShortTail = 30;
constexpr std::int32_t kCombinationFacts = 5;

/// The same prompt with only its last `tokens` tokens after the facts.
Composition WithTail(Composition composition, std::int32_t tokens) {
  if (composition.blocks.empty()) return composition;
  const std::int32_t facts_end = composition.blocks.back().end;
  const auto size = static_cast<std::int32_t>(composition.ids.size());
  if (size - facts_end > tokens) {
    composition.ids.erase(composition.ids.begin() + facts_end, composition.ids.end() - tokens);
  }
  return composition;
}

/// The same tokens, all to be computed.
Composition AsText(Composition composition) {
  composition.inject = false;
  composition.blocks.clear();
  composition.salt = FreshSalt();
  return composition;
}

struct Samples {
  std::vector<double> ttft_ms, inject_ms, injected, computed;
  std::int32_t fact_tokens = 0;
};

}  // namespace

Result<BenchReport> BenchTtft(EvalContext& context, const BenchOptions& options) {
  INFERSCALE_ASSIGN_OR_RETURN(const EvalConversation demo, BuiltInDemo());
  INFERSCALE_ASSIGN_OR_RETURN(const WorkFolder folder, WorkFolder::Create(context.data_dir));
  EvalServiceOptions service_options;
  service_options.folder = folder.path();
  service_options.context_tokens = kContextTokens;
  service_options.max_fact_tokens = kContextTokens - 512;
  service_options.threads = context.threads > 0 ? context.threads : 1;
  INFERSCALE_ASSIGN_OR_RETURN(EvalSession session, EvalSession::Open(context, service_options));
  if (!session.capabilities().kv_injection) return Unsupported(session.capabilities().kv_refusal);
  Scope scope;
  scope.user = "inferscale-bench";
  INFERSCALE_RETURN_IF_ERROR(session.Ingest(scope, demo, {}));
  INFERSCALE_RETURN_IF_ERROR(session.WaitIdle("encoding facts"));

  const auto count = static_cast<std::size_t>(options.questions > 0 ? options.questions : 7);
  std::map<std::tuple<std::int32_t, bool, bool>, Samples> samples;  // k, short tail, kv
  {
    EvalProgress progress(context, "questions", static_cast<std::int64_t>(count));
    for (std::size_t i = 0; i < count; ++i) {
      const std::string& question = demo.questions[i % demo.questions.size()].question;
      INFERSCALE_ASSIGN_OR_RETURN(const std::vector<SearchHit> hits,
                                  session.service().Search(scope, question, 50));
      const std::vector<Fact> facts = FactsOf(hits);
      for (const std::int32_t k : {5, 50}) {
        for (const bool short_tail : {false, true}) {
          INFERSCALE_RETURN_IF_ERROR(CheckStop(context));
          INFERSCALE_ASSIGN_OR_RETURN(
              Composition kv,
              session.Compose(scope, question, FirstFacts(facts, k), MemoryMode::kKv));
          if (short_tail) kv = WithTail(std::move(kv), kShortTail);
          const Composition text = AsText(kv);
          const bool text_first = i % 2 == 0;
          for (const bool inject : {!text_first, text_first}) {
            INFERSCALE_ASSIGN_OR_RETURN(const Answer answer,
                                        session.Generate(inject ? kv : text, 1));
            Samples& all = samples[{k, short_tail, inject}];
            all.ttft_ms.push_back(answer.generation.ttft_ms);
            all.inject_ms.push_back(answer.generation.inject_ms);
            all.injected.push_back(answer.generation.injected_tokens);
            all.computed.push_back(answer.generation.computed_tokens);
            std::int32_t fact_tokens = 0;
            for (const BlockSpan& span : kv.blocks)
              fact_tokens += span.exact ? 0 : span.end - span.begin;
            all.fact_tokens = fact_tokens;
          }
        }
      }
      progress.Add();
    }
  }

  BenchReport report;
  const auto median = [&](std::int32_t k, bool short_tail, bool kv) {
    return Median(samples[{k, short_tail, kv}].ttft_ms);
  };
  for (const auto& [key, all] : samples) {
    const auto& [k, short_tail, kv] = key;
    report.rows.push_back({{"k", k},
                           {"mode", kv ? "kv" : "text"},
                           {"tail", short_tail ? "30 tokens" : "question"},
                           {"ttft_ms", Median(all.ttft_ms)},
                           {"inject_ms", Median(all.inject_ms)},
                           {"injected_tokens", Median(all.injected)},
                           {"computed_tokens", Median(all.computed)},
                           {"fact_tokens", all.fact_tokens},
                           {"n", all.ttft_ms.size()}});
  }
  report.claims = {
      {"fact tokens at k=50", static_cast<double>(samples[{50, false, true}].fact_tokens), 1400,
       false},
      {"TTFT text / KV at k=50", median(50, false, false) / median(50, false, true), 20, false},
      {"TTFT text / KV at k=50 with a tail of 30 tokens",
       median(50, true, false) / median(50, true, true), 30, false},
      {"TTFT with KV at k=50 / k=5", median(50, false, true) / median(5, false, true), 1.5, true}};

  if (options.combinations > 0) {
    INFERSCALE_ASSIGN_OR_RETURN(const std::vector<Fact> all,
                                session.service().List(scope, 0, 1000));
    if (all.size() < static_cast<std::size_t>(kCombinationFacts))
      return Internal("too few facts for combinations");
    const KvStoreStats before = session.engine().StoreStats();
    std::mt19937 random(1);
    std::vector<double> ttft_ms;
    EvalProgress progress(context, "combinations", options.combinations);
    for (std::int32_t i = 0; i < options.combinations; ++i) {
      INFERSCALE_RETURN_IF_ERROR(CheckStop(context));
      std::vector<Fact> facts;
      std::sample(all.begin(), all.end(), std::back_inserter(facts), kCombinationFacts, random);
      std::shuffle(facts.begin(), facts.end(), random);
      INFERSCALE_ASSIGN_OR_RETURN(
          Composition composition,
          session.Compose(scope, demo.questions.front().question, facts, MemoryMode::kKv));
      INFERSCALE_ASSIGN_OR_RETURN(const Answer answer, session.Generate(std::move(composition), 1));
      ttft_ms.push_back(answer.generation.ttft_ms);
      progress.Add();
    }
    const KvStoreStats after = session.engine().StoreStats();
    const auto fifth = static_cast<std::ptrdiff_t>(std::max<std::size_t>(ttft_ms.size() / 5, 1));
    const double first = Median({ttft_ms.begin(), ttft_ms.begin() + fifth});
    const double last = Median({ttft_ms.end() - fifth, ttft_ms.end()});
    report.rows.push_back({{"k", kCombinationFacts},
                           {"mode", "kv"},
                           {"tail", "first fifth of the combinations"},
                           {"ttft_ms", first},
                           {"n", fifth},
                           {"store_bytes", before.file_bytes}});
    report.rows.push_back({{"k", kCombinationFacts},
                           {"mode", "kv"},
                           {"tail", "last fifth of the combinations"},
                           {"ttft_ms", last},
                           {"n", fifth},
                           {"store_bytes", after.file_bytes}});
    report.claims.push_back({"TTFT of the last / the first combinations", last / first, 1.2, true});
    report.claims.push_back({"store bytes after / before the combinations",
                             static_cast<double>(after.file_bytes) /
                                 static_cast<double>(std::max<std::int64_t>(before.file_bytes, 1)),
                             1.0, true});
  }
  return report;
}

}  // namespace inferscale
