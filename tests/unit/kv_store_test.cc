#include "inferscale/kv_store.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
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

TEST_F(KvStoreTest, WhatIsPutIsAcquiredFromMemoryAndAfterReopeningFromItsFile) {
  {
    const auto store = Open(Options());
    EXPECT_EQ(Tier(*store, 1), KvTier::kNone);
    EXPECT_EQ(AcquireCode(*store, 1), StatusCode::kNotFound);
    PutAll(*store, 1, 3);
    EXPECT_EQ(Tier(*store, 1), KvTier::kHost);
    EXPECT_EQ((*store->Acquire(TestKey(1)))->Serialize(), TestBlock(1)->Serialize());
    EXPECT_EQ(store->Stats().hits_host, 1);
    EXPECT_EQ(store->Stats().misses, 1);
  }
  const auto store = Open(Options());
  EXPECT_EQ(Tier(*store, 2), KvTier::kFile);
  EXPECT_EQ(store->Stats().file_blocks, 3);
  EXPECT_EQ(store->Stats().file_bytes, BytesOnDisk(folder_.path()));
  EXPECT_EQ((*store->Acquire(TestKey(2)))->Serialize(), TestBlock(2)->Serialize());
  EXPECT_EQ(Tier(*store, 2), KvTier::kHost);
  EXPECT_EQ(store->Stats().hits_file, 1);
}

TEST_F(KvStoreTest, FoldersAndFilesArePrivate) {
  const auto store = Open(Options());
  PutAll(*store, 1, 1);
  for (const auto& entry : fs::recursive_directory_iterator(folder_.path())) {
    EXPECT_EQ(entry.status().permissions() & (fs::perms::group_all | fs::perms::others_all),
              fs::perms::none)
        << entry.path();
  }
}

TEST_F(KvStoreTest, WorksWithoutAFolder) {
  KvStoreOptions options = Options();
  options.folder.clear();
  options.host_budget_bytes = 2 * HostBytes(1);
  const auto store = Open(options);
  PutAll(*store, 1, 3);
  EXPECT_EQ(Tier(*store, 1), KvTier::kNone);
  EXPECT_EQ(Tier(*store, 3), KvTier::kHost);
  EXPECT_TRUE(store->Erase(std::vector{TestKey(3)}).ok());
  EXPECT_EQ(Tier(*store, 3), KvTier::kNone);
  const auto large = TestBlock(TestBlockInfo(9, KvCodec::kF32, 500));
  EXPECT_EQ(store->Put(large).code(), StatusCode::kResourceExhausted);
  EXPECT_FALSE(store->CanHold(*large));
  EXPECT_TRUE(store->CanHold(*TestBlock(9)));
}

TEST_F(KvStoreTest, HostTierEvictsTheLeastRecentlyUsed) {
  KvStoreOptions options = Options();
  options.host_budget_bytes = 3 * HostBytes(1);
  const auto store = Open(options);
  PutAll(*store, 1, 3);
  EXPECT_TRUE(store->Acquire(TestKey(1)).ok());
  PutAll(*store, 4, 4);
  EXPECT_EQ(Tier(*store, 1), KvTier::kHost);
  EXPECT_EQ(Tier(*store, 2), KvTier::kFile);
  EXPECT_EQ(Tier(*store, 3), KvTier::kHost);
  EXPECT_LE(store->Stats().host_bytes, options.host_budget_bytes);
  EXPECT_EQ(store->Stats().evictions_host, 1);
  EXPECT_TRUE(store->Acquire(TestKey(2)).ok());
  EXPECT_EQ(Tier(*store, 3), KvTier::kFile);
}

TEST_F(KvStoreTest, OnlyPinnedBlocksExceedTheHostBudget) {
  KvStoreOptions options = Options();
  options.host_budget_bytes = 2 * HostBytes(1);
  const auto store = Open(options);
  PutAll(*store, 1, 4);
  std::vector<KvStore::Pin> pins;
  for (std::uint64_t i = 1; i <= 4; ++i) pins.push_back(*store->Acquire(TestKey(i)));
  EXPECT_EQ(store->Stats().host_bytes, 4 * HostBytes(1));
  EXPECT_EQ(store->Stats().pinned_blocks, 4);
  PutAll(*store, 5, 5);
  EXPECT_EQ(Tier(*store, 5), KvTier::kFile);
  for (std::uint64_t i = 1; i <= 4; ++i) {
    EXPECT_EQ(pins[i - 1]->Serialize(), TestBlock(i)->Serialize());
  }
  pins.clear();
  EXPECT_EQ(store->Stats().pinned_blocks, 0);
  EXPECT_LE(store->Stats().host_bytes, options.host_budget_bytes);
}

TEST_F(KvStoreTest, BlockLargerThanTheHostBudgetIsServedFromItsFileAndEvictsNothing) {
  KvStoreOptions options = Options();
  options.host_budget_bytes = 2 * HostBytes(1);
  const auto store = Open(options);
  PutAll(*store, 1, 2);
  const auto large = TestBlock(TestBlockInfo(9, KvCodec::kF32, 100));
  ASSERT_TRUE(store->Put(large).ok());
  EXPECT_EQ(Tier(*store, 9), KvTier::kFile);
  EXPECT_EQ(Tier(*store, 1), KvTier::kHost);
  {
    const auto pin = store->Acquire(TestKey(9));
    ASSERT_TRUE(pin.ok());
    EXPECT_EQ((*pin)->Serialize(), large->Serialize());
  }
  EXPECT_EQ(Tier(*store, 9), KvTier::kFile);
  EXPECT_LE(store->Stats().host_bytes, options.host_budget_bytes);
}

TEST_F(KvStoreTest, PinsMoveAndAreReleasedOnce) {
  const auto store = Open(Options());
  PutAll(*store, 1, 2);
  KvStore::Pin empty;
  EXPECT_FALSE(empty);
  KvStore::Pin first = *store->Acquire(TestKey(1));
  KvStore::Pin again = *store->Acquire(TestKey(1));
  EXPECT_EQ(store->Stats().pinned_blocks, 1);
  KvStore::Pin moved = std::move(first);
  EXPECT_FALSE(first);  // NOLINT(bugprone-use-after-move): moved-from pins are empty
  KvStore::Pin second = *store->Acquire(TestKey(2));
  EXPECT_EQ(store->Stats().pinned_blocks, 2);
  second = std::move(moved);
  EXPECT_EQ(second->info().key, TestKey(1));
  EXPECT_EQ(store->Stats().pinned_blocks, 1);
  second = KvStore::Pin();
  again = KvStore::Pin();
  EXPECT_EQ(store->Stats().pinned_blocks, 0);
}

TEST_F(KvStoreTest, PinOutlivesTheStore) {
  KvStore::Pin pin;
  {
    const auto store = Open(Options());
    PutAll(*store, 1, 1);
    pin = *store->Acquire(TestKey(1));
  }
  EXPECT_EQ(pin->Serialize(), TestBlock(1)->Serialize());
}

TEST_F(KvStoreTest, FileTierStaysUnderItsBudgetAndEvictsTheLeastRecentlyUsed) {
  KvStoreOptions options = Options();
  options.file_budget_bytes = 3 * FileBytes(1);
  options.host_budget_bytes = 0;
  const auto store = Open(options);
  PutAll(*store, 1, 3);
  EXPECT_TRUE(store->Acquire(TestKey(1)).ok());
  PutAll(*store, 4, 4);
  EXPECT_EQ(Tier(*store, 1), KvTier::kFile);
  EXPECT_EQ(Tier(*store, 2), KvTier::kNone);
  EXPECT_EQ(store->Stats().evictions_file, 1);
  PutAll(*store, 5, 40);
  EXPECT_LE(BytesOnDisk(folder_.path()), options.file_budget_bytes);
  EXPECT_EQ(store->Stats().file_bytes, BytesOnDisk(folder_.path()));
  EXPECT_EQ(store->Stats().file_blocks, 3);
}

TEST_F(KvStoreTest, UseInMemoryKeepsTheFileToo) {
  KvStoreOptions options = Options();
  options.file_budget_bytes = 2 * FileBytes(1);
  const auto store = Open(options);
  PutAll(*store, 1, 2);
  EXPECT_TRUE(store->Acquire(TestKey(1)).ok());
  PutAll(*store, 3, 3);
  options.host_budget_bytes = 0;
  const auto reopened = Open(options);
  EXPECT_EQ(Tier(*reopened, 1), KvTier::kFile);
  EXPECT_EQ(Tier(*reopened, 2), KvTier::kNone);
}

TEST_F(KvStoreTest, OrderOfUseSurvivesReopening) {
  KvStoreOptions options = Options();
  {
    const auto store = Open(options);
    PutAll(*store, 1, 3);
  }
  // As if they had last been used one, two and three hours ago; then the oldest is used.
  const auto now = fs::file_time_type::clock::now();
  for (const fs::path& file : BlockFiles(options.folder)) {
    for (std::uint64_t i = 1; i <= 3; ++i) {
      std::ifstream in(file, std::ios::binary);
      const std::vector<std::uint8_t> bytes{std::istreambuf_iterator<char>(in), {}};
      if (KvBlock::ParseInfo(bytes)->key == TestKey(i)) {
        fs::last_write_time(file, now - std::chrono::hours(4 - static_cast<int>(i)));
      }
    }
  }
  { EXPECT_TRUE(Open(options)->Acquire(TestKey(1)).ok()); }
  options.file_budget_bytes = FileBytes(1);
  const auto store = Open(options);
  EXPECT_EQ(Tier(*store, 1), KvTier::kFile);
  EXPECT_EQ(Tier(*store, 2), KvTier::kNone);
  EXPECT_EQ(Tier(*store, 3), KvTier::kNone);
}

TEST_F(KvStoreTest, FileLargerThanItsBudgetStaysInMemory) {
  KvStoreOptions options = Options();
  options.file_budget_bytes = FileBytes(1) - 1;
  const auto store = Open(options);
  EXPECT_EQ(store->Put(TestBlock(1)).code(), StatusCode::kResourceExhausted);
  EXPECT_EQ(Tier(*store, 1), KvTier::kHost);
  EXPECT_EQ(BytesOnDisk(folder_.path()), 0);
  EXPECT_TRUE(store->CanHold(*TestBlock(1)));
  options.host_budget_bytes = 0;
  EXPECT_FALSE(Open(options)->CanHold(*TestBlock(1)));
  options.file_budget_bytes = FileBytes(1);
  EXPECT_TRUE(Open(options)->CanHold(*TestBlock(1)));
}

TEST_F(KvStoreTest, BlocksOfAnotherModelAreRefusedAndNeverReturned) {
  KvStoreOptions other = Options();
  other.fingerprint = TestFingerprint(2);
  {
    const auto store = Open(Options());
    PutAll(*store, 1, 2);
  }
  const auto store = Open(other);
  EXPECT_EQ(store->Put(TestBlock(3)).code(), StatusCode::kFailedPrecondition);
  EXPECT_EQ(Tier(*store, 1), KvTier::kNone);
  EXPECT_EQ(AcquireCode(*store, 1), StatusCode::kNotFound);
}

TEST_F(KvStoreTest, FilesOfAnotherModelAreEvictedFirst) {
  {
    const auto store = Open(Options());
    PutAll(*store, 1, 2);
  }
  KvStoreOptions other = Options();
  other.fingerprint = TestFingerprint(2);
  other.file_budget_bytes = 3 * FileBytes(1);
  const auto store = Open(other);
  for (std::uint64_t i = 11; i <= 13; ++i) {
    KvBlockInfo info = TestBlockInfo(i);
    info.fingerprint = TestFingerprint(2);
    ASSERT_TRUE(store->Put(TestBlock(info)).ok());
  }
  EXPECT_EQ(store->Stats().file_blocks, 3);
  EXPECT_EQ(store->Stats().evictions_file, 2);
  for (std::uint64_t i = 11; i <= 13; ++i) EXPECT_EQ(Tier(*store, i), KvTier::kHost);
}

TEST_F(KvStoreTest, FileMovedToAnotherNameIsCorrupt) {
  {
    const auto store = Open(Options());
    PutAll(*store, 1, 2);
  }
  const auto files = BlockFiles(Options().folder);
  fs::rename(files[0], files[1]);
  const auto store = Open(Options());
  const bool first = Tier(*store, 1) == KvTier::kFile;
  EXPECT_EQ(AcquireCode(*store, first ? 1 : 2), StatusCode::kDataLoss);
  EXPECT_EQ(BlockFiles(Options().folder).size(), 0u);
}

TEST_F(KvStoreTest, FileOfAnotherFingerprintUnderOurNameIsCorrupt) {
  Fingerprint similar = TestFingerprint(1);
  similar[31] ^= 1;  // the same folder name
  {
    const auto store = Open(Options());
    PutAll(*store, 1, 1);
  }
  KvStoreOptions options = Options();
  options.fingerprint = similar;
  const auto store = Open(options);
  EXPECT_EQ(AcquireCode(*store, 1), StatusCode::kDataLoss);
}

TEST_F(KvStoreTest, CorruptFileIsAMissIsRemovedAndCanBePutAgain) {
  KvStoreOptions options = Options();
  options.host_budget_bytes = 0;
  const auto store = Open(options);
  PutAll(*store, 1, 1);
  FlipLastByte(BlockFiles(options.folder).at(0));
  EXPECT_EQ(AcquireCode(*store, 1), StatusCode::kDataLoss);
  EXPECT_EQ(store->Stats().corrupt, 1);
  EXPECT_EQ(BlockFiles(options.folder).size(), 0u);
  EXPECT_EQ(Tier(*store, 1), KvTier::kNone);
  EXPECT_EQ(AcquireCode(*store, 1), StatusCode::kNotFound);
  PutAll(*store, 1, 1);
  EXPECT_EQ((*store->Acquire(TestKey(1)))->Serialize(), TestBlock(1)->Serialize());
}

TEST_F(KvStoreTest, FileCutAtAnyLengthOrReplacedByALinkIsCorrupt) {
  KvStoreOptions options = Options();
  options.host_budget_bytes = 0;
  const auto store = Open(options);
  const std::int64_t size = FileBytes(1);
  std::int64_t corrupt = 0;
  for (std::int64_t cut = 0; cut < size; cut += 37) {
    PutAll(*store, 1, 1);
    fs::resize_file(BlockFiles(options.folder).at(0), static_cast<std::uintmax_t>(cut));
    ASSERT_EQ(AcquireCode(*store, 1), StatusCode::kDataLoss) << cut;
    EXPECT_EQ(store->Stats().corrupt, ++corrupt);
  }
  PutAll(*store, 1, 1);
  const fs::path file = BlockFiles(options.folder).at(0);
  fs::rename(file, folder_.path() / "elsewhere");
  fs::create_symlink(folder_.path() / "elsewhere", file);
  EXPECT_EQ(AcquireCode(*store, 1), StatusCode::kDataLoss);
  EXPECT_TRUE(fs::exists(folder_.path() / "elsewhere"));
}

TEST_F(KvStoreTest, VanishedFileIsAMiss) {
  KvStoreOptions options = Options();
  options.host_budget_bytes = 0;
  const auto store = Open(options);
  PutAll(*store, 1, 1);
  fs::remove(BlockFiles(options.folder).at(0));
  EXPECT_EQ(AcquireCode(*store, 1), StatusCode::kNotFound);
  EXPECT_EQ(Tier(*store, 1), KvTier::kNone);
  EXPECT_EQ(store->Stats().corrupt, 0);
  EXPECT_EQ(store->Stats().file_bytes, 0);
}

TEST_F(KvStoreTest, OneHundredAcquisitionsLeaveTheBytesUnchanged) {
  KvStoreOptions options = Options();
  options.host_budget_bytes = HostBytes(1);
  const auto store = Open(options);
  PutAll(*store, 1, 2);
  const std::vector<std::uint8_t> expected = TestBlock(1)->Serialize();
  for (int i = 0; i < 100; ++i) {
    const KvStore::Pin pin = *store->Acquire(TestKey(1));
    ASSERT_EQ(pin->Serialize(), expected);
    // Pushes the first out of memory, so that files are read too.
    if (i % 3 == 0) {
      ASSERT_TRUE(store->Acquire(TestKey(2)).ok());
    }
  }
  EXPECT_GT(store->Stats().hits_file, 30);
  EXPECT_EQ(store->Stats().corrupt, 0);
}

TEST_F(KvStoreTest, ConcurrentAcquisitionsOfOneKeyLoadItOnce) {
  {
    const auto store = Open(Options());
    PutAll(*store, 1, 1);
  }
  const auto store = Open(Options());
  std::vector<std::thread> threads;
  std::atomic<int> good = 0;
  for (int i = 0; i < 8; ++i) {
    threads.emplace_back([&] {
      const auto pin = store->Acquire(TestKey(1));
      if (pin.ok() && (*pin)->payload().size() == TestBlock(1)->payload().size()) ++good;
    });
  }
  for (auto& thread : threads) thread.join();
  EXPECT_EQ(good, 8);
  EXPECT_EQ(store->Stats().hits_file, 1);
  EXPECT_EQ(store->Stats().hits_host, 7);
}

TEST_F(KvStoreTest, ThreadsLeaveNoPinAndNoWrongByte) {
  KvStoreOptions options = Options();
  options.host_budget_bytes = 6 * HostBytes(1);
  options.file_budget_bytes = 20 * FileBytes(1);
  const auto store = Open(options);
  constexpr int kThreads = 6;
  constexpr int kKeys = 30;
  std::vector<std::vector<std::uint8_t>> expected;
  for (std::uint64_t i = 0; i < kKeys; ++i) expected.push_back(TestBlock(i)->Serialize());
  std::atomic<int> wrong = 0;
  std::atomic<std::uint64_t> epoch = 1;
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([&, t] {
      std::mt19937 random(t);
      std::vector<KvStore::Pin> pins;
      for (int step = 0; step < 300; ++step) {
        const std::uint64_t number = random() % kKeys;
        switch (random() % 16) {
          case 0:
            (void)store->Erase(std::vector{TestKey(number)});
            break;
          case 1:
            (void)store->EraseScope(5, epoch);
            break;
          case 2:
            pins.clear();
            break;
          case 3:
          case 4:
          case 5:
          case 6:
            (void)store->Put(TestBlock(number));
            break;
          default: {
            auto pin = store->Acquire(TestKey(number));
            if (pin.ok() && (*pin)->Serialize() != expected[number]) ++wrong;
            if (pin.ok() && pins.size() < 4) pins.push_back(std::move(pin).value());
            if (!pin.ok() && pin.status().code() != StatusCode::kNotFound) ++wrong;
          }
        }
      }
    });
  }
  for (auto& thread : threads) thread.join();
  EXPECT_EQ(wrong, 0);
  const KvStoreStats stats = store->Stats();
  EXPECT_EQ(stats.pinned_blocks, 0);
  EXPECT_LE(stats.host_bytes, options.host_budget_bytes);
  EXPECT_EQ(stats.file_bytes, BytesOnDisk(folder_.path()));
  EXPECT_LE(stats.file_bytes, options.file_budget_bytes);
  EXPECT_EQ(stats.corrupt, 0);
}

TEST_F(KvStoreTest, OpenRefusesBadOptions) {
  KvStoreOptions options = Options();
  options.host_budget_bytes = -1;
  EXPECT_EQ(KvStore::Open(options).status().code(), StatusCode::kInvalidArgument);
  options = Options();
  std::ofstream(options.folder) << "a file";
  const Status status = KvStore::Open(options).status();
  EXPECT_EQ(status.code(), StatusCode::kFailedPrecondition);
  EXPECT_NE(status.message().find(options.folder.string()), std::string::npos);
  EXPECT_EQ(Open({.folder = {}, .fingerprint = {}})->Put(nullptr).code(),
            StatusCode::kInvalidArgument);
}

TEST_F(KvStoreTest, UnknownNamesAreLeftAlone) {
  { PutAll(*Open(Options()), 1, 1); }
  const fs::path block = BlockFiles(Options().folder).at(0);
  const std::vector<fs::path> strangers = {
      Options().folder / "README", Options().folder / "ABCDEF0123456789" / "x.kvb",
      block.parent_path() / "notes.txt", block.parent_path() / "zz.kvb"};
  for (const fs::path& path : strangers) {
    fs::create_directories(path.parent_path());
    std::ofstream(path) << "not ours";
  }
  const auto store = Open(Options());
  EXPECT_EQ(store->Stats().file_blocks, 1);
  EXPECT_TRUE(store->Acquire(TestKey(1)).ok());
  for (const fs::path& path : strangers) EXPECT_TRUE(fs::exists(path)) << path;
}

}  // namespace
}  // namespace inferscale::test
