#include "kv/block_directory.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <random>
#include <vector>

namespace inferscale {
namespace {

KvKey KeyOf(std::uint8_t number) {
  KvKey key;
  key.bytes.fill(number);
  return key;
}

DirectoryBlock BlockOf(std::uint8_t number, std::uint64_t scope = 1, std::uint64_t epoch = 1) {
  return {KeyOf(number), scope, epoch, 100,
          TokenDigest::Of(std::vector<TokenId>{number, number + 1})};
}

std::uint64_t StoreOn(BlockDirectory& directory, std::uint8_t number, int ranks) {
  const auto place = directory.Reserve(BlockOf(number));
  EXPECT_TRUE(place.ok()) << place.status().ToString();
  for (int rank = 0; rank < ranks; ++rank) directory.Stored(KeyOf(number), place->serial);
  return place->serial;
}

TEST(BlockDirectory, IsReadyWhenEveryRankHasStoredIt) {
  BlockDirectory directory(1000, 2);
  const auto place = directory.Reserve(BlockOf(1));
  ASSERT_TRUE(place.ok());
  EXPECT_FALSE(directory.Stored(KeyOf(1), place->serial));
  EXPECT_FALSE(directory.Ready(KeyOf(1)));
  EXPECT_EQ(directory.Pin(KeyOf(1)), 0u);
  EXPECT_TRUE(directory.Stored(KeyOf(1), place->serial));
  EXPECT_TRUE(directory.Ready(KeyOf(1)));
  EXPECT_NE(directory.Find(KeyOf(1), std::vector<TokenId>{1, 2}), nullptr);
  EXPECT_EQ(directory.Find(KeyOf(1), std::vector<TokenId>{1, 3}), nullptr);
  EXPECT_EQ(directory.Find(KeyOf(1), std::vector<TokenId>{1}), nullptr);
  EXPECT_EQ(directory.Reserve(BlockOf(1)).status().code(), StatusCode::kAlreadyExists);
}

TEST(BlockDirectory, EvictsTheLeastRecentlyUsedUnpinnedBlock) {
  BlockDirectory directory(300, 1);
  for (std::uint8_t i = 1; i <= 3; ++i) StoreOn(directory, i, 1);
  const std::uint64_t pin = directory.Pin(KeyOf(2));
  directory.Unpin(KeyOf(1), directory.Pin(KeyOf(1)));  // used since
  ASSERT_NE(pin, 0u);
  const auto place = directory.Reserve(BlockOf(4));
  ASSERT_TRUE(place.ok());
  EXPECT_EQ(place->evict, std::vector{KeyOf(3)});
  // One pinned, one used since, one still being stored: the used one goes.
  const auto next = directory.Reserve(BlockOf(5));
  ASSERT_TRUE(next.ok());
  EXPECT_EQ(next->evict, std::vector{KeyOf(1)});
  const auto full = directory.Reserve(BlockOf(6));
  EXPECT_EQ(full.status().code(), StatusCode::kResourceExhausted);
  EXPECT_EQ(directory.bytes(), 300);
  directory.Unpin(KeyOf(2), pin);
  EXPECT_TRUE(directory.Reserve(BlockOf(6)).ok());
  EXPECT_EQ(directory.pins(), 0);
  EXPECT_EQ(directory.evictions(), 3);
}

TEST(BlockDirectory, APinOfAnErasedBlockDoesNotTouchItsSuccessor) {
  BlockDirectory directory(1000, 1);
  const std::uint64_t first = StoreOn(directory, 1, 1);
  const std::uint64_t old_pin = directory.Pin(KeyOf(1));
  EXPECT_TRUE(directory.Erase(KeyOf(1)));
  EXPECT_EQ(directory.pins(), 0);
  const std::uint64_t second = StoreOn(directory, 1, 1);
  EXPECT_NE(first, second);
  const std::uint64_t new_pin = directory.Pin(KeyOf(1));
  directory.Unpin(KeyOf(1), old_pin);
  EXPECT_EQ(directory.pins(), 1);
  EXPECT_FALSE(directory.Stored(KeyOf(1), first));
  EXPECT_FALSE(directory.Lost(KeyOf(1), first));
  directory.Unpin(KeyOf(1), new_pin);
  EXPECT_EQ(directory.pins(), 0);
}

TEST(BlockDirectory, AFencedScopeTakesNoBlockOfAnEarlierEpoch) {
  BlockDirectory directory(1000, 1);
  StoreOn(directory, 1, 1);
  EXPECT_EQ(directory.EraseScope(1, 5), std::vector{KeyOf(1)});
  EXPECT_EQ(directory.Reserve(BlockOf(1, 1, 4)).status().code(), StatusCode::kFailedPrecondition);
  EXPECT_TRUE(directory.Reserve(BlockOf(1, 1, 5)).ok());
  EXPECT_TRUE(directory.Reserve(BlockOf(2, 2, 1)).ok());
  directory.Clear();
  EXPECT_EQ(directory.blocks(), 0);
  EXPECT_EQ(directory.Reserve(BlockOf(3, 1, 4)).status().code(), StatusCode::kFailedPrecondition);
}

TEST(BlockDirectory, LongChurnKeepsBytesWithinTheBudgetAndPinsBalanced) {
  BlockDirectory directory(20 * 100, 2);
  std::mt19937 random(7);
  std::vector<std::pair<KvKey, std::uint64_t>> pins;
  for (int step = 0; step < 20000; ++step) {
    const auto number = static_cast<std::uint8_t>(random() % 60);
    switch (random() % 4) {
      case 0: {
        const auto place = directory.Reserve(BlockOf(number));
        if (!place.ok()) break;
        if (random() % 8 == 0) {
          directory.Stored(KeyOf(number), place->serial);
          directory.Lost(KeyOf(number), place->serial);
        } else {
          directory.Stored(KeyOf(number), place->serial);
          directory.Stored(KeyOf(number), place->serial);
        }
        break;
      }
      case 1:
        if (const auto pin = directory.Pin(KeyOf(number)); pin != 0 && pins.size() < 10) {
          pins.emplace_back(KeyOf(number), pin);
        } else if (pin != 0) {
          directory.Unpin(KeyOf(number), pin);
        }
        break;
      case 2:
        if (!pins.empty()) {
          directory.Unpin(pins.back().first, pins.back().second);
          pins.pop_back();
        }
        break;
      default:
        if (random() % 16 == 0) directory.Erase(KeyOf(number));
    }
    ASSERT_LE(directory.bytes(), 2000);
    ASSERT_EQ(directory.bytes(), directory.blocks() * 100);
    ASSERT_LE(directory.pins(), static_cast<std::int64_t>(pins.size()));
  }
  for (const auto& [key, pin] : pins) directory.Unpin(key, pin);
  EXPECT_EQ(directory.pins(), 0);
  EXPECT_GT(directory.evictions(), 100);
}

}  // namespace
}  // namespace inferscale
