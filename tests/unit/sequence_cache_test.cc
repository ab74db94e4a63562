#include "engine/llama/sequence_cache.h"

#include <gtest/gtest.h>

#include <numeric>

namespace inferscale {
namespace {

TokenIds Counting(std::int32_t first, std::int32_t count) {
  TokenIds ids(static_cast<std::size_t>(count));
  std::iota(ids.begin(), ids.end(), first);
  return ids;
}

TEST(SequenceCache, FindsTheLongestPrefixOfTheSameSalt) {
  SequenceCache cache(4);
  cache.Keep(0, Counting(0, 50), "mine", {1}, {}, 50);
  cache.Keep(1, Counting(0, 80), "mine", {1}, {}, 80);
  cache.Keep(2, Counting(0, 200), "other", {2}, {}, 200);
  const auto prefix = cache.FindPrefix(Counting(0, 120), "mine", 119);
  EXPECT_EQ(prefix.sequence, 1);
  EXPECT_EQ(prefix.tokens, 80);
  EXPECT_EQ(cache.FindPrefix(Counting(0, 120), "nobody", 119).sequence, -1);
  EXPECT_EQ(cache.FindPrefix(Counting(5, 120), "mine", 119).sequence, -1);
  EXPECT_EQ(cache.FindPrefix(Counting(0, 60), "mine", 59).tokens, 59);
}

TEST(SequenceCache, RepeatsTheLastRunOfTheSamePrompt) {
  SequenceCache cache(1);
  cache.Keep(0, Counting(0, 120), "s", {}, {60, 90}, 100);
  EXPECT_EQ(cache.FindPrefix(Counting(0, 100), "s", 99).tokens, 90);
  EXPECT_EQ(cache.FindPrefix(Counting(0, 80), "s", 79).tokens, 60);
  EXPECT_EQ(cache.FindPrefix(Counting(0, 130), "s", 129).tokens, 120) << "a conversation goes on";
  cache.Keep(0, Counting(0, 1000), "s", {}, {0}, 1000);
  EXPECT_EQ(cache.FindPrefix(Counting(0, 1000), "s", 999).tokens, 999) << "too much to repeat";
}

TEST(SequenceCache, GivesRoomByAge) {
  SequenceCache cache(3);
  EXPECT_EQ(cache.FindRoom(), 0);
  cache.Keep(0, Counting(0, 5), "a", {}, {}, 5);
  cache.Occupy(1);
  EXPECT_EQ(cache.FindRoom(), 2) << "an empty one before a cached one";
  cache.Keep(2, Counting(0, 5), "b", {}, {}, 5);
  EXPECT_EQ(cache.FindRoom(), 0);
  cache.Occupy(0);
  EXPECT_EQ(cache.FindRoom(), 2);
  cache.Occupy(2);
  EXPECT_EQ(cache.FindRoom(), -1);
  EXPECT_EQ(cache.FindPrefix(Counting(0, 9), "b", 8).sequence, -1)
      << "running sequences are not shared";
  cache.Free(1);
  EXPECT_EQ(cache.FindRoom(), 1);
}

TEST(SequenceCache, KnowsTheCachedSequencesOfAScope) {
  SequenceCache cache(3);
  cache.Keep(0, Counting(0, 5), "a", {7, 8}, {}, 5);
  cache.Keep(1, Counting(0, 5), "b", {8}, {}, 5);
  cache.Keep(2, Counting(0, 5), "c", {}, {}, 5);
  EXPECT_EQ(cache.CachedOf(8), (std::vector<std::int32_t>{0, 1}));
  EXPECT_EQ(cache.CachedOf(7), (std::vector<std::int32_t>{0}));
  cache.Occupy(0);
  EXPECT_TRUE(cache.CachedOf(7).empty());
}

}  // namespace
}  // namespace inferscale
