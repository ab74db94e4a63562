// States taken out of llama.cpp and put back by this program's own hand, on f32 weights, where
// equal means bit for bit.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>

#include "engine/llama/model_probe.h"
#include "llama.h"
#include "llama/llama_context.h"
#include "llama/state_blob.h"
#include "llama/tokenizer.h"
#include "support/engine_fixture.h"

namespace inferscale {
namespace {

using testing::ChatModelF32;
using testing::TinyModel;

struct Loaded {
  std::shared_ptr<const LlamaModel> model;
  std::unique_ptr<LlamaContext> context;
  std::unique_ptr<LlamaTokenizer> tokenizer;
};

Loaded Load(const std::filesystem::path& path, bool flash_attention = false) {
  Loaded loaded;
  auto model = LlamaModel::Load({.path = path});
  EXPECT_TRUE(model.ok()) << model.status().ToString();
  if (!model.ok()) return loaded;
  loaded.model = *model;
  LlamaContextOptions options;
  options.tokens_per_sequence = 512;
  options.sequences = 3;
  options.outputs = 3;
  options.batch_tokens = 256;
  options.flash_attention = flash_attention;
  auto context = LlamaContext::Create(*model, options);
  EXPECT_TRUE(context.ok()) << context.status().ToString();
  if (context.ok()) loaded.context = std::move(*context);
  loaded.tokenizer = std::make_unique<LlamaTokenizer>(*model);
  return loaded;
}

std::vector<float> DecodeLast(LlamaContext& context, const TokenIds& ids, std::int32_t position,
                              std::int32_t sequence) {
  std::vector<BatchToken> batch;
  for (std::size_t i = 0; i < ids.size(); ++i) {
    batch.push_back(
        {ids[i], position + static_cast<std::int32_t>(i), sequence, i + 1 == ids.size()});
  }
  const auto outcome = context.Decode(batch);
  EXPECT_TRUE(outcome.ok()) << outcome.status().ToString();
  const float* logits = context.Logits(static_cast<std::int32_t>(ids.size()) - 1);
  if (logits == nullptr) return {};
  return {logits, logits + context.vocabulary()};
}

/// A state of `blob`'s tokens written by this program, with the same keys and values.
void Rebuild(std::span<const std::uint8_t> blob, const ParsedState& state, std::int32_t sequence,
             RawBuffer& rebuilt) {
  std::vector<CellRange> ranges;
  for (const StateSection& section : state.sections) {
    ranges.push_back({section.positions.front(), section.cells()});
  }
  const auto laid_out = LayOutState(state.shape, ranges, sequence, rebuilt);
  ASSERT_TRUE(laid_out.ok()) << laid_out.status().ToString();
  for (std::size_t s = 0; s < ranges.size(); ++s) {
    const std::size_t cells = static_cast<std::size_t>(ranges[s].count) * state.shape.element_bytes;
    for (std::size_t layer = 0; layer < state.sections[s].key_offset.size(); ++layer) {
      std::memcpy(rebuilt.data() + laid_out->sections[s].key_offset[layer],
                  blob.data() + state.sections[s].key_offset[layer],
                  cells * state.shape.key_elements);
      std::memcpy(rebuilt.data() + laid_out->sections[s].value_offset[layer],
                  blob.data() + state.sections[s].value_offset[layer],
                  cells * state.shape.value_elements);
    }
  }
}

class StateReinjection : public ::testing::TestWithParam<std::pair<const char*, bool>> {
 protected:
  std::filesystem::path Model() const {
    const std::string name = GetParam().first;
    return name == "chat" ? ChatModelF32() : TinyModel(name);
  }
};

TEST_P(StateReinjection, GivesBitIdenticalLogits) {
  if (Model().empty()) GTEST_SKIP() << "the chat model is not there: run make build";
  Loaded loaded = Load(Model(), GetParam().second);
  ASSERT_NE(loaded.context, nullptr);
  const TokenIds prompt = loaded.tokenizer->Tokenize(
      "Anna lives in Hamburg and drinks tea with honey. Peter repairs old clocks behind the "
      "station.");
  const TokenIds tail = loaded.tokenizer->Tokenize(" Where does Anna live?");
  const auto length = static_cast<std::int32_t>(prompt.size());
  LlamaContext& context = *loaded.context;
  DecodeLast(context, prompt, 0, 0);
  std::vector<std::uint8_t> blob;
  ASSERT_TRUE(context.GetState(0, blob).ok());
  const std::vector<float> expected = DecodeLast(context, tail, length, 0);

  const auto state = ParseState(blob, llama_model_n_swa(loaded.model->get()) > 0 ? 2 : 1);
  ASSERT_TRUE(state.ok()) << state.status().ToString();
  EXPECT_EQ(state->shape.transposed_values, !GetParam().second);
  RawBuffer rebuilt;
  Rebuild(blob, *state, 1, rebuilt);
  ASSERT_TRUE(context.SetState(1, rebuilt.bytes()).ok());
  const std::vector<float> actual = DecodeLast(context, tail, length, 1);
  ASSERT_EQ(actual.size(), expected.size());
  EXPECT_EQ(std::memcmp(actual.data(), expected.data(), actual.size() * sizeof(float)), 0);

  // One changed key element must show, or the comparison above proves nothing.
  Rebuild(blob, *state, 1, rebuilt);
  const auto again = ParseState(rebuilt.bytes(), static_cast<std::int32_t>(state->sections.size()));
  ASSERT_TRUE(again.ok()) << again.status().ToString();
  for (std::size_t i = 0; i < 64; ++i) {
    rebuilt.data()[again->sections[0].key_offset[0] + 2 * i + 1] ^= 0x80;
  }
  ASSERT_TRUE(context.SetState(1, rebuilt.bytes()).ok());
  EXPECT_NE(DecodeLast(context, tail, length, 1), expected);
}

TEST_P(StateReinjection, LeavesOtherSequencesUntouched) {
  if (Model().empty()) GTEST_SKIP() << "the chat model is not there: run make build";
  Loaded loaded = Load(Model(), GetParam().second);
  ASSERT_NE(loaded.context, nullptr);
  LlamaContext& context = *loaded.context;
  const TokenIds mine = loaded.tokenizer->Tokenize("Peter repairs old clocks in a small shop.");
  const TokenIds other =
      loaded.tokenizer->Tokenize("Anna walks her dog along the river on Sundays.");
  const TokenIds next = loaded.tokenizer->Tokenize(" He");
  const auto length = static_cast<std::int32_t>(mine.size());

  DecodeLast(context, mine, 0, 0);
  const std::vector<float> expected = DecodeLast(context, next, length, 0);

  context.Remove(0, 0, -1);
  DecodeLast(context, other, 0, 2);
  std::vector<std::uint8_t> blob;
  ASSERT_TRUE(context.GetState(2, blob).ok());
  DecodeLast(context, mine, 0, 0);
  const auto state = ParseState(blob, llama_model_n_swa(loaded.model->get()) > 0 ? 2 : 1);
  ASSERT_TRUE(state.ok());
  RawBuffer rebuilt;
  Rebuild(blob, *state, 1, rebuilt);
  ASSERT_TRUE(context.SetState(1, rebuilt.bytes()).ok());
  EXPECT_EQ(DecodeLast(context, next, length, 0), expected);
}

TEST_P(StateReinjection, RefusesCutAndForeignStates) {
  if (Model().empty()) GTEST_SKIP() << "the chat model is not there: run make build";
  Loaded loaded = Load(Model(), GetParam().second);
  ASSERT_NE(loaded.context, nullptr);
  LlamaContext& context = *loaded.context;
  const std::int32_t sections = llama_model_n_swa(loaded.model->get()) > 0 ? 2 : 1;
  const TokenIds ids = loaded.tokenizer->Tokenize("A short text.");
  DecodeLast(context, ids, 0, 0);
  std::vector<std::uint8_t> blob;
  ASSERT_TRUE(context.GetState(0, blob).ok());
  const std::size_t step = std::max<std::size_t>(1, blob.size() / 500);
  for (std::size_t size = 0; size < blob.size(); size += size < 200 ? 1 : step) {
    const auto cut = ParseState(std::span(blob).first(size), sections);
    ASSERT_FALSE(cut.ok()) << "cut to " << size << " of " << blob.size();
  }
  EXPECT_FALSE(context.SetState(1, std::span(blob).first(blob.size() / 2)).ok());
  EXPECT_EQ(context.LastPosition(1), -1);
  std::vector<std::uint8_t> foreign = blob;
  foreign[0] ^= 1;
  EXPECT_FALSE(ParseState(foreign, sections).ok());
  EXPECT_FALSE(context.SetState(1, foreign).ok());
}

TEST(StateFormat, SurvivesItsOwnCheckAndLongerOnes) {
  Loaded loaded = Load(TinyModel("llama_norm"));
  ASSERT_NE(loaded.context, nullptr);
  TokenIds ids;
  for (int i = 0; i < 200; ++i) ids.push_back(100 + i);
  const auto shape = CheckStateFormat(*loaded.context, 1, ids);
  ASSERT_TRUE(shape.ok()) << shape.status().ToString();
  EXPECT_EQ(shape->streams, 3);
  EXPECT_TRUE(shape->transposed_values);
}

INSTANTIATE_TEST_SUITE_P(Models, StateReinjection,
                         ::testing::Values(std::pair{"llama_f32", false},
                                           std::pair{"llama_f32", true}, std::pair{"gemma3", false},
                                           std::pair{"qwen3", false}, std::pair{"chat", false}),
                         [](const auto& info) {
                           return std::string(info.param.first) +
                                  (info.param.second ? "_flash" : "");
                         });

}  // namespace
}  // namespace inferscale
