// Engines whose KV can be used only some time after the gateway has started, or not any more; and
// what cannot be captured.

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <spdlog/sinks/base_sink.h>
#include <spdlog/spdlog.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <filesystem>
#include <memory>
#include <mutex>
#include <optional>
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

/// Counts warnings that hold a text, of all threads.
class Warnings {
 public:
  explicit Warnings(std::string text) : sink_(std::make_shared<Sink>(std::move(text))) {
    before_ = spdlog::default_logger();
    spdlog::set_default_logger(std::make_shared<spdlog::logger>("test", sink_));
  }
  ~Warnings() { spdlog::set_default_logger(before_); }
  int count() const { return sink_->count; }

 private:
  struct Sink final : spdlog::sinks::base_sink<std::mutex> {
    explicit Sink(std::string wanted) : text(std::move(wanted)) {}
    void sink_it_(const spdlog::details::log_msg& message) override {
      const std::string said(message.payload.data(), message.payload.size());
      if (message.level == spdlog::level::warn && said.find(text) != said.npos) ++count;
    }
    void flush_() override {}
    const std::string text;
    std::atomic<int> count{0};
  };
  std::shared_ptr<Sink> sink_;
  std::shared_ptr<spdlog::logger> before_;
};

class VllmLaterTest : public testing::VllmEngineTest {
 protected:
  void ExpectTextNow() {
    EXPECT_FALSE(engine_->capabilities().kv_injection);
    EXPECT_EQ(Generate(WithFact(1)).text, "fine");
    EXPECT_EQ(Encode(Fact(1, 7, 1)).status.code(), StatusCode::kUnsupported);
    engine_->OnChange([this] { ++changes_; });
  }
  void ExpectKvLater() {
    ASSERT_TRUE(Within([&] { return engine_->capabilities().kv_injection; }));
    EXPECT_TRUE(engine_->capabilities().kv_refusal.empty());
    EXPECT_EQ(engine_->capabilities().codec, KvCodec::kF16);
    EXPECT_EQ(HexEncode(engine_->fingerprint()), std::string(64, 'a'));
    EXPECT_EQ(engine_->geometry(), (KvGeometry{2, 1, 4, 4}));
    EXPECT_TRUE(Within([&] { return changes_ == 1; }));
    const EncodeOutcome outcome = Encode(Fact(1, 7, 1));
    ASSERT_TRUE(outcome.status.ok()) << outcome.status.ToString();
    EXPECT_EQ(Generate(WithFact(1)).injected_tokens, 7);
    EXPECT_EQ(changes_, 1);
  }
  /// Requests that ask for a block's capture.
  std::size_t Captures(FakeVllm& server) {
    std::size_t captures = 0;
    for (const json& body : Completions(server)) {
      captures += body.contains("kv_transfer_params") && !body.contains("stream") ? 1 : 0;
    }
    return captures;
  }
  Composition WithPrefix(int number, std::uint64_t scope) {
    Composition composition = WithFact(number, scope);
    composition.ids.insert(composition.ids.begin(), {'S', '\n'});
    composition.blocks = {{Key(99), 0, 2, true}, {Key(number), 2, 9, false}};
    return composition;
  }

  std::atomic<int> changes_{0};
};

TEST_F(VllmLaterTest, AnEngineThatRefusedIsUsedOnceItDoesNot) {
  AddServer();
  connectors_[0]->With([](FakeConnector& c) { c.refusal = "layers with a window"; });
  Open();
  ExpectTextNow();
  EXPECT_THAT(engine_->capabilities().kv_refusal, HasSubstr("window"));
  const Fingerprint before = engine_->fingerprint();
  connectors_[0]->With([](FakeConnector& c) { c.refusal.clear(); });
  ExpectKvLater();
  EXPECT_EQ(engine_->fingerprint(), before);  // what is known of it stays
}

TEST_F(VllmLaterTest, AConnectorThatDidNotAnswerSaysLaterWhatItIs) {
  AddServer();
  connectors_[0]->With([](FakeConnector& c) { c.broken = "[]\n"; });
  Open();
  ExpectTextNow();
  EXPECT_FALSE(engine_->capabilities().codec.has_value());
  EXPECT_NE(HexEncode(engine_->fingerprint()), std::string(64, 'a'));
  connectors_[0]->With([](FakeConnector& c) { c.broken.clear(); });
  ExpectKvLater();
}

TEST_F(VllmLaterTest, ASocketThatWasNotThereIsFound) {
  FakeVllm& server = AddServer();
  const std::string later = (folder_.path() / "later").string();
  VllmEngineOptions options = Options();
  options.control_paths = {later};
  Open(options);
  ExpectTextNow();
  std::filesystem::create_symlink(connectors_[0]->path, later);
  ExpectKvLater();
  EXPECT_GE(Completions(server).size(), 3u);
}

TEST_F(VllmLaterTest, AProbeThatFailedIsMadeAgainAndNotOneAfterTheOther) {
  FakeVllm& server = AddServer();
  std::atomic<int> probes{0};
  Instead(server, [&](const HttpExchange& exchange) -> std::optional<HttpReply> {
    if (exchange.target != "/v1/completions" || exchange.body.size() < 3000) return std::nullopt;
    ++probes;
    return HttpReply{.status = 500, .body = "overloaded"};
  });
  VllmEngineOptions options = Options();
  options.recheck = std::chrono::milliseconds(1);
  Open(options);
  ExpectTextNow();
  std::this_thread::sleep_for(std::chrono::milliseconds(200));
  // Pauses of 1, 2, 4, … 32 ms: the 200 of a loop without any do not fit in.
  EXPECT_LT(probes, 30);
  Instead(server, {});
  ExpectKvLater();
}

TEST_F(VllmLaterTest, AProbeThatOthersHadCutToPiecesSaysSoAndIsMadeAgain) {
  FakeVllm& server = AddServer();
  Instead(server, [](const HttpExchange& exchange) -> std::optional<HttpReply> {
    if (exchange.target != "/v1/completions" || exchange.body.size() < 3000) return std::nullopt;
    const json said = {{"inferscale", {{"fallback", {{"outside_window", 1}}}}}};
    return HttpReply{.status = 200, .body = json{{"kv_transfer_params", said}}.dump()};
  });
  Open();
  ExpectTextNow();
  EXPECT_THAT(engine_->capabilities().kv_refusal, HasSubstr("--max-num-batched-tokens"));
  Instead(server, {});
  ExpectKvLater();
}

TEST_F(VllmLaterTest, AnotherModelIsTextAndTheLogSaysSoOnce) {
  const Warnings warnings("has another model");
  AddServer();
  Open();
  ASSERT_TRUE(Encode(Fact(1, 7, 1)).status.ok());
  connectors_[0]->With([](FakeConnector& c) {
    c.rotation_known = false;
    c.fingerprint = std::string(64, 'b');
  });
  engine_->Presence(std::vector{Key(1)});  // sees the restart before the next look does
  ASSERT_TRUE(Within([&] { return warnings.count() > 0; }));
  std::this_thread::sleep_for(std::chrono::milliseconds(200));  // some ten looks
  EXPECT_EQ(warnings.count(), 1);
  const GenerationReport report = Generate(WithFact(1));
  EXPECT_EQ(report.injected_tokens, 0);
  EXPECT_EQ(report.text, "fine");
  EXPECT_EQ(HexEncode(engine_->fingerprint()), std::string(64, 'a'));
  // The model that was there before may come back.
  connectors_[0]->With([](FakeConnector& c) { c.fingerprint = std::string(64, 'a'); });
  EXPECT_TRUE(Within([&] { return Generate(WithFact(1)).injected_tokens == 7; }));
  engine_.reset();  // its threads write to the log
}

TEST_F(VllmLaterTest, ARefusedModelThatIsReplacedByAnotherOneStaysText) {
  const Warnings warnings("has another model");
  AddServer();
  connectors_[0]->With([](FakeConnector& c) { c.refusal = "layers with a window"; });
  Open();
  connectors_[0]->With([](FakeConnector& c) {
    c.refusal.clear();
    c.fingerprint = std::string(64, 'b');
  });
  ASSERT_TRUE(Within([&] { return warnings.count() > 0; }));
  std::this_thread::sleep_for(std::chrono::milliseconds(100));
  EXPECT_EQ(warnings.count(), 1);
  EXPECT_FALSE(engine_->capabilities().kv_injection);
  EXPECT_EQ(Generate(WithFact(1)).text, "fine");
  engine_.reset();  // its threads write to the log
}

TEST_F(VllmLaterTest, AnEngineCanGoWhileItsKvBecomesUsable) {
  for (int i = 0; i < 20; ++i) {
    AddServer();
    connectors_.back()->With([](FakeConnector& c) { c.refusal = "not yet"; });
    VllmEngineOptions options = Options();
    options.urls = {options.urls.back()};
    options.control_paths = {options.control_paths.back()};
    options.recheck = std::chrono::milliseconds(1);
    Open(options);
    std::atomic<int> called{0};
    engine_->OnChange([&] { ++called; });
    connectors_.back()->With([](FakeConnector& c) { c.refusal.clear(); });
    std::this_thread::sleep_for(std::chrono::milliseconds(i / 4));
    engine_->OnChange(nullptr);
    const int before = called;
    engine_.reset();
    EXPECT_EQ(called, before);
  }
}

TEST_F(VllmLaterTest, APrefixThatCanNeverBeStoredIsAskedForOnceACore) {
  AddServer();
  AddServer();
  Open();
  for (int scope = 1; scope < 8; ++scope) {
    ASSERT_TRUE(Encode(Fact(scope, static_cast<std::uint64_t>(scope), 1)).status.ok());
  }
  std::vector<std::size_t> before;
  for (const auto& server : servers_) before.push_back(Captures(*server));
  for (const auto& connector : connectors_) {
    connector->With([](FakeConnector& c) { c.capture_fallback = "too_large"; });
  }
  const auto chats = [&] {
    for (int turn = 0; turn < 5; ++turn) {
      for (int scope = 1; scope < 8; ++scope) {
        EXPECT_EQ(Generate(WithPrefix(scope, static_cast<std::uint64_t>(scope))).text, "fine");
      }
    }
  };
  chats();
  EXPECT_EQ(Captures(*servers_[0]) - before[0], 1u);
  EXPECT_EQ(Captures(*servers_[1]) - before[1], 1u);
  // What has been refused may be taken by a core that was started anew.
  connectors_[0]->With([](FakeConnector& c) { c.rotation_known = false; });
  const auto known = [](FakeConnector& c) { return c.rotation_known; };
  ASSERT_TRUE(Within([&] {
    engine_->Presence(std::vector{Key(1)});
    return connectors_[0]->With(known);
  }));
  const std::size_t with_probe = Captures(*servers_[0]);
  ASSERT_TRUE(Within([&] {
    chats();
    return Captures(*servers_[0]) > with_probe;
  }));
  chats();
  EXPECT_EQ(Captures(*servers_[0]), with_probe + 1);
  EXPECT_EQ(Captures(*servers_[1]) - before[1], 1u);
}

TEST_F(VllmLaterTest, WithOneCoreTooItIsAskedForOnce) {
  FakeVllm& server = AddServer();
  Open();
  connectors_[0]->With([](FakeConnector& c) { c.capture_fallback = "model_unsupported"; });
  const std::size_t before = Captures(server);
  for (int chat = 0; chat < 10; ++chat) {
    EncodeRequest prefix = Fact(99, kPrefixScopeTag, 1);
    prefix.urgent = true;
    EXPECT_EQ(Encode(std::move(prefix)).status.code(), StatusCode::kUnsupported);
  }
  EXPECT_EQ(Captures(server) - before, 1u);
  // An erasure of all prefixes begins anew.
  ASSERT_TRUE(engine_->EraseScope(kPrefixScopeTag, 2).ok());
  EXPECT_EQ(Encode(Fact(99, kPrefixScopeTag, 2)).status.code(), StatusCode::kUnsupported);
  EXPECT_EQ(Captures(server) - before, 2u);
}

TEST_F(VllmLaterTest, AFactThatIsGoneAtOnceIsNotCapturedAgainAtOnce) {
  FakeVllm& server = AddServer();
  Open();
  ASSERT_TRUE(Encode(Fact(1, 7, 1)).status.ok());
  const std::size_t before = Captures(server);
  for (int chat = 0; chat < 3; ++chat) {
    connectors_[0]->With([](FakeConnector& c) { c.ready.clear(); });
    EXPECT_EQ(Encode(Fact(1, 7, 1)).status.code(), StatusCode::kResourceExhausted);
  }
  EXPECT_EQ(Captures(server), before);
}

}  // namespace
}  // namespace inferscale
