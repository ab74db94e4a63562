#include "catalog/catalog_rows.h"

#include <algorithm>
#include <charconv>

#include "base/bytes.h"
#include "base/clock.h"
#include "base/hash.h"
#include "base/random.h"
#include "base/utf8.h"
#include "catalog/filter.h"

namespace inferscale::catalog {
namespace {

std::vector<TurnId> ParseIds(std::string_view list) {
  std::vector<TurnId> ids;
  const char* at = list.data();
  const char* end = at + list.size();
  while (at < end) {
    TurnId id = 0;
    const auto parsed = std::from_chars(at, end, id);
    if (parsed.ec != std::errc()) break;
    ids.push_back(id);
    at = parsed.ptr < end ? parsed.ptr + 1 : end;
  }
  std::sort(ids.begin(), ids.end());
  return ids;
}

}  // namespace

Fact ReadFact(Query& query) {
  Fact fact;
  fact.id = query.Text(0);
  fact.scope_id = query.Integer(1);
  fact.text = query.Text(2);
  fact.name = query.Text(3);
  fact.role = query.Text(4);
  fact.actor_id = query.Text(5);
  fact.metadata_json = query.Text(6);
  fact.event_time_ms = query.Integer(7);
  fact.created_at_ms = query.Integer(8);
  fact.updated_at_ms = query.Integer(9);
  fact.expiration_date = query.Text(10);
  fact.superseded_by = query.Text(11);
  fact.version = query.Integer(12);
  if (!query.IsNull(13)) fact.source_turns = ParseIds(query.Text(13));
  return fact;
}

std::optional<FactRow> FindFact(Connection& connection, std::string_view id) {
  static const std::string kSql =
      "SELECT " + std::string(kFactColumns) + ", facts.row FROM facts WHERE id = ?";
  Query query(connection, kSql);
  if (!query.Bind(id).Step()) return std::nullopt;
  FactRow found;
  found.fact = ReadFact(query);
  found.row = query.Integer(kFactColumnCount);
  return found;
}

std::vector<std::uint8_t> EqualityHash(std::string_view text) {
  const Sha256Digest digest = Sha256(NormalizeForEquality(text));
  return {digest.begin(), digest.end()};
}

std::string FindEqual(Connection& connection, ScopeId scope,
                      std::span<const std::uint8_t> equality_hash) {
  Query query(connection,
              "SELECT id FROM facts WHERE scope_id = ? AND equality_hash = ? "
              "AND superseded_by = ''");
  return query.Bind(scope).Bind(equality_hash).Step() ? query.Text(0) : std::string();
}

std::int64_t NextLoadRow(Connection& connection) {
  Query query(connection,
              "INSERT INTO meta(name, value) VALUES('catalog.load_row', 1) "
              "ON CONFLICT(name) DO UPDATE SET value = value + 1 RETURNING value");
  query.Step();
  const std::int64_t row = query.Integer(0);
  query.Run();
  return row;
}

std::optional<std::int64_t> FindName(Connection& connection, std::string_view name) {
  Query query(connection, "SELECT id FROM names WHERE name = ?");
  if (!query.Bind(name).Step()) return std::nullopt;
  return query.Integer(0);
}

std::int64_t InternName(Connection& connection, std::string_view name) {
  if (const auto found = FindName(connection, name)) return *found;
  Query(connection, "INSERT INTO names(name) VALUES(?)").Bind(name).Run();
  return connection.LastInsertRow();
}

void IndexKeywords(Connection& connection, std::int64_t row, ScopeId scope,
                   std::string_view indexed_text) {
  Query(connection, "INSERT INTO keywords(rowid, scope, terms) VALUES(?, ?, ?)")
      .Bind(row)
      .Bind("s" + std::to_string(scope))
      .Bind(indexed_text)
      .Run();
}

void StoreEmbedding(Connection& connection, std::int64_t row, std::int64_t embedder,
                    std::span<const std::uint8_t> vector) {
  Query(connection, "INSERT OR REPLACE INTO embeddings(fact_row, embedder, vector) VALUES(?, ?, ?)")
      .Bind(row)
      .Bind(embedder)
      .Bind(vector)
      .Run();
}

void AddHistory(Connection& connection, const HistoryEvent& event) {
  Query query(
      connection,
      "INSERT INTO history(id, fact_id, scope_id, old_text, new_text, event, actor_id, role, "
      "created_at_ms, updated_at_ms, is_deleted, other_fact_id) "
      "VALUES(?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)");
  query.Bind(NewUuid())
      .Bind(event.fact->id)
      .Bind(event.fact->scope_id)
      .BindOptional(event.old_text)
      .BindOptional(event.new_text)
      .Bind(event.event)
      .Bind(event.fact->actor_id)
      .Bind(event.fact->role)
      .Bind(event.created_at_ms)
      .Bind(event.updated_at_ms)
      .Bind(event.is_deleted ? 1 : 0)
      .Bind(event.other_fact_id)
      .Run();
}

void TouchScope(Connection& connection, ScopeId scope, std::int64_t facts_added, TimeMs now) {
  Query(connection,
        "UPDATE scopes SET revision = revision + 1, facts = facts + ?, updated_at_ms = ? "
        "WHERE id = ?")
      .Bind(facts_added)
      .Bind(now)
      .Bind(scope)
      .Run();
}

void RaiseEpoch(Connection& connection, ScopeId scope, std::int64_t facts_added, TimeMs now,
                Erasure& erasure) {
  TouchScope(connection, scope, facts_added, now);
  Query(connection, "UPDATE scopes SET epoch = epoch + 1 WHERE id = ?").Bind(scope).Run();
  Query query(connection, "SELECT epoch, tag FROM scopes WHERE id = ?");
  if (!query.Bind(scope).Step()) return;
  erasure.epoch = static_cast<std::uint64_t>(query.Integer(0));
  erasure.scope_tag = static_cast<std::uint64_t>(query.Integer(1));
}

std::optional<KvKey> KeyFromBlob(std::span<const std::uint8_t> blob) {
  KvKey key;
  if (blob.size() != key.bytes.size()) return std::nullopt;
  std::copy(blob.begin(), blob.end(), key.bytes.begin());
  return key;
}

void TakeKv(Connection& connection, Query& records, std::vector<KvKey>& keys) {
  std::vector<KvKey> taken;
  while (records.Step()) {
    if (const auto key = KeyFromBlob(records.Blob(1))) taken.push_back(*key);
  }
  records.Reset();
  // Two facts served alike share a block; when it goes, it goes for both.
  for (const KvKey& key : taken) {
    Query(connection, "DELETE FROM kv_records WHERE key = ?")
        .Bind(std::span<const std::uint8_t>(key.bytes))
        .Run();
  }
  keys.insert(keys.end(), taken.begin(), taken.end());
}

void TakeKvOfFact(Connection& connection, std::int64_t fact_row, std::vector<KvKey>& keys) {
  Query records(connection, "SELECT id, key FROM kv_records WHERE fact_row = ?");
  records.Bind(fact_row);
  TakeKv(connection, records, keys);
}

void TakeKvThatSaw(Connection& connection, std::string_view saw, std::vector<KvKey>& keys) {
  Query records(
      connection,
      "SELECT id, key FROM kv_records WHERE id IN (SELECT record FROM kv_saw WHERE saw = ?)");
  records.Bind(saw);
  TakeKv(connection, records, keys);
}

void DropLedgerOfFact(Connection& connection, std::string_view fact_id) {
  Query(connection,
        "DELETE FROM ledger WHERE id IN (SELECT ledger_id FROM ledger_facts WHERE fact_id = ?)")
      .Bind(fact_id)
      .Run();
}

void DropLedgerOfScope(Connection& connection, ScopeId scope) {
  Query(connection,
        "DELETE FROM ledger WHERE id IN (SELECT ledger_id FROM ledger_facts WHERE fact_id IN "
        "(SELECT id FROM facts WHERE scope_id = ?))")
      .Bind(scope)
      .Run();
  Query(connection, "DELETE FROM ledger WHERE scope_id = ?").Bind(scope).Run();
}

void RecordErasure(Connection& connection, Erasure& erasure) {
  std::sort(erasure.keys.begin(), erasure.keys.end());
  erasure.keys.erase(std::unique(erasure.keys.begin(), erasure.keys.end()), erasure.keys.end());
  std::vector<std::uint8_t> keys;
  keys.reserve(erasure.keys.size() * sizeof(KvKey::bytes));
  for (const KvKey& key : erasure.keys) keys.insert(keys.end(), key.bytes.begin(), key.bytes.end());
  Query(connection, "INSERT INTO erasures(scope_tag, epoch, whole_scope, keys) VALUES(?, ?, ?, ?)")
      .Bind(erasure.scope_tag)
      .Bind(erasure.epoch)
      .Bind((erasure.whole_scope ? kErasesScope : 0) | (erasure.prefixes ? kErasesPrefixes : 0))
      .Bind(keys)
      .Run();
  erasure.id = connection.LastInsertRow();
}

void DropIdleJobs(Connection& connection, ScopeId scope) {
  Query(connection,
        "DELETE FROM jobs WHERE scope_id = ? AND NOT EXISTS (SELECT 1 FROM job_turns JOIN turns ON "
        "turns.id = job_turns.turn_id WHERE job_turns.job_id = jobs.id AND NOT turns.consumed)")
      .Bind(scope)
      .Run();
}

void RemoveFact(Connection& connection, const FactRow& found, std::vector<KvKey>& keys) {
  TakeKvOfFact(connection, found.row, keys);
  TakeKvThatSaw(connection, found.fact.id, keys);
  DropLedgerOfFact(connection, found.fact.id);
  Query(connection, "DELETE FROM keywords WHERE rowid = ?").Bind(found.row).Run();
  Query(connection, "DELETE FROM facts WHERE row = ?").Bind(found.row).Run();
  // What it contradicted is contradicted by its successor now, or holds again; unless an equal fact
  // has come since, which then serves in its place.
  Query(connection, "UPDATE OR IGNORE facts SET superseded_by = ? WHERE superseded_by = ?")
      .Bind(found.fact.superseded_by)
      .Bind(found.fact.id)
      .Run();
}

Status UnknownFact(std::string_view id) {
  return NotFound("there is no memory with id '" + std::string(TruncateUtf8(id, 100)) + "'");
}

Status UnknownScope(ScopeId id) {
  return NotFound("there is no scope " + std::to_string(id) + " (any more)");
}

Status CheckScopeExists(Connection& connection, ScopeId id) {
  Query query(connection, "SELECT 1 FROM scopes WHERE id = ?");
  return query.Bind(id).Step() ? OkStatus() : UnknownScope(id);
}

std::string FactCondition(const FactQuery& query) {
  // One scope, the usual case, reads the index in order.
  std::string condition = query.scopes.size() == 1
                              ? "facts.scope_id = ?"
                              : "facts.scope_id IN (SELECT value FROM json_each(?))";
  if (!query.show_expired) {
    condition += " AND (facts.expiration_date = '' OR facts.expiration_date >= ?)";
  }
  if (!query.show_superseded) condition += " AND facts.superseded_by = ''";
  if (query.filter != nullptr) condition += " AND (" + query.filter->sql().condition + ")";
  return condition;
}

void BindFactQuery(const FactQuery& query, TimeMs now, Query& statement) {
  if (query.scopes.size() == 1) {
    statement.Bind(query.scopes.front());
  } else {
    statement.Bind(JsonArray(query.scopes));
  }
  if (!query.show_expired) statement.Bind(FormatDate(now));
  if (query.filter != nullptr) {
    for (const auto& binding : query.filter->sql().bindings) {
      std::visit([&](const auto& value) { statement.Bind(value); }, binding);
    }
  }
}

std::string JsonArray(std::span<const std::int64_t> values) {
  std::string text = "[";
  for (const std::int64_t value : values) {
    if (text.size() > 1) text.push_back(',');
    text += std::to_string(value);
  }
  text.push_back(']');
  return text;
}

}  // namespace inferscale::catalog
