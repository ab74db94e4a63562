// What the KV store keeps when the process, the disk or the permissions fail under it.
#include <gtest/gtest.h>
#include <sys/mount.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <fstream>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "base/hash.h"
#include "inferscale/kv_store.h"
#include "support/kv_blocks.h"

namespace inferscale::test {
namespace {

namespace fs = std::filesystem;

KvStoreOptions Options(const fs::path& folder) {
  return {.folder = folder, .fingerprint = TestFingerprint(1)};
}

std::unique_ptr<KvStore> Open(const KvStoreOptions& options) {
  auto store = KvStore::Open(options);
  EXPECT_TRUE(store.ok()) << store.status().ToString();
  return std::move(store).value();
}

std::size_t CountFiles(const fs::path& folder) {
  std::size_t count = 0;
  for (const auto& entry : fs::recursive_directory_iterator(folder))
    count += entry.is_regular_file();
  return count;
}

// A file system of `bytes` bytes at `folder` until the object dies.
class SmallDisk {
 public:
  SmallDisk(fs::path folder, std::size_t bytes) : folder_(std::move(folder)) {
    fs::create_directories(folder_);
    const std::string size = "size=" + std::to_string(bytes);
    mounted_ = mount("tmpfs", folder_.c_str(), "tmpfs", 0, size.c_str()) == 0;
  }
  ~SmallDisk() {
    if (mounted_) umount2(folder_.c_str(), MNT_DETACH);
  }
  bool mounted() const { return mounted_; }
  bool MakeReadOnly() {
    return mount(nullptr, folder_.c_str(), nullptr, MS_REMOUNT | MS_RDONLY, nullptr) == 0;
  }

 private:
  const fs::path folder_;
  bool mounted_ = false;
};

TEST(KvStoreDurabilityTest, KilledWriterLeavesWholeBlocksOnly) {
  const TemporaryFolder folder;
  const KvStoreOptions options = Options(folder.path() / "kv");
  constexpr std::uint64_t kBlocks = 400;
  for (int round = 0; round < 12; ++round) {
    const pid_t writer = fork();
    ASSERT_GE(writer, 0);
    if (writer == 0) {
      auto store = KvStore::Open(options);
      if (!store.ok()) _exit(1);
      for (std::uint64_t i = 0;; ++i) {
        // Large enough that a kill often falls into a write.
        (void)(*store)->Put(TestBlock(TestBlockInfo(i % kBlocks, KvCodec::kF32, 400)));
      }
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(20 + 7 * round));
    kill(writer, SIGKILL);
    int status = 0;
    waitpid(writer, &status, 0);
    ASSERT_TRUE(WIFSIGNALED(status)) << "the writer ended by itself";

    const auto store = Open(options);
    EXPECT_EQ(CountFiles(options.folder / "tmp"), 0u);
    EXPECT_EQ(store->Stats().file_blocks, static_cast<std::int64_t>(CountFiles(options.folder)));
    for (std::uint64_t i = 0; i < kBlocks; ++i) {
      const auto pin = store->Acquire(TestKey(i));
      if (pin.ok()) {
        ASSERT_TRUE(std::ranges::equal((*pin)->payload(),
                                       TestBlock(TestBlockInfo(i, KvCodec::kF32, 400))->payload()));
      } else {
        ASSERT_EQ(pin.status().code(), StatusCode::kNotFound) << pin.status().ToString();
      }
    }
    EXPECT_EQ(store->Stats().corrupt, 0);
  }
  EXPECT_GT(CountFiles(options.folder), 0u);
}

TEST(KvStoreDurabilityTest, TemporaryFilesOfAKilledWriterAreRemoved) {
  const TemporaryFolder folder;
  const KvStoreOptions options = Options(folder.path() / "kv");
  { ASSERT_TRUE(Open(options)->Put(TestBlock(1)).ok()); }
  const std::vector<std::uint8_t> file = TestBlock(2)->Serialize();
  std::ofstream(options.folder / "tmp" / "0", std::ios::binary)
      .write(reinterpret_cast<const char*>(file.data()), 100);
  const auto store = Open(options);
  EXPECT_EQ(CountFiles(options.folder / "tmp"), 0u);
  EXPECT_EQ(store->Stats().file_blocks, 1);
  EXPECT_TRUE(store->Put(TestBlock(2)).ok());
}

TEST(KvStoreDurabilityTest, FileSizeLimitLeavesTheBlockInMemoryAndNothingOnDisk) {
  const TemporaryFolder folder;
  const auto store = Open(Options(folder.path() / "kv"));
  rlimit old{};
  ASSERT_EQ(getrlimit(RLIMIT_FSIZE, &old), 0);
  const auto old_handler = signal(SIGXFSZ, SIG_IGN);
  const rlimit small{100, old.rlim_max};
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &small), 0);
  const Status status = store->Put(TestBlock(1));
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &old), 0);
  signal(SIGXFSZ, old_handler);

  EXPECT_EQ(status.code(), StatusCode::kResourceExhausted) << status.ToString();
  EXPECT_EQ(store->Presence(std::vector{TestKey(1)})[0], KvTier::kHost);
  EXPECT_EQ(store->Stats().file_bytes, 0);
  EXPECT_EQ(CountFiles(folder.path()), 0u);
  EXPECT_TRUE(store->Put(TestBlock(1)).ok());
  EXPECT_EQ(CountFiles(folder.path()), 1u);
}

TEST(KvStoreDurabilityTest, AFolderThatCannotBeWrittenLeavesTheBlockInMemory) {
  const TemporaryFolder folder;
  const auto store = Open(Options(folder.path() / "kv"));
  fs::remove(folder.path() / "kv" / "tmp");
  std::ofstream(folder.path() / "kv" / "tmp").put('\n');  // a file where a folder is needed
  EXPECT_EQ(store->Put(TestBlock(1)).code(), StatusCode::kFailedPrecondition);
  EXPECT_EQ(store->Presence(std::vector{TestKey(1)})[0], KvTier::kHost);
}

TEST(KvStoreDurabilityTest, FullDiskLeavesTheBlockInMemoryAndLosesNothing) {
  const TemporaryFolder folder;
  SmallDisk disk(folder.path() / "disk", 256 << 10);
  if (!disk.mounted()) GTEST_SKIP() << "mounting a small file system is not permitted here";
  const KvStoreOptions options = Options(folder.path() / "disk" / "kv");
  const auto large = [](std::uint64_t i) {
    return TestBlock(TestBlockInfo(i, KvCodec::kF32, 100));
  };
  std::uint64_t stored = 0;
  {
    const auto store = Open(options);
    Status status;
    while (stored < 100 && (status = store->Put(large(stored))).ok()) ++stored;
    EXPECT_EQ(status.code(), StatusCode::kResourceExhausted) << status.ToString();
    EXPECT_NE(status.message().find("free some disk space"), std::string::npos);
    EXPECT_GT(stored, 0u);
    EXPECT_EQ(store->Presence(std::vector{TestKey(stored)})[0], KvTier::kHost);
    EXPECT_TRUE(store->Acquire(TestKey(stored)).ok());
    EXPECT_EQ(CountFiles(options.folder), stored);
    EXPECT_TRUE(store->Erase(std::vector{TestKey(0)}).ok());
    EXPECT_TRUE(store->Put(large(stored)).ok()) << "an erasure makes room again";
  }
  const auto store = Open(options);
  for (std::uint64_t i = 1; i <= stored; ++i) EXPECT_TRUE(store->Acquire(TestKey(i)).ok()) << i;
  EXPECT_EQ(store->Stats().corrupt, 0);
}

TEST(KvStoreDurabilityTest, WhatAFullDiskLeftInMemoryIsFiledWhenThereIsRoomAgain) {
  const TemporaryFolder folder;
  SmallDisk disk(folder.path() / "disk", 256 << 10);
  if (!disk.mounted()) GTEST_SKIP() << "mounting a small file system is not permitted here";
  KvStoreOptions options = Options(folder.path() / "disk" / "kv");
  options.file_again_ms = 10;
  const fs::path filler = folder.path() / "disk" / "filler";
  {
    const auto store = Open(options);
    std::ofstream(filler) << std::string(512 << 10, 'x');  // as much as there is room for
    for (std::uint64_t i = 1; i <= 3; ++i) {
      EXPECT_EQ(store->Put(TestBlock(i)).code(), StatusCode::kResourceExhausted);
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
    EXPECT_EQ(CountFiles(options.folder), 0U);
    fs::remove(filler);
    for (int i = 0; i < 500 && store->Stats().file_blocks < 3; ++i) {
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    }
  }
  const auto store = Open(options);
  for (std::uint64_t i = 1; i <= 3; ++i) EXPECT_TRUE(store->Acquire(TestKey(i)).ok()) << i;
}

TEST(KvStoreDurabilityTest, ReadOnlyFolderGivesClearErrorsAndStillServes) {
  const TemporaryFolder folder;
  SmallDisk disk(folder.path() / "disk", 1 << 20);
  if (!disk.mounted()) GTEST_SKIP() << "mounting a file system is not permitted here";
  KvStoreOptions options = Options(folder.path() / "disk" / "kv");
  options.host_budget_bytes = static_cast<std::int64_t>(TestBlock(1)->MemorySizeBytes());
  const auto store = Open(options);
  ASSERT_TRUE(store->Put(TestBlock(1)).ok());
  ASSERT_TRUE(disk.MakeReadOnly());

  const Status put = store->Put(TestBlock(2));
  EXPECT_EQ(put.code(), StatusCode::kFailedPrecondition);
  EXPECT_NE(put.message().find("read-only"), std::string::npos) << put.message();
  EXPECT_EQ(store->Presence(std::vector{TestKey(2)})[0], KvTier::kHost);
  EXPECT_TRUE(store->Acquire(TestKey(1)).ok());

  // An erasure that fails says so, hides the block all the same, and can be tried again.
  EXPECT_EQ(store->Erase(std::vector{TestKey(1)}).code(), StatusCode::kFailedPrecondition);
  EXPECT_EQ(store->Presence(std::vector{TestKey(1)})[0], KvTier::kNone);
  EXPECT_EQ(store->Acquire(TestKey(1)).status().code(), StatusCode::kNotFound);
  EXPECT_EQ(store->Erase(std::vector{TestKey(1)}).code(), StatusCode::kFailedPrecondition);
  EXPECT_EQ(store->EraseScope(5, 2).code(), StatusCode::kFailedPrecondition);

  const Status open = KvStore::Open(options).status();
  EXPECT_EQ(open.code(), StatusCode::kFailedPrecondition);
  EXPECT_NE(open.message().find(options.folder.string()), std::string::npos) << open.message();
}

TEST(KvStoreDurabilityTest, FailedErasureIsFinishedByTheNext) {
  const TemporaryFolder folder;
  SmallDisk disk(folder.path() / "disk", 1 << 20);
  if (!disk.mounted()) GTEST_SKIP() << "mounting a file system is not permitted here";
  const KvStoreOptions options = Options(folder.path() / "disk" / "kv");
  const auto store = Open(options);
  ASSERT_TRUE(store->Put(TestBlock(1)).ok());
  ASSERT_TRUE(disk.MakeReadOnly());
  ASSERT_FALSE(store->Erase(std::vector{TestKey(1)}).ok());
  EXPECT_EQ(CountFiles(options.folder), 1u);
  ASSERT_EQ(mount(nullptr, (folder.path() / "disk").c_str(), nullptr, MS_REMOUNT, nullptr), 0);
  EXPECT_TRUE(store->Erase(std::vector{TestKey(1)}).ok());
  EXPECT_EQ(CountFiles(options.folder), 0u);
}

TEST(KvStoreDurabilityTest, OpensTenThousandBlocksWithoutReadingThem) {
  const TemporaryFolder folder;
  const KvStoreOptions options = Options(folder.path() / "kv");
  { ASSERT_TRUE(Open(options)->Put(TestBlock(1)).ok()); }
  fs::path block;
  for (const auto& entry : fs::recursive_directory_iterator(options.folder)) {
    if (entry.is_regular_file()) block = entry.path();
  }
  // Their content is not theirs: opening must not notice, loading must.
  constexpr std::uint64_t kBlocks = 10'000;
  for (std::uint64_t i = 2; i <= kBlocks; ++i) {
    std::ofstream(block.parent_path() / (HexEncode(TestKey(i).bytes) + ".kvb")) << "content";
  }
  const auto start = std::chrono::steady_clock::now();
  const auto store = Open(options);
  const std::chrono::duration<double, std::milli> elapsed =
      std::chrono::steady_clock::now() - start;
  std::printf("opened %llu blocks in %.1f ms\n", static_cast<unsigned long long>(kBlocks),
              elapsed.count());
  EXPECT_EQ(store->Stats().file_blocks, static_cast<std::int64_t>(kBlocks));
  EXPECT_TRUE(store->Acquire(TestKey(1)).ok());
  EXPECT_EQ(store->Acquire(TestKey(2)).status().code(), StatusCode::kDataLoss);
}

}  // namespace
}  // namespace inferscale::test
