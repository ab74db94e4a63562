#include "eval/statistics.h"

#include <cmath>

#include <gtest/gtest.h>

namespace inferscale {
namespace {

TEST(Median, OfAnEvenCountIsTheMeanOfTheMiddleTwo) {
  EXPECT_EQ(Median({}), 0);
  EXPECT_EQ(Median({5}), 5);
  EXPECT_EQ(Median({9, 1, 3}), 3);
  EXPECT_EQ(Median({4, 1, 3, 2}), 2.5);
}

TEST(Percentile, IsTheNearestRank) {
  const std::vector<double> values{15, 20, 35, 40, 50};
  EXPECT_EQ(Percentile(values, 5), 15);
  EXPECT_EQ(Percentile(values, 30), 20);
  EXPECT_EQ(Percentile(values, 40), 20);
  EXPECT_EQ(Percentile(values, 50), 35);
  EXPECT_EQ(Percentile(values, 100), 50);
  EXPECT_EQ(Percentile({}, 95), 0);
}

TEST(BootstrapMean, RepeatsForASeedAndDiffersForAnother) {
  std::vector<double> values;
  for (int i = 0; i < 50; ++i) values.push_back(i % 7);
  const Interval one = BootstrapMean(values, 1), again = BootstrapMean(values, 1),
                 other = BootstrapMean(values, 2);
  EXPECT_EQ(one.low, again.low);
  EXPECT_EQ(one.high, again.high);
  EXPECT_TRUE(one.low != other.low || one.high != other.high);
}

TEST(BootstrapMean, IsAboutTwoStandardErrorsWide) {
  // 200 values of ±1: mean 0, standard error 1/sqrt(200) = 0.0707, so about ±0.139.
  std::vector<double> values;
  for (int i = 0; i < 200; ++i) values.push_back(i % 2 == 0 ? 1 : -1);
  const Interval interval = BootstrapMean(values, 1);
  EXPECT_NEAR(interval.low, -0.139, 0.02);
  EXPECT_NEAR(interval.high, 0.139, 0.02);
}

TEST(BootstrapMean, OfOneValueHasNoWidth) {
  const std::vector<double> one{0.5};
  EXPECT_EQ(BootstrapMean(one, 1).low, 0.5);
  EXPECT_EQ(BootstrapMean(one, 1).high, 0.5);
  EXPECT_EQ(BootstrapMean({}, 1).low, 0);
}

TEST(McNemarExact, AgreesWithTheBinomialTest) {
  EXPECT_EQ(McNemarExact(0, 0), 1);
  EXPECT_NEAR(McNemarExact(0, 5), 2.0 / 32, 1e-12);
  EXPECT_NEAR(McNemarExact(5, 0), 2.0 / 32, 1e-12);
  // 2 · (1 + 10 + 45) / 1024
  EXPECT_NEAR(McNemarExact(2, 8), 112.0 / 1024, 1e-12);
  EXPECT_EQ(McNemarExact(3, 3), 1);
  EXPECT_LT(McNemarExact(400, 700), 1e-10);
}

TEST(NormalizeAnswer, DropsCasePunctuationAndArticles) {
  EXPECT_EQ(NormalizeAnswer("The  Dark-Green, dress!"), "darkgreen dress");
  EXPECT_EQ(NormalizeAnswer("An apple a day"), "apple day");
  EXPECT_EQ(NormalizeAnswer("  \n "), "");
  EXPECT_EQ(NormalizeAnswer("星期四。"), "星 期 四");
  EXPECT_EQ(NormalizeAnswer("“Éclair”"), "éclair");
}

TEST(NormalizeAnswer, TakesWhatIsNotUtf8) {
  EXPECT_NO_FATAL_FAILURE(NormalizeAnswer("\xFF\xFE\xC3"));
  EXPECT_NO_FATAL_FAILURE(NormalizeAnswer("ab\xF0\x9F"));
}

TEST(TokenF1, CountsCommonWordsOnce) {
  EXPECT_EQ(TokenF1("the cat", "a cat"), 1);
  // Two of three predicted, two of two expected: 2·2/(3+2).
  EXPECT_NEAR(TokenF1("old green bike", "green bike"), 0.8, 1e-12);
  // "pip" is expected once only: 2·1/(3+1).
  EXPECT_NEAR(TokenF1("pip pip pip", "pip"), 0.5, 1e-12);
  EXPECT_EQ(TokenF1("dog", "cat"), 0);
  EXPECT_EQ(TokenF1("", ""), 1);
  EXPECT_EQ(TokenF1("", "cat"), 0);
  EXPECT_NEAR(TokenF1("星期五", "星期四"), 2.0 / 3, 1e-12);
}

TEST(Bleu1, ClipsAndPunishesShortAnswers) {
  EXPECT_EQ(Bleu1("green bike", "green bike"), 1);
  EXPECT_NEAR(Bleu1("green green green", "green bike"), 1.0 / 3, 1e-12);
  EXPECT_NEAR(Bleu1("green", "green bike"), std::exp(-1.0), 1e-12);
  EXPECT_EQ(Bleu1("", "green"), 0);
}

TEST(ExactMatch, ComparesNormalizedAnswers) {
  EXPECT_TRUE(ExactMatch("The Pebble.", "pebble"));
  EXPECT_FALSE(ExactMatch("pebbles", "pebble"));
}

TEST(KlDivergence, IsExactWhenEveryTokenIsListed) {
  const std::vector<float> p{std::log(0.5f), std::log(0.25f), std::log(0.25f)};
  const std::vector<float> q{std::log(0.25f), std::log(0.25f), std::log(0.5f)};
  const SparseDistribution all = Sparsify(p, 3);
  EXPECT_EQ(all.top(), 0);
  // 0.5·ln 2 + 0 − 0.25·ln 2
  EXPECT_NEAR(KlDivergence(all, q), 0.25 * std::log(2.0), 1e-6);
  EXPECT_NEAR(KlDivergence(all, p), 0, 1e-6);
}

TEST(KlDivergence, PutsUnlistedTokensIntoOneBucket) {
  const std::vector<float> p{std::log(0.5f), std::log(0.3f), std::log(0.2f)};
  const std::vector<float> q{std::log(0.25f), std::log(0.5f), std::log(0.25f)};
  // Listed: token 0 alone. 0.5·ln(0.5/0.25) + 0.5·ln(0.5/0.75)
  EXPECT_NEAR(KlDivergence(Sparsify(p, 1), q), 0.5 * std::log(2.0) + 0.5 * std::log(2.0 / 3), 1e-6);
}

TEST(KlDivergence, OfNothingIsZero) {
  EXPECT_EQ(KlDivergence({}, {}), 0);
  SparseDistribution outside;
  outside.logprobs = {{7, -0.1f}};
  const std::vector<float> small{-0.5f, -1.0f};
  EXPECT_EQ(KlDivergence(outside, small), 0);
}

}  // namespace
}  // namespace inferscale
