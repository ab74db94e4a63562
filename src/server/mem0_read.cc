// search, list, get and history

#include <algorithm>
#include <map>
#include <utility>

#include "base/utf8.h"
#include "server/mem0_filters.h"
#include "server/mem0_routes.h"

namespace inferscale::mem0 {
namespace {

using nlohmann::json;

constexpr std::int64_t kMaxResults = 1000;
constexpr std::int64_t kServerTopK = 20, kPlatformTopK = 10;
constexpr std::int64_t kPageSize = 100;
constexpr std::int64_t kMaxPage = 1'000'000;
constexpr double kThreshold = 0.1;

/// A list of texts; one text stands for a list of it. Empty: missing.
Result<std::vector<std::string>> TextsField(const json& body, const char* name) {
  std::vector<std::string> texts;
  const auto found = body.find(name);
  if (found == body.end() || found->is_null()) return texts;
  const json items = found->is_array() ? *found : json::array({*found});
  for (const json& item : items) {
    if (!item.is_string()) {
      return InvalidArgument("'" + std::string(name) + "' must be a list of texts");
    }
    texts.push_back(item.get<std::string>());
  }
  return texts;
}

/// Everything in a body that chooses memories, as one filter. What stands beside `filters` narrows
/// it.
Result<json> FiltersOf(const json& body) {
  json filters = json::object();
  if (const auto found = body.find("filters"); found != body.end() && !found->is_null()) {
    if (!found->is_object()) return InvalidArgument("'filters' must be an object");
    filters = *found;
  }
  filters = BothOf(std::move(filters), OwnersIn(body));
  INFERSCALE_ASSIGN_OR_RETURN(const std::vector<std::string> categories,
                              TextsField(body, "categories"));
  if (!categories.empty()) {
    filters = BothOf(std::move(filters), {{"categories", {{"in", categories}}}});
  }
  INFERSCALE_ASSIGN_OR_RETURN(const std::vector<std::string> keywords,
                              TextsField(body, "keywords"));
  for (const std::string& keyword : keywords) {
    filters = BothOf(std::move(filters), {{"keywords", {{"icontains", keyword}}}});
  }
  for (const auto& [name, word] : {std::pair{"start_date", "gte"}, std::pair{"end_date", "lte"}}) {
    if (const auto found = body.find(name); found != body.end() && !found->is_null()) {
      filters = BothOf(std::move(filters), {{"created_at", {{word, *found}}}});
    }
  }
  if (const auto found = body.find("metadata"); found != body.end() && !found->is_null()) {
    if (!found->is_object()) return InvalidArgument("'metadata' must be an object");
    if (!found->empty()) filters = BothOf(std::move(filters), {{"metadata", *found}});
  }
  return filters;
}

/// Leaves only the fields asked for, and the id.
Item Projected(Item item, const std::vector<std::string>& fields) {
  if (fields.empty()) return item;
  Item kept;
  for (auto& [name, value] : item.items()) {
    if (name == "id" || std::find(fields.begin(), fields.end(), name) != fields.end()) {
      kept[name] = std::move(value);
    }
  }
  return kept;
}

Answer Search(MemoryService& service, const ApiCall& call, ErrorDialect dialect) {
  const bool platform = dialect == kPlatform;
  INFERSCALE_ASSIGN_OR_RETURN(const json body, JsonBody(call.request()));
  INFERSCALE_ASSIGN_OR_RETURN(const std::optional<std::string> query, StringField(body, "query"));
  if (!query || TrimWhitespace(*query).empty()) return InvalidArgument("'query' is blank");
  INFERSCALE_ASSIGN_OR_RETURN(const std::int64_t limit,
                              CountField(body, "limit", platform ? 1 : 0, kMaxResults,
                                         platform ? kPlatformTopK : kServerTopK));
  INFERSCALE_ASSIGN_OR_RETURN(const std::int64_t top_k,
                              CountField(body, "top_k", platform ? 1 : 0, kMaxResults, limit));
  INFERSCALE_ASSIGN_OR_RETURN(const std::optional<double> threshold,
                              NumberField(body, "threshold", 0, 1));
  INFERSCALE_ASSIGN_OR_RETURN(const bool show_expired, FlagField(body, "show_expired", false));
  INFERSCALE_ASSIGN_OR_RETURN(const bool explain, FlagField(body, "explain", false));
  INFERSCALE_ASSIGN_OR_RETURN(const std::vector<std::string> fields, TextsField(body, "fields"));
  INFERSCALE_ASSIGN_OR_RETURN(const json filters, FiltersOf(body));
  INFERSCALE_ASSIGN_OR_RETURN(const Selected selected,
                              Select(service.catalog(), call.principal, filters, dialect));

  std::vector<SearchHit> hits;
  for (const Selection& part : selected.parts) {
    SearchRequest request;
    request.scopes = part.scopes;
    request.query = *query;
    request.top_k = static_cast<std::int32_t>(top_k);
    request.threshold = threshold.value_or(kThreshold);
    request.filter = part.filter.get();
    request.show_expired = show_expired;
    INFERSCALE_ASSIGN_OR_RETURN(std::vector<SearchHit> found, service.Search(request));
    hits.insert(hits.end(), std::make_move_iterator(found.begin()),
                std::make_move_iterator(found.end()));
  }
  std::stable_sort(hits.begin(), hits.end(),
                   [](const SearchHit& a, const SearchHit& b) { return a.score > b.score; });
  if (hits.size() > static_cast<std::size_t>(top_k)) hits.resize(static_cast<std::size_t>(top_k));
  Item results = Item::array();
  for (const SearchHit& hit : hits) {
    const Scope& owner = selected.owners.at(hit.fact.scope_id);
    results.push_back(
        Projected(HitItem(hit, owner, dialect, threshold.value_or(kThreshold), explain), fields));
  }
  return JsonResponse(Item{{"results", std::move(results)}});
}

struct Page {
  std::vector<Fact> facts;
  std::int64_t count = 0;
};

/// Newest first, over all parts.
Result<Page> ReadPage(Catalog& catalog, const Selected& selected, std::int64_t offset,
                      std::int64_t limit, bool show_expired, bool latest_only) {
  Page page;
  const bool one = selected.parts.size() == 1;
  for (const Selection& part : selected.parts) {
    FactQuery query;
    query.scopes = part.scopes;
    query.filter = part.filter.get();
    query.show_expired = show_expired;
    query.show_superseded = !latest_only;
    query.offset = one ? offset : 0;
    query.limit = one ? limit : offset + limit;
    INFERSCALE_ASSIGN_OR_RETURN(const std::int64_t count, catalog.CountFacts(query));
    page.count += count;
    INFERSCALE_ASSIGN_OR_RETURN(std::vector<Fact> facts, catalog.ListFacts(query));
    page.facts.insert(page.facts.end(), std::make_move_iterator(facts.begin()),
                      std::make_move_iterator(facts.end()));
  }
  if (one) return page;
  std::stable_sort(page.facts.begin(), page.facts.end(),
                   [](const Fact& a, const Fact& b) { return a.created_at_ms > b.created_at_ms; });
  const auto size = static_cast<std::int64_t>(page.facts.size());
  page.facts.erase(page.facts.begin(), page.facts.begin() + std::min(offset, size));
  if (static_cast<std::int64_t>(page.facts.size()) > limit) {
    page.facts.resize(static_cast<std::size_t>(limit));
  }
  return page;
}

/// The address of another page of the same list.
Item PageLink(const HttpRequest& request, std::int64_t page, std::int64_t size) {
  const std::string* host = request.Header("host");
  const std::string* protocol = request.Header("x-forwarded-proto");
  const std::string path = request.target.substr(0, request.target.find('?'));
  std::string link;
  if (host != nullptr) {
    link = (protocol != nullptr && *protocol == "https" ? "https://" : "http://") + *host;
  }
  return link + path + "?page=" + std::to_string(page) + "&page_size=" + std::to_string(size);
}

/// \param body what was asked for, the query string's words among it
Answer ListPage(MemoryService& service, const ApiCall& call, const json& body) {
  INFERSCALE_ASSIGN_OR_RETURN(const std::int64_t number, CountField(body, "page", 1, kMaxPage, 1));
  INFERSCALE_ASSIGN_OR_RETURN(const std::int64_t size,
                              CountField(body, "page_size", 1, kMaxResults, kPageSize));
  INFERSCALE_ASSIGN_OR_RETURN(const bool show_expired, FlagField(body, "show_expired", false));
  INFERSCALE_ASSIGN_OR_RETURN(const bool latest_only, FlagField(body, "latest_only", false));
  INFERSCALE_ASSIGN_OR_RETURN(const std::vector<std::string> fields, TextsField(body, "fields"));
  INFERSCALE_ASSIGN_OR_RETURN(const json filters, FiltersOf(body));
  INFERSCALE_ASSIGN_OR_RETURN(const Selected selected,
                              Select(service.catalog(), call.principal, filters, kPlatform));
  INFERSCALE_ASSIGN_OR_RETURN(
      const Page page,
      ReadPage(service.catalog(), selected, (number - 1) * size, size, show_expired, latest_only));
  Item answer;
  answer["count"] = page.count;
  answer["next"] = number * size < page.count ? PageLink(call.request(), number + 1, size) : Item();
  answer["previous"] = number > 1 ? PageLink(call.request(), number - 1, size) : Item();
  answer["results"] = Item::array();
  for (const Fact& fact : page.facts) {
    answer["results"].push_back(
        Projected(MemoryItem(fact, selected.owners.at(fact.scope_id), kPlatform), fields));
  }
  return JsonResponse(answer);
}

Answer ListByBody(MemoryService& service, const ApiCall& call) {
  INFERSCALE_ASSIGN_OR_RETURN(json body, JsonBody(call.request()));
  INFERSCALE_ASSIGN_OR_RETURN(const json query, QueryAsBody(call.request()));
  for (const char* name : {"page", "page_size"}) {
    if (query.contains(name)) body[name] = query[name];
  }
  return ListPage(service, call, body);
}

Answer ListByQuery(MemoryService& service, const ApiCall& call) {
  INFERSCALE_ASSIGN_OR_RETURN(const json query, QueryAsBody(call.request()));
  return ListPage(service, call, query);
}

/// The self-hosted server's list: no pages; without an owner everything, for admins.
Answer ListAll(MemoryService& service, const ApiCall& call) {
  INFERSCALE_ASSIGN_OR_RETURN(const json query, QueryAsBody(call.request()));
  INFERSCALE_ASSIGN_OR_RETURN(const std::int64_t limit,
                              CountField(query, "limit", 0, kMaxResults, kPageSize));
  INFERSCALE_ASSIGN_OR_RETURN(const std::int64_t top_k,
                              CountField(query, "top_k", 0, kMaxResults, limit));
  INFERSCALE_ASSIGN_OR_RETURN(const bool show_expired, FlagField(query, "show_expired", false));
  INFERSCALE_ASSIGN_OR_RETURN(json filters, FiltersOf(query));
  Principal principal = call.principal;
  const bool everything = filters.empty() && !principal.bound;
  if (everything) {
    if (!principal.admin) {
      return ErrorResponse(call.request(), kServer,
                           InvalidArgument("listing everybody's memories needs an admin's key; "
                                           "give user_id, agent_id or run_id"),
                           403, "admin_required");
    }
    principal.bound = Scope();  // of no owner: all that the tenant has
  }
  INFERSCALE_ASSIGN_OR_RETURN(const Selected selected,
                              Select(service.catalog(), principal, filters, kServer));
  INFERSCALE_ASSIGN_OR_RETURN(const Page page,
                              ReadPage(service.catalog(), selected, 0, top_k, show_expired, false));
  Item results = Item::array();
  for (const Fact& fact : page.facts) {
    Item item = MemoryItem(fact, selected.owners.at(fact.scope_id), kServer);
    if (everything) {
      for (const char* name : {"user_id", "agent_id", "run_id", "expiration_date"}) {
        if (!item.contains(name)) item[name] = nullptr;
      }
    }
    results.push_back(std::move(item));
  }
  return JsonResponse(Item{{"results", std::move(results)}});
}

Answer Get(MemoryService& service, const ApiCall& call, ErrorDialect dialect) {
  const Result<OwnedFact> owned = FindVisible(service, call.principal, call.parameter("memory_id"));
  if (!owned.ok()) {
    if (dialect == kServer && owned.status().code() == StatusCode::kNotFound) {
      return JsonResponse(nullptr);
    }
    return owned.status();
  }
  Item item = MemoryItem(owned->fact, owned->scope, dialect);
  if (dialect == kServer) item["score"] = nullptr;
  return JsonResponse(item);
}

/// Also of a memory that was deleted: its history knows whose it was.
Answer History(MemoryService& service, const ApiCall& call, ErrorDialect dialect) {
  const auto unknown = [&]() -> Answer {
    if (dialect == kServer) return JsonResponse(Item::array());
    return NotFound("Memory not found");
  };
  const std::string& id = call.parameter("memory_id");
  INFERSCALE_ASSIGN_OR_RETURN(const std::vector<HistoryEntry> history, service.History(id));
  if (history.empty()) return unknown();
  const Result<ScopeInfo> scope = service.catalog().GetScope(history.front().scope_id);
  if (!scope.ok() || !MaySee(call.principal, scope->scope)) return unknown();
  std::vector<Turn> input;
  if (dialect == kPlatform) {
    if (const Result<Fact> fact = service.Get(id); fact.ok()) {
      INFERSCALE_ASSIGN_OR_RETURN(input, service.catalog().GetTurns(fact->source_turns));
    }
  }
  Item rows = Item::array();
  for (const HistoryEntry& entry : history) {
    rows.push_back(HistoryItem(entry, scope->scope, input, dialect));
  }
  return JsonResponse(rows);
}

}  // namespace

void AddReadingRoutes(Registrar& registrar) {
  registrar.Add("POST", "/search", kServer, In(kServer, Search));
  registrar.Add("GET", "/memories", kServer, ListAll);
  registrar.Add("GET", "/memories/{memory_id}", kServer, In(kServer, Get));
  registrar.Add("GET", "/memories/{memory_id}/history", kServer, In(kServer, History));

  for (const char* version : {"/v1", "/v2", "/v3"}) {
    const std::string memories = std::string(version) + "/memories";
    registrar.Add("POST", memories + "/search", kPlatform, In(kPlatform, Search));
    registrar.Add("GET", memories + "/{memory_id}", kPlatform, In(kPlatform, Get));
    registrar.Add("GET", memories + "/{memory_id}/history", kPlatform, In(kPlatform, History));
    registrar.Add("GET", memories, kPlatform, ListByQuery);
  }
  registrar.Add("POST", "/v2/memories", kPlatform, ListByBody);
  registrar.Add("POST", "/v3/memories", kPlatform, ListByBody);
}

}  // namespace inferscale::mem0
