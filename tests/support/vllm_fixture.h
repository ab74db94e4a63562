#ifndef INFERSCALE_TESTS_SUPPORT_VLLM_FIXTURE_H_
#define INFERSCALE_TESTS_SUPPORT_VLLM_FIXTURE_H_

/// \file vllm_fixture.h
/// A VllmEngine in front of servers and connectors that tests make up.

#include <gtest/gtest.h>

#include <chrono>
#include <functional>
#include <future>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "engine/vllm/vllm_engine.h"
#include "support/catalog_fixture.h"
#include "support/fake_vllm.h"

namespace inferscale::testing {

using nlohmann::json;

inline constexpr const char* kSecret = "a secret of many bytes";

inline KvKey Key(int number) {
  KvKey key;
  key.bytes[0] = static_cast<std::uint8_t>(number);
  return key;
}

inline EncodeRequest Fact(int number, std::uint64_t scope, std::uint64_t epoch,
                          const std::string& text = "a fact\n") {
  EncodeRequest request;
  request.info.key = Key(number);
  request.info.scope_tag = scope;
  request.info.epoch = epoch;
  request.info.tokens.assign(text.begin(), text.end());
  request.context = std::make_shared<const TokenIds>(TokenIds{'M', ':'});
  return request;
}

class VllmEngineTest : public ::testing::Test {
 protected:
  VllmEngineOptions Options() {
    VllmEngineOptions options;
    for (const auto& server : servers_) {
      options.urls.push_back(server->Url() + "/v1");
    }
    for (const auto& connector : connectors_) {
      options.control_paths.push_back(connector->path.string());
    }
    const std::string secret = kSecret;
    options.secret.assign(secret.begin(), secret.end());
    options.recheck = std::chrono::milliseconds(20);
    options.timeout = std::chrono::seconds(5);
    return options;
  }

  FakeConnector& AddConnector(const std::string& secret = kSecret) {
    connectors_.push_back(std::make_unique<FakeConnector>(
        folder_.path() / ("c" + std::to_string(connectors_.size())), secret));
    return *connectors_.back();
  }
  FakeVllm& AddServer(bool with_connector = true) {
    FakeConnector* connector = with_connector ? &AddConnector() : nullptr;
    servers_.push_back(std::make_unique<FakeVllm>(connector));
    return *servers_.back();
  }
  void Open(const VllmEngineOptions& options) {
    auto engine = VllmEngine::Create(options);
    ASSERT_TRUE(engine.ok()) << engine.status().ToString();
    engine_ = *std::move(engine);
  }
  void Open() { Open(Options()); }

  EncodeOutcome Encode(EncodeRequest request) {
    std::promise<EncodeOutcome> promise;
    std::vector<EncodeRequest> requests;
    requests.push_back(std::move(request));
    engine_->Encode(std::move(requests),
                    [&](const EncodeOutcome& outcome) { promise.set_value(outcome); });
    return promise.get_future().get();
  }
  Composition WithFact(int number, std::uint64_t scope = 7) {
    Composition composition;
    const std::string text = "a fact\nWhat?";
    composition.ids.assign(text.begin(), text.end());
    composition.blocks.push_back({Key(number), 0, 7, false});
    composition.salt = "salt";
    composition.scope_tags = {scope};
    return composition;
  }
  GenerationReport Generate(Composition composition, Sampling sampling = {}) {
    return GenerateBlocking(*engine_, std::move(composition), std::move(sampling));
  }

  /// Whether it comes true while others work in the background.
  static bool Within(const std::function<bool()>& condition) {
    for (int i = 0; i < 1000 && !condition(); ++i) {
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    }
    return condition();
  }
  static std::vector<json> Completions(FakeVllm& server) {
    return server.With([](FakeVllm& s) { return s.completions; });
  }
  static void Instead(FakeVllm& server,
                      std::function<std::optional<HttpReply>(const HttpExchange&)> instead) {
    server.With([&](FakeVllm& s) { s.instead = std::move(instead); });
  }

  test::CatalogFolder folder_;
  std::vector<std::unique_ptr<FakeConnector>> connectors_;
  std::vector<std::unique_ptr<FakeVllm>> servers_;
  std::unique_ptr<VllmEngine> engine_;
};

}  // namespace inferscale::testing

#endif  // INFERSCALE_TESTS_SUPPORT_VLLM_FIXTURE_H_
