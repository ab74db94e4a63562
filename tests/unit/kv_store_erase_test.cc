#include "inferscale/kv_store.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <fstream>
#include <iterator>
#include <optional>
#include <random>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "support/kv_store_fixture.h"

namespace inferscale::test {
namespace {

namespace fs = std::filesystem;

TEST_F(KvStoreTest, ErasedWhilePinnedStaysReadableAndIsGone) {
  const auto store = Open(Options());
  PutAll(*store, 1, 2);
  {
    const KvStore::Pin pin = *store->Acquire(TestKey(1));
    EXPECT_TRUE(store->Erase(std::vector{TestKey(1), TestKey(77)}).ok());
    EXPECT_EQ(Tier(*store, 1), KvTier::kNone);
    EXPECT_EQ(AcquireCode(*store, 1), StatusCode::kNotFound);
    EXPECT_EQ(pin->Serialize(), TestBlock(1)->Serialize());
    EXPECT_EQ(store->Stats().pinned_blocks, 1);
    // The same key put again is another block with pins of its own.
    PutAll(*store, 1, 1);
    const KvStore::Pin newer = *store->Acquire(TestKey(1));
    EXPECT_EQ(store->Stats().pinned_blocks, 2);
    EXPECT_TRUE(store->Erase(std::vector{TestKey(1)}).ok());
  }
  EXPECT_EQ(store->Stats().pinned_blocks, 0);
  EXPECT_EQ(store->Stats().host_bytes, HostBytes(2));
  EXPECT_EQ(BlockFiles(folder_.path()).size(), 1u);
}

TEST_F(KvStoreTest, CountsTheBytesOfScopes) {
  const std::vector<std::uint64_t> scope = {TestBlock(1)->info().scope_tag}, nobody = {0xDEAD};
  {
    const auto store = Open(Options());
    EXPECT_EQ(store->BytesOf(scope), 0);
    PutAll(*store, 1, 3);
    EXPECT_EQ(store->BytesOf(scope), store->Stats().file_bytes);
    EXPECT_EQ(store->BytesOf(nobody), 0);
    EXPECT_TRUE(store->Erase(std::vector{TestKey(1)}).ok());
    EXPECT_EQ(store->BytesOf(scope), store->Stats().file_bytes);
    PutAll(*store, 1, 1);
    PutAll(*store, 1, 1);
    EXPECT_EQ(store->BytesOf(scope), store->Stats().file_bytes);
  }
  const auto store = Open(Options());
  EXPECT_GT(store->BytesOf(scope), 0);
  EXPECT_EQ(store->BytesOf(scope), store->Stats().file_bytes);
  EXPECT_TRUE(store->EraseScope(scope[0], 9).ok());
  EXPECT_EQ(store->BytesOf(scope), 0);
}

TEST_F(KvStoreTest, ErasedBlockDoesNotComeBackAfterReopening) {
  {
    const auto store = Open(Options());
    PutAll(*store, 1, 2);
    EXPECT_TRUE(store->Erase(std::vector{TestKey(1)}).ok());
  }
  const auto store = Open(Options());
  EXPECT_EQ(Tier(*store, 1), KvTier::kNone);
  EXPECT_EQ(Tier(*store, 2), KvTier::kFile);
}

TEST_F(KvStoreTest, EraseReachesFilesOfOtherModels) {
  {
    const auto store = Open(Options());
    PutAll(*store, 1, 3);
  }
  KvStoreOptions other = Options();
  other.fingerprint = TestFingerprint(2);
  const auto store = Open(other);
  EXPECT_TRUE(store->Erase(std::vector{TestKey(1)}).ok());
  EXPECT_EQ(BlockFiles(other.folder).size(), 2u);
  EXPECT_TRUE(store->EraseScope(5, 2).ok());
  EXPECT_EQ(BlockFiles(other.folder).size(), 0u);
}

TEST_F(KvStoreTest, EraseScopeTakesAllOfAScopeAndNothingElse) {
  const auto store = Open(Options());
  PutAll(*store, 1, 5);
  KvBlockInfo info = TestBlockInfo(6);
  info.scope_tag = 6;
  ASSERT_TRUE(store->Put(TestBlock(info)).ok());
  EXPECT_TRUE(store->EraseScope(5, 2).ok());
  for (std::uint64_t i = 1; i <= 5; ++i) EXPECT_EQ(Tier(*store, i), KvTier::kNone);
  EXPECT_EQ(Tier(*store, 6), KvTier::kHost);
  EXPECT_EQ(BlockFiles(folder_.path()).size(), 1u);
  EXPECT_EQ(store->Stats().file_blocks, 1);
  EXPECT_EQ(store->Stats().host_blocks, 1);
  EXPECT_EQ(store->Stats().file_bytes, BytesOnDisk(folder_.path()));
}

TEST_F(KvStoreTest, EraseScopeTakesManyFilesAndWhatElseIsInTheFolder) {
  KvStoreOptions options = Options();
  options.file_budget_bytes = 1 << 24;
  const auto store = Open(options);
  PutAll(*store, 1, 300);
  const std::vector<fs::path> files = BlockFiles(folder_.path());
  ASSERT_EQ(files.size(), 300u);
  fs::create_directories(files.front().parent_path() / "folder" / "inside");
  EXPECT_TRUE(store->EraseScope(5, 2).ok());
  EXPECT_TRUE(BlockFiles(folder_.path()).empty());
  EXPECT_FALSE(fs::exists(files.front().parent_path()));
  EXPECT_EQ(store->Stats().file_blocks, 0);
}

TEST_F(KvStoreTest, EpochFenceRefusesOlderPutsOnly) {
  const auto store = Open(Options());
  PutAll(*store, 1, 1);
  store->FenceScope(5, 3);
  EXPECT_EQ(Tier(*store, 1), KvTier::kHost) << "a fence erases nothing";
  const auto put = [&](std::uint64_t number, std::uint64_t scope, std::uint64_t epoch) {
    KvBlockInfo info = TestBlockInfo(number);
    info.scope_tag = scope;
    info.epoch = epoch;
    return store->Put(TestBlock(info)).code();
  };
  EXPECT_EQ(put(2, 5, 2), StatusCode::kFailedPrecondition);
  EXPECT_EQ(Tier(*store, 2), KvTier::kNone);
  EXPECT_EQ(put(2, 5, 3), StatusCode::kOk);
  EXPECT_EQ(put(3, 6, 1), StatusCode::kOk);
  store->FenceScope(5, 2);
  EXPECT_EQ(put(4, 5, 2), StatusCode::kFailedPrecondition) << "a fence is never lowered";
  EXPECT_TRUE(store->EraseScope(5, 4).ok());
  EXPECT_EQ(put(4, 5, 3), StatusCode::kFailedPrecondition);
  EXPECT_EQ(put(4, 5, 4), StatusCode::kOk);
}

TEST_F(KvStoreTest, WhatAFenceRefusedDuringTheWriteIsNowhere) {
  const auto store = Open(Options());
  std::atomic<std::uint64_t> epoch = 1;
  std::atomic<int> refused = 0;
  std::atomic<int> still_there = 0;
  std::atomic<bool> stop = false;
  std::vector<std::thread> writers;
  for (std::uint64_t t = 0; t < 3; ++t) {
    writers.emplace_back([&, t] {
      for (std::uint64_t i = 0; !stop; ++i) {
        const std::uint64_t number = 1 + 1000 * t + i % 20;
        KvBlockInfo info = TestBlockInfo(number);
        info.epoch = epoch;
        if (store->Put(TestBlock(info)).ok()) {
          (void)store->Erase(std::vector{TestKey(number)});
        } else {
          if (Tier(*store, number) != KvTier::kNone) ++still_there;
          ++refused;
        }
      }
    });
  }
  while (refused < 300) {
    store->FenceScope(5, ++epoch);
    std::this_thread::sleep_for(std::chrono::microseconds(200));
  }
  stop = true;
  for (auto& writer : writers) writer.join();
  EXPECT_EQ(still_there, 0);
  EXPECT_EQ(store->Stats().host_blocks, 0);
}

TEST_F(KvStoreTest, PutsUnderWayCannotBringAnErasedScopeBack) {
  KvStoreOptions options = Options();
  const auto store = Open(options);
  std::atomic<bool> stop = false;
  std::vector<std::thread> writers;
  for (int t = 0; t < 3; ++t) {
    writers.emplace_back([&, t] {
      for (std::uint64_t i = 0; !stop; ++i) (void)store->Put(TestBlock(1000 * t + i % 20));
    });
  }
  while (store->Stats().file_blocks < 10) std::this_thread::yield();
  ASSERT_TRUE(store->EraseScope(5, 2).ok());
  // Nothing of the scope is left on disk from the moment that the call has returned.
  EXPECT_EQ(BlockFiles(options.folder).size(), 0u);
  EXPECT_EQ(store->Stats().host_blocks, 0);
  for (int i = 0; i < 50; ++i) std::this_thread::yield();
  stop = true;
  for (auto& writer : writers) writer.join();
  EXPECT_EQ(store->Stats().host_blocks, 0);
  EXPECT_EQ(store->Stats().file_blocks, 0);
}

}  // namespace
}  // namespace inferscale::test
