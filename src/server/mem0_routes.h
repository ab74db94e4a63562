#ifndef INFERSCALE_SERVER_MEM0_ROUTES_H_
#define INFERSCALE_SERVER_MEM0_ROUTES_H_

/// \file mem0_routes.h
/// What the files of Mem0's routes share. Each registers the calls of one purpose, in both
/// dialects. Thread-safe.

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include <nlohmann/json.hpp>

#include "server/mem0_items.h"
#include "server/server.h"

namespace inferscale::mem0 {

inline constexpr ErrorDialect kServer = ErrorDialect::kMem0Server;
inline constexpr ErrorDialect kPlatform = ErrorDialect::kMem0Platform;

using Answer = Result<HttpResponse>;
using Handler = std::function<Answer(MemoryService&, const ApiCall&)>;

/// A handler of both dialects in one of them.
Handler In(ErrorDialect dialect, Answer (*handler)(MemoryService&, const ApiCall&, ErrorDialect));

/// Registers handlers that answer before they return.
class Registrar {
 public:
  Registrar(Routes& routes, std::shared_ptr<ApiContext> context)
      : routes_(routes), context_(std::move(context)) {}
  void Add(std::string_view method, std::string_view pattern, ErrorDialect dialect,
           Handler handler);
  Routes& routes() { return routes_; }
  const std::shared_ptr<ApiContext>& context() const { return context_; }

 private:
  Routes& routes_;
  std::shared_ptr<ApiContext> context_;
};

void AddAddingRoutes(Registrar& registrar);    // mem0_add.cc: add, events
void AddReadingRoutes(Registrar& registrar);   // mem0_read.cc: search, list, get, history
void AddChangingRoutes(Registrar& registrar);  // mem0_change.cc: update, delete, batch
void AddErasingRoutes(Registrar& registrar);   // mem0_erase.cc: delete_all, entities, reset
void AddRefusedRoutes(Registrar& registrar);   // mem0_refused.cc: ping, and what there is not

/// Says in /openapi.json what the calls are (mem0_descriptions.cc).
void DescribeRoutes(Routes& routes);

struct OwnedFact {
  Fact fact;
  Scope scope;
};
/// kNotFound, in the same words, for a memory that is not there and one the key may not see.
Result<OwnedFact> FindVisible(MemoryService& service, const Principal& principal,
                              const std::string& id);

/// The query string as a body: every parameter as text, except `filters`, `metadata`, `categories`,
/// `keywords` and `fields`, which may be JSON or a Python literal. kInvalidArgument for a parameter
/// given twice.
Result<nlohmann::json> QueryAsBody(const HttpRequest& request);

/// Seconds since 1970 or an ISO 8601 text as milliseconds; missing or null: none.
Result<std::optional<TimeMs>> TimeField(const nlohmann::json& body, std::string_view name);
/// "YYYY-MM-DD" of a date or time; an empty text for null, nothing when missing.
Result<std::optional<std::string>> ExpirationField(const nlohmann::json& body);
/// The metadata as JSON without keys that name an owner: these are never told by metadata. Nothing
/// when missing or null.
Result<std::optional<std::string>> MetadataField(const nlohmann::json& body);
/// A boolean, also as the text that a query string has.
Result<bool> FlagField(const nlohmann::json& body, std::string_view name, bool otherwise);
/// An integer, also as text.
Result<std::int64_t> CountField(const nlohmann::json& body, std::string_view name,
                                std::int64_t least, std::int64_t most, std::int64_t otherwise);

/// Deletes a memory. One that is gone, but whose stored KV the server has to remove later, counts
/// as deleted: that is told in `*pending`, if nothing is yet.
Status DeleteMemory(MemoryService& service, const std::string& id, Status* pending);

/// One line in the log for everything that was erased: who, what, how much; never a text.
void AuditErase(const ApiCall& call, std::string_view what, std::int64_t memories);

}  // namespace inferscale::mem0

#endif  // INFERSCALE_SERVER_MEM0_ROUTES_H_
