#ifndef INFERSCALE_CATALOG_SQLITE_CATALOG_H_
#define INFERSCALE_CATALOG_SQLITE_CATALOG_H_

/// \file sqlite_catalog.h
/// Catalog on one SQLite file in write-ahead-log mode: one writing connection under a mutex, a few
/// reading ones. Its methods lie in one file a concept: scopes.cc, ingest.cc, facts.cc,
/// fact_changes.cc, forget.cc, turns_and_jobs.cc, events.cc, search.cc, kv_records.cc, ledger.cc.

#include <atomic>
#include <memory>
#include <mutex>
#include <utility>

#include "base/files.h"
#include "catalog/connection.h"
#include "catalog/erasure_log.h"
#include "catalog/reader_pool.h"
#include "inferscale/catalog.h"

namespace inferscale::catalog {

class SqliteCatalog final : public Catalog {
 public:
  static Result<std::unique_ptr<Catalog>> Open(CatalogOptions options);

  Result<std::vector<std::uint8_t>> TenantSecret(const std::string& tenant) override;
  Result<ScopeInfo> EnsureScope(const Scope& scope) override;
  Result<ScopeInfo> GetScope(ScopeId id) override;
  Result<std::vector<ScopeInfo>> FindScopes(const Scope& query) override;
  Status SetDisplayName(ScopeId id, const std::string& name) override;
  Result<std::string> GetMeta(const std::string& name) override;
  Status SetMeta(const std::string& name, const std::string& value) override;

  Result<IngestOutcome> Ingest(const IngestBatch& batch) override;

  Result<Fact> GetFact(const std::string& id) override;
  Result<std::vector<Fact>> GetFacts(std::span<const std::string> ids) override;
  Result<std::vector<Fact>> ListFacts(const FactQuery& query) override;
  Result<std::int64_t> CountFacts(const FactQuery& query) override;
  Result<std::vector<Fact>> OldestFacts(ScopeId scope, std::int32_t count,
                                        WhichFacts which) override;
  Result<std::vector<HistoryEntry>> History(const std::string& fact_id) override;

  Result<Erasure> UpdateFact(const std::string& id, const FactUpdate& update) override;
  Result<Erasure> DeleteFact(const std::string& id) override;
  Result<std::vector<Erasure>> DeleteScopes(std::span<const ScopeId> scopes) override;

  Result<Erasure> ForgetFact(const std::string& id) override;
  Result<std::vector<Erasure>> ForgetScopes(std::span<const ScopeId> scopes) override;
  Result<std::vector<Erasure>> PendingErasures() override;
  Status CompleteErasure(std::int64_t erasure_id) override;

  Result<std::vector<KeywordHit>> KeywordSearch(std::span<const ScopeId> scopes,
                                                std::string_view query,
                                                std::int32_t limit) override;
  Result<std::vector<std::int64_t>> MatchingRows(const FactQuery& query) override;
  Result<std::vector<EmbeddingRow>> LoadEmbeddings(ScopeId scope, const std::string& embedder_id,
                                                   std::int64_t after_row) override;
  Result<std::vector<Fact>> FactsWithoutEmbedding(const std::string& embedder_id,
                                                  std::int32_t limit) override;
  Status SetEmbedding(const std::string& fact_id, std::int64_t version,
                      const std::string& embedder_id, std::span<const float> vector) override;
  Status SetEmbeddings(const std::string& embedder_id,
                       std::span<const FactEmbedding> embeddings) override;

  Result<std::vector<Fact>> FactsWithoutKv(const std::string& encoding_id,
                                           std::int32_t limit) override;
  Result<std::int64_t> CountFactsWithoutKv(const std::string& encoding_id) override;
  Result<std::vector<KvRecord>> RecordKv(std::span<const KvRecord> records) override;
  Result<std::vector<std::optional<KvRecord>>> GetKvRecords(
      std::span<const std::string> fact_ids, const std::string& encoding_id) override;
  Status MarkKvReady(std::span<const KvKey> keys) override;
  Status DropKvRecords(std::span<const KvKey> keys) override;
  Status DropKvThatSawFewer(ScopeId scope, const std::string& encoding_id, std::int32_t fewest,
                            WhichFacts which) override;

  Result<std::vector<Turn>> GetTurns(std::span<const TurnId> ids) override;
  Result<std::vector<Turn>> TurnsBefore(ScopeId scope, TurnId before, std::int32_t count) override;
  Result<std::vector<Job>> PendingJobs(const std::string& kind, std::int32_t limit) override;
  Status FailJob(std::int64_t job_id, const std::string& error, bool final) override;
  Status CompleteJob(std::int64_t job_id) override;

  Status RecordEvent(const std::string& id, const std::string& tenant,
                     const std::string& kind) override;
  Result<EventInfo> GetEvent(const std::string& id) override;

  Status PutLedger(ScopeId scope, const std::string& prefix_hash,
                   const LedgerEntry& entry) override;
  Result<std::optional<LedgerEntry>> GetLedger(ScopeId scope,
                                               const std::string& prefix_hash) override;

  /// Writes what the catalog holds now, as a file that is whole; not yet synced.
  Status SnapshotTo(const std::filesystem::path& file);
  /// Erases again what a log says was erased after this catalog was copied. In one transaction.
  Status ApplyErasures(std::span<const ErasureEntry> entries);

 private:
  SqliteCatalog(CatalogOptions options, FolderLock lock);

  TimeMs Now() const { return options_.clock(); }
  Status OpenWriter();
  Status SetKvReady(std::span<const KvKey> keys, bool ready);
  /// Rewrites the file and empties the log, if a forgotten text may still be in free pages. The
  /// writer's mutex must be held. Throws SQLite::Exception.
  Status ScrubIfNeeded();

  /// Runs `body(connection)` in one transaction that is committed if its Status or Result is ok.
  template <typename Body>
  auto Write(Body&& body) -> decltype(body(std::declval<Connection&>())) {
    const std::lock_guard lock(write_mutex_);
    return WriteLocked(std::forward<Body>(body));
  }

  template <typename Body>
  auto WriteLocked(Body&& body) -> decltype(body(std::declval<Connection&>())) {
    // A connection whose rollback failed is of no use any more.
    if (writer_ == nullptr || writer_->InTransaction()) {
      INFERSCALE_RETURN_IF_ERROR(OpenWriter());
    }
    return Guarded(file_, writer_.get(), [&] {
      Transaction transaction(*writer_, "BEGIN IMMEDIATE");
      auto outcome = body(*writer_);
      if (outcome.ok()) transaction.Commit();
      return outcome;
    });
  }

  /// Runs `body(connection)` on one snapshot.
  template <typename Body>
  auto Read(Body&& body) -> decltype(body(std::declval<Connection&>())) {
    return Guarded(file_, nullptr, [&] {
      ReaderPool::Lease lease(readers_);
      return Guarded(file_, &lease.connection(), [&] {
        const Transaction snapshot(lease.connection(), "BEGIN DEFERRED");
        return body(lease.connection());
      });
    });
  }

  const CatalogOptions options_;
  const std::filesystem::path file_;
  const FolderLock lock_;
  ReaderPool readers_;
  std::mutex write_mutex_;
  std::unique_ptr<Connection> writer_;  // under write_mutex_
  ErasureLog erasure_log_;              // under write_mutex_
  std::atomic<bool> scrub_needed_ = false;
};

}  // namespace inferscale::catalog

#endif  // INFERSCALE_CATALOG_SQLITE_CATALOG_H_
