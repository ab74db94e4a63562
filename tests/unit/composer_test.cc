#include "compose/composer.h"

#include <gtest/gtest.h>

#include "compose/conversation_hash.h"
#include "encode/recipe.h"
#include "support/fake_engine.h"

namespace inferscale {
namespace {

using testing::FakeEngine;

class ComposerTest : public ::testing::Test {
 protected:
  ServableFact MakeFact(const std::string& id, bool ready) {
    ServableFact fact;
    fact.id = id;
    fact.version = 1;
    fact.ids = engine_.Tokenize("- " + id + "\n");
    fact.key.bytes[0] = static_cast<std::uint8_t>(id[0]);
    fact.has_key = true;
    fact.ready = ready;
    return fact;
  }

  ComposeRequest MakeRequest(std::vector<ServableFact> facts) {
    ComposeRequest request;
    request.messages = {{"system", "Be kind.", ""}, {"user", "Who?", ""}};
    request.facts = std::move(facts);
    request.max_fact_tokens = 1000;
    request.max_prompt_tokens = 2000;
    return request;
  }

  Result<Composed> Run(const ComposeRequest& request) {
    return Compose(engine_, request, [](std::span<const TokenId> ids) -> Result<KvKey> {
      KvKey key;
      key.bytes[15] = static_cast<std::uint8_t>(ids.size());
      return key;
    });
  }

  std::string Text(const Composed& composed) {
    return engine_.Detokenize(composed.composition.ids);
  }

  LedgerEntry LedgerOf(const Composed& composed, const ComposeRequest& request,
                       const std::string& answer) {
    LedgerEntry entry;
    entry.ids = composed.composition.ids;
    const TokenIds ids = engine_.Tokenize(answer);
    entry.ids.insert(entry.ids.end(), ids.begin(), ids.end());
    entry.messages = static_cast<std::int32_t>(request.messages.size()) + 1;
    entry.prefix_tokens = composed.prefix_tokens;
    for (const PlacedFact& fact : composed.facts) {
      entry.facts.push_back({fact.id, fact.version, fact.key, fact.begin, fact.end});
    }
    return entry;
  }

  FakeEngine engine_;
};

TEST_F(ComposerTest, PutsPrefixHeaderFactsFooterAndQuestionInOrder) {
  const Result<Composed> composed =
      Run(MakeRequest({MakeFact("best", true), MakeFact("second", true)}));
  ASSERT_TRUE(composed.ok()) << composed.status().ToString();
  EXPECT_EQ(Text(*composed), "<system\nBe kind." + std::string(prompt_text::Header()) +
                                 "- second\n- best\n" + prompt_text::Footer(0) +
                                 ">\n<user\nWho?>\n<assistant\n");
}

TEST_F(ComposerTest, BlocksAreContiguousFromTheStartAndMatchTheTokens) {
  const Result<Composed> composed =
      Run(MakeRequest({MakeFact("best", true), MakeFact("second", true)}));
  ASSERT_TRUE(composed.ok());
  const std::vector<BlockSpan>& blocks = composed->composition.blocks;
  ASSERT_EQ(blocks.size(), 3u);
  EXPECT_TRUE(blocks[0].exact);
  EXPECT_EQ(blocks[0].begin, 0);
  EXPECT_EQ(blocks[0].end, composed->prefix_tokens);
  EXPECT_EQ(blocks[1].begin, blocks[0].end);
  EXPECT_EQ(blocks[2].begin, blocks[1].end);
  EXPECT_EQ(engine_.Detokenize(std::span(composed->composition.ids).subspan(blocks[2].begin, 7)),
            "- best\n");
}

TEST_F(ComposerTest, UnreadyFactsFollowTheReadyOnesBestLastWithinEach) {
  const Result<Composed> composed = Run(MakeRequest(
      {MakeFact("a", false), MakeFact("b", true), MakeFact("c", false), MakeFact("d", true)}));
  ASSERT_TRUE(composed.ok());
  std::string order;
  for (const PlacedFact& fact : composed->facts) order += fact.id;
  EXPECT_EQ(order, "dbca");
}

TEST_F(ComposerTest, TheBestAreComputedWhenAskedFor) {
  ComposeRequest request =
      MakeRequest({MakeFact("a", true), MakeFact("b", true), MakeFact("c", true)});
  request.compute_best = 1;
  const Result<Composed> composed = Run(request);
  ASSERT_TRUE(composed.ok());
  ASSERT_EQ(composed->facts.size(), 3u);
  EXPECT_EQ(composed->facts.back().id, "a");
  ASSERT_EQ(composed->composition.blocks.size(), 3u);  // prefix, c, b
  EXPECT_EQ(composed->composition.blocks.back().end, composed->facts.back().begin);
}

TEST_F(ComposerTest, TheBestOfManyFactsWithoutANameAreComputed) {
  std::vector<ServableFact> facts;
  for (const char* id : {"a", "b", "c", "d", "e"}) {
    facts.push_back(MakeFact(id, true));
    facts.back().unnamed = true;
  }
  const auto blocks_and_order = [&](const ComposeRequest& request) {
    const Result<Composed> composed = Run(request);
    EXPECT_TRUE(composed.ok()) << composed.status().ToString();
    std::string text = std::to_string(composed->composition.blocks.size()) + " ";
    for (const PlacedFact& fact : composed->facts) text += fact.id;
    return text;
  };
  EXPECT_EQ(blocks_and_order(MakeRequest(facts)), "3 edcba");  // prefix, e, d
  ComposeRequest request = MakeRequest(facts);
  request.compute_best = 4;
  EXPECT_EQ(blocks_and_order(request), "2 edcba");
  request = MakeRequest(facts);
  request.inject = false;
  EXPECT_EQ(blocks_and_order(request), "0 edcba");
  // One that has a name is injected, and stands with the others that are.
  facts[1].unnamed = false;
  EXPECT_EQ(blocks_and_order(MakeRequest(facts)), "4 edbca");
  facts[1].unnamed = true;
  facts.pop_back();
  EXPECT_EQ(blocks_and_order(MakeRequest(facts)), "5 dcba") << "few are injected";
}

TEST_F(ComposerTest, NoFactStandsTwice) {
  const Result<Composed> composed = Run(MakeRequest({MakeFact("a", true), MakeFact("a", true)}));
  ASSERT_TRUE(composed.ok());
  EXPECT_EQ(composed->facts.size(), 1u);
}

TEST_F(ComposerTest, TheBudgetKeepsTheBest) {
  ComposeRequest request = MakeRequest(
      {MakeFact("a", true), MakeFact("bbbbbbbbbbbbbbbbbbbbbb", true), MakeFact("c", true)});
  request.max_fact_tokens = 9;
  const Result<Composed> composed = Run(request);
  ASSERT_TRUE(composed.ok());
  ASSERT_EQ(composed->facts.size(), 2u);
  EXPECT_EQ(composed->facts[1].id, "a");
  EXPECT_EQ(composed->facts[0].id, "c");
  ASSERT_EQ(composed->fallbacks.size(), 1u);
  EXPECT_EQ(composed->fallbacks[0].reason, "over_budget");
}

TEST_F(ComposerTest, MoreFactsThanContextAreLeftOutNotAnError) {
  std::vector<ServableFact> facts;
  for (int i = 0; i < 1000; ++i)
    facts.push_back(MakeFact("fact number " + std::to_string(i), true));
  ComposeRequest request = MakeRequest(std::move(facts));
  request.max_fact_tokens = 1 << 20;
  request.max_prompt_tokens = 300;
  const Result<Composed> composed = Run(request);
  ASSERT_TRUE(composed.ok());
  EXPECT_LE(composed->composition.ids.size(), 300u);
  EXPECT_GT(composed->facts.size(), 3u);
}

TEST_F(ComposerTest, MessagesThatAloneExceedTheContextAreAClearError) {
  ComposeRequest request = MakeRequest({});
  request.max_prompt_tokens = 10;
  const Result<Composed> composed = Run(request);
  ASSERT_FALSE(composed.ok());
  EXPECT_EQ(composed.status().code(), StatusCode::kInvalidArgument);
}

TEST_F(ComposerTest, TextModeHasTheSameTokensAndNoBlocks) {
  const std::vector<ServableFact> facts = {MakeFact("a", true), MakeFact("b", true)};
  const Result<Composed> kv = Run(MakeRequest(facts));
  ComposeRequest request = MakeRequest(facts);
  request.inject = false;
  const Result<Composed> text = Run(request);
  ASSERT_TRUE(kv.ok() && text.ok());
  EXPECT_EQ(kv->composition.ids, text->composition.ids);
  EXPECT_TRUE(text->composition.blocks.empty());
}

TEST_F(ComposerTest, ATemplateWithoutAPlaceServesFactsAsTextBeforeTheQuestion) {
  engine_.no_place = true;
  const Result<Composed> composed = Run(MakeRequest({MakeFact("a", true)}));
  ASSERT_TRUE(composed.ok());
  EXPECT_TRUE(composed->composition.blocks.empty());
  ASSERT_EQ(composed->fallbacks.size(), 1u);
  EXPECT_EQ(composed->fallbacks[0].reason, "template");
  EXPECT_NE(Text(*composed).find("- a\n"), std::string::npos);
  EXPECT_LT(Text(*composed).find("- a\n"), Text(*composed).find("Who?"));
}

TEST_F(ComposerTest, NoFactsMeansThePromptIsTheTemplatesOwn) {
  const Result<Composed> composed = Run(MakeRequest({}));
  ASSERT_TRUE(composed.ok());
  EXPECT_EQ(Text(*composed), "<system\nBe kind.>\n<user\nWho?>\n<assistant\n");
}

TEST_F(ComposerTest, ALaterTurnKeepsThePrefixAndAddsOnlyNewFacts) {
  ComposeRequest first = MakeRequest({MakeFact("a", true)});
  const Result<Composed> one = Run(first);
  ASSERT_TRUE(one.ok());
  const LedgerEntry ledger = LedgerOf(*one, first, "A long answer, longer than the new fact is.");
  ComposeRequest second = MakeRequest({MakeFact("b", true), MakeFact("a", true)});
  second.messages.push_back({"assistant", "A long answer, longer than the new fact is.", ""});
  second.messages.push_back({"user", "And now?", ""});
  second.ledger = &ledger;
  second.today = 100LL * 24 * 3600 * 1000;  // the clock moved: nothing sent before changes
  const Result<Composed> two = Run(second);
  ASSERT_TRUE(two.ok()) << two.status().ToString();
  EXPECT_TRUE(two->continued);
  ASSERT_GT(two->composition.ids.size(), ledger.ids.size());
  EXPECT_TRUE(std::equal(ledger.ids.begin(), ledger.ids.end(), two->composition.ids.begin()));
  EXPECT_TRUE(Text(*two).ends_with(">\n<user\n" + std::string(prompt_text::LateHeader()) + "- b\n" +
                                   std::string(prompt_text::LateFooter()) +
                                   "And now?>\n<assistant\n"))
      << Text(*two);
  EXPECT_EQ(two->facts.size(), 2u);
}

TEST_F(ComposerTest, ComposesAnewWhenThatComputesFewerTokens) {
  ComposeRequest first = MakeRequest({MakeFact("a", true)});
  const Result<Composed> one = Run(first);
  ASSERT_TRUE(one.ok());
  const LedgerEntry ledger = LedgerOf(*one, first, "ok");
  std::vector<ServableFact> facts;
  for (int i = 0; i < 20; ++i)
    facts.push_back(MakeFact("a quite long ready fact number " + std::to_string(i), true));
  ComposeRequest second = MakeRequest(std::move(facts));
  second.messages.push_back({"assistant", "ok", ""});
  second.messages.push_back({"user", "And now?", ""});
  second.ledger = &ledger;
  const Result<Composed> two = Run(second);
  ASSERT_TRUE(two.ok());
  EXPECT_FALSE(two->continued);
  EXPECT_EQ(two->composition.blocks.size(), 21u);
}

TEST(ConversationHashTest, TellsEditedAndShiftedTextsApart) {
  const std::vector<ChatMessage> a = {{"user", "ab", ""}, {"assistant", "c", ""}};
  const std::vector<ChatMessage> edited = {{"user", "ab", ""}, {"assistant", "d", ""}};
  const std::vector<ChatMessage> shifted = {{"user", "a", ""}, {"assistant", "bc", ""}};
  EXPECT_EQ(ConversationHash(a), ConversationHash(a));
  EXPECT_NE(ConversationHash(a), ConversationHash(edited));
  EXPECT_NE(ConversationHash(a), ConversationHash(shifted));
}

}  // namespace
}  // namespace inferscale
