#ifndef INFERSCALE_SERVER_HTTP_SERVER_H_
#define INFERSCALE_SERVER_HTTP_SERVER_H_

/// \file http_server.h
/// HttpServer: HTTP/1.1 on one port. Connections are coroutines on one thread; handlers run on a
/// pool of workers and may block. Guarantees: no request is handled whose size, framing or time is
/// out of bounds; a handler's exception ends in a 500, never in the process's end. Thread-safe.

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "inferscale/result.h"
#include "server/exchange.h"

namespace inferscale {

struct HttpServerOptions {
  std::string address = "127.0.0.1";  ///< IPv4 or IPv6, not a name
  std::uint16_t port = 8420;          ///< 0: any free one
  std::int32_t workers = 8;
  /// Paths of one segment that are answered by a worker of their own, however busy the others are.
  std::vector<std::string> probes = {"healthz", "readyz"};
  std::uint64_t max_body_bytes = std::uint64_t{32} << 20;
  /// Of all requests being read or answered; more get 503. Keys are looked at after the body is
  /// there, so without this anybody could make the server hold max_body_bytes a connection.
  std::uint64_t max_held_body_bytes = std::uint64_t{512} << 20;
  std::uint32_t max_header_bytes = 32 << 10;
  std::int32_t max_connections = 2048;
  std::int32_t max_waiting_requests = 512;  ///< not yet taken by a worker; more get 503
  std::chrono::seconds header_timeout{15};
  std::chrono::seconds body_timeout{60};
  std::chrono::seconds idle_timeout{75};
  std::chrono::seconds write_timeout{30};
};

class HttpServer {
 public:
  using Handler = std::function<void(ExchangePtr)>;
  /// Listens when it returns. kFailedPrecondition says which address is taken or not this
  /// machine's.
  static Result<std::unique_ptr<HttpServer>> Start(HttpServerOptions options, Handler handler);
  /// Stop() with no patience.
  ~HttpServer();

  std::uint16_t port() const;
  std::int64_t connections() const;
  /// Accepts nothing more, lets answers under way end for at most `patience`, then closes.
  void Stop(std::chrono::milliseconds patience);

 private:
  struct Impl;
  explicit HttpServer(std::shared_ptr<Impl> impl) : impl_(std::move(impl)) {}
  std::shared_ptr<Impl> impl_;
};

}  // namespace inferscale

#endif  // INFERSCALE_SERVER_HTTP_SERVER_H_
