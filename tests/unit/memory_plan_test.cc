#include "engine/llama/memory_plan.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace inferscale {
namespace {

using ::testing::HasSubstr;

/// Llama 3.1 8B at 4 bits.
GgufMetadata Large() {
  GgufMetadata metadata;
  metadata.file_bytes = std::int64_t{4900} << 20;
  metadata.architecture = "llama";
  metadata.vocabulary = 128256;
  metadata.numbers = {{"llama.block_count", 32},
                      {"llama.attention.head_count", 32},
                      {"llama.attention.head_count_kv", 8},
                      {"llama.embedding_length", 4096},
                      {"llama.context_length", 131072},
                      {"llama.feed_forward_length", 14336}};
  return metadata;
}

constexpr std::int64_t kGib = std::int64_t{1} << 30;

TEST(MemoryPlan, CountsKeysAndValuesOfAllLayers) {
  EXPECT_EQ(KvTokenBytes(Large(), 2), 128 * 1024);
}

TEST(MemoryPlan, TakesWhatIsAskedForWhenItFits) {
  const auto plan = PlanMemory(Large(), {}, 64 * kGib);
  ASSERT_TRUE(plan.ok()) << plan.status().ToString();
  EXPECT_EQ(plan->context_tokens, 8192);
  EXPECT_EQ(plan->parallel_sequences, 4);
  EXPECT_EQ(plan->serving_kv_bytes, 4 * 8192 * 128 * std::int64_t{1024});
  EXPECT_TRUE(plan->note.empty());
}

TEST(MemoryPlan, ReducesSequencesBeforeTheContext) {
  const auto plan = PlanMemory(Large(), {}, 9 * kGib);
  ASSERT_TRUE(plan.ok()) << plan.status().ToString();
  EXPECT_LT(plan->parallel_sequences, 4);
  EXPECT_LE(plan->TotalBytes(), 9 * kGib);
  EXPECT_THAT(plan->note, HasSubstr("parallel sequences reduced from 4"));
  const auto smaller = PlanMemory(Large(), {}, 7 * kGib + kGib / 2);
  ASSERT_TRUE(smaller.ok()) << smaller.status().ToString();
  EXPECT_EQ(smaller->parallel_sequences, 1);
  EXPECT_LT(smaller->context_tokens, 8192);
  EXPECT_LE(smaller->TotalBytes(), 7 * kGib + kGib / 2);
}

TEST(MemoryPlan, RefusesInWordsWhatCannotFit) {
  const auto plan = PlanMemory(Large(), {}, 4 * kGib);
  ASSERT_FALSE(plan.ok());
  EXPECT_EQ(plan.status().code(), StatusCode::kResourceExhausted);
  EXPECT_THAT(plan.status().message(), HasSubstr("smaller model"));
}

TEST(MemoryPlan, StaysInsideTheModelsContext) {
  GgufMetadata metadata = Large();
  metadata.numbers["llama.context_length"] = 2048;
  LlamaEngineOptions options;
  options.context_tokens = 100000;
  const auto plan = PlanMemory(metadata, options, 0);
  ASSERT_TRUE(plan.ok());
  EXPECT_EQ(plan->context_tokens, 2048);
  EXPECT_THAT(plan->note, HasSubstr("2048"));
}

TEST(MemoryPlan, RefusesOptionsOutOfRange) {
  for (const std::int32_t sequences : {0, -1, 257}) {
    LlamaEngineOptions options;
    options.parallel_sequences = sequences;
    EXPECT_FALSE(PlanMemory(Large(), options, 0).ok());
  }
  LlamaEngineOptions options;
  options.encode_sequences = 256;
  EXPECT_FALSE(PlanMemory(Large(), options, 0).ok());
  options = {};
  options.context_tokens = -5;
  EXPECT_FALSE(PlanMemory(Large(), options, 0).ok());
}

}  // namespace
}  // namespace inferscale
