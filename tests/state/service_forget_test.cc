#include <algorithm>
#include <future>
#include <random>
#include <thread>

#include <gmock/gmock.h>

#include "encode/recipe.h"
#include "support/service_fixture.h"

namespace inferscale::testing {
namespace {

using ::testing::IsEmpty;
using ::testing::Not;

/// Words that stand in no other text.
constexpr const char* kSecret = "vexqorl blimzantu grewpkid zorbquen";
constexpr const char* kSecretBefore = "qwyndel fropvash timbrexo plukzaff";
constexpr const char* kSecretCjk = "麒麟藏在瑯琊閣的鸚鵡螺櫃裡";
constexpr const char* kDeleted = "ujvenka drosphil maktuvia";

class ServiceForget : public ServiceTest {
 protected:
  /// The text, its token ids and what else names the fact.
  std::vector<std::string> Traces(const std::string& text) {
    std::vector<std::string> traces = TokenRuns(*engine_, text);
    traces.push_back(text);
    return traces;
  }
  void Append(std::vector<std::string>& traces, std::vector<std::string> more) {
    traces.insert(traces.end(), more.begin(), more.end());
  }

  void ExpectNoTrace(const std::vector<std::string>& traces) {
    EXPECT_THAT(FilesWith(data(), traces), IsEmpty()) << "while the folder is open";
  }
};

TEST_F(ServiceForget, AForgottenFactLeavesNoByteUnderAnyRecipeOrCodec) {
  codec_ = KvCodec::kF16;
  Open();
  const Fact secret = Add(User("ada"), kSecretBefore);
  const Fact cjk = Add(User("ada"), kSecretCjk);
  const Fact kept = Add(User("ada"), "the kettle is made of copper");
  const Fact others = Add(User("bob"), "the bicycle is painted yellow");
  ASSERT_NO_FATAL_FAILURE(WaitIdle());
  std::vector<std::string> traces = Traces(kSecretBefore);
  Append(traces, {BlockName(secret.id)});
  EXPECT_THAT(FilesWith(data(), TokenRuns(*engine_, kSecretBefore)), Not(IsEmpty()))
      << "the search would not find ids";
  EXPECT_THAT(FilesWith(data(), {kSecretBefore}), Not(IsEmpty()));

  // Another recipe and codec: a second block of the same fact.
  recipe_ = "header";
  codec_ = KvCodec::kInt4;
  Open();
  ASSERT_NO_FATAL_FAILURE(WaitIdle());
  EXPECT_GE(BlockFiles(data()).size(), 8u);
  FactUpdate update;
  update.text = kSecret;
  ASSERT_TRUE(service_->Update(secret.id, update).ok());
  ASSERT_NO_FATAL_FAILURE(WaitIdle());
  Append(traces, Traces(kSecret));
  Append(traces, Traces(kSecretCjk));
  Append(traces, {BlockName(secret.id), BlockName(cjk.id)});
  Chat(User("ada"), std::string("what about ") + kSecret);
  EXPECT_TRUE(PromptHas(kSecret));
  EXPECT_THAT(FilesWith(data(), Traces(kSecretCjk)), Not(IsEmpty()));

  recipe_ = "window:3";  // its blocks saw the turns before them
  Open();
  ASSERT_NO_FATAL_FAILURE(WaitIdle());
  Append(traces, {BlockName(secret.id), BlockName(cjk.id), BlockName(kept.id)});
  ASSERT_TRUE(service_->Forget(secret.id).ok());
  ASSERT_TRUE(service_->Forget(cjk.id).ok());
  ExpectNoTrace(traces);
  EXPECT_EQ(service_->Get(secret.id).status().code(), StatusCode::kNotFound);
  EXPECT_TRUE(service_->History(secret.id)->empty());

  ASSERT_NO_FATAL_FAILURE(WaitIdle());
  ExpectNoTrace(traces);
  const ChatReport report = Chat(User("ada"), "what is the kettle made of");
  EXPECT_TRUE(PromptHas("the kettle is made of copper"));
  EXPECT_GT(report.generation.injected_tokens, 0);
  Chat(User("bob"), "which colour has the bicycle");
  EXPECT_TRUE(PromptHas("the bicycle is painted yellow"));
  Close();
  EXPECT_THAT(FilesWith(data(), traces), IsEmpty()) << "after closing";
}

TEST_F(ServiceForget, AForgottenOwnerLeavesNoByteAndOthersAreServed) {
  Open();
  std::vector<std::string> traces;
  for (const char* text : {kSecret, kSecretBefore, kSecretCjk, kDeleted}) {
    Append(traces, Traces(text));
    const Fact fact = Add(User("wilhelmina-qz", "agent-zv"), text);
    ASSERT_NO_FATAL_FAILURE(WaitIdle());
    Append(traces, {BlockName(fact.id), fact.id});
    if (text == kDeleted) {
      ASSERT_TRUE(service_->Delete(fact.id).ok());
    }
  }
  const Fact others = Add(User("bob"), "the bicycle is painted yellow");
  ASSERT_NO_FATAL_FAILURE(WaitIdle());
  ChatRequest request = Ask(User("wilhelmina-qz", "agent-zv"), kSecret);
  request.remember = true;
  Chat(request);
  EXPECT_TRUE(PromptHas(kSecret));
  ASSERT_NO_FATAL_FAILURE(WaitIdle());
  Append(traces, {"wilhelmina-qz", "agent-zv"});
  EXPECT_THAT(FilesWith(data(), {"wilhelmina-qz"}), Not(IsEmpty()));

  const Result<std::int64_t> forgotten = service_->ForgetAll(User("wilhelmina-qz"));
  ASSERT_TRUE(forgotten.ok()) << forgotten.status().ToString();
  EXPECT_GE(*forgotten, 3);
  ExpectNoTrace(traces);
  const ChatReport report = Chat(User("bob"), "which colour has the bicycle");
  EXPECT_TRUE(PromptHas("the bicycle is painted yellow"));
  EXPECT_GT(report.generation.injected_tokens, 0);
  EXPECT_EQ(*service_->Count(User("wilhelmina-qz")), 0);
  Open();
  ASSERT_NO_FATAL_FAILURE(WaitIdle());
  ExpectNoTrace(traces);
}

TEST_F(ServiceForget, ADeletedFactIsKeptByItsHistoryOnly) {
  Open();
  const Fact fact = Add(User("ada"), kDeleted);
  Add(User("ada"), "the kettle is made of copper");
  ASSERT_NO_FATAL_FAILURE(WaitIdle());
  const std::string block = BlockName(fact.id);
  Chat(User("ada"), kDeleted);
  ASSERT_TRUE(PromptHas(std::string("Ada: ") + kDeleted));
  ASSERT_TRUE(service_->Delete(fact.id).ok());
  EXPECT_TRUE(BlockPath(block).empty());
  EXPECT_THAT(FilesWith(data() / "kv", TokenRuns(*engine_, kDeleted)), IsEmpty());
  const Result<std::vector<SearchHit>> hits = service_->Search(User("ada"), kDeleted, 10);
  ASSERT_TRUE(hits.ok());
  for (const SearchHit& hit : *hits) EXPECT_NE(hit.fact.text, kDeleted);
  Chat(User("ada"), "what do you know");
  EXPECT_FALSE(PromptHas(kDeleted));
  ASSERT_NO_FATAL_FAILURE(WaitIdle());
  EXPECT_TRUE(BlockPath(block).empty());
  const auto history = service_->History(fact.id);
  ASSERT_TRUE(history.ok());
  EXPECT_EQ(history->size(), 2u);
  EXPECT_EQ(history->front().new_text.value_or("") + history->back().old_text.value_or(""),
            std::string(kDeleted) + kDeleted);

  // Forgetting it later takes that too.
  ASSERT_TRUE(service_->Forget(fact.id).ok());
  ExpectNoTrace(Traces(kDeleted));
}

// The same tokens behind the same context have the same key.
TEST_F(ServiceForget, AnEqualFactAddedDuringAnErasureIsEncodedAgain) {
  background_ = false;
  Open();
  const std::string text = "the kettle is made of copper";
  Fact first = Add(User("ada"), text);
  ASSERT_NO_FATAL_FAILURE(WaitIdle());
  const std::string block = BlockName(first.id);
  Fact second;
  engine_->BeforeNextErase([&] {
    second = Add(User("ada"), text);
    WaitIdle();
  });
  ASSERT_TRUE(service_->Delete(first.id).ok());
  ASSERT_NO_FATAL_FAILURE(WaitIdle());
  EXPECT_EQ(BlockName(second.id), block);
  EXPECT_FALSE(BlockPath(block).empty()) << "ready, and nowhere";

  // Its block is made before the erasure, and would be marked as ready behind it.
  std::promise<void> made, erased;
  std::thread worker;
  engine_->BeforeNextOutcome([&] {
    made.set_value();
    erased.get_future().wait();
  });
  engine_->BeforeNextErase([&] {
    first = Add(User("ada"), text);
    worker = std::thread([&] { WaitIdle(); });
    made.get_future().wait();
  });
  ASSERT_TRUE(service_->Delete(second.id).ok());
  erased.set_value();
  worker.join();
  EXPECT_EQ(BlockName(first.id), block);
  EXPECT_FALSE(BlockPath(block).empty()) << "ready, and nowhere";
}

TEST_F(ServiceForget, EncodingsUnderWayBringNothingBackAndTheOthersAreFinished) {
  Open();
  const Fact warm = Add(User("ada"), "the kettle is made of copper");
  ASSERT_NO_FATAL_FAILURE(WaitIdle());
  for (const bool forget : {true, false}) {
    std::vector<NewFact> facts(30);
    for (std::size_t i = 0; i < facts.size(); ++i) {
      facts[i].fact.text = std::string(forget ? "first" : "second") + " list entry " +
                           std::to_string(i) + " is on the shelf";
    }
    facts[20].fact.text = forget ? kSecret : kDeleted;
    std::atomic<int> failures{0};
    std::string id;
    std::atomic<bool> known{false};
    engine_->BeforeNextEncode([&] {
      while (!known) std::this_thread::yield();
      const Status status = forget ? service_->Forget(id) : service_->Delete(id);
      failures += status.ok() ? 0 : 1;
    });
    const Result<IngestOutcome> added = service_->AddFacts(User("ada"), {}, facts);
    ASSERT_TRUE(added.ok()) << added.status().ToString();
    id = added->facts[20].fact_id;
    known = true;
    ASSERT_NO_FATAL_FAILURE(WaitIdle());
    EXPECT_EQ(failures, 0);
    if (forget) ExpectNoTrace(Traces(kSecret));
    EXPECT_THAT(FilesWith(data() / "kv", TokenRuns(*engine_, forget ? kSecret : kDeleted)),
                IsEmpty());
    EXPECT_EQ(service_->Pending()->encodings, 0);
    EXPECT_TRUE(Record(added->facts[0].fact_id).has_value());
  }
}

TEST_F(ServiceForget, OwnersForgottenAtAnyMomentOfEncodingStayForgotten) {
  Open();
  std::mt19937 random(7);
  for (int round = 0; round < 12; ++round) {
    const std::string user = "wilhelmina-qz" + std::to_string(round);
    std::vector<NewFact> facts(40);
    for (std::size_t i = 0; i < facts.size(); ++i) {
      facts[i].fact.text = std::string(kSecret) + " number " + std::to_string(i);
    }
    ASSERT_TRUE(service_->AddFacts(User(user), {}, facts).ok());
    std::this_thread::sleep_for(std::chrono::microseconds(random() % 60'000));
    const Result<std::int64_t> forgotten = service_->ForgetAll(User(user));
    ASSERT_TRUE(forgotten.ok()) << forgotten.status().ToString();
    std::vector<std::string> traces = Traces(kSecret);
    Append(traces, {"wilhelmina-qz"});
    ExpectNoTrace(traces);
    ASSERT_NO_FATAL_FAILURE(WaitIdle());
    ExpectNoTrace(traces);
    if (HasFailure()) return;
  }
}

TEST_F(ServiceForget, WhatChatsRepeatedOfAFactGoesWithIt) {
  Open();
  const Fact fact = Add(User("ada", "helper"), kSecret);
  Add(User("ada"), "the kettle is made of copper");
  ASSERT_NO_FATAL_FAILURE(WaitIdle());
  // A wider conversation reads the fact, quotes it in its history and remembers the question.
  ChatRequest request = Ask(User("ada"), kSecret);
  request.remember = true;
  const ChatReport report = Chat(request);
  ASSERT_TRUE(PromptHas(std::string("Ada: ") + kSecret));
  request.messages = {{"user", kSecret, ""},
                      {"assistant", report.generation.text, ""},
                      {"user", std::string("so ") + kSecret, ""}};
  request.remember = false;
  Chat(request);
  // An application's own opening that quotes it: its exact prefix is a block too.
  request.messages = {{"system", std::string("Bear in mind: ") + kSecret, ""},
                      {"user", "what is the kettle made of", ""}};
  Chat(request);
  ASSERT_NO_FATAL_FAILURE(WaitIdle());
  ASSERT_TRUE(service_->Forget(fact.id).ok());
  ASSERT_NO_FATAL_FAILURE(WaitIdle());
  EXPECT_THAT(FilesWith(data(), {kSecret}), IsEmpty());
  EXPECT_THAT(FilesWith(data() / "kv", TokenRuns(*engine_, kSecret)), IsEmpty());
  EXPECT_THAT(FilesWith(data(), TokenRuns(*engine_, kSecret)), IsEmpty());
}

TEST_F(ServiceForget, ATurnThatRepeatsADeletedFactDoesNotBringItBack) {
  background_ = false;  // the turn waits to be extracted while its fact is deleted
  Open();
  const Fact fact = Add(User("ada"), kDeleted);
  ASSERT_NO_FATAL_FAILURE(WaitIdle());
  ChatRequest request = Ask(User("ada"), kDeleted);
  request.remember = true;
  Chat(request);
  ASSERT_TRUE(service_->Delete(fact.id).ok());
  ASSERT_NO_FATAL_FAILURE(WaitIdle());
  const auto facts = service_->List(User("ada"), 0, 100);
  ASSERT_TRUE(facts.ok());
  for (const Fact& left : *facts) EXPECT_NE(left.text, kDeleted);
}

}  // namespace
}  // namespace inferscale::testing
