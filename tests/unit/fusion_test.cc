#include "retrieval/fusion.h"

#include <gtest/gtest.h>

namespace inferscale {
namespace {

TEST(CountQueryTerms, CountsWordsAndPairsOfUnspacedCharacters) {
  EXPECT_EQ(CountQueryTerms(""), 0);
  EXPECT_EQ(CountQueryTerms(" ?! "), 0);
  EXPECT_EQ(CountQueryTerms("Where does Ana live?"), 4);
  EXPECT_EQ(CountQueryTerms("北京"), 1);
  EXPECT_EQ(CountQueryTerms("北"), 1);
  EXPECT_EQ(CountQueryTerms("我住在北京吗？"), 3);
  EXPECT_EQ(CountQueryTerms("Ana住在Bern"), 3);
  // As the keyword index splits them.
  EXPECT_EQ(CountQueryTerms("고양이"), 2);
  EXPECT_EQ(CountQueryTerms("bad \xff bytes"), 2);
}

TEST(KeywordScore, IsHalfAtTheMidpointOfTheQueryLength) {
  EXPECT_DOUBLE_EQ(KeywordScore(5, 1), 0.5);
  EXPECT_DOUBLE_EQ(KeywordScore(5, 3), 0.5);
  EXPECT_DOUBLE_EQ(KeywordScore(7, 4), 0.5);
  EXPECT_DOUBLE_EQ(KeywordScore(9, 7), 0.5);
  EXPECT_DOUBLE_EQ(KeywordScore(10, 10), 0.5);
  EXPECT_DOUBLE_EQ(KeywordScore(12, 16), 0.5);
  EXPECT_NEAR(KeywordScore(6, 1), 0.6682, 1e-4);
  EXPECT_NEAR(KeywordScore(8, 4), 0.6457, 1e-4);
  EXPECT_NEAR(KeywordScore(13, 20), 0.6225, 1e-4);
}

TEST(CandidatePool, IsFourTimesTheResultsAndSixtyAtLeast) {
  EXPECT_EQ(CandidatePool(1), 60);
  EXPECT_EQ(CandidatePool(15), 60);
  EXPECT_EQ(CandidatePool(16), 64);
}

TEST(FusedScore, StaysWithinBounds) {
  EXPECT_DOUBLE_EQ(FusedScore(0.8, 0, 1), 0.8);
  EXPECT_DOUBLE_EQ(FusedScore(0.8, 0.6, 2), 0.7);
  EXPECT_DOUBLE_EQ(FusedScore(-0.5, 0.1, 2), 0.0);
  EXPECT_DOUBLE_EQ(FusedScore(1.0001, 0, 1), 1.0);
}

}  // namespace
}  // namespace inferscale
