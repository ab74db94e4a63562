// Copies of a catalog, the log of what was erased, and erasing it again in an older copy.

#include "catalog/backup.h"

#include <algorithm>
#include <fstream>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/files.h"
#include "support/catalog_fixture.h"

namespace inferscale::catalog {
namespace {

using ::testing::IsEmpty;
using ::testing::SizeIs;

class CatalogBackup : public ::testing::Test {
 protected:
  CatalogBackup() { Open(); }

  void Open() {
    catalog_.reset();
    CatalogOptions options;
    options.folder = folder_.path();
    Result<std::unique_ptr<Catalog>> catalog = OpenSqliteCatalog(std::move(options));
    ASSERT_TRUE(catalog.ok()) << catalog.status().ToString();
    catalog_ = *std::move(catalog);
  }
  ScopeId Owner(const std::string& user) {
    Scope scope;
    scope.user = user;
    return catalog_->EnsureScope(scope)->id;
  }
  /// \param extract_later the turn waits, and there is no fact yet
  std::string Add(const std::string& user, const std::string& text, bool extract_later = false) {
    IngestBatch batch;
    batch.scope_id = Owner(user);
    batch.turns.push_back({0, "user", "", text, 0});
    batch.extract_later = extract_later;
    if (!extract_later) {
      NewFact fact;
      fact.fact.text = text;
      fact.source_turn_indexes = {0};
      batch.facts.push_back(std::move(fact));
    }
    const Result<IngestOutcome> outcome = catalog_->Ingest(batch);
    EXPECT_TRUE(outcome.ok()) << outcome.status().ToString();
    return extract_later || !outcome.ok() ? "" : outcome->facts[0].fact_id;
  }
  /// Copies the catalog and its log into a folder of their own.
  std::filesystem::path Copy(const std::string& name) {
    const std::filesystem::path folder = folder_.path() / name;
    EXPECT_TRUE(CreatePrivateFolder(folder).ok());
    const Status copied = CopyCatalog(*catalog_, folder / kCatalogName);
    EXPECT_TRUE(copied.ok()) << copied.ToString();
    const std::filesystem::path log = folder_.path() / kErasureLogName;
    if (std::filesystem::exists(log)) std::filesystem::copy_file(log, folder / kErasureLogName);
    return folder;
  }
  /// Brings the copy up to what the live folder's log says, and opens it.
  std::unique_ptr<Catalog> Restore(const std::filesystem::path& copy) {
    const auto now = ReadErasureLog(folder_.path() / kErasureLogName);
    const auto then = ReadErasureLog(copy / kErasureLogName);
    EXPECT_TRUE(now.ok() && then.ok());
    const Status applied = ReapplyErasures(copy, EntriesBeyond(*now, *then));
    EXPECT_TRUE(applied.ok()) << applied.ToString();
    CatalogOptions options;
    options.folder = copy;
    Result<std::unique_ptr<Catalog>> opened = OpenSqliteCatalog(std::move(options));
    EXPECT_TRUE(opened.ok()) << opened.status().ToString();
    return opened.ok() ? *std::move(opened) : nullptr;
  }
  static std::vector<std::string> Texts(Catalog& catalog) {
    FactQuery query;
    for (const ScopeInfo& scope : *catalog.FindScopes(Scope())) query.scopes.push_back(scope.id);
    std::vector<std::string> texts;
    for (const Fact& fact : *catalog.ListFacts(query)) texts.push_back(fact.text);
    std::sort(texts.begin(), texts.end());
    return texts;
  }
  static bool FilesHold(const std::filesystem::path& folder, const std::string& text) {
    for (const auto& entry : std::filesystem::recursive_directory_iterator(folder)) {
      if (!entry.is_regular_file()) continue;
      std::ifstream file(entry.path(), std::ios::binary);
      const std::string content((std::istreambuf_iterator<char>(file)), {});
      if (content.find(text) != std::string::npos) return true;
    }
    return false;
  }

  test::CatalogFolder folder_;
  std::unique_ptr<Catalog> catalog_;
};

TEST_F(CatalogBackup, WhatWasErasedSinceDoesNotComeBack) {
  Add("anna", "Anna keeps alpacas");
  const std::string deleted = Add("anna", "Anna owes Ben money");
  const std::string forgotten = Add("anna", "Anna's code is quetzal");
  Add("ben", "Ben bakes bread");
  Add("carla", "Carla carves cork");
  const std::filesystem::path copy = Copy("copy");

  ASSERT_TRUE(catalog_->DeleteFact(deleted).ok());
  ASSERT_TRUE(catalog_->ForgetFact(forgotten).ok());
  const ScopeId ben = Owner("ben"), carla = Owner("carla");
  ASSERT_TRUE(catalog_->DeleteScopes(std::span(&ben, 1)).ok());
  ASSERT_TRUE(catalog_->ForgetScopes(std::span(&carla, 1)).ok());

  const auto restored = Restore(copy);
  EXPECT_EQ(Texts(*restored), std::vector<std::string>{"Anna keeps alpacas"});
  EXPECT_THAT(*restored->History(deleted), SizeIs(2)) << "a delete keeps its history";
  EXPECT_THAT(*restored->PendingErasures(), ::testing::Not(IsEmpty())) << "its KV is to go, too";
  EXPECT_FALSE(FilesHold(copy, "quetzal"));
  EXPECT_FALSE(FilesHold(copy, "carves cork"));
}

TEST_F(CatalogBackup, ATurnThatHadNoFactYetIsNotExtractedAgain) {
  for (const bool forget : {false, true}) {
    const std::string text = forget ? "Dora's pin is okapi" : "Dora dreams of drums";
    Add("dora", text, /*extract_later=*/true);
    const std::filesystem::path copy = Copy(forget ? "forget" : "delete");
    // The fact is made, and erased, after the copy.
    const std::vector<Job> jobs = *catalog_->PendingJobs("extract", 10);
    ASSERT_THAT(jobs, SizeIs(1));
    IngestBatch batch;
    batch.scope_id = jobs[0].scope_id;
    batch.completes_job = jobs[0].id;
    NewFact fact;
    fact.fact.text = text;
    fact.fact.source_turns = jobs[0].turns;
    batch.facts.push_back(std::move(fact));
    const Result<IngestOutcome> made = catalog_->Ingest(batch);
    ASSERT_TRUE(made.ok()) << made.status().ToString();
    const std::string id = made->facts[0].fact_id;
    ASSERT_TRUE((forget ? catalog_->ForgetFact(id) : catalog_->DeleteFact(id)).ok());

    const auto restored = Restore(copy);
    EXPECT_THAT(*restored->PendingJobs("extract", 10), IsEmpty()) << text;
    EXPECT_THAT(Texts(*restored), IsEmpty());
    if (forget) EXPECT_FALSE(FilesHold(copy, "okapi"));
  }
}

TEST_F(CatalogBackup, ErasuresFromBeforeTheCopyTouchNothing) {
  const std::string old = Add("emil", "Emil eats eels");
  ASSERT_TRUE(catalog_->DeleteFact(old).ok());
  const ScopeId emil = Owner("emil");
  ASSERT_TRUE(catalog_->DeleteScopes(std::span(&emil, 1)).ok());
  Add("emil", "Emil eats eels");
  const auto restored = Restore(Copy("copy"));
  EXPECT_EQ(Texts(*restored), std::vector<std::string>{"Emil eats eels"});
}

TEST_F(CatalogBackup, TheLogHoldsNoTextAndNoName) {
  const std::string id = Add("friedrich", "Fritz fishes");
  ASSERT_TRUE(catalog_->DeleteFact(id).ok());
  const ScopeId scope = Owner("friedrich");
  ASSERT_TRUE(catalog_->ForgetScopes(std::span(&scope, 1)).ok());
  const Result<std::string> log = ReadTextFile(folder_.path() / kErasureLogName, 1 << 20);
  ASSERT_TRUE(log.ok());
  for (const std::string& word : {std::string("Fritz"), std::string("friedrich"), id})
    EXPECT_EQ(log->find(word), std::string::npos) << *log;
  EXPECT_THAT(*ReadErasureLog(folder_.path() / kErasureLogName), SizeIs(2));
}

TEST_F(CatalogBackup, AFailedErasureSaysNothing) {
  EXPECT_FALSE(catalog_->DeleteFact("no such id").ok());
  EXPECT_FALSE(std::filesystem::exists(folder_.path() / kErasureLogName));
}

TEST_F(CatalogBackup, ATornLineIsLeftOutAndOverwritten) {
  const std::string one = Add("gita", "Gita grows garlic"), two = Add("gita", "Gita grows ginger");
  ASSERT_TRUE(catalog_->DeleteFact(one).ok());
  catalog_.reset();
  const std::filesystem::path log = folder_.path() / kErasureLogName;
  std::ofstream(log, std::ios::app) << R"({"id":"torn","at":1,"ki)";
  EXPECT_THAT(*ReadErasureLog(log), SizeIs(1));
  Open();
  ASSERT_TRUE(catalog_->DeleteFact(two).ok());
  const auto entries = ReadErasureLog(log);
  ASSERT_TRUE(entries.ok()) << entries.status().ToString();
  EXPECT_THAT(*entries, SizeIs(2));
  std::ofstream(log, std::ios::app) << "not a line\n";
  EXPECT_EQ(ReadErasureLog(log).status().code(), StatusCode::kDataLoss);
}

TEST_F(CatalogBackup, AnUnfinishedRestoreIsRemoved) {
  const std::filesystem::path left = folder_.path() / kRestoreFolder;
  ASSERT_TRUE(CreatePrivateFolder(left).ok());
  std::ofstream(left / "catalog.db") << "half";
  Open();
  EXPECT_FALSE(std::filesystem::exists(left));
}

}  // namespace
}  // namespace inferscale::catalog
