#ifndef INFERSCALE_CATALOG_BACKUP_H_
#define INFERSCALE_CATALOG_BACKUP_H_

/// \file backup.h
/// Copies of a catalog, and their way back. Free functions; the caller holds the folders.

#include <cstdint>
#include <filesystem>
#include <span>
#include <string_view>

#include "catalog/erasure_log.h"
#include "inferscale/catalog.h"

namespace inferscale::catalog {

inline constexpr std::string_view kCatalogName = "catalog.db";
/// Where a restore prepares what then takes its place, inside the data folder. One that is found
/// was cut short, and is removed when the catalog is opened.
inline constexpr std::string_view kRestoreFolder = ".restore";

/// Writes all that `catalog` holds to a new file, and syncs it.
Status CopyCatalog(Catalog& catalog, const std::filesystem::path& file);

/// Brings what a killed process left in the log beside the catalog into its file, so that the file
/// alone is the catalog. What cannot be read is left as it is.
void SettleCatalog(const std::filesystem::path& folder);

/// Erases again, in the catalog of `folder`, what was erased after it was copied. The catalog's log
/// gets the entries.
Status ReapplyErasures(const std::filesystem::path& folder, std::span<const ErasureEntry> entries);

}  // namespace inferscale::catalog

#endif  // INFERSCALE_CATALOG_BACKUP_H_
