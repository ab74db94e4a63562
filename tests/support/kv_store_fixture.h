#ifndef INFERSCALE_TESTS_SUPPORT_KV_STORE_FIXTURE_H_
#define INFERSCALE_TESTS_SUPPORT_KV_STORE_FIXTURE_H_

#include <gtest/gtest.h>

#include <cstdint>
#include <filesystem>
#include <fstream>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "inferscale/kv_store.h"
#include "support/kv_blocks.h"

namespace inferscale::test {

namespace fs = std::filesystem;

inline std::int64_t HostBytes(std::uint64_t number) {
  return static_cast<std::int64_t>(TestBlock(number)->MemorySizeBytes());
}

inline std::int64_t FileBytes(std::uint64_t number) {
  return static_cast<std::int64_t>(TestBlock(number)->Serialize().size());
}

inline std::vector<fs::path> BlockFiles(const fs::path& folder) {
  std::vector<fs::path> files;
  for (const auto& entry : fs::recursive_directory_iterator(folder)) {
    if (entry.is_regular_file()) files.push_back(entry.path());
  }
  return files;
}

inline std::int64_t BytesOnDisk(const fs::path& folder) {
  std::int64_t bytes = 0;
  for (const fs::path& file : BlockFiles(folder))
    bytes += static_cast<std::int64_t>(file_size(file));
  return bytes;
}

inline void FlipLastByte(const fs::path& path) {
  std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
  file.seekg(-1, std::ios::end);
  const int byte = file.get();
  file.seekp(-1, std::ios::end);
  file.put(static_cast<char>(byte ^ 1));
}

class KvStoreTest : public ::testing::Test {
 protected:
  KvStoreOptions Options() const {
    return {.folder = folder_.path() / "kv",
            .host_budget_bytes = 1 << 20,
            .file_budget_bytes = 1 << 20,
            .fingerprint = TestFingerprint(1)};
  }
  static std::unique_ptr<KvStore> Open(const KvStoreOptions& options) {
    auto store = KvStore::Open(options);
    EXPECT_TRUE(store.ok()) << store.status().ToString();
    return std::move(store).value();
  }
  static KvTier Tier(const KvStore& store, std::uint64_t number) {
    return store.Presence(std::vector{TestKey(number)})[0];
  }
  static StatusCode AcquireCode(KvStore& store, std::uint64_t number) {
    return store.Acquire(TestKey(number)).status().code();
  }
  static void PutAll(KvStore& store, std::uint64_t first, std::uint64_t last) {
    for (std::uint64_t i = first; i <= last; ++i) {
      const Status status = store.Put(TestBlock(i));
      ASSERT_TRUE(status.ok()) << status.ToString();
    }
  }

  TemporaryFolder folder_;
};

}  // namespace inferscale::test

#endif  // INFERSCALE_TESTS_SUPPORT_KV_STORE_FIXTURE_H_
