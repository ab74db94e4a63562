#include "kernels/kernels.h"

#include <gtest/gtest.h>

#include <functional>

#include "support/kernel_reference.h"

namespace inferscale::kernels {
namespace {

using namespace reference;  // NOLINT: the whole file is about it

TEST(Inject, EqualsTheReferenceForAnyGeometryAndLayout) {
  std::mt19937 random(11);
  for (int round = 0; round < 300; ++round) {
    SCOPED_TRACE(round);
    const Case c = RandomCase(random);
    const Angles angles = MakeAngles(c, random);
    const std::int32_t block_slots = Pick(random, 1, 40), blocks = 320 / block_slots + 1;
    Cache cache(c.view, c.type, c.key_order, c.value_order, blocks, block_slots, c.paged, random);
    Cache expected = cache;  // the vectors are copied; expected.layout is not used
    std::vector<std::vector<std::uint8_t>> payloads;
    std::vector<FactDescriptor> facts;
    std::int32_t slot = Pick(random, 0, 10);
    const std::int32_t fact_count = Pick(random, 0, 3);
    for (std::int32_t f = 0; f < fact_count; ++f) {
      const std::int32_t tokens = Pick(random, 1, 100);
      payloads.emplace_back(PayloadBytes(c.view, tokens));
      // Any bytes are codes; scales, zeros and plain elements are kept finite and moderate.
      for (std::size_t i = 0; i + 1 < payloads.back().size(); i += 2) {
        const std::uint16_t bits = Half(std::uniform_real_distribution<double>(-2.0, 2.0)(random));
        std::memcpy(payloads.back().data() + i, &bits, 2);
      }
      if (c.view.codec == KvCodec::kF32) {
        for (std::size_t i = 0; i + 3 < payloads.back().size(); i += 4) {
          const float x = std::uniform_real_distribution<float>(-2.0f, 2.0f)(random);
          std::memcpy(payloads.back().data() + i, &x, 4);
        }
      }
      const std::int32_t first = Pick(random, 0, tokens - 1);
      const std::int32_t count = Pick(random, 1, tokens - first);
      facts.push_back({payloads.back().data(), tokens, first, count, Pick(random, 0, 300), slot});
      slot += count + Pick(random, 0, 5);
    }
    const auto before = payloads;
    ASSERT_EQ(Inject(c.view, angles.table, cache.layout, facts.data(), fact_count),
              KernelStatus::kOk);
    EXPECT_EQ(payloads, before);
    for (std::int32_t f = 0; f < fact_count; ++f) {
      const FactDescriptor& fact = facts[static_cast<std::size_t>(f)];
      for (std::int32_t layer = 0; layer < c.view.layers; ++layer) {
        for (std::int32_t head = 0; head < c.view.kv_heads; ++head) {
          for (std::int32_t t = 0; t < fact.count; ++t) {
            for (const bool key : {true, false}) {
              const std::int32_t dim = key ? c.view.key_dim : c.view.value_dim;
              std::vector<double> row;
              for (std::int32_t d = 0; d < dim; ++d) {
                row.push_back(DecodeElement(c.view, fact.payload, fact.tokens, layer, head, key,
                                            fact.first + t, d));
              }
              double largest = 1;
              for (const double x : row) largest = std::max(largest, std::abs(x));
              if (key) row = Turn(row, angles.table, layer, fact.position + t, 1);
              for (std::int32_t d = 0; d < dim; ++d) {
                const double got =
                    ReadScalar(c.type, cache.Place(key, layer, fact.slot + t, head, d));
                ASSERT_NEAR(got, row[static_cast<std::size_t>(d)],
                            1.5 * largest * (Roundoff(c.type) + 1e-6))
                    << "key " << key << " token " << t << " dim " << d;
                WriteScalar(c.type, 0, cache.Place(key, layer, fact.slot + t, head, d));
                WriteScalar(c.type, 0, expected.Place(key, layer, fact.slot + t, head, d));
              }
            }
          }
        }
      }
    }
    // Nothing else has been written.
    ASSERT_EQ(cache.keys, expected.keys);
    ASSERT_EQ(cache.values, expected.values);
  }
}

TEST(Capture, EncodesWithinHalfAStepForAnyGeometryAndLayout) {
  std::mt19937 random(12);
  for (int round = 0; round < 300; ++round) {
    SCOPED_TRACE(round);
    const Case c = RandomCase(random);
    const Angles angles = MakeAngles(c, random);
    const std::int32_t tokens = Pick(random, 1, 150);
    const std::int32_t block_slots = Pick(random, 1, 40), blocks = 200 / block_slots + 1;
    Cache cache(c.view, c.type, c.key_order, c.value_order, blocks, block_slots, c.paged, random);
    std::normal_distribution<double> normal(0.5, 3.0);
    const std::int32_t slot = Pick(random, 0, 20), position = Pick(random, 0, 200);
    for (std::int32_t layer = 0; layer < c.view.layers; ++layer) {
      for (std::int32_t head = 0; head < c.view.kv_heads; ++head) {
        for (std::int32_t t = 0; t < tokens; ++t) {
          for (std::int32_t d = 0; d < c.view.key_dim; ++d) {
            WriteScalar(c.type, normal(random), cache.Place(true, layer, slot + t, head, d));
          }
          for (std::int32_t d = 0; d < c.view.value_dim; ++d) {
            WriteScalar(c.type, normal(random), cache.Place(false, layer, slot + t, head, d));
          }
        }
      }
    }
    const Cache before = cache;
    std::vector<std::uint8_t> payload(PayloadBytes(c.view, tokens) + 16, 0xCD);
    const FactDescriptor fact{payload.data(), tokens, 0, tokens, position, slot};
    ASSERT_EQ(Capture(c.view, angles.table, cache.layout, &fact, 1), KernelStatus::kOk);
    EXPECT_EQ(cache.keys, before.keys);
    EXPECT_EQ(cache.values, before.values);
    EXPECT_TRUE(std::all_of(payload.end() - 16, payload.end(), [](auto b) { return b == 0xCD; }));

    const double levels = c.view.codec == KvCodec::kInt4 ? 15 : 255;
    const bool quantised = c.view.codec == KvCodec::kInt4 || c.view.codec == KvCodec::kInt8;
    const double roundoff = c.view.codec == KvCodec::kF32    ? 1e-6
                            : c.view.codec == KvCodec::kBF16 ? 0x1p-8
                                                             : 0x1p-11;
    for (std::int32_t layer = 0; layer < c.view.layers; ++layer) {
      for (std::int32_t head = 0; head < c.view.kv_heads; ++head) {
        for (const bool key : {true, false}) {
          const std::int32_t dim = key ? c.view.key_dim : c.view.value_dim;
          std::vector<std::vector<double>> rows;
          for (std::int32_t t = 0; t < tokens; ++t) {
            std::vector<double> row;
            for (std::int32_t d = 0; d < dim; ++d) {
              row.push_back(ReadScalar(c.type, cache.Place(key, layer, slot + t, head, d)));
            }
            rows.push_back(key ? Turn(row, angles.table, layer, position + t, -1) : row);
          }
          const std::int32_t groups = KeyGroups(tokens);
          for (std::int32_t t = 0; t < tokens; ++t) {
            for (std::int32_t d = 0; d < dim; ++d) {
              // The range of the group this element is in.
              std::int32_t t0 = t, t1 = t + 1, d0 = d / 32 * 32, d1 = std::min(dim, d0 + 32);
              if (key) {
                std::int32_t g = 0;
                while (std::int64_t{g + 1} * tokens / groups <= t) ++g;
                t0 = static_cast<std::int32_t>(std::int64_t{g} * tokens / groups);
                t1 = static_cast<std::int32_t>(std::int64_t{g + 1} * tokens / groups);
                d0 = d, d1 = d + 1;
              }
              double low = 1e9, high = -1e9;
              for (std::int32_t a = t0; a < t1; ++a) {
                for (std::int32_t b = d0; b < d1; ++b) {
                  low =
                      std::min(low, rows[static_cast<std::size_t>(a)][static_cast<std::size_t>(b)]);
                  high = std::max(high,
                                  rows[static_cast<std::size_t>(a)][static_cast<std::size_t>(b)]);
                }
              }
              const double magnitude = std::max(std::abs(low), std::abs(high));
              const double allowed =
                  quantised ? 0.5 * (high - low) / levels + 3 * 0x1p-11 * (magnitude + high - low)
                            : roundoff * magnitude + 1e-5;
              const double truth = rows[static_cast<std::size_t>(t)][static_cast<std::size_t>(d)];
              ASSERT_NEAR(DecodeElement(c.view, payload.data(), tokens, layer, head, key, t, d),
                          truth, allowed)
                  << "key " << key << " token " << t << " dim " << d;
            }
          }
        }
      }
    }
    // Capturing again gives the same bytes, padding included.
    std::vector<std::uint8_t> again(payload.size(), 0xCD);
    for (std::size_t i = 0; i + 16 < again.size(); ++i) again[i] = 0x11;
    FactDescriptor second = fact;
    second.payload = again.data();
    ASSERT_EQ(Capture(c.view, angles.table, cache.layout, &second, 1), KernelStatus::kOk);
    ASSERT_EQ(again, payload);
  }
}

TEST(Capture, ThenInjectAtTheSamePlaceIsExactForPlainCodecs) {
  std::mt19937 random(13);
  const CodecView view{KvCodec::kF32, 2, 2, 64, 64};
  for (const RopePairing pairing : {RopePairing::kInterleaved, RopePairing::kHalf}) {
    const Angles angles(1, 400, 64, pairing, {0, 0});
    Cache cache(view, ScalarType::kF16, Order::kByToken, Order::kTransposed, 1, 64, false, random);
    std::normal_distribution<double> normal;
    for (auto* side : {&cache.keys, &cache.values}) {
      for (auto& layer : *side) {
        for (std::size_t i = 0; i + 1 < layer.size(); i += 2) {
          WriteScalar(ScalarType::kF16, normal(random), layer.data() + i);
        }
      }
    }
    const Cache before = cache;
    std::vector<std::uint8_t> payload(PayloadBytes(view, 50));
    const FactDescriptor fact{payload.data(), 50, 0, 50, 300, 7};
    ASSERT_EQ(Capture(view, angles.table, cache.layout, &fact, 1), KernelStatus::kOk);
    ASSERT_EQ(Inject(view, angles.table, cache.layout, &fact, 1), KernelStatus::kOk);
    EXPECT_EQ(cache.values, before.values);
    for (std::size_t layer = 0; layer < 2; ++layer) {
      for (std::size_t i = 0; i + 1 < cache.keys[layer].size(); i += 2) {
        const double was = ReadScalar(ScalarType::kF16, before.keys[layer].data() + i);
        ASSERT_NEAR(ReadScalar(ScalarType::kF16, cache.keys[layer].data() + i), was,
                    0x1p-10 * std::abs(was) + 1e-6);
      }
    }
  }
}

TEST(Capture, SurvivesNumbersThatAreNotFiniteAndConstantGroups) {
  std::mt19937 random(14);
  for (const KvCodec codec : {KvCodec::kInt4, KvCodec::kInt8}) {
    const CodecView view{codec, 1, 1, 37, 70};
    const Angles angles(0, 0, 0, RopePairing::kHalf, {-1});
    Cache cache(view, ScalarType::kF32, Order::kByToken, Order::kByToken, 1, 60, false, random);
    const double special[] = {NAN, INFINITY, -INFINITY, 1e30, -1e30, 0.0};
    for (std::int32_t t = 0; t < 60; ++t) {
      for (std::int32_t d = 0; d < 37; ++d) {
        const double x = d < 6 ? special[(t + d) % 6] : 4.0;
        WriteScalar(ScalarType::kF32, x, cache.Place(true, 0, t, 0, d));
      }
      for (std::int32_t d = 0; d < 70; ++d) {
        const double x = d < 32 ? special[(t + d) % 6] : -3.0;
        WriteScalar(ScalarType::kF32, x, cache.Place(false, 0, t, 0, d));
      }
    }
    std::vector<std::uint8_t> payload(PayloadBytes(view, 60));
    const FactDescriptor fact{payload.data(), 60, 0, 60, 0, 0};
    ASSERT_EQ(Capture(view, angles.table, cache.layout, &fact, 1), KernelStatus::kOk);
    for (std::int32_t t = 0; t < 60; ++t) {
      for (std::int32_t d = 0; d < 37; ++d) {
        const double x = DecodeElement(view, payload.data(), 60, 0, 0, true, t, d);
        ASSERT_TRUE(std::isfinite(x));
        if (d >= 6) {
          ASSERT_EQ(x, 4.0);
        }
      }
      for (std::int32_t d = 0; d < 70; ++d) {
        const double x = DecodeElement(view, payload.data(), 60, 0, 0, false, t, d);
        ASSERT_TRUE(std::isfinite(x));
        if (d >= 32) {
          ASSERT_EQ(x, -3.0);
        }
      }
    }
  }
}

// A valid call, to be broken one argument at a time.
struct ValidCall {
  ValidCall()
      : random(15),
        angles(1, 100, 32, RopePairing::kHalf, {0, 0}),
        cache(view, ScalarType::kF16, Order::kByToken, Order::kByToken, 5, 8, true, random),
        payload(PayloadBytes(view, 20)) {
    fact = {payload.data(), 20, 0, 20, 80, 20};
    rope = angles.table;
    layout = cache.layout;
  }
  KernelStatus RunInject() { return Inject(view, rope, layout, &fact, 1); }
  std::mt19937 random;
  CodecView view{KvCodec::kInt4, 2, 2, 32, 32};
  Angles angles;
  Cache cache;
  std::vector<std::uint8_t> payload;
  FactDescriptor fact;
  RopeTable rope;
  PagedLayout layout;
};

TEST(Inject, ChecksEveryArgumentAndWritesNothing) {
  const auto expect = [](KernelStatus status, const std::function<void(ValidCall&)>& breaks) {
    ValidCall call;
    const auto keys = call.cache.keys;
    const auto values = call.cache.values;
    breaks(call);
    EXPECT_EQ(call.RunInject(), status);
    if (status == KernelStatus::kOk) return;
    EXPECT_EQ(call.cache.keys, keys);
    EXPECT_EQ(call.cache.values, values);
  };
  expect(KernelStatus::kOk, [](ValidCall&) {});
  const KernelStatus view = KernelStatus::kBadView, rope = KernelStatus::kBadRope,
                     layout = KernelStatus::kBadLayout, fact = KernelStatus::kBadDescriptor;
  expect(view, [](ValidCall& c) { c.view.codec = static_cast<KvCodec>(5); });
  expect(view, [](ValidCall& c) { c.view.layers = 0; });
  expect(view, [](ValidCall& c) { c.view.kv_heads = -1; });
  expect(view, [](ValidCall& c) { c.view.key_dim = 0; });
  expect(view, [](ValidCall& c) { c.view.value_dim = INT32_MAX; });
  expect(rope, [](ValidCall& c) { c.rope.layer_group = nullptr; });
  expect(rope, [](ValidCall& c) { c.rope.cos_sin = nullptr; });
  expect(rope, [](ValidCall& c) { c.rope.groups = 0; });
  expect(rope, [](ValidCall& c) { c.rope.width = 31; });
  expect(rope, [](ValidCall& c) { c.rope.width = 34; });
  expect(rope, [](ValidCall& c) { c.rope.width = 0; });
  expect(rope, [](ValidCall& c) { c.rope.pairing = static_cast<RopePairing>(2); });
  expect(rope, [](ValidCall& c) { c.angles.layer_group[1] = -2; });
  expect(layout, [](ValidCall& c) { c.layout.type = static_cast<ScalarType>(3); });
  expect(layout, [](ValidCall& c) { c.layout.key_base = nullptr; });
  expect(layout, [](ValidCall& c) { c.cache.value_base[1] = nullptr; });
  expect(layout, [](ValidCall& c) { c.layout.slots = 0; });
  expect(layout, [](ValidCall& c) { c.layout.block_slots = 0; });
  expect(fact, [](ValidCall& c) { c.fact.payload = nullptr; });
  expect(fact, [](ValidCall& c) { c.fact.tokens = 0; });
  expect(fact, [](ValidCall& c) { c.fact.tokens = 19; });
  expect(fact, [](ValidCall& c) { c.fact.tokens = INT32_MAX; });
  expect(fact, [](ValidCall& c) { c.fact.count = 0; });
  expect(fact, [](ValidCall& c) { c.fact.count = -1; });
  expect(fact, [](ValidCall& c) { c.fact.first = -1; });
  expect(fact, [](ValidCall& c) { c.fact.first = 1; });
  expect(fact, [](ValidCall& c) { c.fact.first = c.fact.count = INT32_MAX; });
  expect(fact, [](ValidCall& c) { c.fact.position = 81; });
  expect(fact, [](ValidCall& c) { c.fact.position = -1; });
  expect(fact, [](ValidCall& c) { c.fact.slot = -1; });
  expect(fact, [](ValidCall& c) { c.cache.table[3] = 5; });
  expect(fact, [](ValidCall& c) { c.cache.table[4] = -1; });
  expect(fact, [](ValidCall& c) { c.layout.block_table = nullptr, c.fact.slot = 21; });
  expect(KernelStatus::kOk, [](ValidCall& c) { c.cache.table[0] = 99; });  // not touched
}

TEST(Inject, TakesAnEmptyListAndRefusesANegativeOne) {
  ValidCall call;
  EXPECT_EQ(Inject(call.view, call.rope, call.layout, nullptr, 0), KernelStatus::kOk);
  EXPECT_EQ(Capture(call.view, call.rope, call.layout, nullptr, 0), KernelStatus::kOk);
  EXPECT_EQ(Inject(call.view, call.rope, call.layout, &call.fact, -1),
            KernelStatus::kBadDescriptor);
  EXPECT_EQ(Inject(call.view, call.rope, call.layout, nullptr, 1), KernelStatus::kBadDescriptor);
}

TEST(Inject, OneBadDescriptorStopsAllOfThem) {
  ValidCall call;
  const auto keys = call.cache.keys;
  FactDescriptor facts[2] = {call.fact, call.fact};
  facts[1].count = 21;
  EXPECT_EQ(Inject(call.view, call.rope, call.layout, facts, 2), KernelStatus::kBadDescriptor);
  EXPECT_EQ(call.cache.keys, keys);
}

TEST(Capture, WantsWholeBlocks) {
  ValidCall call;
  EXPECT_EQ(Capture(call.view, call.rope, call.layout, &call.fact, 1), KernelStatus::kOk);
  call.fact.count = 19;
  EXPECT_EQ(Capture(call.view, call.rope, call.layout, &call.fact, 1),
            KernelStatus::kBadDescriptor);
}

}  // namespace
}  // namespace inferscale::kernels
