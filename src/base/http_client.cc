#include "base/http_client.h"

#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/address.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/ssl/context.hpp>
#include <boost/asio/ssl/host_name_verification.hpp>
#include <boost/beast/core/flat_buffer.hpp>
#include <boost/beast/core/tcp_stream.hpp>
#include <boost/beast/http.hpp>
#include <boost/beast/ssl/ssl_stream.hpp>

#include <algorithm>
#include <charconv>
#include <exception>
#include <utility>

namespace inferscale {
namespace {

namespace asio = boost::asio;
namespace beast = boost::beast;
namespace http = boost::beast::http;
using boost::system::error_code;
using tcp = asio::ip::tcp;

bool IsPrintableAscii(std::string_view text) {
  return std::all_of(text.begin(), text.end(), [](char c) { return c > ' ' && c < 0x7f; });
}

bool IsIpAddress(const std::string& host) {
  error_code error;
  asio::ip::make_address(host, error);
  return !error;
}

/// Starts one asynchronous operation and runs it to its end, so that the stream's deadline applies
/// to it (blocking operations have none).
template <typename Start>
error_code Await(asio::io_context& context, Start&& start) {
  error_code outcome = asio::error::operation_aborted;
  start([&outcome](error_code error, auto&&...) { outcome = error; });
  context.restart();
  context.run();
  return outcome;
}

Status Failure(const Url& url, const HttpPost& post, std::string_view step, error_code error) {
  const std::string where = url.ToDisplayString();
  if (error == beast::error::timeout) {
    return Unavailable(where + " did not answer within " + std::to_string(post.timeout.count()) +
                       " ms; check that the server is not overloaded, or raise the timeout");
  }
  if (error == http::error::body_limit) {
    return ResourceExhausted(where + " answered with more than " +
                             std::to_string(post.max_response_bytes) +
                             " bytes; check that the URL names the right service");
  }
  std::string message = std::string(step) + " " + where + " failed: " + error.message();
  if (step == "TLS with") {
    message += "; check the server's certificate (SSL_CERT_FILE names a file of trusted ones)";
  } else {
    message += "; check that the server runs and that the URL is right";
  }
  return Unavailable(std::move(message));
}

template <typename Stream>
Result<HttpPostResult> Exchange(asio::io_context& context, Stream& stream, const HttpPost& post) {
  const Url& url = post.url;
  http::request<http::string_body> request{http::verb::post, url.target, 11};
  const bool default_port = url.port == (url.tls ? "443" : "80");
  const bool ipv6 = url.host.find(':') != std::string::npos;
  const std::string host = ipv6 ? "[" + url.host + "]" : url.host;
  request.set(http::field::host, default_port ? host : host + ":" + url.port);
  request.set(http::field::user_agent, "inferscale/" INFERSCALE_VERSION);
  request.set(http::field::content_type, "application/json");
  request.set(http::field::accept, "application/json");
  request.set(http::field::connection, "close");
  if (!post.bearer_token.empty()) {
    request.set(http::field::authorization, "Bearer " + post.bearer_token);
  }
  request.body() = post.body;
  request.prepare_payload();

  error_code error =
      Await(context, [&](auto handler) { http::async_write(stream, request, std::move(handler)); });
  if (error) return Failure(url, post, "Sending to", error);

  http::response_parser<http::string_body> parser;
  parser.body_limit(post.max_response_bytes);
  beast::flat_buffer buffer;
  error = Await(
      context, [&](auto handler) { http::async_read(stream, buffer, parser, std::move(handler)); });
  if (error) return Failure(url, post, "Reading from", error);

  HttpPostResult response;
  response.status = static_cast<int>(parser.get().result_int());
  response.content_type = std::string(parser.get()[http::field::content_type]);
  response.body = std::move(parser.get().body());
  return response;
}

Result<HttpPostResult> PostOrThrow(const HttpPost& post) {
  const Url& url = post.url;
  const auto deadline = std::chrono::steady_clock::now() + post.timeout;
  asio::io_context context;

  tcp::resolver resolver(context);
  tcp::resolver::results_type addresses;
  error_code error = asio::error::timed_out;
  bool resolved = false;
  resolver.async_resolve(url.host, url.port, [&](error_code outcome, auto results) {
    error = outcome;
    addresses = std::move(results);
    resolved = true;
  });
  context.run_until(deadline);
  if (!resolved) return Failure(url, post, "Resolving", beast::error::timeout);
  if (error) return Failure(url, post, "Resolving", error);

  const auto connect = [&](beast::tcp_stream& stream) {
    stream.expires_at(deadline);
    return Await(context,
                 [&](auto handler) { stream.async_connect(addresses, std::move(handler)); });
  };
  if (!url.tls) {
    beast::tcp_stream stream(context);
    error = connect(stream);
    if (error) return Failure(url, post, "Connecting to", error);
    return Exchange(context, stream, post);
  }

  asio::ssl::context tls(asio::ssl::context::tls_client);
  tls.set_options(asio::ssl::context::no_tlsv1 | asio::ssl::context::no_tlsv1_1);
  tls.set_default_verify_paths();
  tls.set_verify_mode(asio::ssl::verify_peer);
  tls.set_verify_callback(asio::ssl::host_name_verification(url.host));
  beast::ssl_stream<beast::tcp_stream> stream(context, tls);
  // Server name indication is defined for names only (RFC 6066 §3).
  if (!IsIpAddress(url.host) &&
      SSL_set_tlsext_host_name(stream.native_handle(), url.host.c_str()) != 1) {
    return InvalidArgument("the host of " + url.ToDisplayString() +
                           " is no name that TLS can carry");
  }
  error = connect(beast::get_lowest_layer(stream));
  if (error) return Failure(url, post, "Connecting to", error);
  error = Await(context, [&](auto handler) {
    stream.async_handshake(asio::ssl::stream_base::client, std::move(handler));
  });
  if (error) return Failure(url, post, "TLS with", error);
  return Exchange(context, stream, post);
}

}  // namespace

std::string Url::ToDisplayString() const {
  const bool ipv6 = host.find(':') != std::string::npos;
  return (tls ? "https://" : "http://") + (ipv6 ? "[" + host + "]" : host) + ":" + port +
         target.substr(0, target.find('?'));
}

Result<Url> ParseUrl(std::string_view text) {
  Url url;
  if (text.starts_with("https://")) {
    url.tls = true;
    text.remove_prefix(8);
  } else if (text.starts_with("http://")) {
    text.remove_prefix(7);
  } else {
    return InvalidArgument("a URL has to start with http:// or https://");
  }
  if (!IsPrintableAscii(text)) {
    return InvalidArgument(
        "a URL must not contain blanks, control or non-ASCII characters; "
        "percent-encode them");
  }
  text = text.substr(0, text.find('#'));
  const std::size_t path = text.find_first_of("/?");
  std::string_view authority = text.substr(0, path);
  url.target = path == std::string_view::npos ? "/" : std::string(text.substr(path));
  if (url.target.front() == '?') url.target.insert(0, "/");
  if (authority.find('@') != std::string_view::npos) {
    return InvalidArgument("a URL must not contain a user or password; give the API key instead");
  }

  std::string_view port;
  if (authority.starts_with('[')) {
    const std::size_t close = authority.find(']');
    if (close == std::string_view::npos) {
      return InvalidArgument("the IPv6 address in the URL lacks its closing bracket");
    }
    url.host = std::string(authority.substr(1, close - 1));
    authority.remove_prefix(close + 1);
    if (!authority.empty() && !authority.starts_with(':')) {
      return InvalidArgument("only :port may follow the IPv6 address in the URL");
    }
    if (!authority.empty()) port = authority.substr(1);
    if (!IsIpAddress(url.host)) return InvalidArgument("the URL's brackets hold no IPv6 address");
  } else {
    const std::size_t colon = authority.find(':');
    url.host = std::string(authority.substr(0, colon));
    if (colon != std::string_view::npos) port = authority.substr(colon + 1);
  }
  if (url.host.empty()) return InvalidArgument("the URL has no host");
  if (port.empty()) {
    url.port = url.tls ? "443" : "80";
  } else {
    std::uint32_t number = 0;
    const auto parsed = std::from_chars(port.data(), port.data() + port.size(), number);
    if (parsed.ec != std::errc() || parsed.ptr != port.data() + port.size() || number == 0 ||
        number > 65535) {
      return InvalidArgument("the URL's port is not a number from 1 to 65535");
    }
    url.port = std::to_string(number);
  }
  return url;
}

Result<HttpPostResult> PostJson(const HttpPost& post) {
  if (!IsPrintableAscii(post.bearer_token)) {
    return InvalidArgument(
        "the API key for " + post.url.ToDisplayString() +
        " contains a blank, control or non-ASCII character; check how it was set");
  }
  try {
    return PostOrThrow(post);
  } catch (const std::exception& error) {
    return Unavailable("request to " + post.url.ToDisplayString() + " failed: " + error.what());
  }
}

Status RefusalStatus(const Url& url, const HttpPostResult& response) {
  const std::string where = url.ToDisplayString();
  const std::string status = "HTTP " + std::to_string(response.status);
  const std::string answer = status + ": " + ExcerptForMessage(response.body);
  if (response.status >= 500 || response.status == 429 || response.status == 408) {
    return Unavailable(where + " cannot serve this now (" + answer + "); try again later");
  }
  if (response.status == 401 || response.status == 403) {
    // The body is left out: servers repeat the key in it.
    return InvalidArgument(where + " refused the API key (" + status + "); set the right one");
  }
  if (response.status == 404) {
    return InvalidArgument(where + " does not know this path or model (" + answer +
                           "); check the URL and the model's name");
  }
  if (response.status >= 300 && response.status < 400) {
    return InvalidArgument(where + " redirects elsewhere (" + status + "); give the final URL");
  }
  return InvalidArgument(where + " refused the request (" + answer +
                         "); check the URL and the model's name");
}

std::string ExcerptForMessage(std::string_view text, std::size_t bytes) {
  std::string excerpt(text.substr(0, bytes));
  for (char& c : excerpt) {
    if (static_cast<unsigned char>(c) < 0x20 || c == 0x7f) c = ' ';
  }
  if (text.size() > bytes) {
    // Leave no half of a UTF-8 character behind.
    while (!excerpt.empty() && (static_cast<unsigned char>(excerpt.back()) & 0xc0) == 0x80) {
      excerpt.pop_back();
    }
    if (!excerpt.empty() && static_cast<unsigned char>(excerpt.back()) >= 0xc0) excerpt.pop_back();
    excerpt += "…";
  }
  return excerpt;
}

}  // namespace inferscale
