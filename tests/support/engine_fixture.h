#ifndef INFERSCALE_TESTS_SUPPORT_ENGINE_FIXTURE_H_
#define INFERSCALE_TESTS_SUPPORT_ENGINE_FIXTURE_H_

/// \file engine_fixture.h
/// Models and helpers for tests of the llama.cpp engine.

#include <gtest/gtest.h>
#include <unistd.h>

#include <atomic>
#include <cstdlib>
#include <filesystem>
#include <future>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "engine/llama/llama_engine.h"
#include "inferscale/engine.h"
#include "llama.h"
#include "llama/llama_runtime.h"

namespace inferscale::testing {

inline std::filesystem::path CacheFolder() {
  if (const char* folder = std::getenv("INFERSCALE_CACHE_DIR")) return folder;
  const char* home = std::getenv("HOME");
  return std::filesystem::path(home != nullptr ? home : ".") / ".cache/inferscale";
}

inline std::filesystem::path TinyModel(const std::string& name) {
  return std::filesystem::path(INFERSCALE_TINY_MODELS_DIR) / (name + ".gguf");
}

/// The real chat model; may not be there.
inline std::filesystem::path ChatModel() {
  if (const char* model = std::getenv("INFERSCALE_TEST_MODEL")) return model;
  return CacheFolder() / "models/SmolLM2-135M-Instruct-Q4_1.gguf";
}

/// The chat model with f32 weights, made once; empty when it cannot be made.
inline std::filesystem::path ChatModelF32() {
  const std::filesystem::path source = ChatModel();
  const std::filesystem::path target =
      CacheFolder() / "tests" / (source.stem().string() + "-f32.gguf");
  std::error_code error;
  if (std::filesystem::exists(target, error)) return target;
  if (!std::filesystem::exists(source, error)) return {};
  InitLlamaRuntime();
  std::filesystem::create_directories(target.parent_path(), error);
  const std::string temporary = target.string() + "." + std::to_string(getpid());
  llama_model_quantize_params params = llama_model_quantize_default_params();
  params.ftype = LLAMA_FTYPE_ALL_F32;
  params.allow_requantize = true;
  params.nthread = 1;
  if (llama_model_quantize(source.c_str(), temporary.c_str(), &params) != 0) return {};
  std::filesystem::rename(temporary, target, error);
  return error ? std::filesystem::path() : target;
}

/// A folder that is removed with the object.
class TemporaryFolder {
 public:
  TemporaryFolder() {
    std::string pattern =
        (std::filesystem::temp_directory_path() / "inferscale_engine_XXXXXX").string();
    if (mkdtemp(pattern.data()) != nullptr) path_ = pattern;
  }
  ~TemporaryFolder() {
    std::error_code error;
    std::filesystem::remove_all(path_, error);
  }
  const std::filesystem::path& path() const { return path_; }

 private:
  std::filesystem::path path_;
};

inline LlamaEngineOptions TestOptions(const std::filesystem::path& model) {
  LlamaEngineOptions options;
  options.model_path = model;
  options.context_tokens = 2048;
  options.threads = 1;
  options.store.host_budget_bytes = std::int64_t{64} << 20;
  return options;
}

inline KvKey Key(std::uint8_t a, std::uint8_t b = 0) {
  KvKey key;
  key.bytes[0] = a;
  key.bytes[1] = b;
  key.bytes[15] = 1;
  return key;
}

inline EncodeRequest MakeRequest(const KvKey& key, TokenIds tokens, TokenIds context,
                                 KvCodec codec = KvCodec::kF16, std::uint64_t scope_tag = 7) {
  EncodeRequest request;
  request.info.key = key;
  request.info.tokens = std::move(tokens);
  request.info.codec = codec;
  request.info.scope_tag = scope_tag;
  request.info.epoch = 1;
  if (!context.empty()) request.context = std::make_shared<const TokenIds>(std::move(context));
  return request;
}

/// Encodes and waits; one status for each request, in the order in which they ended.
inline std::vector<EncodeOutcome> EncodeAll(Engine& engine, std::vector<EncodeRequest> requests) {
  if (requests.empty()) return {};
  auto outcomes = std::make_shared<std::vector<EncodeOutcome>>();
  auto done = std::make_shared<std::promise<void>>();
  const std::size_t count = requests.size();
  engine.Encode(std::move(requests), [outcomes, done, count](const EncodeOutcome& outcome) {
    outcomes->push_back(outcome);
    if (outcomes->size() == count) done->set_value();
  });
  done->get_future().wait();
  return *outcomes;
}

inline std::int32_t FallbackCount(const GenerationReport& report, const std::string& reason) {
  for (const Fallback& fallback : report.fallbacks) {
    if (fallback.reason == reason) return fallback.count;
  }
  return 0;
}

/// A conversation with stored facts: an exact prefix, then facts each encoded behind everything in
/// front of it, so that injecting them must give what computing them gives.
struct FactPrompt {
  Composition composition;
  std::vector<EncodeRequest> requests;
};

inline FactPrompt MakeFactPrompt(Engine& engine, const std::vector<std::string>& facts,
                                 const std::string& question, KvCodec codec = KvCodec::kF16,
                                 std::uint8_t series = 0) {
  FactPrompt prompt;
  const std::vector<ChatMessage> messages = {{"system", "You answer from what you remember.", ""},
                                             {"user", question, ""}};
  const Result<RenderedChat> chat = engine.Render(messages);
  if (!chat.ok() || chat->facts_place < 0) return prompt;
  Composition& composition = prompt.composition;
  composition.ids.assign(chat->ids.begin(), chat->ids.begin() + chat->facts_place);
  const auto add = [&](const KvKey& key, const TokenIds& tokens, bool exact) {
    TokenIds context = exact ? TokenIds() : composition.ids;
    const auto begin = static_cast<std::int32_t>(exact ? 0 : composition.ids.size());
    if (!exact) composition.ids.insert(composition.ids.end(), tokens.begin(), tokens.end());
    composition.blocks.push_back(
        {key, begin, static_cast<std::int32_t>(composition.ids.size()), exact});
    prompt.requests.push_back(MakeRequest(key, tokens, std::move(context), codec));
  };
  const TokenIds header = engine.Tokenize("\nMemories:");
  composition.ids.insert(composition.ids.end(), header.begin(), header.end());
  add(Key(255, series), composition.ids, true);
  for (std::size_t i = 0; i < facts.size(); ++i) {
    add(Key(static_cast<std::uint8_t>(i), series), engine.Tokenize("\n- " + facts[i]), false);
  }
  composition.ids.insert(composition.ids.end(), chat->ids.begin() + chat->facts_place,
                         chat->ids.end());
  composition.scope_tags = {7};
  return prompt;
}

inline std::vector<std::string> SomeFacts() {
  return {"Anna: drinks black tea with honey every morning before work",
          "Anna: walks her old dog Bruno along the river on Sundays",
          "Peter: repairs clocks in a small shop behind the station",
          "Anna: moved from Lisbon to Hamburg in March 2021",
          "Peter: is allergic to peanuts and carries a spray",
          "Anna: 喜欢读历史书, above all about the Tang dynasty"};
}

inline std::int32_t FactTokens(const Composition& composition) {
  return composition.blocks.empty() ? 0 : composition.blocks.back().end;
}

inline Sampling Greedy(std::int32_t tokens) {
  Sampling sampling;
  sampling.max_tokens = tokens;
  return sampling;
}

/// An engine that must open.
inline std::unique_ptr<LlamaEngine> Open(
    const LlamaEngineOptions& options = TestOptions(TinyModel("llama_norm"))) {
  auto engine = LlamaEngine::Create(options);
  EXPECT_TRUE(engine.ok()) << engine.status().ToString();
  return engine.ok() ? std::move(*engine) : nullptr;
}

inline Composition WithSalt(Composition composition, const std::string& salt, bool inject = true) {
  composition.salt = salt;
  composition.inject = inject;
  return composition;
}

/// A fact prompt whose blocks are all stored.
inline FactPrompt Stored(Engine& engine, std::uint8_t series = 0, KvCodec codec = KvCodec::kF16) {
  FactPrompt prompt =
      MakeFactPrompt(engine, SomeFacts(), "What does Anna drink in the morning?", codec, series);
  for (const EncodeOutcome& outcome : EncodeAll(engine, prompt.requests)) {
    EXPECT_TRUE(outcome.status.ok()) << outcome.status.ToString();
  }
  return prompt;
}

}  // namespace inferscale::testing

#endif  // INFERSCALE_TESTS_SUPPORT_ENGINE_FIXTURE_H_
