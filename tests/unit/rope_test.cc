#include "inferscale/rope.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <random>

#include "support/kernel_reference.h"

namespace inferscale {
namespace {

enum class Precision { kF32, kF16, kBF16 };

float Round(double x, Precision precision) {
  if (precision == Precision::kF16) {
    return static_cast<float>(kernels::reference::FromHalf(kernels::reference::Half(x)));
  }
  const float value = static_cast<float>(x);
  if (precision == Precision::kF32) return value;
  std::uint32_t bits;
  std::memcpy(&bits, &value, 4);
  bits = (bits + 0x7fffu + (bits >> 16 & 1u)) & 0xffff0000u;
  float rounded;
  std::memcpy(&rounded, &bits, 4);
  return rounded;
}

struct Model {
  std::int32_t layers = 4, heads = 2, dim = 64;
  RopePairing pairing = RopePairing::kInterleaved;
  std::vector<std::vector<double>> layer_frequency;  // [layers]; empty: not rotated
  Precision precision = Precision::kF16;
  std::uint32_t seed = 7;
};

std::vector<double> Frequencies(double base, std::int32_t width, double linear = 1.0) {
  std::vector<double> result;
  for (std::int32_t i = 0; i < width / 2; ++i) {
    result.push_back(1.0 / std::pow(base, 2.0 * i / width) / linear);
  }
  return result;
}

Model Uniform(std::vector<double> frequency, RopePairing pairing) {
  Model model;
  model.pairing = pairing;
  model.layer_frequency.assign(static_cast<std::size_t>(model.layers), std::move(frequency));
  return model;
}

std::vector<float> KeysAt(const Model& model, std::int32_t position) {
  std::mt19937 random(model.seed);
  std::normal_distribution<double> normal(0.0, 2.0);
  std::vector<float> keys;
  for (std::int32_t layer = 0; layer < model.layers; ++layer) {
    const auto& frequency = model.layer_frequency[static_cast<std::size_t>(layer)];
    const std::size_t pairs = frequency.size();
    for (std::int32_t head = 0; head < model.heads; ++head) {
      std::vector<double> key(static_cast<std::size_t>(model.dim));
      for (double& x : key) x = normal(random);
      for (std::size_t i = 0; i < pairs; ++i) {
        const bool interleaved = model.pairing == RopePairing::kInterleaved;
        double& x = key[interleaved ? 2 * i : i];
        double& y = key[interleaved ? 2 * i + 1 : i + pairs];
        const double c = std::cos(position * frequency[i]), s = std::sin(position * frequency[i]);
        const double turned = x * c - y * s;
        y = x * s + y * c;
        x = turned;
      }
      for (const double x : key) keys.push_back(Round(x, model.precision));
    }
  }
  return keys;
}

std::vector<RopeProbe> Probe(const Model& model, std::int32_t farthest = 16384) {
  std::vector<RopeProbe> probes = {{0, KeysAt(model, 0)}};
  for (std::int32_t p = 1; p <= farthest; p *= 4) probes.push_back({p, KeysAt(model, p)});
  return probes;
}

Result<RopeSpec> Measure(const Model& model, std::int32_t farthest = 16384) {
  return MeasureRope(Probe(model, farthest), model.layers, model.heads, model.dim);
}

// The spec must name each layer's frequencies: fast ones to 1e-6, slow ones so that no angle at the
// farthest probe is off by more than a cache can hold.
void ExpectRecovers(const Model& model) {
  const auto spec = Measure(model);
  ASSERT_TRUE(spec.ok()) << spec.status().ToString();
  EXPECT_EQ(spec->pairing, model.pairing);
  ASSERT_TRUE(spec->Validate(model.layers, model.dim).ok());
  for (std::size_t layer = 0; layer < model.layer_frequency.size(); ++layer) {
    const auto& truth = model.layer_frequency[layer];
    const std::int32_t group = spec->layer_group[layer];
    if (truth.empty()) {
      EXPECT_EQ(group, -1) << "layer " << layer;
      continue;
    }
    ASSERT_GE(group, 0) << "layer " << layer;
    const auto& measured = spec->groups[static_cast<std::size_t>(group)].inverse_frequency;
    if (model.pairing == RopePairing::kHalf) {
      ASSERT_EQ(measured.size(), truth.size());
    }
    ASSERT_LE(measured.size(), truth.size());
    for (std::size_t i = 0; i < truth.size(); ++i) {
      const double frequency = i < measured.size() ? measured[i] : 0.0;
      EXPECT_LT(std::abs(frequency - truth[i]) * 16384, 1.5e-3)
          << "layer " << layer << " pair " << i;
      if (truth[i] > 0.05) {
        EXPECT_LT(std::abs(frequency / truth[i] - 1), 1e-6) << "layer " << layer << " pair " << i;
      }
    }
  }
  EXPECT_LT(RelocationError(*spec, KeysAt(model, 5), 5, KeysAt(model, 1005), 1005, model.layers,
                            model.heads, model.dim),
            model.precision == Precision::kBF16 ? 8e-3 : 2e-3);
}

class MeasureRopeTest : public testing::TestWithParam<RopePairing> {};
INSTANTIATE_TEST_SUITE_P(Pairings, MeasureRopeTest,
                         testing::Values(RopePairing::kInterleaved, RopePairing::kHalf));

TEST_P(MeasureRopeTest, RecoversFullWidth) {
  ExpectRecovers(Uniform(Frequencies(1e4, 64), GetParam()));
  ExpectRecovers(Uniform(Frequencies(1e5, 64), GetParam()));
}

TEST_P(MeasureRopeTest, RecoversBasesWhoseSlowPairsHardlyMove) {
  ExpectRecovers(Uniform(Frequencies(1e6, 64), GetParam()));
  ExpectRecovers(Uniform(Frequencies(5e8, 64), GetParam()));
}

TEST_P(MeasureRopeTest, RecoversPartialWidth) {
  for (const std::int32_t width : {2, 16, 32, 48}) {
    Model model = Uniform(Frequencies(1e4, width), GetParam());
    if (width == 2) model.pairing = RopePairing::kInterleaved;  // both pairings are the same then
    ExpectRecovers(model);
    const auto spec = Measure(model);
    ASSERT_TRUE(spec.ok());
    EXPECT_EQ(spec->width, width);
  }
}

TEST_P(MeasureRopeTest, RecoversLinearScaling) {
  ExpectRecovers(Uniform(Frequencies(1e4, 64, 8.0), GetParam()));
}

TEST_P(MeasureRopeTest, RecoversFactorsPerPair) {
  std::vector<double> frequency = Frequencies(5e5, 64);
  for (std::size_t i = 0; i < frequency.size(); ++i) {
    const double ramp = std::clamp((static_cast<double>(i) - 8) / 12, 0.0, 1.0);
    frequency[i] *= (1 - ramp) + ramp / 32.0;
  }
  ExpectRecovers(Uniform(frequency, GetParam()));
}

TEST_P(MeasureRopeTest, RecoversTwoBasesAndUnrotatedLayers) {
  Model model = Uniform(Frequencies(1e4, 64), GetParam());
  model.layers = 7;
  model.layer_frequency.assign(7, Frequencies(1e4, 64));
  model.layer_frequency[2] = {};
  model.layer_frequency[5] = model.layer_frequency[3] = Frequencies(1e6, 64);
  ExpectRecovers(model);
  const auto spec = Measure(model);
  ASSERT_TRUE(spec.ok());
  EXPECT_EQ(spec->groups.size(), 2u);
  EXPECT_EQ(spec->layer_group, (std::vector<std::int32_t>{0, 0, -1, 1, 0, 1, 0}));
}

TEST_P(MeasureRopeTest, CopesWithOtherPrecisions) {
  for (const Precision precision : {Precision::kF32, Precision::kBF16}) {
    Model model = Uniform(Frequencies(1e4, 64), GetParam());
    model.layers = 12;
    model.layer_frequency.assign(12, Frequencies(1e4, 64));
    model.precision = precision;
    ExpectRecovers(model);
  }
}

TEST_P(MeasureRopeTest, WorksOverManySeeds) {
  for (std::uint32_t seed = 0; seed < 25; ++seed) {
    Model model = Uniform(Frequencies(1e6, 128), GetParam());
    model.heads = 1, model.dim = 128, model.seed = seed;
    ExpectRecovers(model);
  }
}

TEST_P(MeasureRopeTest, RefusesWhatIsNotARotation) {
  const Model model = Uniform(Frequencies(1e4, 64), GetParam());
  const auto measure = [&](const std::vector<RopeProbe>& probes) {
    return MeasureRope(probes, model.layers, model.heads, model.dim).status();
  };
  const std::vector<RopeProbe> good = Probe(model);
  ASSERT_TRUE(measure(good).ok());

  std::vector<RopeProbe> noise = good;
  std::mt19937 random(3);
  std::normal_distribution<float> normal;
  for (std::size_t p = 1; p < noise.size(); ++p) {
    for (float& x : noise[p].keys) x = Round(normal(random), Precision::kF16);
  }
  EXPECT_EQ(measure(noise).code(), StatusCode::kUnsupported);

  std::vector<RopeProbe> grown = good;  // a length that depends on the position
  for (float& x : grown.back().keys) x *= 1.125f;
  EXPECT_EQ(measure(grown).code(), StatusCode::kUnsupported);

  std::vector<RopeProbe> one_pair = good;  // one pair of one head, in the last layer
  one_pair[4].keys[one_pair[4].keys.size() - 64] += 1.0f;
  const Status status = measure(one_pair);
  EXPECT_EQ(status.code(), StatusCode::kUnsupported);
  EXPECT_NE(status.message().find("layer 3"), std::string::npos) << status.message();
}

TEST_P(MeasureRopeTest, RefusesFrequenciesThatDependOnLength) {
  Model model = Uniform(Frequencies(1e4, 64), GetParam());
  std::vector<RopeProbe> probes = Probe(model);
  model.layer_frequency.assign(4, Frequencies(4e4, 64));  // dynamic NTK beyond some length
  for (RopeProbe& probe : probes) {
    if (probe.position >= 4096) probe.keys = KeysAt(model, probe.position);
  }
  EXPECT_EQ(MeasureRope(probes, 4, 2, 64).status().code(), StatusCode::kUnsupported);
}

TEST(MeasureRope, NoRotationAtAllIsASpecWithoutGroups) {
  const auto spec = Measure(Uniform({}, RopePairing::kInterleaved));
  ASSERT_TRUE(spec.ok());
  EXPECT_EQ(spec->width, 0);
  EXPECT_TRUE(spec->groups.empty());
  EXPECT_TRUE(spec->Validate(4, 64).ok());
}

TEST(MeasureRope, RefusesBadProbes) {
  const Model model = Uniform(Frequencies(1e4, 64), RopePairing::kHalf);
  std::vector<RopeProbe> probes = Probe(model, 64);
  EXPECT_TRUE(MeasureRope(probes, 4, 2, 64).ok());
  EXPECT_EQ(MeasureRope(probes, 5, 2, 64).status().code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(MeasureRope(probes, 0, 2, 64).status().code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(MeasureRope(probes, INT32_MAX, INT32_MAX, INT32_MAX).status().code(),
            StatusCode::kInvalidArgument);
  EXPECT_EQ(MeasureRope({}, 4, 2, 64).status().code(), StatusCode::kInvalidArgument);
  std::vector<RopeProbe> gap = probes;
  gap.erase(gap.begin() + 1);
  EXPECT_EQ(MeasureRope(gap, 4, 2, 64).status().code(), StatusCode::kInvalidArgument);
  probes[2].keys[5] = NAN;
  EXPECT_EQ(MeasureRope(probes, 4, 2, 64).status().code(), StatusCode::kUnsupported);
}

TEST(MeasureRope, SaysSoWhenTheTokenHidesAPair) {
  const Model model = Uniform(Frequencies(1e4, 64), RopePairing::kInterleaved);
  std::vector<RopeProbe> probes = Probe(model);
  for (RopeProbe& probe : probes) {
    for (std::size_t head = 0; head < 8; ++head) {
      probe.keys[head * 64 + 6] = probe.keys[head * 64 + 7] = 0;
    }
  }
  const Status status = MeasureRope(probes, 4, 2, 64).status();
  EXPECT_EQ(status.code(), StatusCode::kUnsupported);
  EXPECT_NE(status.message().find("pair 3"), std::string::npos) << status.message();
}

TEST(MeasureRope, RefusesAnOddHeadThatMovesToItsEnd) {
  std::vector<RopeProbe> probes;
  for (const std::int32_t p : {0, 1, 4}) {
    probes.push_back({p, {1.0f, 2.0f, 3.0f + static_cast<float>(p)}});
  }
  EXPECT_EQ(MeasureRope(probes, 1, 1, 3).status().code(), StatusCode::kUnsupported);
}

TEST(RelocationError, IsLargeForAPerturbedSpec) {
  const Model model = Uniform(Frequencies(1e5, 64), RopePairing::kInterleaved);
  const auto error = [&](const RopeSpec& spec, std::int32_t shift) {
    return RelocationError(spec, KeysAt(model, 3), 3, KeysAt(model, 3 + shift), 3 + shift, 4, 2,
                           64);
  };
  const auto good = Measure(model);
  ASSERT_TRUE(good.ok());
  RopeSpec base = *good, pairing = *good, scaling = *good, layer = *good;
  base.groups[0] = MakeRopeGroup(1.05e5, base.width);
  pairing.pairing = RopePairing::kHalf;
  for (double& f : scaling.groups[0].inverse_frequency) f /= 1.01;
  layer.layer_group[2] = -1;
  for (const std::int32_t shift : {1, 17, 1000}) EXPECT_LT(error(*good, shift), 1e-3) << shift;
  EXPECT_GT(error(base, 1000), 0.1);
  EXPECT_GT(error(scaling, 1000), 0.1);
  for (const std::int32_t shift : {1, 17, 1000}) {
    EXPECT_GT(error(pairing, shift), 0.1) << shift;
    EXPECT_GT(error(layer, shift), 0.1) << shift;
  }
}

TEST(RelocationError, IsInfiniteForWrongShapesAndNan) {
  const Model model = Uniform(Frequencies(1e4, 64), RopePairing::kHalf);
  const auto spec = Measure(model);
  ASSERT_TRUE(spec.ok());
  std::vector<float> keys = KeysAt(model, 1);
  EXPECT_TRUE(std::isinf(RelocationError(*spec, keys, 1, {}, 2, 4, 2, 64)));
  EXPECT_TRUE(std::isinf(RelocationError(*spec, keys, 1, keys, 2, 3, 2, 64)));
  std::vector<float> broken = keys;
  broken[3] = NAN;
  EXPECT_TRUE(std::isinf(RelocationError(*spec, broken, 1, keys, 2, 4, 2, 64)));
}

TEST(RopeSpec, ValidateChecksShapes) {
  RopeSpec spec;
  spec.width = 4;
  spec.groups = {MakeRopeGroup(1e4, 4)};
  spec.layer_group = {0, -1};
  EXPECT_TRUE(spec.Validate(2, 4).ok());
  EXPECT_FALSE(spec.Validate(3, 4).ok());
  EXPECT_FALSE(spec.Validate(2, 2).ok());
  spec.layer_group[1] = 1;
  EXPECT_FALSE(spec.Validate(2, 4).ok());
  spec.layer_group[1] = -2;
  EXPECT_FALSE(spec.Validate(2, 4).ok());
  spec.layer_group[1] = 0;
  spec.groups[0].inverse_frequency[1] = INFINITY;
  EXPECT_FALSE(spec.Validate(2, 4).ok());
  spec.groups[0].inverse_frequency.pop_back();
  EXPECT_FALSE(spec.Validate(2, 4).ok());
  spec.width = 3;
  EXPECT_FALSE(spec.Validate(2, 4).ok());
}

TEST(MakeRopeGroup, DividesByScaling) {
  const double factors[] = {1.0, 4.0};
  const RopeGroup group = MakeRopeGroup(100.0, 4, factors);
  ASSERT_EQ(group.inverse_frequency.size(), 2u);
  EXPECT_DOUBLE_EQ(group.inverse_frequency[0], 1.0);
  EXPECT_DOUBLE_EQ(group.inverse_frequency[1], 0.1 / 4);
}

TEST(RopeTables, HoldCosineAndSineOfEveryPosition) {
  RopeSpec spec;
  spec.width = 8;
  spec.groups = {MakeRopeGroup(1e4, 8), MakeRopeGroup(1e6, 8)};
  spec.layer_group = {0, 1};
  const auto tables = RopeTables::Create(spec, 300);
  ASSERT_TRUE(tables.ok());
  const auto& table = (*tables)->cos_sin();
  ASSERT_EQ(table.size(), 2u * 300 * 8);
  for (std::size_t g = 0; g < 2; ++g) {
    for (std::size_t p = 0; p < 300; ++p) {
      for (std::size_t i = 0; i < 4; ++i) {
        const double angle = static_cast<double>(p) * spec.groups[g].inverse_frequency[i];
        EXPECT_FLOAT_EQ(table[((g * 300 + p) * 4 + i) * 2], static_cast<float>(std::cos(angle)));
        EXPECT_FLOAT_EQ(table[((g * 300 + p) * 4 + i) * 2 + 1],
                        static_cast<float>(std::sin(angle)));
      }
    }
  }
  EXPECT_GE((*tables)->MemorySizeBytes(), table.size() * 4);
  EXPECT_FALSE(RopeTables::Create(spec, 0).ok());
  EXPECT_FALSE(RopeTables::Create(spec, INT32_MAX).ok());
}

}  // namespace
}  // namespace inferscale
