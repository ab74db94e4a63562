#ifndef INFERSCALE_CATALOG_CONNECTION_H_
#define INFERSCALE_CATALOG_CONNECTION_H_

/// \file connection.h
/// One SQLite connection with its prepared statements, and how SQLite's errors become a Status.
/// Connection, Query and Transaction throw SQLite::Exception; Guarded() is the border that nothing
/// passes. None is thread-safe.

#include <concepts>
#include <cstdint>
#include <exception>
#include <filesystem>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <SQLiteCpp/SQLiteCpp.h>

#include "inferscale/result.h"

namespace inferscale::catalog {

class Connection {
 public:
  enum class Access { kCreate, kWrite, kRead };

  Connection(const std::filesystem::path& file, Access access);

  SQLite::Database& database() { return *database_; }
  void Execute(const char* sql) { database_->exec(sql); }
  void SetBusyTimeout(int milliseconds) { database_->setBusyTimeout(milliseconds); }
  /// Rows changed by the last statement that changes rows.
  std::int64_t Changes();
  std::int64_t LastInsertRow() { return database_->getLastInsertRowid(); }
  bool InTransaction();
  /// errno of the last failed system call below SQLite.
  int SystemError();
  /// For a failing COMMIT, of which SQLite does not keep it.
  void NoteSystemError(int error) { noted_error_ = error; }

 private:
  friend class Query;
  std::unique_ptr<SQLite::Statement> Take(std::string_view sql);
  void Give(std::string_view sql, std::unique_ptr<SQLite::Statement> statement);

  // Declared before the statements: these must be finalised first.
  std::unique_ptr<SQLite::Database> database_;
  std::map<std::string, std::vector<std::unique_ptr<SQLite::Statement>>, std::less<>> idle_;
  int noted_error_ = 0;
};

/// One execution of a statement, prepared once a connection unless its text is kOneOff.
class Query {
 public:
  enum class Reuse { kCached, kOneOff };

  Query(Connection& connection, std::string_view sql, Reuse reuse = Reuse::kCached);
  ~Query();
  Query(const Query&) = delete;
  Query& operator=(const Query&) = delete;

  /// Each binds the next placeholder.
  Query& Bind(std::string_view text);
  Query& Bind(const char* text) { return Bind(std::string_view(text)); }
  Query& Bind(const std::string& text) { return Bind(std::string_view(text)); }
  Query& Bind(double value);
  Query& Bind(std::integral auto value) { return BindInteger(static_cast<std::int64_t>(value)); }
  Query& Bind(std::span<const std::uint8_t> blob);
  Query& BindNull();
  template <typename T>
  Query& BindOptional(const std::optional<T>& value) {
    return value ? Bind(*value) : BindNull();
  }

  /// Moves to the next row; false at the end.
  bool Step() { return statement_->executeStep(); }
  /// For statements that return no rows.
  void Run();
  /// Ready to be bound and run again.
  void Reset();

  std::int64_t Integer(int column) { return statement_->getColumn(column).getInt64(); }
  std::string Text(int column) { return statement_->getColumn(column).getString(); }
  std::vector<std::uint8_t> Blob(int column);
  bool IsNull(int column) { return statement_->getColumn(column).isNull(); }

 private:
  Query& BindInteger(std::int64_t value);

  Connection& connection_;
  std::string sql_;
  Reuse reuse_;
  std::unique_ptr<SQLite::Statement> statement_;
  int next_ = 1;
};

/// Rolls back unless committed. `mode` "IMMEDIATE" for writing, "DEFERRED" for one snapshot of
/// reads.
class Transaction {
 public:
  Transaction(Connection& connection, const char* begin);
  ~Transaction();
  Transaction(const Transaction&) = delete;
  Transaction& operator=(const Transaction&) = delete;
  void Commit();

 private:
  Connection& connection_;
};

/// What happened to `file`, and what to do about it. \param system_error errno below SQLite, or 0.
Status StatusFromSqlite(const SQLite::Exception& error, const std::filesystem::path& file,
                        int system_error);
Status StatusFromException(const std::exception& error, const std::filesystem::path& file);

/// Runs `body`, which returns a Status or Result, and turns what it throws into a Status.
template <typename Body>
auto Guarded(const std::filesystem::path& file, Connection* connection, Body&& body)
    -> decltype(body()) {
  try {
    return body();
  } catch (const SQLite::Exception& error) {
    return StatusFromSqlite(error, file, connection != nullptr ? connection->SystemError() : 0);
  } catch (const std::exception& error) {
    return StatusFromException(error, file);
  }
}

}  // namespace inferscale::catalog

#endif  // INFERSCALE_CATALOG_CONNECTION_H_
