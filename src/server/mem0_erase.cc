// Erasing by owner: delete_all, entities, reset

#include <algorithm>
#include <array>
#include <map>
#include <tuple>
#include <utility>

#include "base/random.h"
#include "server/mem0_filters.h"
#include "server/mem0_routes.h"

namespace inferscale::mem0 {
namespace {

using nlohmann::json;

constexpr std::int64_t kDeletePage = 500;
constexpr std::int64_t kMaxPageSize = 1000;

using EntityMember = std::string Scope::*;
constexpr auto kEntityTypes =
    std::to_array<std::tuple<std::string_view, std::string_view, EntityMember>>(
        {{"user", "user_id", &Scope::user},
         {"agent", "agent_id", &Scope::agent},
         {"app", "app_id", &Scope::app},
         {"run", "run_id", &Scope::run}});

/// Deletes all memories of scopes; see DeleteMemory() about `*pending`.
Status DeleteWholeScopes(MemoryService& service, const std::vector<ScopeId>& scopes,
                         Status* pending) {
  Status status = service.DeleteScopes(scopes);
  if (status.ok()) return status;
  FactQuery query;
  query.scopes = scopes;
  query.show_expired = true;
  INFERSCALE_ASSIGN_OR_RETURN(const std::int64_t left, service.catalog().CountFacts(query));
  if (left > 0) return status;
  if (pending->ok()) *pending = std::move(status);
  return OkStatus();
}

/// Deletes what was selected. \return how many memories.
Result<std::int64_t> Erase(MemoryService& service, const Selected& selected, Status* pending) {
  std::int64_t erased = 0;
  for (const Selection& part : selected.parts) {
    FactQuery query;
    query.scopes = part.scopes;
    query.filter = part.filter.get();
    query.show_expired = true;
    if (part.filter == nullptr) {
      INFERSCALE_ASSIGN_OR_RETURN(const std::int64_t facts, service.catalog().CountFacts(query));
      INFERSCALE_RETURN_IF_ERROR(DeleteWholeScopes(service, part.scopes, pending));
      erased += facts;
      continue;
    }
    // All ids first: a deletion may bring a memory back that the deleted one had contradicted.
    std::vector<std::string> ids;
    query.limit = kDeletePage;
    while (true) {
      INFERSCALE_ASSIGN_OR_RETURN(const std::vector<Fact> facts,
                                  service.catalog().ListFacts(query));
      for (const Fact& fact : facts) ids.push_back(fact.id);
      if (static_cast<std::int64_t>(facts.size()) < kDeletePage) break;
      query.offset += kDeletePage;
    }
    for (const std::string& id : ids) {
      const Status status = DeleteMemory(service, id, pending);
      if (status.ok()) ++erased;
      if (!status.ok() && status.code() != StatusCode::kNotFound) {
        return status.WithContext(std::to_string(erased) + " memories were deleted, then");
      }
    }
  }
  return erased;
}

/// The filter that a delete_all's query string means. A parameter that is not understood could be
/// one that narrows it, and is refused.
Result<json> ErasureFilters(const ApiCall& call, ErrorDialect dialect) {
  if (!call.request().body.empty()) {
    return InvalidArgument("what to delete is told in the query string, not in a body");
  }
  INFERSCALE_ASSIGN_OR_RETURN(const json query, QueryAsBody(call.request()));
  json filters = json::object();
  for (const auto& [name, value] : query.items()) {
    const bool owner = std::any_of(kEntityTypes.begin(), kEntityTypes.end(),
                                   [&](const auto& type) { return std::get<1>(type) == name; });
    if (owner) {
      if (dialect == kServer && value == "*") {
        return InvalidArgument("'" + name + "' cannot be \"*\": name the owner");
      }
      filters = BothOf(std::move(filters), json{{name, value}});
    } else if (name == "filters" && dialect == kPlatform) {
      if (!value.is_object()) return InvalidArgument("'filters' must be an object");
      filters = BothOf(std::move(filters), value);
    } else if (name != "org_id" && name != "project_id") {
      return InvalidArgument("'" + name + "' is unknown here; nothing was deleted");
    }
  }
  if (filters.empty()) {
    return InvalidArgument(
        "whose memories? Give at least one of user_id, agent_id, app_id, run_id");
  }
  return filters;
}

Answer DeleteAll(MemoryService& service, const ApiCall& call, ErrorDialect dialect) {
  INFERSCALE_ASSIGN_OR_RETURN(const json filters, ErasureFilters(call, dialect));
  INFERSCALE_ASSIGN_OR_RETURN(const Selected selected,
                              Select(service.catalog(), call.principal, filters, dialect));
  Status pending;
  INFERSCALE_ASSIGN_OR_RETURN(const std::int64_t erased, Erase(service, selected, &pending));
  AuditErase(call, "delete_all", erased);
  INFERSCALE_RETURN_IF_ERROR(pending);
  if (dialect == kServer) return JsonResponse({{"message", "All relevant memories deleted"}});
  const std::string event_id = NewUuid();
  INFERSCALE_RETURN_IF_ERROR(
      service.catalog().RecordEvent(event_id, call.principal.tenant, "DELETE_ALL"));
  return JsonResponse({{"message", "Memories deleted successfully!"}, {"event_id", event_id}});
}

Result<std::vector<ScopeInfo>> VisibleScopes(MemoryService& service, const Principal& principal,
                                             Scope query = {}) {
  query.tenant = principal.tenant;
  INFERSCALE_ASSIGN_OR_RETURN(std::vector<ScopeInfo> scopes, service.catalog().FindScopes(query));
  std::erase_if(scopes, [&](const ScopeInfo& info) { return !MaySee(principal, info.scope); });
  return scopes;
}

/// Everybody who has memories, by type and id.
Result<std::vector<Entity>> Entities(MemoryService& service, const Principal& principal) {
  INFERSCALE_ASSIGN_OR_RETURN(const std::vector<ScopeInfo> scopes,
                              VisibleScopes(service, principal));
  std::vector<Entity> entities;
  for (const auto& [type, field, member] : kEntityTypes) {
    std::map<std::string, Entity> by_id;
    for (const ScopeInfo& info : scopes) {
      const std::string& id = info.scope.*member;
      if (id.empty() || info.facts <= 0) continue;
      Entity& entity = by_id[id];
      if (entity.id.empty()) {
        entity = {std::string(type), id, 0, info.created_at_ms, info.updated_at_ms};
      }
      entity.memories += info.facts;
      entity.created_at_ms = std::min(entity.created_at_ms, info.created_at_ms);
      entity.updated_at_ms = std::max(entity.updated_at_ms, info.updated_at_ms);
    }
    for (auto& [id, entity] : by_id) entities.push_back(std::move(entity));
  }
  return entities;
}

Answer ListEntities(MemoryService& service, const ApiCall& call) {
  INFERSCALE_ASSIGN_OR_RETURN(const std::vector<Entity> entities,
                              Entities(service, call.principal));
  Item rows = Item::array();
  for (const Entity& entity : entities) rows.push_back(EntityItem(entity, kServer));
  return JsonResponse(rows);
}

/// All of them unless a page is asked for: the client's delete_users() reads one answer.
Answer ListEntitiesByPage(MemoryService& service, const ApiCall& call) {
  INFERSCALE_ASSIGN_OR_RETURN(const json query, QueryAsBody(call.request()));
  INFERSCALE_ASSIGN_OR_RETURN(const std::vector<Entity> entities,
                              Entities(service, call.principal));
  const auto all = static_cast<std::int64_t>(entities.size());
  const bool paged = query.contains("page") || query.contains("page_size");
  INFERSCALE_ASSIGN_OR_RETURN(const std::int64_t size,
                              CountField(query, "page_size", 1, kMaxPageSize,
                                         paged ? 100 : std::max<std::int64_t>(all, 1)));
  INFERSCALE_ASSIGN_OR_RETURN(const std::int64_t page, CountField(query, "page", 1, 1'000'000, 1));
  const std::string path = "/v1/entities/?page_size=" + std::to_string(size) + "&page=";
  Item answer;
  answer["count"] = all;
  answer["next"] = page * size < all ? Item(path + std::to_string(page + 1)) : Item();
  answer["previous"] = page > 1 ? Item(path + std::to_string(page - 1)) : Item();
  answer["results"] = Item::array();
  for (std::int64_t i = (page - 1) * size; i < std::min(page * size, all); ++i) {
    answer["results"].push_back(EntityItem(entities[static_cast<std::size_t>(i)], kPlatform));
  }
  for (const auto& [type, field, member] : kEntityTypes) {
    answer["total_" + std::string(type) + "s"] =
        std::count_if(entities.begin(), entities.end(),
                      [type = type](const Entity& entity) { return entity.type == type; });
  }
  return JsonResponse(answer);
}

Status DeleteScopes(MemoryService& service, const ApiCall& call, std::span<const ScopeInfo> scopes,
                    std::string_view operation) {
  std::vector<ScopeId> ids;
  std::int64_t facts = 0;
  for (const ScopeInfo& info : scopes) {
    ids.push_back(info.id);
    facts += info.facts;
  }
  Status pending;
  INFERSCALE_RETURN_IF_ERROR(DeleteWholeScopes(service, ids, &pending));
  AuditErase(call, operation, facts);
  return pending;
}

Answer DeleteEntity(MemoryService& service, const ApiCall& call) {
  Scope query;
  const std::string& wanted = call.parameter("type");
  const auto found = std::find_if(kEntityTypes.begin(), kEntityTypes.end(),
                                  [&](const auto& type) { return std::get<0>(type) == wanted; });
  if (found == kEntityTypes.end()) {
    return InvalidArgument("an entity is a user, agent, app or run");
  }
  INFERSCALE_ASSIGN_OR_RETURN(query.*std::get<2>(*found),
                              EntityId(call.parameter("entity_id"), std::get<1>(*found)));
  INFERSCALE_ASSIGN_OR_RETURN(const std::vector<ScopeInfo> scopes,
                              VisibleScopes(service, call.principal, query));
  if (scopes.empty()) return NotFound("Entity not found");
  INFERSCALE_RETURN_IF_ERROR(DeleteScopes(service, call, scopes, "delete_entity"));
  return JsonResponse({{"message", "Entity deleted"}});
}

Answer Reset(MemoryService& service, const ApiCall& call) {
  if (!call.principal.admin) {
    return ErrorResponse(call.request(), kServer,
                         InvalidArgument("deleting everybody's memories needs an admin's key"), 403,
                         "admin_required");
  }
  INFERSCALE_ASSIGN_OR_RETURN(const std::vector<ScopeInfo> scopes,
                              VisibleScopes(service, call.principal));
  INFERSCALE_RETURN_IF_ERROR(DeleteScopes(service, call, scopes, "reset"));
  return JsonResponse({{"message", "All memories reset"}});
}

}  // namespace

void AddErasingRoutes(Registrar& registrar) {
  registrar.Add("DELETE", "/memories", kServer, In(kServer, DeleteAll));
  registrar.Add("GET", "/entities", kServer, ListEntities);
  registrar.Add("DELETE", "/entities/{type}/{entity_id}", kServer, DeleteEntity);
  registrar.Add("POST", "/reset", kServer, Reset);
  for (const char* version : {"/v1", "/v2", "/v3"}) {
    registrar.Add("DELETE", std::string(version) + "/memories", kPlatform,
                  In(kPlatform, DeleteAll));
    registrar.Add("GET", std::string(version) + "/entities", kPlatform, ListEntitiesByPage);
    registrar.Add("DELETE", std::string(version) + "/entities/{type}/{entity_id}", kPlatform,
                  DeleteEntity);
  }
}

}  // namespace inferscale::mem0
