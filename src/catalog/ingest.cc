#include <algorithm>

#include "base/random.h"
#include "base/utf8.h"
#include "catalog/catalog_rows.h"
#include "catalog/sqlite_catalog.h"
#include "catalog/text_segments.h"
#include "catalog/validation.h"

namespace inferscale::catalog {
namespace {

/// What can be computed of a fact before the database is locked.
struct PreparedFact {
  std::string metadata, indexed_text;
  std::vector<std::uint8_t> equality_hash, embedding;
};

Result<std::vector<PreparedFact>> Prepare(const IngestBatch& batch) {
  std::vector<PreparedFact> prepared;
  prepared.reserve(batch.facts.size());
  for (const NewFact& item : batch.facts) {
    PreparedFact fact;
    INFERSCALE_ASSIGN_OR_RETURN(fact.metadata,
                                NormalizeJsonObject("metadata", item.fact.metadata_json));
    INFERSCALE_ASSIGN_OR_RETURN(fact.embedding, EncodeEmbedding(item.embedding));
    fact.indexed_text = IndexedText(item.fact.text);
    fact.equality_hash = EqualityHash(item.fact.text);
    prepared.push_back(std::move(fact));
  }
  return prepared;
}

/// One batch inside its transaction.
class Ingestion {
 public:
  Ingestion(Connection& connection, const IngestBatch& batch, TimeMs now)
      : connection_(connection), batch_(batch), now_(now) {}

  Status FinishJob();
  void AddTurns();
  Status AddFact(const NewFact& item, const PreparedFact& prepared);
  void QueueExtraction(const std::string& payload);
  void RecordEvent() {
    if (batch_.event_id.empty()) return;
    AddEvent(connection_, batch_.event_id, batch_.scope_id, outcome_.turns, outcome_.job_id, now_);
  }
  void TouchScopeIfChanged() {
    if (added_ > 0 || superseded_ > 0) TouchScope(connection_, batch_.scope_id, added_, now_);
  }
  IngestOutcome Take() { return std::move(outcome_); }

 private:
  /// Turns of the batch and turns stored earlier that the fact came from.
  std::vector<TurnId> Sources(const NewFact& item);
  /// The fact's row.
  std::int64_t Insert(const Fact& fact, const PreparedFact& prepared);
  void AddOwnHistory(const Fact& fact);
  void AddGivenHistory(const Fact& fact, const std::vector<HistoryEntry>& history);
  void Supersede(const NewFact& item, const std::string& by);

  Connection& connection_;
  const IngestBatch& batch_;
  const TimeMs now_;
  IngestOutcome outcome_;
  std::int64_t added_ = 0, superseded_ = 0, embedder_ = 0;
};

Status Ingestion::FinishJob() {
  if (!batch_.completes_job) return OkStatus();
  Query(connection_, "DELETE FROM jobs WHERE id = ? AND scope_id = ?")
      .Bind(*batch_.completes_job)
      .Bind(batch_.scope_id)
      .Run();
  if (connection_.Changes() == 1) return OkStatus();
  return FailedPrecondition("job " + std::to_string(*batch_.completes_job) +
                            " is gone: it is done, or its turns were deleted; drop its result");
}

void Ingestion::AddTurns() {
  for (const Turn& turn : batch_.turns) {
    Query(connection_,
          "INSERT INTO turns(scope_id, role, name, content, time_ms) VALUES(?, ?, ?, ?, ?)")
        .Bind(batch_.scope_id)
        .Bind(turn.role)
        .Bind(turn.name)
        .Bind(turn.content)
        .Bind(turn.time_ms != 0 ? turn.time_ms : now_)
        .Run();
    outcome_.turns.push_back(connection_.LastInsertRow());
  }
}

std::vector<TurnId> Ingestion::Sources(const NewFact& item) {
  std::vector<TurnId> sources;
  for (const std::int32_t index : item.source_turn_indexes) {
    sources.push_back(outcome_.turns[static_cast<std::size_t>(index)]);
  }
  for (const TurnId id : item.fact.source_turns) {
    Query known(connection_,
                "SELECT 1 FROM turns WHERE id = ? AND scope_id = ? AND NOT (consumed AND ?)");
    known.Bind(id).Bind(batch_.scope_id).Bind(batch_.completes_job ? 1 : 0);
    if (known.Step()) sources.push_back(id);
  }
  return sources;
}

Status Ingestion::AddFact(const NewFact& item, const PreparedFact& prepared) {
  const std::vector<TurnId> sources = Sources(item);
  // Its turns were deleted, or a fact of theirs was, while a job read them: it must not come back.
  if (batch_.completes_job && sources.empty() && !item.fact.source_turns.empty()) {
    outcome_.facts.push_back({});
    return OkStatus();
  }
  Fact fact = item.fact;
  // Only a current fact can be a duplicate; an outdated one may become true again.
  std::string id = fact.superseded_by.empty()
                       ? FindEqual(connection_, batch_.scope_id, prepared.equality_hash)
                       : std::string();
  const bool is_new = id.empty();
  if (is_new) {
    if (fact.id.empty()) fact.id = NewUuid();
    id = fact.id;
    Query taken(connection_, "SELECT 1 FROM facts WHERE id = ?");
    if (taken.Bind(id).Step()) {
      return AlreadyExists("there is a memory with id '" + std::string(TruncateUtf8(id, 100)) +
                           "' already, with another text");
    }
    const std::int64_t row = Insert(fact, prepared);
    if (item.history.empty()) {
      AddOwnHistory(fact);
    } else {
      AddGivenHistory(fact, item.history);
    }
    if (!prepared.embedding.empty()) {
      if (embedder_ == 0) embedder_ = InternName(connection_, batch_.embedder_id);
      StoreEmbedding(connection_, row, embedder_, prepared.embedding);
    }
    ++added_;
  }
  // A repeated fact has more sources: forgetting it must take them all.
  for (const TurnId turn : sources) {
    Query(connection_, "INSERT OR IGNORE INTO fact_sources(turn_id, fact_id) VALUES(?, ?)")
        .Bind(turn)
        .Bind(id)
        .Run();
  }
  Supersede(item, id);
  outcome_.facts.push_back({std::move(id), is_new});
  return OkStatus();
}

std::int64_t Ingestion::Insert(const Fact& fact, const PreparedFact& prepared) {
  const TimeMs created = fact.created_at_ms != 0 ? fact.created_at_ms : now_;
  const TimeMs updated = fact.updated_at_ms != 0 ? fact.updated_at_ms : created;
  Query(connection_,
        "INSERT INTO facts(id, scope_id, text, equality_hash, name, role, actor_id, metadata, "
        "event_time_ms, created_at_ms, updated_at_ms, expiration_date, superseded_by, version, "
        "load_row) VALUES(?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)")
      .Bind(fact.id)
      .Bind(batch_.scope_id)
      .Bind(fact.text)
      .Bind(prepared.equality_hash)
      .Bind(fact.name)
      .Bind(fact.role)
      .Bind(fact.actor_id)
      .Bind(prepared.metadata)
      .Bind(fact.event_time_ms)
      .Bind(created)
      .Bind(updated)
      .Bind(fact.expiration_date)
      .Bind(fact.superseded_by)
      .Bind(std::max<std::int64_t>(1, fact.version))
      .Bind(NextLoadRow(connection_))
      .Run();
  const std::int64_t row = connection_.LastInsertRow();
  IndexKeywords(connection_, row, batch_.scope_id, prepared.indexed_text);
  return row;
}

void Ingestion::AddOwnHistory(const Fact& fact) {
  const TimeMs created = fact.created_at_ms != 0 ? fact.created_at_ms : now_;
  Fact owned;
  owned.id = fact.id;
  owned.scope_id = batch_.scope_id;
  owned.actor_id = fact.actor_id;
  owned.role = fact.role;
  HistoryEvent event;
  event.event = "ADD";
  event.fact = &owned;
  event.new_text = fact.text;
  event.created_at_ms = created;
  event.updated_at_ms = fact.updated_at_ms != 0 ? fact.updated_at_ms : created;
  AddHistory(connection_, event);
}

void Ingestion::AddGivenHistory(const Fact& fact, const std::vector<HistoryEntry>& history) {
  for (const HistoryEntry& entry : history) {
    Fact owned;
    owned.id = fact.id;
    owned.scope_id = batch_.scope_id;
    owned.actor_id = entry.actor_id;
    owned.role = entry.role;
    HistoryEvent event;
    event.event = entry.event.c_str();
    event.fact = &owned;
    event.old_text = entry.old_text;
    event.new_text = entry.new_text;
    event.created_at_ms = entry.created_at_ms != 0 ? entry.created_at_ms : now_;
    event.updated_at_ms = entry.updated_at_ms != 0 ? entry.updated_at_ms : event.created_at_ms;
    event.is_deleted = entry.is_deleted;
    if (entry.event == "SUPERSEDE") {
      // The new text is another fact's and goes when that one is forgotten; one that is not named
      // could not be forgotten.
      event.other_fact_id = fact.superseded_by;
      if (fact.superseded_by.empty()) event.new_text.reset();
    }
    AddHistory(connection_, event);
  }
}

void Ingestion::Supersede(const NewFact& item, const std::string& by) {
  for (const std::string& old_id : item.supersedes) {
    if (old_id == by) continue;
    const auto old = FindFact(connection_, old_id);
    // Named by a language model, or deleted meanwhile: what is not there needs no superseding.
    if (!old || old->fact.scope_id != batch_.scope_id || !old->fact.superseded_by.empty()) continue;
    Query(connection_, "UPDATE facts SET superseded_by = ?, updated_at_ms = ? WHERE row = ?")
        .Bind(by)
        .Bind(now_)
        .Bind(old->row)
        .Run();
    HistoryEvent event;
    event.event = "SUPERSEDE";
    event.fact = &old->fact;
    event.old_text = old->fact.text;
    event.new_text = item.fact.text;
    event.created_at_ms = old->fact.created_at_ms;
    event.updated_at_ms = now_;
    event.other_fact_id = by;
    AddHistory(connection_, event);
    ++superseded_;
  }
}

void Ingestion::QueueExtraction(const std::string& payload) {
  if (!batch_.extract_later) return;
  Query(connection_, "INSERT INTO jobs(kind, scope_id, payload, created_at_ms) VALUES(?, ?, ?, ?)")
      .Bind("extract")
      .Bind(batch_.scope_id)
      .Bind(payload)
      .Bind(now_)
      .Run();
  const std::int64_t job = connection_.LastInsertRow();
  for (const TurnId turn : outcome_.turns) {
    Query(connection_, "INSERT OR IGNORE INTO job_turns(job_id, turn_id) VALUES(?, ?)")
        .Bind(job)
        .Bind(turn)
        .Run();
  }
  outcome_.job_id = job;
}

}  // namespace

Result<IngestOutcome> SqliteCatalog::Ingest(const IngestBatch& batch) {
  INFERSCALE_RETURN_IF_ERROR(CheckBatch(batch));
  INFERSCALE_ASSIGN_OR_RETURN(const std::string payload,
                              NormalizeJsonObject("job payload", batch.job_payload_json));
  INFERSCALE_ASSIGN_OR_RETURN(const std::vector<PreparedFact> prepared, Prepare(batch));
  const TimeMs now = Now();
  return Write([&](Connection& connection) -> Result<IngestOutcome> {
    INFERSCALE_RETURN_IF_ERROR(CheckScopeExists(connection, batch.scope_id));
    Ingestion ingestion(connection, batch, now);
    INFERSCALE_RETURN_IF_ERROR(ingestion.FinishJob());
    ingestion.AddTurns();
    for (std::size_t i = 0; i < batch.facts.size(); ++i) {
      const Status added = ingestion.AddFact(batch.facts[i], prepared[i]);
      if (!added.ok()) return added.WithContext("fact " + std::to_string(i));
    }
    ingestion.QueueExtraction(payload);
    ingestion.RecordEvent();
    ingestion.TouchScopeIfChanged();
    return ingestion.Take();
  });
}

}  // namespace inferscale::catalog
