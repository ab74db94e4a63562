// Claims: (1) embedding a question, searching and fetching takes 6 ms at the median with 10,000
// facts in the scope; (2) the exact top 50 of 100,000 × 384 f16 rows takes 10 ms on one thread.
// Prints one table and writes retrieval_bench.json.
//
//   retrieval_bench [EMBEDDER.gguf]

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <random>
#include <string>
#include <vector>

#include "embed/make_embedder.h"
#include "inferscale/catalog.h"
#include "inferscale/retriever.h"
#include "kernels/kernels.h"

namespace inferscale {
namespace {

constexpr int kFacts = 10'000;
constexpr int kRows = 100'000;
constexpr int kDimensions = 384;
constexpr int kRounds = 101;

double ElapsedMs(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - start)
      .count();
}

nlohmann::json Row(const std::string& name, std::vector<double> times_ms) {
  std::sort(times_ms.begin(), times_ms.end());
  const double median = times_ms[times_ms.size() / 2];
  const double p95 = times_ms[times_ms.size() * 95 / 100];
  std::printf("%-44s %10.3f %10.3f\n", name.c_str(), median, p95);
  return {{"name", name}, {"median_ms", median}, {"p95_ms", p95}, {"rounds", times_ms.size()}};
}

std::vector<float> RandomUnit(std::mt19937& random) {
  std::normal_distribution<float> normal;
  std::vector<float> vector(kDimensions);
  double squares = 0;
  for (float& x : vector) {
    x = normal(random);
    squares += static_cast<double>(x) * x;
  }
  for (float& x : vector) x = static_cast<float>(x / std::sqrt(squares));
  return vector;
}

nlohmann::json BenchTopK() {
  std::mt19937 random(1);
  std::vector<std::uint16_t> rows(std::size_t{kRows} * kDimensions);
  for (int i = 0; i < kRows; ++i) {
    const std::vector<float> vector = RandomUnit(random);
    kernels::FloatToHalf(vector.data(), rows.data() + std::size_t{kDimensions} * i, kDimensions);
  }
  std::vector<double> times;
  std::vector<std::int64_t> found(50);
  std::vector<float> scores(50);
  for (int round = 0; round < kRounds; ++round) {
    const std::vector<float> query = RandomUnit(random);
    const auto start = std::chrono::steady_clock::now();
    kernels::TopK(rows.data(), kRows, kDimensions, query.data(), nullptr, 50, found.data(),
                  scores.data());
    times.push_back(ElapsedMs(start));
  }
  return Row("top 50 of 100,000 x 384 f16, one thread", times);
}

std::string RandomText(std::mt19937& random) {
  static const char* const kNames[] = {"Anna", "Tom", "Li Wei", "Maria", "Jonas"};
  static const char* const kVerbs[] = {"visited", "bought",  "repaired",
                                       "planned", "painted", "lost"};
  static const char* const kThings[] = {
      "a bicycle",     "the old piano", "a garden shed", "a book on birds", "a boat",
      "train tickets", "a red lamp",    "wedding rings", "a tent",          "a coffee grinder"};
  static const char* const kPlaces[] = {"in Bern",         "near the lake", "in Kyoto",
                                        "at the market",   "in Lisbon",     "behind the school",
                                        "in the mountains"};
  const auto pick = [&](auto& list) { return std::string(list[random() % std::size(list)]); };
  return pick(kNames) + " " + pick(kVerbs) + " " + pick(kThings) + " " + pick(kPlaces) +
         " on day " + std::to_string(random() % 3650) + ".";
}

int Run(const std::string& model) {
  std::printf("%-44s %10s %10s\n", "claim", "median ms", "p95 ms");
  nlohmann::json rows = nlohmann::json::array();
  rows.push_back(BenchTopK());

  EmbedderSpec spec;
  spec.location = model;
  auto embedder = MakeEmbedder(spec);
  if (!embedder.ok()) {
    std::fprintf(stderr, "%s\n", embedder.status().ToString().c_str());
    return 1;
  }
  const std::filesystem::path folder =
      std::filesystem::temp_directory_path() /
      ("retrieval_bench_" + std::to_string(std::random_device{}()));
  CatalogOptions options;
  options.folder = folder;
  auto catalog = OpenSqliteCatalog(options);
  if (!catalog.ok()) {
    std::fprintf(stderr, "%s\n", catalog.status().ToString().c_str());
    return 1;
  }
  Scope scope;
  scope.user = "bench";
  const ScopeId scope_id = (*catalog)->EnsureScope(scope)->id;
  std::mt19937 random(2);
  IngestBatch batch;
  batch.scope_id = scope_id;
  batch.embedder_id = (*embedder)->id();
  for (int i = 0; i < kFacts; ++i) {
    NewFact fact;
    fact.fact.text = std::to_string(i) + ": " + RandomText(random);
    fact.embedding = RandomUnit(random);
    fact.embedding.resize(static_cast<std::size_t>((*embedder)->dimensions()));
    batch.facts.push_back(std::move(fact));
  }
  const auto outcome = (*catalog)->Ingest(batch);
  if (!outcome.ok()) {
    std::fprintf(stderr, "%s\n", outcome.status().ToString().c_str());
    return 1;
  }

  Retriever retriever(**catalog, **embedder);
  std::vector<double> embedding;
  std::vector<double> keywords;
  std::vector<double> vectors_only;
  std::vector<double> searching;
  for (int round = 0; round < kRounds + 1; ++round) {
    SearchRequest request;
    request.scopes = {scope_id};
    request.query = "Who " + RandomText(random).substr(5) + "?";
    request.query.resize(std::min<std::size_t>(request.query.size(), 60));
    auto start = std::chrono::steady_clock::now();
    const auto vector = (*embedder)->Embed({&request.query, 1});
    const double embed_ms = ElapsedMs(start);
    start = std::chrono::steady_clock::now();
    const auto hits = retriever.Search(request);
    const double search_ms = ElapsedMs(start);
    start = std::chrono::steady_clock::now();
    const auto keyword_hits = (*catalog)->KeywordSearch(request.scopes, request.query, 80);
    keywords.push_back(ElapsedMs(start));
    request.keyword = false;
    start = std::chrono::steady_clock::now();
    const auto nearest = retriever.Search(request);
    vectors_only.push_back(ElapsedMs(start));
    if (!vector.ok() || !keyword_hits.ok() || !nearest.ok() || !hits.ok() || hits->empty()) {
      std::fprintf(stderr, "search failed: %s\n", hits.status().ToString().c_str());
      return 1;
    }
    if (round == 0) {
      std::printf("%-44s %10.3f\n", "first search, index loaded (10,000 facts)", search_ms);
      continue;
    }
    embedding.push_back(embed_ms);
    searching.push_back(search_ms);
  }
  rows.push_back(Row("embed a question", embedding));
  rows.push_back(Row("keyword search alone", keywords));
  rows.push_back(Row("embed, search by vectors alone, fetch 20", vectors_only));
  rows.push_back(Row("embed, search 10,000 facts, fetch 20", searching));
  catalog->reset();
  std::filesystem::remove_all(folder);
  std::ofstream("retrieval_bench.json") << nlohmann::json{{"rows", rows}}.dump(1) << "\n";
  return 0;
}

}  // namespace
}  // namespace inferscale

int main(int argc, char** argv) {
  const char* home = std::getenv("HOME");
  return inferscale::Run(argc > 1 ? argv[1]
                                  : std::string(home != nullptr ? home : ".") +
                                        "/.cache/inferscale/models/all-MiniLM-L6-v2-f16.gguf");
}
