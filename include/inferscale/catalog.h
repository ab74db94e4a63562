#ifndef INFERSCALE_CATALOG_H_
#define INFERSCALE_CATALOG_H_

/// \file catalog.h
/// Catalog: the only truth. Scopes, turns, facts, history, pending work and the conversation
/// ledger. Guarantees: a write is durable (synchronous=FULL) before its call returns, and is seen
/// whole or not at all; an update or delete takes text, embedding, keyword row and KV records
/// together and raises the scope's epoch in the same transaction; what has to be erased elsewhere
/// is recorded until it has been. Embeddings and KV records are derived and may be rebuilt. One
/// process owns a data folder (kUnavailable with the owner's pid otherwise). All methods are
/// thread-safe.

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "inferscale/result.h"
#include "inferscale/types.h"

namespace inferscale {

class Filter;  // catalog/filter.h: a checked metadata filter (Mem0's grammar)

struct ScopeInfo {
  ScopeId id = 0;
  Scope scope;
  std::uint64_t tag = 0;  ///< random, made with the scope: marks its KV blocks, says nothing of it
  std::string display_name;    ///< name served for facts without one; empty: no name
  std::uint64_t epoch = 1;     ///< raised by update, delete, forget and rename
  std::uint64_t revision = 0;  ///< raised by every change of the scope's facts
  std::int64_t facts = 0;      ///< live facts
  TimeMs created_at_ms = 0, updated_at_ms = 0;
};

struct HistoryEntry {
  std::string id, fact_id;
  std::optional<std::string> old_text, new_text;
  std::string event;  ///< "ADD", "UPDATE", "DELETE", "SUPERSEDE"
  std::string actor_id, role;
  TimeMs created_at_ms = 0, updated_at_ms = 0;
  bool is_deleted = false;
  ScopeId scope_id = 0;  ///< of the fact; filled by History(), ignored by Ingest()
};

/// A fact to be stored. `fact.id` empty: one is made. Times 0: now (event time: none).
struct NewFact {
  Fact fact;
  std::vector<std::int32_t> source_turn_indexes;  ///< into IngestBatch::turns
  std::vector<float> embedding;                   ///< empty: pending
  std::vector<std::string> supersedes;            ///< ids of facts this one contradicts
  /// Of an imported fact, in order; written instead of the event that this adding is.
  std::vector<HistoryEntry> history;
};

struct IngestBatch {
  ScopeId scope_id = 0;
  std::vector<Turn> turns;
  std::vector<NewFact> facts;
  std::string embedder_id;                    ///< of the embeddings given
  bool extract_later = false;                 ///< queue a job that extracts facts from `turns`
  std::string job_payload_json = "{}";        ///< options for that job
  std::optional<std::int64_t> completes_job;  ///< a job that this batch finishes, atomically
  std::string event_id;  ///< not empty: GetEvent() tells what became of this batch's turns
};

struct IngestOutcome {
  struct Entry {
    std::string fact_id;  ///< of the new fact, or of the one it equals
    bool added = false;   ///< false: a duplicate
  };
  std::vector<Entry> facts;  ///< one per IngestBatch::facts
  std::vector<TurnId> turns;
  std::optional<std::int64_t> job_id;
};

struct FactUpdate {
  std::optional<std::string> text;
  std::optional<std::string> metadata_json;
  std::optional<std::string> expiration_date;  ///< empty string clears
  std::optional<TimeMs> event_time_ms;
  std::optional<std::string> name;
  std::vector<float> embedding;  ///< of the new text; empty: pending
  std::string embedder_id;
};

/// What an erasure has to remove outside the catalog. Recorded durably; see PendingErasures().
struct Erasure {
  std::int64_t id = 0;
  std::uint64_t scope_tag =
      0;  ///< ScopeInfo::tag, kept here because the scope itself may be forgotten
  std::uint64_t epoch = 0;
  bool whole_scope = false;
  bool prefixes =
      false;  ///< exact prefixes too: an application's text may quote what was forgotten
  std::vector<KvKey> keys;
};

struct FactQuery {
  std::vector<ScopeId> scopes;
  const Filter* filter = nullptr;
  bool show_expired = false;
  bool show_superseded = true;
  std::int64_t offset = 0, limit = 100;  ///< newest first
};

struct KeywordHit {
  std::string fact_id;
  double bm25 = 0;  ///< positive, larger is better
};

struct FactEmbedding {
  std::string fact_id;
  std::int64_t version = 0;
  std::vector<float> vector;
};

struct EmbeddingRow {
  std::string fact_id;
  std::int64_t row = 0;               ///< ascending with insertion
  std::vector<std::uint16_t> vector;  ///< f16
};

/// State of a fact's KV under one encoding (fingerprint × recipe × codec).
struct KvRecord {
  KvKey key;
  std::string fact_id;
  std::int64_t fact_version = 0;
  std::string encoding_id;
  std::vector<std::string> saw;  ///< facts and turns ("turn:ID") it was encoded behind
};

struct Job {
  std::int64_t id = 0;
  std::string kind;  ///< "extract"
  ScopeId scope_id = 0;
  std::vector<TurnId> turns;
  std::string payload_json;
  std::int32_t attempts = 0;
};

/// What became of a request that was answered before its work was done. Its state is that of the
/// job and facts themselves.
struct EventInfo {
  enum class State { kPending, kRunning, kSucceeded, kFailed };
  std::string id, tenant;
  std::optional<ScopeId> scope_id;  ///< none: of no one scope
  std::string kind;                 ///< "ADD", "DELETE_ALL"
  State state = State::kSucceeded;
  std::string error;  ///< of the last attempt
  TimeMs created_at_ms = 0;
  std::vector<std::string> fact_ids;  ///< live facts that its turns were the first to say
};

/// What the server knows of a conversation (DESIGN: ledger).
struct LedgerEntry {
  TokenIds ids;  ///< exact ids sent and generated
  struct Placement {
    std::string fact_id;
    std::int64_t version = 0;
    KvKey key;
    std::int32_t begin = 0, end = 0;
  };
  std::vector<Placement> facts;
  std::int32_t messages = 0;       ///< messages covered by `ids`
  std::int32_t prefix_tokens = 0;  ///< exact prefix and header at the front
  std::uint64_t epoch = 0;         ///< of the scope when composed
  std::string encoding_id;         ///< model and recipe; another one is a miss
  KvKey prefix_key;
};

struct CatalogOptions {
  std::filesystem::path folder;   ///< data folder, created 0700
  std::function<TimeMs()> clock;  ///< empty: the system's
  TimeMs ledger_lifetime_ms = 7LL * 24 * 3600 * 1000;
};

/// Facts of a scope, or those alone that have no name of their own.
enum class WhichFacts : std::uint8_t { kAll, kNameless };

class Catalog {
 public:
  virtual ~Catalog() = default;

  /// 32 random bytes of a tenant, made on first use.
  virtual Result<std::vector<std::uint8_t>> TenantSecret(const std::string& tenant) = 0;

  virtual Result<ScopeInfo> EnsureScope(const Scope& scope) = 0;  ///< kInvalidArgument: no owner
  virtual Result<ScopeInfo> GetScope(ScopeId id) = 0;
  /// Scopes of the tenant whose ids equal all non-empty ids of `query`; none set: all of the
  /// tenant.
  virtual Result<std::vector<ScopeInfo>> FindScopes(const Scope& query) = 0;
  virtual Status SetDisplayName(ScopeId id,
                                const std::string& name) = 0;  ///< raises the epoch; KV records go

  virtual Result<IngestOutcome> Ingest(const IngestBatch& batch) = 0;
  virtual Result<Fact> GetFact(const std::string& id) = 0;
  virtual Result<std::vector<Fact>> GetFacts(
      std::span<const std::string> ids) = 0;  ///< in order; missing ones left out
  virtual Result<std::vector<Fact>> ListFacts(const FactQuery& query) = 0;
  virtual Result<std::int64_t> CountFacts(const FactQuery& query) = 0;
  virtual Result<std::vector<Turn>> GetTurns(std::span<const TurnId> ids) = 0;
  /// The `count` turns of the scope before turn `before`, oldest first (context windows).
  virtual Result<std::vector<Turn>> TurnsBefore(ScopeId scope, TurnId before,
                                                std::int32_t count) = 0;
  /// The first `count` live facts of the scope, oldest first (owner's primers).
  virtual Result<std::vector<Fact>> OldestFacts(ScopeId scope, std::int32_t count,
                                                WhichFacts which) = 0;
  virtual Result<std::vector<HistoryEntry>> History(const std::string& fact_id) = 0;

  virtual Result<Erasure> UpdateFact(const std::string& id, const FactUpdate& update) = 0;
  virtual Result<Erasure> DeleteFact(const std::string& id) = 0;
  virtual Result<std::vector<Erasure>> DeleteScopes(std::span<const ScopeId> scopes) = 0;
  /// Forget: also history, turns that are its source or repeat it and that no other fact needs,
  /// ledger and index pages; afterwards no file of the catalog holds the text or its token ids.
  /// Slow (rewrites the file).
  virtual Result<Erasure> ForgetFact(const std::string& id) = 0;
  virtual Result<std::vector<Erasure>> ForgetScopes(std::span<const ScopeId> scopes) = 0;
  virtual Result<std::vector<Erasure>> PendingErasures() = 0;
  virtual Status CompleteErasure(std::int64_t erasure_id) = 0;

  // Derived data.
  virtual Result<std::vector<KeywordHit>> KeywordSearch(std::span<const ScopeId> scopes,
                                                        std::string_view query,
                                                        std::int32_t limit) = 0;
  /// Live facts of a scope that pass the filter and expiry, as a sorted list of rows.
  virtual Result<std::vector<std::int64_t>> MatchingRows(const FactQuery& query) = 0;
  virtual Result<std::vector<EmbeddingRow>> LoadEmbeddings(ScopeId scope,
                                                           const std::string& embedder_id,
                                                           std::int64_t after_row) = 0;
  virtual Result<std::vector<Fact>> FactsWithoutEmbedding(const std::string& embedder_id,
                                                          std::int32_t limit) = 0;
  /// Ignored (ok) when the fact is gone or has another version by now.
  virtual Status SetEmbedding(const std::string& fact_id, std::int64_t version,
                              const std::string& embedder_id, std::span<const float> vector) = 0;
  /// The same for many in one transaction: all or, after an error, none.
  virtual Status SetEmbeddings(const std::string& embedder_id,
                               std::span<const FactEmbedding> embeddings) = 0;

  /// The encode queue: live facts that have no ready KV record under `encoding_id`, oldest first.
  /// It includes facts recorded by RecordKv but not yet marked ready, as after a kill.
  virtual Result<std::vector<Fact>> FactsWithoutKv(const std::string& encoding_id,
                                                   std::int32_t limit) = 0;
  virtual Result<std::int64_t> CountFactsWithoutKv(const std::string& encoding_id) = 0;
  /// Records keys before their blocks exist, so that every block on disk can be found from its
  /// fact. Records of facts that are gone or have another version are left out; the kept ones are
  /// returned.
  virtual Result<std::vector<KvRecord>> RecordKv(std::span<const KvRecord> records) = 0;
  virtual Result<std::vector<std::optional<KvRecord>>> GetKvRecords(
      std::span<const std::string> fact_ids, const std::string& encoding_id) = 0;
  /// The blocks are in the store (or can never be made): their facts leave the encode queue.
  virtual Status MarkKvReady(std::span<const KvKey> keys) = 0;
  /// Forgets that these blocks exist (evicted, corrupt), so that they are encoded again.
  virtual Status DropKvRecords(std::span<const KvKey> keys) = 0;
  /// The same for a scope's facts that were encoded behind fewer than `fewest` facts and turns.
  virtual Status DropKvThatSawFewer(ScopeId scope, const std::string& encoding_id,
                                    std::int32_t fewest, WhichFacts which) = 0;

  // Durable queue.
  virtual Result<std::vector<Job>> PendingJobs(const std::string& kind, std::int32_t limit) = 0;
  virtual Status FailJob(std::int64_t job_id, const std::string& error, bool final) = 0;
  virtual Status CompleteJob(std::int64_t job_id) = 0;

  /// Records an event whose work is done. Ingest() records those of its batches. Events are kept
  /// for 30 days.
  virtual Status RecordEvent(const std::string& id, const std::string& tenant,
                             const std::string& kind) = 0;
  virtual Result<EventInfo> GetEvent(const std::string& id) = 0;

  // Ledger. `prefix_hash`: hash of the messages covered (compose/ledger.h).
  virtual Status PutLedger(ScopeId scope, const std::string& prefix_hash,
                           const LedgerEntry& entry) = 0;
  virtual Result<std::optional<LedgerEntry>> GetLedger(ScopeId scope,
                                                       const std::string& prefix_hash) = 0;

  /// Small named values of the data folder (chosen model, recipe…). Empty: unset.
  virtual Result<std::string> GetMeta(const std::string& name) = 0;
  virtual Status SetMeta(const std::string& name, const std::string& value) = 0;
};

/// Opens or creates `folder`/catalog.db and migrates it forward. kFailedPrecondition for a newer
/// schema, a read-only folder or a corrupt file (which is left as it is).
Result<std::unique_ptr<Catalog>> OpenSqliteCatalog(CatalogOptions options);

}  // namespace inferscale

#endif  // INFERSCALE_CATALOG_H_
