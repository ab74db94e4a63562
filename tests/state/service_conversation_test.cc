#include <algorithm>

#include <gmock/gmock.h>

#include "catalog/filter.h"
#include "support/service_fixture.h"

namespace inferscale::testing {
namespace {

constexpr TimeMs kDay = 24LL * 3600 * 1000;

/// A client that keeps nothing but the messages and sends them all again.
class ServiceConversation : public ServiceTest {
 protected:
  void SetUp() override {
    context_tokens_ = 4096;
    Open();
    for (const char* text : {"the kettle is made of copper", "the piano stands in the hall",
                             "the cellar is full of apples"}) {
      facts_.push_back(Add(User("ada"), text, ""));
    }
    WaitIdle();
  }

  ChatRequest Request(const std::string& question, std::int32_t top_k = 1) {
    messages_.push_back({"user", question, ""});
    ChatRequest request = Ask(User("ada"), "");
    request.messages = messages_;
    request.top_k = top_k;
    request.sampling.max_tokens = 60;  // a history that is worth going on with
    return request;
  }
  ChatReport Say(const std::string& question, std::int32_t top_k = 1) {
    const ChatReport report = Chat(Request(question, top_k));
    messages_.push_back({"assistant", report.generation.text, ""});
    // What the next turn of this conversation has to open with.
    sent_ = engine_->LastPrompt().ids;
    sent_.insert(sent_.end(), report.generation.generated.begin(),
                 report.generation.generated.end());
    return report;
  }
  bool Continues(const TokenIds& earlier) const {
    const TokenIds ids = engine_->LastPrompt().ids;
    return ids.size() > earlier.size() && std::equal(earlier.begin(), earlier.end(), ids.begin());
  }
  std::size_t Times(const std::string& text) const {
    const std::string prompt = Prompt();
    std::size_t count = 0;
    for (std::size_t at = 0; (at = prompt.find(text, at)) != std::string::npos; ++at) ++count;
    return count;
  }

  std::vector<Fact> facts_;
  std::vector<ChatMessage> messages_;
  TokenIds sent_;
};

TEST_F(ServiceConversation, TenTurnsGoOnWhereTheyWereAlsoAfterARestartAndAnotherDay) {
  const char* questions[] = {"the kettle copper", "the piano hall", "the cellar apples"};
  for (int turn = 0; turn < 10; ++turn) {
    SCOPED_TRACE(turn);
    const TokenIds before = sent_;
    if (turn % 3 == 2) Open();  // the engine's caches are gone, the ledger is not
    const ChatReport report = Say(questions[turn % 3], 1 + turn % 2);
    if (turn > 0) {
      EXPECT_TRUE(Continues(before));
    }
    if (turn % 3 == 2) {
      EXPECT_GT(report.generation.injected_tokens, 0);
    }
    for (const Fact& fact : facts_) EXPECT_LE(Times(") " + fact.text), 1u) << fact.text;
    now_ += kDay;
  }
  for (const Fact& fact : facts_) EXPECT_EQ(Times(") " + fact.text), 1u) << fact.text;
  EXPECT_EQ(Times("Today is "), 1u);
}

TEST_F(ServiceConversation, AnEditedHistoryStartsAgainAndABranchGoesOnFromItsRoot) {
  Say("the kettle copper");
  const TokenIds first = sent_;
  const std::vector<ChatMessage> root = messages_;
  Say("the piano hall");
  const TokenIds second = sent_;
  Say("the cellar apples");

  messages_ = root;
  Say("the cellar apples");
  EXPECT_TRUE(Continues(first));
  EXPECT_FALSE(Continues(second));

  messages_ = root;
  messages_[1].content = "an answer that was edited";
  Say("the piano hall");
  EXPECT_FALSE(Continues(first));
  EXPECT_TRUE(PromptHas("an answer that was edited"));

  messages_ = root;
  messages_[0].content = "another first question";
  Say("the piano hall");
  EXPECT_FALSE(Continues(first));
  EXPECT_TRUE(PromptHas("another first question"));
}

TEST_F(ServiceConversation, NothingOutdatedIsSentAgain) {
  Say("the kettle copper");
  ASSERT_TRUE(PromptHas(") the kettle is made of copper"));
  FactUpdate update;
  update.text = "the kettle is made of steel";
  ASSERT_TRUE(service_->Update(facts_[0].id, update).ok());
  Say("the kettle steel");
  EXPECT_FALSE(PromptHas("made of copper"));
  EXPECT_TRUE(PromptHas(") the kettle is made of steel"));

  ASSERT_TRUE(service_->Delete(facts_[0].id).ok());
  Say("the kettle");
  EXPECT_FALSE(PromptHas("made of steel"));

  Say("the piano hall");
  ASSERT_TRUE(PromptHas(") the piano stands in the hall"));
  ASSERT_TRUE(service_->SetDisplayName(User("ada"), "Adelheid").ok());
  Say("the piano hall");
  EXPECT_FALSE(PromptHas(") the piano stands in the hall"));
  EXPECT_TRUE(PromptHas(") Adelheid: the piano stands in the hall"));
  ASSERT_NO_FATAL_FAILURE(WaitIdle());

  ASSERT_TRUE(service_->Forget(facts_[1].id).ok());
  Say("the cellar apples");
  EXPECT_FALSE(PromptHas("the piano stands in the hall"));
}

TEST_F(ServiceConversation, AFactThatExpiresIsNotSentAgain) {
  AddRequest add;
  add.scope = User("ada");
  add.turns = {{0, "user", "", "the bridge is closed for repairs", 0}};
  add.expiration_date = "2025-10-11";  // now_ is the 9th
  ASSERT_TRUE(service_->Add(add).ok());
  ASSERT_NO_FATAL_FAILURE(WaitIdle());
  Say("the bridge repairs");
  ASSERT_TRUE(PromptHas(") the bridge is closed for repairs"));
  const TokenIds first = sent_;
  now_ += kDay;
  Say("the kettle copper");
  EXPECT_TRUE(Continues(first));
  now_ += 3 * kDay;
  Say("the bridge repairs");
  EXPECT_FALSE(PromptHas(") the bridge is closed for repairs"));
}

TEST_F(ServiceConversation, AFilterHoldsForWhatEarlierTurnsSentToo) {
  AddRequest add;
  add.scope = User("ada");
  add.turns = {{0, "user", "", "the diary lies under the bed", 0}};
  add.metadata_json = R"({"kind": "private"})";
  ASSERT_TRUE(service_->Add(add).ok());
  ASSERT_NO_FATAL_FAILURE(WaitIdle());
  Say("the diary bed");
  ASSERT_TRUE(PromptHas(") the diary lies under the bed"));
  const auto filter = Filter::Parse(R"({"NOT": [{"kind": "private"}]})");
  ASSERT_TRUE(filter.ok()) << filter.status().ToString();
  ChatRequest request = Request("and the kettle", 10);
  request.filter = filter->get();
  Chat(request);
  EXPECT_FALSE(PromptHas(") the diary lies under the bed"));
  EXPECT_TRUE(PromptHas(") the kettle is made of copper"));
}

TEST_F(ServiceConversation, WhatAnEarlierTurnServedIsNoNewsWhenItIsRepeatedLater) {
  Say("the kettle copper");
  ASSERT_TRUE(PromptHas(") the kettle is made of copper"));
  // This turn searches nothing, but the kettle stands in its prompt all the same.
  ChatRequest request = Request("- the kettle is made of copper");
  request.top_k = 0;
  request.remember = true;
  Chat(request);
  ASSERT_TRUE(PromptHas(") the kettle is made of copper"));
  ASSERT_NO_FATAL_FAILURE(WaitIdle());
  const auto facts = service_->List(User("ada"), 0, 100);
  ASSERT_TRUE(facts.ok());
  for (const Fact& fact : *facts) {
    EXPECT_NE(fact.text, "- the kettle is made of copper");
  }
}

TEST_F(ServiceConversation, AChangedModelOrRecipeDoesNotGoOnWithOldIds) {
  Say("the kettle copper");
  const TokenIds first = sent_;
  recipe_ = "header";
  Open();
  ASSERT_NO_FATAL_FAILURE(WaitIdle());
  Say("the piano hall");
  EXPECT_FALSE(Continues(first));
  model_ = "qwen2";
  Open();
  ASSERT_NO_FATAL_FAILURE(WaitIdle());
  const ChatReport report = Say("the cellar apples");
  EXPECT_TRUE(PromptHas("the cellar is full of apples"));
  EXPECT_GT(report.generation.injected_tokens, 0);
}

}  // namespace
}  // namespace inferscale::testing
