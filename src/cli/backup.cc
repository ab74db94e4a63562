#include "cli/backup.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdio>
#include <string>
#include <string_view>
#include <utility>

#include <nlohmann/json.hpp>

#include "base/clock.h"
#include "base/files.h"
#include "catalog/backup.h"
#include "catalog/schema.h"
#include "cli/backup_archive.h"
#include "cli/service_factory.h"

namespace inferscale {
namespace {

namespace fs = std::filesystem;
using catalog::ErasureEntry;
using catalog::kCatalogName;
using catalog::kErasureLogName;
using nlohmann::ordered_json;

constexpr int kFormat = 1;
constexpr std::size_t kMaxDescriptionBytes = std::size_t{1} << 20;
constexpr const char* kDescription = "backup.json";

/// A file that goes with the object.
class TemporaryFile {
 public:
  explicit TemporaryFile(fs::path path) : path_(std::move(path)) {}
  ~TemporaryFile() { unlink(path_.c_str()); }
  TemporaryFile(const TemporaryFile&) = delete;
  TemporaryFile& operator=(const TemporaryFile&) = delete;
  const fs::path& path() const { return path_; }

  /// Empty and for this user alone, before anybody writes text into it.
  Status Create() const {
    unlink(path_.c_str());
    const int descriptor =
        open(path_.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0600);
    if (descriptor < 0) return StatusFromErrno("cannot write", path_, errno);
    close(descriptor);
    return OkStatus();
  }

 private:
  fs::path path_;
};

Result<std::vector<fs::path>> BlockFiles(const fs::path& folder) {
  std::vector<fs::path> files;
  std::error_code error;
  if (!fs::exists(folder, error)) return files;
  for (fs::recursive_directory_iterator entry(folder, error), end; !error && entry != end;
       entry.increment(error)) {
    if (entry.depth() == 2 && entry->is_regular_file(error) &&
        entry->path().extension() == ".kvb") {
      files.push_back(entry->path());
    }
  }
  if (error) return StatusFromErrno("cannot list", folder, error.value());
  return files;
}

bool IsInside(const fs::path& file, const fs::path& folder) {
  std::error_code error;
  const fs::path inner = fs::weakly_canonical(file, error), outer = fs::canonical(folder, error);
  return !error &&
         std::mismatch(outer.begin(), outer.end(), inner.begin(), inner.end()).first == outer.end();
}

/// Refuses a folder whose content is not a data folder's, or is in use without `replace`.
Status CheckTarget(const fs::path& folder, bool replace) {
  std::error_code error;
  bool empty = true;
  for (fs::directory_iterator entry(folder, error), end; !error && entry != end;
       entry.increment(error)) {
    const std::string name = entry->path().filename();
    if (name == ".lock" || name == kErasureLogName || name == catalog::kRestoreFolder) continue;
    constexpr std::array<std::string_view, 5> kOurs = {"catalog.db", "catalog.db-wal",
                                                       "catalog.db-shm", "catalog.db.new", "kv"};
    if (std::find(kOurs.begin(), kOurs.end(), name) == kOurs.end()) {
      return FailedPrecondition(folder.string() + " holds " + name +
                                ", which is not of a data folder: choose another folder");
    }
    empty = false;
  }
  if (error) return StatusFromErrno("cannot list", folder, error.value());
  if (empty || replace) return OkStatus();
  return FailedPrecondition(folder.string() +
                            " is not empty: choose another folder, or pass --replace to give up "
                            "what it holds; what was erased in it stays erased");
}

Result<std::vector<ErasureEntry>> EntriesToApply(const fs::path& folder, const fs::path& staging,
                                                 const std::vector<fs::path>& logs) {
  INFERSCALE_ASSIGN_OR_RETURN(const std::vector<ErasureEntry> known,
                              catalog::ReadErasureLog(staging / kErasureLogName));
  INFERSCALE_ASSIGN_OR_RETURN(std::vector<ErasureEntry> all,
                              catalog::ReadErasureLog(folder / kErasureLogName));
  for (const fs::path& log : logs) {
    std::error_code error;
    if (!fs::is_regular_file(log, error)) return NotFound(log.string() + " is not there");
    INFERSCALE_ASSIGN_OR_RETURN(const std::vector<ErasureEntry> more, catalog::ReadErasureLog(log));
    all.insert(all.end(), more.begin(), more.end());
  }
  return catalog::EntriesBeyond(all, known);
}

Status Rename(const fs::path& from, const fs::path& to) {
  if (std::rename(from.c_str(), to.c_str()) == 0) return OkStatus();
  return StatusFromErrno("cannot write", to, errno);
}

Status SyncFileSystem(const fs::path& folder) {
  const int descriptor = open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (descriptor < 0) return StatusFromErrno("cannot open folder", folder, errno);
  const int error = syncfs(descriptor) == 0 ? 0 : errno;
  close(descriptor);
  return error == 0 ? OkStatus() : StatusFromErrno("cannot write", folder, error);
}

/// Everything is prepared in `staging`; the catalog's rename is what makes it the folder's.
Status PutInPlace(const fs::path& staging, const fs::path& folder) {
  std::error_code error;
  catalog::SettleCatalog(folder);
  INFERSCALE_RETURN_IF_ERROR(SyncFileSystem(staging));
  // It says all that the old one says, which is right for the old catalog too.
  if (fs::exists(staging / kErasureLogName, error)) {
    INFERSCALE_RETURN_IF_ERROR(Rename(staging / kErasureLogName, folder / kErasureLogName));
  }
  // Blocks may be missing at any time, and those of the backup have been erased by the same log.
  if (fs::exists(folder / "kv", error))
    INFERSCALE_RETURN_IF_ERROR(Rename(folder / "kv", staging / "old-kv"));
  if (fs::exists(staging / "kv", error))
    INFERSCALE_RETURN_IF_ERROR(Rename(staging / "kv", folder / "kv"));
  for (const char* suffix : {"-wal", "-shm"})
    fs::remove(folder / (std::string(kCatalogName) + suffix), error);
  INFERSCALE_RETURN_IF_ERROR(SyncFolder(folder));
  INFERSCALE_RETURN_IF_ERROR(Rename(staging / kCatalogName, folder / kCatalogName));
  INFERSCALE_RETURN_IF_ERROR(SyncFolder(folder));
  fs::remove_all(staging, error);
  return OkStatus();
}

}  // namespace

Result<BackupReport> BackUp(const Config& config, const fs::path& file, bool with_kv) {
  const fs::path& folder = config.data_dir;
  std::error_code error;
  if (!fs::exists(folder / kCatalogName, error))
    return NotFound("there is no catalog in " + folder.string() + ": pass --data-dir");
  if (fs::exists(file, error))
    return AlreadyExists(file.string() + " exists: choose another name or remove it");
  if (IsInside(file, folder))
    return InvalidArgument("a backup does not belong into the data folder: choose another place");
  INFERSCALE_ASSIGN_OR_RETURN(const std::unique_ptr<Catalog> catalog, OpenCatalog(config));
  // What is still to be erased would else come back with the backup's KV.
  INFERSCALE_RETURN_IF_ERROR(CompleteErasures(config, *catalog));
  std::vector<fs::path> blocks;
  if (with_kv) {
    INFERSCALE_ASSIGN_OR_RETURN(blocks, BlockFiles(folder / "kv"));
  }
  INFERSCALE_ASSIGN_OR_RETURN(ArchiveWriter archive, ArchiveWriter::Create(file));
  const ordered_json description = {{"format", kFormat},
                                    {"version", INFERSCALE_VERSION},
                                    {"schema", catalog::SchemaVersion()},
                                    {"created_at", FormatIso8601(NowMs())},
                                    {"kv_blocks", blocks.size()}};
  INFERSCALE_RETURN_IF_ERROR(archive.AddText(kDescription, description.dump(2) + "\n"));
  {
    const TemporaryFile copy(file.string() + ".partial.db");
    INFERSCALE_RETURN_IF_ERROR(copy.Create());
    INFERSCALE_RETURN_IF_ERROR(catalog::CopyCatalog(*catalog, copy.path()));
    INFERSCALE_RETURN_IF_ERROR(archive.AddFile(kCatalogName, copy.path()));
  }
  if (fs::exists(folder / kErasureLogName, error))
    INFERSCALE_RETURN_IF_ERROR(archive.AddFile(kErasureLogName, folder / kErasureLogName));
  for (const fs::path& block : blocks)
    INFERSCALE_RETURN_IF_ERROR(archive.AddFile(block.lexically_relative(folder).string(), block));
  INFERSCALE_RETURN_IF_ERROR(archive.Finish());
  return BackupReport{archive.bytes(), static_cast<std::int64_t>(blocks.size())};
}

Result<RestoreReport> Restore(const Config& config, const RestoreOptions& options) {
  const fs::path& folder = config.data_dir;
  INFERSCALE_ASSIGN_OR_RETURN(const ArchiveReader archive, ArchiveReader::Open(options.file));
  const ArchiveMember* description = archive.Find(kDescription);
  const ArchiveMember* database = archive.Find(kCatalogName);
  if (description == nullptr || database == nullptr)
    return DataLoss(options.file.string() + " lacks its catalog");
  INFERSCALE_ASSIGN_OR_RETURN(const std::string text,
                              archive.ReadText(*description, kMaxDescriptionBytes));
  const ordered_json said = ordered_json::parse(text, nullptr, false);
  if (!said.is_object() || !said.contains("format") || said["format"] != kFormat) {
    return FailedPrecondition(options.file.string() +
                              " is of another format than this program's: use the program that "
                              "wrote it, or a newer one");
  }
  INFERSCALE_RETURN_IF_ERROR(CreatePrivateFolder(folder));
  INFERSCALE_ASSIGN_OR_RETURN(const FolderLock lock, FolderLock::Acquire(folder));
  INFERSCALE_RETURN_IF_ERROR(CheckTarget(folder, options.replace));

  Config staged = config;
  staged.data_dir = folder / catalog::kRestoreFolder;
  const fs::path& staging = staged.data_dir;
  std::error_code error;
  fs::remove_all(staging, error);
  INFERSCALE_RETURN_IF_ERROR(CreatePrivateFolder(staging));
  RestoreReport report;
  for (const ArchiveMember& member : archive.members()) {
    if (&member == description) continue;
    const fs::path target = staging / member.name;
    if (member.name.starts_with("kv/")) {
      for (const fs::path& parent :
           {staging / "kv", target.parent_path().parent_path(), target.parent_path()}) {
        INFERSCALE_RETURN_IF_ERROR(CreatePrivateFolder(parent));
      }
      ++report.kv_blocks;
    }
    INFERSCALE_RETURN_IF_ERROR(archive.Extract(member, target));
  }
  INFERSCALE_ASSIGN_OR_RETURN(const std::vector<ErasureEntry> entries,
                              EntriesToApply(folder, staging, options.erasure_logs));
  report.erasures = static_cast<std::int64_t>(entries.size());
  INFERSCALE_RETURN_IF_ERROR(catalog::ReapplyErasures(staging, entries));
  {
    INFERSCALE_ASSIGN_OR_RETURN(const std::unique_ptr<Catalog> restored, OpenCatalog(staged));
    INFERSCALE_RETURN_IF_ERROR(CompleteErasures(staged, *restored));
  }
  catalog::SettleCatalog(staging);
  if (fs::exists(staging / (std::string(kCatalogName) + "-wal"), error))
    return Internal("the restored catalog could not be closed");
  INFERSCALE_RETURN_IF_ERROR(PutInPlace(staging, folder));
  return report;
}

}  // namespace inferscale
