#ifndef INFERSCALE_TESTS_SUPPORT_TOP_K_SUITE_H_
#define INFERSCALE_TESTS_SUPPORT_TOP_K_SUITE_H_

/// \file top_k_suite.h
/// What every DeviceTopK has to do. A test file defines MakeTestDevice() and MakeTestTopK(), and
/// includes this.

#include <gtest/gtest.h>

#include <memory>

#include "support/top_k_cases.h"

namespace inferscale::testing {

/// Null: there is none on this machine, and the tests skip, with `why`.
std::unique_ptr<kernels::Device> MakeTestDevice(std::string* why);
Result<std::unique_ptr<kernels::DeviceTopK>> MakeTestTopK(const kernels::TopKSetup& setup);

class DeviceTopKTest : public ::testing::TestWithParam<kernels::RowType> {
 protected:
  using Kind = TestRows::Kind;

  void SetUp() override {
    std::string why;
    device_ = MakeTestDevice(&why);
    if (device_ == nullptr) GTEST_SKIP() << why;
  }

  std::unique_ptr<kernels::DeviceTopK> Make(std::int32_t dim, std::int32_t max_queries,
                                            std::int32_t max_k, std::int64_t max_rows) {
    kernels::TopKSetup setup;
    setup.type = GetParam();
    setup.dim = dim;
    setup.max_queries = max_queries;
    setup.max_k = max_k;
    setup.max_rows = max_rows;
    auto made = MakeTestTopK(setup);
    EXPECT_TRUE(made.ok()) << made.status().ToString();
    return made.ok() ? std::move(*made) : nullptr;
  }

  std::unique_ptr<TestRows> MakeRows(std::int64_t count, std::int32_t dim, Kind kind) {
    return std::make_unique<TestRows>(*device_, GetParam(), count, dim, kind, random_);
  }

  std::int32_t Between(std::int32_t least, std::int32_t most) {
    return std::uniform_int_distribution<std::int32_t>(least, most)(random_);
  }

  /// A batch over owners, each query with one of them, half with a bitmap.
  void CheckBatch(kernels::DeviceTopK& search, std::span<const std::unique_ptr<TestRows>> owners,
                  std::int32_t batch, std::int32_t dim, std::int32_t max_k, bool bitmaps = true) {
    std::vector<std::vector<float>> vectors;
    std::vector<std::vector<std::uint64_t>> allowed;
    std::vector<kernels::TopKQuery> queries;
    std::vector<const TestRows*> searched;
    for (std::int32_t i = 0; i < batch; ++i) {
      const TestRows& owner =
          *owners[static_cast<std::size_t>(Between(0, static_cast<int>(owners.size()) - 1))];
      vectors.push_back(owner.MakeQuery(random_));
      const double shares[] = {0.0, 0.01, 0.5, 0.97};
      allowed.push_back(MakeBitmap(owner.range().count, shares[Between(0, 3)], random_));
      kernels::TopKQuery query;
      query.range = owner.range();
      query.vector = vectors.back().data();
      if (bitmaps && Between(0, 1) == 0) query.allowed = allowed.back().data();
      query.k = Between(0, 3) == 0 ? max_k : Between(0, max_k);
      queries.push_back(query);
      searched.push_back(&owner);
    }
    ExpectExactHits(*device_, search, queries, searched, dim);
  }

  std::mt19937 random_{20261130};
  std::unique_ptr<kernels::Device> device_;
};

TEST_P(DeviceTopKTest, FindsWhatTheOracleFindsInRandomBatchesOfSmallRanges) {
  for (int round = 0; round < 30; ++round) {
    SCOPED_TRACE(round);
    const std::int32_t dims[] = {1, 2, 7, 31, 32, 33, 64, 100, 383, 384, 385, 768, 1023, 1024};
    const std::int32_t dim = dims[Between(0, std::size(dims) - 1)];
    const std::int32_t max_k = round % 3 == 0 ? 1000 : Between(1, 64), batch = Between(1, 64);
    const auto search = Make(dim, 64, max_k, 3000);
    ASSERT_NE(search, nullptr);
    std::vector<std::unique_ptr<TestRows>> owners;
    const std::int32_t counts[] = {0, 1, 3, 4, 31, 32, 33, 63, 64, 65, 127, 129, 999, 1000};
    for (int i = 0; i < 6; ++i) {
      const auto kind = static_cast<Kind>(Between(0, 2));
      owners.push_back(MakeRows(counts[Between(0, std::size(counts) - 1)], dim, kind));
    }
    CheckBatch(*search, owners, batch, dim, max_k);
    if (HasFatalFailure()) return;
  }
}

TEST_P(DeviceTopKTest, FindsWhatTheOracleFindsInLargeRanges) {
  for (int round = 0; round < 12; ++round) {
    SCOPED_TRACE(round);
    const std::int32_t dims[] = {5, 32, 48, 129, 384};
    const std::int32_t dim = dims[round % 5];
    const std::int32_t max_k = round % 4 == 3 ? 1000 : 50;
    std::vector<std::unique_ptr<TestRows>> owners;
    owners.push_back(MakeRows(8193 + Between(0, 4000), dim, static_cast<Kind>(round % 3)));
    if (round % 2 == 0) owners.push_back(MakeRows(500, dim, Kind::kUnit));
    const auto search = Make(dim, 64, max_k, 14'000);
    ASSERT_NE(search, nullptr);
    // One query scans alone; two to sixteen and more share the range.
    const std::int32_t batches[] = {1, 2, 9, 17, 64};
    CheckBatch(*search, owners, batches[round % 5], dim, max_k, round % 3 != 0);
    if (HasFatalFailure()) return;
  }
}

TEST_P(DeviceTopKTest, FindsTheBestWhereRoundedQueriesMislead) {
  const std::int32_t dim = 3;
  const auto search = Make(dim, 64, 50, 20'000);
  ASSERT_NE(search, nullptr);
  std::vector<std::unique_ptr<TestRows>> owners;
  owners.push_back(MakeRows(20'000, dim, Kind::kMisleading));
  for (const std::int32_t batch : {1, 4, 30}) CheckBatch(*search, owners, batch, dim, 50);
}

TEST_P(DeviceTopKTest, EqualRowsComeInTheirOrderHoweverManyThereAre) {
  // Every row of a kind is the same: all of the range ties at the k-th place.
  for (const std::int64_t count : {std::int64_t{5000}, std::int64_t{20'000}}) {
    const std::int32_t dim = 3;
    const auto search = Make(dim, 8, 1000, count);
    ASSERT_NE(search, nullptr);
    std::vector<std::unique_ptr<TestRows>> owners;
    owners.push_back(MakeRows(count, dim, Kind::kSmallIntegers));
    CheckBatch(*search, owners, 8, dim, 1000);
  }
}

TEST_P(DeviceTopKTest, TakesLongVectorsAndQueriesOfAnyLength) {
  for (const std::int32_t dim : {1568, 6176}) {
    const auto search = Make(dim, 20, 10, 9000);
    ASSERT_NE(search, nullptr);
    std::vector<std::unique_ptr<TestRows>> owners;
    owners.push_back(MakeRows(8200, dim, Kind::kUnit));
    CheckBatch(*search, owners, 20, dim, 10);
    if (HasFatalFailure()) return;
  }
  const std::int32_t dim = 384;
  const auto search = Make(dim, 4, 10, 9000);
  const auto rows = MakeRows(9000, dim, Kind::kUnit);
  std::vector<std::vector<float>> vectors;
  std::vector<kernels::TopKQuery> queries;
  std::vector<const TestRows*> searched;
  for (const float length : {1e-12f, 1e-3f, 1.0f, 1e12f}) {
    vectors.push_back(rows->MakeQuery(random_));
    for (float& x : vectors.back()) x *= length;
    queries.push_back({rows->range(), vectors.back().data(), nullptr, 10});
    searched.push_back(rows.get());
  }
  for (std::size_t i = 0; i < queries.size(); ++i) queries[i].vector = vectors[i].data();
  ExpectExactHits(*device_, *search, queries, searched, dim);
}

TEST_P(DeviceTopKTest, TheSameSearchHasTheSameBitsInEveryBatch) {
  const std::int32_t dim = 384, k = 50;
  const auto search = Make(dim, 64, k, 10'000);
  ASSERT_NE(search, nullptr);
  const auto rows = MakeRows(10'000, dim, Kind::kAlike);
  std::vector<std::vector<float>> vectors;
  std::vector<kernels::TopKQuery> queries;
  for (int i = 0; i < 64; ++i) vectors.push_back(rows->MakeQuery(random_));
  for (const auto& vector : vectors) queries.push_back({rows->range(), vector.data(), nullptr, k});
  std::vector<std::int64_t> first_rows(k), found_rows(k);
  std::vector<float> first_scores(k), found_scores(k);
  for (const std::size_t batch : {1, 2, 16, 17, 64, 64}) {
    const auto started = search->Search(std::span(queries).first(batch), device_->copy_stream());
    ASSERT_TRUE(started.ok());
    const auto event = device_->Record(device_->copy_stream());
    ASSERT_TRUE(event.ok() && device_->Wait(*event).ok());
    ASSERT_EQ(search->Hits(*started, 0, found_rows.data(), found_scores.data()), k);
    if (batch == 1) {
      first_rows = found_rows;
      first_scores = found_scores;
    }
    EXPECT_EQ(found_rows, first_rows) << batch;
    EXPECT_EQ(found_scores, first_scores) << batch;
  }
}

TEST_P(DeviceTopKTest, SearchesGoOnWhileEarlierOnesAreRead) {
  const std::int32_t dim = 16, k = 5;
  const auto search = Make(dim, 1, k, 100);
  ASSERT_NE(search, nullptr);
  const auto rows = MakeRows(100, dim, Kind::kUnit);
  const std::vector<float> a = rows->MakeQuery(random_), b = rows->MakeQuery(random_);
  const kernels::TopKQuery query_a{rows->range(), a.data(), nullptr, k};
  const kernels::TopKQuery query_b{rows->range(), b.data(), nullptr, k};
  const auto search_a = search->Search({&query_a, 1}, device_->copy_stream());
  const auto search_b = search->Search({&query_b, 1}, device_->copy_stream());
  ASSERT_TRUE(search_a.ok() && search_b.ok());
  const auto event = device_->Record(device_->copy_stream());
  ASSERT_TRUE(event.ok() && device_->Wait(*event).ok());
  std::int64_t found[k];
  float scores_a[k], scores_b[k];
  ASSERT_EQ(search->Hits(*search_a, 0, found, scores_a), k);
  EXPECT_NEAR(scores_a[0], rows->Score(found[0], a), 1e-5);
  ASSERT_EQ(search->Hits(*search_b, 0, found, scores_b), k);
  EXPECT_NEAR(scores_b[0], rows->Score(found[0], b), 1e-5);
}

TEST_P(DeviceTopKTest, RefusesWhatItWasNotMadeFor) {
  const std::int32_t dim = 16;
  const auto search = Make(dim, 1, 5, 100);
  ASSERT_NE(search, nullptr);
  const auto rows = MakeRows(100, dim, Kind::kUnit);
  const std::vector<float> vector = rows->MakeQuery(random_);
  const kernels::TopKQuery good{rows->range(), vector.data(), nullptr, 5};
  const auto refused = [&](std::vector<kernels::TopKQuery> queries) {
    const auto result = search->Search(queries, device_->copy_stream());
    return !result.ok() && result.status().code() == StatusCode::kInvalidArgument;
  };
  EXPECT_FALSE(refused({good}));
  EXPECT_TRUE(refused({good, good}));
  kernels::TopKQuery bad = good;
  bad.k = 6;
  EXPECT_TRUE(refused({bad}));
  bad = good;
  bad.range.count = 101;
  EXPECT_TRUE(refused({bad}));
  bad = good;
  bad.range.rows += 2;
  EXPECT_TRUE(refused({bad}));
  bad = good;
  bad.vector = nullptr;
  EXPECT_TRUE(refused({bad}));
  kernels::TopKSetup setup;
  EXPECT_FALSE(MakeTestTopK(setup).ok());
}

INSTANTIATE_TEST_SUITE_P(Rows, DeviceTopKTest,
                         ::testing::Values(kernels::RowType::kF16, kernels::RowType::kInt8),
                         [](const auto& info) {
                           return info.param == kernels::RowType::kF16 ? "F16" : "Int8";
                         });

}  // namespace inferscale::testing

#endif  // INFERSCALE_TESTS_SUPPORT_TOP_K_SUITE_H_
