// Every instruction set that this machine has gives the same bytes.

#include <gtest/gtest.h>
#include <hwy/targets.h>

#include <functional>

#include "support/kernel_reference.h"

namespace inferscale::kernels {
namespace {

using namespace reference;  // NOLINT: the whole file is about it

/// `work`'s result on each instruction set that the machine supports.
template <typename T>
std::vector<T> OnEachTarget(const std::function<T()>& work) {
  std::vector<T> results;
  for (const std::int64_t target : hwy::SupportedAndGeneratedTargets()) {
    hwy::SetSupportedTargetsForTest(target);
    hwy::GetChosenTarget().Update(hwy::SupportedTargets());
    results.push_back(work());
  }
  hwy::SetSupportedTargetsForTest(0);
  hwy::GetChosenTarget().Update(hwy::SupportedTargets());
  return results;
}

template <typename T>
void ExpectAllEqual(const std::vector<T>& results) {
  for (std::size_t i = 1; i < results.size(); ++i) {
    EXPECT_EQ(results[i], results[0]) << "target " << i;
  }
}

TEST(Targets, MoreThanOneIsCompared) {
  if (hwy::SupportedAndGeneratedTargets().size() < 2) GTEST_SKIP() << "only one target here";
}

TEST(Targets, ConvertHalvesAlike) {
  std::mt19937 random(21);
  std::vector<float> floats = {65519.9f, 65520.0f, INFINITY, -INFINITY, -0.0f, 0x1p-25f};
  for (int i = 0; i < 200'003; ++i) {
    const std::uint32_t bits = static_cast<std::uint32_t>(random());
    float x;
    std::memcpy(&x, &bits, 4);
    if (x == x) floats.push_back(x);
  }
  const auto to_half = OnEachTarget<std::vector<std::uint16_t>>([&] {
    std::vector<std::uint16_t> halves(floats.size());
    FloatToHalf(floats.data(), halves.data(), halves.size());
    return halves;
  });
  ExpectAllEqual(to_half);
  ExpectAllEqual(OnEachTarget<std::vector<std::uint32_t>>([&] {
    std::vector<float> back(floats.size());
    HalfToFloat(to_half[0].data(), back.data(), back.size());
    std::vector<std::uint32_t> bits(back.size());
    std::memcpy(bits.data(), back.data(), back.size() * 4);
    return bits;
  }));
}

TEST(Targets, CaptureAndInjectAlike) {
  std::mt19937 random(22);
  for (int round = 0; round < 150; ++round) {
    SCOPED_TRACE(round);
    const Case c = RandomCase(random);
    const Angles angles = MakeAngles(c, random);
    const std::int32_t tokens = Pick(random, 1, 100), position = Pick(random, 0, 200);
    Cache source(c.view, c.type, c.key_order, c.value_order, 1, 128, false, random);
    std::normal_distribution<double> normal(0.0, 2.0);
    for (auto* side : {&source.keys, &source.values}) {
      const std::size_t element = c.type == ScalarType::kF32 ? 4 : 2;
      for (auto& layer : *side) {
        for (std::size_t i = 0; i + element <= layer.size(); i += element) {
          WriteScalar(c.type, normal(random), layer.data() + i);
        }
      }
    }
    const auto payloads = OnEachTarget<std::vector<std::uint8_t>>([&] {
      std::vector<std::uint8_t> payload(PayloadBytes(c.view, tokens));
      const FactDescriptor fact{payload.data(), tokens, 0, tokens, position, 3};
      EXPECT_EQ(Capture(c.view, angles.table, source.layout, &fact, 1), KernelStatus::kOk);
      return payload;
    });
    ExpectAllEqual(payloads);
    ExpectAllEqual(OnEachTarget<std::vector<std::vector<std::uint8_t>>>([&] {
      std::mt19937 same(1);
      Cache cache(c.view, c.type, c.key_order, c.value_order, 1, 128, false, same);
      std::vector<std::uint8_t> payload = payloads[0];
      const FactDescriptor fact{payload.data(), tokens, 0, tokens, position + 77, 5};
      EXPECT_EQ(Inject(c.view, angles.table, cache.layout, &fact, 1), KernelStatus::kOk);
      std::vector<std::vector<std::uint8_t>> bytes = cache.keys;
      bytes.insert(bytes.end(), cache.values.begin(), cache.values.end());
      return bytes;
    }));
  }
}

TEST(Targets, StoreNoNegativeZero) {
  std::mt19937 random(24);
  for (const KvCodec codec : {KvCodec::kInt8, KvCodec::kInt4}) {
    constexpr std::int32_t kTokens = 37, kDim = 40;  // the last value group has eight channels
    const CodecView view{codec, 1, 1, kDim, kDim};
    std::vector<std::uint16_t> keys(kTokens * kDim), values(kTokens * kDim);
    for (auto* side : {&keys, &values}) {
      for (std::uint16_t& x : *side) x = random() % 2 == 0 ? 0x8000 : Pick(random, 0, 1) * 0x3c00;
    }
    void *key_base = keys.data(), *value_base = values.data();
    PagedLayout layout;
    layout.type = ScalarType::kF16;
    layout.key_base = &key_base;
    layout.value_base = &value_base;
    layout.slots = kTokens;
    layout.key_head_stride = layout.value_head_stride = 2 * kDim;
    layout.key_slot_stride = layout.value_slot_stride = 2 * kDim;
    layout.key_dim_stride = layout.value_dim_stride = 2;
    const std::int32_t no_rotation = -1;
    RopeTable rope;
    rope.layer_group = &no_rotation;
    const auto payloads = OnEachTarget<std::vector<std::uint8_t>>([&] {
      std::vector<std::uint8_t> payload(PayloadBytes(view, kTokens));
      const FactDescriptor fact{payload.data(), kTokens, 0, kTokens, 0, 0};
      EXPECT_EQ(Capture(view, rope, layout, &fact, 1), KernelStatus::kOk);
      return payload;
    });
    ExpectAllEqual(payloads);
    const auto expect_zeros = [&](std::size_t begin, std::size_t count) {
      for (std::size_t i = 0; i < 2 * count; ++i) EXPECT_EQ(payloads[0][begin + i], 0) << i;
    };
    expect_zeros(2 * kDim, kDim);
    expect_zeros(KeySegmentBytes(codec, kTokens, kDim) + 2 * kTokens * 2, kTokens * 2);
  }
}

TEST(Targets, RankAlike) {
  std::mt19937 random(23);
  std::vector<std::uint16_t> rows(500 * 101);
  for (auto& x : rows) x = Half(Pick(random, -2, 2));
  std::vector<float> query(101);
  for (float& x : query) x = static_cast<float>(Pick(random, -3, 3));
  ExpectAllEqual(OnEachTarget<std::vector<std::int64_t>>([&] {
    std::vector<std::int64_t> found(50);
    std::vector<float> scores(50);
    EXPECT_EQ(TopK(rows.data(), 500, 101, query.data(), nullptr, 50, found.data(), scores.data()),
              50);
    return found;
  }));
}

}  // namespace
}  // namespace inferscale::kernels
