#include <fcntl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <cstdio>
#include <random>
#include <set>
#include <thread>

#include <SQLiteCpp/SQLiteCpp.h>
#include <gmock/gmock.h>

#include "support/catalog_fixture.h"

namespace inferscale::test {
namespace {

constexpr int kKills = 25;

/// Adds batches for ever and writes the id of each acknowledged fact to `pipe`, 36 bytes each.
/// Every fifth batch is deleted again, every twentieth fact forgotten; those are written with a '-'
/// in front.
[[noreturn]] void IngestUntilKilled(const std::filesystem::path& folder, int round, int pipe) {
  const auto report = [&](char sign, const std::string& id) {
    const std::string line = sign + id + "\n";
    if (write(pipe, line.data(), line.size()) != static_cast<ssize_t>(line.size())) _exit(3);
  };
  CatalogOptions options;
  options.folder = folder;
  auto opened = OpenSqliteCatalog(options);
  if (!opened.ok()) {
    std::fprintf(stderr, "%s\n", opened.status().ToString().c_str());
    _exit(1);
  }
  Catalog& catalog = **opened;
  Scope owner;
  owner.user = "anna";
  const auto scope = catalog.EnsureScope(owner);
  if (!scope.ok()) _exit(1);
  report('!', std::string(36, '.'));  // started
  for (int i = 0;; ++i) {
    IngestBatch batch;
    batch.scope_id = scope->id;
    for (int j = 0; j < 3; ++j) {
      NewFact fact = FactOf("round " + std::to_string(round) + " batch " + std::to_string(i) +
                            " fact " + std::to_string(j));
      batch.turns.push_back(Turn{0, "user", "", fact.fact.text, 0});
      fact.source_turn_indexes = {j};
      batch.facts.push_back(fact);
    }
    batch.extract_later = true;
    const auto outcome = catalog.Ingest(batch);
    if (!outcome.ok()) _exit(1);
    for (const auto& entry : outcome->facts) report('+', entry.fact_id);
    if (i % 5 == 4) {
      report('?', outcome->facts[0].fact_id);  // from here on it may be there or not
      if (!catalog.DeleteFact(outcome->facts[0].fact_id).ok()) _exit(1);
      report('-', outcome->facts[0].fact_id);
    }
    if (i % 20 == 19) {
      report('?', outcome->facts[1].fact_id);
      if (!catalog.ForgetFact(outcome->facts[1].fact_id).ok()) _exit(1);
      report('-', outcome->facts[1].fact_id);
    }
  }
}

class CatalogCrash : public testing::Test {
 protected:
  /// What a child said before it was killed.
  struct Said {
    bool started = false;
    std::vector<std::string> kept, removed;
  };

  Said RunAndKill(int round, std::chrono::microseconds after) {
    int ends[2];
    Said said;
    if (pipe(ends) != 0) {
      ADD_FAILURE() << "no pipe";
      return said;
    }
    const pid_t child = fork();
    if (child == 0) {
      close(ends[0]);
      IngestUntilKilled(folder_.path(), round, ends[1]);
    }
    close(ends[1]);
    std::string text;
    std::thread reader([&] {
      char buffer[4096];
      for (ssize_t count = 0; (count = read(ends[0], buffer, sizeof(buffer))) > 0;) {
        text.append(buffer, static_cast<std::size_t>(count));
      }
    });
    std::this_thread::sleep_for(after);
    kill(child, SIGKILL);
    int status = 0;
    waitpid(child, &status, 0);
    EXPECT_TRUE(WIFSIGNALED(status)) << "the child failed by itself: " << status;
    reader.join();
    close(ends[0]);
    Parse(text, said);
    return said;
  }

  static void Parse(const std::string& text, Said& said) {
    std::set<std::string> kept;
    constexpr std::size_t kLine = 38;
    for (std::size_t at = 0; at + kLine <= text.size(); at += kLine) {
      const std::string id = text.substr(at + 1, kLine - 2);
      switch (text[at]) {
        case '!':
          said.started = true;
          break;
        case '+':
          kept.insert(id);
          break;
        case '-':
          said.removed.push_back(id);
          [[fallthrough]];
        default:
          kept.erase(id);
      }
    }
    said.kept.assign(kept.begin(), kept.end());
  }

  void CheckDatabase() {
    SQLite::Database database((folder_.path() / "catalog.db").string(), SQLite::OPEN_READWRITE);
    EXPECT_EQ(database.execAndGet("PRAGMA integrity_check").getString(), "ok");
    EXPECT_NO_THROW(
        database.exec("INSERT INTO keywords(keywords, rank) VALUES('integrity-check', 1)"));
    SQLite::Statement foreign_keys(database, "PRAGMA foreign_key_check");
    EXPECT_FALSE(foreign_keys.executeStep());
    EXPECT_EQ(database.execAndGet("SELECT count(*) FROM facts").getInt(),
              database.execAndGet("SELECT count(*) FROM keywords").getInt());
    EXPECT_EQ(database.execAndGet("SELECT count(*) FROM facts").getInt(),
              database.execAndGet("SELECT ifnull(sum(facts), 0) FROM scopes").getInt());
  }

  CatalogFolder folder_;
};

TEST_F(CatalogCrash, EverythingAcknowledgedIsThereAfterKills) {
  std::mt19937 random(20261129);
  std::uniform_int_distribution<int> delay_us(500, 150'000);
  std::size_t started = 0, acknowledged = 0;
  for (int round = 0; round < kKills; ++round) {
    const Said said = RunAndKill(round, std::chrono::microseconds(delay_us(random)));
    started += said.started ? 1 : 0;
    acknowledged += said.kept.size();
    {
      CatalogOptions options;
      options.folder = folder_.path();
      auto opened = OpenSqliteCatalog(options);
      ASSERT_TRUE(opened.ok()) << "round " << round << ": " << opened.status().ToString();
      const auto facts = (*opened)->GetFacts(said.kept);
      ASSERT_TRUE(facts.ok()) << facts.status().ToString();
      EXPECT_EQ(facts->size(), said.kept.size()) << "round " << round;
      for (const Fact& fact : *facts) EXPECT_EQ(fact.source_turns.size(), 1u);
      const auto removed = (*opened)->GetFacts(said.removed);
      ASSERT_TRUE(removed.ok());
      EXPECT_TRUE(removed->empty()) << "a deleted fact came back";
      if (said.started) {
        const auto jobs = (*opened)->PendingJobs("extract", 1'000'000);
        ASSERT_TRUE(jobs.ok());
        EXPECT_GE(jobs->size() * 3, said.kept.size() > 3 ? said.kept.size() / 2 : 0);
      }
    }
    CheckDatabase();
    if (HasFatalFailure()) return;
  }
  EXPECT_GT(started, 5u) << "hardly any child lived long enough: the test shows nothing";
  EXPECT_GT(acknowledged, 100u);
}

}  // namespace
}  // namespace inferscale::test
