#include "base/utf8.h"
#include "catalog/catalog_rows.h"
#include "catalog/erasing.h"
#include "catalog/sqlite_catalog.h"
#include "catalog/text_segments.h"
#include "catalog/validation.h"

namespace inferscale::catalog {
namespace {

Status CheckUpdate(const FactUpdate& update) {
  if (!update.text && !update.metadata_json && !update.expiration_date && !update.event_time_ms &&
      !update.name) {
    return InvalidArgument(
        "the update changes nothing: give a text, metadata, expiration date, "
        "event time or name");
  }
  if (update.text) INFERSCALE_RETURN_IF_ERROR(CheckFactText(*update.text));
  if (update.expiration_date) {
    INFERSCALE_RETURN_IF_ERROR(CheckExpirationDate(*update.expiration_date));
  }
  if (update.name) INFERSCALE_RETURN_IF_ERROR(CheckText("fact name", *update.name));
  if (!update.embedding.empty() && update.embedder_id.empty()) {
    return InvalidArgument("the update has an embedding, but names no embedder");
  }
  return CheckText("embedder id", update.embedder_id);
}

/// Everything of a scope that is served, and its pending work. Turns and history stay.
void RemoveAllFacts(Connection& connection, ScopeId scope, TimeMs now, std::vector<KvKey>& keys) {
  Query records(connection,
                "SELECT id, key FROM kv_records WHERE fact_row IN "
                "(SELECT row FROM facts WHERE scope_id = ?1) OR id IN "
                "(SELECT record FROM kv_saw WHERE saw IN "
                "(SELECT id FROM facts WHERE scope_id = ?1))");
  records.Bind(scope);
  TakeKv(connection, records, keys);
  DropLedgerOfScope(connection, scope);

  Query facts(connection,
              "SELECT id, text, actor_id, role, created_at_ms FROM facts WHERE scope_id = ?");
  facts.Bind(scope);
  while (facts.Step()) {
    Fact fact;
    fact.id = facts.Text(0);
    fact.scope_id = scope;
    fact.actor_id = facts.Text(2);
    fact.role = facts.Text(3);
    HistoryEvent event;
    event.event = "DELETE";
    event.fact = &fact;
    event.old_text = facts.Text(1);
    event.created_at_ms = facts.Integer(4);
    event.updated_at_ms = now;
    event.is_deleted = true;
    AddHistory(connection, event);
  }
  facts.Reset();

  Query(connection,
        "DELETE FROM keywords WHERE rowid IN (SELECT row FROM facts WHERE scope_id = ?)")
      .Bind(scope)
      .Run();
  Query(connection, "DELETE FROM facts WHERE scope_id = ?").Bind(scope).Run();
  Query(connection, "UPDATE turns SET consumed = 1 WHERE scope_id = ? AND NOT consumed")
      .Bind(scope)
      .Run();
  Query(connection, "DELETE FROM jobs WHERE scope_id = ?").Bind(scope).Run();
}

}  // namespace

Result<Erasure> DeleteFactRows(Connection& connection, const std::string& id, TimeMs now,
                               ErasureEntry* entry) {
  const auto found = FindFact(connection, id);
  if (!found) return UnknownFact(id);
  Erasure erasure;
  RemoveFact(connection, *found, erasure.keys);
  Query(connection,
        "UPDATE turns SET consumed = 1 WHERE id IN "
        "(SELECT turn_id FROM fact_sources WHERE fact_id = ?)")
      .Bind(id)
      .Run();
  DropIdleJobs(connection, found->fact.scope_id);
  HistoryEvent event;
  event.event = "DELETE";
  event.fact = &found->fact;
  event.old_text = found->fact.text;
  event.created_at_ms = found->fact.created_at_ms;
  event.updated_at_ms = now;
  event.is_deleted = true;
  AddHistory(connection, event);
  RaiseEpoch(connection, found->fact.scope_id, -1, now, erasure);
  RecordErasure(connection, erasure);
  entry->kind = ErasureEntry::Kind::kDeleteFact;
  entry->at_ms = now;
  entry->fact_hash = FactIdHash(id);
  entry->turns = found->fact.source_turns;
  return erasure;
}

Result<Erasure> DeleteScopeRows(Connection& connection, ScopeId scope, TimeMs now,
                                ErasureEntry* entry) {
  INFERSCALE_RETURN_IF_ERROR(CheckScopeExists(connection, scope));
  Erasure erasure;
  erasure.whole_scope = true;
  RemoveAllFacts(connection, scope, now, erasure.keys);
  RaiseEpoch(connection, scope, 0, now, erasure);
  Query(connection, "UPDATE scopes SET facts = 0 WHERE id = ?").Bind(scope).Run();
  RecordErasure(connection, erasure);
  entry->kind = ErasureEntry::Kind::kDeleteScope;
  entry->at_ms = now;
  entry->scope_tag = erasure.scope_tag;
  return erasure;
}

Result<Erasure> SqliteCatalog::UpdateFact(const std::string& id, const FactUpdate& update) {
  INFERSCALE_RETURN_IF_ERROR(CheckUpdate(update));
  std::optional<std::string> metadata;
  if (update.metadata_json) {
    INFERSCALE_ASSIGN_OR_RETURN(metadata, NormalizeJsonObject("metadata", *update.metadata_json));
  }
  INFERSCALE_ASSIGN_OR_RETURN(const std::vector<std::uint8_t> embedding,
                              EncodeEmbedding(update.embedding));
  const TimeMs now = Now();

  return Write([&](Connection& connection) -> Result<Erasure> {
    const auto found = FindFact(connection, id);
    if (!found) return UnknownFact(id);
    Fact fact = found->fact;
    if (update.text) fact.text = *update.text;
    if (metadata) fact.metadata_json = *metadata;
    if (update.expiration_date) fact.expiration_date = *update.expiration_date;
    if (update.event_time_ms) fact.event_time_ms = *update.event_time_ms;
    if (update.name) fact.name = *update.name;
    const bool text_changed = fact.text != found->fact.text;

    const std::vector<std::uint8_t> hash = EqualityHash(fact.text);
    if (fact.superseded_by.empty()) {
      const std::string equal = FindEqual(connection, fact.scope_id, hash);
      if (!equal.empty() && equal != id) {
        return AlreadyExists("memory '" + equal +
                             "' says the same already: delete one of them instead");
      }
    }
    const bool reload = text_changed || !embedding.empty();
    Query(connection,
          "UPDATE facts SET text = ?, equality_hash = ?, metadata = ?, expiration_date = ?, "
          "event_time_ms = ?, name = ?, updated_at_ms = ?, version = version + 1, "
          "load_row = ifnull(?, load_row) WHERE row = ?")
        .Bind(fact.text)
        .Bind(hash)
        .Bind(fact.metadata_json)
        .Bind(fact.expiration_date)
        .Bind(fact.event_time_ms)
        .Bind(fact.name)
        .Bind(now)
        .BindOptional(reload ? std::optional(NextLoadRow(connection)) : std::nullopt)
        .Bind(found->row)
        .Run();
    if (text_changed) {
      Query(connection, "DELETE FROM keywords WHERE rowid = ?").Bind(found->row).Run();
      IndexKeywords(connection, found->row, fact.scope_id, IndexedText(fact.text));
      Query(connection, "DELETE FROM embeddings WHERE fact_row = ?").Bind(found->row).Run();
    }
    if (!embedding.empty()) {
      StoreEmbedding(connection, found->row, InternName(connection, update.embedder_id), embedding);
    }

    Erasure erasure;
    TakeKvOfFact(connection, found->row, erasure.keys);
    TakeKvThatSaw(connection, id, erasure.keys);
    DropLedgerOfFact(connection, id);
    HistoryEvent event;
    event.event = "UPDATE";
    event.fact = &fact;
    event.old_text = found->fact.text;
    event.new_text = fact.text;
    event.created_at_ms = fact.created_at_ms;
    event.updated_at_ms = now;
    AddHistory(connection, event);
    RaiseEpoch(connection, fact.scope_id, 0, now, erasure);
    RecordErasure(connection, erasure);
    return erasure;
  });
}

Result<Erasure> SqliteCatalog::DeleteFact(const std::string& id) {
  const TimeMs now = Now();
  return Write([&](Connection& connection) -> Result<Erasure> {
    ErasureEntry entry;
    INFERSCALE_ASSIGN_OR_RETURN(Erasure erasure, DeleteFactRows(connection, id, now, &entry));
    INFERSCALE_RETURN_IF_ERROR(erasure_log_.Append(std::span(&entry, 1)));
    return erasure;
  });
}

Result<std::vector<Erasure>> SqliteCatalog::DeleteScopes(std::span<const ScopeId> scopes) {
  const TimeMs now = Now();
  return Write([&](Connection& connection) -> Result<std::vector<Erasure>> {
    std::vector<Erasure> erasures;
    std::vector<ErasureEntry> entries;
    for (const ScopeId scope : scopes) {
      INFERSCALE_ASSIGN_OR_RETURN(Erasure erasure,
                                  DeleteScopeRows(connection, scope, now, &entries.emplace_back()));
      erasures.push_back(std::move(erasure));
    }
    INFERSCALE_RETURN_IF_ERROR(erasure_log_.Append(entries));
    return erasures;
  });
}

}  // namespace inferscale::catalog
