#include "engine/vllm/vllm_cluster.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <fstream>
#include <functional>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "engine/vllm/vllm_encoder.h"
#include "support/catalog_fixture.h"
#include "support/fake_vllm.h"
#include "support/kv_blocks.h"

namespace inferscale {
namespace {

using nlohmann::json;
using testing::FakeConnector;
using testing::FakeVllm;
using ::testing::HasSubstr;
using testing::HttpExchange;
using testing::HttpReply;

constexpr const char* kSecret = "a secret of many bytes";

/// One server, whose ranks' connectors stand beside each other as vLLM's do.
class VllmClusterTest : public ::testing::Test {
 protected:
  std::unique_ptr<FakeConnector> Rank(int number) {
    std::string path = (folder_.path() / "socket").string();
    if (number > 0) path += "-" + std::to_string(number);
    return std::make_unique<FakeConnector>(path, kSecret);
  }
  void Open() {
    server_->With([&](FakeVllm& server) {
      server.instead = [this](const HttpExchange& exchange) -> std::optional<HttpReply> {
        ranks_asked_.insert(exchange.rank);
        return std::nullopt;
      };
    });
    VllmEngineOptions options;
    options.urls = {server_->Url()};
    options.control_paths = {(folder_.path() / "socket").string()};
    const std::string secret = kSecret;
    options.secret.assign(secret.begin(), secret.end());
    options.recheck = std::chrono::milliseconds(20);
    options.timeout = std::chrono::seconds(60);
    auto cluster = VllmCluster::Open(options);
    ASSERT_TRUE(cluster.ok()) << cluster.status().ToString();
    cluster_ = *std::move(cluster);
    cluster_->StartMaintenance();
  }
  bool Within(const std::function<bool()>& condition) {
    for (int i = 0; i < 1000 && !condition(); ++i) {
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    }
    return condition();
  }
  std::set<std::string> RanksAsked() {
    return server_->With([this](FakeVllm&) { return ranks_asked_; });
  }

  test::CatalogFolder folder_;
  std::unique_ptr<FakeConnector> first_ = Rank(0);
  std::unique_ptr<FakeVllm> server_ = std::make_unique<FakeVllm>(first_.get());
  std::set<std::string> ranks_asked_;
  std::unique_ptr<VllmCluster> cluster_;
};

TEST_F(VllmClusterTest, ARankThatAppearsLaterIsFoundAndErasedIn) {
  Open();
  EXPECT_EQ(cluster_->Order(1).size(), 1u);
  const auto second = Rank(1);
  second->With([](FakeConnector& c) { return c.rotation_known = true; });
  ASSERT_TRUE(Within([&] { return cluster_->Order(1).size() == 2; }));
  ASSERT_TRUE(Within([&] { return cluster_->Order(1)[1]->kv_ready(); }));
  for (VllmServer* core : cluster_->Order(1)) {
    EXPECT_TRUE(core->Post("/v1/completions", {{"model", "tiny"}, {"prompt", {5}}}).ok());
  }
  const std::set<std::string> asked = RanksAsked();
  EXPECT_TRUE(asked.contains("0") && asked.contains("1"));
  // FakeVllm steps rank 0 alone.
  second->With([](FakeConnector& c) { return c.acknowledged = 1000; });
  EXPECT_TRUE(
      cluster_->Erase("erase", {{"keys", json::array()}, {"scope", "s"}, {"epoch", 2}}).ok());
  EXPECT_EQ(second->With([](FakeConnector& c) { return c.fences["s"]; }), 2);
}

TEST_F(VllmClusterTest, AnErasureIsNotDoneWhileARankDoesNotAnswer) {
  Open();
  std::ofstream(first_->path.string() + "-1").put('\n');
  const Status erased =
      cluster_->Erase("erase", {{"keys", json::array()}, {"scope", "s"}, {"epoch", 2}});
  EXPECT_EQ(erased.code(), StatusCode::kUnavailable);
  EXPECT_THAT(erased.message(), HasSubstr("socket-1"));
  EXPECT_EQ(first_->With([](FakeConnector& c) { return c.fences["s"]; }), 2);  // what can be is
  EXPECT_EQ(cluster_->Order(1).size(), 1u);  // and nothing is sent to it
}

TEST_F(VllmClusterTest, ARankThatIsGoneIsNotAskedForByNumber) {
  auto second = Rank(1);
  second->With([](FakeConnector& c) { return c.rotation_known = true; });
  Open();
  ASSERT_EQ(cluster_->Order(1).size(), 2u);
  second.reset();
  KvKey key;
  cluster_->Presence(std::span(&key, 1));
  server_->With([this](FakeVllm&) { return ranks_asked_.clear(); });
  for (VllmServer* core : cluster_->Order(1)) {
    EXPECT_TRUE(core->Post("/v1/completions", {{"model", "tiny"}, {"prompt", {5}}}).ok());
  }
  EXPECT_EQ(RanksAsked(), (std::set<std::string>{"", "0"}));
}

TEST_F(VllmClusterTest, AMalformedHelloEndsTheUseOfItsKv) {
  Open();
  VllmServer& core = *cluster_->Order(1)[0];
  ASSERT_TRUE(core.kv_ready());
  first_->With([](FakeConnector& c) { return c.codec = "f99"; });
  EXPECT_EQ(cluster_->Prepare(core).code(), StatusCode::kDataLoss);
  EXPECT_FALSE(core.kv_ready());
  EXPECT_THAT(core.kv_reason(), HasSubstr("codec"));
}

TEST_F(VllmClusterTest, NobodyWaitsForAnExactPrefixLongerThanForTheAnswerItself) {
  Open();
  VllmEncoder encoder(*cluster_);
  VllmServer& core = *cluster_->Order(1)[0];
  const KvKey key = test::TestKey(1);
  Composition prompt;
  prompt.ids = {'S', '\n', 'x'};
  prompt.blocks = {{key, 0, 2, true}};
  server_->With([](FakeVllm& server) { return server.completions.clear(); });
  const auto capture_with = [&](const std::string& fallback) {
    const std::scoped_lock lock(first_->mutex);
    first_->capture_fallback = fallback;
  };
  capture_with("over_budget");  // the fake stores before it answers
  server_->delay_ms = 30'000;
  const auto answers_at = std::chrono::steady_clock::now() + std::chrono::seconds(30);
  HttpCancellation cancellation, none;
  std::thread asking([&] { encoder.HoldPrefix(core, prompt, std::nullopt, &cancellation); });
  EXPECT_TRUE(Within(
      [&] { return server_->With([](FakeVllm& server) { return !server.completions.empty(); }); }));
  cancellation.Cancel();
  asking.join();
  encoder.HoldPrefix(core, prompt, std::chrono::steady_clock::now() + std::chrono::milliseconds(50),
                     &none);
  EXPECT_LT(std::chrono::steady_clock::now(), answers_at);
  EXPECT_TRUE(core.Available());  // the caller's haste says nothing of the server
  server_->delay_ms = 0;
  capture_with("");
  encoder.HoldPrefix(core, prompt, std::nullopt, nullptr);
  EXPECT_TRUE(first_->Holds(key));
}

TEST_F(VllmClusterTest, AnExactPrefixThatIsLongerThanTheModelsWindowIsTriedOnce) {
  Open();
  VllmEncoder encoder(*cluster_);
  VllmServer& core = *cluster_->Order(1)[0];
  Composition prompt;
  prompt.ids = {'S', '\n', 'x'};
  prompt.blocks = {{test::TestKey(1), 0, 2, true}};
  first_->With([](FakeConnector& c) { return c.capture_fallback = "outside_window"; });
  const auto asked = [&] {
    return server_->With([](FakeVllm& server) { return server.completions.size(); });
  };
  const std::size_t before = asked();
  for (int chat = 0; chat < 3; ++chat) encoder.HoldPrefix(core, prompt, std::nullopt, nullptr);
  EXPECT_EQ(asked(), before + 1);
  prompt.blocks[0].key = test::TestKey(2);
  first_->With([](FakeConnector& c) { return c.capture_fallback = ""; });
  encoder.HoldPrefix(core, prompt, std::nullopt, nullptr);
  EXPECT_TRUE(first_->Holds(test::TestKey(2)));
}

TEST_F(VllmClusterTest, StoppingEndsWhatAServerTakesLongFor) {
  Open();
  server_->With([](FakeVllm& server) { return server.completions.clear(); });
  server_->delay_ms = 30'000;
  Status status;
  std::thread asking([&] {
    status = cluster_->Order(1)[0]
                 ->Post("/v1/completions", {{"model", "tiny"}, {"prompt", {5}}})
                 .status();
  });
  EXPECT_TRUE(Within(
      [&] { return server_->With([](FakeVllm& server) { return !server.completions.empty(); }); }));
  cluster_->Stop();
  asking.join();
  EXPECT_EQ(status.code(), StatusCode::kCancelled);
  EXPECT_EQ(cluster_->Ask("/tokenize", {}).status().code(), StatusCode::kCancelled);
  server_->delay_ms = 0;
}

}  // namespace
}  // namespace inferscale
