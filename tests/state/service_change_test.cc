#include <gmock/gmock.h>

#include "support/service_fixture.h"

namespace inferscale::testing {
namespace {

constexpr const char* kQuestion = "what is in the house";

/// One data folder under changing models, recipes and codecs.
class ServiceChange : public ServiceTest {
 protected:
  void AddFacts() {
    for (const char* text : {"the kettle is made of copper", "the piano stands in the hall",
                             "the cellar is full of apples"}) {
      Add(User("ada"), text);
    }
    WaitIdle();
  }
  ChatReport Answer() {
    ChatRequest request = Ask(User("ada"), kQuestion);
    request.sampling.max_tokens = 24;
    return Chat(request);
  }
  /// What the present settings answer on a folder that has seen no others.
  ChatReport FreshAnswer() {
    Close();
    OpenAt(folder_.path() / ("fresh" + std::to_string(fresh_++)));
    AddFacts();
    return Answer();
  }
  int fresh_ = 0;
};

TEST_F(ServiceChange, FactsAreKeptAndKvIsRebuiltNeverReused) {
  Open();
  AddFacts();
  Answer();  // a ledger entry of the first settings
  const std::vector<std::tuple<std::string, std::string, KvCodec>> settings = {
      {"llama_norm", "bare", KvCodec::kInt4},
      {"llama_norm", "header", KvCodec::kInt4},
      {"llama_norm", "primer:2", KvCodec::kF16},
      {"llama_yarn", "primer:2", KvCodec::kF16},
      {"qwen2", "header", KvCodec::kInt8},
      {"llama_norm", "header", KvCodec::kF32},
      {"llama_no_system", "primer:2", KvCodec::kInt4},
      {"gemma3", "primer:2", KvCodec::kF16}};
  for (const auto& [model, recipe, codec] : settings) {
    SCOPED_TRACE(model + " " + recipe + " " + std::string(KvCodecName(codec)));
    model_ = model;
    recipe_ = recipe;
    codec_ = codec;
    Open();
    EXPECT_EQ(*service_->Count(User("ada")), 3);
    EXPECT_EQ(engine_->encodings() + static_cast<std::size_t>(service_->Pending()->encodings), 3u)
        << "KV of other settings counts as ready";
    ASSERT_NO_FATAL_FAILURE(WaitIdle());
    const ChatReport report = Answer();
    const TokenIds prompt = engine_->LastPrompt().ids;
    EXPECT_TRUE(PromptHas("the piano stands in the hall"));
    const ChatReport fresh = FreshAnswer();
    EXPECT_EQ(engine_->LastPrompt().ids, prompt);
    EXPECT_EQ(report.generation.text, fresh.generation.text);
    EXPECT_EQ(report.generation.injected_tokens, fresh.generation.injected_tokens);
  }
}

TEST_F(ServiceChange, ComingBackFindsTheOldKv) {
  Open();
  AddFacts();
  const ChatReport first = Answer();
  recipe_ = "bare";
  Open();
  ASSERT_NO_FATAL_FAILURE(WaitIdle());
  recipe_ = "primer:2";
  Open();
  EXPECT_EQ(service_->Pending()->encodings, 0);
  const ChatReport again = Answer();
  EXPECT_EQ(engine_->encodings(), 0u);
  EXPECT_EQ(again.generation.text, first.generation.text);
  EXPECT_EQ(again.generation.injected_tokens, first.generation.injected_tokens);
}

TEST_F(ServiceChange, AnUpdateMadeUnderAnotherModelReachesTheFirstOnesKv) {
  Open();
  const Fact fact = Add(User("ada"), "the kettle is made of copper");
  ASSERT_NO_FATAL_FAILURE(WaitIdle());
  const std::string old_block = BlockName(fact.id);
  model_ = "qwen2";
  Open();
  ASSERT_NO_FATAL_FAILURE(WaitIdle());
  FactUpdate update;
  update.text = "the kettle is made of steel";
  ASSERT_TRUE(service_->Update(fact.id, update).ok());
  EXPECT_TRUE(BlockPath(old_block).empty());
  model_ = "llama_norm";
  Open();
  EXPECT_EQ(service_->Pending()->encodings, 1);
  ASSERT_NO_FATAL_FAILURE(WaitIdle());
  Answer();
  EXPECT_TRUE(PromptHas("steel"));
  EXPECT_FALSE(PromptHas("copper"));
}

}  // namespace
}  // namespace inferscale::testing
