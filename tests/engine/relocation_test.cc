// The relocation check must pass with the measured rotation and fail with any other.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "engine/llama/kv_transfer.h"
#include "engine/llama/model_probe.h"
#include "llama/llama_context.h"
#include "llama/tokenizer.h"
#include "support/engine_fixture.h"

namespace inferscale {
namespace {

using testing::ChatModel;
using testing::TinyModel;

class Relocation : public ::testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    const std::string name = GetParam();
    const std::filesystem::path path = name == "chat" ? ChatModel() : TinyModel(name);
    if (!std::filesystem::exists(path)) GTEST_SKIP() << path << " is not there: run make build";
    auto model = LlamaModel::Load({.path = path});
    ASSERT_TRUE(model.ok()) << model.status().ToString();
    LlamaContextOptions options;
    options.tokens_per_sequence = 512;
    options.sequences = 2;
    auto context = LlamaContext::Create(*model, options);
    ASSERT_TRUE(context.ok()) << context.status().ToString();
    context_ = std::move(*context);
    const LlamaTokenizer tokenizer(*model);
    token_ = tokenizer.Tokenize(" the").back();
    auto probe = ProbeModel(*context_, token_);
    ASSERT_TRUE(probe.ok()) << probe.status().ToString();
    probe_ = std::move(*probe);
  }
  RelocationCheck Error(const RopeSpec& rope) {
    const auto error = MeasureRelocation(*context_, probe_, rope, token_);
    EXPECT_TRUE(error.ok()) << error.status().ToString();
    return error.ok() ? *error : RelocationCheck();
  }

  std::unique_ptr<LlamaContext> context_;
  KvProbe probe_;
  TokenId token_ = 0;
};

TEST_P(Relocation, PassesAsMeasured) {
  const RelocationCheck error = Error(probe_.rope);
  EXPECT_TRUE(error.Acceptable()) << error.WorstKeys() << ", " << error.WorstValues();
  EXPECT_GT(error.WorstKeys(), 0.0);
  EXPECT_EQ(error.WorstValues(), 0.0) << "a CPU repeats itself";
  EXPECT_EQ(context_->LastPosition(0), -1) << "the check leaves something behind";
}

TEST_P(Relocation, FailsWithAnotherBase) {
  RopeSpec rope = probe_.rope;
  for (RopeGroup& group : rope.groups) {
    for (std::size_t i = 0; i < group.inverse_frequency.size(); ++i) {
      group.inverse_frequency[i] *=
          std::pow(1.02, -2.0 * static_cast<double>(i) / static_cast<double>(rope.width));
    }
  }
  EXPECT_FALSE(Error(rope).Acceptable());
}

TEST_P(Relocation, FailsWithAnotherPairing) {
  RopeSpec rope = probe_.rope;
  rope.pairing =
      rope.pairing == RopePairing::kHalf ? RopePairing::kInterleaved : RopePairing::kHalf;
  EXPECT_FALSE(Error(rope).Acceptable());
}

TEST_P(Relocation, FailsWithOneScalingFactorPerturbed) {
  for (std::size_t group = 0; group < probe_.rope.groups.size(); ++group) {
    for (std::size_t pair = 0; pair < 3; ++pair) {
      RopeSpec rope = probe_.rope;
      rope.groups[group].inverse_frequency[pair] *= 1.01;
      EXPECT_FALSE(Error(rope).Acceptable()) << "group " << group << ", pair " << pair;
    }
  }
}

TEST_P(Relocation, FailsWhenALayerIsTakenForUnrotated) {
  RopeSpec rope = probe_.rope;
  for (std::int32_t& group : rope.layer_group) {
    if (group >= 0) {
      group = -1;
      break;
    }
  }
  EXPECT_FALSE(Error(rope).Acceptable());
}

TEST(RelocationCheck, NoiseExcusesOnlyWhatKeysAndValuesShare) {
  const auto acceptable = [](std::vector<LayerRelocation> layers) {
    return RelocationCheck{std::move(layers)}.Acceptable();
  };
  EXPECT_TRUE(acceptable({{.keys = 0.001, .values = 0}, {.keys = 0.05, .values = 0.04}}));
  EXPECT_FALSE(acceptable({{.keys = 0.001, .values = 0.01}, {.keys = 0.05, .values = 0.04}}))
      << "the first layer's values depend on the position";
  EXPECT_FALSE(acceptable({{.keys = 0.001, .values = 0}, {.keys = 0.05, .values = 0.001}}))
      << "keys are off and values are not";
  EXPECT_FALSE(acceptable({{.keys = 0.001, .values = 0}, {.keys = 0.5, .values = 0.5}}));
  EXPECT_FALSE(acceptable({}));
}

INSTANTIATE_TEST_SUITE_P(Models, Relocation,
                         ::testing::Values("chat", "llama_norm", "llama3_freqs", "llama_linear",
                                           "llama_yarn", "qwen2", "qwen3", "gemma3",
                                           "stablelm_partial", "smollm3_nope"),
                         [](const auto& info) { return std::string(info.param); });

std::vector<float> DecodeLast(LlamaContext& context, const TokenIds& ids, std::int32_t position) {
  std::vector<BatchToken> batch;
  for (std::size_t i = 0; i < ids.size(); ++i) {
    batch.push_back({ids[i], position + static_cast<std::int32_t>(i), 0, i + 1 == ids.size()});
  }
  EXPECT_TRUE(context.Decode(batch).ok());
  const float* logits = context.Logits(static_cast<std::int32_t>(ids.size()) - 1);
  return {logits, logits + context.vocabulary()};
}

double Distance(const std::vector<float>& a, const std::vector<float>& b) {
  double largest = 0;
  for (std::size_t i = 0; i < a.size(); ++i) {
    largest = std::max(largest, std::fabs(static_cast<double>(a[i]) - b[i]));
  }
  return largest;
}

/// A text captured where it stood and injected elsewhere must go on as if computed there.
TEST(RelocatedText, GoesOnAsIfComputedThere) {
  for (const char* name : {"llama_norm", "llama3_freqs", "llama_yarn", "qwen3", "stablelm_partial",
                           "smollm3_nope", "gemma3"}) {
    SCOPED_TRACE(name);
    auto model = LlamaModel::Load({.path = TinyModel(name)});
    ASSERT_TRUE(model.ok()) << model.status().ToString();
    LlamaContextOptions options;
    options.tokens_per_sequence = 512;
    options.f32_cache = true;
    auto created = LlamaContext::Create(*model, options);
    ASSERT_TRUE(created.ok());
    LlamaContext& context = **created;
    const LlamaTokenizer tokenizer(*model);
    const auto probe = ProbeModel(context, tokenizer.Tokenize(" the").back());
    ASSERT_TRUE(probe.ok()) << probe.status().ToString();
    const auto tables = RopeTables::Create(probe->rope, 512);
    ASSERT_TRUE(tables.ok());
    const KvTransfer transfer(probe->geometry, *tables);

    const TokenIds text = tokenizer.Tokenize("Anna drinks tea with honey and walks her old dog.");
    const TokenIds tail = tokenizer.Tokenize(" What does she drink?");
    const auto length = static_cast<std::int32_t>(text.size());
    constexpr std::int32_t kShift = 137;

    DecodeLast(context, text, 0);
    std::vector<std::uint8_t> blob;
    ASSERT_TRUE(context.GetState(0, blob).ok());
    const auto state = ParseState(blob, probe->sections);
    ASSERT_TRUE(state.ok());
    auto payload = transfer.Capture(blob, *state, 0, length, KvCodec::kF32);
    ASSERT_TRUE(payload.ok()) << payload.status().ToString();
    KvBlockInfo info;
    info.geometry = probe->geometry;
    info.codec = KvCodec::kF32;
    info.tokens = text;
    const auto block = KvBlock::Create(info, std::move(*payload));
    ASSERT_TRUE(block.ok()) << block.status().ToString();

    context.Remove(0, 0, -1);
    DecodeLast(context, text, kShift);
    const std::vector<float> expected = DecodeLast(context, tail, kShift + length);

    const auto injected = [&](std::int32_t rotated_to) {
      context.Remove(0, 0, -1);
      const std::vector<CellRange> ranges(static_cast<std::size_t>(probe->sections),
                                          CellRange{kShift, length});
      RawBuffer moved;
      const auto laid_out = LayOutState(probe->shape, ranges, 0, moved);
      EXPECT_TRUE(laid_out.ok());
      ParsedState as_if = *laid_out;
      for (StateSection& section : as_if.sections) {
        for (std::int32_t& position : section.positions) position += rotated_to - kShift;
      }
      const BlockUse use{block->get(), length, rotated_to};
      EXPECT_TRUE(transfer.Inject(moved.bytes(), as_if, {&use, 1}).ok());
      EXPECT_TRUE(context.SetState(0, moved.bytes()).ok());
      return DecodeLast(context, tail, kShift + length);
    };
    const double right = Distance(injected(kShift), expected);
    const double one_off = Distance(injected(kShift + 1), expected);
    EXPECT_LT(right, 2e-2);
    EXPECT_GT(one_off, 20 * right) << "right " << right;
  }
}

}  // namespace
}  // namespace inferscale
