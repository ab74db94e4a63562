#include <atomic>
#include <thread>

#include <gmock/gmock.h>

#include "support/catalog_fixture.h"

namespace inferscale::test {
namespace {

using testing::IsEmpty;

using CatalogConcurrency = CatalogTest;

TEST_F(CatalogConcurrency, WritersAndReadersDoNotDisturbEachOther) {
  const ScopeId scope = ScopeOf("anna");
  constexpr int kWriters = 4, kReaders = 6, kFacts = 40;
  std::atomic<bool> done = false;
  std::atomic<int> failures = 0;
  std::vector<std::thread> writers, readers;
  for (int w = 0; w < kWriters; ++w) {
    writers.emplace_back([&, w] {
      for (int i = 0; i < kFacts; ++i) {
        IngestBatch batch;
        batch.scope_id = scope;
        // Each fact is added by two writers: one of them finds it there.
        batch.facts = {FactOf("fact " + std::to_string(w / 2) + " of " + std::to_string(i))};
        if (!catalog_->Ingest(batch).ok()) ++failures;
      }
    });
  }
  for (int r = 0; r < kReaders; ++r) {
    readers.emplace_back([&] {
      FactQuery query;
      query.scopes = {scope};
      query.limit = 1000;
      std::size_t seen = 0;
      while (!done) {
        const auto facts = catalog_->ListFacts(query);
        const auto hits = catalog_->KeywordSearch(query.scopes, "fact", 1000);
        const auto info = catalog_->GetScope(scope);
        if (!facts.ok() || !hits.ok() || !info.ok() || facts->size() < seen) ++failures;
        if (facts.ok()) seen = facts->size();
      }
    });
  }
  for (auto& thread : writers) thread.join();
  done = true;
  for (auto& thread : readers) thread.join();
  EXPECT_EQ(failures, 0);
  EXPECT_EQ(*catalog_->CountFacts(QueryOf(scope)), 2 * kFacts);
  EXPECT_EQ(InfoOf(scope).facts, 2 * kFacts);
}

TEST_F(CatalogConcurrency, NobodySeesNewTextWithOldKv) {
  const ScopeId scope = ScopeOf("anna");
  const std::string id = AddText(scope, "text 1");
  std::atomic<bool> done = false;
  std::atomic<int> failures = 0;
  std::thread reader([&] {
    while (!done) {
      const auto record = catalog_->GetKvRecords(std::span(&id, 1), "encoding");
      const auto fact = catalog_->GetFact(id);
      // Read first, the record may be older than the fact, but never newer.
      if (!record.ok() || !fact.ok()) {
        ++failures;
      } else if ((*record)[0] && (*record)[0]->fact_version > fact->version) {
        ++failures;
      }
    }
  });
  for (std::int64_t version = 1; version <= 40; ++version) {
    AddKv(id, KeyOf(static_cast<std::uint8_t>(version)), {}, version);
    FactUpdate update;
    update.text = "text " + std::to_string(version + 1);
    EXPECT_TRUE(catalog_->UpdateFact(id, update).ok());
  }
  done = true;
  reader.join();
  EXPECT_EQ(failures, 0);
}

TEST_F(CatalogConcurrency, ForgettingWaitsForReadersAndLeavesNothing) {
  const ScopeId scope = ScopeOf("anna");
  std::vector<NewFact> facts;
  for (int i = 0; i < 300; ++i) facts.push_back(FactOf("filler " + std::to_string(i)));
  Add(scope, std::move(facts));
  std::atomic<bool> done = false;
  std::atomic<int> failures = 0;
  std::vector<std::thread> readers;
  for (int r = 0; r < 4; ++r) {
    readers.emplace_back([&] {
      FactQuery query;
      query.scopes = {scope};
      query.limit = 1000;
      while (!done) {
        if (!catalog_->ListFacts(query).ok()) ++failures;
        if (!catalog_->KeywordSearch(query.scopes, "filler", 10).ok()) ++failures;
      }
    });
  }
  for (int i = 0; i < 5; ++i) {
    const std::string id = AddText(scope, "secret Hippopotamus " + std::to_string(i));
    const auto forgotten = catalog_->ForgetFact(id);
    EXPECT_TRUE(forgotten.ok()) << forgotten.status().ToString();
    EXPECT_THAT(folder_.FilesHolding("Hippopotamus"), IsEmpty());
    EXPECT_THAT(folder_.FilesHolding("hippopotamu"), IsEmpty());
  }
  done = true;
  for (auto& thread : readers) thread.join();
  EXPECT_EQ(failures, 0);
}

}  // namespace
}  // namespace inferscale::test
