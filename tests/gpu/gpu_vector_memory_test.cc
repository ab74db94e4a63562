#include <gtest/gtest.h>

#include <atomic>
#include <random>
#include <thread>

#include "kernels/kernels.h"
#include "retrieval/vector_memory.h"

namespace inferscale {
namespace {

constexpr std::int32_t kDimensions = 384;

class GpuVectorMemoryTest : public ::testing::Test {
 protected:
  void SetUp() override {
    const auto gpu = MakeVectorMemory("cuda");
    if (!gpu.ok()) GTEST_SKIP() << gpu.status().ToString();
    auto on_gpu = (*gpu)->MakeRows(kDimensions),
         on_host = MakeHostVectorMemory()->MakeRows(kDimensions);
    ASSERT_TRUE(on_gpu.ok() && on_host.ok());
    gpu_ = std::move(*on_gpu);
    host_ = std::move(*on_host);
  }

  std::vector<float> MakeVector() {
    std::normal_distribution<float> normal;
    std::vector<float> vector(kDimensions);
    for (float& x : vector) x = normal(random_) / std::sqrt(static_cast<float>(kDimensions));
    return vector;
  }

  void Append(int count) {
    std::vector<EmbeddingRow> rows(static_cast<std::size_t>(count));
    for (EmbeddingRow& row : rows) {
      row.vector.resize(kDimensions);
      kernels::FloatToHalf(MakeVector().data(), row.vector.data(), kDimensions);
    }
    size_ += rows.size();
    ASSERT_TRUE(host_->Append(rows).ok());
    const Status status = gpu_->Append(rows);
    ASSERT_TRUE(status.ok()) << status.ToString();
  }

  /// Whether both find the same; scores of different facts may change places within rounding.
  bool Same(const std::vector<float>& query, const std::uint64_t* allowed, std::int32_t k) const {
    const auto host = host_->TopK(query, allowed, k), gpu = gpu_->TopK(query, allowed, k);
    if (!host.ok() || !gpu.ok() || host->size() != gpu->size()) return false;
    constexpr float kRounding = 1e-5f;
    for (std::size_t i = 0; i < host->size(); ++i) {
      if (std::abs((*host)[i].score - (*gpu)[i].score) > kRounding) return false;
    }
    return true;
  }

  std::mt19937 random_{3};
  std::unique_ptr<VectorRows> gpu_, host_;
  std::size_t size_ = 0;
};

TEST_F(GpuVectorMemoryTest, FindsWhatMemoryFindsWhileRowsAreAppended) {
  for (const int added : {1, 40, 1000, 9000}) {
    Append(added);
    std::vector<std::uint64_t> allowed((size_ + 63) / 64);
    for (auto& word : allowed) word = std::uint64_t{random_()} << 32 | random_();
    for (const std::int32_t k : {1, 80, 5000}) {
      EXPECT_TRUE(Same(MakeVector(), nullptr, k)) << size_ << " rows, k " << k;
      EXPECT_TRUE(Same(MakeVector(), allowed.data(), k)) << size_ << " rows, k " << k;
    }
  }
}

TEST_F(GpuVectorMemoryTest, AFactHasOneScoreHoweverItWasFound) {
  Append(10'000);
  const std::vector<float> query = MakeVector();
  const auto best = gpu_->TopK(query, nullptr, 60);
  ASSERT_TRUE(best.ok()) << best.status().ToString();
  std::vector<std::uint32_t> positions;
  for (const VectorMatch& match : *best) positions.push_back(match.position);
  const auto scores = gpu_->Scores(query, positions);
  ASSERT_TRUE(scores.ok());
  for (std::size_t i = 0; i < positions.size(); ++i) EXPECT_EQ((*scores)[i], (*best)[i].score);
}

TEST_F(GpuVectorMemoryTest, ThreadsThatSearchTogetherGetTheirOwnAnswers) {
  Append(20'000);
  std::vector<std::vector<float>> queries;
  for (int i = 0; i < 16; ++i) queries.push_back(MakeVector());
  std::atomic<int> wrong = 0;
  std::vector<std::thread> threads;
  for (const auto& query : queries) {
    threads.emplace_back([&] {
      for (int round = 0; round < 20; ++round) {
        if (!Same(query, nullptr, 20)) ++wrong;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(wrong, 0);
}

}  // namespace
}  // namespace inferscale
