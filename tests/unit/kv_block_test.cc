#include "inferscale/kv_block.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "base/bytes.h"
#include "base/hash.h"
#include "support/kv_blocks.h"

namespace inferscale {
namespace {

using test::TestBlock;
using test::TestBlockInfo;
using test::TestFingerprint;
using test::TestPayload;

using Bytes = std::vector<std::uint8_t>;

// Offsets of docs/kv-format.md.
constexpr std::size_t kHeaderBytesAt = 8;
constexpr std::size_t kPayloadBytesAt = 16;
constexpr std::size_t kKeyAt = 32;
constexpr std::size_t kLayersAt = 96;
constexpr std::size_t kCodecAt = 112;
constexpr std::size_t kTokenCountAt = 116;
constexpr std::size_t kSawCountAt = 120;
constexpr std::size_t kTokensAt = 124;

std::uint64_t ReadAt(const Bytes& file, std::size_t offset, std::size_t size) {
  std::uint64_t value = 0;
  for (std::size_t i = 0; i < size; ++i) value |= std::uint64_t{file[offset + i]} << (8 * i);
  return value;
}

void WriteAt(Bytes& file, std::size_t offset, std::uint64_t value, std::size_t size) {
  for (std::size_t i = 0; i < size; ++i) {
    file[offset + i] = static_cast<std::uint8_t>(value >> (8 * i));
  }
}

std::size_t HeaderBytes(const Bytes& file) { return ReadAt(file, kHeaderBytesAt, 4); }

// Gives a changed header a checksum that matches, so that the checks behind it are reached.
void Reseal(Bytes& file) {
  const std::size_t at = HeaderBytes(file) - 8;
  WriteAt(file, at, Xxh3_64(std::span(file).first(at)), 8);
}

StatusCode ParseCode(const Bytes& file) { return KvBlock::Parse(file).status().code(); }
StatusCode ParseInfoCode(const Bytes& file) { return KvBlock::ParseInfo(file).status().code(); }

class KvBlockCodecTest : public testing::TestWithParam<KvCodec> {};

TEST_P(KvBlockCodecTest, SurvivesSerializeAndParse) {
  for (const int tokens : {1, 7, 48, 100}) {
    const auto block = TestBlock(TestBlockInfo(3, GetParam(), tokens));
    const Bytes file = block->Serialize();
    const auto parsed = KvBlock::Parse(file);
    ASSERT_TRUE(parsed.ok()) << parsed.status().ToString();
    const KvBlockInfo& info = (*parsed)->info();
    EXPECT_EQ(info.key, block->info().key);
    EXPECT_EQ(info.fingerprint, block->info().fingerprint);
    EXPECT_EQ(info.scope_tag, block->info().scope_tag);
    EXPECT_EQ(info.epoch, block->info().epoch);
    EXPECT_EQ(info.geometry, block->info().geometry);
    EXPECT_EQ(info.codec, GetParam());
    EXPECT_EQ(info.tokens, block->info().tokens);
    EXPECT_EQ(info.saw, block->info().saw);
    EXPECT_EQ((*parsed)->tokens(), tokens);
    EXPECT_TRUE(std::ranges::equal((*parsed)->payload(), block->payload()));
    EXPECT_EQ((*parsed)->Serialize(), file);
    EXPECT_EQ(HeaderBytes(file) % 16, 0u);

    const auto front = KvBlock::ParseInfo(std::span(file).first(HeaderBytes(file)));
    ASSERT_TRUE(front.ok()) << front.status().ToString();
    EXPECT_EQ(front->tokens, block->info().tokens);
  }
}

TEST_P(KvBlockCodecTest, HasANameThatIsReadBack) {
  const auto codec = ParseKvCodec(KvCodecName(GetParam()));
  ASSERT_TRUE(codec.ok());
  EXPECT_EQ(*codec, GetParam());
}

INSTANTIATE_TEST_SUITE_P(All, KvBlockCodecTest,
                         testing::Values(KvCodec::kF32, KvCodec::kF16, KvCodec::kBF16,
                                         KvCodec::kInt8, KvCodec::kInt4),
                         [](const auto& codec) { return std::string(KvCodecName(codec.param)); });

TEST(KvBlockTest, UnknownCodecNamesAreRefused) {
  for (const std::string_view name : {"", "F16", "int2", "unknown"}) {
    EXPECT_EQ(ParseKvCodec(name).status().code(), StatusCode::kInvalidArgument) << name;
  }
}

TEST(KvBlockTest, TokenBytesDoesNotOverflow) {
  const KvGeometry geometry{.layers = 1024, .kv_heads = 1024, .key_dim = 4096, .value_dim = 4096};
  EXPECT_EQ(geometry.TokenBytes(4), std::int64_t{1} << 35);
}

TEST(KvBlockTest, CreateRefusesWhatTheFormatCannotHold) {
  const auto refused = [](KvBlockInfo info, std::size_t payload_bytes) {
    const auto block = KvBlock::Create(std::move(info), Bytes(payload_bytes));
    return block.status().code() == StatusCode::kInvalidArgument;
  };
  const KvBlockInfo good = TestBlockInfo(1);
  const std::size_t size = TestPayload(good, 1).size();
  EXPECT_FALSE(refused(good, size));
  EXPECT_TRUE(refused(good, size - 1));
  EXPECT_TRUE(refused(good, size + 1));
  EXPECT_TRUE(refused(good, 0));
  for (const std::int32_t bad : {0, -1, 5000, std::numeric_limits<std::int32_t>::max()}) {
    for (const auto member : {&KvGeometry::layers, &KvGeometry::kv_heads, &KvGeometry::key_dim,
                              &KvGeometry::value_dim}) {
      KvBlockInfo info = good;
      info.geometry.*member = bad;
      EXPECT_TRUE(refused(info, size)) << bad;
    }
  }
  KvBlockInfo info = good;
  info.tokens.clear();
  EXPECT_TRUE(refused(info, 0));
  info = good;
  info.tokens.resize((1 << 20) + 1);
  EXPECT_TRUE(refused(info, size));
  info = good;
  info.tokens[2] = -1;
  EXPECT_TRUE(refused(info, size));
  info = good;
  info.codec = static_cast<KvCodec>(9);
  EXPECT_TRUE(refused(info, size));
  info = good;
  info.saw.assign(65537, "x");
  EXPECT_TRUE(refused(info, size));
  info = good;
  info.saw = {std::string(257, 'x')};
  EXPECT_TRUE(refused(info, size));
}

TEST(KvBlockTest, LargestSeenListSurvives) {
  KvBlockInfo info = TestBlockInfo(1);
  info.saw.assign(65536, std::string(256, 's'));
  const auto parsed = KvBlock::Parse(TestBlock(info)->Serialize());
  ASSERT_TRUE(parsed.ok()) << parsed.status().ToString();
  EXPECT_EQ((*parsed)->info().saw, info.saw);
}

TEST(KvBlockTest, TruncationAtEveryByteIsDataLoss) {
  const Bytes file = TestBlock(1)->Serialize();
  const std::size_t header = HeaderBytes(file);
  for (std::size_t size = 0; size < file.size(); ++size) {
    const Bytes cut(file.begin(), file.begin() + static_cast<std::ptrdiff_t>(size));
    ASSERT_EQ(ParseCode(cut), StatusCode::kDataLoss) << size;
    ASSERT_EQ(ParseInfoCode(cut), size < header ? StatusCode::kDataLoss : StatusCode::kOk) << size;
  }
  Bytes longer = file;
  longer.push_back(0);
  EXPECT_EQ(ParseCode(longer), StatusCode::kDataLoss);
}

TEST(KvBlockTest, EveryFlippedBitIsDataLoss) {
  Bytes file = TestBlock(TestBlockInfo(1, KvCodec::kInt4))->Serialize();
  const std::size_t header = HeaderBytes(file);
  for (std::size_t bit = 0; bit < file.size() * 8; ++bit) {
    const auto mask = static_cast<std::uint8_t>(1u << bit % 8);
    file[bit / 8] ^= mask;
    ASSERT_EQ(ParseCode(file), StatusCode::kDataLoss) << "bit " << bit;
    if (bit / 8 < header) {
      ASSERT_EQ(ParseInfoCode(file), StatusCode::kDataLoss) << "bit " << bit;
    }
    file[bit / 8] ^= mask;
  }
  EXPECT_EQ(ParseCode(file), StatusCode::kOk);
}

TEST(KvBlockTest, HostileSizesUnderAGoodChecksumAreDataLoss) {
  const Bytes file = TestBlock(1)->Serialize();
  const std::vector<std::size_t> counts = {kLayersAt,      kLayersAt + 4,    kLayersAt + 8,
                                           kLayersAt + 12, kCodecAt,         kTokenCountAt,
                                           kSawCountAt,    kTokensAt + 4 * 7};
  for (const std::size_t offset : counts) {
    const std::uint64_t was = ReadAt(file, offset, 4);
    for (const std::uint64_t value :
         {std::uint64_t{0}, was / 2, was + 8, std::uint64_t{1} << 16, std::uint64_t{1} << 20,
          std::uint64_t{0x7fffffff}, std::uint64_t{0x80000000}, std::uint64_t{0xffffffff}}) {
      // A field that fits the rest is another block, not a corrupt one.
      if ((value & 0xffffffff) == was || (offset == kCodecAt && value <= 4)) continue;
      Bytes hostile = file;
      WriteAt(hostile, offset, value, 4);
      Reseal(hostile);
      EXPECT_EQ(ParseCode(hostile), StatusCode::kDataLoss) << offset << " = " << value;
      EXPECT_EQ(ParseInfoCode(hostile), StatusCode::kDataLoss) << offset << " = " << value;
    }
  }
  for (const std::uint64_t value : {std::uint64_t{0}, std::uint64_t{1} << 40, ~std::uint64_t{0}}) {
    Bytes hostile = file;
    WriteAt(hostile, kPayloadBytesAt, value, 8);
    Reseal(hostile);
    EXPECT_EQ(ParseCode(hostile), StatusCode::kDataLoss) << value;
    EXPECT_EQ(ParseInfoCode(hostile), StatusCode::kDataLoss) << value;
  }
  for (const std::uint32_t value : {0u, 16u, 124u, 132u, 0x7ffffff0u, 0xfffffff0u}) {
    Bytes hostile = file;
    WriteAt(hostile, kHeaderBytesAt, value, 4);
    EXPECT_EQ(ParseCode(hostile), StatusCode::kDataLoss) << value;
  }
}

TEST(KvBlockTest, ErrorsSayWhereAndWhy) {
  Bytes file = TestBlock(1)->Serialize();
  file[0] = 'X';
  EXPECT_NE(KvBlock::Parse(file).status().message().find("ISKVB"), std::string::npos);
  file[0] = 'I';
  file[6] = 2;
  EXPECT_NE(KvBlock::Parse(file).status().message().find("version 2"), std::string::npos);
  file[6] = 1;
  file.back() ^= 1;
  EXPECT_NE(KvBlock::Parse(file).status().message().find("payload"), std::string::npos);
}

TEST(KvBlockTest, AnyChangedFieldUnderAGoodChecksumIsReadAsItStands) {
  Bytes file = TestBlock(1)->Serialize();
  file[kKeyAt] ^= 0xff;
  Reseal(file);
  const auto info = KvBlock::ParseInfo(file);
  ASSERT_TRUE(info.ok());
  EXPECT_NE(info->key, test::TestKey(1));
}

TEST(KvBlockTest, MemorySizeCountsPayloadAndIds) {
  KvBlockInfo info = TestBlockInfo(1);
  const std::size_t payload = TestPayload(info, 1).size();
  EXPECT_GE(TestBlock(info)->MemorySizeBytes(), payload + info.tokens.size() * sizeof(TokenId));
}

class KvKeyTest : public testing::Test {
 protected:
  const Bytes secret_ = Bytes(32, 9);
  const TokenIds seen_ = {1, 2, 3};
  const TokenIds own_ = {4, 5};
};

TEST_F(KvKeyTest, ChangesWithEveryPart) {
  const auto key = [&](const Bytes& secret, Fingerprint fingerprint, KvCodec codec,
                       std::string_view scope, TokenIds seen, TokenIds own) {
    return MakeKvKey(secret, fingerprint, codec, scope, seen, own);
  };
  const Fingerprint model = TestFingerprint(1);
  const std::vector<KvKey> keys = {
      key(secret_, model, KvCodec::kF16, "a", seen_, own_),
      key(Bytes(32, 8), model, KvCodec::kF16, "a", seen_, own_),
      key(secret_, TestFingerprint(2), KvCodec::kF16, "a", seen_, own_),
      key(secret_, model, KvCodec::kInt4, "a", seen_, own_),
      key(secret_, model, KvCodec::kF16, "b", seen_, own_),
      key(secret_, model, KvCodec::kF16, "", seen_, own_),
      key(secret_, model, KvCodec::kF16, "a", {1, 2}, {3, 4, 5}),
      key(secret_, model, KvCodec::kF16, "a", {1, 2, 3, 4}, {5}),
      key(secret_, model, KvCodec::kF16, "a", {}, {1, 2, 3, 4, 5}),
      key(secret_, model, KvCodec::kF16, "a", seen_, {5, 4}),
  };
  for (std::size_t i = 0; i < keys.size(); ++i) {
    for (std::size_t j = 0; j < i; ++j) EXPECT_NE(keys[i], keys[j]) << i << " and " << j;
  }
  EXPECT_EQ(keys[0], key(secret_, model, KvCodec::kF16, "a", seen_, own_));
}

// The message as docs/kv-format.md describes it: keys of stored blocks must stay findable.
TEST_F(KvKeyTest, IsTheDocumentedHmac) {
  ByteWriter message;
  const auto part = [&](std::string_view text) {
    message.WriteU64(text.size());
    message.WriteBytes(AsBytes(text));
  };
  part("inferscale kv key 1");
  part(std::string(32, '\1'));
  message.WriteU8(1);
  part("user");
  message.WriteU64(1);
  message.WriteI32(77);
  message.WriteU64(2);
  message.WriteI32(4);
  message.WriteI32(5);
  const Sha256Digest digest = HmacSha256(secret_, message.bytes());
  const KvKey key =
      MakeKvKey(secret_, TestFingerprint(1), KvCodec::kF16, "user", TokenIds{77}, own_);
  EXPECT_TRUE(std::equal(key.bytes.begin(), key.bytes.end(), digest.begin()));
}

}  // namespace
}  // namespace inferscale
