#include "catalog/sqlite_catalog.h"

#include <system_error>

#include <spdlog/spdlog.h>

#include "base/clock.h"
#include "catalog/backup.h"
#include "catalog/schema.h"

namespace inferscale::catalog {
namespace {

constexpr std::size_t kReaders = 4;

CatalogOptions WithDefaults(CatalogOptions options) {
  if (!options.clock) options.clock = SystemClock();
  return options;
}

}  // namespace

SqliteCatalog::SqliteCatalog(CatalogOptions options, FolderLock lock)
    : options_(WithDefaults(std::move(options))),
      file_(options_.folder / "catalog.db"),
      lock_(std::move(lock)),
      readers_(file_, kReaders),
      erasure_log_(options_.folder / kErasureLogName) {}

Status SqliteCatalog::OpenWriter() {
  writer_.reset();
  return Guarded(file_, nullptr, [&]() -> Status {
    auto connection = std::make_unique<Connection>(file_, Connection::Access::kWrite);
    return Guarded(file_, connection.get(), [&]() -> Status {
      if (connection->database().execAndGet("PRAGMA user_version").getInt() == 0) {
        return FailedPrecondition(file_.string() +
                                  " is a database, but no catalog; it was left as it is: move it "
                                  "away to start empty");
      }
      INFERSCALE_RETURN_IF_ERROR(Migrate(*connection, file_, SchemaVersion()));
      const std::string mode =
          connection->database().execAndGet("PRAGMA journal_mode = WAL").getString();
      if (mode != "wal") {
        return FailedPrecondition(file_.string() + " cannot have a write-ahead log (journal mode " +
                                  mode + "): put the data folder on a local disk");
      }
      // A connection may open a file that it cannot write: an empty write tells.
      Transaction probe(*connection, "BEGIN IMMEDIATE");
      Query(*connection, "SELECT count(*) FROM scopes WHERE id < 0").Run();
      writer_ = std::move(connection);
      return OkStatus();
    });
  });
}

Result<std::unique_ptr<Catalog>> SqliteCatalog::Open(CatalogOptions options) {
  if (options.folder.empty()) return InvalidArgument("the catalog needs a data folder");
  INFERSCALE_RETURN_IF_ERROR(CreatePrivateFolder(options.folder));
  INFERSCALE_ASSIGN_OR_RETURN(FolderLock lock, FolderLock::Acquire(options.folder));
  // A restore that was cut short before it was done; see catalog/backup.h.
  std::error_code ignored;
  std::filesystem::remove_all(options.folder / kRestoreFolder, ignored);
  std::unique_ptr<SqliteCatalog> catalog(new SqliteCatalog(std::move(options), std::move(lock)));
  INFERSCALE_RETURN_IF_ERROR(CreateIfMissing(catalog->file_));
  const std::lock_guard writing(catalog->write_mutex_);
  const Status opened = catalog->OpenWriter();
  if (opened.code() == StatusCode::kDataLoss) {
    return FailedPrecondition(opened.message());
  }
  INFERSCALE_RETURN_IF_ERROR(opened);
  // Cut short by a crash: the rows are gone, but not yet their bytes.
  const Status scrubbed = Guarded(catalog->file_, catalog->writer_.get(), [&] {
    catalog->scrub_needed_ =
        Query(*catalog->writer_, "SELECT 1 FROM meta WHERE name = 'catalog.scrub'").Step();
    return catalog->ScrubIfNeeded();
  });
  if (!scrubbed.ok()) {
    spdlog::warn("forgotten memories may still lie in free pages: {}", scrubbed.message());
  }
  return std::unique_ptr<Catalog>(std::move(catalog));
}

}  // namespace inferscale::catalog

namespace inferscale {

Result<std::unique_ptr<Catalog>> OpenSqliteCatalog(CatalogOptions options) {
  return catalog::SqliteCatalog::Open(std::move(options));
}

}  // namespace inferscale
