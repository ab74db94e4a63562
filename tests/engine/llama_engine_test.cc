// The engine's promises about generation, on a tiny model that runs in milliseconds.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <cmath>
#include <fstream>
#include <future>
#include <string>
#include <vector>

#include "base/utf8.h"
#include "support/engine_fixture.h"

namespace inferscale {
namespace {

using testing::EncodeAll;
using testing::FactPrompt;
using testing::FactTokens;
using testing::Greedy;
using ::testing::HasSubstr;
using testing::Key;
using testing::MakeRequest;
using testing::Open;
using testing::Stored;
using testing::TemporaryFolder;
using testing::TestOptions;
using testing::TinyModel;
using testing::WithSalt;

TEST(LlamaEngine, GivesTheSameAnswerToTheSameRequest) {
  const auto engine = Open();
  const FactPrompt prompt = Stored(*engine);
  for (const bool inject : {true, false}) {
    const std::string salt = inject ? "kv" : "text";
    const auto first =
        GenerateBlocking(*engine, WithSalt(prompt.composition, salt, inject), Greedy(32));
    ASSERT_TRUE(first.status.ok());
    for (int repeat = 0; repeat < 3; ++repeat) {
      const auto again =
          GenerateBlocking(*engine, WithSalt(prompt.composition, salt, inject), Greedy(32));
      EXPECT_EQ(again.generated, first.generated);
      EXPECT_GT(again.reused_tokens, 0);
      EXPECT_EQ(again.reused_tokens + again.computed_tokens, again.prompt_tokens);
    }
    const auto elsewhere =
        GenerateBlocking(*engine, WithSalt(prompt.composition, salt + "2", inject), Greedy(32));
    EXPECT_EQ(elsewhere.generated, first.generated);
    EXPECT_EQ(elsewhere.reused_tokens, 0) << "KV of one salt was used under another";
  }
}

TEST(LlamaEngine, ReusesAConversationsPrefixUnderItsSalt) {
  const auto engine = Open();
  Composition first;
  first.ids = engine->Tokenize("A long beginning of a conversation about tea and dogs, and so on.");
  first.salt = "owner";
  const auto answer = GenerateBlocking(*engine, first, Greedy(5));
  Composition second = first;
  second.ids.insert(second.ids.end(), answer.generated.begin(), answer.generated.end() - 1);
  const auto cached = static_cast<std::int32_t>(second.ids.size());
  const TokenIds more = engine->Tokenize(" And what else?");
  second.ids.insert(second.ids.end(), more.begin(), more.end());
  Composition foreign = second;
  foreign.salt = "another owner";
  EXPECT_EQ(GenerateBlocking(*engine, foreign, Greedy(1)).reused_tokens, 0);
  EXPECT_EQ(GenerateBlocking(*engine, second, Greedy(1)).reused_tokens, cached);
}

TEST(LlamaEngine, ScoresAsProbabilitiesThatSumToOne) {
  const auto engine = Open();
  Composition prompt;
  prompt.ids = engine->Tokenize("Anna drinks");
  const TokenIds continuation = engine->Tokenize(" tea with honey and lemon");
  const auto whole = engine->Score(prompt, continuation, true);
  ASSERT_TRUE(whole.ok()) << whole.status().ToString();
  ASSERT_EQ(whole->logprobs.size(), continuation.size());
  double sum = 0;
  for (const float logprob : whole->first_logprobs) sum += std::exp(static_cast<double>(logprob));
  EXPECT_NEAR(sum, 1.0, 1e-4);
  EXPECT_FLOAT_EQ(whole->logprobs[0], whole->first_logprobs[continuation[0]]);
  // One token after the other gives the same.
  Composition longer = prompt;
  for (std::size_t i = 0; i < continuation.size(); ++i) {
    longer.salt = "step" + std::to_string(i);
    const auto one = engine->Score(longer, {continuation[i]}, false);
    ASSERT_TRUE(one.ok());
    EXPECT_NEAR(one->logprobs[0], whole->logprobs[i], 2e-2);
    EXPECT_TRUE(one->first_logprobs.empty());
    longer.ids.push_back(continuation[i]);
  }
  EXPECT_FALSE(engine->Score(prompt, {}, false).ok());
  EXPECT_FALSE(engine->Score(prompt, {1 << 20}, false).ok());
}

TEST(LlamaEngine, StreamsWholeCharactersAndStopsAtStopStrings) {
  LlamaEngineOptions options = TestOptions(TinyModel("qwen2"));  // its answers are any bytes
  const auto engine = Open(options);
  Composition prompt;
  prompt.ids = engine->Tokenize("Tell me something.");
  std::string streamed;
  bool valid = true;
  const auto report = GenerateBlocking(*engine, prompt, Greedy(200), [&](const TokenEvent& event) {
    valid = valid && IsValidUtf8(event.text);
    streamed += event.text;
  });
  ASSERT_TRUE(report.status.ok());
  EXPECT_TRUE(valid);
  EXPECT_EQ(streamed, report.text);
  EXPECT_EQ(report.generated.size(), 200U);

  const auto letters = Open();
  prompt.ids = letters->Tokenize("Tell me something.");
  prompt.salt = "free";
  const std::string free_text = GenerateBlocking(*letters, prompt, Greedy(40)).text;
  ASSERT_GT(free_text.size(), 20U);
  Sampling sampling = Greedy(40);
  sampling.stop = {"", free_text.substr(10, 4), "never to be seen"};
  prompt.salt = "stopped";
  streamed.clear();
  const auto stopped = GenerateBlocking(*letters, prompt, sampling,
                                        [&](const TokenEvent& event) { streamed += event.text; });
  EXPECT_EQ(stopped.finish, FinishReason::kStop);
  EXPECT_EQ(stopped.text, free_text.substr(0, free_text.find(sampling.stop[1])));
  EXPECT_EQ(streamed, stopped.text);
}

TEST(LlamaEngine, CancelsAndKeepsDeadlines) {
  const auto engine = Open();
  Composition prompt;
  prompt.ids = engine->Tokenize("Tell me a long story.");
  std::promise<GenerationReport> done;
  std::promise<void> started;
  std::atomic<int> tokens{0};
  GenerationCallbacks callbacks;
  callbacks.on_token = [&](const TokenEvent&) {
    if (++tokens == 3) started.set_value();
  };
  callbacks.on_done = [&](GenerationReport report) { done.set_value(std::move(report)); };
  const auto generation = engine->Generate(prompt, Greedy(1500), callbacks, std::nullopt);
  started.get_future().wait();
  generation->Cancel();
  generation->Wait();
  const GenerationReport cancelled = done.get_future().get();
  EXPECT_EQ(cancelled.finish, FinishReason::kCancelled);
  EXPECT_GE(cancelled.generated.size(), 3U);
  EXPECT_LT(cancelled.generated.size(), 1500U);

  std::promise<GenerationReport> late;
  GenerationCallbacks late_callbacks;
  late_callbacks.on_done = [&](GenerationReport report) { late.set_value(std::move(report)); };
  const auto past = std::chrono::steady_clock::now() - std::chrono::seconds(1);
  engine->Generate(prompt, Greedy(10), late_callbacks, past)->Wait();
  EXPECT_EQ(late.get_future().get().finish, FinishReason::kDeadline);

  std::promise<GenerationReport> soon;
  GenerationCallbacks soon_callbacks;
  soon_callbacks.on_done = [&](GenerationReport report) { soon.set_value(std::move(report)); };
  engine
      ->Generate(prompt, Greedy(2000), soon_callbacks,
                 std::chrono::steady_clock::now() + std::chrono::milliseconds(100))
      ->Wait();
  const GenerationReport ended = soon.get_future().get();
  EXPECT_EQ(ended.finish, FinishReason::kDeadline);
  EXPECT_TRUE(ended.status.ok());
  EXPECT_FALSE(ended.generated.empty());
}

TEST(LlamaEngine, EndsEverythingWhenItIsDestroyed) {
  auto engine = Open();
  Composition prompt;
  prompt.ids = engine->Tokenize("Tell me a long story.");
  std::atomic<int> done{0}, cancelled{0};
  std::vector<std::shared_ptr<Generation>> generations;
  for (int i = 0; i < 8; ++i) {
    GenerationCallbacks callbacks;
    callbacks.on_done = [&](GenerationReport report) {
      ++done;
      if (report.finish == FinishReason::kCancelled) ++cancelled;
    };
    prompt.salt = std::to_string(i);
    generations.push_back(engine->Generate(prompt, Greedy(1800), callbacks, std::nullopt));
  }
  std::vector<EncodeRequest> requests;
  for (int i = 0; i < 200; ++i) {
    requests.push_back(MakeRequest(Key(static_cast<std::uint8_t>(i), 9),
                                   engine->Tokenize("\n- A fact."),
                                   engine->Tokenize("Context " + std::to_string(i))));
  }
  std::atomic<int> outcomes{0};
  engine->Encode(requests, [&](const EncodeOutcome&) { ++outcomes; });
  engine.reset();
  EXPECT_EQ(done, 8);
  EXPECT_GT(cancelled, 0);
  EXPECT_EQ(outcomes, 200);
  for (const auto& generation : generations) {
    generation->Cancel();  // harmless now
    generation->Wait();
  }
}

TEST(LlamaEngine, ServesManySequencesAsIfEachWereAlone) {
  LlamaEngineOptions options = TestOptions(TinyModel("llama_norm"));
  options.context_tokens = 512;
  options.parallel_sequences = 64;
  options.f32_cache = true;
  const auto engine = Open(options);
  ASSERT_EQ(engine->capabilities().parallel_sequences, 64);
  const FactPrompt prompt = Stored(*engine, 0, KvCodec::kF32);
  std::vector<Composition> prompts;
  std::vector<TokenIds> alone;
  for (int i = 0; i < 80; ++i) {
    Composition one = prompt.composition;
    const TokenIds tail = engine->Tokenize(" Question number " + std::to_string(i));
    one.ids.insert(one.ids.end(), tail.begin(), tail.end());
    one.salt = std::to_string(i);
    prompts.push_back(one);
    one.salt += " alone";
    alone.push_back(GenerateBlocking(*engine, one, Greedy(12)).generated);
  }
  std::vector<std::promise<GenerationReport>> done(prompts.size());
  for (std::size_t i = 0; i < prompts.size(); ++i) {
    GenerationCallbacks callbacks;
    callbacks.on_done = [&done, i](GenerationReport report) {
      done[i].set_value(std::move(report));
    };
    engine->Generate(prompts[i], Greedy(12), callbacks, std::nullopt);
  }
  int same = 0;
  for (std::size_t i = 0; i < prompts.size(); ++i) {
    const GenerationReport report = done[i].get_future().get();
    ASSERT_TRUE(report.status.ok()) << report.status.ToString();
    EXPECT_EQ(report.injected_tokens, FactTokens(prompts[i]));
    same += report.generated == alone[i] ? 1 : 0;
  }
  // Batches of another size round differently, which may tip a near tie now and then.
  EXPECT_GE(same, 72);
}

TEST(LlamaEngine, RefusesBadRequestsInWords) {
  const auto engine = Open();
  const auto fails = [&](Composition composition, Sampling sampling = Greedy(4)) {
    const auto report = GenerateBlocking(*engine, std::move(composition), std::move(sampling));
    EXPECT_EQ(report.finish, FinishReason::kError);
    EXPECT_EQ(report.status.code(), StatusCode::kInvalidArgument) << report.status.ToString();
    return report.status.message();
  };
  Composition good;
  good.ids = engine->Tokenize("Hello");
  fails({});
  Composition composition = good;
  composition.ids.push_back(1 << 29);
  EXPECT_THAT(fails(composition), HasSubstr("vocabulary"));
  composition = good;
  composition.ids.resize(5000, composition.ids[0]);
  EXPECT_THAT(fails(composition), HasSubstr("2047"));  // one place is the answer's
  composition = good;
  composition.blocks = {{Key(1), 0, 1 << 20, false}};
  fails(composition);
  composition.blocks = {{Key(1), 0, 1, false}, {Key(2), 0, 1, false}};
  fails(composition);
  Sampling sampling = Greedy(4);
  sampling.top_p = 0;
  EXPECT_THAT(fails(good, sampling), HasSubstr("top_p"));
  sampling = Greedy(4);
  sampling.grammar = "this is no grammar";
  EXPECT_THAT(fails(good, sampling), HasSubstr("grammar"));

  const auto outcomes =
      EncodeAll(*engine, {MakeRequest(Key(1), {}, {}), MakeRequest(Key(2), TokenIds(9000, 5), {}),
                          MakeRequest(Key(3), {1 << 29}, {}), MakeRequest(Key(4), good.ids, {-7})});
  ASSERT_EQ(outcomes.size(), 4U);
  for (const EncodeOutcome& outcome : outcomes) {
    EXPECT_EQ(outcome.status.code(), StatusCode::kInvalidArgument);
  }
  EXPECT_TRUE(GenerateBlocking(*engine, good, Greedy(2)).status.ok()) << "the engine goes on";
}

TEST(LlamaEngine, EndsAtTheEndOfTheContext) {
  LlamaEngineOptions options = TestOptions(TinyModel("llama_norm"));
  options.context_tokens = 256;
  const auto engine = Open(options);
  Composition prompt;
  prompt.ids = engine->Tokenize("Tell me a long story.");
  const auto report = GenerateBlocking(*engine, prompt, Greedy(100000));
  EXPECT_EQ(report.finish, FinishReason::kLength);
  EXPECT_EQ(report.generated.size() + prompt.ids.size(), 256U);
  const auto none = GenerateBlocking(*engine, prompt, Greedy(0));
  EXPECT_TRUE(none.status.ok());
  EXPECT_TRUE(none.generated.empty());
}

TEST(LlamaEngine, SamplesByItsRules) {
  const auto engine = Open();
  Composition prompt;
  prompt.ids = engine->Tokenize("Tell me something.");
  Sampling sampling = Greedy(24);
  sampling.temperature = 1.5;
  sampling.seed = 42;
  sampling.logprobs = 3;
  std::vector<TokenEvent> events;
  const auto first = GenerateBlocking(*engine, prompt, sampling,
                                      [&](const TokenEvent& event) { events.push_back(event); });
  EXPECT_EQ(GenerateBlocking(*engine, prompt, sampling).generated, first.generated);
  sampling.seed = 43;
  EXPECT_NE(GenerateBlocking(*engine, prompt, sampling).generated, first.generated);
  ASSERT_FALSE(events.empty());
  for (const TokenEvent& event : events) {
    ASSERT_EQ(event.top_logprobs.size(), 3U);
    EXPECT_LE(event.logprob, event.top_logprobs[0].second);
    EXPECT_GE(event.top_logprobs[0].second, event.top_logprobs[1].second);
  }
  sampling = Greedy(24);
  sampling.grammar = "root ::= \"yes\" | \"no\"";
  const auto answer = GenerateBlocking(*engine, prompt, sampling);
  ASSERT_TRUE(answer.status.ok()) << answer.status.ToString();
  EXPECT_TRUE(answer.text == "yes" || answer.text == "no") << answer.text;
  EXPECT_EQ(answer.finish, FinishReason::kStop);
}

TEST(LlamaEngine, SaysWhatIsWrongWithAModelFile) {
  TemporaryFolder folder;
  const auto error = [](const std::filesystem::path& path) {
    const auto engine = LlamaEngine::Create(TestOptions(path));
    EXPECT_FALSE(engine.ok());
    return engine.ok() ? std::string() : engine.status().message();
  };
  EXPECT_THAT(error(""), HasSubstr("--model"));
  EXPECT_THAT(error(folder.path() / "none.gguf"), HasSubstr("does not exist"));
  EXPECT_THAT(error(folder.path()), HasSubstr("not a file"));
  std::ofstream(folder.path() / "text.gguf") << "this is text";
  EXPECT_THAT(error(folder.path() / "text.gguf"), HasSubstr("not a GGUF file"));
  std::ofstream(folder.path() / "empty.gguf");
  EXPECT_THAT(error(folder.path() / "empty.gguf"), HasSubstr("not a GGUF file"));
  const std::filesystem::path whole = TinyModel("llama_norm");
  for (const double part : {0.001, 0.1, 0.5, 0.999}) {
    const std::filesystem::path cut = folder.path() / "cut.gguf";
    std::filesystem::copy_file(whole, cut, std::filesystem::copy_options::overwrite_existing);
    std::filesystem::resize_file(
        cut,
        static_cast<std::uintmax_t>(part * static_cast<double>(std::filesystem::file_size(whole))));
    EXPECT_THAT(error(cut), ::testing::AnyOf(HasSubstr("cut short"), HasSubstr("not a GGUF file")));
  }
  const std::filesystem::path embedder =
      testing::CacheFolder() / "models/all-MiniLM-L6-v2-f16.gguf";
  if (std::filesystem::exists(embedder)) {
    EXPECT_THAT(error(embedder), HasSubstr("causal language model"));
  }
}

}  // namespace
}  // namespace inferscale
