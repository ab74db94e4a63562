#ifndef INFERSCALE_SERVER_ROUTER_H_
#define INFERSCALE_SERVER_ROUTER_H_

/// \file router.h
/// Router: which handler a method and a path go to. Built once, then read only and thread-safe.

#include <functional>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "server/exchange.h"

namespace inferscale {

/// Decoded values of a pattern's {names}.
using PathParameters = std::map<std::string, std::string, std::less<>>;

struct RouteMatch {
  using Handler = std::function<void(ExchangePtr, const PathParameters&)>;
  const Handler* handler = nullptr;  ///< null: none
  PathParameters parameters;
  std::string pattern;               ///< for metrics: the same for all ids
  std::vector<std::string> allowed;  ///< methods the path has, if this one is not among them
};

class Router {
 public:
  /// \param pattern "/v1/memories/{memory_id}/history"; a trailing slash is optional in requests.
  /// A literal segment wins over a name in the same place.
  void Add(std::string_view method, std::string_view pattern, RouteMatch::Handler handler);
  RouteMatch Find(const HttpRequest& request) const;
  /// "METHOD pattern" of every route, in the order they were added.
  std::vector<std::string> Routes() const;

 private:
  struct Route {
    std::string method, pattern;
    std::vector<std::string> segments;
    RouteMatch::Handler handler;
  };
  std::vector<Route> routes_;
};

}  // namespace inferscale

#endif  // INFERSCALE_SERVER_ROUTER_H_
