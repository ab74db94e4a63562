#ifndef INFERSCALE_CLI_BACKUP_H_
#define INFERSCALE_CLI_BACKUP_H_

/// \file backup.h
/// Backups of a data folder that nobody uses, and their way back. Guarantees: a backup is whole or
/// absent, a restored folder is the old or the restored one, also after kill -9; what was erased
/// after a backup was made is erased again when it is restored.

#include <cstdint>
#include <filesystem>
#include <vector>

#include "cli/config.h"
#include "inferscale/result.h"

namespace inferscale {

struct BackupReport {
  std::int64_t bytes = 0, kv_blocks = 0;
};

/// kUnavailable while a process holds the folder; kAlreadyExists: `file` is there.
/// \param with_kv KV blocks too, which are else computed again
Result<BackupReport> BackUp(const Config& config, const std::filesystem::path& file, bool with_kv);

struct RestoreOptions {
  std::filesystem::path file;
  bool replace = false;  ///< take the place of the catalog that is there
  /// Logs of erasures kept elsewhere, beside the one in the data folder.
  std::vector<std::filesystem::path> erasure_logs;
};

struct RestoreReport {
  std::int64_t kv_blocks = 0;
  std::int64_t erasures = 0;  ///< entries of the logs that the backup did not know
};

/// kUnavailable while a process holds the folder; kFailedPrecondition for a folder that is not
/// empty, without `replace`.
Result<RestoreReport> Restore(const Config& config, const RestoreOptions& options);

}  // namespace inferscale

#endif  // INFERSCALE_CLI_BACKUP_H_
