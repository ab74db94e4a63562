// Blocks by key and by last use, against plain containers that do the same the obvious way.

#include "kv/recency.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <list>
#include <map>
#include <random>
#include <vector>

#include "kv/by_key.h"

namespace inferscale {
namespace {

struct Block {
  const KvKey& key() const { return name; }

  KvKey name;
  KeyHook by_key;
  RecencyHook recent;
  bool kept = false;
};

struct Item {
  KvKey key;
};

/// Many share the low bits of their hash.
KvKey KeyOf(std::uint32_t number) {
  KvKey key;
  key.bytes[6] = static_cast<std::uint8_t>(number / 7);
  key.bytes[7] = static_cast<std::uint8_t>(number % 3);
  key.bytes[15] = static_cast<std::uint8_t>(number);
  return key;
}

TEST(ByKey, FindsWhatIsThereThroughAnyInsertionsAndErasures) {
  std::mt19937_64 random(1);
  std::vector<Block> blocks(250);
  ByKey<Block, &Block::by_key> table;
  std::map<KvKey, Block*> expected;
  for (std::uint32_t i = 0; i < blocks.size(); ++i) blocks[i].name = KeyOf(i);
  for (int step = 0; step < 20000; ++step) {
    Block& block = blocks[random() % blocks.size()];
    // Grows beyond several sizes of the table, and shrinks again.
    const bool grows = step / 2000 % 2 == 0;
    if (!expected.contains(block.name) && (grows || random() % 4 == 0)) {
      table.Insert(block);
      expected[block.name] = &block;
    } else if (expected.contains(block.name) && (!grows || random() % 4 == 0)) {
      table.Erase(block);
      expected.erase(block.name);
    }
    ASSERT_EQ(table.size(), expected.size());
    if (step % 100 != 0) continue;
    std::vector<Item> items;
    for (const Block& any : blocks) items.push_back({any.name});
    table.Prefetch(items, 2);  // of what is not here, too
    for (const Block& any : blocks) {
      const auto found = expected.find(any.name);
      ASSERT_EQ(table.Find(any.name), found == expected.end() ? nullptr : found->second);
    }
  }
}

TEST(Recency, ShowsTheLeastRecentlyUsedFirst) {
  std::mt19937_64 random(2);
  std::vector<Block> blocks(60);
  Recency<Block, &Block::recent> recency;
  std::list<Block*> expected;  // the oldest first
  for (int step = 0; step < 20000; ++step) {
    Block& block = blocks[random() % blocks.size()];
    const auto at = std::find(expected.begin(), expected.end(), &block);
    if (at == expected.end()) {
      recency.Insert(block);
      expected.push_back(&block);
    } else if (random() % 5 == 0) {
      recency.Erase(block);
      expected.erase(at);
    } else {
      recency.Use(block);
      expected.splice(expected.end(), expected, at);
    }
    if (random() % 20 != 0) continue;
    for (Block& any : blocks) any.kept = random() % 3 == 0;
    const std::size_t wanted = random() % (expected.size() + 1) + 1;
    std::vector<Block*> taken;
    recency.FromOldest([](const Block& any) { return any.kept; },
                       [&](Block& any) {
                         taken.push_back(&any);
                         return taken.size() < wanted;
                       });
    std::vector<Block*> oldest;
    for (std::size_t left = expected.size(); left > 0 && oldest.size() < wanted; --left) {
      auto next = expected.begin();
      std::advance(next, oldest.size());
      if ((*next)->kept) {
        expected.splice(expected.end(), expected, next);
      } else {
        oldest.push_back(*next);
      }
    }
    ASSERT_EQ(taken, oldest);
    std::size_t count = 0;
    recency.ForEach([&](const Block&) { ++count; });
    ASSERT_EQ(count, expected.size());
  }
}

}  // namespace
}  // namespace inferscale
