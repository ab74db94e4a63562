#ifndef INFERSCALE_CATALOG_ERASING_H_
#define INFERSCALE_CATALOG_ERASING_H_

/// \file erasing.h
/// The rows that deleting and forgetting take away, within a transaction of the caller's. Each
/// records an erasure for the KV store and fills in what the erasure log is to say. They throw
/// SQLite::Exception.

#include <map>
#include <string>

#include "catalog/connection.h"
#include "catalog/erasure_log.h"
#include "inferscale/catalog.h"

namespace inferscale::catalog {

Result<Erasure> DeleteFactRows(Connection& connection, const std::string& id, TimeMs now,
                               ErasureEntry* entry);
Result<Erasure> DeleteScopeRows(Connection& connection, ScopeId scope, TimeMs now,
                                ErasureEntry* entry);
/// These need a scrub afterwards, and mark the file for it.
Result<Erasure> ForgetFactRows(Connection& connection, const std::string& id, TimeMs now,
                               ErasureEntry* entry);
Result<Erasure> ForgetScopeRows(Connection& connection, ScopeId scope, TimeMs now,
                                ErasureEntry* entry);

/// Ids of all facts that live or have left history, by their hashes.
std::map<std::string, std::string> FactIdsByHash(Connection& connection);
/// Does what a log's entry says to a catalog from before it: also to turns of facts that it has not
/// yet made. Nothing where there is nothing left to do.
Status ApplyEntry(Connection& connection, const std::map<std::string, std::string>& ids,
                  const ErasureEntry& entry, TimeMs now);

}  // namespace inferscale::catalog

#endif  // INFERSCALE_CATALOG_ERASING_H_
