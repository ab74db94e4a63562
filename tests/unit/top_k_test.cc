#include "kernels/kernels.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "support/kernel_reference.h"

namespace inferscale::kernels {
namespace {

using namespace reference;  // NOLINT: the whole file is about it

struct Ranked {
  std::int64_t row;
  double score;
};

std::vector<Ranked> BruteForce(const std::vector<std::uint16_t>& rows, std::int64_t count,
                               std::int32_t dim, const std::vector<float>& query,
                               const std::uint64_t* allowed) {
  std::vector<Ranked> all;
  for (std::int64_t r = 0; r < count; ++r) {
    if (allowed != nullptr && (allowed[r / 64] >> (r % 64) & 1) == 0) continue;
    double score = 0;
    for (std::int32_t d = 0; d < dim; ++d) {
      score += FromHalf(rows[static_cast<std::size_t>(r * dim + d)]) *
               static_cast<double>(query[static_cast<std::size_t>(d)]);
    }
    all.push_back({r, score});
  }
  std::sort(all.begin(), all.end(), [](const Ranked& a, const Ranked& b) {
    return a.score != b.score ? a.score > b.score : a.row < b.row;
  });
  return all;
}

TEST(TopK, EqualsBruteForceWithTiesAndBitmaps) {
  std::mt19937 random(17);
  for (int round = 0; round < 300; ++round) {
    SCOPED_TRACE(round);
    const std::int32_t dim = Pick(random, 1, 70), k = Pick(random, 1, 40);
    const std::int64_t count = Pick(random, 1, 400);
    // Small integers: sums are exact, so that scores and ties can be compared exactly.
    std::vector<std::uint16_t> rows;
    std::vector<float> query;
    for (std::int64_t i = 0; i < count * dim; ++i) rows.push_back(Half(Pick(random, -2, 2)));
    for (std::int32_t i = 0; i < dim; ++i) query.push_back(static_cast<float>(Pick(random, -3, 3)));
    std::vector<std::uint64_t> bitmap(static_cast<std::size_t>((count + 63) / 64));
    for (auto& word : bitmap) {
      word = std::uint64_t{random()} << 32 | random();
      if (round % 3 == 0) word &= std::uint64_t{random()} << 32 | random();
    }
    const std::uint64_t* allowed = round % 2 == 0 ? nullptr : bitmap.data();
    const auto expected = BruteForce(rows, count, dim, query, allowed);
    std::vector<std::int64_t> found(static_cast<std::size_t>(k) + 1, -7);
    std::vector<float> scores(static_cast<std::size_t>(k) + 1, -7);
    const std::int32_t got =
        TopK(rows.data(), count, dim, query.data(), allowed, k, found.data(), scores.data());
    ASSERT_EQ(static_cast<std::size_t>(got),
              std::min(expected.size(), static_cast<std::size_t>(k)));
    for (std::size_t i = 0; i < static_cast<std::size_t>(got); ++i) {
      ASSERT_EQ(found[i], expected[i].row) << i;
      ASSERT_EQ(scores[i], expected[i].score) << i;
    }
    ASSERT_EQ(found[static_cast<std::size_t>(got)], -7);
  }
}

TEST(TopK, GivesEqualRowsEqualScoresInRowOrder) {
  std::mt19937 random(18);
  std::normal_distribution<double> normal;
  const std::int32_t dim = 389;
  std::vector<std::uint16_t> row, rows;
  std::vector<float> query;
  for (std::int32_t d = 0; d < dim; ++d) {
    row.push_back(Half(normal(random)));
    query.push_back(static_cast<float>(normal(random)));
  }
  for (int i = 0; i < 23; ++i) rows.insert(rows.end(), row.begin(), row.end());
  std::vector<std::int64_t> found(23);
  std::vector<float> scores(23);
  ASSERT_EQ(TopK(rows.data(), 23, dim, query.data(), nullptr, 23, found.data(), scores.data()), 23);
  for (std::size_t i = 0; i < 23; ++i) {
    EXPECT_EQ(found[i], static_cast<std::int64_t>(i));
    EXPECT_EQ(scores[i], scores[0]);
  }
}

TEST(TopK, PutsRowsThatAreNotNumbersLast) {
  const std::vector<std::uint16_t> rows = {0x7e00, Half(1), Half(3), 0x7e00};
  const float query[] = {1};
  std::int64_t found[4];
  float scores[4];
  ASSERT_EQ(TopK(rows.data(), 4, 1, query, nullptr, 2, found, scores), 2);
  EXPECT_EQ(found[0], 2);
  EXPECT_EQ(found[1], 1);
  ASSERT_EQ(TopK(rows.data(), 4, 1, query, nullptr, 9, found, scores), 4);
  EXPECT_EQ(found[2], 0);
  EXPECT_EQ(found[3], 3);
}

TEST(TopK, ChecksItsArguments) {
  const std::uint16_t rows[4] = {};
  const float query[2] = {};
  std::int64_t found[4];
  float scores[4];
  EXPECT_EQ(TopK(rows, 2, 2, query, nullptr, 4, found, scores), 2);
  EXPECT_EQ(TopK(rows, 0, 2, query, nullptr, 4, found, scores), 0);
  EXPECT_EQ(TopK(rows, 2, 2, query, nullptr, 0, found, scores), 0);
  EXPECT_EQ(TopK(rows, -1, 2, query, nullptr, 4, found, scores), -1);
  EXPECT_EQ(TopK(rows, 2, 0, query, nullptr, 4, found, scores), -1);
  EXPECT_EQ(TopK(rows, 2, 2, query, nullptr, -1, found, scores), -1);
  EXPECT_EQ(TopK(nullptr, 2, 2, query, nullptr, 4, found, scores), -1);
  EXPECT_EQ(TopK(rows, 2, 2, nullptr, nullptr, 4, found, scores), -1);
  EXPECT_EQ(TopK(rows, 2, 2, query, nullptr, 4, nullptr, scores), -1);
  EXPECT_EQ(TopK(rows, INT64_MAX, 2, query, nullptr, 4, found, scores), -1);
}

}  // namespace
}  // namespace inferscale::kernels
