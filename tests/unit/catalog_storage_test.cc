#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <fstream>

#include <SQLiteCpp/SQLiteCpp.h>
#include <gmock/gmock.h>

#include "catalog/connection.h"
#include "catalog/schema.h"
#include "support/catalog_fixture.h"

namespace inferscale::test {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::SizeIs;

class CatalogStorage : public CatalogTest {
 protected:
  void SetUp() override {}
  Status OpenStatus() { return OpenSqliteCatalog(Options()).status(); }
  void Overwrite(std::string_view bytes) {
    std::ofstream(folder_.database(), std::ios::binary | std::ios::trunc) << bytes;
  }
  std::string Bytes() {
    std::ifstream file(folder_.database(), std::ios::binary);
    return {std::istreambuf_iterator<char>(file), {}};
  }
  /// A closed catalog with some facts in it.
  void Fill(int facts = 300) {
    Open();
    const ScopeId scope = ScopeOf("anna");
    std::vector<NewFact> batch;
    for (int i = 0; i < facts; ++i) batch.push_back(FactOf("fact number " + std::to_string(i)));
    Add(scope, std::move(batch));
    catalog_.reset();
  }
  /// Runs `body` in a process of its own, which must end with 0.
  template <typename Body>
  static void InChild(Body&& body) {
    const pid_t child = fork();
    ASSERT_GE(child, 0);
    if (child == 0) _exit(body());
    int status = 0;
    ASSERT_EQ(waitpid(child, &status, 0), child);
    EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << "status " << status;
  }
};

TEST_F(CatalogStorage, FolderIsPrivateAndMadeWithItsParents) {
  CatalogOptions options = Options();
  options.folder = folder_.path() / "a" / "b";
  auto catalog = OpenSqliteCatalog(options);
  ASSERT_TRUE(catalog.ok()) << catalog.status().ToString();
  EXPECT_EQ(std::filesystem::status(options.folder).permissions(),
            std::filesystem::perms::owner_all);
  EXPECT_EQ(OpenSqliteCatalog(CatalogOptions()).status().code(), StatusCode::kInvalidArgument);
}

TEST_F(CatalogStorage, ASecondOwnerIsRefusedWithThePidOfTheFirst) {
  Open();
  const Status status = OpenStatus();
  EXPECT_EQ(status.code(), StatusCode::kUnavailable);
  EXPECT_THAT(status.message(), HasSubstr(std::to_string(getpid())));
  InChild([&] {
    const auto opened = OpenSqliteCatalog(Options());
    return opened.status().code() == StatusCode::kUnavailable ? 0 : 1;
  });
  catalog_.reset();
  EXPECT_TRUE(OpenStatus().ok());
}

TEST_F(CatalogStorage, MigratesFromVersionOneAndFindsItsFacts) {
  {
    catalog::Connection connection(folder_.database(), catalog::Connection::Access::kCreate);
    ASSERT_TRUE(catalog::Migrate(connection, folder_.database(), 1).ok());
    EXPECT_EQ(connection.database().execAndGet("PRAGMA user_version").getInt(), 1);
    connection.Execute(
        "INSERT INTO scopes(tenant, user, agent, run, app, tag, created_at_ms, updated_at_ms, "
        "facts) "
        "VALUES('default', 'anna', '', '', '', 5, 1, 1, 1)");
    connection.Execute(
        "INSERT INTO facts(id, scope_id, text, equality_hash, name, role, actor_id, metadata, "
        "event_time_ms, created_at_ms, updated_at_ms, expiration_date, superseded_by, version, "
        "load_row) VALUES('f1', 1, 'she moved to 北京', x'00', '', '', '', '{}', 0, 1, 1, '', '', "
        "1, 1)");
  }
  Open();
  EXPECT_EQ(ScopeOf("anna"), 1);
  EXPECT_THAT(SearchIds(1, "北京"), ElementsAre("f1"));
  EXPECT_THAT(*catalog_->FactsWithoutKv("e", 10), SizeIs(1));
  catalog_.reset();
  SQLite::Database database(folder_.database().string());
  EXPECT_EQ(database.execAndGet("PRAGMA user_version").getInt(), catalog::SchemaVersion());
}

TEST_F(CatalogStorage, MigratesFromAnEmptyVersionOne) {
  {
    catalog::Connection connection(folder_.database(), catalog::Connection::Access::kCreate);
    ASSERT_TRUE(catalog::Migrate(connection, folder_.database(), 1).ok());
  }
  Open();
  EXPECT_FALSE(AddText(ScopeOf("anna"), "tea").empty());
}

TEST_F(CatalogStorage, MigratesFromVersionTwoAndRecordsEvents) {
  {
    catalog::Connection connection(folder_.database(), catalog::Connection::Access::kCreate);
    ASSERT_TRUE(catalog::Migrate(connection, folder_.database(), 2).ok());
    connection.Execute(
        "INSERT INTO scopes(tenant, user, agent, run, app, tag, created_at_ms, updated_at_ms) "
        "VALUES('default', 'anna', '', '', '', 5, 1, 1)");
  }
  Open();
  EXPECT_EQ(ScopeOf("anna"), 1);
  EXPECT_EQ(catalog_->GetEvent("e").status().code(), StatusCode::kNotFound);
  ASSERT_TRUE(catalog_->RecordEvent("e", "default", "DELETE_ALL").ok());
  catalog_.reset();
  Open();
  ASSERT_TRUE(catalog_->GetEvent("e").ok());
  EXPECT_EQ(catalog_->GetEvent("e")->kind, "DELETE_ALL");
}

TEST_F(CatalogStorage, ANewerSchemaIsRefusedAndLeftAsItIs) {
  Fill();
  {
    SQLite::Database database(folder_.database().string(), SQLite::OPEN_READWRITE);
    database.exec("PRAGMA user_version = 99");
  }
  const std::string before = Bytes();
  const Status status = OpenStatus();
  EXPECT_EQ(status.code(), StatusCode::kFailedPrecondition);
  EXPECT_THAT(status.message(), HasSubstr("99"));
  EXPECT_THAT(status.message(), HasSubstr("newer"));
  EXPECT_EQ(Bytes(), before);
}

TEST_F(CatalogStorage, AForeignOrEmptyFileIsRefusedAndLeftAsItIs) {
  std::filesystem::permissions(folder_.path(), std::filesystem::perms::owner_all);
  const auto refused = [&] {
    const std::string before = Bytes();
    const Status status = OpenStatus();
    EXPECT_EQ(status.code(), StatusCode::kFailedPrecondition) << status.ToString();
    EXPECT_THAT(status.message(), HasSubstr(folder_.database().string()));
    EXPECT_EQ(Bytes(), before);
  };
  Overwrite("This is a text file, and no database, of more than sixteen bytes.");
  refused();
  Overwrite(std::string(100000, '\xAB'));
  refused();
  Overwrite("");
  refused();
  std::filesystem::remove(folder_.database());
  {
    SQLite::Database other(folder_.database().string(),
                           SQLite::OPEN_READWRITE | SQLite::OPEN_CREATE);
    other.exec("CREATE TABLE recipes(name)");
  }
  refused();
}

TEST_F(CatalogStorage, ATruncatedFileIsAnErrorNotACrash) {
  Fill();
  const std::string whole = Bytes();
  ASSERT_GT(whole.size(), 3 * 4096u);
  for (std::size_t size = 1; size < whole.size();
       size = size < 4096 ? size * 3 : size + 4096 + 511) {
    Overwrite(std::string_view(whole).substr(0, size));
    auto opened = OpenSqliteCatalog(Options());
    if (opened.ok()) {
      const auto scopes = (*opened)->FindScopes(Scope());
      if (scopes.ok() && !scopes->empty()) {
        FactQuery query;
        query.scopes = {scopes->front().id};
        query.limit = 1000;
        EXPECT_FALSE((*opened)->ListFacts(query).ok()) << "all facts from " << size << " bytes";
      }
    } else {
      EXPECT_EQ(opened.status().code(), StatusCode::kFailedPrecondition)
          << size << ": " << opened.status().ToString();
    }
  }
  Overwrite(whole);
  EXPECT_TRUE(OpenStatus().ok());
}

TEST_F(CatalogStorage, DamagedPagesAreReportedAndNeverCrash) {
  Fill();
  const std::string whole = Bytes();
  std::uint32_t state = 12345;
  for (int round = 0; round < 60; ++round) {
    std::string damaged = whole;
    for (int i = 0; i < 40; ++i) {
      state = state * 1664525u + 1013904223u;
      damaged[100 + state % (damaged.size() - 100)] ^= static_cast<char>(1 << (state >> 29));
    }
    Overwrite(damaged);
    std::filesystem::remove(folder_.path() / "catalog.db-wal");
    std::filesystem::remove(folder_.path() / "catalog.db-shm");
    auto opened = OpenSqliteCatalog(Options());
    if (!opened.ok()) continue;
    Catalog& catalog = **opened;
    FactQuery query;
    query.scopes = {1};
    query.limit = 1000;
    (void)catalog.ListFacts(query);
    (void)catalog.MatchingRows(query);
    (void)catalog.KeywordSearch(query.scopes, "fact number", 10);
    (void)catalog.FactsWithoutKv("e", 10);
    IngestBatch batch;
    batch.scope_id = 1;
    batch.facts = {FactOf("something new")};
    (void)catalog.Ingest(batch);
    (void)catalog.DeleteScopes(query.scopes);
  }
}

TEST_F(CatalogStorage, ALogWithoutItsDatabaseIsNotThrownAway) {
  Fill();
  std::filesystem::rename(folder_.database(), folder_.path() / "elsewhere");
  std::ofstream(folder_.path() / "catalog.db-wal") << "log";
  const Status status = OpenStatus();
  EXPECT_EQ(status.code(), StatusCode::kFailedPrecondition);
  EXPECT_THAT(status.message(), HasSubstr("-wal"));
}

TEST_F(CatalogStorage, AnUnfinishedCreationIsStartedOver) {
  std::ofstream(folder_.path() / "catalog.db.new") << "half a header";
  Open();
  EXPECT_FALSE(AddText(ScopeOf("anna"), "tea").empty());
  EXPECT_FALSE(std::filesystem::exists(folder_.path() / "catalog.db.new"));
}

TEST_F(CatalogStorage, AReadOnlyFolderIsRefused) {
  Fill();
  namespace fs = std::filesystem;
  for (const auto& entry : fs::directory_iterator(folder_.path())) {
    fs::permissions(entry.path(), fs::perms::owner_read | fs::perms::others_read);
  }
  fs::permissions(folder_.path(), fs::perms::owner_read | fs::perms::owner_exec |
                                      fs::perms::others_read | fs::perms::others_exec);
  InChild([&] {
    // Root may write anything: the child becomes somebody else.
    if (getuid() == 0 && setuid(65534) != 0) return 2;
    const Status status = OpenStatus();
    return status.code() == StatusCode::kFailedPrecondition ? 0 : 1;
  });
  fs::permissions(folder_.path(), fs::perms::owner_all);
}

TEST_F(CatalogStorage, AFullDiskChangesNothingAndPasses) {
  Open();
  const ScopeId scope = ScopeOf("anna");
  AddText(scope, "before");
  InChild([&] {
    catalog_.release();  // The parent's; a child must not touch its connections.
    CatalogFolder folder;
    CatalogOptions options;
    options.folder = folder.path();
    auto opened = OpenSqliteCatalog(options);
    if (!opened.ok()) return 10;
    Catalog& catalog = **opened;
    Scope owner;
    owner.user = "anna";
    IngestBatch batch;
    batch.scope_id = catalog.EnsureScope(owner)->id;
    batch.facts = {FactOf("before")};
    if (!catalog.Ingest(batch).ok()) return 11;

    std::signal(SIGXFSZ, SIG_IGN);
    rlimit limit{};
    getrlimit(RLIMIT_FSIZE, &limit);
    const rlim_t unlimited = limit.rlim_cur;
    limit.rlim_cur = 600 * 1024;
    setrlimit(RLIMIT_FSIZE, &limit);
    batch.facts = {FactOf(std::string(4 << 20, 'x') + " big")};
    const Status full = catalog.Ingest(batch).status();
    if (full.code() != StatusCode::kResourceExhausted) {
      fprintf(stderr, "%s\n", full.ToString().c_str());
      return 12;
    }
    if (full.message().find("catalog.db") == std::string::npos) return 13;
    FactQuery query;
    query.scopes = {batch.scope_id};
    if (*catalog.CountFacts(query) != 1) return 14;

    limit.rlim_cur = unlimited;
    setrlimit(RLIMIT_FSIZE, &limit);
    const Status again = catalog.Ingest(batch).status();
    if (!again.ok()) {
      fprintf(stderr, "%s\n", again.ToString().c_str());
      return 15;
    }
    if (*catalog.CountFacts(query) != 2) return 16;
    return 0;
  });
}

}  // namespace
}  // namespace inferscale::test
