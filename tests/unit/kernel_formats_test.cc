#include "kernels/kernels.h"

#include <gtest/gtest.h>

#include <numeric>

#include "support/kernel_reference.h"

namespace inferscale::kernels {
namespace {

using namespace reference;  // NOLINT: the whole file is about it

TEST(Sizes, FollowTheDocumentedArrangement) {
  const CodecView f16{KvCodec::kF16, 3, 2, 10, 6};
  EXPECT_EQ(KeySegmentBytes(KvCodec::kF16, 3, 10), 64u);   // 60 padded
  EXPECT_EQ(ValueSegmentBytes(KvCodec::kF16, 3, 6), 48u);  // 36 padded
  EXPECT_EQ(PayloadBytes(f16, 3), 6u * (64 + 48));
  EXPECT_EQ(SegmentOffset(f16, 3, 2, 1), 5u * (64 + 48));
  EXPECT_EQ(KeySegmentBytes(KvCodec::kInt4, 48, 9), 320u);  // 2 groups · 9 · 4 + 48 · 5 = 312
}

TEST(Sizes, AreZeroForBadCountsAndOverflow) {
  const CodecView view{KvCodec::kF32, 2, 2, 64, 64};
  EXPECT_EQ(PayloadBytes(view, 0), 0u);
  EXPECT_EQ(PayloadBytes(view, -5), 0u);
  for (auto member :
       {&CodecView::layers, &CodecView::kv_heads, &CodecView::key_dim, &CodecView::value_dim}) {
    CodecView bad = view;
    bad.*member = 0;
    EXPECT_EQ(PayloadBytes(bad, 4), 0u);
    bad.*member = -1;
    EXPECT_EQ(PayloadBytes(bad, 4), 0u);
  }
  for (int codec = 0; codec <= 4; ++codec) {
    const CodecView huge{static_cast<KvCodec>(codec), INT32_MAX, INT32_MAX, INT32_MAX, INT32_MAX};
    EXPECT_EQ(PayloadBytes(huge, INT32_MAX), 0u);
  }
  CodecView unknown = view;
  unknown.codec = static_cast<KvCodec>(9);
  EXPECT_EQ(PayloadBytes(unknown, 4), 0u);
}

TEST(KeyGroups, SplitTokensEvenly) {
  EXPECT_EQ(KeyGroups(1), 1);
  EXPECT_EQ(KeyGroups(47), 1);
  EXPECT_EQ(KeyGroups(48), 2);
  for (std::int32_t tokens = 1; tokens < 3000; ++tokens) {
    std::int32_t smallest = tokens, largest = 0;
    for (std::int32_t g = 0; g < KeyGroups(tokens); ++g) {
      const std::int32_t size = KeyGroupBegin(tokens, g + 1) - KeyGroupBegin(tokens, g);
      smallest = std::min(smallest, size), largest = std::max(largest, size);
    }
    ASSERT_LE(largest - smallest, 1);
    ASSERT_LE(largest, kMaxKeyGroupTokens);
    ASSERT_EQ(KeyGroupBegin(tokens, KeyGroups(tokens)), tokens);
  }
}

TEST(HalfConversion, IsExactForAllHalves) {
  std::vector<std::uint16_t> halves(65536), back(65536);
  std::iota(halves.begin(), halves.end(), 0);
  std::vector<float> floats(65536);
  HalfToFloat(halves.data(), floats.data(), floats.size());
  FloatToHalf(floats.data(), back.data(), floats.size());
  for (std::size_t i = 0; i < halves.size(); ++i) {
    if ((i & 0x7fff) > 0x7c00) {
      ASSERT_TRUE(std::isnan(floats[i]));
      ASSERT_GT(back[i] & 0x7fff, 0x7c00);
    } else {
      ASSERT_EQ(floats[i], FromHalf(halves[i])) << i;
      ASSERT_EQ(back[i], halves[i]);
    }
  }
}

TEST(HalfConversion, RoundsToNearestEven) {
  std::mt19937 random(16);
  std::vector<float> floats = {65504.0f, 65519.9f,   65520.0f,     1e9f,  -1e9f,
                               INFINITY, -INFINITY,  0.0f,         -0.0f, 0x1p-24f,
                               0x1p-25f, 0x1.8p-25f, 0x1.ffcp-15f, 1e-30f};
  for (int i = 0; i < 65536; ++i) {  // ties between neighbours, and just beside them
    const std::uint16_t bits = static_cast<std::uint16_t>(random());
    if ((bits & 0x7fff) >= 0x7bff) continue;
    const auto half = FromHalf(bits), next = FromHalf(static_cast<std::uint16_t>(bits + 1));
    const float middle = static_cast<float>((half + next) / 2);
    floats.insert(floats.end(),
                  {middle, std::nextafter(middle, 1e9f), std::nextafter(middle, -1e9f)});
  }
  for (int i = 0; i < 100001; ++i) {
    const std::uint32_t bits = static_cast<std::uint32_t>(random());
    float x;
    std::memcpy(&x, &bits, 4);
    if (x == x) floats.push_back(x);
  }
  std::vector<std::uint16_t> halves(floats.size());
  FloatToHalf(floats.data(), halves.data(), floats.size());
  for (std::size_t i = 0; i < floats.size(); ++i)
    ASSERT_EQ(halves[i], Half(floats[i])) << floats[i];
}

}  // namespace
}  // namespace inferscale::kernels
