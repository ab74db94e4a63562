#include "catalog/backup.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <utility>

#include <spdlog/spdlog.h>

#include "base/files.h"
#include "catalog/erasing.h"
#include "catalog/sqlite_catalog.h"

namespace inferscale::catalog {

Status SqliteCatalog::SnapshotTo(const std::filesystem::path& file) {
  const std::lock_guard lock(write_mutex_);
  if (writer_ == nullptr) INFERSCALE_RETURN_IF_ERROR(OpenWriter());
  return Guarded(file_, writer_.get(), [&]() -> Status {
    Query(*writer_, "VACUUM INTO ?", Query::Reuse::kOneOff).Bind(file.string()).Run();
    return OkStatus();
  });
}

Status SqliteCatalog::ApplyErasures(std::span<const ErasureEntry> entries) {
  const TimeMs now = Now();
  const std::lock_guard lock(write_mutex_);
  const Status applied = WriteLocked([&](Connection& connection) -> Status {
    const std::map<std::string, std::string> ids = FactIdsByHash(connection);
    for (const ErasureEntry& entry : entries)
      INFERSCALE_RETURN_IF_ERROR(ApplyEntry(connection, ids, entry, now));
    return erasure_log_.Append(entries);
  });
  INFERSCALE_RETURN_IF_ERROR(applied);
  scrub_needed_ = true;
  return Guarded(file_, writer_.get(), [&] { return ScrubIfNeeded(); });
}

Status CopyCatalog(Catalog& catalog, const std::filesystem::path& file) {
  auto* sqlite = dynamic_cast<SqliteCatalog*>(&catalog);
  if (sqlite == nullptr) return Unsupported("this catalog is no file that can be copied");
  INFERSCALE_RETURN_IF_ERROR(sqlite->SnapshotTo(file));
  const int descriptor = open(file.c_str(), O_RDONLY | O_CLOEXEC);
  if (descriptor < 0) return StatusFromErrno("cannot read", file, errno);
  const int error = fsync(descriptor) == 0 ? 0 : errno;
  close(descriptor);
  return error == 0 ? OkStatus() : StatusFromErrno("cannot sync", file, error);
}

void SettleCatalog(const std::filesystem::path& folder) {
  const std::filesystem::path file = folder / kCatalogName;
  std::error_code error;
  if (!std::filesystem::exists(file, error)) return;
  const Status settled = Guarded(file, nullptr, [&]() -> Status {
    Connection connection(file, Connection::Access::kWrite);
    Query(connection, "PRAGMA wal_checkpoint(TRUNCATE)", Query::Reuse::kOneOff).Run();
    return OkStatus();
  });
  if (!settled.ok()) spdlog::debug("{}", settled.ToString());
}

Status ReapplyErasures(const std::filesystem::path& folder, std::span<const ErasureEntry> entries) {
  CatalogOptions options;
  options.folder = folder;
  INFERSCALE_ASSIGN_OR_RETURN(const std::unique_ptr<Catalog> catalog,
                              OpenSqliteCatalog(std::move(options)));
  return static_cast<SqliteCatalog&>(*catalog).ApplyErasures(entries);
}

}  // namespace inferscale::catalog
