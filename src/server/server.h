#ifndef INFERSCALE_SERVER_SERVER_H_
#define INFERSCALE_SERVER_SERVER_H_

/// \file server.h
/// Server: every route of the service on one port. Guarantees that a handler sees only calls whose
/// Host, Origin and API key have been checked, and only under the key's tenant. Thread-safe.

#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "inferscale/memory_service.h"
#include "server/api.h"
#include "server/api_keys.h"
#include "server/http_server.h"
#include "server/metrics.h"
#include "server/tenant_settings.h"

namespace inferscale {

struct ServerOptions {
  HttpServerOptions http;
  std::vector<std::string> allowed_hosts;    ///< beside this machine's names; "*": any
  std::vector<std::string> allowed_origins;  ///< "https://app.example"; beside the server's own
  std::string model_name;                    ///< as /v1/models names it
  std::string embedder_name;
  std::int32_t top_k = 20;       ///< facts of a chat that does not say
  std::int32_t max_chats = 256;  ///< answered or waiting at a time; more get 503
  bool require_key = false;
};

/// Who a request comes from. kInvalidArgument: no or a malformed key (401); kNotFound: an unknown
/// or revoked one (401); kResourceExhausted: over its rate (429).
using Authenticate = std::function<Result<Principal>(const HttpRequest&)>;

/// What a finished call was, for logs and metrics.
struct CallRecord {
  std::string method, pattern, key_id, request_id;
  int status = 0;
  double seconds = 0;
};

/// What /openapi.json says of a route, beside what is true of all.
struct RouteDetails {
  std::string summary;
  std::string body_schema_json;   ///< of the request's body; empty: none, or any object
  std::string query_schema_json;  ///< {"name": schema} of the query string's parameters
  std::string answer_type = "application/json";
  bool may_stream = false;    ///< answers as server-sent events if asked to
  std::vector<int> failures;  ///< statuses from 500 on that it may answer, beside 503
};

struct RouteDescription {
  std::string method, pattern;
  RouteDetails details;
  bool needs_key = true;
};

/// What routes are made from; outlives them.
struct ApiContext {
  std::shared_ptr<MemoryService> service;
  ServerOptions options;
  std::shared_ptr<ApiKeys> keys;
  std::shared_ptr<TenantSettings> settings;
  std::shared_ptr<Metrics> metrics = std::make_shared<Metrics>();
  /// Shared with answers that may outlive the context.
  std::shared_ptr<std::atomic<std::int32_t>> chats = std::make_shared<std::atomic<std::int32_t>>(0);
  std::vector<RouteDescription> routes;  ///< set before the server starts
  std::function<std::int64_t()> connections;
};

/// Where route files register what they serve.
class Routes {
 public:
  /// \param authenticate empty: everybody is the default tenant's admin
  explicit Routes(Authenticate authenticate);
  /// \param dialect how errors found before the handler runs are worded
  void Add(std::string_view method, std::string_view pattern, ErrorDialect dialect,
           ApiHandler handler);
  /// Without an API key: health, the console's page. Host and Origin are checked all the same.
  void AddPublic(std::string_view method, std::string_view pattern, ApiHandler handler);
  /// Says what a route does, before or after it is added.
  /// \param body_schema_json JSON schema of the request's body
  void Describe(std::string_view method, std::string_view pattern, std::string summary,
                std::string body_schema_json = {});
  void Describe(std::string_view method, std::string_view pattern, RouteDetails details);
  const Router& router() const { return router_; }
  /// What a route that was added does with a call that has been let in, for routes that do the same
  /// in other words; nullptr: there is none.
  const ApiHandler* Handler(std::string_view method, std::string_view pattern) const;
  /// Of every route, in the order they were added.
  std::vector<RouteDescription> Descriptions() const;

 private:
  Router router_;
  Authenticate authenticate_;
  std::vector<RouteDescription> added_;
  // By "METHOD pattern".
  std::map<std::string, RouteDetails> described_;
  std::map<std::string, ApiHandler> handlers_;
};

class Server {
 public:
  static Result<std::unique_ptr<Server>> Start(ServerOptions options, Routes routes,
                                               std::function<void(const CallRecord&)> on_call);
  ~Server();
  std::uint16_t port() const;
  std::int64_t connections() const;
  void Stop(std::chrono::milliseconds patience);

 private:
  struct Impl;
  explicit Server(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

// The groups of routes.
void AddOpenAiRoutes(Routes& routes, const std::shared_ptr<ApiContext>& context);
void AddMem0Routes(Routes& routes, const std::shared_ptr<ApiContext>& context);
/// After AddMem0Routes, whose handlers do what its tools say.
void AddMcpRoutes(Routes& routes, const std::shared_ptr<ApiContext>& context);
void AddOperationsRoutes(Routes& routes, const std::shared_ptr<ApiContext>& context);
void AddConsoleRoutes(Routes& routes, const std::shared_ptr<ApiContext>& context);

}  // namespace inferscale

#endif  // INFERSCALE_SERVER_SERVER_H_
