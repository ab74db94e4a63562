#include "server/router.h"

#include <algorithm>
#include <cassert>
#include <optional>
#include <utility>

namespace inferscale {
namespace {

bool IsName(const std::string& segment) {
  return segment.size() > 2 && segment.front() == '{' && segment.back() == '}';
}

/// How many literal segments agree; nullopt: the path does not match.
std::optional<std::size_t> Literals(const std::vector<std::string>& pattern,
                                    const std::vector<std::string>& path) {
  if (pattern.size() != path.size()) return std::nullopt;
  std::size_t literals = 0;
  for (std::size_t i = 0; i < path.size(); ++i) {
    if (IsName(pattern[i])) {
      if (path[i].empty()) return std::nullopt;
    } else if (pattern[i] == path[i]) {
      ++literals;
    } else {
      return std::nullopt;
    }
  }
  return literals;
}

}  // namespace

void Router::Add(std::string_view method, std::string_view pattern, RouteMatch::Handler handler) {
  Route route;
  route.method = method;
  route.pattern = pattern;
  for (std::size_t at = 1; at < pattern.size();) {
    const std::size_t end = std::min(pattern.find('/', at), pattern.size());
    route.segments.emplace_back(pattern.substr(at, end - at));
    at = end + 1;
  }
  route.handler = std::move(handler);
  routes_.push_back(std::move(route));
}

RouteMatch Router::Find(const HttpRequest& request) const {
  const Route* best = nullptr;
  std::size_t best_literals = 0;
  std::vector<std::string> allowed;
  for (const Route& route : routes_) {
    const std::optional<std::size_t> literals = Literals(route.segments, request.path);
    if (!literals) continue;
    if (route.method != request.method) {
      if (std::find(allowed.begin(), allowed.end(), route.method) == allowed.end())
        allowed.push_back(route.method);
    } else if (best == nullptr || *literals > best_literals) {
      best = &route;
      best_literals = *literals;
    }
  }
  RouteMatch match;
  if (best == nullptr) {
    match.allowed = std::move(allowed);
    return match;
  }
  match.handler = &best->handler;
  match.pattern = best->pattern;
  for (std::size_t i = 0; i < best->segments.size(); ++i) {
    const std::string& segment = best->segments[i];
    if (IsName(segment)) match.parameters[segment.substr(1, segment.size() - 2)] = request.path[i];
  }
  return match;
}

std::vector<std::string> Router::Routes() const {
  std::vector<std::string> routes;
  for (const Route& route : routes_) routes.push_back(route.method + " " + route.pattern);
  return routes;
}

}  // namespace inferscale
