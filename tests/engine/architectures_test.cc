// Every way of giving keys their position: stored KV is exact, or it is not used.
#include <gtest/gtest.h>

#include <cmath>
#include <fstream>

#include <nlohmann/json.hpp>

#include "support/engine_fixture.h"

namespace inferscale {
namespace {

using testing::EncodeAll;
using testing::FactTokens;
using testing::Greedy;
using testing::MakeFactPrompt;
using testing::SomeFacts;

std::vector<std::pair<std::string, std::string>> Manifest() {
  std::ifstream file(std::filesystem::path(INFERSCALE_TINY_MODELS_DIR) / "manifest.json");
  const nlohmann::json manifest = nlohmann::json::parse(file, nullptr, false);
  std::vector<std::pair<std::string, std::string>> models;
  if (!manifest.is_array()) return models;
  for (const auto& entry : manifest) models.emplace_back(entry["name"], entry["expect"]);
  return models;
}

double LargestDifference(const std::vector<float>& a, const std::vector<float>& b) {
  double largest = 0;
  for (std::size_t i = 0; i < a.size(); ++i) {
    largest = std::max(largest, std::fabs(static_cast<double>(a[i]) - b[i]));
  }
  return largest;
}

TEST(Architectures, AreExactOrRefused) {
  const auto models = Manifest();
  ASSERT_FALSE(models.empty()) << "no tiny models: build the target inferscale_tiny_models";
  for (const auto& [name, expect] : models) {
    SCOPED_TRACE(name);
    LlamaEngineOptions options = testing::TestOptions(testing::TinyModel(name));
    options.f32_cache = true;
    auto created = LlamaEngine::Create(options);
    ASSERT_TRUE(created.ok()) << created.status().ToString();
    LlamaEngine& engine = **created;
    const EngineCapabilities& capabilities = engine.capabilities();
    if (expect == "exact") {
      EXPECT_TRUE(capabilities.kv_injection) << capabilities.kv_refusal;
    }
    if (expect == "refused") {
      EXPECT_FALSE(capabilities.kv_injection);
    }
    EXPECT_EQ(capabilities.kv_injection, capabilities.kv_refusal.empty());

    // Long enough to leave Gemma's window of 256 tokens behind.
    std::vector<std::string> facts = SomeFacts();
    for (const std::string& fact : SomeFacts()) facts.push_back(fact + ", they said again");
    testing::FactPrompt prompt =
        MakeFactPrompt(engine, facts, "What does Anna drink?", KvCodec::kF32);
    ASSERT_FALSE(prompt.composition.ids.empty());
    Composition text = prompt.composition;
    text.inject = false;
    text.salt = "text";
    Composition kv = prompt.composition;
    kv.salt = "kv";
    const TokenIds continuation = engine.Tokenize("She drinks tea with honey.");

    if (!capabilities.kv_injection) {
      for (const EncodeOutcome& outcome : EncodeAll(engine, prompt.requests)) {
        EXPECT_EQ(outcome.status.code(), StatusCode::kUnsupported);
      }
      const GenerationReport report = GenerateBlocking(engine, kv, Greedy(8));
      ASSERT_TRUE(report.status.ok()) << report.status.ToString();
      EXPECT_EQ(report.injected_tokens, 0);
      EXPECT_EQ(testing::FallbackCount(report, "model_unsupported"),
                static_cast<std::int32_t>(kv.blocks.size()));
      EXPECT_EQ(report.text, GenerateBlocking(engine, text, Greedy(8)).text);
      continue;
    }
    for (const EncodeOutcome& outcome : EncodeAll(engine, prompt.requests)) {
      ASSERT_TRUE(outcome.status.ok()) << outcome.status.ToString();
    }
    const auto computed = engine.Score(text, continuation, true);
    ASSERT_TRUE(computed.ok()) << computed.status().ToString();
    const auto injected = engine.Score(kv, continuation, true);
    ASSERT_TRUE(injected.ok()) << injected.status().ToString();
    EXPECT_EQ(computed->generation.injected_tokens, 0);
    EXPECT_EQ(injected->generation.injected_tokens, FactTokens(kv));
    EXPECT_EQ(injected->generation.computed_tokens,
              static_cast<std::int32_t>(kv.ids.size()) - FactTokens(kv));
    const double difference = LargestDifference(computed->logprobs, injected->logprobs);
    EXPECT_LT(difference, 0.02);

    // Another fact's KV under these keys must show.
    const std::vector<EncodeRequest> requests =
        MakeFactPrompt(engine, facts, "What does Anna drink?", KvCodec::kF32, 1).requests;
    std::vector<EncodeRequest> wrong;
    Composition swapped = kv;
    swapped.salt = "wrong";
    for (std::size_t i = 1; i < requests.size(); ++i) {
      wrong.push_back(requests[i]);
      // The fact's own tokens behind nothing at all: what a bare recipe would see.
      wrong.back().context = nullptr;
      swapped.blocks[i].key = requests[i].info.key;
    }
    for (const EncodeOutcome& outcome : EncodeAll(engine, wrong)) ASSERT_TRUE(outcome.status.ok());
    const auto other = engine.Score(swapped, continuation, true);
    ASSERT_TRUE(other.ok());
    EXPECT_EQ(other->generation.injected_tokens, FactTokens(kv));
    EXPECT_GT(LargestDifference(computed->logprobs, other->logprobs), 10 * difference);
  }
}

}  // namespace
}  // namespace inferscale
