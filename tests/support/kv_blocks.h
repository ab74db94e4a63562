#ifndef INFERSCALE_TESTS_SUPPORT_KV_BLOCKS_H_
#define INFERSCALE_TESTS_SUPPORT_KV_BLOCKS_H_

/// \file kv_blocks.h
/// Small KV blocks for tests, and folders that go away.

#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <memory>
#include <random>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

#include "inferscale/kv_block.h"
#include "kernels/kernels.h"

namespace inferscale::test {

inline KvKey TestKey(std::uint64_t number) {
  KvKey key;
  // Spread over all bytes, as real keys are.
  std::mt19937_64 random(number + 1);
  for (auto& byte : key.bytes) byte = static_cast<std::uint8_t>(random());
  return key;
}

inline Fingerprint TestFingerprint(std::uint8_t number) {
  Fingerprint fingerprint{};
  fingerprint.fill(number);
  return fingerprint;
}

inline KvBlockInfo TestBlockInfo(std::uint64_t number, KvCodec codec = KvCodec::kF16,
                                 int tokens = 7) {
  KvBlockInfo info;
  info.key = TestKey(number);
  info.fingerprint = TestFingerprint(1);
  info.scope_tag = 5;
  info.epoch = 1;
  info.geometry = {.layers = 2, .kv_heads = 3, .key_dim = 8, .value_dim = 6};
  info.codec = codec;
  for (int i = 0; i < tokens; ++i) info.tokens.push_back(static_cast<TokenId>(number % 1000) + i);
  info.saw = {"turn:12", "", "0b6c1c0e-2c5e-4f0f-8a55-6f3f2b1f9a10"};
  return info;
}

inline std::vector<std::uint8_t> TestPayload(const KvBlockInfo& info, std::uint64_t seed) {
  const KvGeometry& shape = info.geometry;
  std::vector<std::uint8_t> payload(kernels::PayloadBytes(
      {info.codec, shape.layers, shape.kv_heads, shape.key_dim, shape.value_dim},
      static_cast<std::int32_t>(info.tokens.size())));
  std::mt19937_64 random(seed);
  for (auto& byte : payload) byte = static_cast<std::uint8_t>(random());
  return payload;
}

/// The block of `info` with random bytes.
inline std::shared_ptr<const KvBlock> TestBlock(KvBlockInfo info, std::uint64_t seed = 7) {
  std::vector<std::uint8_t> payload = TestPayload(info, seed);
  return KvBlock::Create(std::move(info), std::move(payload)).value();
}

inline std::shared_ptr<const KvBlock> TestBlock(std::uint64_t number) {
  return TestBlock(TestBlockInfo(number), number);
}

/// A folder of its own that is removed with all it holds.
class TemporaryFolder {
 public:
  TemporaryFolder() {
    std::string name = (std::filesystem::temp_directory_path() / "inferscale-test-XXXXXX").string();
    path_ = mkdtemp(name.data());
  }
  ~TemporaryFolder() {
    std::error_code error;
    std::filesystem::remove_all(path_, error);
  }
  TemporaryFolder(const TemporaryFolder&) = delete;
  TemporaryFolder& operator=(const TemporaryFolder&) = delete;
  const std::filesystem::path& path() const { return path_; }

 private:
  std::filesystem::path path_;
};

}  // namespace inferscale::test

#endif  // INFERSCALE_TESTS_SUPPORT_KV_BLOCKS_H_
