#ifndef INFERSCALE_SERVER_MEM0_FILTERS_H_
#define INFERSCALE_SERVER_MEM0_FILTERS_H_

/// \file mem0_filters.h
/// Whose facts, and which of them, a filter of either of Mem0's grammars means. Guarantees: only
/// scopes of the key's tenant that the key may see are chosen; a filter that is not wholly
/// understood is an error and never chooses more than it says. Thread-safe.

#include <map>
#include <memory>
#include <vector>

#include <nlohmann/json.hpp>

#include "catalog/filter.h"
#include "inferscale/catalog.h"
#include "server/api.h"

namespace inferscale::mem0 {

/// Facts of some scopes that pass a filter; null: all of them.
struct Selection {
  std::vector<ScopeId> scopes;
  std::unique_ptr<const Filter> filter;
};

struct Selected {
  std::vector<Selection> parts;  ///< no scope is in two
  std::map<ScopeId, Scope> owners;
};

/// \param filters an object: user_id, agent_id, app_id, run_id (a value, "*", {eq|ne|in: …}) and
/// conditions on facts, joined by AND, OR, NOT at any depth. kMem0Server: any other key is one of
/// the metadata. kMem0Platform: only the platform's fields and operators.
/// kInvalidArgument also if no owner is named and the key is bound to none.
Result<Selected> Select(Catalog& catalog, const Principal& principal, const nlohmann::json& filters,
                        ErrorDialect grammar);

/// The conjunction of two filters, either of which may be empty.
nlohmann::json BothOf(nlohmann::json one, nlohmann::json other);

/// Of an object, only user_id, agent_id, app_id and run_id that are not null.
nlohmann::json OwnersIn(const nlohmann::json& object);

}  // namespace inferscale::mem0

#endif  // INFERSCALE_SERVER_MEM0_FILTERS_H_
