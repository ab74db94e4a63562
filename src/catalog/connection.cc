#include "catalog/connection.h"

#include <cerrno>
#include <cstring>
#include <limits>
#include <new>
#include <utility>

#include <sqlite3.h>

#include "catalog/keyword_functions.h"

namespace inferscale::catalog {
namespace {

constexpr int kBusyTimeoutMs = 5000;

int OpenFlags(Connection::Access access) {
  // Each connection is used by one thread at a time; readers too must write the shared-memory file.
  int flags = SQLite::OPEN_READWRITE | SQLite::OPEN_NOMUTEX;
  if (access == Connection::Access::kCreate) flags |= SQLite::OPEN_CREATE;
  return flags;
}

}  // namespace

Connection::Connection(const std::filesystem::path& file, Access access)
    : database_(
          std::make_unique<SQLite::Database>(file.string(), OpenFlags(access), kBusyTimeoutMs)) {
  sqlite3_extended_result_codes(database_->getHandle(), 1);
  sqlite3_db_config(database_->getHandle(), SQLITE_DBCONFIG_DQS_DML, 0, nullptr);
  // The temporary database of VACUUM holds every text: it stays in memory.
  Execute("PRAGMA temp_store = MEMORY");
  Execute("PRAGMA foreign_keys = ON");
  Execute("PRAGMA secure_delete = ON");
  Execute("PRAGMA synchronous = FULL");
  Execute("PRAGMA cache_size = -16384");
  if (access == Access::kRead) Execute("PRAGMA query_only = ON");
  RegisterKeywordFunctions(*database_);
}

std::int64_t Connection::Changes() { return sqlite3_changes64(database_->getHandle()); }

bool Connection::InTransaction() { return sqlite3_get_autocommit(database_->getHandle()) == 0; }

int Connection::SystemError() {
  const int noted = std::exchange(noted_error_, 0);
  return noted != 0 ? noted : sqlite3_system_errno(database_->getHandle());
}

std::unique_ptr<SQLite::Statement> Connection::Take(std::string_view sql) {
  const auto found = idle_.find(sql);
  if (found == idle_.end() || found->second.empty()) {
    return std::make_unique<SQLite::Statement>(*database_, std::string(sql));
  }
  auto statement = std::move(found->second.back());
  found->second.pop_back();
  return statement;
}

void Connection::Give(std::string_view sql, std::unique_ptr<SQLite::Statement> statement) {
  auto found = idle_.find(sql);
  if (found == idle_.end()) found = idle_.try_emplace(std::string(sql)).first;
  found->second.push_back(std::move(statement));
}

Query::Query(Connection& connection, std::string_view sql, Reuse reuse)
    : connection_(connection), sql_(sql), reuse_(reuse), statement_(connection.Take(sql)) {}

Query::~Query() {
  // A reset reports the error of the last step once more; it has been thrown already.
  statement_->tryReset();
  if (reuse_ == Reuse::kOneOff) return;
  try {
    statement_->clearBindings();
    connection_.Give(sql_, std::move(statement_));
  } catch (const std::exception&) {
    statement_.reset();  // Out of memory: the statement is prepared anew next time.
  }
}

Query& Query::Bind(std::string_view text) {
  statement_->bind(next_++, std::string(text));
  return *this;
}

Query& Query::Bind(double value) {
  statement_->bind(next_++, value);
  return *this;
}

Query& Query::BindInteger(std::int64_t value) {
  statement_->bind(next_++, value);
  return *this;
}

Query& Query::Bind(std::span<const std::uint8_t> blob) {
  if (blob.size() > static_cast<std::size_t>(std::numeric_limits<int>::max())) {
    throw SQLite::Exception("a value of more than 2 GiB", SQLITE_TOOBIG);
  }
  // A null pointer would bind NULL instead of an empty value.
  const void* data = blob.empty() ? "" : static_cast<const void*>(blob.data());
  statement_->bind(next_++, data, static_cast<int>(blob.size()));
  return *this;
}

Query& Query::BindNull() {
  statement_->bind(next_++);
  return *this;
}

void Query::Run() {
  while (statement_->executeStep()) {
  }
}

void Query::Reset() {
  statement_->reset();
  next_ = 1;
}

std::vector<std::uint8_t> Query::Blob(int column) {
  const SQLite::Column value = statement_->getColumn(column);
  const auto* data = static_cast<const std::uint8_t*>(value.getBlob());
  if (data == nullptr) return {};
  return {data, data + value.getBytes()};
}

Transaction::Transaction(Connection& connection, const char* begin) : connection_(connection) {
  connection_.Execute(begin);
}

Transaction::~Transaction() {
  // SQLite may have rolled back by itself after a full disk or an I/O error.
  if (connection_.InTransaction()) connection_.database().tryExec("ROLLBACK");
}

void Transaction::Commit() {
  errno = 0;
  try {
    connection_.Execute("COMMIT");
  } catch (const SQLite::Exception&) {
    connection_.NoteSystemError(errno);
    throw;
  }
}

Status StatusFromSqlite(const SQLite::Exception& error, const std::filesystem::path& file,
                        int system_error) {
  const std::string what = file.string() + ": " + error.what();
  switch (error.getErrorCode() & 0xff) {
    case SQLITE_FULL:
      return ResourceExhausted(what + "; nothing was changed: free some disk space and try again");
    case SQLITE_NOMEM:
      return ResourceExhausted(what + "; nothing was changed: free some memory and try again");
    case SQLITE_TOOBIG:
      return ResourceExhausted(what + "; nothing was changed: split the text");
    case SQLITE_READONLY:
    case SQLITE_PERM:
      return FailedPrecondition(what + "; make the file and its folder writable for this user");
    case SQLITE_CANTOPEN:
      return FailedPrecondition(what +
                                "; check that the folder exists, that this user may write "
                                "in it and that files can still be opened");
    case SQLITE_BUSY:
    case SQLITE_LOCKED:
      return Unavailable(what + "; another program uses this database: close it and try again");
    case SQLITE_NOTADB:
      return FailedPrecondition(what +
                                "; this is no catalog, and it was left as it is: restore it "
                                "from a backup or move it away to start empty");
    case SQLITE_CORRUPT:
      return DataLoss(what +
                      "; the file is damaged, and it was left as it is: restore it from a "
                      "backup, or save what `sqlite3 catalog.db .recover` still reads");
    case SQLITE_IOERR:
      if (system_error == ENOSPC || system_error == EFBIG || system_error == EDQUOT) {
        return ResourceExhausted(what + " (" + std::strerror(system_error) +
                                 "); nothing was changed: free some disk space or raise the limit "
                                 "and try again");
      }
      return Unavailable(what +
                         (system_error != 0 ? std::string(" (") + std::strerror(system_error) + ")"
                                            : std::string()) +
                         "; nothing was changed: check the disk and try again");
    default:
      return Internal(what);
  }
}

Status StatusFromException(const std::exception& error, const std::filesystem::path& file) {
  if (dynamic_cast<const std::bad_alloc*>(&error) != nullptr) {
    return ResourceExhausted(file.string() + ": out of memory; free some and try again");
  }
  return Internal(file.string() + ": " + error.what());
}

}  // namespace inferscale::catalog
