#include "server/http_server.h"

#include <algorithm>
#include <atomic>
#include <cctype>
#include <cstdio>
#include <exception>
#include <list>
#include <mutex>
#include <thread>
#include <utility>

#include <boost/asio/awaitable.hpp>
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/detached.hpp>
#include <boost/asio/experimental/awaitable_operators.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/redirect_error.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/thread_pool.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <boost/beast/core/flat_buffer.hpp>
#include <boost/beast/core/tcp_stream.hpp>
#include <boost/beast/http.hpp>

#include <spdlog/spdlog.h>

#include "base/random.h"

namespace inferscale {
namespace {

namespace asio = boost::asio;
namespace beast = boost::beast;
namespace http = boost::beast::http;
using boost::system::error_code;
using tcp = asio::ip::tcp;
using Parser = http::request_parser<http::string_body>;

constexpr std::size_t kRequestIdCharacters = 16;
constexpr std::size_t kMaxGivenRequestId = 64;
constexpr std::size_t kReadAheadBytes = 64 << 10;

HttpResponse Failure(int status, const std::string& message, const std::string& code) {
  HttpResponse response;
  response.status = status;
  response.body = R"({"error":{"message":")" + message + R"(","type":")" +
                  (status >= 500 ? "server_error" : "invalid_request_error") + R"(","code":")" +
                  code + "\"}}";
  return response;
}

/// A request id of the client's own is kept if it can do no harm in logs and headers.
std::string RequestId(const std::string* given) {
  const auto plain = [](unsigned char c) { return std::isalnum(c) || c == '-' || c == '_'; };
  if (given != nullptr && !given->empty() && given->size() <= kMaxGivenRequestId &&
      std::all_of(given->begin(), given->end(), plain)) {
    return *given;
  }
  return NewUuid().substr(0, kRequestIdCharacters + 2);
}

/// Two ways of telling where a body ends are what smuggled requests are made of.
bool AmbiguousFraming(const Parser& parser) {
  const auto& fields = parser.get();
  const auto lengths = fields.equal_range(http::field::content_length);
  const auto encodings = fields.equal_range(http::field::transfer_encoding);
  const auto hosts = fields.equal_range(http::field::host);
  const bool has_length = lengths.first != lengths.second;
  const bool has_encoding = encodings.first != encodings.second;
  const auto digits = [](beast::string_view text) {
    return std::all_of(text.begin(), text.end(), [](char c) { return c >= '0' && c <= '9'; });
  };
  constexpr unsigned kHttp11 = 11;
  return (has_length && has_encoding) ||
         (has_length &&
          (std::next(lengths.first) != lengths.second || !digits(lengths.first->value()))) ||
         (has_encoding &&
          (std::next(encodings.first) != encodings.second ||
           !beast::iequals(encodings.first->value(), "chunked") || fields.version() < kHttp11)) ||
         hosts.first == hosts.second || std::next(hosts.first) != hosts.second;
}

/// What the client sent is wrong, not how it went away.
bool IsBadHttp(const error_code& error) {
  return error.category() == make_error_code(http::error::bad_method).category() &&
         error != http::error::end_of_stream && error != http::error::partial_message;
}

HttpResponse Overloaded(const std::string& message) {
  HttpResponse response = Failure(503, message, "overloaded");
  response.headers.emplace_back("Retry-After", "1");
  return response;
}

/// What the answer's form depends on.
struct AnswerForm {
  std::string id;
  bool keep_alive = false;
  bool head_only = false;
  bool may_chunk = true;  ///< HTTP/1.0 knows no chunks: the body ends with the connection
};

AnswerForm ClosingForm(std::string id) {
  AnswerForm form;
  form.id = std::move(id);
  return form;
}

/// "HTTP/1.1 200 OK\r\n…\r\n\r\n"
std::string HeadText(const HttpResponse& head, const std::string& id, bool keep_alive,
                     const std::string& framing) {
  std::string text = "HTTP/1.1 " + std::to_string(head.status) + " " +
                     std::string(http::obsolete_reason(static_cast<http::status>(head.status))) +
                     "\r\n";
  const auto add = [&](std::string_view name, std::string_view value) {
    // A line break in a value would let it write headers of its own.
    if (value.find_first_of(std::string_view("\r\n\0", 3)) != std::string_view::npos) return;
    text.append(name).append(": ").append(value).append("\r\n");
  };
  if (!head.content_type.empty()) add("Content-Type", head.content_type);
  for (const auto& [name, value] : head.headers) add(name, value);
  add("X-Request-ID", id);
  add("X-Content-Type-Options", "nosniff");
  add("Connection", keep_alive ? "keep-alive" : "close");
  return text + framing + "\r\n";
}

std::string ContentLength(const HttpResponse& response) {
  return "Content-Length: " + std::to_string(response.body.size()) + "\r\n";
}

asio::steady_timer::time_point Past() { return asio::steady_timer::time_point::min(); }

std::string Chunk(const std::string& piece) {
  char size[20];
  std::snprintf(size, sizeof(size), "%zx\r\n", piece.size());
  return size + piece + "\r\n";
}

/// A part of a sum, until it goes.
class HeldBytes {
 public:
  explicit HeldBytes(std::uint64_t* sum) : sum_(sum) {}
  ~HeldBytes() { Set(0); }
  HeldBytes(const HeldBytes&) = delete;
  HeldBytes& operator=(const HeldBytes&) = delete;
  void Set(std::uint64_t bytes) {
    *sum_ += bytes - bytes_;
    bytes_ = bytes;
  }

 private:
  std::uint64_t* sum_;
  std::uint64_t bytes_ = 0;
};

}  // namespace

struct HttpServer::Impl : std::enable_shared_from_this<HttpServer::Impl> {
  Impl(HttpServerOptions given, Handler handler)
      : options(std::move(given)),
        handle(std::move(handler)),
        acceptor(io),
        pool(static_cast<std::size_t>(std::max(options.workers, 1))) {}

  /// What the connection's coroutine waits on; touched on the io thread only.
  struct Connection {
    explicit Connection(tcp::socket socket)
        : stream(std::move(socket)), news(stream.get_executor()) {
      news.expires_at(asio::steady_timer::time_point::max());
    }
    beast::tcp_stream stream;
    asio::steady_timer news;
    bool answering = false;
    std::shared_ptr<Exchange> exchange;
  };

  Status Listen() {
    error_code error;
    const auto address = asio::ip::make_address(options.address, error);
    if (error) {
      return InvalidArgument("'" + options.address +
                             "' is not an IP address; listen on 127.0.0.1, 0.0.0.0 or another");
    }
    const tcp::endpoint endpoint(address, options.port);
    acceptor.open(endpoint.protocol(), error);
    if (!error) acceptor.set_option(asio::socket_base::reuse_address(true), error);
    if (!error) acceptor.bind(endpoint, error);
    if (!error) acceptor.listen(asio::socket_base::max_listen_connections, error);
    if (error) {
      return FailedPrecondition("cannot listen on " + options.address + " port " +
                                std::to_string(options.port) + ": " + error.message() +
                                "; another server may have it, choose another port");
    }
    port = acceptor.local_endpoint().port();
    return OkStatus();
  }

  void Run() {
    asio::co_spawn(io, Accept(), asio::detached);
    thread = std::thread([this] {
      while (true) {
        try {
          io.run();
          return;
        } catch (const std::exception& error) {
          spdlog::error("a connection ended with an exception: {}", error.what());
        }
      }
    });
  }

  asio::awaitable<void> Accept() {
    const auto self = shared_from_this();
    while (acceptor.is_open()) {
      error_code error;
      tcp::socket socket =
          co_await acceptor.async_accept(asio::redirect_error(asio::use_awaitable, error));
      if (error == asio::error::operation_aborted) break;
      if (error) {
        // Out of file descriptors, say: not a reason to stop, but one to wait.
        asio::steady_timer pause(io, std::chrono::milliseconds(50));
        co_await pause.async_wait(asio::redirect_error(asio::use_awaitable, error));
        continue;
      }
      socket.set_option(tcp::no_delay(true), error);
      asio::co_spawn(io, Serve(std::make_shared<Connection>(std::move(socket))), asio::detached);
    }
  }

  asio::awaitable<void> Serve(std::shared_ptr<Connection> connection) {
    const auto self = shared_from_this();
    const auto place = open.insert(open.end(), connection);
    ++count;
    try {
      co_await ServeRequests(*connection, connection);
    } catch (const std::exception& error) {
      spdlog::error("a connection failed: {}", error.what());
    }
    if (connection->exchange) connection->exchange->SetGone();
    error_code ignored;
    connection->stream.socket().shutdown(tcp::socket::shutdown_both, ignored);
    connection->stream.close();
    open.erase(place);
    --count;
  }

  asio::awaitable<void> ServeRequests(Connection& connection, std::weak_ptr<Connection> weak) {
    // What is read ahead is bounded too: chunk extensions and trailers have no limit of their own.
    beast::flat_buffer buffer(options.max_header_bytes + kReadAheadBytes);
    error_code error;
    const auto endpoint = connection.stream.socket().remote_endpoint(error);
    if (error) co_return;
    if (count > options.max_connections) {
      co_await Send(connection, Overloaded("too many connections; try again in a second"),
                    ClosingForm("-"));
      co_return;
    }
    for (bool first = true; !stopping; first = false) {
      Parser parser;
      parser.header_limit(options.max_header_bytes);
      parser.body_limit(options.max_body_bytes);
      connection.stream.expires_after(first ? options.header_timeout : options.idle_timeout);
      error = co_await ReadHeader(connection, buffer, parser);
      if (error) {
        if (error == http::error::header_limit) {
          co_await Send(connection,
                        Failure(431, "the request's headers are too large", "headers_too_large"),
                        ClosingForm("-"));
        } else if (error == http::error::body_limit) {
          co_await Send(connection, TooLarge(), ClosingForm("-"));
        } else if (IsBadHttp(error)) {
          co_await Send(connection, Failure(400, "the request is not valid HTTP", "bad_request"),
                        ClosingForm("-"));
        }
        co_return;
      }
      connection.answering = true;
      HttpRequest request;
      for (const auto& field : parser.get()) {
        std::string name(field.name_string());
        std::transform(name.begin(), name.end(), name.begin(),
                       [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
        request.headers.emplace_back(std::move(name), std::string(field.value()));
      }
      request.id = RequestId(request.Header("x-request-id"));
      if (AmbiguousFraming(parser)) {
        co_await Send(
            connection,
            Failure(400, "the request must have one Host and one clear length", "bad_request"),
            ClosingForm(request.id));
        co_return;
      }
      if (parser.content_length() && *parser.content_length() > options.max_body_bytes) {
        co_await Send(connection, TooLarge(), ClosingForm(request.id));
        co_return;
      }
      if (beast::iequals(parser.get()[http::field::expect], "100-continue")) {
        co_await asio::async_write(connection.stream,
                                   asio::buffer(std::string_view("HTTP/1.1 100 Continue\r\n\r\n")),
                                   asio::redirect_error(asio::use_awaitable, error));
        if (error) co_return;
      }
      connection.stream.expires_after(options.body_timeout);
      HeldBytes held(&held_body_bytes);
      while (!parser.is_done() && !error && held_body_bytes <= options.max_held_body_bytes) {
        co_await http::async_read_some(connection.stream, buffer, parser,
                                       asio::redirect_error(asio::use_awaitable, error));
        held.Set(parser.get().body().size());
      }
      if (!error && !parser.is_done()) {
        co_await Send(connection, Overloaded("too many large requests at once; try again"),
                      ClosingForm(request.id));
        co_return;
      }
      if (error == http::error::body_limit) {
        co_await Send(connection, TooLarge(), ClosingForm(request.id));
        co_return;
      }
      // After a timeout the stream has closed its socket.
      if (IsBadHttp(error)) {
        co_await Send(connection, Failure(400, "the request is not valid HTTP", "bad_request"),
                      ClosingForm(request.id));
      }
      if (error) co_return;
      auto message = parser.release();
      request.method = std::string(message.method_string());
      request.remote = endpoint.address().to_string();
      request.remote_loopback = endpoint.address().is_loopback();
      request.body = std::move(message.body());
      constexpr unsigned kHttp11 = 11;
      AnswerForm form = ClosingForm(request.id);
      form.keep_alive = message.keep_alive();
      form.head_only = message.method() == http::verb::head;
      form.may_chunk = message.version() >= kHttp11;
      if (const Status status = ParseTarget(message.target(), &request); !status.ok()) {
        co_await Send(connection, Failure(400, status.message(), "bad_request"), form);
        connection.answering = false;
        if (!form.keep_alive) co_return;
        continue;
      }
      // HEAD is GET whose body stays here.
      if (form.head_only) request.method = "GET";
      if (!co_await Answer(connection, weak, std::move(request), form)) co_return;
      connection.answering = false;
    }
  }

  /// Beast unfolds a value that goes on in the next line, where others see one more header:
  /// refused, as RFC 9112 lets servers do.
  asio::awaitable<error_code> ReadHeader(Connection& connection, beast::flat_buffer& buffer,
                                         Parser& parser) {
    error_code error;
    while (true) {
      if (buffer.size() > 0) {
        const std::string_view bytes(static_cast<const char*>(buffer.data().data()), buffer.size());
        const std::string_view head = bytes.substr(0, bytes.find("\r\n\r\n"));
        if (head.find("\r\n ") != std::string_view::npos ||
            head.find("\r\n\t") != std::string_view::npos) {
          co_return make_error_code(http::error::bad_obs_fold);
        }
        buffer.consume(parser.put(buffer.data(), error));
        if (error && error != http::error::need_more) co_return error;
        if (parser.is_header_done()) co_return error_code();
      }
      const std::size_t room = beast::read_size(buffer, kReadAheadBytes);
      if (room == 0) co_return make_error_code(http::error::header_limit);
      const std::size_t got = co_await connection.stream.async_read_some(
          buffer.prepare(room), asio::redirect_error(asio::use_awaitable, error));
      if (error) co_return error;
      buffer.commit(got);
    }
  }

  HttpResponse TooLarge() const {
    return Failure(
        413,
        "the request's body is larger than " + std::to_string(options.max_body_bytes) + " bytes",
        "body_too_large");
  }

  /// \return whether the connection can take another request
  asio::awaitable<bool> Answer(Connection& connection, std::weak_ptr<Connection> weak,
                               HttpRequest request, const AnswerForm& form) {
    using namespace asio::experimental::awaitable_operators;  // NOLINT: operators only
    const bool probe =
        request.path.size() == 1 && std::find(options.probes.begin(), options.probes.end(),
                                              request.path.front()) != options.probes.end();
    if (!probe && waiting.load() >= options.max_waiting_requests) {
      co_return co_await Send(connection, Overloaded("the server is busy; try again in a second"),
                              form) &&
          form.keep_alive;
    }
    const auto exchange =
        // Holds this object: a late answer may come when the server has been stopped.
        std::make_shared<Exchange>(std::move(request), [weak, self = shared_from_this()] {
          asio::post(self->io, [weak] {
            // Past from now on: a wait that begins later ends at once too.
            if (const auto alive = weak.lock()) alive->news.expires_at(Past());
          });
        });
    connection.exchange = exchange;
    ++waiting;
    asio::post(probe ? probe_worker : pool, [self = shared_from_this(), exchange] {
      --self->waiting;
      try {
        self->handle(Guarded(exchange));
      } catch (const std::exception& error) {
        spdlog::error("request {}: a handler threw: {}", exchange->request().id, error.what());
      }
    });
    bool watch = true, streamed = false, keep_alive = form.keep_alive;
    error_code error;
    connection.stream.expires_never();
    while (true) {
      connection.news.expires_at(asio::steady_timer::time_point::max());
      Exchange::Next next = exchange->Take();
      if (next.empty()) {
        if (!watch) {
          co_await connection.news.async_wait(asio::redirect_error(asio::use_awaitable, error));
          continue;
        }
        error_code readable;
        const auto outcome = co_await (
            connection.news.async_wait(asio::redirect_error(asio::use_awaitable, error)) ||
            connection.stream.socket().async_wait(
                tcp::socket::wait_read, asio::redirect_error(asio::use_awaitable, readable)));
        if (outcome.index() == 0) continue;
        char byte;
        const auto got = connection.stream.socket().receive(asio::buffer(&byte, 1),
                                                            tcp::socket::message_peek, readable);
        // More may have been sent already (pipelining): then nothing tells when the client goes.
        watch = false;
        if (got == 0 || readable) {
          exchange->SetGone();
          co_return false;
        }
        continue;
      }
      std::string bytes;
      if (next.begun) {
        streamed = next.streamed;
        keep_alive = form.keep_alive && (!streamed || form.may_chunk);
        bytes = HeadText(next.head, form.id, keep_alive,
                         streamed ? (form.may_chunk ? "Transfer-Encoding: chunked\r\n" : "")
                         : next.head.status == 204 ? ""
                                                   : ContentLength(next.head));
        if (!streamed && !form.head_only) bytes += next.head.body;
      }
      if (streamed && !form.head_only) {
        if (!next.pieces.empty()) bytes += form.may_chunk ? Chunk(next.pieces) : next.pieces;
        if (next.ended && form.may_chunk) bytes += "0\r\n\r\n";
      }
      connection.stream.expires_after(options.write_timeout);
      co_await asio::async_write(connection.stream, asio::buffer(bytes),
                                 asio::redirect_error(asio::use_awaitable, error));
      connection.stream.expires_never();
      if (error) {
        exchange->SetGone();
        co_return false;
      }
      if (next.ended) {
        connection.exchange.reset();
        co_return keep_alive;
      }
    }
  }

  asio::awaitable<bool> Send(Connection& connection, HttpResponse response,
                             const AnswerForm& form) {
    error_code error;
    std::string bytes = HeadText(response, form.id, form.keep_alive, ContentLength(response));
    if (!form.head_only) bytes += response.body;
    connection.stream.expires_after(options.write_timeout);
    co_await asio::async_write(connection.stream, asio::buffer(bytes),
                               asio::redirect_error(asio::use_awaitable, error));
    if (!error && !form.keep_alive) co_await Drain(connection);
    co_return !error;
  }

  /// What the client is still sending is read for a moment: closing on unread bytes would reset the
  /// connection before the client has seen the answer.
  asio::awaitable<void> Drain(Connection& connection) {
    error_code error;
    connection.stream.socket().shutdown(tcp::socket::shutdown_send, error);
    connection.stream.expires_after(std::chrono::seconds(2));
    std::string bytes(64 << 10, '\0');
    for (std::uint64_t left = options.max_body_bytes; left > 0 && !error;) {
      const std::size_t got = co_await connection.stream.async_read_some(
          asio::buffer(bytes), asio::redirect_error(asio::use_awaitable, error));
      left -= std::min<std::uint64_t>(left, got);
    }
  }

  void Stop(std::chrono::milliseconds patience) {
    const std::scoped_lock lock(stop_mutex);
    if (!thread.joinable()) return;
    asio::post(io, [this] {
      stopping = true;
      error_code ignored;
      acceptor.close(ignored);
      for (const auto& connection : open) {
        if (!connection->answering) connection->stream.close();
      }
    });
    const auto end = std::chrono::steady_clock::now() + patience;
    while (count > 0 && std::chrono::steady_clock::now() < end) {
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
    }
    asio::post(io, [this] {
      for (const auto& connection : open) {
        if (connection->exchange) connection->exchange->SetGone();
        connection->stream.close();
        connection->news.expires_at(Past());
      }
    });
    // Handlers end before what they use goes away.
    pool.join();
    probe_worker.join();
    while (count > 0) std::this_thread::sleep_for(std::chrono::milliseconds(5));
    thread.join();
  }

  HttpServerOptions options;
  Handler handle;
  asio::io_context io{1};
  tcp::acceptor acceptor;
  asio::thread_pool pool, probe_worker{1};
  std::uint16_t port = 0;
  std::thread thread;
  std::mutex stop_mutex;
  std::atomic<std::int64_t> count{0}, waiting{0};
  bool stopping = false;                        // the io thread's
  std::uint64_t held_body_bytes = 0;            // the io thread's
  std::list<std::shared_ptr<Connection>> open;  // the io thread's
};

Result<std::unique_ptr<HttpServer>> HttpServer::Start(HttpServerOptions options, Handler handler) {
  const auto impl = std::make_shared<Impl>(std::move(options), std::move(handler));
  INFERSCALE_RETURN_IF_ERROR(impl->Listen());
  impl->Run();
  return std::unique_ptr<HttpServer>(new HttpServer(impl));
}

HttpServer::~HttpServer() { impl_->Stop(std::chrono::milliseconds(0)); }

std::uint16_t HttpServer::port() const { return impl_->port; }
std::int64_t HttpServer::connections() const { return impl_->count; }
void HttpServer::Stop(std::chrono::milliseconds patience) { impl_->Stop(patience); }

}  // namespace inferscale
