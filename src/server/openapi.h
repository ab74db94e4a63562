#ifndef INFERSCALE_SERVER_OPENAPI_H_
#define INFERSCALE_SERVER_OPENAPI_H_

#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "server/server.h"

namespace inferscale {

/// An OpenAPI 3.1 document of the routes.
nlohmann::ordered_json OpenApiDocument(const std::vector<RouteDescription>& routes);
/// The same as an HTML page without scripts. \param nonce of its style element
std::string OpenApiPage(const std::vector<RouteDescription>& routes, const std::string& nonce);

}  // namespace inferscale

#endif  // INFERSCALE_SERVER_OPENAPI_H_
