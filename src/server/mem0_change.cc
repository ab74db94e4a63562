// update, delete, and both of many memories at once

#include <map>
#include <set>
#include <utility>

#include "base/utf8.h"
#include "catalog/validation.h"
#include "server/mem0_routes.h"

namespace inferscale::mem0 {
namespace {

using nlohmann::json;

constexpr std::size_t kMaxBatch = 1000;
constexpr std::int64_t kScanPage = 500;

/// An update as a body tells it; kInvalidArgument if it changes nothing.
Result<FactUpdate> ParseUpdate(const json& body) {
  FactUpdate update;
  INFERSCALE_ASSIGN_OR_RETURN(update.text, StringField(body, "text"));
  // What the key was called before.
  for (const char* name : {"memory", "data"}) {
    if (update.text) break;
    INFERSCALE_ASSIGN_OR_RETURN(update.text, StringField(body, name));
  }
  if (update.text && TrimWhitespace(*update.text).empty()) {
    return InvalidArgument("'text' is blank; to remove a memory, delete it");
  }
  // Before anything of a batch is done.
  if (update.text) INFERSCALE_RETURN_IF_ERROR(catalog::CheckText("'text'", *update.text));
  INFERSCALE_ASSIGN_OR_RETURN(update.metadata_json, MetadataField(body));
  INFERSCALE_ASSIGN_OR_RETURN(update.expiration_date, ExpirationField(body));
  INFERSCALE_ASSIGN_OR_RETURN(update.event_time_ms, TimeField(body, "timestamp"));
  if (!update.text && !update.metadata_json && !update.expiration_date && !update.event_time_ms) {
    return InvalidArgument("nothing to update: give text, metadata, timestamp or expiration_date");
  }
  return update;
}

Answer Update(MemoryService& service, const ApiCall& call, ErrorDialect dialect) {
  INFERSCALE_ASSIGN_OR_RETURN(const json body, JsonBody(call.request()));
  INFERSCALE_ASSIGN_OR_RETURN(FactUpdate update, ParseUpdate(body));
  INFERSCALE_ASSIGN_OR_RETURN(const OwnedFact owned,
                              FindVisible(service, call.principal, call.parameter("memory_id")));
  INFERSCALE_ASSIGN_OR_RETURN(const Fact changed, service.Update(owned.fact.id, std::move(update)));
  if (dialect == kServer) return JsonResponse({{"message", "Memory updated successfully!"}});
  return JsonResponse(MemoryItem(changed, owned.scope, kPlatform));
}

/// Ids of the memories that a memory contradicts, and that those contradict in turn; the newest
/// first.
Result<std::vector<std::string>> SupersededBy(Catalog& catalog, const Fact& fact) {
  std::multimap<std::string, std::string> older;
  FactQuery query;
  query.scopes = {fact.scope_id};
  query.show_expired = true;
  query.limit = kScanPage;
  while (true) {
    INFERSCALE_ASSIGN_OR_RETURN(const std::vector<Fact> page, catalog.ListFacts(query));
    for (const Fact& each : page) {
      if (!each.superseded_by.empty()) older.emplace(each.superseded_by, each.id);
    }
    if (static_cast<std::int64_t>(page.size()) < kScanPage) break;
    query.offset += kScanPage;
  }
  std::vector<std::string> chain = {fact.id};
  std::set<std::string> seen = {fact.id};
  for (std::size_t i = 0; i < chain.size(); ++i) {
    const auto [begin, end] = older.equal_range(chain[i]);
    for (auto each = begin; each != end; ++each) {
      if (seen.insert(each->second).second) chain.push_back(each->second);
    }
  }
  chain.erase(chain.begin());
  return chain;
}

Answer Delete(MemoryService& service, const ApiCall& call, ErrorDialect dialect) {
  INFERSCALE_ASSIGN_OR_RETURN(const json query, QueryAsBody(call.request()));
  INFERSCALE_ASSIGN_OR_RETURN(const bool linked, FlagField(query, "delete_linked", false));
  INFERSCALE_ASSIGN_OR_RETURN(const OwnedFact owned,
                              FindVisible(service, call.principal, call.parameter("memory_id")));
  std::vector<std::string> older;
  if (linked) {
    INFERSCALE_ASSIGN_OR_RETURN(older, SupersededBy(service.catalog(), owned.fact));
  }
  // The oldest first: a memory comes back to life when the one that contradicts it goes.
  std::int64_t cascade = 0;
  Status pending;
  for (auto id = older.rbegin(); id != older.rend(); ++id) {
    const Status status = DeleteMemory(service, *id, &pending);
    if (!status.ok() && status.code() != StatusCode::kNotFound) return status;
    if (status.ok()) ++cascade;
  }
  INFERSCALE_RETURN_IF_ERROR(DeleteMemory(service, owned.fact.id, &pending));
  AuditErase(call, "delete", cascade + 1);
  INFERSCALE_RETURN_IF_ERROR(pending);
  if (dialect == kServer) return JsonResponse({{"message", "Memory deleted successfully"}});
  Item answer = {{"message", "Memory deleted successfully!"}};
  if (linked) answer["cascade_count"] = cascade;
  return JsonResponse(answer);
}

struct BatchItem {
  OwnedFact owned;
  FactUpdate update;
};

/// The memories that a batch names, all of them there and visible; nothing is done before.
Result<std::vector<BatchItem>> ParseBatch(MemoryService& service, const ApiCall& call,
                                          bool updates) {
  INFERSCALE_ASSIGN_OR_RETURN(const json body, JsonBody(call.request()));
  const auto memories = body.find("memories");
  if (memories == body.end() || !memories->is_array() || memories->empty() ||
      memories->size() > kMaxBatch) {
    return InvalidArgument("'memories' must be a list of 1 to " + std::to_string(kMaxBatch) +
                           " objects with a memory_id");
  }
  std::vector<BatchItem> items;
  std::set<std::string> ids;
  for (std::size_t i = 0; i < memories->size(); ++i) {
    const json& given = (*memories)[i];
    const std::string where = "memories[" + std::to_string(i) + "]";
    if (!given.is_object()) return InvalidArgument("'" + where + "' must be an object");
    const Result<std::optional<std::string>> id = StringField(given, "memory_id");
    if (!id.ok()) return id.status().WithContext(where);
    if (!*id) return InvalidArgument("'" + where + ".memory_id' is missing");
    if (!ids.insert(**id).second) return InvalidArgument("'" + where + ".memory_id' stands twice");
    BatchItem item;
    if (updates) {
      Result<FactUpdate> update = ParseUpdate(given);
      if (!update.ok()) return update.status().WithContext(where);
      item.update = *std::move(update);
    }
    Result<OwnedFact> owned = FindVisible(service, call.principal, **id);
    if (!owned.ok()) return owned.status().WithContext(where);
    item.owned = *std::move(owned);
    items.push_back(std::move(item));
  }
  return items;
}

std::string Done(std::size_t done, std::size_t all, const char* what) {
  return std::to_string(done) + " of " + std::to_string(all) + " memories were " + what + ", then";
}

Answer BatchUpdate(MemoryService& service, const ApiCall& call) {
  INFERSCALE_ASSIGN_OR_RETURN(std::vector<BatchItem> items, ParseBatch(service, call, true));
  for (std::size_t i = 0; i < items.size(); ++i) {
    const Status status =
        service.Update(items[i].owned.fact.id, std::move(items[i].update)).status();
    if (!status.ok()) return status.WithContext(Done(i, items.size(), "updated"));
  }
  return JsonResponse(
      {{"message", "Successfully updated " + std::to_string(items.size()) + " memories"}});
}

Answer BatchDelete(MemoryService& service, const ApiCall& call) {
  INFERSCALE_ASSIGN_OR_RETURN(const std::vector<BatchItem> items, ParseBatch(service, call, false));
  Status pending;
  for (std::size_t i = 0; i < items.size(); ++i) {
    const Status status = DeleteMemory(service, items[i].owned.fact.id, &pending);
    // Deleted by somebody else meanwhile is deleted.
    if (!status.ok() && status.code() != StatusCode::kNotFound) {
      AuditErase(call, "delete", static_cast<std::int64_t>(i));
      return status.WithContext(Done(i, items.size(), "deleted"));
    }
  }
  AuditErase(call, "delete", static_cast<std::int64_t>(items.size()));
  INFERSCALE_RETURN_IF_ERROR(pending);
  return JsonResponse(
      {{"message", "Successfully deleted " + std::to_string(items.size()) + " memories"}});
}

}  // namespace

void AddChangingRoutes(Registrar& registrar) {
  registrar.Add("PUT", "/memories/{memory_id}", kServer, In(kServer, Update));
  registrar.Add("DELETE", "/memories/{memory_id}", kServer, In(kServer, Delete));
  for (const char* version : {"/v1", "/v2", "/v3"}) {
    const std::string memory = std::string(version) + "/memories/{memory_id}";
    registrar.Add("PUT", memory, kPlatform, In(kPlatform, Update));
    registrar.Add("DELETE", memory, kPlatform, In(kPlatform, Delete));
  }
  registrar.Add("PUT", "/v1/batch", kPlatform, BatchUpdate);
  registrar.Add("DELETE", "/v1/batch", kPlatform, BatchDelete);
}

}  // namespace inferscale::mem0
