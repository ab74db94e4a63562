// What was kept in memory alone while no file could be written, and what becomes of it later.
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <csignal>
#include <fstream>
#include <functional>
#include <iterator>
#include <string>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#include "support/kv_store_fixture.h"

namespace inferscale::test {
namespace {

class KvStoreFullDiskTest : public KvStoreTest {
 protected:
  static constexpr std::int64_t kAgainMs = 20;

  KvStoreOptions OftenTried() const {
    KvStoreOptions options = Options();
    options.file_again_ms = kAgainMs;
    return options;
  }
  /// From now on no file can be written.
  void BreakFolder() const {
    fs::remove_all(Options().folder / "tmp");
    std::ofstream(Options().folder / "tmp").put('\n');  // a file where a folder is needed
  }
  void MendFolder() const {
    fs::remove(Options().folder / "tmp");
    fs::create_directory(Options().folder / "tmp");
  }
  static void PutIntoMemory(KvStore& store, std::uint64_t first, std::uint64_t last) {
    for (std::uint64_t i = first; i <= last; ++i) {
      ASSERT_EQ(store.Put(TestBlock(i)).code(), StatusCode::kFailedPrecondition);
    }
  }
  static bool Within5s(const std::function<bool()>& is_so) {
    for (int i = 0; i < 1000 && !is_so(); ++i) {
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
    }
    return is_so();
  }
  static bool BecomesFiled(const KvStore& store, std::int64_t files) {
    return Within5s([&] { return store.Stats().file_blocks == files; });
  }
  static void WaitForSomeAttempts() {
    std::this_thread::sleep_for(std::chrono::milliseconds(8 * kAgainMs));
  }
};

TEST_F(KvStoreFullDiskTest, WhatIsInMemoryAloneIsFiledWhenItCanBeAndOutlivesARestart) {
  {
    const auto store = Open(OftenTried());
    BreakFolder();
    PutIntoMemory(*store, 1, 5);
    WaitForSomeAttempts();
    EXPECT_EQ(store->Stats().file_blocks, 0);
    EXPECT_EQ(store->Stats().host_blocks, 5);
    MendFolder();
    EXPECT_TRUE(BecomesFiled(*store, 5));
    // And once more, after everything had been filed.
    BreakFolder();
    PutIntoMemory(*store, 6, 7);
    MendFolder();
    EXPECT_TRUE(BecomesFiled(*store, 7));
    EXPECT_EQ(store->Stats().host_blocks, 7);
  }
  const auto store = Open(Options());
  for (std::uint64_t i = 1; i <= 7; ++i) {
    const auto pin = store->Acquire(TestKey(i));
    ASSERT_TRUE(pin.ok()) << i;
    EXPECT_EQ((*pin)->Serialize(), TestBlock(i)->Serialize());
  }
}

TEST_F(KvStoreFullDiskTest, OneThatStillDoesNotFitStopsNoOther) {
  const auto store = Open(OftenTried());
  BreakFolder();
  const auto large = TestBlock(TestBlockInfo(1, KvCodec::kF32, 100));
  ASSERT_FALSE(store->Put(large).ok());
  PutIntoMemory(*store, 2, 4);
  rlimit old{};
  ASSERT_EQ(getrlimit(RLIMIT_FSIZE, &old), 0);
  const auto old_handler = signal(SIGXFSZ, SIG_IGN);
  const rlimit small{static_cast<rlim_t>(large->MemorySizeBytes() / 2), old.rlim_max};
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &small), 0);
  MendFolder();
  const bool others_filed = BecomesFiled(*store, 3);
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &old), 0);
  const bool all_filed = BecomesFiled(*store, 4);
  signal(SIGXFSZ, old_handler);
  EXPECT_TRUE(others_filed);
  EXPECT_TRUE(all_filed);
  EXPECT_EQ(BlockFiles(Options().folder).size(), 4U);
}

TEST_F(KvStoreFullDiskTest, WhatIsErasedIsNeverFiled) {
  const auto store = Open(OftenTried());
  BreakFolder();
  PutIntoMemory(*store, 1, 3);
  KvBlockInfo of_another_scope = TestBlockInfo(4);
  of_another_scope.scope_tag = 6;
  ASSERT_FALSE(store->Put(TestBlock(of_another_scope)).ok());
  const auto pin = store->Acquire(TestKey(1));  // stays readable in memory
  ASSERT_TRUE(pin.ok());
  ASSERT_TRUE(store->Erase(std::vector{TestKey(1)}).ok());
  ASSERT_TRUE(store->EraseScope(6, 2).ok());
  MendFolder();
  EXPECT_TRUE(BecomesFiled(*store, 2));
  WaitForSomeAttempts();
  EXPECT_EQ(BlockFiles(Options().folder).size(), 2U);
  EXPECT_EQ(Tier(*store, 1), KvTier::kNone);
  EXPECT_EQ(Tier(*store, 4), KvTier::kNone);
}

TEST_F(KvStoreFullDiskTest, WhatIsErasedWhileItIsFiledLeavesNoFile) {
  KvStoreOptions options = OftenTried();
  options.file_again_ms = 1;
  options.host_budget_bytes = 64 << 20;
  options.file_budget_bytes = 64 << 20;
  const auto store = Open(options);
  constexpr std::uint64_t kBlocks = 60;
  constexpr int kRounds = 6;
  for (int round = 1; round <= kRounds; ++round) {
    BreakFolder();
    PutIntoMemory(*store, 1, kBlocks);
    MendFolder();
    std::this_thread::sleep_for(std::chrono::milliseconds(round - 1));
    if (round < kRounds) {
      for (std::uint64_t i = 1; i <= kBlocks; ++i) {
        ASSERT_TRUE(store->Erase(std::vector{TestKey(i)}).ok());
      }
    } else {
      for (std::uint64_t i = 1; i <= kBlocks; i += 7) {
        ASSERT_TRUE(store->Erase(std::vector{TestKey(i)}).ok());
      }
      ASSERT_TRUE(store->EraseScope(5, 2).ok());  // which takes no block of epoch 1 any more
    }
    EXPECT_TRUE(BlockFiles(options.folder).empty());
  }
  std::this_thread::sleep_for(std::chrono::milliseconds(50));
  EXPECT_TRUE(BlockFiles(options.folder).empty());
  EXPECT_EQ(store->Stats().file_blocks, 0);
}

TEST_F(KvStoreFullDiskTest, AFenceKeepsWhatWasStoredBeforeIt) {
  const auto store = Open(OftenTried());
  BreakFolder();
  PutIntoMemory(*store, 1, 2);
  store->FenceScope(5, 2);
  EXPECT_FALSE(store->Put(TestBlock(3)).ok());
  MendFolder();
  EXPECT_TRUE(BecomesFiled(*store, 2));
  EXPECT_EQ(Tier(*store, 3), KvTier::kNone);
}

TEST_F(KvStoreFullDiskTest, WhatHasLeftMemoryIsGoneAndBudgetsHold) {
  KvStoreOptions options = OftenTried();
  options.host_budget_bytes = 3 * HostBytes(1);
  options.file_budget_bytes = 2 * FileBytes(1);
  const auto store = Open(options);
  BreakFolder();
  PutIntoMemory(*store, 1, 6);
  EXPECT_EQ(store->Stats().host_blocks, 3);
  MendFolder();
  // The one marked last is filed last, and files of the others have to go for it.
  EXPECT_TRUE(Within5s([&] { return store->Stats().evictions_file == 1; }));
  WaitForSomeAttempts();
  EXPECT_EQ(store->Stats().file_blocks, 2);
  EXPECT_EQ(store->Stats().evictions_file, 1) << "each is filed once";
  EXPECT_LE(BytesOnDisk(options.folder), options.file_budget_bytes);
  EXPECT_EQ(Tier(*store, 3), KvTier::kNone);
}

TEST_F(KvStoreFullDiskTest, WhatNoFileMayHoldIsNotTriedAgain) {
  KvStoreOptions options = OftenTried();
  options.file_budget_bytes = FileBytes(1) - 1;
  const auto store = Open(options);
  const auto threads = [] {
    return std::distance(fs::directory_iterator("/proc/self/task"), fs::directory_iterator());
  };
  const auto before = threads();
  EXPECT_EQ(store->Put(TestBlock(1)).code(), StatusCode::kResourceExhausted);
  EXPECT_LE(threads(), before) << "one that tries";
  EXPECT_EQ(store->Stats().file_blocks, 0);
  EXPECT_EQ(Tier(*store, 1), KvTier::kHost);
}

TEST_F(KvStoreFullDiskTest, BetweenTwoAttemptsTheDiskIsLeftAloneAndNobodyWaitsForTheNext) {
  KvStoreOptions options = OftenTried();
  options.file_again_ms = 3'600'000;
  const auto store = Open(options);
  BreakFolder();
  PutIntoMemory(*store, 1, 2);
  MendFolder();
  WaitForSomeAttempts();
  EXPECT_EQ(store->Stats().file_blocks, 0);
  EXPECT_TRUE(store->Erase(std::vector{TestKey(1)}).ok());
  // And the store ends at once.
}

TEST_F(KvStoreFullDiskTest, AStoreThatIsToBeReplacedFilesNothingMore) {
  const auto store = Open(OftenTried());
  BreakFolder();
  PutIntoMemory(*store, 1, 3);
  std::vector<std::thread> stoppers;
  for (int i = 0; i < 4; ++i) stoppers.emplace_back([&] { store->StopFiling(); });
  for (std::thread& stopper : stoppers) stopper.join();
  PutIntoMemory(*store, 4, 4);
  MendFolder();
  WaitForSomeAttempts();
  EXPECT_TRUE(BlockFiles(Options().folder).empty());
  EXPECT_TRUE(store->Put(TestBlock(4)).ok());
}

TEST_F(KvStoreFullDiskTest, ErasuresHoldWhileADiskIsFullNowAndThen) {
  KvStoreOptions options = OftenTried();
  options.file_again_ms = 1;
  const auto store = Open(options);
  rlimit old{};
  ASSERT_EQ(getrlimit(RLIMIT_FSIZE, &old), 0);
  const auto old_handler = signal(SIGXFSZ, SIG_IGN);
  std::atomic<bool> done{false};
  std::thread disk([&] {
    for (int i = 0; !done; ++i) {
      const rlimit limit{i % 2 == 0 ? rlim_t{16} : old.rlim_cur, old.rlim_max};
      (void)setrlimit(RLIMIT_FSIZE, &limit);
      std::this_thread::sleep_for(std::chrono::milliseconds(2));
    }
    (void)setrlimit(RLIMIT_FSIZE, &old);
  });
  std::atomic<int> left{0};
  std::vector<std::thread> owners;
  for (std::uint64_t owner = 1; owner <= 3; ++owner) {
    owners.emplace_back([&, owner] {
      const std::uint64_t first = owner * 100;
      const auto block = [&](std::uint64_t number, std::uint64_t epoch) {
        KvBlockInfo info = TestBlockInfo(number);
        info.scope_tag = owner;
        info.epoch = epoch;
        return TestBlock(info);
      };
      for (std::uint64_t round = 1; round <= 40; ++round) {
        std::vector<KvKey> keys;
        for (std::uint64_t i = first; i < first + 8; ++i) {
          (void)store->Put(block(i, round));
          keys.push_back(TestKey(i));
        }
        const bool erased =
            round % 2 == 0 ? store->Erase(keys).ok() : store->EraseScope(owner, round + 1).ok();
        left += !erased;
        for (const KvTier tier : store->Presence(keys)) left += tier != KvTier::kNone;
        std::error_code none;
        const fs::path scope =
            options.folder / "0101010101010101" / ("000000000000000" + std::to_string(owner));
        for (fs::directory_iterator file(scope, none), end; !none && file != end; ++file) ++left;
      }
    });
  }
  for (std::thread& owner : owners) owner.join();
  done = true;
  disk.join();
  signal(SIGXFSZ, old_handler);
  EXPECT_EQ(left, 0);
  std::this_thread::sleep_for(std::chrono::milliseconds(50));
  EXPECT_TRUE(BlockFiles(options.folder).empty());
}

TEST_F(KvStoreFullDiskTest, KilledWhileItFilesItLeavesWholeBlocksOnly) {
  KvStoreOptions options = OftenTried();
  options.file_again_ms = 1;
  options.host_budget_bytes = options.file_budget_bytes = 256 << 20;
  constexpr std::uint64_t kBlocks = 300;
  const auto block = [](std::uint64_t i) {
    return TestBlock(TestBlockInfo(i, KvCodec::kF32, 400), i);
  };
  bool some = false;
  for (int round = 0; round < 6; ++round) {
    fs::remove_all(options.folder);
    int ready[2];
    ASSERT_EQ(pipe(ready), 0);
    const pid_t writer = fork();
    ASSERT_GE(writer, 0);
    if (writer == 0) {
      auto store = KvStore::Open(options);
      if (!store.ok()) _exit(1);
      BreakFolder();
      for (std::uint64_t i = 0; i < kBlocks; ++i) (void)(*store)->Put(block(i));
      MendFolder();
      (void)!write(ready[1], "x", 1);
      for (;;) pause();
    }
    close(ready[1]);  // a writer that has ended is seen
    char byte = 0;
    ASSERT_EQ(read(ready[0], &byte, 1), 1);
    std::this_thread::sleep_for(std::chrono::milliseconds(2 + 9 * round));
    kill(writer, SIGKILL);
    int status = 0;
    waitpid(writer, &status, 0);
    close(ready[0]);
    ASSERT_TRUE(WIFSIGNALED(status)) << "the writer ended by itself";

    const auto store = Open(options);
    const std::int64_t files = store->Stats().file_blocks;
    std::int64_t whole = 0;
    for (std::uint64_t i = 0; i < kBlocks; ++i) {
      const auto pin = store->Acquire(TestKey(i));
      if (!pin.ok()) continue;
      ++whole;
      ASSERT_TRUE(std::ranges::equal((*pin)->payload(), block(i)->payload()));
    }
    EXPECT_EQ(whole, files);
    EXPECT_EQ(BlockFiles(options.folder).size(), static_cast<std::size_t>(files));
    some = some || files > 0;
  }
  EXPECT_TRUE(some);
}

}  // namespace
}  // namespace inferscale::test
