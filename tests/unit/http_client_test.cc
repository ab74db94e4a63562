#include "base/http_client.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>
#include <thread>

#include <arpa/inet.h>
#include <sys/socket.h>

#include "base/descriptor.h"
#include "support/http_server.h"

namespace inferscale {
namespace {

using testing::HttpReply;
using testing::HttpServer;

HttpPost PostTo(const std::string& url) {
  HttpPost post;
  const Result<Url> parsed = ParseUrl(url);
  EXPECT_TRUE(parsed.ok()) << parsed.status().ToString();
  post.url = *parsed;
  post.body = R"({"hello":"there"})";
  post.timeout = std::chrono::seconds(20);
  return post;
}

TEST(ParseUrl, TakesThePartsApart) {
  const Result<Url> plain = ParseUrl("http://example.org");
  ASSERT_TRUE(plain.ok());
  EXPECT_FALSE(plain->tls);
  EXPECT_EQ(plain->host, "example.org");
  EXPECT_EQ(plain->port, "80");
  EXPECT_EQ(plain->target, "/");

  const Result<Url> full = ParseUrl("https://[::1]:8443/v1/embeddings?version=2#top");
  ASSERT_TRUE(full.ok());
  EXPECT_TRUE(full->tls);
  EXPECT_EQ(full->host, "::1");
  EXPECT_EQ(full->port, "8443");
  EXPECT_EQ(full->target, "/v1/embeddings?version=2");
  EXPECT_EQ(full->ToDisplayString(), "https://[::1]:8443/v1/embeddings");

  const Result<Url> query = ParseUrl("http://host?a=b");
  ASSERT_TRUE(query.ok());
  EXPECT_EQ(query->target, "/?a=b");
}

TEST(ParseUrl, RefusesWhatIsNoUrlAndNeverRepeatsIt) {
  for (const char* text :
       {"", "example.org", "ftp://example.org", "http://", "http://:80", "http://host:0",
        "http://host:65536", "http://host:12x", "http://user:hunter2@host/", "http://ho st/",
        "http://host/\r\nX-Header: hunter2", "http://[::1", "http://[hunter2]/",
        "http://[::1]80"}) {
    const Result<Url> url = ParseUrl(text);
    ASSERT_FALSE(url.ok()) << text;
    EXPECT_EQ(url.status().code(), StatusCode::kInvalidArgument) << text;
    EXPECT_EQ(url.status().message().find("hunter2"), std::string::npos);
  }
}

TEST(PostJson, SendsTheBodyAndReturnsTheAnswer) {
  HttpServer server([](const testing::HttpExchange& exchange) {
    return HttpReply{.status = 418,
                     .body = exchange.target + exchange.authorization + exchange.body};
  });
  HttpPost post = PostTo(server.Url("/tea?hot=1"));
  post.bearer_token = "secret";
  const Result<HttpPostResult> response = PostJson(post);
  ASSERT_TRUE(response.ok()) << response.status().ToString();
  EXPECT_EQ(response->status, 418);
  EXPECT_EQ(response->content_type, "application/json");
  EXPECT_EQ(response->body, R"(/tea?hot=1Bearer secret{"hello":"there"})");
}

TEST(PostJson, SaysThatNobodyListens) {
  std::string url;
  {
    HttpServer server([](const auto&) { return HttpReply{}; });
    url = server.Url("/v1");
  }
  const Result<HttpPostResult> response = PostJson(PostTo(url));
  ASSERT_FALSE(response.ok());
  EXPECT_EQ(response.status().code(), StatusCode::kUnavailable);
  EXPECT_NE(response.status().message().find(url), std::string::npos);
}

TEST(PostJson, GivesUpAtTheDeadline) {
  HttpServer server([](const auto&) { return HttpReply{.delay = std::chrono::minutes(5)}; });
  HttpPost post = PostTo(server.Url("/"));
  post.timeout = std::chrono::milliseconds(50);
  const Result<HttpPostResult> response = PostJson(post);
  ASSERT_FALSE(response.ok());
  EXPECT_EQ(response.status().code(), StatusCode::kUnavailable);
  EXPECT_NE(response.status().message().find("50 ms"), std::string::npos);
}

TEST(PostJson, RefusesALongerBodyThanAllowed) {
  HttpServer server([](const auto&) { return HttpReply{.body = std::string(5000, 'x')}; });
  HttpPost post = PostTo(server.Url("/"));
  post.max_response_bytes = 4999;
  EXPECT_EQ(PostJson(post).status().code(), StatusCode::kResourceExhausted);
  post.max_response_bytes = 5000;
  EXPECT_TRUE(PostJson(post).ok());
}

TEST(PostJson, ReportsAConnectionThatIsCut) {
  HttpServer server([](const auto&) { return HttpReply{.hang_up = true}; });
  EXPECT_EQ(PostJson(PostTo(server.Url("/"))).status().code(), StatusCode::kUnavailable);
}

TEST(PostJson, AChunkHeaderWithoutAnEndDoesNotFillTheMemory) {
  const Descriptor listening(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof(address);
  auto* const generic = reinterpret_cast<sockaddr*>(&address);
  ASSERT_EQ(bind(listening.get(), generic, size), 0);
  ASSERT_EQ(listen(listening.get(), 1), 0);
  ASSERT_EQ(getsockname(listening.get(), generic, &size), 0);
  std::thread server([&] {
    const Descriptor peer(accept(listening.get(), nullptr, nullptr));
    char request[4096];
    if (recv(peer.get(), request, sizeof(request), 0) <= 0) return;
    const std::string answer = "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1;" +
                               std::string(std::size_t{8} << 20, 'x');
    for (std::size_t sent = 0; sent < answer.size();) {
      const ssize_t n = send(peer.get(), answer.data() + sent, answer.size() - sent, MSG_NOSIGNAL);
      if (n <= 0) return;
      sent += static_cast<std::size_t>(n);
    }
  });
  const Status status =
      PostJson(PostTo("http://127.0.0.1:" + std::to_string(ntohs(address.sin_port)))).status();
  server.join();
  EXPECT_EQ(status.code(), StatusCode::kUnavailable);
  EXPECT_NE(status.message().find("overflow"), std::string::npos) << status.ToString();
}

TEST(PostJson, TakesALargeAnswer) {
  const std::string body(std::size_t{5} << 20, 'x');
  HttpServer server([&](const auto&) { return HttpReply{.body = body}; });
  const Result<HttpPostResult> response = PostJson(PostTo(server.Url("/")));
  ASSERT_TRUE(response.ok()) << response.status().ToString();
  EXPECT_EQ(response->body, body);
}

TEST(PostJson, RefusesATokenThatWouldAddAHeader) {
  HttpPost post = PostTo("http://127.0.0.1:1/");
  post.bearer_token = "hunter2\r\nX-Other: 1";
  const Status status = PostJson(post).status();
  EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(status.message().find("hunter2"), std::string::npos);
}

TEST(PostJson, TrustsOnlyCertificatesItKnows) {
  const testing::TestCertificate made = testing::MakeTestCertificate();
  HttpServer server([](const auto&) { return HttpReply{.body = "hello"}; }, made.certificate_pem,
                    made.key_pem);
  const Status refused = PostJson(PostTo(server.Url("/"))).status();
  EXPECT_EQ(refused.code(), StatusCode::kUnavailable);
  EXPECT_NE(refused.message().find("certificate"), std::string::npos);
  EXPECT_EQ(server.requests(), 0);

  const std::filesystem::path file = std::filesystem::path(::testing::TempDir()) / "trusted.pem";
  std::ofstream(file) << made.certificate_pem;
  ::setenv("SSL_CERT_FILE", file.c_str(), 1);
  const Result<HttpPostResult> response = PostJson(PostTo(server.Url("/")));
  HttpPost wrong_name = PostTo(server.Url("/"));
  wrong_name.url.host = "localhost";
  const Status mismatch = PostJson(wrong_name).status();
  ::unsetenv("SSL_CERT_FILE");
  ASSERT_TRUE(response.ok()) << response.status().ToString();
  EXPECT_EQ(response->body, "hello");
  EXPECT_EQ(mismatch.code(), StatusCode::kUnavailable);
}

TEST(PostJson, TrustsAFileOfCertificatesThatItIsGiven) {
  const testing::TestCertificate made = testing::MakeTestCertificate();
  HttpServer server([](const auto&) { return HttpReply{.body = "hello"}; }, made.certificate_pem,
                    made.key_pem);
  const std::filesystem::path file = std::filesystem::path(::testing::TempDir()) / "own_ca.pem";
  std::ofstream(file) << made.certificate_pem;
  HttpPost post = PostTo(server.Url("/"));
  post.ca_file = file.string();
  const Result<HttpPostResult> response = PostJson(post);
  ASSERT_TRUE(response.ok()) << response.status().ToString();
  EXPECT_EQ(response->body, "hello");
  for (const char* const broken : {"/nowhere/ca.pem", "/dev/null"}) {
    post.ca_file = broken;
    const Status status = PostJson(post).status();
    EXPECT_EQ(status.code(), StatusCode::kUnavailable);  // what waits for the server is kept
    EXPECT_NE(status.message().find(broken), std::string::npos);
  }
}

TEST(ExcerptForMessage, IsOneLineOfWholeCharacters) {
  EXPECT_EQ(ExcerptForMessage("a\nb\x01"), "a b ");
  EXPECT_EQ(ExcerptForMessage("中文中文", 7), "中文…");
  EXPECT_EQ(ExcerptForMessage("", 7), "");
}

TEST(RefusalStatus, TellsRetryableFromFinalAndHidesTheKey) {
  const Url url = *ParseUrl("http://host/v1");
  for (const int status : {408, 429, 500, 503}) {
    EXPECT_EQ(RefusalStatus(url, {status, "", "busy"}).code(), StatusCode::kUnavailable) << status;
  }
  for (const int status : {301, 400, 401, 403, 404, 422}) {
    EXPECT_EQ(RefusalStatus(url, {status, "", "no"}).code(), StatusCode::kInvalidArgument)
        << status;
  }
  const Status unauthorized = RefusalStatus(url, {401, "", "Incorrect API key: hunter2"});
  EXPECT_EQ(unauthorized.message().find("hunter2"), std::string::npos);
}

}  // namespace
}  // namespace inferscale
