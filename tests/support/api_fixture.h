#ifndef INFERSCALE_TESTS_SUPPORT_API_FIXTURE_H_
#define INFERSCALE_TESTS_SUPPORT_API_FIXTURE_H_

/// \file api_fixture.h
/// Routes of the server called without a network, over a MemoryService with a real catalog and a
/// fake embedder. Whose key a request has is told by its header x-test-key.

#include <condition_variable>
#include <filesystem>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <utility>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "base/random.h"
#include "inferscale/memory_service.h"
#include "memory/extractor.h"
#include "server/server.h"
#include "support/fake_embedder.h"

namespace inferscale::testing {

struct Reply {
  int status = 0;
  nlohmann::json body;
  std::string text;
};

class ApiTest : public ::testing::Test {
 protected:
  void SetUp() override {
    folder_ = std::filesystem::temp_directory_path() / ("inferscale-test-" + NewUuid());
    Principal admin;
    admin.admin = true;
    keys_["admin"] = admin;
    keys_["plain"] = Principal();
    Principal other;
    other.tenant = "other";
    other.admin = true;
    keys_["other"] = other;
    Principal bound;
    bound.bound = Scope();
    bound.bound->user = "alice";
    keys_["alice"] = bound;
  }
  void TearDown() override {
    routes_.reset();
    context_.reset();
    std::filesystem::remove_all(folder_);
  }

  void Open() {
    routes_.reset();
    context_.reset();
    CatalogOptions catalog_options;
    catalog_options.folder = folder_;
    catalog_options.clock = [this] { return now_; };
    Result<std::unique_ptr<Catalog>> catalog = OpenSqliteCatalog(catalog_options);
    ASSERT_TRUE(catalog.ok()) << catalog.status().ToString();
    MemoryServiceOptions options;
    options.background = false;
    options.extraction = extractor_ ? ExtractionMode::kLlm : ExtractionMode::kVerbatim;
    options.clock = [this] { return now_; };
    Result<std::unique_ptr<MemoryService>> service = MemoryService::Create(
        std::move(*catalog), std::make_shared<FakeEmbedder>(), nullptr, extractor_, options);
    ASSERT_TRUE(service.ok()) << service.status().ToString();
    context_ = std::make_shared<ApiContext>();
    context_->service = std::move(*service);
    routes_ = std::make_unique<Routes>([this](const HttpRequest& request) -> Result<Principal> {
      const std::string* key = request.Header("x-test-key");
      const auto found = keys_.find(key == nullptr ? "admin" : *key);
      if (found == keys_.end()) return NotFound("no such key");
      return found->second;
    });
    AddMem0Routes(*routes_, context_);
    AddMcpRoutes(*routes_, context_);
  }

  /// Waits for the answer; fails after half a minute.
  Reply Raw(const std::string& method, const std::string& target, const std::string& body,
            const std::string& key = "admin", const NameValues& more_headers = {}) {
    HttpRequest request;
    request.method = method;
    request.target = target;
    EXPECT_TRUE(ParseTarget(target, &request).ok()) << target;
    request.headers = {
        {"host", "localhost:8420"}, {"content-type", "application/json"}, {"x-test-key", key}};
    request.headers.insert(request.headers.end(), more_headers.begin(), more_headers.end());
    request.body = body;
    request.id = "request-id";
    const RouteMatch match = routes_->router().Find(request);
    if (match.handler == nullptr) return {match.allowed.empty() ? 404 : 405, nullptr, ""};
    std::mutex mutex;
    std::condition_variable answered;
    bool done = false;
    auto exchange = std::make_shared<Exchange>(std::move(request), [&] {
      const std::lock_guard lock(mutex);
      done = true;
      answered.notify_all();
    });
    (*match.handler)(Guarded(exchange), match.parameters);
    {
      std::unique_lock lock(mutex);
      EXPECT_TRUE(answered.wait_for(lock, std::chrono::seconds(30), [&] { return done; }))
          << method << " " << target << " was not answered";
      if (!done) return {};
    }
    const HttpResponse response = exchange->Take().head;
    return {response.status, nlohmann::json::parse(response.body, nullptr, false), response.body};
  }

  Reply Call(const std::string& method, const std::string& target,
             const nlohmann::json& body = nullptr, const std::string& key = "admin") {
    return Raw(method, target, body.is_null() ? "" : body.dump(), key);
  }

  /// Does all pending work.
  void RunAll() {
    while (true) {
      const Result<bool> more = context_->service->RunPending();
      ASSERT_TRUE(more.ok()) << more.status().ToString();
      if (!*more) return;
    }
  }

  MemoryService& service() { return *context_->service; }

  std::filesystem::path folder_;
  TimeMs now_ = 1'790'000'000'000;
  std::map<std::string, Principal> keys_;
  std::shared_ptr<Extractor> extractor_;  // null: verbatim
  std::shared_ptr<ApiContext> context_;
  std::unique_ptr<Routes> routes_;
};

}  // namespace inferscale::testing

#endif  // INFERSCALE_TESTS_SUPPORT_API_FIXTURE_H_
