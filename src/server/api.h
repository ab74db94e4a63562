#ifndef INFERSCALE_SERVER_API_H_
#define INFERSCALE_SERVER_API_H_

/// \file api.h
/// What all routes share: who asks, reading a body, writing an answer. Thread-safe.

#include <functional>
#include <optional>
#include <string>
#include <string_view>

#include <nlohmann/json.hpp>

#include "inferscale/memory_service.h"
#include "server/exchange.h"
#include "server/router.h"

namespace inferscale {

/// What a key may do; 0: without limit.
struct KeyLimits {
  std::int64_t max_body_bytes = 0;  ///< of a request
  std::int64_t max_facts = 0;       ///< it adds none beyond these of its tenant
  std::int64_t max_kv_bytes = 0;    ///< it adds none while its tenant's KV takes as much
};

/// Who asks, by the API key. Without keys (loopback only) everybody is the default tenant's admin.
struct Principal {
  std::string tenant = "default";
  std::optional<Scope> bound;  ///< the key is for this owner alone
  std::string key_id;          ///< empty: no key was needed
  bool admin = false;          ///< may manage keys and reset the tenant
  KeyLimits limits = {};
};

/// One authenticated call on its way through a handler.
struct ApiCall {
  ExchangePtr exchange;
  PathParameters parameters;
  Principal principal;
  const HttpRequest& request() const { return exchange->request(); }
  /// kNotFound is the routes' business: a pattern's name is always there.
  const std::string& parameter(std::string_view name) const {
    return parameters.find(name)->second;
  }
};
using ApiHandler = std::function<void(ApiCall&)>;

/// How an API words its errors: {"error":{message,type,code,param}} or FastAPI's {"detail"}.
enum class ErrorDialect { kOpenAi, kMem0Server, kMem0Platform };

/// 400 invalid_argument, 404 not_found, 409, 413/429 resource_exhausted, 501 unsupported, 503
/// unavailable (with Retry-After), 504 deadline_exceeded, 500 for the server's own state
/// (failed_precondition, data_loss, internal): the text of these goes to the log under the
/// request's id and not to the client.
int HttpStatusOf(const Status& status);
HttpResponse ErrorResponse(const HttpRequest& request, ErrorDialect dialect, const Status& status,
                           int http_status = 0, std::string_view code = {});

HttpResponse JsonResponse(const nlohmann::ordered_json& body, int status = 200);

/// The body as a JSON object: UTF-8 without a byte order mark, content type JSON, at most 64 levels
/// deep. kInvalidArgument says what is wrong; an empty body is {} if `may_be_empty`.
Result<nlohmann::json> JsonBody(const HttpRequest& request, bool may_be_empty = false);
/// The same of a body that may be any JSON.
Result<nlohmann::json> JsonValue(const HttpRequest& request);

/// Reads one field of a body; a wrong type is kInvalidArgument that names field and type. Null
/// counts as missing.
Result<std::optional<std::string>> StringField(const nlohmann::json& body, std::string_view name);
Result<std::optional<std::int64_t>> IntegerField(const nlohmann::json& body, std::string_view name,
                                                 std::int64_t least, std::int64_t most);
Result<std::optional<double>> NumberField(const nlohmann::json& body, std::string_view name,
                                          double least, double most);
Result<std::optional<bool>> BooleanField(const nlohmann::json& body, std::string_view name);

/// An entity id by Mem0's rules: numbers become text, trimmed, not empty, no whitespace inside, at
/// most 256 bytes of valid UTF-8.
Result<std::string> EntityId(const nlohmann::json& value, std::string_view name);

/// The owner that `ids` (user_id, agent_id, app_id, run_id; others are ignored) name, under the
/// key's tenant. A key bound to an owner fills in what is missing; naming another is kNotFound, so
/// that nothing is told about it. No id at all and no bound owner: a scope without owner.
Result<Scope> ScopeOf(const Principal& principal, const nlohmann::json& ids);
/// The owner ids that a request's headers name (X-Inferscale-User, -Agent, -App, -Run), for
/// ScopeOf.
nlohmann::json OwnerHeaders(const HttpRequest& request);
/// Whether the principal may see a fact of this scope.
bool MaySee(const Principal& principal, const Scope& scope);

}  // namespace inferscale

#endif  // INFERSCALE_SERVER_API_H_
