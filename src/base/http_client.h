#ifndef INFERSCALE_BASE_HTTP_CLIENT_H_
#define INFERSCALE_BASE_HTTP_CLIENT_H_

#include <atomic>
#include <chrono>
#include <cstddef>
#include <functional>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "inferscale/result.h"

namespace inferscale {

/// The parts of an http:// or https:// URL.
struct Url {
  bool tls = false;
  std::string host;    ///< without the brackets of an IPv6 address
  std::string port;    ///< decimal, 80 or 443 unless given
  std::string target;  ///< path and query, at least "/"

  /// scheme://host:port/path without the query, which may hold secrets: for messages.
  std::string ToDisplayString() const;
};

/// kInvalidArgument for another scheme, no host, user:password@, a port out of range, blanks or
/// control characters. The message never repeats the text: it may hold a password.
Result<Url> ParseUrl(std::string_view text);

struct HttpPost {
  Url url;
  std::string body;          ///< JSON
  std::string bearer_token;  ///< sent as "Authorization: Bearer …"; empty: none. Never in a message
  std::chrono::milliseconds timeout{30'000};  ///< for the whole exchange
  std::size_t max_response_bytes = std::size_t{64} << 20;
  std::vector<std::pair<std::string, std::string>> headers = {};  ///< further ones
  std::string ca_file = {};  ///< PEM, of certificates trusted beside the system's; empty: none
};

struct HttpPostResult {
  int status = 0;
  std::string content_type;
  std::string body;
};

/// Posts JSON and waits for the answer, whatever its HTTP status; redirects are not followed. Opens
/// a connection of its own: thread-safe. kUnavailable: no connection, certificate refused or
/// `ca_file` not readable, timeout, cut short. kResourceExhausted: a longer body than allowed.
/// kInvalidArgument: a token that no header can carry. Resolving a name may outlast the timeout by
/// what the system's resolver takes.
Result<HttpPostResult> PostJson(const HttpPost& post);

/// The same by GET, without a body.
Result<HttpPostResult> GetJson(const HttpPost& get);

/// Ends an exchange from another thread: its connection is closed at once. Thread-safe.
class HttpCancellation {
 public:
  void Cancel();
  bool cancelled() const { return cancelled_; }
  /// Of the exchange itself. \param stop is called by Cancel(), or at once after it; empty: none.
  void OnCancel(std::function<void()> stop);

 private:
  std::atomic<bool> cancelled_{false};
  std::mutex mutex_;
  std::function<void()> stop_;
};

struct HttpStream {
  HttpPost
      post;  ///< its timeout is the longest silence; its limit holds for other answers than 200
  std::optional<std::chrono::steady_clock::time_point> deadline;  ///< of the whole exchange
  /// Pieces of the body of an answer with status 200, as they come. false: enough, hang up.
  std::function<bool(std::string_view)> on_data;
};

/// Posts JSON and hands on the answer's body piece by piece. \return an empty body after status
/// 200, else the body. kCancelled: `cancellation` came; kDeadlineExceeded: `deadline` passed; else
/// as PostJson().
Result<HttpPostResult> PostStreaming(const HttpStream& stream, HttpCancellation& cancellation);

/// What another status than 200 means to the caller: kUnavailable for 408, 429 and 5xx, where
/// trying again may help, else kInvalidArgument.
Status RefusalStatus(const Url& url, const HttpPostResult& response);

/// The first `bytes` of a body from outside, on one line and without control characters, for
/// messages.
std::string ExcerptForMessage(std::string_view text, std::size_t bytes = 200);

}  // namespace inferscale

#endif  // INFERSCALE_BASE_HTTP_CLIENT_H_
