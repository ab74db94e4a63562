#include "engine/vllm/vllm_engine.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <functional>
#include <future>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "base/hash.h"
#include "support/vllm_fixture.h"

namespace inferscale {
namespace {

using nlohmann::json;
using testing::Fact;
using testing::FakeConnector;
using testing::FakeVllm;
using ::testing::HasSubstr;
using testing::HttpExchange;
using testing::HttpReply;
using testing::Key;
using testing::VllmEngineTest;

TEST_F(VllmEngineTest, IntroducesItselfAndMeasuresTheRotation) {
  AddServer();
  Open();
  EXPECT_TRUE(engine_->capabilities().kv_injection) << engine_->capabilities().kv_refusal;
  EXPECT_EQ(engine_->capabilities().context_tokens, 4096);
  EXPECT_EQ(engine_->geometry(), (KvGeometry{2, 1, 4, 4}));
  EXPECT_EQ(HexEncode(engine_->fingerprint()), std::string(64, 'a'));
  EXPECT_EQ(engine_->capabilities().codec, KvCodec::kF16);
  EXPECT_EQ(engine_->model(), "tiny");
  EXPECT_TRUE(connectors_[0]->With([](FakeConnector& c) { return c.rotation_known; }));
}

TEST_F(VllmEngineTest, EncodesAndInjects) {
  AddServer();
  Open();
  EXPECT_EQ(engine_->Presence(std::vector{Key(1)})[0], KvTier::kNone);
  const EncodeOutcome outcome = Encode(Fact(1, 7, 1));
  ASSERT_TRUE(outcome.status.ok()) << outcome.status.ToString();
  EXPECT_EQ(engine_->Presence(std::vector{Key(1)})[0], KvTier::kHost);
  EXPECT_EQ(engine_->StoreStats().file_blocks, 1);
  std::vector<std::string> texts;
  const GenerationReport report = GenerateBlocking(
      *engine_, WithFact(1), {}, [&](const TokenEvent& event) { texts.push_back(event.text); });
  ASSERT_TRUE(report.status.ok()) << report.status.ToString();
  EXPECT_EQ(report.text, "fine");
  EXPECT_EQ(texts, (std::vector<std::string>{"f", "i", "n", "e"}));
  EXPECT_EQ(report.generated, (TokenIds{'f', 'i', 'n', 'e'}));  // without the end's token
  EXPECT_EQ(report.injected_tokens, 7);
  EXPECT_EQ(report.injected_blocks, 1);
  EXPECT_EQ(report.computed_tokens, 5);
  EXPECT_GT(report.ttft_ms, 0);
}

TEST_F(VllmEngineTest, SaltsDifferByWhatARequestIsFor) {
  FakeVllm& server = AddServer();
  Open();
  ASSERT_TRUE(Encode(Fact(1, 7, 1)).status.ok());
  ASSERT_TRUE(Encode(Fact(2, 7, 2)).status.ok());
  ASSERT_TRUE(Encode(Fact(3, 8, 1)).status.ok());
  Generate(WithFact(1));
  Composition text = WithFact(1);
  text.inject = false;
  Generate(text);
  std::set<std::string> salts;
  std::size_t requests = 0;
  const std::vector<json> completions = Completions(server);
  for (const json& body : completions) {
    salts.insert(body["cache_salt"].get<std::string>());
    ++requests;
  }
  EXPECT_EQ(requests, 6u);  // the probe's is one of them
  EXPECT_EQ(salts.size(), 6u);
  EXPECT_FALSE(completions.back().contains("kv_transfer_params"));
}

TEST_F(VllmEngineTest, SamplingIsSentWhole) {
  FakeVllm& server = AddServer();
  Open();
  Sampling sampling;
  sampling.temperature = 0.5;
  sampling.top_k = 3;
  sampling.seed = 9;
  sampling.max_tokens = 100000;
  sampling.stop = {"x"};
  sampling.logprobs = 2;
  Generate(WithFact(1), sampling);
  const json body = Completions(server).back();
  EXPECT_EQ(body["temperature"], 0.5);
  EXPECT_EQ(body["top_k"], 3);
  EXPECT_EQ(body["top_p"], 1.0);
  EXPECT_EQ(body["seed"], 9);
  EXPECT_EQ(body["max_tokens"], 4096 - 12);
  EXPECT_EQ(body["stop"], json({"x"}));
  EXPECT_EQ(body["logprobs"], 2);
  sampling.grammar = "root ::= \"a\"";
  EXPECT_EQ(Generate(WithFact(1), sampling).status.code(), StatusCode::kUnsupported);
}

TEST_F(VllmEngineTest, ASpecialTokensNameInATextStaysText) {
  AddServer();
  Open();
  const std::string text = "a <|im_start|>system <|im_end|> b";
  const TokenIds ids = engine_->Tokenize(text);
  EXPECT_EQ(ids, TokenIds(text.begin(), text.end()));
  EXPECT_EQ(engine_->Detokenize(ids), text);
}

TEST_F(VllmEngineTest, ANameRepeatedWithoutEndCostsFewRequests) {
  FakeVllm& server = AddServer();
  Open();
  std::string text;
  for (int i = 0; i < 3000; ++i) text += "<|im_start|>";
  const auto tokenized = [&] { return server.With([](FakeVllm& s) { return s.tokenized; }); };
  const int before = tokenized();
  EXPECT_EQ(engine_->Tokenize(text), TokenIds(text.begin(), text.end()));
  EXPECT_LE(tokenized() - before, 10);
}

TEST_F(VllmEngineTest, RendersAroundTextsThatNeverMeetTheTemplate) {
  AddServer();
  Open();
  const ChatMessage messages[] = {{"system", "be kind", ""}, {"user", "<|im_end|>", ""}};
  const auto chat = engine_->Render(messages);
  ASSERT_TRUE(chat.ok()) << chat.status().ToString();
  EXPECT_EQ(std::count(chat->ids.begin(), chat->ids.end(), 257), 2);
  EXPECT_EQ(engine_->Detokenize(chat->ids),
            "<|im_start|>system\nbe kind<|im_end|>\n<|im_start|>user\n<|im_end|><|im_end|>\n"
            "<|im_start|>assistant\n");
  EXPECT_EQ(chat->facts_place, chat->contents[0].end);
  EXPECT_EQ(chat->question_place, chat->contents[1].begin);
  EXPECT_TRUE(engine_->capabilities().system_role);
}

TEST_F(VllmEngineTest, AModelWithoutATemplateGetsPlainLines) {
  AddServer().With([](FakeVllm& s) { s.has_template = false; });
  Open();
  const ChatMessage messages[] = {{"user", "hello", ""}};
  const auto chat = engine_->Render(messages);
  ASSERT_TRUE(chat.ok()) << chat.status().ToString();
  EXPECT_EQ(engine_->Detokenize(chat->ids), "User: hello\nAssistant:");
}

TEST_F(VllmEngineTest, TokenisationsAreRemembered) {
  FakeVllm& server = AddServer();
  Open();
  engine_->Tokenize("the same fact");
  const auto tokenized = [&] { return server.With([](FakeVllm& s) { return s.tokenized; }); };
  const int before = tokenized();
  for (int i = 0; i < 5; ++i) engine_->Tokenize("the same fact");
  EXPECT_EQ(tokenized(), before);
}

TEST_F(VllmEngineTest, ErasureReachesAnIdleEnginesRanks) {
  AddServer();
  Open();
  ASSERT_TRUE(Encode(Fact(1, 7, 1)).status.ok());
  ASSERT_TRUE(engine_->Erase(std::vector{Key(1)}, 7, 2).ok());
  EXPECT_FALSE(connectors_[0]->Holds(Key(1)));
  EXPECT_EQ(connectors_[0]->With([](FakeConnector& c) { return c.fences["0000000000000007"]; }), 2);
  EXPECT_TRUE(connectors_[0]->With([](FakeConnector& c) { return c.acknowledged == c.plan; }));
  // What was asked for before the erasure ends without a block, what comes after it does not.
  EXPECT_EQ(Encode(Fact(2, 7, 1)).status.code(), StatusCode::kFailedPrecondition);
  EXPECT_TRUE(Encode(Fact(2, 7, 2)).status.ok());
  ASSERT_TRUE(engine_->EraseScope(0x1234, 5).ok());
  EXPECT_EQ(connectors_[0]->With([](FakeConnector& c) { return c.fences["0000000000001234"]; }), 5);
  // Prefixes' epochs begin anew with each gateway.
  ASSERT_TRUE(engine_->EraseScope(kPrefixScopeTag, 9).ok());
  EXPECT_EQ(connectors_[0]->With([](FakeConnector& c) { return c.fences["0000000000000000"]; }), 0);
}

TEST_F(VllmEngineTest, AnErasureWaitsForTheEncodingUnderWay) {
  FakeVllm& server = AddServer();
  Open();
  server.delay_ms = 100;
  std::promise<EncodeOutcome> promise;
  std::vector<EncodeRequest> requests;
  requests.push_back(Fact(1, 7, 1));
  engine_->Encode(std::move(requests),
                  [&](const EncodeOutcome& outcome) { promise.set_value(outcome); });
  while (!connectors_[0]->Holds(Key(1))) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  ASSERT_TRUE(engine_->Erase(std::vector{Key(1)}, 7, 2).ok());
  EXPECT_EQ(promise.get_future().get().status.code(), StatusCode::kFailedPrecondition);
  EXPECT_FALSE(connectors_[0]->Holds(Key(1)));
}

TEST_F(VllmEngineTest, ReasonsOfTheConnectorBecomeStatuses) {
  AddServer();
  Open();
  const std::pair<const char*, StatusCode> expected[] = {
      {"over_budget", StatusCode::kResourceExhausted},
      {"too_large", StatusCode::kUnsupported},
      {"erased", StatusCode::kFailedPrecondition},
      {"unauthorised", StatusCode::kFailedPrecondition},
      {"rotation_unknown", StatusCode::kUnavailable},
      {"model_unsupported", StatusCode::kUnsupported},
      {"schema", StatusCode::kUnsupported}};
  int number = 0;
  for (const auto& [reason, code] : expected) {
    connectors_[0]->With([&reason = reason](FakeConnector& c) { c.capture_fallback = reason; });
    EXPECT_EQ(Encode(Fact(++number, 7, 1)).status.code(), code) << reason;
  }
}

TEST_F(VllmEngineTest, ARestartedServerIsTextUntilItsRotationIsKnownAgain) {
  AddServer();
  Open();
  ASSERT_TRUE(Encode(Fact(1, 7, 1)).status.ok());
  {
    const std::scoped_lock lock(connectors_[0]->mutex);
    connectors_[0]->rotation_known = false;
  }
  GenerationReport report;
  for (int i = 0; i < 500 && report.injected_tokens == 0; ++i) {
    engine_->Presence(std::vector{Key(1)});
    report = Generate(WithFact(1));
    ASSERT_TRUE(report.status.ok()) << report.status.ToString();
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  EXPECT_EQ(report.injected_tokens, 7);
}

TEST_F(VllmEngineTest, AnotherModelBehindTheSocketIsNeverInjectedInto) {
  AddServer();
  Open();
  ASSERT_TRUE(Encode(Fact(1, 7, 1)).status.ok());
  {
    const std::scoped_lock lock(connectors_[0]->mutex);
    connectors_[0]->rotation_known = false;
    connectors_[0]->fingerprint = std::string(64, 'b');
  }
  engine_->Presence(std::vector{Key(1)});
  for (int i = 0; i < 10; ++i) {
    const GenerationReport report = Generate(WithFact(1));
    EXPECT_EQ(report.injected_tokens, 0);
    EXPECT_EQ(report.text, "fine");
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
}

TEST_F(VllmEngineTest, AServerThatIsAwayFailsOverToAnother) {
  AddServer();
  AddServer();
  Open();
  for (std::uint64_t scope = 1; scope < 20; ++scope) {
    ASSERT_TRUE(Encode(Fact(static_cast<int>(scope), scope, 1)).status.ok());
  }
  const std::size_t there = connectors_[0]->With([](FakeConnector& c) { return c.ready.size(); });
  EXPECT_GT(there, 0u);
  EXPECT_LT(there, 19u);
  servers_[0]->Stop();
  for (std::uint64_t scope = 1; scope < 20; ++scope) {
    const GenerationReport report = Generate(WithFact(static_cast<int>(scope), scope));
    ASSERT_TRUE(report.status.ok()) << report.status.ToString();
    EXPECT_EQ(report.text, "fine");
    EXPECT_EQ(report.injected_tokens > 0, connectors_[1]->Holds(Key(static_cast<int>(scope))));
  }
}

TEST_F(VllmEngineTest, EveryServerIsGivenTheExactPrefix) {
  AddServer();
  AddServer();
  Open();
  for (std::uint8_t scope = 1; scope < 8; ++scope) {
    ASSERT_TRUE(Encode(Fact(scope, scope, 1)).status.ok());
    Composition composition = WithFact(scope, scope);
    composition.ids.insert(composition.ids.begin(), {'S', '\n'});
    composition.blocks = {{Key(99), 0, 2, true}, {Key(scope), 2, 9, false}};
    EXPECT_EQ(Generate(composition).injected_tokens, 9) << scope;
  }
  EXPECT_TRUE(connectors_[0]->Holds(Key(99)) && connectors_[1]->Holds(Key(99)));
}

TEST_F(VllmEngineTest, WhatAServerHeldStillCountsWhileItIsTheOnlyOneAndAway) {
  AddServer();
  Open();
  ASSERT_TRUE(Encode(Fact(1, 7, 1)).status.ok());
  connectors_[0].reset();
  servers_[0]->Stop();
  EXPECT_EQ(engine_->Presence(std::vector{Key(1), Key(2)}),
            (std::vector<KvTier>{KvTier::kHost, KvTier::kNone}));
  const GenerationReport report = Generate(WithFact(1));
  EXPECT_EQ(report.status.code(), StatusCode::kUnavailable);
  EXPECT_THAT(report.status.message(), HasSubstr("127.0.0.1"));
  EXPECT_EQ(engine_->Erase(std::vector{Key(1)}, 7, 2).code(), StatusCode::kUnavailable);
  EXPECT_EQ(Encode(Fact(3, 7, 2)).status.code(), StatusCode::kUnavailable);
  // Ids that cannot be asked for never become a prompt.
  Composition composition;
  composition.ids = engine_->Tokenize("never seen");
  EXPECT_EQ(Generate(composition).status.code(), StatusCode::kUnavailable);
}

TEST_F(VllmEngineTest, TextIsServedWithoutAControlSocketOrWithoutASecret) {
  AddServer(false);
  VllmEngineOptions options = Options();
  Open(options);
  EXPECT_FALSE(engine_->capabilities().kv_injection);
  EXPECT_THAT(engine_->capabilities().kv_refusal, HasSubstr("--vllm-control"));
  EXPECT_EQ(Generate(WithFact(1)).text, "fine");
  EXPECT_EQ(Encode(Fact(1, 7, 1)).status.code(), StatusCode::kUnsupported);
  EXPECT_FALSE(engine_->capabilities().codec.has_value());
}

TEST_F(VllmEngineTest, AnotherSecretMeansText) {
  AddConnector("another secret of many bytes");
  servers_.push_back(std::make_unique<FakeVllm>(connectors_[0].get()));
  Open();
  EXPECT_FALSE(engine_->capabilities().kv_injection);
  EXPECT_THAT(engine_->capabilities().kv_refusal, HasSubstr("secret"));
  EXPECT_EQ(Generate(WithFact(1)).text, "fine");
}

TEST_F(VllmEngineTest, HostileControlAnswersMeanText) {
  for (const std::string& broken :
       {std::string("[]\n"), std::string("{\"body\": \"{}\", \"mac\": \"00\"}\n"),
        std::string("\xff\xfe\n"), std::string(1 << 16, '[') + "\n", std::string("{}\n")}) {
    AddServer();
    connectors_.back()->With([&](FakeConnector& c) { c.broken = broken; });
    VllmEngineOptions options = Options();
    options.urls = {options.urls.back()};
    options.control_paths = {options.control_paths.back()};
    Open(options);
    EXPECT_FALSE(engine_->capabilities().kv_injection);
    EXPECT_EQ(Generate(WithFact(1)).text, "fine");
  }
}

TEST_F(VllmEngineTest, AServerThatIsNoneIsAnErrorThatNamesIt) {
  AddServer(false);
  for (const HttpReply& reply :
       {HttpReply{.status = 401, .body = "no"}, HttpReply{.status = 500, .body = "no"},
        HttpReply{.body = "<html>"}, HttpReply{.body = R"({"data": []})"},
        HttpReply{.body = R"({"data": [{"id": 5, "max_model_len": -1}]})"},
        HttpReply{.hang_up = true}}) {
    Instead(*servers_[0], [reply](const HttpExchange&) { return std::optional(reply); });
    const auto engine = VllmEngine::Create(Options());
    ASSERT_FALSE(engine.ok());
    EXPECT_THAT(engine.status().message(), HasSubstr("127.0.0.1"));
  }
}

TEST_F(VllmEngineTest, HostileAnswersAreErrorsAndNothingElse) {
  FakeVllm& server = AddServer(false);
  Open();
  const auto stream = [](const std::string& body) {
    return HttpReply{.body = body, .content_type = "text/event-stream"};
  };
  const std::string one = R"(data: {"choices":[{"text":"f","token_ids":[102]}]})"
                          "\n\n";
  const std::pair<HttpReply, StatusCode> cases[] = {
      {HttpReply{.status = 401, .body = "Bearer key-7"}, StatusCode::kUnavailable},
      {HttpReply{.status = 404, .body = "no such model"}, StatusCode::kUnavailable},
      {HttpReply{.status = 500, .body = "no"}, StatusCode::kUnavailable},
      {HttpReply{.status = 400, .body = "what?"}, StatusCode::kInvalidArgument},
      {HttpReply{.hang_up = true}, StatusCode::kUnavailable},
      {stream(""), StatusCode::kUnavailable},
      {stream(one), StatusCode::kUnavailable},  // no end
      {stream("data: {\"choices\"\n\n"), StatusCode::kDataLoss},
      {stream("data: [1]\n\n"), StatusCode::kDataLoss},
      {stream("data: {\"choices\":[{\"text\":1}]}\n\n"), StatusCode::kDataLoss},
      {stream("data: {\"choices\":[{\"text\":\"a\",\"token_ids\":[-1]}]}\n\n"),
       StatusCode::kDataLoss},
      {stream(one + "data: {\"error\":{\"message\":\"out\",\"code\":500}}\n\n"),
       StatusCode::kUnavailable},
      {stream("data: {\"error\":{\"message\":\"bad\",\"code\":400}}\n\n"),
       StatusCode::kInvalidArgument},
      {stream("data: " + std::string(9 << 20, 'x')), StatusCode::kDataLoss}};
  for (const auto& [reply, code] : cases) {
    Instead(server, [reply = reply](const HttpExchange& exchange) -> std::optional<HttpReply> {
      if (exchange.target == "/v1/completions") return reply;
      return std::nullopt;
    });
    const GenerationReport report = Generate(WithFact(1));
    EXPECT_EQ(report.status.code(), code) << report.status.ToString();
    EXPECT_EQ(report.finish, FinishReason::kError);
    EXPECT_EQ(report.status.message().find("key-7"), std::string::npos);
  }
  for (const std::string& body :
       {std::string("{}"), std::string(R"({"tokens": 5})"), std::string(R"({"tokens": [-1]})"),
        std::string(R"({"tokens": [99999999999]})"), std::string("[")}) {
    Instead(server, [body](const HttpExchange& exchange) -> std::optional<HttpReply> {
      if (exchange.target == "/tokenize") return HttpReply{.body = body};
      return std::nullopt;
    });
    EXPECT_EQ(engine_->Tokenize("a text " + body), TokenIds{-1});
  }
}

TEST_F(VllmEngineTest, ALoadThatFailedIsAskedForAgainAsText) {
  FakeVllm& server = AddServer();
  Open();
  ASSERT_TRUE(Encode(Fact(1, 7, 1)).status.ok());
  Instead(server, [](const HttpExchange& exchange) -> std::optional<HttpReply> {
    if (exchange.target != "/v1/completions") return std::nullopt;
    if (exchange.body.find("\"kv_transfer_params\"") == std::string::npos) return std::nullopt;
    return HttpReply{.body = "data: {\"error\":{\"message\":\"Internal server error\"}}\n\n",
                     .content_type = "text/event-stream"};
  });
  const GenerationReport report = Generate(WithFact(1));
  ASSERT_TRUE(report.status.ok()) << report.status.ToString();
  EXPECT_EQ(report.text, "fine");
  EXPECT_EQ(report.injected_tokens, 0);
  ASSERT_EQ(report.fallbacks.size(), 1u);
  EXPECT_EQ(report.fallbacks[0].reason, "evicted");
}

TEST_F(VllmEngineTest, CancellingEndsASlowAnswerAndADeadlineToo) {
  FakeVllm& server = AddServer(false);
  Open();
  server.delay_ms = 4000;
  std::promise<GenerationReport> promise;
  const auto generation = engine_->Generate(
      WithFact(1), {}, {{}, [&](GenerationReport report) { promise.set_value(std::move(report)); }},
      std::nullopt);
  std::this_thread::sleep_for(std::chrono::milliseconds(30));
  generation->Cancel();
  GenerationReport report = promise.get_future().get();
  generation->Wait();
  EXPECT_EQ(report.finish, FinishReason::kCancelled);
  EXPECT_TRUE(report.status.ok());
  std::promise<GenerationReport> late;
  engine_
      ->Generate(WithFact(1), {},
                 {{}, [&](GenerationReport done) { late.set_value(std::move(done)); }},
                 std::chrono::steady_clock::now() + std::chrono::milliseconds(50))
      ->Wait();
  report = late.get_future().get();
  EXPECT_EQ(report.finish, FinishReason::kDeadline);
  // An engine that goes ends what is under way.
  std::promise<GenerationReport> left;
  engine_->Generate(WithFact(1), {},
                    {{}, [&](GenerationReport done) { left.set_value(std::move(done)); }},
                    std::nullopt);
  engine_.reset();
  EXPECT_EQ(left.get_future().get().finish, FinishReason::kCancelled);
}

TEST_F(VllmEngineTest, ASilentServerIsGivenUp) {
  FakeVllm& server = AddServer(false);
  VllmEngineOptions options = Options();
  options.timeout = std::chrono::milliseconds(100);
  Open(options);
  server.delay_ms = 2000;
  const GenerationReport report = Generate(WithFact(1));
  EXPECT_EQ(report.status.code(), StatusCode::kUnavailable);
  EXPECT_THAT(report.status.message(), HasSubstr("100 ms"));
}

TEST_F(VllmEngineTest, TheKeyGoesWithEveryRequest) {
  FakeVllm& server = AddServer(false);
  VllmEngineOptions options = Options();
  options.api_key = "key-7";
  Open(options);
  Generate(WithFact(1));
  const auto seen = server.With([](FakeVllm& s) { return s.authorizations; });
  for (const std::string& authorization : seen) {
    EXPECT_EQ(authorization, "Bearer key-7");
  }
}

TEST_F(VllmEngineTest, ScoresAContinuationTokenByToken) {
  FakeVllm& server = AddServer();
  Open();
  ASSERT_TRUE(Encode(Fact(1, 7, 1)).status.ok());
  const auto score = engine_->Score(WithFact(1), {'a', 'b', 'c'}, false);
  ASSERT_TRUE(score.ok()) << score.status().ToString();
  EXPECT_EQ(score->logprobs, (std::vector<float>{-0.5F, -0.5F, -0.5F}));
  EXPECT_EQ(score->generation.injected_tokens, 7);
  EXPECT_EQ(Completions(server).back()["prompt"].size(), 12u + 2u);
  const auto none = engine_->Score(WithFact(1), {'a'}, true);
  EXPECT_EQ(none.status().code(), StatusCode::kUnsupported);
  EXPECT_THAT(none.status().message(), HasSubstr("--max-logprobs -1"));
  server.With([](FakeVllm& s) { s.max_logprobs = 258; });
  const auto whole = engine_->Score(WithFact(1), {'a', 'b'}, true);
  ASSERT_TRUE(whole.ok()) << whole.status().ToString();
  ASSERT_EQ(whole->first_logprobs.size(), 258u);
  EXPECT_NEAR(whole->first_logprobs[7], -std::log(258), 1e-3);
}

TEST_F(VllmEngineTest, ServersOfDifferentModelsAreRefused) {
  AddServer();
  AddServer();
  servers_[1]->With([](FakeVllm& s) { s.model = "another"; });
  EXPECT_EQ(VllmEngine::Create(Options()).status().code(), StatusCode::kFailedPrecondition);
  servers_[1]->With([](FakeVllm& s) { s.model = "tiny"; });
  connectors_[1]->With([](FakeConnector& c) { c.fingerprint = std::string(64, 'b'); });
  EXPECT_EQ(VllmEngine::Create(Options()).status().code(), StatusCode::kFailedPrecondition);
  VllmEngineOptions options = Options();
  options.control_paths.pop_back();
  EXPECT_EQ(VllmEngine::Create(options).status().code(), StatusCode::kInvalidArgument);
}

TEST_F(VllmEngineTest, AModelThatCannotBeInjectedIsServedAsText) {
  AddServer();
  connectors_[0]->With([](FakeConnector& c) { c.refusal = "the model has layers with a window"; });
  Open();
  EXPECT_FALSE(engine_->capabilities().kv_injection);
  EXPECT_THAT(engine_->capabilities().kv_refusal, HasSubstr("window"));
}

}  // namespace
}  // namespace inferscale
