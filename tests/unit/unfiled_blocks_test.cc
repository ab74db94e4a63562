#include "kv/unfiled_blocks.h"

#include <gtest/gtest.h>

#include <set>
#include <vector>

#include "support/kv_blocks.h"

namespace inferscale::test {
namespace {

class UnfiledBlocksTest : public ::testing::Test {
 protected:
  void Add(std::uint64_t number, std::uint64_t scope = 7) {
    blocks_.Add(TestKey(number), scope);
    held_.insert(TestKey(number));
  }
  std::vector<KvKey> Look() {
    return blocks_.TakeGone([this](const KvKey& key) { return held_.contains(key); });
  }

  UnfiledBlocks blocks_;
  std::set<KvKey> held_;
};

TEST_F(UnfiledBlocksTest, TellsOnceOfEachThatIsGone) {
  Add(1);
  Add(2);
  EXPECT_TRUE(Look().empty());
  held_.erase(TestKey(1));
  EXPECT_EQ(Look(), std::vector{TestKey(1)});
  EXPECT_TRUE(Look().empty());
  EXPECT_EQ(blocks_.size(), 1U);
  Add(1);
  held_.erase(TestKey(1));
  EXPECT_EQ(Look(), std::vector{TestKey(1)});
}

TEST_F(UnfiledBlocksTest, LooksAtAFewATimeAndAtAllInTurn) {
  constexpr std::uint64_t kMany = 10 * UnfiledBlocks::kLook;
  for (std::uint64_t n = 0; n < kMany; ++n) Add(n);
  held_.clear();
  std::set<KvKey> told;
  for (int look = 0; look < 10; ++look) {
    const std::vector<KvKey> gone = Look();
    EXPECT_EQ(gone.size(), UnfiledBlocks::kLook);
    told.insert(gone.begin(), gone.end());
  }
  EXPECT_EQ(told.size(), kMany);
  EXPECT_EQ(blocks_.size(), 0U);
}

TEST_F(UnfiledBlocksTest, WhatIsErasedIsNotMissed) {
  Add(1);
  Add(2, 8);
  Add(3);
  Add(4);
  held_.clear();
  const KvKey first = TestKey(1);
  blocks_.Erase(std::span(&first, 1));
  blocks_.EraseScope(8);
  EXPECT_EQ(Look(), (std::vector{TestKey(3), TestKey(4)}));
  Add(5);
  held_.clear();
  blocks_.Clear();
  EXPECT_TRUE(Look().empty());
}

TEST_F(UnfiledBlocksTest, ErasedAndAddedWithoutEndItStaysSmallAndTellsOfAll) {
  Add(1);
  for (int i = 0; i < 10'000; ++i) {
    Add(2);
    const KvKey second = TestKey(2);
    blocks_.Erase(std::span(&second, 1));
  }
  Add(3);
  held_.clear();
  std::multiset<KvKey> told;
  for (int look = 0; look < 5; ++look) {
    for (const KvKey& key : Look()) told.insert(key);
  }
  EXPECT_EQ(told, (std::multiset<KvKey>{TestKey(1), TestKey(3)}));
}

}  // namespace
}  // namespace inferscale::test
