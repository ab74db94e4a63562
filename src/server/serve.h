#ifndef INFERSCALE_SERVER_SERVE_H_
#define INFERSCALE_SERVER_SERVE_H_

/// \file serve.h
/// Service: a MemoryService with every route on one port. Guarantees: it listens when Start
/// returns; nothing of it runs when Stop has returned. Thread-safe.

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "inferscale/memory_service.h"
#include "server/server.h"

namespace inferscale {

class Service {
 public:
  /// Makes a first key, an admin's, if one is required and there is none.
  static Result<std::unique_ptr<Service>> Start(std::unique_ptr<MemoryService> memory,
                                                ServerOptions options);
  /// Stop() with no patience.
  ~Service();

  std::uint16_t port() const;
  /// The key that Start made; to be shown once.
  const std::optional<std::string>& first_key() const { return first_key_; }
  /// Accepts nothing more, lets answers under way end for at most `patience`.
  void Stop(std::chrono::milliseconds patience);

 private:
  Service() = default;

  // Declared in the order of their needs: the server ends first.
  std::shared_ptr<ApiContext> context_;
  std::unique_ptr<Server> server_;
  std::optional<std::string> first_key_;
};

}  // namespace inferscale

#endif  // INFERSCALE_SERVER_SERVE_H_
