#include "server/http_server.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <arpa/inet.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <future>
#include <memory>
#include <stdexcept>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "server/router.h"

namespace inferscale {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;

/// A raw connection: what is sent is what the test says, byte for byte.
class RawClient {
 public:
  explicit RawClient(std::uint16_t port) : socket_(::socket(AF_INET, SOCK_STREAM, 0)) {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_port = htons(port);
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    connected_ =
        ::connect(socket_, reinterpret_cast<const sockaddr*>(&address), sizeof(address)) == 0;
  }
  ~RawClient() { Close(); }
  RawClient(const RawClient&) = delete;
  RawClient& operator=(const RawClient&) = delete;

  bool connected() const { return connected_; }
  void Close() {
    if (socket_ >= 0) ::close(std::exchange(socket_, -1));
  }
  void Send(std::string_view bytes) {
    while (!bytes.empty()) {
      const ssize_t sent = ::send(socket_, bytes.data(), bytes.size(), MSG_NOSIGNAL);
      if (sent <= 0) return;
      bytes.remove_prefix(static_cast<std::size_t>(sent));
    }
  }
  void CloseSending() { ::shutdown(socket_, SHUT_WR); }
  /// What comes until the server closes, or `end` stands in it.
  std::string ReadUntil(const std::string& end) {
    std::string text;
    while (text.find(end) == std::string::npos && ReadMore(&text)) {
    }
    return text;
  }
  std::string ReadAll() {
    std::string text;
    while (ReadMore(&text)) {
    }
    return text;
  }

 private:
  bool ReadMore(std::string* text) {
    constexpr int kPatienceMs = 30'000;
    pollfd waiting{socket_, POLLIN, 0};
    if (::poll(&waiting, 1, kPatienceMs) != 1) return false;
    char bytes[4096];
    const ssize_t got = ::recv(socket_, bytes, sizeof(bytes), 0);
    if (got <= 0) return false;
    text->append(bytes, static_cast<std::size_t>(got));
    return true;
  }
  int socket_;
  bool connected_ = false;
};

/// Answers with what it understood: method, path, body.
void Echo(const ExchangePtr& exchange) {
  const HttpRequest& request = exchange->request();
  HttpResponse response;
  response.content_type = "text/plain";
  response.body = request.method;
  for (const std::string& segment : request.path) response.body += " <" + segment + ">";
  response.body += " [" + request.body + "]";
  exchange->Respond(std::move(response));
}

std::unique_ptr<HttpServer> StartServer(HttpServer::Handler handler,
                                        HttpServerOptions options = {}) {
  options.port = 0;
  Result<std::unique_ptr<HttpServer>> server = HttpServer::Start(options, std::move(handler));
  EXPECT_TRUE(server.ok()) << server.status().ToString();
  return *std::move(server);
}

/// The answer of a server that echoes to these bytes, on a connection of their own.
std::string AnswerTo(const std::string& bytes, const HttpServerOptions& options = {}) {
  const auto server = StartServer(Echo, options);
  RawClient client(server->port());
  EXPECT_TRUE(client.connected());
  client.Send(bytes);
  return client.ReadAll();
}

constexpr const char* kClose = "Host: h\r\nConnection: close\r\n";

TEST(HttpServer, DecodesPathsSegmentBySegment) {
  const std::string answer =
      AnswerTo(std::string("GET /a%2Fb/%C3%BC/?q=1 HTTP/1.1\r\n") + kClose + "\r\n");
  EXPECT_THAT(answer, StartsWith("HTTP/1.1 200 OK\r\n"));
  EXPECT_THAT(answer, HasSubstr("GET <a/b> <\xC3\xBC> []"));
}

TEST(HttpServer, TakesBodiesByLengthAndInChunks) {
  EXPECT_THAT(
      AnswerTo(std::string("POST /x HTTP/1.1\r\n") + kClose + "Content-Length: 5\r\n\r\nhello"),
      HasSubstr("POST <x> [hello]"));
  EXPECT_THAT(AnswerTo(std::string("POST /x HTTP/1.1\r\n") + kClose +
                       "Transfer-Encoding: chunked\r\n\r\n2\r\nhe\r\n3\r\nllo\r\n0\r\n\r\n"),
              HasSubstr("POST <x> [hello]"));
}

TEST(HttpServer, RefusesTwoWaysOfTellingTheLength) {
  const std::string smuggled = "0\r\n\r\nGET /inner HTTP/1.1\r\nHost: h\r\n\r\n";
  for (const std::string& headers :
       {std::string("Content-Length: 6\r\nTransfer-Encoding: chunked\r\n"),
        std::string("Transfer-Encoding: chunked\r\nContent-Length: 6\r\n"),
        std::string("Content-Length: 6\r\nContent-Length: 7\r\n"),
        std::string("Content-Length: 6\r\nContent-Length: 6\r\n"),
        std::string("Transfer-Encoding: chunked, identity\r\n"),
        std::string("Transfer-Encoding: xchunked\r\n"),
        std::string("Content-Length: -1\r\n"),
        std::string("Content-Length: 6 6\r\n"),
        std::string("Transfer-Encoding : chunked\r\n"),
        std::string("Content-Length: 6, 6\r\n"),
        std::string("Content-Length: +6\r\n"),
        std::string("Content-Length: 0x6\r\n"),
        std::string("Content-Length: 6\r\n 0\r\n"),
        std::string("Content-Length: \r\n"),
        std::string("Content-Length: 18446744073709551622\r\n"),
        std::string("Transfer-Encoding: chunked, chunked\r\n"),
        std::string("Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n"),
        std::string("Transfer-Encoding: identity\r\nTransfer-Encoding: chunked\r\n"),
        std::string("Transfer-Encoding:\x0b"
                    "chunked\r\n"),
        std::string("Transfer-Encoding: \"chunked\"\r\n"),
        std::string("Transfer-Encoding: chunked;q=1\r\n"),
        std::string("X: y\nTransfer-Encoding: chunked\r\n"),
        std::string("X: y\rTransfer-Encoding: chunked\r\n"),
        std::string(" Transfer-Encoding: chunked\r\n"),
        std::string(": x\r\n"),
        std::string("X\0Y: z\r\n", 8),
        std::string("X: y\0z\r\n", 8)}) {
    const std::string answer =
        AnswerTo("POST /x HTTP/1.1\r\nHost: h\r\n" + headers + "\r\n" + smuggled);
    EXPECT_THAT(answer, StartsWith("HTTP/1.1 400 ")) << headers;
    EXPECT_THAT(answer, Not(HasSubstr("inner"))) << headers;
  }
}

TEST(HttpServer, RefusesChunksThatAreNotQuiteChunks) {
  for (const std::string& body :
       {std::string("5\nhello\r\n0\r\n\r\n"), std::string("0x5\r\nhello\r\n0\r\n\r\n"),
        std::string("-5\r\nhello\r\n0\r\n\r\n"), std::string("5 \r\nhello\r\n0\r\n\r\n"),
        std::string("5\r\nhelloo\r\n0\r\n\r\n"), std::string("5;=\r\nhello\r\n0\r\n\r\n"),
        std::string("5;a\x01\r\nhello\r\n0\r\n\r\n"),
        std::string("10000000000000005\r\nhello\r\n0\r\n\r\n"),
        std::string("5\r\nhello\r\n0\r\nContent-Length: 7\r\n\r\n"),
        std::string("5\r\nhello\r\n0\r\nTransfer-Encoding: chunked\r\n\r\n"),
        std::string("5\r\nhello\r\n0\r\nbad trailer\r\n\r\n")}) {
    const std::string answer =
        AnswerTo("POST /x HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n" + body +
                 "GET /inner HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n");
    EXPECT_THAT(answer, StartsWith("HTTP/1.1 400 ")) << body;
    EXPECT_THAT(answer, Not(HasSubstr("inner"))) << body;
  }
}

TEST(HttpServer, TakesChunkExtensionsAndTrailersWithinBounds) {
  const std::string head =
      std::string("POST /x HTTP/1.1\r\n") + kClose + "Transfer-Encoding: chunked\r\n\r\n";
  EXPECT_THAT(AnswerTo(head + "5;name=value;other=\"q\"\r\nhello\r\n0;end\r\nX-After: 1\r\n\r\n"),
              HasSubstr("[hello]"));
  // Neither has an end: what is kept of them does.
  for (const std::string& endless : {std::string("5;a="), std::string("0\r\nX-After: ")}) {
    const std::string answer = AnswerTo(head + endless + std::string(1 << 20, 'x'));
    EXPECT_THAT(answer, StartsWith("HTTP/1.1 400 ")) << endless;
  }
}

TEST(HttpServer, SpeaksHttp10WithoutChunks) {
  const auto server = StartServer([](const ExchangePtr& exchange) {
    exchange->BeginStream({});
    exchange->Write("one ");
    exchange->Write("two");
    exchange->End();
  });
  RawClient client(server->port());
  client.Send("GET / HTTP/1.0\r\nHost: h\r\nConnection: keep-alive\r\n\r\n");
  const std::string answer = client.ReadAll();
  EXPECT_THAT(answer, Not(HasSubstr("chunked")));
  EXPECT_THAT(answer, HasSubstr("Connection: close\r\n"));
  EXPECT_TRUE(answer.ends_with("\r\n\r\none two")) << answer;
  EXPECT_THAT(AnswerTo("POST /x HTTP/1.0\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n"
                       "0\r\n\r\n"),
              StartsWith("HTTP/1.1 400 "));
  EXPECT_THAT(AnswerTo("GET /x HTTP/2.0\r\nHost: h\r\n\r\n"), StartsWith("HTTP/1.1 400 "));
  EXPECT_THAT(AnswerTo("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"), StartsWith("HTTP/1.1 400 "));
}

TEST(HttpServer, TakesNoTargetButAPath) {
  for (const char* target : {"http://evil.example/x", "//evil.example/x y", "*", "evil.example:443",
                             "/a b", "x", "/\x7f", "/%2", "/#x"}) {
    for (const char* method : {"GET", "OPTIONS", "CONNECT"}) {
      const std::string answer =
          AnswerTo(std::string(method) + " " + target + " HTTP/1.1\r\n" + kClose + "\r\n");
      EXPECT_THAT(answer, StartsWith("HTTP/1.1 400 ")) << method << " " << target;
    }
  }
}

TEST(HttpServer, NoAnswerToHeadHasABody) {
  const auto server = StartServer(Echo);
  RawClient client(server->port());
  // A body here would be read as the next answer.
  client.Send("HEAD /%zz HTTP/1.1\r\nHost: h\r\n\r\n");
  client.Send(std::string("GET /next HTTP/1.1\r\n") + kClose + "\r\n");
  const std::string answers = client.ReadAll();
  const std::size_t end = answers.find("\r\n\r\n");
  ASSERT_NE(end, std::string::npos);
  EXPECT_THAT(answers.substr(end + 4), StartsWith("HTTP/1.1 200 OK")) << answers;
}

TEST(HttpServer, AHalfClosedClientLeavesNothingBehind) {
  std::promise<int> ended;
  ExchangePtr held;
  const auto server = StartServer([&](ExchangePtr exchange) {
    held = exchange;
    exchange->OnEnd([&ended](int status) { ended.set_value(status); });
  });
  RawClient client(server->port());
  client.Send("GET / HTTP/1.1\r\nHost: h\r\n\r\n");
  client.CloseSending();
  EXPECT_EQ(client.ReadAll(), "");
  auto end = ended.get_future();
  ASSERT_EQ(end.wait_for(std::chrono::seconds(30)), std::future_status::ready);
  EXPECT_EQ(end.get(), 499);
}

TEST(HttpServer, ManyDribblingConnectionsLeaveRoomForOthers) {
  HttpServerOptions options;
  options.max_connections = 20;
  options.header_timeout = std::chrono::seconds(1);
  options.body_timeout = std::chrono::seconds(1);
  const auto server = StartServer(Echo, options);
  std::vector<std::unique_ptr<RawClient>> slow;
  for (int i = 0; i < 20; ++i) {
    slow.push_back(std::make_unique<RawClient>(server->port()));
    slow.back()->Send(i % 2 == 0 ? "GET / HTTP/1.1\r\nHost: h\r\nX-Slow: "
                                 : "POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 999\r\n\r\n1");
  }
  while (server->connections() < 20) std::this_thread::yield();
  RawClient refused(server->port());
  refused.Send("GET / HTTP/1.1\r\nHost: h\r\n\r\n");
  const std::string answer = refused.ReadAll();
  EXPECT_THAT(answer, StartsWith("HTTP/1.1 503 "));
  EXPECT_THAT(answer, HasSubstr("Retry-After: "));
  // A byte now and then buys no time.
  std::atomic<bool> over{false};
  std::thread dribbling([&] {
    while (!over) {
      for (const auto& client : slow) client->Send("a");
      std::this_thread::sleep_for(std::chrono::milliseconds(100));
    }
  });
  while (server->connections() > 1) std::this_thread::sleep_for(std::chrono::milliseconds(10));
  over = true;
  dribbling.join();
  RawClient next(server->port());
  next.Send(std::string("GET /x HTTP/1.1\r\n") + kClose + "\r\n");
  EXPECT_THAT(next.ReadAll(), HasSubstr("<x>"));
}

TEST(HttpServer, BoundsWhatAllBodiesTogetherHold) {
  HttpServerOptions options;
  options.max_held_body_bytes = 100'000;
  const auto server = StartServer(Echo, options);
  const std::string body(90'000, 'x');
  const auto whole = [&] {
    RawClient client(server->port());
    client.Send(std::string("POST /x HTTP/1.1\r\n") + kClose + "Content-Length: 90000\r\n\r\n" +
                body);
    return client.ReadAll();
  };
  auto first = std::make_unique<RawClient>(server->port());
  first->Send("POST /x HTTP/1.1\r\nHost: h\r\nContent-Length: 90000\r\n\r\n" + body.substr(1));
  std::string answer;
  do {  // until the server has read the first
    answer = whole();
  } while (answer.starts_with("HTTP/1.1 200 "));
  EXPECT_THAT(answer, StartsWith("HTTP/1.1 503 "));
  EXPECT_THAT(answer, HasSubstr("Retry-After: "));
  first.reset();
  do {  // until it has seen that the first went
    answer = whole();
  } while (answer.starts_with("HTTP/1.1 503 "));
  EXPECT_THAT(answer, StartsWith("HTTP/1.1 200 OK"));
}

TEST(HttpServer, AnswersProbesWhileEveryWorkerIsBusy) {
  HttpServerOptions options;
  options.workers = 2;
  std::promise<void> open;
  std::atomic<int> busy{0};
  const std::shared_future<void> gate = open.get_future().share();
  const auto slow_or_not = [&](const ExchangePtr& exchange) {
    if (exchange->request().path.front() == "slow") {
      ++busy;
      gate.wait();
    }
    Echo(exchange);
  };
  const auto server = StartServer(slow_or_not, options);
  RawClient one(server->port()), other(server->port());
  for (RawClient* client : {&one, &other})
    client->Send(std::string("GET /slow HTTP/1.1\r\n") + kClose + "\r\n");
  while (busy < options.workers) std::this_thread::yield();
  RawClient probe(server->port());
  probe.Send(std::string("GET /healthz HTTP/1.1\r\n") + kClose + "\r\n");
  EXPECT_THAT(probe.ReadAll(), HasSubstr("<healthz>"));
  open.set_value();
  EXPECT_THAT(one.ReadAll(), HasSubstr("<slow>"));
  EXPECT_THAT(other.ReadAll(), HasSubstr("<slow>"));
}

TEST(HttpServer, WantsExactlyOneHost) {
  EXPECT_THAT(AnswerTo("GET / HTTP/1.1\r\n\r\n"), StartsWith("HTTP/1.1 400 "));
  EXPECT_THAT(AnswerTo("GET / HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n"),
              StartsWith("HTTP/1.1 400 "));
}

TEST(HttpServer, RefusesWhatIsNoHttp) {
  EXPECT_THAT(AnswerTo("hello\r\n\r\n"), StartsWith("HTTP/1.1 400 "));
  EXPECT_THAT(AnswerTo(std::string("GET /%zz HTTP/1.1\r\n") + kClose + "\r\n"),
              StartsWith("HTTP/1.1 400 "));
  EXPECT_THAT(AnswerTo(std::string("GET /a%00b HTTP/1.1\r\n") + kClose + "\r\n"),
              StartsWith("HTTP/1.1 400 "));
}

TEST(HttpServer, BoundsHeadersAndBodies) {
  HttpServerOptions options;
  options.max_header_bytes = 4096;
  options.max_body_bytes = 100;
  const std::string long_header = "X-Long: " + std::string(8000, 'x') + "\r\n";
  EXPECT_THAT(AnswerTo("GET / HTTP/1.1\r\nHost: h\r\n" + long_header + "\r\n", options),
              StartsWith("HTTP/1.1 431 "));
  EXPECT_THAT(AnswerTo("POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 101\r\n\r\n", options),
              StartsWith("HTTP/1.1 413 "));
  const std::string chunk = "65\r\n" + std::string(0x65, 'x') + "\r\n0\r\n\r\n";
  EXPECT_THAT(
      AnswerTo("POST / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n" + chunk, options),
      StartsWith("HTTP/1.1 413 "));
}

TEST(HttpServer, ClosesWhenHeadersOrBodyDoNotCome) {
  HttpServerOptions options;
  options.body_timeout = std::chrono::seconds(1);
  EXPECT_EQ(AnswerTo("POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 5\r\n\r\nhe", options), "");
  options.header_timeout = std::chrono::seconds(1);
  EXPECT_EQ(AnswerTo("GET / HTT", options), "");
}

TEST(HttpServer, KeepsConnectionsAndAnswersPipelinedRequestsInOrder) {
  const auto server = StartServer(Echo);
  RawClient client(server->port());
  client.Send(
      "GET /one HTTP/1.1\r\nHost: h\r\n\r\nGET /two HTTP/1.1\r\nHost: h\r\n\r\n"
      "GET /three HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n");
  const std::string answers = client.ReadAll();
  const std::size_t one = answers.find("<one>"), two = answers.find("<two>"),
                    three = answers.find("<three>");
  ASSERT_NE(three, std::string::npos) << answers;
  EXPECT_LT(one, two);
  EXPECT_LT(two, three);
}

TEST(HttpServer, HeadIsGetWithoutABody) {
  const std::string answer = AnswerTo(std::string("HEAD /x HTTP/1.1\r\n") + kClose + "\r\n");
  EXPECT_THAT(answer, StartsWith("HTTP/1.1 200 OK\r\n"));
  EXPECT_THAT(answer, HasSubstr("Content-Length: 10\r\n"));  // of "GET <x> []"
  EXPECT_TRUE(answer.ends_with("\r\n\r\n")) << answer;
}

TEST(HttpServer, ContinuesWhenAsked) {
  const auto server = StartServer(Echo);
  RawClient client(server->port());
  client.Send(std::string("POST /x HTTP/1.1\r\n") + kClose +
              "Content-Length: 5\r\nExpect: 100-continue\r\n\r\n");
  EXPECT_EQ(client.ReadUntil("\r\n\r\n"), "HTTP/1.1 100 Continue\r\n\r\n");
  client.Send("hello");
  EXPECT_THAT(client.ReadAll(), HasSubstr("[hello]"));
}

TEST(HttpServer, KeepsAHarmlessRequestIdAndReplacesAnother) {
  EXPECT_THAT(AnswerTo(std::string("GET / HTTP/1.1\r\n") + kClose + "X-Request-ID: abc-1\r\n\r\n"),
              HasSubstr("X-Request-ID: abc-1\r\n"));
  EXPECT_THAT(AnswerTo(std::string("GET / HTTP/1.1\r\n") + kClose + "X-Request-ID: a b\"\r\n\r\n"),
              Not(HasSubstr("a b\"")));
}

TEST(HttpServer, AHandlerThatThrowsOrForgetsAnswers500) {
  for (const bool throws : {true, false}) {
    const auto server = StartServer([throws](const ExchangePtr&) {
      if (throws) throw std::runtime_error("secret detail");
    });
    RawClient client(server->port());
    client.Send(std::string("GET / HTTP/1.1\r\n") + kClose + "\r\n");
    const std::string answer = client.ReadAll();
    EXPECT_THAT(answer, StartsWith("HTTP/1.1 500 "));
    EXPECT_THAT(answer, Not(HasSubstr("secret")));
  }
}

TEST(HttpServer, StreamsPiecesFromAnotherThread) {
  std::promise<std::thread> writing;
  const auto server = StartServer([&writing](ExchangePtr exchange) {
    writing.set_value(std::thread([exchange = std::move(exchange)] {
      HttpResponse head;
      head.content_type = "text/event-stream";
      EXPECT_TRUE(exchange->BeginStream(std::move(head)));
      EXPECT_TRUE(exchange->Write("data: one\n\n"));
      EXPECT_TRUE(exchange->Write("data: two\n\n"));
      exchange->End();
      EXPECT_FALSE(exchange->Write("data: late\n\n"));
    }));
  });
  RawClient client(server->port());
  client.Send(std::string("GET / HTTP/1.1\r\n") + kClose + "\r\n");
  const std::string answer = client.ReadAll();
  writing.get_future().get().join();
  EXPECT_THAT(answer, HasSubstr("Transfer-Encoding: chunked\r\n"));
  EXPECT_THAT(answer, HasSubstr("data: one\n\n"));
  EXPECT_THAT(answer, HasSubstr("data: two\n\n"));
  EXPECT_THAT(answer, Not(HasSubstr("late")));
  EXPECT_TRUE(answer.ends_with("0\r\n\r\n")) << answer;
}

TEST(HttpServer, TellsWhenTheClientGoesInTheMiddleOfAStream) {
  std::promise<void> gone;
  std::promise<int> ended;
  ExchangePtr held;
  const auto server = StartServer([&](ExchangePtr exchange) {
    held = exchange;  // before the callbacks that tell the test
    exchange->OnGone([&gone] { gone.set_value(); });
    exchange->OnEnd([&ended](int status) { ended.set_value(status); });
    EXPECT_TRUE(exchange->BeginStream({}));
    exchange->Write("first");
  });
  RawClient client(server->port());
  client.Send("GET / HTTP/1.1\r\nHost: h\r\n\r\n");
  EXPECT_THAT(client.ReadUntil("first"), HasSubstr("first"));
  client.Close();
  constexpr std::chrono::seconds kPatience(30);
  ASSERT_EQ(gone.get_future().wait_for(kPatience), std::future_status::ready);
  auto end = ended.get_future();
  ASSERT_EQ(end.wait_for(kPatience), std::future_status::ready);
  EXPECT_EQ(end.get(), 499);
  EXPECT_FALSE(held->Write("second"));
  std::atomic<bool> called{false};
  held->OnGone([&called] { called = true; });
  EXPECT_TRUE(called);
}

TEST(HttpServer, AReaderThatNeverReadsIsGivenUp) {
  std::promise<void> full;
  std::promise<std::thread> writing;
  HttpServerOptions options;
  options.write_timeout = std::chrono::seconds(1);
  const auto server = StartServer(
      [&](ExchangePtr exchange) {
        writing.set_value(std::thread([&full, exchange = std::move(exchange)] {
          EXPECT_TRUE(exchange->BeginStream({}));
          while (exchange->Write(std::string(1 << 16, 'x'))) {
          }
          full.set_value();
          exchange->End();
        }));
      },
      options);
  RawClient client(server->port());
  client.Send("GET / HTTP/1.1\r\nHost: h\r\n\r\n");
  EXPECT_EQ(full.get_future().wait_for(std::chrono::seconds(30)), std::future_status::ready);
  writing.get_future().get().join();
}

TEST(HttpServer, StopLetsAnswersEndAndALateOneDoesNoHarm) {
  ExchangePtr late;
  std::promise<void> taken;
  auto server = StartServer([&](ExchangePtr exchange) {
    late = std::move(exchange);
    taken.set_value();
  });
  RawClient client(server->port());
  client.Send("GET / HTTP/1.1\r\nHost: h\r\n\r\n");
  taken.get_future().wait();
  std::thread answering([&late] {
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
    Echo(late);
  });
  server->Stop(std::chrono::seconds(30));
  answering.join();
  EXPECT_THAT(client.ReadAll(), StartsWith("HTTP/1.1 200 OK"));
  late.reset();

  std::promise<void> again;
  server = StartServer([&](ExchangePtr exchange) {
    late = std::move(exchange);
    again.set_value();
  });
  RawClient other(server->port());
  other.Send("GET / HTTP/1.1\r\nHost: h\r\n\r\n");
  again.get_future().wait();
  server->Stop(std::chrono::milliseconds(0));
  server.reset();
  EXPECT_TRUE(late->gone());
  Echo(late);
  late.reset();
  EXPECT_EQ(other.ReadAll(), "");
}

TEST(HttpServer, SaysWhichAddressItCannotHave) {
  const auto first = StartServer(Echo);
  HttpServerOptions options;
  options.port = first->port();
  const auto second = HttpServer::Start(options, Echo);
  ASSERT_FALSE(second.ok());
  EXPECT_EQ(second.status().code(), StatusCode::kFailedPrecondition);
  EXPECT_THAT(second.status().message(), HasSubstr(std::to_string(first->port())));
  options.address = "localhost";
  EXPECT_EQ(HttpServer::Start(options, Echo).status().code(), StatusCode::kInvalidArgument);
}

TEST(Router, PrefersWordsToNamesAndKnowsOtherMethods) {
  Router router;
  std::string called;
  const auto handler = [&called](std::string name) {
    return [&called, name = std::move(name)](ExchangePtr, const PathParameters&) { called = name; };
  };
  router.Add("GET", "/memories/{id}", handler("one"));
  router.Add("GET", "/memories/search", handler("search"));
  router.Add("DELETE", "/memories/{id}", handler("delete"));
  const auto find = [&](const std::string& method, const std::string& target) {
    HttpRequest request;
    request.method = method;
    EXPECT_TRUE(ParseTarget(target, &request).ok());
    RouteMatch match = router.Find(request);
    called.clear();
    if (match.handler != nullptr) (*match.handler)(nullptr, match.parameters);
    return match;
  };
  find("GET", "/memories/search/");
  EXPECT_EQ(called, "search");
  EXPECT_EQ(find("GET", "/memories/a%20b").parameters.at("id"), "a b");
  EXPECT_EQ(called, "one");
  EXPECT_EQ(find("DELETE", "/memories/search").pattern, "/memories/{id}");
  EXPECT_THAT(find("PUT", "/memories/search").allowed, ElementsAre("GET", "DELETE"));
  EXPECT_TRUE(find("GET", "/memories").allowed.empty());
  EXPECT_EQ(find("GET", "/memories//").handler, nullptr);
}

}  // namespace
}  // namespace inferscale
