#ifndef INFERSCALE_TESTS_SUPPORT_HTTP_SERVER_H_
#define INFERSCALE_TESTS_SUPPORT_HTTP_SERVER_H_

#include <atomic>
#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <vector>

namespace inferscale::testing {

struct HttpExchange {
  std::string target;
  std::string authorization;
  std::string body;
  std::string rank = "";  ///< of X-data-parallel-rank
};

struct HttpReply {
  int status = 200;
  std::string body = "";
  std::string content_type = "application/json";
  std::chrono::milliseconds delay{0};  ///< before the answer; ends early when the server stops
  bool hang_up = false;                ///< close without an answer
};

/// An HTTP server on a free port of 127.0.0.1 that answers with a function, one thread a
/// connection.
class HttpServer {
 public:
  using Handler = std::function<HttpReply(const HttpExchange&)>;

  /// \param certificate_pem, key_pem serve TLS when given.
  explicit HttpServer(Handler handler, const std::string& certificate_pem = "",
                      const std::string& key_pem = "");
  ~HttpServer();

  std::string Url(const std::string& path) const;
  int requests() const { return requests_; }

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
  std::atomic<int> requests_{0};
};

/// A self-signed certificate for 127.0.0.1 and its key.
struct TestCertificate {
  std::string certificate_pem;
  std::string key_pem;
};
TestCertificate MakeTestCertificate();

}  // namespace inferscale::testing

#endif  // INFERSCALE_TESTS_SUPPORT_HTTP_SERVER_H_
