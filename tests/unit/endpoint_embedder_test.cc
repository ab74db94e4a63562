#include "embed/endpoint_embedder.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <mutex>
#include <nlohmann/json.hpp>

#include "support/http_server.h"

namespace inferscale {
namespace {

using nlohmann::json;
using ::testing::HasSubstr;
using testing::HttpExchange;
using testing::HttpReply;
using testing::HttpServer;
using ::testing::Not;

constexpr char kKey[] = "sk-hunter2";

EmbedderSpec Spec(const HttpServer& server, std::int32_t dimensions = 3) {
  EmbedderSpec spec;
  spec.location = server.Url("/v1");
  spec.model = "tiny";
  spec.api_key = kKey;
  spec.dimensions = dimensions;
  spec.timeout = std::chrono::seconds(20);
  return spec;
}

/// One item a text: (bytes of the text, 0, 1), not of length 1.
json Answer(const json& request) {
  json data = json::array();
  std::size_t index = 0;
  for (const json& text : request["input"]) {
    data.push_back({{"index", index++},
                    {"embedding", {static_cast<double>(text.get<std::string>().size()), 0, 1}}});
  }
  return {{"data", data}};
}

HttpReply GoodReply(const HttpExchange& exchange) {
  return {.body = Answer(json::parse(exchange.body)).dump()};
}

Status EmbedError(HttpServer::Handler handler, std::vector<std::string> texts = {"one", "two"}) {
  HttpServer server(std::move(handler));
  auto embedder = EndpointEmbedder::Create(Spec(server));
  EXPECT_TRUE(embedder.ok()) << embedder.status().ToString();
  const auto vectors = (*embedder)->Embed(texts);
  EXPECT_FALSE(vectors.ok());
  EXPECT_THAT(vectors.status().message(), HasSubstr(server.Url("/v1/embeddings")));
  EXPECT_THAT(vectors.status().message(), Not(HasSubstr("hunter2")));
  return vectors.status();
}

TEST(EndpointEmbedder, NormalizesAndKeepsTheOrder) {
  HttpServer server([](const HttpExchange& exchange) {
    EXPECT_EQ(exchange.target, "/v1/embeddings");
    EXPECT_EQ(exchange.authorization, std::string("Bearer ") + kKey);
    EXPECT_EQ(json::parse(exchange.body)["model"], "tiny");
    json answer = Answer(json::parse(exchange.body));
    std::reverse(answer["data"].begin(), answer["data"].end());
    return HttpReply{.body = answer.dump()};
  });
  auto embedder = MakeEmbedder(Spec(server));
  ASSERT_TRUE(embedder.ok()) << embedder.status().ToString();
  const std::vector<std::string> texts = {"abc", "", "a", " \n\t", "中"};
  const auto vectors = (*embedder)->Embed(texts);
  ASSERT_TRUE(vectors.ok()) << vectors.status().ToString();
  ASSERT_EQ(vectors->size(), 5u);
  EXPECT_FLOAT_EQ((*vectors)[0][0], static_cast<float>(3 / std::sqrt(10.0)));
  EXPECT_EQ((*vectors)[1], std::vector<float>(3, 0.0f));
  EXPECT_FLOAT_EQ((*vectors)[2][0], static_cast<float>(1 / std::sqrt(2.0)));
  EXPECT_EQ((*vectors)[3], std::vector<float>(3, 0.0f));
  EXPECT_FLOAT_EQ((*vectors)[4][2], static_cast<float>(1 / std::sqrt(10.0)));
}

TEST(EndpointEmbedder, SplitsManyTextsIntoRequests) {
  HttpServer server(GoodReply);
  auto embedder = EndpointEmbedder::Create(Spec(server));
  ASSERT_TRUE(embedder.ok());
  std::vector<std::string> texts;
  for (int i = 1; i <= 100; ++i) texts.push_back(std::string(static_cast<std::size_t>(i), 'x'));
  const auto vectors = (*embedder)->Embed(texts);
  ASSERT_TRUE(vectors.ok()) << vectors.status().ToString();
  for (int i = 1; i <= 100; ++i) {
    EXPECT_FLOAT_EQ((*vectors)[static_cast<std::size_t>(i - 1)][0],
                    static_cast<float>(i / std::sqrt(i * i + 1.0)));
  }
  EXPECT_GT(server.requests(), 1);
  EXPECT_TRUE((*embedder)->Embed({})->empty());
}

TEST(EndpointEmbedder, LearnsTheDimensionsAndNamesItself) {
  HttpServer server(GoodReply);
  auto learnt = EndpointEmbedder::Create(Spec(server, 0));
  ASSERT_TRUE(learnt.ok()) << learnt.status().ToString();
  EXPECT_EQ((*learnt)->dimensions(), 3);
  auto told = EndpointEmbedder::Create(Spec(server, 3));
  EXPECT_EQ((*learnt)->id(), (*told)->id());
  EmbedderSpec other = Spec(server, 3);
  other.model = "other";
  EXPECT_NE((*EndpointEmbedder::Create(other))->id(), (*told)->id());
}

TEST(EndpointEmbedder, CutsLongTextsAndRepairsBrokenOnes) {
  std::mutex mutex;
  std::vector<std::string> seen;
  HttpServer server([&](const HttpExchange& exchange) {
    std::lock_guard lock(mutex);
    const json request = json::parse(exchange.body);
    for (const json& text : request["input"]) seen.push_back(text);
    return GoodReply(exchange);
  });
  auto embedder = EndpointEmbedder::Create(Spec(server));
  std::string chinese;
  while (chinese.size() < 1 << 20) chinese += "中";
  ASSERT_TRUE((*embedder)->Embed(std::vector<std::string>{chinese, "bad \xff byte"}).ok());
  ASSERT_EQ(seen.size(), 2u);
  EXPECT_LE(seen[0].size(), 8000u);
  EXPECT_EQ(seen[0].size() % 3, 0u);
  EXPECT_EQ(seen[1], "bad \xef\xbf\xbd byte");
}

TEST(EndpointEmbedder, RefusesAnswersThatDoNotFit) {
  const auto with = [](std::function<void(json&)> change) {
    return [change](const HttpExchange& exchange) {
      json answer = Answer(json::parse(exchange.body));
      change(answer);
      return HttpReply{.body = answer.dump()};
    };
  };
  const std::vector<std::pair<const char*, std::function<void(json&)>>> cases = {
      {"1 vectors for 2", [](json& a) { a["data"].erase(1); }},
      {"3 vectors for 2", [](json& a) { a["data"].push_back(a["data"][0]); }},
      {"dimensions", [](json& a) { a["data"][1]["embedding"].push_back(1); }},
      {"dimensions", [](json& a) { a["data"][1]["embedding"] = json::array(); }},
      {"index", [](json& a) { a["data"][1]["index"] = 0; }},
      {"index", [](json& a) { a["data"][1]["index"] = 2; }},
      {"index", [](json& a) { a["data"][1]["index"] = -1; }},
      {"index", [](json& a) { a["data"][1].erase("index"); }},
      {"numbers", [](json& a) { a["data"][1]["embedding"][0] = "1"; }},
      {"numbers", [](json& a) { a["data"][1]["embedding"][0] = nullptr; }},
      {"finite", [](json& a) { a["data"][1]["embedding"][0] = 1e300; }},
      {"embedding", [](json& a) { a["data"][1]["embedding"] = "AACAPw=="; }},
      {"object", [](json& a) { a["data"][1] = 7; }},
      {"data", [](json& a) { a.erase("data"); }},
      {"data", [](json& a) { a = json::array({1}); }},
  };
  for (const auto& [word, change] : cases) {
    const Status status = EmbedError(with(change));
    EXPECT_EQ(status.code(), StatusCode::kUnavailable);
    EXPECT_THAT(status.message(), HasSubstr(word));
  }
}

TEST(EndpointEmbedder, SaysThatAWebPageIsNoAnswer) {
  const Status status = EmbedError([](const HttpExchange&) {
    return HttpReply{.body = "<html>Welcome to nginx</html>", .content_type = "text/html"};
  });
  EXPECT_EQ(status.code(), StatusCode::kUnavailable);
  EXPECT_THAT(status.message(), HasSubstr("<html>"));
}

TEST(EndpointEmbedder, TriesServerErrorsOnceMore) {
  std::atomic<int> calls{0};
  HttpServer server([&](const HttpExchange& exchange) {
    return ++calls == 1 ? HttpReply{.status = 500, .body = "oops"} : GoodReply(exchange);
  });
  auto embedder = EndpointEmbedder::Create(Spec(server));
  EXPECT_TRUE((*embedder)->Embed(std::vector<std::string>{"one"}).ok());
  EXPECT_EQ(calls, 2);
}

TEST(EndpointEmbedder, GivesUpAfterTheSecondServerError) {
  std::atomic<int> calls{0};
  const Status status = EmbedError([&](const HttpExchange&) {
    ++calls;
    return HttpReply{.status = 503, .body = "starting"};
  });
  EXPECT_EQ(status.code(), StatusCode::kUnavailable);
  EXPECT_EQ(calls, 2);
}

TEST(EndpointEmbedder, DoesNotRepeatWhatTheServerRefuses) {
  std::atomic<int> calls{0};
  const Status status = EmbedError([&](const HttpExchange& exchange) {
    ++calls;
    return HttpReply{.status = 401, .body = "bad key: " + exchange.authorization};
  });
  EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(calls, 1);
}

TEST(EndpointEmbedder, GivesUpOnASlowServer) {
  HttpServer server(
      [](const HttpExchange&) { return HttpReply{.delay = std::chrono::minutes(5)}; });
  EmbedderSpec spec = Spec(server);
  spec.timeout = std::chrono::milliseconds(50);
  auto embedder = EndpointEmbedder::Create(spec);
  EXPECT_EQ((*embedder)->Embed(std::vector<std::string>{"one"}).status().code(),
            StatusCode::kUnavailable);
}

TEST(EndpointEmbedder, StopsReadingAHugeAnswer) {
  const Status status = EmbedError([](const HttpExchange&) {
    return HttpReply{.body = std::string(std::size_t{8} << 20, '[')};
  });
  EXPECT_EQ(status.code(), StatusCode::kResourceExhausted);
}

TEST(MakeEmbedder, SaysWhatIsMissing) {
  EmbedderSpec spec;
  EXPECT_EQ(MakeEmbedder(spec).status().code(), StatusCode::kInvalidArgument);
  spec.location = "http://127.0.0.1:1/v1";
  EXPECT_THAT(MakeEmbedder(spec).status().message(), HasSubstr("model"));
  spec.location = "ws://127.0.0.1:1/v1";
  EXPECT_EQ(MakeEmbedder(spec).status().code(), StatusCode::kInvalidArgument);
  spec.location = "/nowhere/model.gguf";
  EXPECT_EQ(MakeEmbedder(spec).status().code(), StatusCode::kNotFound);
}

}  // namespace
}  // namespace inferscale
