#include "connector/promotion_planner.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "support/kv_blocks.h"

namespace inferscale::test {
namespace {

constexpr std::int64_t kArena = 1000;  // 750 may be kept

class PromotionPlannerTest : public ::testing::Test {
 protected:
  void SetUp() override { planner_.SetArena(0, kArena); }

  static PromotionPlanner::Wanted Block(std::uint64_t number, std::int64_t bytes = 100,
                                        bool resident = false, std::uint64_t serial = 1) {
    return {{TestKey(number), 7, 10}, serial, bytes, resident};
  }
  /// As a scheduler asks. \return whether the request is to wait.
  bool Ask(const std::string& request, const std::vector<PromotionPlanner::Wanted>& blocks) {
    if (planner_.StillWaiting(request)) return true;
    return std::any_of(blocks.begin(), blocks.end(), [](auto& b) { return !b.resident; }) &&
           planner_.MustWait(request, blocks, plan_);
  }
  StepPlan TakePlan() {
    planner_.StepPlanned();
    return std::exchange(plan_, {});
  }

  std::int64_t now_ms_ = 5;
  PromotionPlanner planner_{1, [this] { return now_ms_; }};
  StepPlan plan_;
};

TEST_F(PromotionPlannerTest, PromotesARequestsBlocksOnceAndReleasesThemWhenItIsLoaded) {
  EXPECT_TRUE(Ask("a", {Block(1), Block(2, 100, true)}));
  const StepPlan plan = TakePlan();
  ASSERT_EQ(plan.promote.size(), 2U);  // the resident one is kept from now on
  EXPECT_EQ(plan.promote[0].key, TestKey(1));
  EXPECT_EQ(planner_.kept_bytes(), 200);
  EXPECT_TRUE(Ask("a", {Block(1), Block(2, 100, true)}));
  EXPECT_TRUE(TakePlan().empty());
  planner_.Changed(true);
  EXPECT_FALSE(Ask("a", {Block(1, 100, true), Block(2, 100, true)}));
  EXPECT_EQ(planner_.waiting(), 1);
  planner_.Release("a", plan_);
  EXPECT_EQ(TakePlan().release.size(), 2U);
  EXPECT_EQ(planner_.kept_bytes(), 0);
  EXPECT_EQ(planner_.waiting(), 0);
  EXPECT_EQ(planner_.counters().waits, 1);
  EXPECT_EQ(planner_.counters().given_up, 0);
}

TEST_F(PromotionPlannerTest, RequestsTakeTurnsInTheOrderOfAsking) {
  EXPECT_TRUE(Ask("a", {Block(1, 500)}));
  EXPECT_TRUE(Ask("b", {Block(2, 400)}));
  EXPECT_TRUE(Ask("c", {Block(3, 10)}));  // would fit, but is behind b
  EXPECT_EQ(TakePlan().promote.size(), 1U);
  EXPECT_TRUE(Ask("b", {Block(2, 400)}));
  EXPECT_TRUE(Ask("c", {Block(3, 10)}));
  EXPECT_TRUE(TakePlan().promote.empty());
  planner_.Release("a", plan_);
  EXPECT_TRUE(Ask("b", {Block(2, 400)}));
  EXPECT_TRUE(Ask("c", {Block(3, 10)}));
  const StepPlan plan = TakePlan();
  EXPECT_EQ(plan.promote.size(), 2U);
  EXPECT_EQ(plan.release.size(), 1U);
  EXPECT_EQ(planner_.kept_bytes(), 410);
}

TEST_F(PromotionPlannerTest, ABlockOfTwoRequestsIsKeptUntilTheLastOne) {
  EXPECT_TRUE(Ask("a", {Block(1)}));
  EXPECT_TRUE(Ask("b", {Block(1)}));
  EXPECT_EQ(TakePlan().promote.size(), 1U);
  planner_.Release("a", plan_);
  EXPECT_TRUE(TakePlan().empty());
  planner_.Release("b", plan_);
  EXPECT_EQ(TakePlan().release.size(), 1U);
}

TEST_F(PromotionPlannerTest, AskedAndGoneWithinOneStepNothingIsSent) {
  EXPECT_TRUE(Ask("a", {Block(1)}));
  planner_.Release("a", plan_);
  EXPECT_TRUE(TakePlan().empty());
  // Released and wanted again: kept again, once.
  EXPECT_TRUE(Ask("a", {Block(1)}));
  TakePlan();
  planner_.Release("a", plan_);
  EXPECT_TRUE(Ask("b", {Block(1)}));
  const StepPlan plan = TakePlan();
  EXPECT_EQ(plan.promote.size(), 1U);
  EXPECT_TRUE(plan.release.empty());
}

TEST_F(PromotionPlannerTest, NobodyWaitsForWhatCannotBeKept) {
  EXPECT_FALSE(Ask("large", {Block(1, 400), Block(2, 400)}));
  EXPECT_TRUE(TakePlan().empty());
  EXPECT_EQ(planner_.counters().given_up, 1);
  EXPECT_FALSE(Ask("large", {Block(1, 400), Block(2, 400)}));
  EXPECT_EQ(planner_.counters().given_up, 1);
}

TEST_F(PromotionPlannerTest, AStallEndsEveryWait) {
  EXPECT_TRUE(Ask("a", {Block(1, 500)}));
  EXPECT_TRUE(Ask("b", {Block(2, 500)}));
  now_ms_ += PromotionPlanner::kStallMs;
  EXPECT_TRUE(Ask("a", {Block(1, 500)}));
  planner_.Changed(true);
  now_ms_ += PromotionPlanner::kStallMs;
  EXPECT_TRUE(Ask("a", {Block(1, 500)}));
  now_ms_ += 1;
  EXPECT_FALSE(Ask("a", {Block(1, 500)}));
  EXPECT_FALSE(Ask("b", {Block(2, 500)}));
  EXPECT_EQ(planner_.counters().given_up, 2);
}

TEST_F(PromotionPlannerTest, ProgressOfOthersKeepsNobodyWaitingForEver) {
  EXPECT_TRUE(Ask("a", {Block(1)}));
  std::int64_t waited = 0;
  for (; Ask("a", {Block(1)}); waited += 100, now_ms_ += 100) {
    ASSERT_LE(waited, PromotionPlanner::kLongestWaitMs + 100);
    planner_.Changed(true);
  }
  EXPECT_GT(waited, PromotionPlanner::kStallMs);
}

TEST_F(PromotionPlannerTest, WhoseBlocksAreThereHasNotGivenUpHoweverLateItIsScheduled) {
  EXPECT_TRUE(Ask("a", {Block(1)}));
  planner_.Changed(true);
  now_ms_ += PromotionPlanner::kLongestWaitMs + 1;
  EXPECT_FALSE(Ask("a", {Block(1, 100, true)}));
  EXPECT_EQ(planner_.counters().given_up, 0);
  EXPECT_EQ(planner_.kept_bytes(), 100);
}

TEST_F(PromotionPlannerTest, WhatARankCannotPromoteIsNotWaitedFor) {
  EXPECT_TRUE(Ask("a", {Block(1), Block(2)}));
  TakePlan();
  planner_.Failed(TestKey(2));
  planner_.Changed(false);
  EXPECT_FALSE(Ask("a", {Block(1), Block(2)}));
  planner_.Release("a", plan_);
  TakePlan();
  EXPECT_TRUE(Ask("b", {Block(2)}));  // another one may try
  EXPECT_EQ(TakePlan().promote.size(), 1U);
}

TEST_F(PromotionPlannerTest, ABlockStoredAnewIsPromotedAnew) {
  EXPECT_TRUE(Ask("a", {Block(1)}));
  TakePlan();
  planner_.Changed(false);
  EXPECT_TRUE(Ask("a", {Block(1, 100, false, 2)}));
  EXPECT_EQ(TakePlan().promote.size(), 1U);
  EXPECT_EQ(planner_.kept_bytes(), 100);
  planner_.Release("a", plan_);
  EXPECT_EQ(planner_.kept_bytes(), 0);
}

TEST_F(PromotionPlannerTest, ABlockThatComesWhileItsRequestWaitsIsKeptIfThereIsRoom) {
  EXPECT_TRUE(Ask("a", {Block(1, 400)}));
  planner_.Changed(false);
  EXPECT_TRUE(Ask("a", {Block(1, 400), Block(2, 300)}));
  EXPECT_EQ(planner_.kept_bytes(), 700);
  planner_.Changed(false);
  EXPECT_FALSE(Ask("a", {Block(1, 400), Block(2, 300), Block(3, 100)}));
  EXPECT_EQ(planner_.kept_bytes(), 700);
  planner_.Clear();  // every block is gone; others come
  EXPECT_TRUE(Ask("b", {Block(4, 300)}));
  EXPECT_TRUE(Ask("c", {Block(5, 300)}));
  planner_.Clear();
  EXPECT_TRUE(Ask("b", {Block(6, 700)}));
  EXPECT_FALSE(Ask("c", {Block(7, 700)}));
  EXPECT_EQ(planner_.kept_bytes(), 700);
  for (const char* const request : {"a", "b", "c"}) planner_.Release(request, plan_);
  EXPECT_EQ(planner_.kept_bytes(), 0);
}

TEST_F(PromotionPlannerTest, WhatTheRanksKeepFromBeforeIsReleasedWhateverCameBetween) {
  EXPECT_TRUE(Ask("a", {Block(1)}));
  TakePlan();
  planner_.Release("a", plan_);
  EXPECT_TRUE(Ask("b", {Block(1)}));
  planner_.Release("b", plan_);
  const StepPlan plan = TakePlan();
  EXPECT_TRUE(plan.promote.empty());
  EXPECT_EQ(plan.release.size(), 1U);
}

TEST_F(PromotionPlannerTest, ABlockThatIsTriedAgainIsKeptForAllWhoWantIt) {
  EXPECT_TRUE(Ask("a", {Block(1)}));
  TakePlan();
  planner_.Failed(TestKey(1));
  EXPECT_TRUE(Ask("b", {Block(1)}));
  TakePlan();
  planner_.Release("a", plan_);
  EXPECT_TRUE(TakePlan().empty());
  EXPECT_EQ(planner_.kept_bytes(), 100);
  planner_.Release("b", plan_);
  EXPECT_EQ(TakePlan().release.size(), 1U);
  EXPECT_EQ(planner_.kept_bytes(), 0);
}

TEST_F(PromotionPlannerTest, OnlyWithAnArenaOnEveryRank) {
  PromotionPlanner two(2, [] { return std::int64_t{0}; });
  two.SetArena(0, kArena);
  EXPECT_FALSE(two.enabled());
  two.SetArena(1, kArena / 2);
  EXPECT_TRUE(two.enabled());
  const std::vector<PromotionPlanner::Wanted> blocks{Block(1, 400)};
  EXPECT_FALSE(two.MustWait("a", blocks, plan_));  // the smallest arena counts
}

}  // namespace
}  // namespace inferscale::test
