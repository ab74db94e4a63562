#ifndef INFERSCALE_CATALOG_CATALOG_ROWS_H_
#define INFERSCALE_CATALOG_CATALOG_ROWS_H_

/// \file catalog_rows.h
/// Steps that several methods of the catalog share, all inside a caller's transaction. They throw
/// SQLite::Exception.

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "catalog/connection.h"
#include "inferscale/catalog.h"

namespace inferscale::catalog {

/// Columns of the facts table in the order in which ReadFact() takes them.
inline constexpr std::string_view kFactColumns =
    "facts.id, facts.scope_id, facts.text, facts.name, facts.role, facts.actor_id, facts.metadata, "
    "facts.event_time_ms, facts.created_at_ms, facts.updated_at_ms, facts.expiration_date, "
    "facts.superseded_by, facts.version, "
    "(SELECT group_concat(turn_id) FROM fact_sources WHERE fact_id = facts.id)";
inline constexpr int kFactColumnCount = 14;
Fact ReadFact(Query& query);

struct FactRow {
  std::int64_t row = 0;
  Fact fact;
};
std::optional<FactRow> FindFact(Connection& connection, std::string_view id);

std::vector<std::uint8_t> EqualityHash(std::string_view text);
/// Id of the live fact of the scope that equals a text, or empty.
std::string FindEqual(Connection& connection, ScopeId scope,
                      std::span<const std::uint8_t> equality_hash);

/// The next load_row of a fact.
std::int64_t NextLoadRow(Connection& connection);
/// Small number of an embedder's or encoding's name; made when missing.
std::int64_t InternName(Connection& connection, std::string_view name);
/// The same, or nothing when there is none.
std::optional<std::int64_t> FindName(Connection& connection, std::string_view name);

void IndexKeywords(Connection& connection, std::int64_t row, ScopeId scope,
                   std::string_view indexed_text);
void StoreEmbedding(Connection& connection, std::int64_t row, std::int64_t embedder,
                    std::span<const std::uint8_t> vector);

struct HistoryEvent {
  const char* event = "";
  const Fact* fact = nullptr;  ///< id, scope, actor and role
  std::optional<std::string> old_text, new_text;
  TimeMs created_at_ms = 0, updated_at_ms = 0;
  bool is_deleted = false;
  std::string_view other_fact_id;
};
void AddHistory(Connection& connection, const HistoryEvent& event);

/// Scope's revision and time of change, and `facts_added` (may be negative) more facts.
void TouchScope(Connection& connection, ScopeId scope, std::int64_t facts_added, TimeMs now);
/// The same with the epoch; `erasure` gets the new one and the scope's tag.
void RaiseEpoch(Connection& connection, ScopeId scope, std::int64_t facts_added, TimeMs now,
                Erasure& erasure);

/// Removes the KV records of a fact, of everything that saw `saw` (a fact's id or "turn:ID"), and
/// of whatever shares their blocks; adds the keys to `keys`.
void TakeKvOfFact(Connection& connection, std::int64_t fact_row, std::vector<KvKey>& keys);
void TakeKvThatSaw(Connection& connection, std::string_view saw, std::vector<KvKey>& keys);
/// Removes the records listed by a query of (id, key).
void TakeKv(Connection& connection, Query& records, std::vector<KvKey>& keys);

void DropLedgerOfFact(Connection& connection, std::string_view fact_id);
/// Entries of the scope, and those of others in which one of its facts stands.
void DropLedgerOfScope(Connection& connection, ScopeId scope);

/// Bits of the column `whole_scope` of an erasure.
inline constexpr std::int64_t kErasesScope = 1, kErasesPrefixes = 2;
/// Puts an erasure on the list of those to be done and fills in its id.
void RecordErasure(Connection& connection, Erasure& erasure);

/// An event of a batch: what becomes of `turns` and, if there is one, of their job.
void AddEvent(Connection& connection, const std::string& id, ScopeId scope,
              std::span<const TurnId> turns, std::optional<std::int64_t> job, TimeMs now);

/// Drops jobs that have no turn left to read.
void DropIdleJobs(Connection& connection, ScopeId scope);

/// Takes a live fact out of everything that reads it, its ledger and KV included; history, sources
/// and turns stay.
void RemoveFact(Connection& connection, const FactRow& found, std::vector<KvKey>& keys);

std::optional<KvKey> KeyFromBlob(std::span<const std::uint8_t> blob);
Status UnknownFact(std::string_view id);
Status UnknownScope(ScopeId id);
/// kNotFound unless there is such a scope.
Status CheckScopeExists(Connection& connection, ScopeId id);

/// WHERE clause of a query over facts, without the word; never empty. Bind with BindFactQuery().
std::string FactCondition(const FactQuery& query);
void BindFactQuery(const FactQuery& query, TimeMs now, Query& statement);
/// A JSON array of numbers for json_each().
std::string JsonArray(std::span<const std::int64_t> values);

}  // namespace inferscale::catalog

#endif  // INFERSCALE_CATALOG_CATALOG_ROWS_H_
