#include "catalog/schema.h"

#include <array>
#include <cerrno>
#include <cstdint>
#include <cstdio>
#include <string>
#include <system_error>

#include "base/files.h"
#include "catalog/text_segments.h"

namespace inferscale::catalog {
namespace {

constexpr std::uintmax_t kPageBytes = 4096;

// What cannot be derived from anything else.
constexpr const char* kTruth = R"sql(
CREATE TABLE meta(name TEXT PRIMARY KEY, value) WITHOUT ROWID;
CREATE TABLE tenants(tenant TEXT PRIMARY KEY, secret BLOB NOT NULL) WITHOUT ROWID;
CREATE TABLE scopes(
  id INTEGER PRIMARY KEY AUTOINCREMENT,
  tenant TEXT NOT NULL, user TEXT NOT NULL, agent TEXT NOT NULL, run TEXT NOT NULL,
  app TEXT NOT NULL,
  tag INTEGER NOT NULL UNIQUE,
  display_name TEXT NOT NULL DEFAULT '',
  epoch INTEGER NOT NULL DEFAULT 1,
  revision INTEGER NOT NULL DEFAULT 0,
  facts INTEGER NOT NULL DEFAULT 0,
  created_at_ms INTEGER NOT NULL, updated_at_ms INTEGER NOT NULL,
  UNIQUE(tenant, user, agent, run, app));
CREATE TABLE turns(
  id INTEGER PRIMARY KEY AUTOINCREMENT,
  scope_id INTEGER NOT NULL REFERENCES scopes(id),
  role TEXT NOT NULL, name TEXT NOT NULL, content TEXT NOT NULL,
  time_ms INTEGER NOT NULL,
  consumed INTEGER NOT NULL DEFAULT 0);
CREATE INDEX turns_of_scope ON turns(scope_id, id);
-- load_row orders facts by when they or their embeddings were last put in; it is never used twice.
CREATE TABLE facts(
  row INTEGER PRIMARY KEY AUTOINCREMENT,
  id TEXT NOT NULL UNIQUE,
  scope_id INTEGER NOT NULL REFERENCES scopes(id),
  text TEXT NOT NULL,
  equality_hash BLOB NOT NULL,
  name TEXT NOT NULL, role TEXT NOT NULL, actor_id TEXT NOT NULL,
  metadata TEXT NOT NULL,
  event_time_ms INTEGER NOT NULL,
  created_at_ms INTEGER NOT NULL, updated_at_ms INTEGER NOT NULL,
  expiration_date TEXT NOT NULL,
  superseded_by TEXT NOT NULL,
  version INTEGER NOT NULL,
  load_row INTEGER NOT NULL);
CREATE UNIQUE INDEX facts_equal ON facts(scope_id, equality_hash) WHERE superseded_by = '';
CREATE INDEX facts_newest ON facts(scope_id, created_at_ms, row);
CREATE INDEX facts_load ON facts(scope_id, load_row, expiration_date, superseded_by);
CREATE INDEX facts_superseded ON facts(superseded_by) WHERE superseded_by <> '';
-- Kept after a fact's deletion: forgetting it later must find its turns.
CREATE TABLE fact_sources(
  turn_id INTEGER NOT NULL REFERENCES turns(id) ON DELETE CASCADE,
  fact_id TEXT NOT NULL,
  PRIMARY KEY(turn_id, fact_id)) WITHOUT ROWID;
CREATE INDEX sources_of_fact ON fact_sources(fact_id, turn_id);
-- new_text of a SUPERSEDE event is the text of other_fact_id.
CREATE TABLE history(
  row INTEGER PRIMARY KEY AUTOINCREMENT,
  id TEXT NOT NULL,
  fact_id TEXT NOT NULL,
  scope_id INTEGER NOT NULL,
  old_text TEXT, new_text TEXT,
  event TEXT NOT NULL,
  actor_id TEXT NOT NULL, role TEXT NOT NULL,
  created_at_ms INTEGER NOT NULL, updated_at_ms INTEGER NOT NULL,
  is_deleted INTEGER NOT NULL,
  other_fact_id TEXT NOT NULL DEFAULT '');
CREATE INDEX history_of_fact ON history(fact_id, row);
CREATE INDEX history_of_scope ON history(scope_id);
CREATE INDEX history_of_other ON history(other_fact_id) WHERE other_fact_id <> '';
CREATE TABLE jobs(
  id INTEGER PRIMARY KEY AUTOINCREMENT,
  kind TEXT NOT NULL,
  scope_id INTEGER NOT NULL REFERENCES scopes(id),
  payload TEXT NOT NULL,
  attempts INTEGER NOT NULL DEFAULT 0,
  failed INTEGER NOT NULL DEFAULT 0,
  last_error TEXT NOT NULL DEFAULT '',
  created_at_ms INTEGER NOT NULL);
CREATE INDEX jobs_pending ON jobs(kind, failed, id);
CREATE INDEX jobs_of_scope ON jobs(scope_id);
CREATE TABLE job_turns(
  job_id INTEGER NOT NULL REFERENCES jobs(id) ON DELETE CASCADE,
  turn_id INTEGER NOT NULL REFERENCES turns(id) ON DELETE CASCADE,
  PRIMARY KEY(job_id, turn_id)) WITHOUT ROWID;
CREATE INDEX jobs_of_turn ON job_turns(turn_id);
CREATE TABLE erasures(
  id INTEGER PRIMARY KEY AUTOINCREMENT,
  scope_tag INTEGER NOT NULL,
  epoch INTEGER NOT NULL,
  whole_scope INTEGER NOT NULL,
  keys BLOB NOT NULL);
)sql";

// What can be made again from it.
constexpr const char* kDerived = R"sql(
CREATE VIRTUAL TABLE keywords USING fts5(scope, terms,
  tokenize = "porter unicode61 remove_diacritics 2 categories 'L* N* Co M*'");
CREATE TABLE names(id INTEGER PRIMARY KEY, name TEXT NOT NULL UNIQUE);
CREATE TABLE embeddings(
  fact_row INTEGER PRIMARY KEY REFERENCES facts(row) ON DELETE CASCADE,
  embedder INTEGER NOT NULL REFERENCES names(id),
  vector BLOB NOT NULL);
CREATE TABLE kv_records(
  id INTEGER PRIMARY KEY,
  fact_row INTEGER NOT NULL REFERENCES facts(row) ON DELETE CASCADE,
  encoding INTEGER NOT NULL REFERENCES names(id),
  fact_version INTEGER NOT NULL,
  key BLOB NOT NULL,
  ready INTEGER NOT NULL DEFAULT 0,
  UNIQUE(fact_row, encoding));
CREATE INDEX kv_of_key ON kv_records(key);
CREATE TABLE kv_saw(
  saw TEXT NOT NULL,
  record INTEGER NOT NULL REFERENCES kv_records(id) ON DELETE CASCADE,
  PRIMARY KEY(saw, record)) WITHOUT ROWID;
CREATE INDEX saw_of_record ON kv_saw(record);
CREATE TABLE ledger(
  id INTEGER PRIMARY KEY,
  scope_id INTEGER NOT NULL REFERENCES scopes(id) ON DELETE CASCADE,
  prefix_hash TEXT NOT NULL,
  ids BLOB NOT NULL,
  placements TEXT NOT NULL,
  messages INTEGER NOT NULL,
  prefix_tokens INTEGER NOT NULL,
  epoch INTEGER NOT NULL,
  encoding_id TEXT NOT NULL,
  prefix_key BLOB NOT NULL,
  put_at_ms INTEGER NOT NULL,
  UNIQUE(scope_id, prefix_hash));
CREATE INDEX ledger_by_age ON ledger(put_at_ms);
CREATE TABLE ledger_facts(
  fact_id TEXT NOT NULL,
  ledger_id INTEGER NOT NULL REFERENCES ledger(id) ON DELETE CASCADE,
  PRIMARY KEY(fact_id, ledger_id)) WITHOUT ROWID;
CREATE INDEX facts_of_ledger ON ledger_facts(ledger_id);
)sql";

// What became of requests that were answered early. The state is read from jobs and facts: the
// turns of a batch have consecutive ids, and a job's id is never used twice.
constexpr const char* kEvents = R"sql(
CREATE TABLE events(
  id TEXT PRIMARY KEY,
  tenant TEXT NOT NULL,
  scope_id INTEGER REFERENCES scopes(id) ON DELETE CASCADE,
  kind TEXT NOT NULL,
  job_id INTEGER,
  first_turn INTEGER NOT NULL, last_turn INTEGER NOT NULL,
  created_at_ms INTEGER NOT NULL) WITHOUT ROWID;
CREATE INDEX events_by_age ON events(created_at_ms);
CREATE INDEX events_of_scope ON events(scope_id);
)sql";

void CreateTruth(Connection& connection) { connection.Execute(kTruth); }

void CreateDerived(Connection& connection) {
  connection.Execute(kDerived);
  Query facts(connection, "SELECT row, scope_id, text FROM facts", Query::Reuse::kOneOff);
  Query insert(connection, "INSERT INTO keywords(rowid, scope, terms) VALUES(?, ?, ?)",
               Query::Reuse::kOneOff);
  while (facts.Step()) {
    insert.Bind(facts.Integer(0));
    insert.Bind("s" + std::to_string(facts.Integer(1))).Bind(IndexedText(facts.Text(2))).Run();
    insert.Reset();
  }
}

void CreateEvents(Connection& connection) { connection.Execute(kEvents); }

// Step i brings version i to version i + 1. A released step is never changed.
constexpr auto kSteps =
    std::to_array<void (*)(Connection&)>({&CreateTruth, &CreateDerived, &CreateEvents});

bool HasBytes(const std::filesystem::path& file) {
  std::error_code error;
  const auto size = std::filesystem::file_size(file, error);
  return !error && size > 0;
}

}  // namespace

int SchemaVersion() { return static_cast<int>(kSteps.size()); }

Status Migrate(Connection& connection, const std::filesystem::path& file, int target_version) {
  const int found = connection.database().execAndGet("PRAGMA user_version").getInt();
  if (found > SchemaVersion()) {
    return FailedPrecondition(file.string() + " has schema version " + std::to_string(found) +
                              ", which is newer than this program's " +
                              std::to_string(SchemaVersion()) +
                              ": use the program that wrote it, or a newer one");
  }
  if (found < 0) {
    return FailedPrecondition(file.string() + " has schema version " + std::to_string(found) +
                              ": this is no catalog; move it away to start empty");
  }
  for (int version = found; version < target_version; ++version) {
    Transaction transaction(connection, "BEGIN IMMEDIATE");
    kSteps[static_cast<std::size_t>(version)](connection);
    connection.Execute(("PRAGMA user_version = " + std::to_string(version + 1)).c_str());
    transaction.Commit();
  }
  return OkStatus();
}

Status CreateIfMissing(const std::filesystem::path& file) {
  std::error_code error;
  const auto size = std::filesystem::file_size(file, error);
  std::filesystem::path log = file;
  log += "-wal";
  if (!error && size > 0) {
    // A page that is half there is complete in the log after a crash, and lost without one.
    if (size % kPageBytes == 0 || HasBytes(log)) return OkStatus();
    return FailedPrecondition(file.string() + " has " + std::to_string(size) +
                              " bytes, which is no whole number of pages: it was cut off, or is no "
                              "catalog; restore it from a backup or move it away to start empty");
  }
  if (!error) {
    return FailedPrecondition(
        file.string() +
        " is empty, which no catalog ever is: it was cut off; restore it from "
        "a backup or remove it to start empty");
  }
  if (error != std::errc::no_such_file_or_directory) {
    return StatusFromErrno("open", file, error.value());
  }
  if (std::filesystem::exists(log, error)) {
    return FailedPrecondition(log.string() + " exists without " + file.string() +
                              ": it may hold the last writes of a catalog that was moved; put that "
                              "file back or remove this one to start empty");
  }

  std::filesystem::path unfinished = file;
  unfinished += ".new";
  for (const char* suffix : {"", "-journal", "-wal", "-shm"}) {
    std::filesystem::path left_over = unfinished;
    left_over += suffix;
    std::filesystem::remove(left_over, error);
  }
  const Status made = Guarded(file, nullptr, [&]() -> Status {
    Connection connection(unfinished, Connection::Access::kCreate);
    connection.Execute(("PRAGMA page_size = " + std::to_string(kPageBytes)).c_str());
    INFERSCALE_RETURN_IF_ERROR(Migrate(connection, unfinished, SchemaVersion()));
    connection.Execute("PRAGMA journal_mode = WAL");
    return OkStatus();
  });
  if (!made.ok()) {
    std::filesystem::remove(unfinished, error);
    return made;
  }
  if (std::rename(unfinished.c_str(), file.c_str()) != 0) {
    return StatusFromErrno("create", file, errno);
  }
  return SyncFolder(file.parent_path());
}

}  // namespace inferscale::catalog
