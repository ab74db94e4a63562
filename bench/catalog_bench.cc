// Scale of the catalog: one scope of 10,000 facts. Prints one table and, with --json, one object.

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "catalog/filter.h"
#include "inferscale/catalog.h"

namespace {

using namespace inferscale;  // NOLINT: a program of one file

constexpr int kFacts = 10'000;
constexpr int kBatch = 500;

struct Row {
  std::string what;
  double value;
  const char* unit;
};

[[noreturn]] void Fail(const Status& status) {
  std::fprintf(stderr, "%s\n", status.ToString().c_str());
  std::exit(1);
}

template <typename T>
T Need(Result<T> result) {
  if (!result.ok()) Fail(result.status());
  return std::move(result).value();
}

double Milliseconds(const std::function<void()>& work) {
  const auto start = std::chrono::steady_clock::now();
  work();
  return std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - start)
      .count();
}

double MedianMs(const std::function<void()>& work) {
  std::vector<double> times;
  for (int i = 0; i < 21; ++i) times.push_back(Milliseconds(work));
  std::nth_element(times.begin(), times.begin() + 10, times.end());
  return times[10];
}

std::string FactText(int number) {
  static const char* const kVerbs[] = {"likes", "visited", "plans", "remembers", "avoids"};
  static const char* const kThings[] = {
      "gardens",       "old bridges",  "chess",  "a market in Lisbon",
      "mountain huts", "jazz records", "陶瓷课", "rowing"};
  return "Anna " + std::string(kVerbs[number % 5]) + " " + kThings[number % 8] +
         " and told her friends about it on day " + std::to_string(number);
}

IngestBatch BatchFrom(ScopeId scope, int first) {
  IngestBatch batch;
  batch.scope_id = scope;
  for (int i = first; i < first + kBatch; ++i) {
    NewFact fact;
    fact.fact.text = FactText(i);
    fact.fact.metadata_json = R"({"day":)" + std::to_string(i) + "}";
    batch.turns.push_back(Turn{0, "user", "Anna", fact.fact.text, 0});
    fact.source_turn_indexes = {i - first};
    batch.facts.push_back(std::move(fact));
  }
  return batch;
}

}  // namespace

int main(int argc, char** argv) {
  std::string folder = (std::filesystem::temp_directory_path() / "catalog-bench-XXXXXX").string();
  if (mkdtemp(folder.data()) == nullptr) return 1;
  CatalogOptions options;
  options.folder = folder;
  std::vector<Row> rows;

  auto catalog = Need(OpenSqliteCatalog(options));
  Scope owner;
  owner.user = "anna";
  const ScopeId scope = Need(catalog->EnsureScope(owner)).id;
  std::vector<IngestBatch> batches;
  for (int i = 0; i < kFacts; i += kBatch) batches.push_back(BatchFrom(scope, i));
  const double ingest_ms = Milliseconds([&] {
    for (const IngestBatch& batch : batches) Need(catalog->Ingest(batch));
  });
  rows.push_back({"ingest, batches of 500 facts and turns", kFacts / ingest_ms * 1000, "facts/s"});

  rows.push_back({"ingest of one fact", MedianMs([&, i = kFacts]() mutable {
                    IngestBatch one;
                    one.scope_id = scope;
                    one.facts.resize(1);
                    one.facts[0].fact.text = FactText(i++);
                    Need(catalog->Ingest(one));
                  }),
                  "ms"});
  FactQuery query;
  query.scopes = {scope};
  rows.push_back(
      {"matching rows, no filter", MedianMs([&] { Need(catalog->MatchingRows(query)); }), "ms"});
  const auto filter = Need(Filter::Parse(R"({"day":{"gte":5000,"lt":6000}})"));
  FactQuery filtered = query;
  filtered.filter = filter.get();
  rows.push_back({"matching rows, metadata range",
                  MedianMs([&] { Need(catalog->MatchingRows(filtered)); }), "ms"});
  const auto search = [&](std::string_view text) {
    return MedianMs([&] { Need(catalog->KeywordSearch(query.scopes, text, 60)); });
  };
  rows.push_back({"keyword search, rare word", search("Which day was 7421?"), "ms"});
  rows.push_back({"keyword search, in 1 of 8 facts", search("Does she like chess?"), "ms"});
  rows.push_back(
      {"keyword search, in every fact", search("What did Anna tell her friends?"), "ms"});
  rows.push_back({"list of 100", MedianMs([&] { Need(catalog->ListFacts(query)); }), "ms"});

  catalog.reset();
  rows.push_back({"opening", MedianMs([&] {
                    catalog.reset();
                    catalog = Need(OpenSqliteCatalog(options));
                  }),
                  "ms"});
  const std::string one = Need(catalog->ListFacts(query)).front().id;
  rows.push_back(
      {"forgetting one fact", Milliseconds([&] { Need(catalog->ForgetFact(one)); }), "ms"});
  rows.push_back({"deleting the scope's facts",
                  Milliseconds([&] { Need(catalog->DeleteScopes(query.scopes)); }), "ms"});
  catalog.reset();
  std::filesystem::remove_all(folder);

  if (argc > 1 && std::string_view(argv[1]) == "--json") {
    std::printf("{\"facts\":%d,\"rows\":[", kFacts);
    for (std::size_t i = 0; i < rows.size(); ++i) {
      std::printf("%s{\"what\":\"%s\",\"value\":%.3f,\"unit\":\"%s\"}", i ? "," : "",
                  rows[i].what.c_str(), rows[i].value, rows[i].unit);
    }
    std::printf("]}\n");
    return 0;
  }
  std::printf("Catalog with %d facts in one scope\n", kFacts);
  for (const Row& row : rows) {
    std::printf("  %-42s %10.2f %s\n", row.what.c_str(), row.value, row.unit);
  }
}
