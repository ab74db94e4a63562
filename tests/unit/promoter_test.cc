#include "connector/promoter.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <map>
#include <memory>
#include <vector>

#include "support/kv_blocks.h"
#include "support/lazy_device.h"

namespace inferscale::test {
namespace {

class PromoterTest : public ::testing::Test {
 protected:
  void Start(std::int64_t pinned_bytes, std::int64_t host_bytes) {
    KvStoreOptions options;
    options.folder = folder_.path();
    options.fingerprint = TestFingerprint(1);
    options.host_budget_bytes = host_bytes;
    store_ = *KvStore::Open(std::move(options));
    if (pinned_bytes > 0) pinned_ = *PinnedTier::Create(device_, pinned_bytes);
    const KvGeometry shape = TestBlockInfo(0).geometry;
    promoter_ = *Promoter::Create(
        device_, *store_, pinned_.get(),
        {KvCodec::kF16, shape.layers, shape.kv_heads, shape.key_dim, shape.value_dim});
  }

  void Put(std::uint64_t number, int tokens) {
    KvBlockInfo info = TestBlockInfo(number, KvCodec::kF16, tokens);
    ASSERT_TRUE(store_->Put(TestBlock(info, number)).ok());
    sources_[number] = TestPayload(info, number);
  }

  void Promote(std::uint64_t number, int tokens) {
    auto& place = places_[number];
    place.assign(TestPayload(TestBlockInfo(number, KvCodec::kF16, tokens), number).size(), 0);
    promoter_->Add({number,
                    {TestKey(number), 5, tokens, static_cast<std::int64_t>(place.size())},
                    place.data()});
  }

  std::map<std::uint64_t, Status> Results() {
    std::map<std::uint64_t, Status> results;
    while (promoter_->WaitForResult()) {
      for (PromotionResult& result : promoter_->TakeFinished()) {
        results[result.id] = std::move(result.status);
      }
    }
    return results;
  }

  TemporaryFolder folder_;
  LazyDevice device_{1};
  std::unique_ptr<KvStore> store_;
  std::unique_ptr<PinnedTier> pinned_;
  std::map<std::uint64_t, std::vector<std::uint8_t>> sources_, places_;
  std::unique_ptr<Promoter> promoter_;  // goes first
};

TEST_F(PromoterTest, BringsUpWhatIsInFilesInMemoryOrPinned) {
  for (const std::int64_t pinned_bytes : {0, 20'000, 1'000'000}) {
    for (const std::int64_t host_bytes : {0, 1'000'000}) {
      promoter_ = nullptr;
      Start(pinned_bytes, host_bytes);
      for (std::uint64_t n = 0; n < 40; ++n) Put(n, 1 + static_cast<int>(n));
      for (int round = 0; round < 2; ++round) {
        for (std::uint64_t n = 0; n < 40; ++n) Promote(n, 1 + static_cast<int>(n));
        const auto results = Results();
        ASSERT_EQ(results.size(), 40U);
        // Its result says that a block is there: nothing more is waited for.
        for (const auto& [n, status] : results) {
          EXPECT_TRUE(status.ok()) << status.ToString();
          EXPECT_EQ(places_[n], sources_[n]);
        }
      }
    }
  }
  EXPECT_EQ(pinned_->Stats().hits, 40);  // of the last one's second round
}

TEST_F(PromoterTest, WhatIsPinnedNeedsNoFile) {
  Start(1'000'000, 0);
  Put(1, 20);
  Promote(1, 20);
  ASSERT_TRUE(Results().at(1).ok());
  const KvKey key = TestKey(1);
  ASSERT_TRUE(store_->Erase(std::span(&key, 1)).ok());
  Promote(1, 20);
  EXPECT_TRUE(Results().at(1).ok());
  EXPECT_EQ(places_[1], sources_[1]);
  pinned_->Erase(key);
  Promote(1, 20);
  EXPECT_EQ(Results().at(1).code(), StatusCode::kNotFound);
}

TEST_F(PromoterTest, WhatIsMissingOrOfAnotherLengthIsReported) {
  Start(1'000'000, 0);
  Put(1, 20);
  Promote(1, 21);
  Promote(2, 20);
  const auto results = Results();
  EXPECT_EQ(results.at(1).code(), StatusCode::kNotFound);
  EXPECT_EQ(results.at(2).code(), StatusCode::kNotFound);
}

TEST_F(PromoterTest, WhatIsCalledOffHasAResultToo) {
  Start(1'000'000, 0);
  for (std::uint64_t n = 0; n < 30; ++n) Put(n, 20);
  for (std::uint64_t n = 0; n < 30; ++n) Promote(n, 20);
  promoter_->Abandon([](const DeviceBlockInfo& info) { return info.key != TestKey(29); });
  const auto results = Results();
  EXPECT_EQ(results.size(), 30U);
  EXPECT_TRUE(results.at(29).ok());
  for (const auto& [n, status] : results) {
    EXPECT_TRUE(status.ok() || status.code() == StatusCode::kFailedPrecondition);
  }
}

TEST(PinnedTierTest, EvictsTheLeastRecentlyUsedAndNothingThatIsRead) {
  LazyDevice device(1);
  auto tier = *PinnedTier::Create(device, 10 * 1024);
  const std::vector<std::uint8_t> payload(1024, 7);
  const auto info = [](std::uint64_t n) { return DeviceBlockInfo{TestKey(n), 1, 4, 1024}; };
  PinnedTier::Pin read = *tier->Insert(info(0), payload);
  for (std::uint64_t n = 1; n < 8; ++n) ASSERT_TRUE(tier->Insert(info(n), payload).ok());
  ASSERT_TRUE(tier->Acquire(TestKey(1)));
  for (std::uint64_t n = 8; n < 14; ++n) ASSERT_TRUE(tier->Insert(info(n), payload).ok());
  EXPECT_TRUE(tier->Acquire(TestKey(0)));
  EXPECT_TRUE(tier->Acquire(TestKey(1)));
  EXPECT_FALSE(tier->Acquire(TestKey(2)));
  EXPECT_GT(tier->Stats().evictions, 0);
  // What is captured evicts nothing.
  const std::int64_t evictions = tier->Stats().evictions;
  EXPECT_EQ(tier->ReserveFree(info(20)).status().code(), StatusCode::kResourceExhausted);
  for (std::uint64_t n = 8; n < 14; ++n) tier->Erase(TestKey(n));
  {
    const PinnedTier::Pin place = *tier->ReserveFree(info(20));
    EXPECT_FALSE(tier->Acquire(TestKey(20)));
    tier->Publish(place);
  }
  EXPECT_TRUE(tier->Acquire(TestKey(20)));
  EXPECT_EQ(tier->Stats().evictions, evictions);
  tier->EraseScope(1);
  EXPECT_FALSE(tier->Acquire(TestKey(0)));
  EXPECT_EQ(std::vector<std::uint8_t>(read.payload().begin(), read.payload().end()), payload);
}

}  // namespace
}  // namespace inferscale::test
