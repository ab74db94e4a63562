#include "catalog/catalog_rows.h"
#include "catalog/sqlite_catalog.h"

namespace inferscale::catalog {

Result<Fact> SqliteCatalog::GetFact(const std::string& id) {
  return Read([&](Connection& connection) -> Result<Fact> {
    auto found = FindFact(connection, id);
    if (!found) return UnknownFact(id);
    return std::move(found->fact);
  });
}

Result<std::vector<Fact>> SqliteCatalog::GetFacts(std::span<const std::string> ids) {
  return Read([&](Connection& connection) -> Result<std::vector<Fact>> {
    std::vector<Fact> facts;
    facts.reserve(ids.size());
    for (const std::string& id : ids) {
      if (auto found = FindFact(connection, id)) facts.push_back(std::move(found->fact));
    }
    return facts;
  });
}

Result<std::vector<Fact>> SqliteCatalog::ListFacts(const FactQuery& query) {
  if (query.offset < 0 || query.limit < 0) {
    return InvalidArgument("offset and limit must not be negative");
  }
  if (query.scopes.empty()) return std::vector<Fact>();
  const std::string sql = "SELECT " + std::string(kFactColumns) + " FROM facts WHERE " +
                          FactCondition(query) +
                          " ORDER BY facts.created_at_ms DESC, facts.row DESC LIMIT ? OFFSET ?";
  return Read([&](Connection& connection) -> Result<std::vector<Fact>> {
    Query list(connection, sql, Query::Reuse::kOneOff);
    BindFactQuery(query, Now(), list);
    list.Bind(query.limit).Bind(query.offset);
    std::vector<Fact> facts;
    while (list.Step()) facts.push_back(ReadFact(list));
    return facts;
  });
}

Result<std::int64_t> SqliteCatalog::CountFacts(const FactQuery& query) {
  if (query.scopes.empty()) return std::int64_t{0};
  const std::string sql = "SELECT count(*) FROM facts WHERE " + FactCondition(query);
  return Read([&](Connection& connection) -> Result<std::int64_t> {
    Query count(connection, sql, Query::Reuse::kOneOff);
    BindFactQuery(query, Now(), count);
    count.Step();
    return count.Integer(0);
  });
}

Result<std::vector<Fact>> SqliteCatalog::OldestFacts(ScopeId scope, std::int32_t count,
                                                     WhichFacts which) {
  if (count <= 0) return std::vector<Fact>();
  static const std::string kSql = "SELECT " + std::string(kFactColumns) +
                                  " FROM facts WHERE scope_id = ? AND superseded_by = '' AND "
                                  "(name = '' OR NOT ?) ORDER BY created_at_ms, row LIMIT ?";
  return Read([&](Connection& connection) -> Result<std::vector<Fact>> {
    Query query(connection, kSql);
    query.Bind(scope).Bind(which == WhichFacts::kNameless ? 1 : 0).Bind(count);
    std::vector<Fact> facts;
    while (query.Step()) facts.push_back(ReadFact(query));
    return facts;
  });
}

Result<std::vector<HistoryEntry>> SqliteCatalog::History(const std::string& fact_id) {
  return Read([&](Connection& connection) -> Result<std::vector<HistoryEntry>> {
    Query query(connection,
                "SELECT id, fact_id, old_text, new_text, event, actor_id, role, created_at_ms, "
                "updated_at_ms, is_deleted, scope_id FROM history WHERE fact_id = ? "
                "ORDER BY created_at_ms, updated_at_ms, row");
    query.Bind(fact_id);
    std::vector<HistoryEntry> entries;
    while (query.Step()) {
      HistoryEntry entry;
      entry.id = query.Text(0);
      entry.fact_id = query.Text(1);
      if (!query.IsNull(2)) entry.old_text = query.Text(2);
      if (!query.IsNull(3)) entry.new_text = query.Text(3);
      entry.event = query.Text(4);
      entry.actor_id = query.Text(5);
      entry.role = query.Text(6);
      entry.created_at_ms = query.Integer(7);
      entry.updated_at_ms = query.Integer(8);
      entry.is_deleted = query.Integer(9) != 0;
      entry.scope_id = query.Integer(10);
      entries.push_back(std::move(entry));
    }
    return entries;
  });
}

}  // namespace inferscale::catalog
