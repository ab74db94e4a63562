#include "server/serve.h"

#include <atomic>
#include <cmath>
#include <utility>

#include "base/log.h"

namespace inferscale {
namespace {

/// One line and two figures a request. Paths are patterns: no id, no query, no text.
std::function<void(const CallRecord&)> Recorder(const std::shared_ptr<Metrics>& metrics) {
  return [metrics](const CallRecord& call) {
    // What clients make up must not become labels.
    const std::string route = call.pattern.empty() ? "none" : call.pattern;
    const std::string method = call.pattern.empty() ? "any" : call.method;
    const std::string status = std::to_string(call.status);
    metrics->Count("inferscale_http_requests_total",
                   {{"method", method}, {"route", route}, {"status", status}});
    metrics->ObserveSeconds("inferscale_http_request_seconds", {{"route", route}}, call.seconds);
    const bool probe = route == "/healthz" || route == "/readyz" || route == "/metrics";
    LogFields(probe ? spdlog::level::debug : spdlog::level::info,
              {{"message", "request"},
               {"method", method},
               {"route", route},
               {"status", call.status},
               {"milliseconds", std::round(call.seconds * 1e6) / 1e3},
               {"key", call.key_id},
               {"request_id", call.request_id}});
  };
}

}  // namespace

Result<std::unique_ptr<Service>> Service::Start(std::unique_ptr<MemoryService> memory,
                                                ServerOptions options) {
  std::unique_ptr<Service> service(new Service());
  service->context_ = std::make_shared<ApiContext>();
  ApiContext& context = *service->context_;
  context.service = std::move(memory);
  context.options = options;
  Catalog& catalog = context.service->catalog();
  INFERSCALE_ASSIGN_OR_RETURN(context.keys, ApiKeys::Load(catalog));
  INFERSCALE_ASSIGN_OR_RETURN(context.settings, TenantSettings::Load(catalog));
  if (options.require_key && context.keys->List(std::nullopt).empty()) {
    ApiKey first;
    first.label = "first key";
    first.principal.admin = true;
    INFERSCALE_ASSIGN_OR_RETURN(NewApiKey made, context.keys->Create(std::move(first)));
    service->first_key_ = std::move(made.secret);
  }
  Routes routes([keys = context.keys, required = options.require_key](const HttpRequest& request) {
    return keys->Authenticate(request, required);
  });
  AddOperationsRoutes(routes, service->context_);
  AddOpenAiRoutes(routes, service->context_);
  AddMem0Routes(routes, service->context_);
  AddMcpRoutes(routes, service->context_);
  AddConsoleRoutes(routes, service->context_);
  context.routes = routes.Descriptions();
  const auto running = std::make_shared<std::atomic<const Server*>>(nullptr);
  context.connections = [running]() -> std::int64_t {
    const Server* server = running->load();
    return server == nullptr ? 0 : server->connections();
  };
  INFERSCALE_ASSIGN_OR_RETURN(service->server_, Server::Start(std::move(options), std::move(routes),
                                                              Recorder(context.metrics)));
  *running = service->server_.get();
  return service;
}

Service::~Service() {
  if (server_ != nullptr) Stop(std::chrono::milliseconds(0));
}

std::uint16_t Service::port() const { return server_->port(); }

void Service::Stop(std::chrono::milliseconds patience) { server_->Stop(patience); }

}  // namespace inferscale
