#ifndef INFERSCALE_CATALOG_SCHEMA_H_
#define INFERSCALE_CATALOG_SCHEMA_H_

#include <filesystem>

#include "catalog/connection.h"
#include "inferscale/result.h"

namespace inferscale::catalog {

/// PRAGMA user_version of a file that this program writes.
int SchemaVersion();

/// Brings the file to `target_version` in one transaction a step; never backwards.
/// kFailedPrecondition for a newer file. Throws SQLite::Exception.
Status Migrate(Connection& connection, const std::filesystem::path& file, int target_version);

/// Makes `file` with the newest schema when there is none: under another name first, so that a
/// crash leaves no half-made catalog. kFailedPrecondition for an empty or foreign file.
Status CreateIfMissing(const std::filesystem::path& file);

}  // namespace inferscale::catalog

#endif  // INFERSCALE_CATALOG_SCHEMA_H_
