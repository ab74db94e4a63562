#include "engine/llama/composition_match.h"

#include <gtest/gtest.h>

namespace inferscale {
namespace {

KvKey NumberedKey(std::uint8_t number) {
  KvKey key;
  key.bytes[0] = number;
  return key;
}

/// Blocks of ten tokens each, from position 0, then a tail of five.
class CompositionMatch : public ::testing::Test {
 protected:
  void SetUp() override {
    for (std::int32_t i = 0; i < 45; ++i) composition_.ids.push_back(i);
    for (std::uint8_t i = 0; i < 4; ++i) {
      composition_.blocks.push_back({NumberedKey(i), 10 * i, 10 * i + 10, i == 0});
      stored_.emplace_back(composition_.ids.begin() + 10 * i,
                           composition_.ids.begin() + 10 * i + 10);
    }
  }
  MatchPlan Match(std::int32_t limit = 44) {
    acquired_.clear();
    return MatchComposition(
        composition_, limit,
        [&](std::size_t i) -> BlockLookup {
          acquired_.push_back(i);
          if (stored_[i].empty()) return {"not_ready", {}};
          return {"", stored_[i]};
        },
        [&](std::size_t i) { return std::string(stored_[i].empty() ? "not_ready" : ""); });
  }
  static std::int32_t Count(const MatchPlan& plan, const std::string& reason) {
    for (const Fallback& fallback : plan.fallbacks.Take()) {
      if (fallback.reason == reason) return fallback.count;
    }
    return 0;
  }

  Composition composition_;
  std::vector<TokenIds> stored_;
  std::vector<std::size_t> acquired_;
};

TEST_F(CompositionMatch, TakesAllBlocksWhenAllAreThere) {
  const MatchPlan plan = Match();
  EXPECT_EQ(plan.covered, 40);
  ASSERT_EQ(plan.runs.size(), 4U);
  EXPECT_EQ(plan.runs[2].position, 20);
  EXPECT_EQ(plan.runs[2].count, 10);
  EXPECT_TRUE(plan.fallbacks.Take().empty());
}

TEST_F(CompositionMatch, EndsAtTheFirstMissingBlockAndLoadsNothingBehindIt) {
  stored_[1].clear();
  const MatchPlan plan = Match();
  EXPECT_EQ(plan.covered, 10);
  EXPECT_EQ(Count(plan, "not_ready"), 1);
  EXPECT_EQ(Count(plan, "not_contiguous"), 2);
  EXPECT_EQ(acquired_, (std::vector<std::size_t>{0, 1}));
}

TEST_F(CompositionMatch, CountsEachMissingBlockUnderItsOwnReason) {
  stored_[1].clear();
  stored_[3].clear();
  const MatchPlan plan = Match();
  EXPECT_EQ(Count(plan, "not_ready"), 2);
  EXPECT_EQ(Count(plan, "not_contiguous"), 1);
}

TEST_F(CompositionMatch, TakesOtherTokensForAMiss) {
  stored_[2][9] = 999;
  const MatchPlan plan = Match();
  EXPECT_EQ(plan.covered, 20);
  EXPECT_EQ(Count(plan, "token_mismatch"), 1);
  stored_[2] = {20, 21};
  EXPECT_EQ(Match().covered, 20) << "a shorter block is another block";
  stored_[2] = TokenIds(composition_.ids.begin() + 20, composition_.ids.begin() + 31);
  EXPECT_EQ(Match().covered, 20) << "a longer block is another block";
}

TEST_F(CompositionMatch, LeavesNoGap) {
  composition_.blocks[1].begin = 11;
  const MatchPlan plan = Match();
  EXPECT_EQ(plan.covered, 10);
  EXPECT_EQ(Count(plan, "not_contiguous"), 3);
  composition_.blocks.erase(composition_.blocks.begin());
  stored_.erase(stored_.begin());
  EXPECT_EQ(Match().covered, 0) << "nothing begins at position 0";
}

TEST_F(CompositionMatch, UsesTheLastBlockInPart) {
  composition_.ids.resize(40);
  const MatchPlan plan = Match(39);
  EXPECT_EQ(plan.covered, 39);
  EXPECT_EQ(plan.runs.back().count, 9);
  EXPECT_TRUE(plan.fallbacks.Take().empty());
  EXPECT_EQ(Match(30).covered, 30);
  EXPECT_EQ(Match(0).covered, 0);
}

TEST(ValidateComposition, ChecksTokensAndSpans) {
  Composition composition;
  EXPECT_FALSE(ValidateComposition(composition, 100, 50).ok());
  composition.ids = TokenIds(10, 5);
  EXPECT_TRUE(ValidateComposition(composition, 100, 50).ok());
  EXPECT_FALSE(ValidateComposition(composition, 5, 50).ok());
  EXPECT_FALSE(ValidateComposition(composition, 100, 10).ok()) << "no room for an answer";
  const auto with = [&](std::int32_t begin, std::int32_t end, std::int32_t begin2,
                        std::int32_t end2) {
    Composition spans = composition;
    spans.blocks = {{NumberedKey(1), begin, end, false}, {NumberedKey(2), begin2, end2, false}};
    return ValidateComposition(spans, 100, 50).ok();
  };
  EXPECT_TRUE(with(0, 4, 4, 10));
  EXPECT_TRUE(with(0, 4, 6, 10));
  EXPECT_FALSE(with(0, 4, 3, 10));
  EXPECT_FALSE(with(0, 4, 4, 11));
  EXPECT_FALSE(with(-1, 4, 4, 10));
  EXPECT_FALSE(with(0, 0, 4, 10));
  EXPECT_FALSE(with(4, 6, 0, 4));
}

}  // namespace
}  // namespace inferscale
