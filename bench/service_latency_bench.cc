// Claim: a chat by HTTP takes at most 1 ms more at the median than the same chat asked of the
// engine's MemoryService in the same process. Direct and HTTP in turn, one connection kept open,
// one token an answer. Prints one table and writes service_latency_bench.json.
//
//   service_latency_bench MODEL.gguf EMBEDDER.gguf [PAIRS]

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <future>
#include <iterator>
#include <string>
#include <vector>

#include <spdlog/spdlog.h>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/beast/core/flat_buffer.hpp>
#include <boost/beast/http.hpp>
#include <nlohmann/json.hpp>

#include "base/random.h"
#include "cli/config.h"
#include "cli/service_factory.h"
#include "server/serve.h"

namespace inferscale {
namespace {

namespace asio = boost::asio;
namespace http = boost::beast::http;
using nlohmann::json;
using SteadyClock = std::chrono::steady_clock;

constexpr int kFacts = 20;
constexpr int kWarmUp = 10;
constexpr double kBoundMs = 1.0;
constexpr const char* kUser = "anna";
constexpr const char* kQuestion = "Which town is on trip number 7?";

double MillisecondsSince(SteadyClock::time_point start) {
  return std::chrono::duration<double, std::milli>(SteadyClock::now() - start).count();
}

double Median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

[[noreturn]] void Fail(const std::string& what) {
  std::fprintf(stderr, "service_latency_bench: %s\n", what.c_str());
  std::exit(1);
}

template <typename T>
T OrFail(Result<T> result) {
  if (!result.ok()) Fail(result.status().ToString());
  return *std::move(result);
}

/// One connection that stays open.
class Client {
 public:
  explicit Client(std::uint16_t port) : socket_(io_) {
    socket_.connect({asio::ip::make_address("127.0.0.1"), port});
    socket_.set_option(asio::ip::tcp::no_delay(true));
  }
  json Post(const char* target, const json& body) {
    http::request<http::string_body> request(http::verb::post, target, 11);
    request.set(http::field::host, "127.0.0.1");
    request.set(http::field::content_type, "application/json");
    request.body() = body.dump();
    request.prepare_payload();
    http::write(socket_, request);
    http::response<http::string_body> response;
    http::read(socket_, buffer_, response);
    if (response.result() != http::status::ok) Fail(response.body());
    return json::parse(response.body());
  }

 private:
  asio::io_context io_;
  asio::ip::tcp::socket socket_;
  boost::beast::flat_buffer buffer_;
};

double DirectMs(MemoryService& memory) {
  ChatRequest request;
  request.scope.tenant = "default";
  request.scope.user = kUser;
  request.messages = {{"user", kQuestion}};
  request.sampling.max_tokens = 1;
  request.sampling.temperature = 0;
  std::promise<ChatReport> done;
  const auto start = SteadyClock::now();
  const auto generation = memory.Chat(
      std::move(request), [](const TokenEvent&) {},
      [&done](ChatReport report) { done.set_value(std::move(report)); });
  if (!generation.ok()) Fail(generation.status().ToString());
  const ChatReport report = done.get_future().get();
  const double took = MillisecondsSince(start);
  if (!report.generation.status.ok()) Fail(report.generation.status.ToString());
  return took;
}

double HttpMs(Client& client) {
  const json body = {{"user", kUser},
                     {"max_tokens", 1},
                     {"temperature", 0},
                     {"memory", {{"remember", false}}},
                     {"messages", json::array({{{"role", "user"}, {"content", kQuestion}}})}};
  const auto start = SteadyClock::now();
  const json answer = client.Post("/v1/chat/completions", body);
  const double took = MillisecondsSince(start);
  if (answer["memory"]["facts"].size() != kFacts) Fail("the chat was served other facts");
  return took;
}

int Run(const std::string& model, const std::string& embedder, int pairs) {
  spdlog::set_level(spdlog::level::warn);
  const std::filesystem::path folder =
      std::filesystem::temp_directory_path() / ("inferscale-bench-" + NewUuid());
  ConfigInputs inputs;
  inputs.flags = {
      {"data-dir", folder.string()}, {"model", model},           {"embedder", embedder},
      {"context-tokens", "2048"},    {"threads", "1"},           {"extraction", "verbatim"},
      {"kv-host-bytes", "256M"},     {"accuracy-gate", "ignore"}};
  inputs.environment = [](const std::string&) { return std::optional<std::string>(); };
  const Config config = OrFail(LoadConfig(inputs)).config;
  OpenedService opened = OrFail(OpenService(config, /*with_engine=*/true));
  MemoryService& memory = *opened.service;
  ServerOptions options;
  options.http.port = 0;
  const std::unique_ptr<Service> service =
      OrFail(Service::Start(std::move(opened.service), options));
  Client client(service->port());
  json messages = json::array();
  for (int i = 0; i < kFacts; ++i) {
    messages.push_back({{"role", "user"},
                        {"content", "On trip number " + std::to_string(i) + " Anna saw town " +
                                        std::to_string(i * 7)}});
  }
  client.Post("/memories", {{"user_id", kUser}, {"infer", false}, {"messages", messages}});
  if (const Status ready = memory.WaitIdle(); !ready.ok()) Fail(ready.ToString());
  for (int i = 0; i < kWarmUp; ++i) {
    DirectMs(memory);
    HttpMs(client);
  }
  std::vector<double> direct, by_http, added;
  for (int i = 0; i < pairs; ++i) {
    // In turn, and which is first in turn too.
    double one = 0, other = 0;
    if (i % 2 == 0) one = DirectMs(memory);
    other = HttpMs(client);
    if (i % 2 == 1) one = DirectMs(memory);
    direct.push_back(one);
    by_http.push_back(other);
    added.push_back(other - one);
  }
  const double overhead = Median(added);
  std::printf("%-40s %10s\n", "one chat, 20 facts, 1 token", "median ms");
  std::printf("%-40s %10.3f\n", "MemoryService::Chat", Median(direct));
  std::printf("%-40s %10.3f\n", "by HTTP, connection kept open", Median(by_http));
  std::printf("%-40s %10.3f  (at most %.0f: %s)\n", "added, median of pairs", overhead, kBoundMs,
              overhead <= kBoundMs ? "holds" : "missed");
  std::ofstream("service_latency_bench.json") << json{{"pairs", pairs},
                                                      {"direct_median_ms", Median(direct)},
                                                      {"http_median_ms", Median(by_http)},
                                                      {"added_median_ms", overhead},
                                                      {"bound_ms", kBoundMs}}
                                              << '\n';
  service->Stop(std::chrono::seconds(1));
  std::filesystem::remove_all(folder);
  return 0;
}

}  // namespace
}  // namespace inferscale

int main(int argc, char** argv) {
  if (argc < 3) {
    std::fprintf(stderr, "usage: service_latency_bench MODEL.gguf EMBEDDER.gguf [PAIRS]\n");
    return 2;
  }
  return inferscale::Run(argv[1], argv[2], argc > 3 ? std::atoi(argv[3]) : 400);
}
