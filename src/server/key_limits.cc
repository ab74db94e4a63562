#include "server/key_limits.h"

#include <string>
#include <vector>

namespace inferscale {

Status CheckRoom(MemoryService& service, const Principal& principal, std::int64_t more_facts) {
  const KeyLimits& limits = principal.limits;
  if (limits.max_facts <= 0 && limits.max_kv_bytes <= 0) return OkStatus();
  Scope tenant;
  tenant.tenant = principal.tenant;
  INFERSCALE_ASSIGN_OR_RETURN(const std::vector<ScopeInfo> scopes,
                              service.catalog().FindScopes(tenant));
  std::int64_t facts = 0;
  std::vector<std::uint64_t> tags;
  for (const ScopeInfo& scope : scopes) {
    facts += scope.facts;
    tags.push_back(scope.tag);
  }
  if (limits.max_facts > 0 && facts + more_facts > limits.max_facts) {
    return ResourceExhausted("max_facts: this API key may store up to " +
                             std::to_string(limits.max_facts) +
                             " memories of its tenant, which has " + std::to_string(facts) +
                             ": delete some, or use another key");
  }
  const Engine* engine = service.engine();
  if (limits.max_kv_bytes > 0 && engine != nullptr) {
    const std::int64_t bytes = engine->StoredBytes(tags);
    if (bytes >= limits.max_kv_bytes) {
      return ResourceExhausted(
          "max_kv_bytes: this API key may store while its tenant's KV takes less than " +
          std::to_string(limits.max_kv_bytes) + " bytes; it takes " + std::to_string(bytes) +
          ": delete some memories, or use another key");
    }
  }
  return OkStatus();
}

HttpResponse LimitReached(const HttpRequest& request, ErrorDialect dialect, const Status& status) {
  if (status.code() != StatusCode::kResourceExhausted)
    return ErrorResponse(request, dialect, status);
  return ErrorResponse(request, dialect, status, 403, "key_limit_reached");
}

}  // namespace inferscale
