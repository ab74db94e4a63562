#include "cli/service_factory.h"

#include <gtest/gtest.h>

#include <memory>

#include "cli/config.h"
#include "support/catalog_fixture.h"
#include "support/http_server.h"

namespace inferscale {
namespace {

TEST(ServiceFactory, AMemoryStaysUsableWhileItsEmbeddingServerIsDown) {
  const test::CatalogFolder folder;
  auto server = std::make_unique<testing::HttpServer>([](const testing::HttpExchange&) {
    return testing::HttpReply{.body = R"({"data":[{"index":0,"embedding":[1,0,0]}]})"};
  });
  ConfigInputs inputs;
  inputs.environment = [](const std::string&) { return std::nullopt; };
  inputs.flags = {{"data-dir", folder.path().string()},
                  {"embedder", server->Url("/v1")},
                  {"embedder-model", "tiny"}};
  const Result<LoadedConfig> loaded = LoadConfig(inputs);
  ASSERT_TRUE(loaded.ok()) << loaded.status().ToString();
  Scope scope;
  scope.user = "ada";
  {
    const Result<OpenedService> opened = OpenService(loaded->config, false);
    ASSERT_TRUE(opened.ok()) << opened.status().ToString();
    AddRequest add;
    add.scope = scope;
    add.turns = {{0, "user", "Ada", "the cat is called Pixel", 0}};
    ASSERT_TRUE(opened->service->Add(add).ok());
  }
  server.reset();
  const Result<OpenedService> opened = OpenService(loaded->config, false);
  ASSERT_TRUE(opened.ok()) << opened.status().ToString();
  Status embedding;
  const auto hits = opened->service->Search(scope, "cat", 5, nullptr, 0, false, &embedding);
  ASSERT_TRUE(hits.ok()) << hits.status().ToString();
  EXPECT_EQ(hits->size(), 1u);
  EXPECT_EQ(embedding.code(), StatusCode::kUnavailable);
}

TEST(ServiceFactory, AnEndpointThatNeverAnsweredIsAnError) {
  const test::CatalogFolder folder;
  ConfigInputs inputs;
  inputs.environment = [](const std::string&) { return std::nullopt; };
  inputs.flags = {{"data-dir", folder.path().string()},
                  {"embedder", "http://127.0.0.1:9/v1"},
                  {"embedder-model", "tiny"}};
  const Result<LoadedConfig> loaded = LoadConfig(inputs);
  ASSERT_TRUE(loaded.ok()) << loaded.status().ToString();
  EXPECT_EQ(OpenService(loaded->config, false).status().code(), StatusCode::kUnavailable);
}

}  // namespace
}  // namespace inferscale
