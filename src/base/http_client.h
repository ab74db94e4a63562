#ifndef INFERSCALE_BASE_HTTP_CLIENT_H_
#define INFERSCALE_BASE_HTTP_CLIENT_H_

#include <chrono>
#include <cstddef>
#include <string>
#include <string_view>

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
};

struct HttpPostResult {
  int status = 0;
  std::string content_type;
  std::string body;
};

/// Posts JSON and waits for the answer, whatever its HTTP status; redirects are not followed. Opens
/// a connection of its own: thread-safe. kUnavailable: no connection, certificate refused, timeout,
/// cut short. kResourceExhausted: a longer body than allowed. kInvalidArgument: a token that no
/// header can carry. Resolving a name may outlast the timeout by what the system's resolver takes.
Result<HttpPostResult> PostJson(const HttpPost& post);

/// What another status than 200 means to the caller: kUnavailable for 408, 429 and 5xx, where
/// trying again may help, else kInvalidArgument.
Status RefusalStatus(const Url& url, const HttpPostResult& response);

/// The first `bytes` of a body from outside, on one line and without control characters, for
/// messages.
std::string ExcerptForMessage(std::string_view text, std::size_t bytes = 200);

}  // namespace inferscale

#endif  // INFERSCALE_BASE_HTTP_CLIENT_H_
