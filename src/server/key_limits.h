#ifndef INFERSCALE_SERVER_KEY_LIMITS_H_
#define INFERSCALE_SERVER_KEY_LIMITS_H_

/// \file key_limits.h
/// What a key may store, checked before anything is. Facts and KV are counted for the key's whole
/// tenant, of which a key without limits may store more. Free functions; thread-safe.

#include <cstdint>

#include "inferscale/memory_service.h"
#include "server/api.h"

namespace inferscale {

/// kResourceExhausted, with the limit's name, unless `more_facts` may be stored with this key.
Status CheckRoom(MemoryService& service, const Principal& principal, std::int64_t more_facts);

/// 403: waiting does not help.
HttpResponse LimitReached(const HttpRequest& request, ErrorDialect dialect, const Status& status);

}  // namespace inferscale

#endif  // INFERSCALE_SERVER_KEY_LIMITS_H_
