#include <fcntl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <map>
#include <random>
#include <set>
#include <thread>

#include <SQLiteCpp/SQLiteCpp.h>
#include <gmock/gmock.h>

#include "support/service_fixture.h"

namespace inferscale::testing {
namespace {

constexpr int kKills = 18;

/// A child that writes, encodes, chats and deletes for ever, and is killed. This process loads no
/// model before the last child is gone: threads do not survive a fork.
class ServiceCrash : public ServiceTest {
 protected:
  /// Says on `pipe` what was answered: sign, id and line break.
  [[noreturn]] void WorkUntilKilled(int round, int pipe) {
    const auto say = [&](char sign, const std::string& id) {
      const std::string line = sign + id + "\n";
      if (write(pipe, line.data(), line.size()) != static_cast<ssize_t>(line.size())) _exit(3);
    };
    Open();
    if (service_ == nullptr) _exit(4);
    std::mt19937 random(static_cast<unsigned>(round) + 100);
    std::vector<std::string> ids;
    say('!', "");
    for (int i = 0;; ++i) {
      AddRequest request;
      request.scope = User(i % 3 == 0 ? "bob" : "ada");
      for (int j = 0; j < 4; ++j) {
        request.turns.push_back({0, "user", "",
                                 "round " + std::to_string(round) + " item " + std::to_string(i) +
                                     " part " + std::to_string(j),
                                 0});
      }
      const Result<AddOutcome> added = service_->Add(request);
      if (!added.ok()) _exit(5);
      for (const Fact& fact : added->facts) {
        say('+', fact.id);
        ids.push_back(fact.id);
      }
      if (i % 2 == 0) {
        ChatRequest chat = Ask(request.scope, "which item");
        chat.sampling.max_tokens = 2;
        chat.remember = i % 4 == 0;
        if (!service_->ChatBlocking(chat).ok()) _exit(6);
      }
      const std::string victim = ids[random() % ids.size()];
      say('?', victim);
      Status status;
      if (i % 5 == 4) {
        status = service_->Forget(victim);
      } else if (i % 5 == 3) {
        FactUpdate update;
        update.text = "round " + std::to_string(round) + " item " + std::to_string(i) + " changed";
        status = service_->Update(victim, update).status();
        if (status.ok()) say('+', victim);
      } else {
        status = service_->Delete(victim);
      }
      if (!status.ok()) _exit(7);
      if (i % 5 != 3) {
        say('-', victim);
        std::erase(ids, victim);
      }
    }
  }

  void RunAndKill(int round, std::chrono::microseconds after) {
    int ends[2];
    ASSERT_EQ(pipe(ends), 0);
    const pid_t child = fork();
    if (child == 0) {
      close(ends[0]);
      WorkUntilKilled(round, ends[1]);
    }
    close(ends[1]);
    std::string text;
    std::promise<void> started;
    std::thread reader([&] {
      char buffer[4096];
      bool first = true;
      for (ssize_t count = 0; (count = read(ends[0], buffer, sizeof(buffer))) > 0;) {
        text.append(buffer, static_cast<std::size_t>(count));
        if (std::exchange(first, false)) started.set_value();
      }
      if (first) started.set_value();
    });
    // Every fourth child is killed while it starts, which includes finishing what the last one
    // left.
    if (round % 4 != 3) started.get_future().wait();
    std::this_thread::sleep_for(after);
    kill(child, SIGKILL);
    int status = 0;
    waitpid(child, &status, 0);
    reader.join();
    close(ends[0]);
    ASSERT_TRUE(WIFSIGNALED(status)) << "the child ended by itself: " << WEXITSTATUS(status);
    for (std::size_t begin = 0, end; (end = text.find('\n', begin)) != std::string::npos;
         begin = end + 1) {
      const std::string id = text.substr(begin + 1, end - begin - 1);
      if (text[begin] == '!') ++started_;
      if (text[begin] == '+') kept_.insert(id);
      if (text[begin] == '?') kept_.erase(id);
      if (text[begin] == '-') removed_.insert(id);
    }
  }

  /// Keys of all KV records, and those still to be erased.
  std::pair<std::set<std::string>, std::set<std::string>> KnownKeys() {
    std::set<std::string> recorded, erased;
    SQLite::Database database((data() / "catalog.db").string(), SQLite::OPEN_READONLY);
    SQLite::Statement records(
        database, "SELECT lower(hex(key)) FROM kv_records JOIN facts ON facts.row = fact_row");
    while (records.executeStep()) recorded.insert(records.getColumn(0).getString());
    SQLite::Statement erasures(database, "SELECT lower(hex(keys)) FROM erasures");
    while (erasures.executeStep()) {
      const std::string keys = erasures.getColumn(0).getString();
      for (std::size_t at = 0; at + 32 <= keys.size(); at += 32) erased.insert(keys.substr(at, 32));
    }
    return {recorded, erased};
  }

  std::vector<std::string> FactBlockNames() {
    std::vector<std::string> names;
    for (const auto& path : BlockFiles(data())) {
      const bool prefix = path.parent_path().filename() == std::string(16, '0');
      if (!prefix) names.push_back(path.stem());
    }
    return names;
  }

  int started_ = 0;
  std::set<std::string> kept_, removed_;
};

TEST_F(ServiceCrash, WhatWasAnsweredLastsAndNoBlockIsLeftWithoutAFact) {
  std::mt19937 random(20261129);
  std::size_t blocks_seen = 0;
  // A busy machine gets little done between two kills: then there are more of them.
  const auto enough = [&] {
    return started_ > kKills / 2 && kept_.size() > 50 && removed_.size() > 5 && blocks_seen > 50;
  };
  for (int round = 0; round < kKills || (!enough() && round < 10 * kKills); ++round) {
    ASSERT_NO_FATAL_FAILURE(RunAndKill(round, std::chrono::microseconds(random() % 350'000)));
    const std::filesystem::path database = data() / "catalog.db";
    if (!std::filesystem::exists(database)) continue;
    const auto [recorded, erased] = KnownKeys();
    for (const std::string& name : FactBlockNames()) {
      ++blocks_seen;
      EXPECT_TRUE(recorded.contains(name) || erased.contains(name))
          << "round " << round << ": nothing will ever erase block " << name;
    }
  }
  EXPECT_TRUE(enough()) << started_ << " started, " << kept_.size() << " kept, " << removed_.size()
                        << " removed, " << blocks_seen << " blocks seen";

  Open();
  for (const std::string& id : kept_) EXPECT_TRUE(service_->Get(id).ok()) << id;
  for (const std::string& id : removed_) {
    EXPECT_EQ(service_->Get(id).status().code(), StatusCode::kNotFound) << id << " came back";
  }
  ASSERT_NO_FATAL_FAILURE(WaitIdle());
  const PendingWork pending = *service_->Pending();
  EXPECT_EQ(pending.encodings + pending.erasures + pending.embeddings + pending.extractions, 0);
  const auto facts = service_->List(User("ada"), 0, 10'000);
  ASSERT_TRUE(facts.ok());
  for (const Fact& fact : *facts) EXPECT_FALSE(BlockPath(BlockName(fact.id)).empty()) << fact.text;
  const ChatReport report = Chat(User("ada"), "which item");
  EXPECT_GT(report.generation.injected_tokens, 100);
  Close();
  const auto [recorded, erased] = KnownKeys();
  EXPECT_TRUE(erased.empty());
  for (const std::string& name : FactBlockNames()) EXPECT_TRUE(recorded.contains(name)) << name;
}

}  // namespace
}  // namespace inferscale::testing
