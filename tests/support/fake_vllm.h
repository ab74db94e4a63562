#ifndef INFERSCALE_TESTS_SUPPORT_FAKE_VLLM_H_
#define INFERSCALE_TESTS_SUPPORT_FAKE_VLLM_H_

#include <atomic>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include <nlohmann/json.hpp>

#include "inferscale/types.h"
#include "support/http_server.h"

namespace inferscale::testing {

/// The control socket's side of a connector, and what it has stored.
class FakeConnector {
 public:
  FakeConnector(std::filesystem::path path, std::string secret);
  ~FakeConnector();

  /// Takes a completion request as the connector does. \return its outcome.
  nlohmann::json Take(const nlohmann::json& body);
  /// A step of the engine: erasures reach the ranks.
  void Step();
  bool Holds(const KvKey& key);
  /// Reads or changes what follows while no request does.
  template <typename Function>
  auto With(Function&& function) {
    const std::scoped_lock lock(mutex);
    return function(*this);
  }

  const std::filesystem::path path;
  const std::string secret;
  std::mutex mutex;
  std::set<std::string> ready;  ///< keys in hexadecimal
  bool rotation_known = false;
  std::string refusal, fingerprint = std::string(64, 'a'), codec = "f16";
  std::int64_t plan = 0, acknowledged = 0;
  std::map<std::string, std::int64_t> fences;  ///< scope -> epoch of the last erasure
  std::map<std::string, nlohmann::json> reports;
  std::string broken;  ///< an answer given as it is to every request
  std::string capture_fallback;

 private:
  void Listen();
  void Serve(int socket);
  nlohmann::json Answer(const nlohmann::json& request);
  int listener_ = -1;
  std::atomic<bool> stopping_{false};
  std::vector<std::thread> threads_;
  std::vector<int> sockets_;
  std::thread accepting_;
};

/// A vLLM server whose tokens are bytes; <|im_start|> and <|im_end|> are 256 and 257. It answers
/// "fine" letter by letter.
class FakeVllm {
 public:
  explicit FakeVllm(FakeConnector* connector = nullptr);
  std::string Url() const { return server_->Url(""); }
  void Stop() { server_.reset(); }
  template <typename Function>
  auto With(Function&& function) {
    const std::scoped_lock lock(mutex);
    return function(*this);
  }

  std::mutex mutex;
  std::vector<nlohmann::json> completions;  ///< bodies, oldest first
  std::vector<std::string> authorizations;
  int tokenized = 0;
  std::string model = "tiny";
  bool has_template = true;
  int max_logprobs = 20;
  std::atomic<int> delay_ms{0};  ///< of every completion
  /// Answers a request in another way.
  std::function<std::optional<HttpReply>(const HttpExchange&)> instead;

 private:
  HttpReply Answer(const HttpExchange& exchange);
  HttpReply Complete(const nlohmann::json& body);
  FakeConnector* const connector_;
  std::unique_ptr<HttpServer> server_;
};

}  // namespace inferscale::testing

#endif  // INFERSCALE_TESTS_SUPPORT_FAKE_VLLM_H_
