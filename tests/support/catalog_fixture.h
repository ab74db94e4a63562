#ifndef INFERSCALE_TESTS_SUPPORT_CATALOG_FIXTURE_H_
#define INFERSCALE_TESTS_SUPPORT_CATALOG_FIXTURE_H_

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "inferscale/catalog.h"

namespace inferscale::test {

/// An empty folder that goes with the object.
class CatalogFolder {
 public:
  CatalogFolder() {
    std::string name = (std::filesystem::temp_directory_path() / "inferscale-XXXXXX").string();
    if (mkdtemp(name.data()) == nullptr) std::abort();
    path_ = name;
  }
  ~CatalogFolder() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  CatalogFolder(const CatalogFolder&) = delete;
  CatalogFolder& operator=(const CatalogFolder&) = delete;

  const std::filesystem::path& path() const { return path_; }
  std::filesystem::path database() const { return path_ / "catalog.db"; }

  /// Names of the files whose bytes contain `needle`.
  std::vector<std::string> FilesHolding(std::string_view needle) const {
    std::vector<std::string> names;
    for (const auto& entry : std::filesystem::recursive_directory_iterator(path_)) {
      if (!entry.is_regular_file()) continue;
      std::ifstream file(entry.path(), std::ios::binary);
      const std::string bytes{std::istreambuf_iterator<char>(file), {}};
      if (bytes.find(needle) != std::string::npos) names.push_back(entry.path().filename());
    }
    return names;
  }

 private:
  std::filesystem::path path_;
};

inline NewFact FactOf(std::string text) {
  NewFact fact;
  fact.fact.text = std::move(text);
  return fact;
}

inline KvKey KeyOf(std::uint8_t first, std::uint8_t second = 0) {
  KvKey key;
  key.bytes[0] = first;
  key.bytes[1] = second;
  key.bytes[15] = 0xA5;
  return key;
}

/// A catalog in a folder of its own, with a clock that stands still until moved.
class CatalogTest : public testing::Test {
 protected:
  void SetUp() override { Open(); }

  CatalogOptions Options() {
    CatalogOptions options;
    options.folder = folder_.path();
    options.clock = [this] { return now_ms_; };
    return options;
  }
  void Open() {
    catalog_.reset();
    auto opened = OpenSqliteCatalog(Options());
    ASSERT_TRUE(opened.ok()) << opened.status().ToString();
    catalog_ = std::move(opened).value();
  }
  ScopeId ScopeOf(const std::string& user, const std::string& tenant = "default") {
    Scope scope;
    scope.tenant = tenant;
    scope.user = user;
    const auto info = catalog_->EnsureScope(scope);
    EXPECT_TRUE(info.ok()) << info.status().ToString();
    return info.ok() ? info->id : 0;
  }
  ScopeInfo InfoOf(ScopeId scope) {
    const auto info = catalog_->GetScope(scope);
    EXPECT_TRUE(info.ok()) << info.status().ToString();
    return info.ok() ? *info : ScopeInfo();
  }
  /// Ids of the facts, in order.
  std::vector<std::string> Add(ScopeId scope, std::vector<NewFact> facts) {
    IngestBatch batch;
    batch.scope_id = scope;
    batch.facts = std::move(facts);
    batch.embedder_id = "embedder";
    return Add(batch);
  }
  std::vector<std::string> Add(const IngestBatch& batch) {
    const auto outcome = catalog_->Ingest(batch);
    EXPECT_TRUE(outcome.ok()) << outcome.status().ToString();
    std::vector<std::string> ids;
    if (outcome.ok()) {
      for (const auto& entry : outcome->facts) ids.push_back(entry.fact_id);
    }
    return ids;
  }
  std::string AddText(ScopeId scope, const std::string& text) {
    const auto ids = Add(scope, {FactOf(text)});
    return ids.empty() ? std::string() : ids[0];
  }
  /// A fact and the one turn that it came from, which says the same.
  std::string AddSaid(ScopeId scope, const std::string& text) {
    IngestBatch batch;
    batch.scope_id = scope;
    Turn turn;
    turn.role = "user";
    turn.content = text;
    batch.turns = {turn};
    NewFact fact = FactOf(text);
    fact.source_turn_indexes = {0};
    batch.facts = {fact};
    const auto ids = Add(batch);
    return ids.empty() ? std::string() : ids[0];
  }
  FactQuery QueryOf(ScopeId scope) {
    FactQuery query;
    query.scopes = {scope};
    return query;
  }
  std::vector<std::string> TextsOf(const FactQuery& query) {
    const auto facts = catalog_->ListFacts(query);
    EXPECT_TRUE(facts.ok()) << facts.status().ToString();
    std::vector<std::string> texts;
    if (facts.ok()) {
      for (const Fact& fact : *facts) texts.push_back(fact.text);
    }
    return texts;
  }
  std::vector<std::string> SearchIds(ScopeId scope, std::string_view query) {
    const auto hits = catalog_->KeywordSearch(std::span(&scope, 1), query, 100);
    EXPECT_TRUE(hits.ok()) << hits.status().ToString();
    std::vector<std::string> ids;
    if (hits.ok()) {
      for (const KeywordHit& hit : *hits) ids.push_back(hit.fact_id);
    }
    return ids;
  }
  /// Records a ready KV block of the fact.
  void AddKv(const std::string& id, KvKey key, std::vector<std::string> saw = {},
             std::int64_t version = 1) {
    const KvRecord record{key, id, version, "encoding", std::move(saw)};
    const auto kept = catalog_->RecordKv(std::span(&record, 1));
    ASSERT_TRUE(kept.ok()) << kept.status().ToString();
    ASSERT_EQ(kept->size(), 1u);
    ASSERT_TRUE(catalog_->MarkKvReady(std::span(&key, 1)).ok());
  }
  bool HasKv(const std::string& id) {
    const auto records = catalog_->GetKvRecords(std::span(&id, 1), "encoding");
    EXPECT_TRUE(records.ok()) << records.status().ToString();
    return records.ok() && (*records)[0].has_value();
  }

  CatalogFolder folder_;
  TimeMs now_ms_ = 1'790'000'000'000;
  std::unique_ptr<Catalog> catalog_;
};

}  // namespace inferscale::test

#endif  // INFERSCALE_TESTS_SUPPORT_CATALOG_FIXTURE_H_
