#include <random>

#include "base/huge_pages.h"
#include "eval/bench.h"
#include "eval/progress.h"
#include "kernels/kernels.h"

namespace inferscale {
namespace {

constexpr std::int32_t kTopK = 20;
constexpr std::int64_t kRows = 100'000;
constexpr std::int32_t kDimensions = 384;

void AddRow(BenchReport* report, const std::string& what, std::int64_t facts,
            const std::vector<double>& ms) {
  report->rows.push_back({{"what", what},
                          {"facts", facts},
                          {"median_ms", Median(ms)},
                          {"p95_ms", Percentile(ms, 95)},
                          {"n", ms.size()}});
}

std::vector<double> ExactTopK() {
  std::mt19937 random(1);
  const auto element = [&] {
    return static_cast<float>(random()) / static_cast<float>(std::mt19937::max()) - 0.5f;
  };
  HugePageVector<std::uint16_t> rows(static_cast<std::size_t>(kRows) * kDimensions);
  std::vector<float> row(kDimensions), query(kDimensions);
  for (std::int64_t r = 0; r < kRows; ++r) {
    for (float& value : row) value = element();
    kernels::FloatToHalf(row.data(), rows.data() + r * kDimensions, row.size());
  }
  std::vector<double> ms;
  for (int i = 0; i < 30; ++i) {
    for (float& value : query) value = element();
    std::vector<std::int64_t> found(50);
    std::vector<float> scores(50);
    const auto start = std::chrono::steady_clock::now();
    kernels::TopK(rows.data(), kRows, kDimensions, query.data(), nullptr, 50, found.data(),
                  scores.data());
    ms.push_back(MillisecondsSince(start));
  }
  return ms;
}

}  // namespace

Result<BenchReport> BenchRetrieval(EvalContext& context, const BenchOptions& options) {
  INFERSCALE_ASSIGN_OR_RETURN(const EvalConversation demo, BuiltInDemo());
  INFERSCALE_ASSIGN_OR_RETURN(const WorkFolder folder, WorkFolder::Create({}));
  EvalServiceOptions service_options;
  service_options.folder = folder.path();
  service_options.threads = context.threads > 0 ? context.threads : 1;
  service_options.background = false;
  INFERSCALE_ASSIGN_OR_RETURN(EvalSession session, EvalSession::Open(context, service_options));
  MemoryService& service = session.service();
  Scope scope;
  scope.user = "inferscale-bench";
  const std::int64_t count = options.facts > 0 ? options.facts : 10'000;
  INFERSCALE_ASSIGN_OR_RETURN(std::vector<NewFact> facts,
                              SampleFacts(static_cast<std::size_t>(count)));
  INFERSCALE_RETURN_IF_ERROR(EmbedSampleFacts(service.embedder(), &facts));
  INFERSCALE_RETURN_IF_ERROR(AddSampleFacts(context, service, scope, std::move(facts)));

  const std::size_t questions =
      static_cast<std::size_t>(options.questions > 0 ? options.questions : 90);
  std::vector<double> embed_ms, search_ms, compose_ms, total_ms;
  // The first question loads the scope's rows and is no part of the figures.
  for (std::size_t i = 0; i <= questions; ++i) {
    INFERSCALE_RETURN_IF_ERROR(CheckStop(context));
    // Asked in another wording each time, so that nothing may have been kept from the last.
    const std::string question = demo.questions[i % demo.questions.size()].question +
                                 (i < demo.questions.size() ? "" : " #" + std::to_string(i));
    const std::string texts[] = {question + " "};
    const auto embed_start = std::chrono::steady_clock::now();
    INFERSCALE_ASSIGN_OR_RETURN([[maybe_unused]] const auto vectors,
                                service.embedder().Embed(texts));
    const double embed = MillisecondsSince(embed_start);
    const auto start = std::chrono::steady_clock::now();
    INFERSCALE_ASSIGN_OR_RETURN(const std::vector<SearchHit> hits,
                                service.Search(scope, question, kTopK));
    const double search = MillisecondsSince(start);
    const auto compose_start = std::chrono::steady_clock::now();
    INFERSCALE_ASSIGN_OR_RETURN([[maybe_unused]] const Composition composition,
                                session.Compose(scope, question, FactsOf(hits), MemoryMode::kKv));
    const double compose = MillisecondsSince(compose_start);
    if (i == 0) continue;
    embed_ms.push_back(embed);
    search_ms.push_back(std::max(search - embed, 0.0));
    compose_ms.push_back(compose);
    total_ms.push_back(search + compose);
  }
  BenchReport report;
  AddRow(&report, "embed the question", count, embed_ms);
  AddRow(&report, "search (without embedding)", count, search_ms);
  AddRow(&report, "compose", count, compose_ms);
  AddRow(&report, "embed, search and compose", count, total_ms);
  Say(context, "exact top-50 of 100,000 rows");
  const std::vector<double> exact = ExactTopK();
  AddRow(&report, "exact top-50, 384 dimensions, f16", kRows, exact);
  report.claims = {
      {"embedding, searching and composing, median ms", Median(total_ms), 6, true},
      {"exact top-50 of 100,000 x 384 on one thread, median ms", Median(exact), 10, true}};
  return report;
}

Result<BenchReport> BenchStart(EvalContext& context, const BenchOptions& options) {
  INFERSCALE_ASSIGN_OR_RETURN(const WorkFolder folder, WorkFolder::Create({}));
  EvalServiceOptions service_options;
  service_options.folder = folder.path();
  service_options.threads = context.threads;
  service_options.background = options.encode;
  Scope scope;
  scope.user = "inferscale-bench";
  const std::int64_t count = options.facts > 0 ? options.facts : 10'000;
  std::int64_t blocks = 0;
  {
    INFERSCALE_ASSIGN_OR_RETURN(EvalSession session, EvalSession::Open(context, service_options));
    INFERSCALE_ASSIGN_OR_RETURN(std::vector<NewFact> facts,
                                SampleFacts(static_cast<std::size_t>(count)));
    INFERSCALE_RETURN_IF_ERROR(EmbedSampleFacts(session.service().embedder(), &facts));
    INFERSCALE_RETURN_IF_ERROR(AddSampleFacts(context, session.service(), scope, std::move(facts)));
    if (options.encode) INFERSCALE_RETURN_IF_ERROR(session.WaitIdle("encoding facts"));
    blocks = session.engine().StoreStats().file_blocks;
  }
  BenchReport report;
  std::vector<double> ready_ms, search_ms;
  const std::int32_t starts = options.questions > 0 ? options.questions : 3;
  for (std::int32_t i = 0; i < starts; ++i) {
    INFERSCALE_RETURN_IF_ERROR(CheckStop(context));
    const auto start = std::chrono::steady_clock::now();
    INFERSCALE_ASSIGN_OR_RETURN(EvalSession session, EvalSession::Open(context, service_options));
    ready_ms.push_back(MillisecondsSince(start));
    INFERSCALE_ASSIGN_OR_RETURN(
        [[maybe_unused]] const std::vector<SearchHit> hits,
        session.service().Search(scope, "What is the name of Nora's cat?", kTopK));
    search_ms.push_back(MillisecondsSince(start));
  }
  AddRow(&report, "start to ready", count, ready_ms);
  AddRow(&report, "start to the first search answered", count, search_ms);
  report.claims = {{"start to ready with " + std::to_string(count) + " facts, median s",
                    Median(ready_ms) / 1000, 3, true}};
  report.notes.push_back(std::to_string(blocks) + " KV blocks on disk");
  return report;
}

}  // namespace inferscale
