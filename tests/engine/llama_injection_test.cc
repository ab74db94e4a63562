// Stored blocks in prompts: used when they can be, computed around when not.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <string>
#include <vector>

#include "support/engine_fixture.h"

namespace inferscale {
namespace {

using testing::FactPrompt;
using testing::FactTokens;
using testing::FallbackCount;
using testing::Greedy;
using testing::Key;
using testing::Open;
using testing::Stored;
using testing::TemporaryFolder;
using testing::TestOptions;
using testing::TinyModel;
using testing::WithSalt;

TEST(LlamaInjection, InjectsAllFactsAndComputesOnlyTheTail) {
  const auto engine = Open();
  for (const KvCodec codec :
       {KvCodec::kF16, KvCodec::kF32, KvCodec::kBF16, KvCodec::kInt8, KvCodec::kInt4}) {
    const FactPrompt prompt = Stored(*engine, static_cast<std::uint8_t>(codec), codec);
    const std::string salt = "codec" + std::to_string(static_cast<int>(codec));
    const auto report = GenerateBlocking(*engine, WithSalt(prompt.composition, salt), Greedy(8));
    ASSERT_TRUE(report.status.ok()) << report.status.ToString();
    EXPECT_EQ(report.injected_tokens, FactTokens(prompt.composition));
    EXPECT_EQ(report.injected_blocks, static_cast<std::int32_t>(prompt.composition.blocks.size()));
    EXPECT_EQ(report.computed_tokens, report.prompt_tokens - report.injected_tokens);
    EXPECT_EQ(report.reused_tokens, 0);
    EXPECT_TRUE(report.fallbacks.empty());
    EXPECT_EQ(report.generated.size(), 8U);
    EXPECT_EQ(report.finish, FinishReason::kLength);
    EXPECT_GT(report.ttft_ms, 0);
    EXPECT_GE(report.total_ms, report.ttft_ms);
  }
}

TEST(LlamaInjection, ComputesWhatIsMissingAndSaysWhy) {
  TemporaryFolder folder;
  LlamaEngineOptions options = TestOptions(TinyModel("llama_norm"));
  options.store.folder = folder.path();
  options.f32_cache = true;
  const auto engine = Open(options);
  const FactPrompt prompt = Stored(*engine, 0, KvCodec::kF32);
  const auto expected =
      GenerateBlocking(*engine, WithSalt(prompt.composition, "t", false), Greedy(16));
  const auto blocks = static_cast<std::int32_t>(prompt.composition.blocks.size());
  EXPECT_EQ(FallbackCount(expected, "text_mode"), blocks);

  Composition unknown = WithSalt(prompt.composition, "a");
  unknown.blocks[2].key = Key(99, 99);
  auto report = GenerateBlocking(*engine, unknown, Greedy(16));
  EXPECT_EQ(report.injected_tokens, unknown.blocks[1].end);
  EXPECT_EQ(FallbackCount(report, "not_ready"), 1);
  EXPECT_EQ(FallbackCount(report, "not_contiguous"), blocks - 3);
  EXPECT_EQ(report.text, expected.text);

  Composition mismatched = WithSalt(prompt.composition, "b");
  mismatched.blocks[1].key = prompt.composition.blocks[3].key;
  report = GenerateBlocking(*engine, mismatched, Greedy(16));
  EXPECT_EQ(report.injected_tokens, mismatched.blocks[0].end);
  EXPECT_EQ(FallbackCount(report, "token_mismatch"), 1);
  EXPECT_EQ(report.text, expected.text);

  Composition gap = WithSalt(prompt.composition, "c");
  gap.blocks.erase(gap.blocks.begin());
  report = GenerateBlocking(*engine, gap, Greedy(16));
  EXPECT_EQ(report.injected_tokens, 0);
  EXPECT_EQ(FallbackCount(report, "not_contiguous"), blocks - 1);
  EXPECT_EQ(report.text, expected.text);

  ASSERT_TRUE(engine->store().Erase(std::vector{prompt.composition.blocks[2].key}).ok());
  report = GenerateBlocking(*engine, WithSalt(prompt.composition, "d"), Greedy(16));
  EXPECT_EQ(FallbackCount(report, "evicted"), 1);
  EXPECT_EQ(report.text, expected.text);
}

TEST(LlamaInjection, ComputesAroundACorruptBlock) {
  TemporaryFolder folder;
  LlamaEngineOptions options = TestOptions(TinyModel("llama_norm"));
  options.store.folder = folder.path();
  options.f32_cache = true;
  std::string expected;
  FactPrompt prompt;
  {
    const auto engine = Open(options);
    prompt = Stored(*engine, 0, KvCodec::kF32);
    expected = GenerateBlocking(*engine, WithSalt(prompt.composition, "t", false), Greedy(16)).text;
  }
  int damaged = 0;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(folder.path())) {
    if (!entry.is_regular_file() || entry.file_size() < 4096) continue;
    std::fstream file(entry.path(), std::ios::in | std::ios::out | std::ios::binary);
    file.seekp(static_cast<std::streamoff>(entry.file_size()) - 100);
    file.put('\x5a');
    ++damaged;
  }
  ASSERT_GE(damaged, static_cast<int>(prompt.composition.blocks.size()));
  const auto engine = Open(options);
  const auto report = GenerateBlocking(*engine, WithSalt(prompt.composition, "kv"), Greedy(16));
  ASSERT_TRUE(report.status.ok()) << report.status.ToString();
  EXPECT_EQ(report.injected_tokens, 0);
  EXPECT_EQ(FallbackCount(report, "corrupt"), 1);
  EXPECT_EQ(report.text, expected);
}

TEST(LlamaInjection, UsesStoredBlocksAfterARestart) {
  TemporaryFolder folder;
  LlamaEngineOptions options = TestOptions(TinyModel("llama_norm"));
  options.store.folder = folder.path();
  options.cache_folder = folder.path() / "cache";
  FactPrompt prompt;
  TokenIds expected;
  Fingerprint fingerprint;
  {
    const auto engine = Open(options);
    prompt = Stored(*engine);
    expected = GenerateBlocking(*engine, WithSalt(prompt.composition, "kv"), Greedy(16)).generated;
    fingerprint = engine->fingerprint();
  }
  {
    const auto engine = Open(options);
    EXPECT_EQ(engine->fingerprint(), fingerprint);
    const auto report = GenerateBlocking(*engine, WithSalt(prompt.composition, "kv"), Greedy(16));
    EXPECT_EQ(report.injected_tokens, FactTokens(prompt.composition));
    EXPECT_EQ(report.generated, expected);
  }
  options.rope.base = 20000;
  const auto other = Open(options);
  EXPECT_NE(other->fingerprint(), fingerprint) << "another rotation must not use these blocks";
  EXPECT_EQ(GenerateBlocking(*other, WithSalt(prompt.composition, "kv"), Greedy(1)).injected_tokens,
            0);
}

TEST(LlamaInjection, LeavesBlocksUnchangedByUse) {
  const auto engine = Open();
  const FactPrompt prompt = Stored(*engine);
  const auto payloads = [&] {
    std::vector<std::vector<std::uint8_t>> all;
    for (const BlockSpan& span : prompt.composition.blocks) {
      const auto pin = engine->store().Acquire(span.key);
      EXPECT_TRUE(pin.ok());
      if (pin.ok()) all.emplace_back((*pin)->payload().begin(), (*pin)->payload().end());
    }
    return all;
  };
  const auto before = payloads();
  for (int use = 0; use < 100; ++use) {
    const auto report = GenerateBlocking(
        *engine, WithSalt(prompt.composition, "use" + std::to_string(use)), Greedy(1));
    ASSERT_EQ(report.injected_tokens, FactTokens(prompt.composition));
  }
  EXPECT_EQ(payloads(), before);
  EXPECT_EQ(engine->StoreStats().pinned_blocks, 0);
}

TEST(LlamaInjection, AnswersFromTheStoredBlockAndNotFromTheText) {
  const auto engine = Open();
  const FactPrompt prompt = Stored(*engine);
  const auto expected = GenerateBlocking(*engine, WithSalt(prompt.composition, "a"), Greedy(16));
  // The same block with one 16-bit word changed, under the same key.
  const KvKey key = prompt.composition.blocks[1].key;
  KvBlockInfo info;
  std::vector<std::uint8_t> payload;
  {
    const auto pin = engine->store().Acquire(key);
    ASSERT_TRUE(pin.ok());
    info = (*pin)->info();
    payload.assign((*pin)->payload().begin(), (*pin)->payload().end());
  }
  ASSERT_TRUE(engine->store().Erase({&key, 1}).ok());
  payload[payload.size() / 2] ^= 0xff;
  payload[payload.size() / 2 + 1] ^= 0x7f;
  const auto changed = KvBlock::Create(info, payload);
  ASSERT_TRUE(changed.ok());
  ASSERT_TRUE(engine->store().Put(*changed).ok());
  const TokenIds continuation(expected.generated.begin(), expected.generated.end());
  const auto score = engine->Score(WithSalt(prompt.composition, "b"), continuation, true);
  ASSERT_TRUE(score.ok()) << score.status().ToString();
  ASSERT_EQ(score->generation.injected_tokens, FactTokens(prompt.composition));
  const auto text = engine->Score(WithSalt(prompt.composition, "c", false), continuation, true);
  ASSERT_TRUE(text.ok());
  EXPECT_NE(score->logprobs, text->logprobs);
  double largest = 0;
  for (std::size_t i = 0; i < score->logprobs.size(); ++i) {
    largest =
        std::max(largest, std::fabs(static_cast<double>(score->logprobs[i]) - text->logprobs[i]));
  }
  EXPECT_GT(largest, 0.05) << "a changed block must show in the answer";
}

}  // namespace
}  // namespace inferscale
