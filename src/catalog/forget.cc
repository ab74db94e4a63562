#include "catalog/catalog_rows.h"
#include "catalog/erasing.h"
#include "catalog/sqlite_catalog.h"

namespace inferscale::catalog {
namespace {

void MarkForScrub(Connection& connection) {
  Query(connection, "INSERT OR REPLACE INTO meta(name, value) VALUES('catalog.scrub', 1)").Run();
}

/// Scope of a fact that lives, or has left only history; 0: never heard of.
ScopeId ScopeOfPastFact(Connection& connection, const std::string& id) {
  Query query(connection, "SELECT scope_id FROM history WHERE fact_id = ? LIMIT 1");
  return query.Bind(id).Step() ? query.Integer(0) : 0;
}

/// The scopes that conversations about scope ?1 may be kept under: its own and all wider ones.
constexpr std::string_view kReaders =
    "(SELECT reader.id FROM scopes AS reader JOIN scopes AS owner ON owner.id = ?1 AND "
    "reader.tenant = owner.tenant AND reader.user IN ('', owner.user) AND "
    "reader.agent IN ('', owner.agent) AND reader.run IN ('', owner.run) AND "
    "reader.app IN ('', owner.app))";

void DropLedgerOfReaders(Connection& connection, ScopeId scope) {
  static const std::string kSql = "DELETE FROM ledger WHERE scope_id IN " + std::string(kReaders);
  Query(connection, kSql).Bind(scope).Run();
}

/// Turns that repeat what the history of `fact_id` (empty: of all facts of the scope) says, and
/// that no live fact needs: what a chat remembered of served facts, and what waits to be extracted.
std::vector<TurnId> TurnsThatRepeat(Connection& connection, ScopeId scope,
                                    const std::string& fact_id) {
  static const std::string kSql =
      "WITH said(text) AS (SELECT lower(new_text) FROM history WHERE scope_id = ?1 AND "
      "(?2 = '' OR fact_id = ?2) AND new_text IS NOT NULL AND event <> 'SUPERSEDE' UNION SELECT "
      "lower(old_text) FROM history "
      "WHERE scope_id = ?1 AND (?2 = '' OR fact_id = ?2) AND old_text IS NOT NULL) "
      "SELECT id FROM turns WHERE scope_id IN " +
      std::string(kReaders) +
      " AND (?2 <> '' OR scope_id <> ?1) AND NOT EXISTS (SELECT 1 FROM fact_sources JOIN facts ON "
      "facts.id = fact_sources.fact_id WHERE turn_id = turns.id) AND EXISTS "
      "(SELECT 1 FROM said WHERE instr(lower(content), text))";
  Query query(connection, kSql);
  query.Bind(scope).Bind(fact_id);
  std::vector<TurnId> turns;
  while (query.Step()) turns.push_back(query.Integer(0));
  return turns;
}

void ForgetTurns(Connection& connection, const std::vector<TurnId>& turns,
                 std::vector<KvKey>& keys) {
  for (const TurnId turn : turns) {
    TakeKvThatSaw(connection, "turn:" + std::to_string(turn), keys);
    // What went wrong with a job may quote what it read.
    Query(connection,
          "UPDATE jobs SET last_error = '' WHERE id IN "
          "(SELECT job_id FROM job_turns WHERE turn_id = ?)")
        .Bind(turn)
        .Run();
    Query scope(connection, "SELECT scope_id FROM turns WHERE id = ?");
    const ScopeId owner = scope.Bind(turn).Step() ? scope.Integer(0) : 0;
    scope.Reset();
    Query(connection, "DELETE FROM turns WHERE id = ?").Bind(turn).Run();
    DropIdleJobs(connection, owner);
  }
}

/// \return the turns that are gone.
std::vector<TurnId> ForgetTurnsOf(Connection& connection, const std::string& fact_id,
                                  std::vector<KvKey>& keys) {
  std::vector<TurnId> turns;
  {
    Query query(connection,
                "SELECT turn_id FROM fact_sources AS mine WHERE fact_id = ?1 AND NOT EXISTS "
                "(SELECT 1 FROM fact_sources AS other JOIN facts ON facts.id = other.fact_id "
                "WHERE other.turn_id = mine.turn_id AND other.fact_id <> ?1)");
    query.Bind(fact_id);
    while (query.Step()) turns.push_back(query.Integer(0));
  }
  ForgetTurns(connection, turns, keys);
  Query(connection,
        "UPDATE turns SET consumed = 1 WHERE id IN "
        "(SELECT turn_id FROM fact_sources WHERE fact_id = ?)")
      .Bind(fact_id)
      .Run();
  Query(connection, "DELETE FROM fact_sources WHERE fact_id = ?").Bind(fact_id).Run();
  return turns;
}

void ForgetHistoryOf(Connection& connection, const std::string& fact_id) {
  Query(connection, "DELETE FROM history WHERE fact_id = ?").Bind(fact_id).Run();
  Query(connection,
        "UPDATE history SET new_text = NULL, other_fact_id = '' WHERE other_fact_id = ?")
      .Bind(fact_id)
      .Run();
}

void ForgetScope(Connection& connection, ScopeId scope, std::vector<KvKey>& keys) {
  Query records(
      connection,
      "SELECT id, key FROM kv_records WHERE fact_row IN "
      "(SELECT row FROM facts WHERE scope_id = ?1) OR id IN "
      "(SELECT record FROM kv_saw WHERE saw IN (SELECT id FROM facts WHERE scope_id = ?1)) "
      "OR id IN (SELECT record FROM kv_saw WHERE saw IN "
      "(SELECT 'turn:' || id FROM turns WHERE scope_id = ?1))");
  records.Bind(scope);
  TakeKv(connection, records, keys);
  DropLedgerOfScope(connection, scope);
  DropLedgerOfReaders(connection, scope);
  ForgetTurns(connection, TurnsThatRepeat(connection, scope, ""), keys);
  Query(connection,
        "DELETE FROM keywords WHERE rowid IN (SELECT row FROM facts WHERE scope_id = ?)")
      .Bind(scope)
      .Run();
  for (const char* sql :
       {"DELETE FROM facts WHERE scope_id = ?", "DELETE FROM history WHERE scope_id = ?",
        "DELETE FROM jobs WHERE scope_id = ?", "DELETE FROM turns WHERE scope_id = ?",
        "DELETE FROM scopes WHERE id = ?"}) {
    Query(connection, sql).Bind(scope).Run();
  }
}

}  // namespace

Result<Erasure> ForgetFactRows(Connection& connection, const std::string& id, TimeMs now,
                               ErasureEntry* entry) {
  Erasure erasure;
  const auto found = FindFact(connection, id);
  const ScopeId scope = found ? found->fact.scope_id : ScopeOfPastFact(connection, id);
  if (scope == 0) return UnknownFact(id);
  if (found) RemoveFact(connection, *found, erasure.keys);
  entry->turns = ForgetTurnsOf(connection, id, erasure.keys);
  const std::vector<TurnId> repeating = TurnsThatRepeat(connection, scope, id);
  ForgetTurns(connection, repeating, erasure.keys);
  entry->turns.insert(entry->turns.end(), repeating.begin(), repeating.end());
  ForgetHistoryOf(connection, id);
  DropIdleJobs(connection, scope);
  // Conversations may quote the fact, or be the one that it came from.
  DropLedgerOfScope(connection, scope);
  DropLedgerOfReaders(connection, scope);
  erasure.prefixes = true;
  RaiseEpoch(connection, scope, found ? -1 : 0, now, erasure);
  RecordErasure(connection, erasure);
  MarkForScrub(connection);
  entry->kind = ErasureEntry::Kind::kForgetFact;
  entry->at_ms = now;
  entry->fact_hash = FactIdHash(id);
  return erasure;
}

Result<Erasure> ForgetScopeRows(Connection& connection, ScopeId scope, TimeMs now,
                                ErasureEntry* entry) {
  INFERSCALE_RETURN_IF_ERROR(CheckScopeExists(connection, scope));
  Erasure erasure;
  erasure.whole_scope = true;
  erasure.prefixes = true;
  RaiseEpoch(connection, scope, 0, now, erasure);
  ForgetScope(connection, scope, erasure.keys);
  RecordErasure(connection, erasure);
  MarkForScrub(connection);
  entry->kind = ErasureEntry::Kind::kForgetScope;
  entry->at_ms = now;
  entry->scope_tag = erasure.scope_tag;
  return erasure;
}

std::map<std::string, std::string> FactIdsByHash(Connection& connection) {
  std::map<std::string, std::string> ids;
  Query query(connection, "SELECT id FROM facts UNION SELECT fact_id FROM history",
              Query::Reuse::kOneOff);
  while (query.Step()) {
    std::string id = query.Text(0);
    ids.emplace(FactIdHash(id), std::move(id));
  }
  return ids;
}

Status ApplyEntry(Connection& connection, const std::map<std::string, std::string>& ids,
                  const ErasureEntry& entry, TimeMs now) {
  const bool forget = entry.kind == ErasureEntry::Kind::kForgetFact ||
                      entry.kind == ErasureEntry::Kind::kForgetScope;
  ErasureEntry again;
  if (entry.fact_hash.empty()) {
    Query query(connection, "SELECT id FROM scopes WHERE tag = ?");
    const bool known = query.Bind(static_cast<std::int64_t>(entry.scope_tag)).Step();
    const ScopeId scope = known ? query.Integer(0) : 0;
    query.Reset();
    if (!known) return OkStatus();
    return forget ? ForgetScopeRows(connection, scope, now, &again).status()
                  : DeleteScopeRows(connection, scope, now, &again).status();
  }
  const auto known = ids.find(entry.fact_hash);
  if (known != ids.end()) {
    const std::string& id = known->second;
    if (forget) {
      INFERSCALE_RETURN_IF_ERROR(ForgetFactRows(connection, id, now, &again).status());
    } else if (FindFact(connection, id)) {
      INFERSCALE_RETURN_IF_ERROR(DeleteFactRows(connection, id, now, &again).status());
    }
  }
  // Turns that this catalog has, and whose facts it may not have made yet.
  if (forget) {
    Erasure erasure;
    ForgetTurns(connection, entry.turns, erasure.keys);
    if (!erasure.keys.empty()) RecordErasure(connection, erasure);
    MarkForScrub(connection);
    return OkStatus();
  }
  for (const TurnId turn : entry.turns) {
    Query(connection, "UPDATE turns SET consumed = 1 WHERE id = ?").Bind(turn).Run();
    Query scope(connection, "SELECT scope_id FROM turns WHERE id = ?");
    const ScopeId owner = scope.Bind(turn).Step() ? scope.Integer(0) : 0;
    scope.Reset();
    if (owner != 0) DropIdleJobs(connection, owner);
  }
  return OkStatus();
}

Status SqliteCatalog::ScrubIfNeeded() {
  if (!scrub_needed_ || writer_ == nullptr) return OkStatus();
  Connection& connection = *writer_;
  // Deleted words stay in the keyword index until it is made anew, and moved bytes in the unused
  // parts of pages until the file is.
  connection.Execute("INSERT INTO keywords(keywords) VALUES('rebuild')");
  connection.Execute("VACUUM");
  const ReaderPool::Pause no_readers(readers_);
  {
    Query checkpoint(connection, "PRAGMA wal_checkpoint(TRUNCATE)", Query::Reuse::kOneOff);
    if (!checkpoint.Step() || checkpoint.Integer(0) != 0) {
      return Unavailable(file_.string() +
                         "-wal still holds what was forgotten, because another program reads the "
                         "database: close it; the log is emptied with the next forget or start");
    }
  }
  Query(connection, "DELETE FROM meta WHERE name = 'catalog.scrub'").Run();
  scrub_needed_ = false;
  return OkStatus();
}

Result<Erasure> SqliteCatalog::ForgetFact(const std::string& id) {
  const TimeMs now = Now();
  const std::lock_guard lock(write_mutex_);
  Result<Erasure> forgotten = WriteLocked([&](Connection& connection) -> Result<Erasure> {
    ErasureEntry entry;
    INFERSCALE_ASSIGN_OR_RETURN(Erasure erasure, ForgetFactRows(connection, id, now, &entry));
    INFERSCALE_RETURN_IF_ERROR(erasure_log_.Append(std::span(&entry, 1)));
    return erasure;
  });
  if (forgotten.ok()) scrub_needed_ = true;
  const Status scrubbed = Guarded(file_, writer_.get(), [&] { return ScrubIfNeeded(); });
  if (forgotten.ok()) INFERSCALE_RETURN_IF_ERROR(scrubbed);
  return forgotten;
}

Result<std::vector<Erasure>> SqliteCatalog::ForgetScopes(std::span<const ScopeId> scopes) {
  const TimeMs now = Now();
  const std::lock_guard lock(write_mutex_);
  auto forgotten = WriteLocked([&](Connection& connection) -> Result<std::vector<Erasure>> {
    std::vector<Erasure> erasures;
    std::vector<ErasureEntry> entries;
    for (const ScopeId scope : scopes) {
      INFERSCALE_ASSIGN_OR_RETURN(Erasure erasure,
                                  ForgetScopeRows(connection, scope, now, &entries.emplace_back()));
      erasures.push_back(std::move(erasure));
    }
    INFERSCALE_RETURN_IF_ERROR(erasure_log_.Append(entries));
    return erasures;
  });
  if (forgotten.ok() && !scopes.empty()) scrub_needed_ = true;
  const Status scrubbed = Guarded(file_, writer_.get(), [&] { return ScrubIfNeeded(); });
  if (forgotten.ok()) INFERSCALE_RETURN_IF_ERROR(scrubbed);
  return forgotten;
}

Result<std::vector<Erasure>> SqliteCatalog::PendingErasures() {
  return Read([&](Connection& connection) -> Result<std::vector<Erasure>> {
    Query query(connection,
                "SELECT id, scope_tag, epoch, whole_scope, keys FROM erasures ORDER BY id");
    std::vector<Erasure> erasures;
    while (query.Step()) {
      Erasure erasure;
      erasure.id = query.Integer(0);
      erasure.scope_tag = static_cast<std::uint64_t>(query.Integer(1));
      erasure.epoch = static_cast<std::uint64_t>(query.Integer(2));
      erasure.whole_scope = (query.Integer(3) & kErasesScope) != 0;
      erasure.prefixes = (query.Integer(3) & kErasesPrefixes) != 0;
      const std::vector<std::uint8_t> keys = query.Blob(4);
      const std::span<const std::uint8_t> all = keys;
      for (std::size_t at = 0; at + sizeof(KvKey::bytes) <= all.size();
           at += sizeof(KvKey::bytes)) {
        erasure.keys.push_back(*KeyFromBlob(all.subspan(at, sizeof(KvKey::bytes))));
      }
      erasures.push_back(std::move(erasure));
    }
    return erasures;
  });
}

Status SqliteCatalog::CompleteErasure(std::int64_t erasure_id) {
  return Write([&](Connection& connection) -> Status {
    Query(connection, "DELETE FROM erasures WHERE id = ?").Bind(erasure_id).Run();
    return OkStatus();
  });
}

}  // namespace inferscale::catalog
