#include "server/server.h"

#include <algorithm>
#include <cctype>
#include <chrono>
#include <utility>

#include <spdlog/spdlog.h>
#include <boost/asio/ip/address.hpp>

namespace inferscale {
namespace {

std::string Lower(std::string text) {
  for (char& c : text) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  return text;
}

/// "[::1]:8420" → "::1"; "Name:80" → "name". What has another form is no name of this server.
std::string HostName(const std::string& host) {
  std::string name = host;
  const std::size_t colon = host.rfind(':');
  if (colon != std::string::npos && host.find(']', colon) == std::string::npos &&
      std::all_of(host.begin() + static_cast<std::ptrdiff_t>(colon) + 1, host.end(),
                  [](unsigned char c) { return std::isdigit(c); })) {
    name.resize(colon);
  }
  if (name.starts_with('[') && name.ends_with(']')) name = name.substr(1, name.size() - 2);
  return Lower(std::move(name));
}

/// This machine's own names, and addresses: only a name can be made to point elsewhere.
bool CannotBeRebound(const std::string& name) {
  if (name == "localhost" || name.ends_with(".localhost")) return true;
  boost::system::error_code error;
  boost::asio::ip::make_address(name, error);
  return !error;
}

bool ChangesSomething(const HttpRequest& request) {
  return request.method != "GET" && request.method != "OPTIONS";
}

std::string RouteKey(std::string_view method, std::string_view pattern) {
  return std::string(method) + " " + std::string(pattern);
}

HttpResponse Plain(const HttpRequest& request, ErrorDialect dialect, int status,
                   const std::string& message, std::string_view code) {
  return ErrorResponse(request, dialect, InvalidArgument(message), status, code);
}

}  // namespace

Routes::Routes(Authenticate authenticate) : authenticate_(std::move(authenticate)) {
  if (authenticate_) return;
  authenticate_ = [](const HttpRequest&) {
    Principal everybody;
    everybody.admin = true;
    return everybody;
  };
}

void Routes::Add(std::string_view method, std::string_view pattern, ErrorDialect dialect,
                 ApiHandler handler) {
  added_.push_back({std::string(method), std::string(pattern), {}, true});
  handlers_[RouteKey(method, pattern)] = handler;
  router_.Add(
      method, pattern,
      [authenticate = authenticate_, dialect, handler = std::move(handler)](
          ExchangePtr exchange, const PathParameters& parameters) {
        const HttpRequest& request = exchange->request();
        Result<Principal> principal = authenticate(request);
        if (!principal.ok()) {
          const bool limited = principal.status().code() == StatusCode::kResourceExhausted;
          exchange->Respond(ErrorResponse(request, dialect, principal.status(), limited ? 429 : 401,
                                          limited ? "rate_limited" : "invalid_api_key"));
          return;
        }
        exchange->SetKeyId(principal->key_id);
        const std::int64_t most = principal->limits.max_body_bytes;
        if (most > 0 && request.body.size() > static_cast<std::uint64_t>(most)) {
          const Status status = ResourceExhausted(
              "max_body_bytes: this API key may send bodies of " + std::to_string(most) + " bytes");
          exchange->Respond(ErrorResponse(request, dialect, status, 413, "body_too_large"));
          return;
        }
        ApiCall call{std::move(exchange), parameters, std::move(*principal)};
        handler(call);
      });
}

void Routes::AddPublic(std::string_view method, std::string_view pattern, ApiHandler handler) {
  added_.push_back({std::string(method), std::string(pattern), {}, false});
  router_.Add(
      method, pattern,
      [handler = std::move(handler)](ExchangePtr exchange, const PathParameters& parameters) {
        ApiCall call{std::move(exchange), parameters, Principal{}};
        handler(call);
      });
}

void Routes::Describe(std::string_view method, std::string_view pattern, std::string summary,
                      std::string body_schema_json) {
  RouteDetails details;
  details.summary = std::move(summary);
  details.body_schema_json = std::move(body_schema_json);
  Describe(method, pattern, std::move(details));
}

void Routes::Describe(std::string_view method, std::string_view pattern, RouteDetails details) {
  described_[RouteKey(method, pattern)] = std::move(details);
}

const ApiHandler* Routes::Handler(std::string_view method, std::string_view pattern) const {
  const auto found = handlers_.find(RouteKey(method, pattern));
  return found == handlers_.end() ? nullptr : &found->second;
}

std::vector<RouteDescription> Routes::Descriptions() const {
  std::vector<RouteDescription> descriptions = added_;
  for (RouteDescription& description : descriptions) {
    const auto found = described_.find(RouteKey(description.method, description.pattern));
    if (found != described_.end()) description.details = found->second;
  }
  return descriptions;
}

struct Server::Impl {
  ServerOptions options;
  Routes routes;
  std::function<void(const CallRecord&)> on_call;
  std::unique_ptr<HttpServer> http;

  /// A name that a foreign page could have made point here (DNS rebinding) is refused.
  bool HostAllowed(const HttpRequest& request) const {
    const std::string* host = request.Header("host");
    if (host == nullptr) return false;
    const std::string name = HostName(*host);
    const auto& allowed = options.allowed_hosts;
    return CannotBeRebound(name) ||
           std::any_of(allowed.begin(), allowed.end(), [&](const std::string& candidate) {
             return candidate == "*" || Lower(candidate) == name;
           });
  }

  bool OriginAllowed(const HttpRequest& request) const {
    const std::string* origin = request.Header("origin");
    if (origin == nullptr) return true;
    const std::string* host = request.Header("host");
    const auto& allowed = options.allowed_origins;
    return (host != nullptr && (*origin == "http://" + *host || *origin == "https://" + *host)) ||
           std::find(allowed.begin(), allowed.end(), *origin) != allowed.end();
  }

  void Handle(ExchangePtr exchange) {
    const auto start = std::chrono::steady_clock::now();
    const HttpRequest& request = exchange->request();
    RouteMatch match = routes.router().Find(request);
    // Called by the exchange itself, which is there then.
    exchange->OnEnd([this, start, method = request.method, id = request.id, pattern = match.pattern,
                     ended = exchange.get()](int status) {
      if (!on_call) return;
      const std::chrono::duration<double> took = std::chrono::steady_clock::now() - start;
      on_call({method, pattern, ended->key_id(), id, status, took.count()});
    });
    if (!HostAllowed(request)) {
      exchange->Respond(Plain(request, ErrorDialect::kOpenAi, 403,
                              "the Host header names no host of this server; see allowed-hosts",
                              "host_not_allowed"));
    } else if (ChangesSomething(request) && !OriginAllowed(request)) {
      exchange->Respond(Plain(request, ErrorDialect::kOpenAi, 403,
                              "pages of this Origin may not write here; see allowed-origins",
                              "origin_not_allowed"));
    } else if (match.handler != nullptr) {
      (*match.handler)(std::move(exchange), match.parameters);
    } else if (!match.allowed.empty()) {
      HttpResponse response = Plain(request, ErrorDialect::kMem0Platform, 405,
                                    "this path has no " + request.method, "method_not_allowed");
      std::string methods;
      for (const std::string& method : match.allowed)
        methods += (methods.empty() ? "" : ", ") + method;
      response.headers.emplace_back("Allow", methods);
      exchange->Respond(std::move(response));
    } else {
      exchange->Respond(Plain(request, ErrorDialect::kMem0Platform, 404,
                              "no such path; /openapi.json lists what there is", "no_such_path"));
    }
  }
};

Server::Server(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}

Result<std::unique_ptr<Server>> Server::Start(ServerOptions options, Routes routes,
                                              std::function<void(const CallRecord&)> on_call) {
  auto impl = std::make_unique<Impl>(
      Impl{std::move(options), std::move(routes), std::move(on_call), nullptr});
  Impl* held = impl.get();
  INFERSCALE_ASSIGN_OR_RETURN(impl->http,
                              HttpServer::Start(impl->options.http, [held](ExchangePtr exchange) {
                                held->Handle(std::move(exchange));
                              }));
  return std::unique_ptr<Server>(new Server(std::move(impl)));
}

Server::~Server() = default;

std::uint16_t Server::port() const { return impl_->http->port(); }
std::int64_t Server::connections() const { return impl_->http->connections(); }
void Server::Stop(std::chrono::milliseconds patience) { impl_->http->Stop(patience); }

}  // namespace inferscale
