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

constexpr std::size_t kMostUnparsedBytes = std::size_t{1} << 20;

bool IsPrintableAscii(std::string_view text) {
  return std::all_of(text.begin(), text.end(), [](char c) { return c > ' ' && c < 0x7f; });
}

bool IsIpAddress(const std::string& host) {
  error_code error;
  asio::ip::make_address(host, error);
  return !error;
}

/// What one exchange is done with.
struct Call {
  const HttpPost& post;
  http::verb method = http::verb::post;
  const HttpStream* streaming = nullptr;
  HttpCancellation* cancellation = nullptr;
};

/// Starts one asynchronous operation and runs it to its end, so that the stream's deadline applies
/// to it (blocking operations have none).
template <typename Start>
error_code Await(asio::io_context& context, const Call& call, Start&& start) {
  error_code outcome = asio::error::operation_aborted;
  start([&outcome](error_code error, auto&&...) { outcome = error; });
  context.restart();
  // A cancellation that comes after this look stops the run.
  if (call.cancellation != nullptr && call.cancellation->cancelled()) return outcome;
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
    message +=
        "; check the server's certificate, and that whoever signed it is trusted (see "
        "SSL_CERT_FILE; of a vLLM server --vllm-ca-file)";
  } else {
    message += "; check that the server runs and that the URL is right";
  }
  return Unavailable(std::move(message));
}

/// Failure(), but for an end that was asked for.
Status Ended(const Call& call, std::string_view step, error_code error) {
  if (call.cancellation != nullptr && call.cancellation->cancelled()) {
    return Cancelled("the request to " + call.post.url.ToDisplayString() + " was cancelled");
  }
  const auto deadline = call.streaming != nullptr ? call.streaming->deadline : std::nullopt;
  if (error == beast::error::timeout && deadline && std::chrono::steady_clock::now() >= *deadline) {
    return DeadlineExceeded(call.post.url.ToDisplayString() + " had no time left to answer");
  }
  return Failure(call.post.url, call.post, step, error);
}

/// The time that a stream's next operation may take until.
std::chrono::steady_clock::time_point NextDeadline(const Call& call) {
  const auto silence = std::chrono::steady_clock::now() + call.post.timeout;
  return call.streaming->deadline ? std::min(silence, *call.streaming->deadline) : silence;
}

/// Reads the body of a status 200 piece by piece.
template <typename Stream>
Status ReadPieces(asio::io_context& context, Stream& stream, const Call& call,
                  beast::flat_buffer& buffer, http::response_parser<http::buffer_body>& parser) {
  std::vector<char> piece(std::size_t{64} << 10);
  while (!parser.is_done()) {
    parser.get().body().data = piece.data();
    parser.get().body().size = piece.size();
    parser.get().body().more = true;
    beast::get_lowest_layer(stream).expires_at(NextDeadline(call));
    error_code error = Await(context, call, [&](auto handler) {
      http::async_read_some(stream, buffer, parser, std::move(handler));
    });
    if (error == http::error::need_buffer) error = {};
    const std::size_t size = piece.size() - parser.get().body().size;
    if (size > 0 && !call.streaming->on_data(std::string_view(piece.data(), size))) break;
    if (error) return Ended(call, "Reading from", error);
  }
  return OkStatus();
}

template <typename Stream>
Result<HttpPostResult> Exchange(asio::io_context& context, Stream& stream, const Call& call) {
  const HttpPost& post = call.post;
  const Url& url = post.url;
  http::request<http::string_body> request{call.method, url.target, 11};
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
  for (const auto& [name, value] : post.headers) request.set(name, value);
  if (call.method == http::verb::post) request.body() = post.body;
  request.prepare_payload();

  error_code error = Await(
      context, call, [&](auto handler) { http::async_write(stream, request, std::move(handler)); });
  if (error) return Ended(call, "Sending to", error);

  // What is not parsed yet: without a limit a chunk's header without an end would fill the memory.
  beast::flat_buffer buffer(kMostUnparsedBytes);
  http::response_parser<http::string_body> parser;
  if (call.streaming != nullptr) {
    http::response_parser<http::buffer_body> pieces;
    pieces.body_limit(boost::none);
    beast::get_lowest_layer(stream).expires_at(NextDeadline(call));
    error = Await(context, call, [&](auto handler) {
      http::async_read_header(stream, buffer, pieces, std::move(handler));
    });
    if (error) return Ended(call, "Reading from", error);
    if (pieces.get().result() == http::status::ok) {
      HttpPostResult response;
      response.status = 200;
      response.content_type = std::string(pieces.get()[http::field::content_type]);
      INFERSCALE_RETURN_IF_ERROR(ReadPieces(context, stream, call, buffer, pieces));
      return response;
    }
    HttpPostResult response;
    response.status = static_cast<int>(pieces.get().result_int());
    std::string body;
    HttpStream whole = *call.streaming;
    whole.on_data = [&](std::string_view piece) {
      body.append(piece.substr(0, post.max_response_bytes - body.size()));
      return body.size() < post.max_response_bytes;
    };
    const Call refused{post, call.method, &whole, call.cancellation};
    INFERSCALE_RETURN_IF_ERROR(ReadPieces(context, stream, refused, buffer, pieces));
    response.body = std::move(body);
    return response;
  }
  parser.body_limit(post.max_response_bytes);
  error = Await(context, call, [&](auto handler) {
    http::async_read(stream, buffer, parser, std::move(handler));
  });
  if (error) return Ended(call, "Reading from", error);

  HttpPostResult response;
  response.status = static_cast<int>(parser.get().result_int());
  response.content_type = std::string(parser.get()[http::field::content_type]);
  response.body = std::move(parser.get().body());
  return response;
}

Result<HttpPostResult> CallOrThrow(const Call& call) {
  const HttpPost& post = call.post;
  const Url& url = post.url;
  const auto deadline = call.streaming != nullptr ? NextDeadline(call)
                                                  : std::chrono::steady_clock::now() + post.timeout;
  asio::io_context context;
  struct StopScope {
    HttpCancellation* cancellation;
    ~StopScope() {
      if (cancellation != nullptr) cancellation->OnCancel({});
    }
  } const scope{call.cancellation};
  if (call.cancellation != nullptr) call.cancellation->OnCancel([&context] { context.stop(); });

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
  if (!resolved) return Ended(call, "Resolving", beast::error::timeout);
  if (error) return Ended(call, "Resolving", error);

  const auto connect = [&](beast::tcp_stream& stream) {
    stream.expires_at(deadline);
    return Await(context, call,
                 [&](auto handler) { stream.async_connect(addresses, std::move(handler)); });
  };
  if (!url.tls) {
    beast::tcp_stream stream(context);
    error = connect(stream);
    if (error) return Ended(call, "Connecting to", error);
    return Exchange(context, stream, call);
  }

  asio::ssl::context tls(asio::ssl::context::tls_client);
  tls.set_options(asio::ssl::context::no_tlsv1 | asio::ssl::context::no_tlsv1_1);
  tls.set_default_verify_paths();
  if (!post.ca_file.empty()) {
    tls.load_verify_file(post.ca_file, error);
    if (error) {
      // Not the caller's fault: somebody may be writing the file.
      return Unavailable("the certificates in " + post.ca_file + " cannot be read: " +
                         error.message() + "; name a PEM file of those that sign the server's");
    }
  }
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
  if (error) return Ended(call, "Connecting to", error);
  error = Await(context, call, [&](auto handler) {
    stream.async_handshake(asio::ssl::stream_base::client, std::move(handler));
  });
  if (error) return Ended(call, "TLS with", error);
  return Exchange(context, stream, call);
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

namespace {

Result<HttpPostResult> Carry(const Call& call) {
  const HttpPost& post = call.post;
  if (!IsPrintableAscii(post.bearer_token)) {
    return InvalidArgument(
        "the API key for " + post.url.ToDisplayString() +
        " contains a blank, control or non-ASCII character; check how it was set");
  }
  try {
    return CallOrThrow(call);
  } catch (const std::exception& error) {
    return Unavailable("request to " + post.url.ToDisplayString() + " failed: " + error.what());
  }
}

}  // namespace

void HttpCancellation::Cancel() {
  const std::scoped_lock lock(mutex_);
  cancelled_ = true;
  if (stop_) stop_();
}

void HttpCancellation::OnCancel(std::function<void()> stop) {
  const std::scoped_lock lock(mutex_);
  stop_ = std::move(stop);
  if (cancelled_ && stop_) stop_();
}

Result<HttpPostResult> PostJson(const HttpPost& post) { return Carry({post}); }
Result<HttpPostResult> GetJson(const HttpPost& get) { return Carry({get, http::verb::get}); }
Result<HttpPostResult> PostStreaming(const HttpStream& stream, HttpCancellation& cancellation) {
  return Carry({stream.post, http::verb::post, &stream, &cancellation});
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
