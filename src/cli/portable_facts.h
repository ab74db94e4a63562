#ifndef INFERSCALE_CLI_PORTABLE_FACTS_H_
#define INFERSCALE_CLI_PORTABLE_FACTS_H_

/// \file portable_facts.h
/// Facts in files: our export (docs/export-format.md) and the answer of Mem0's get_all.

#include <string>
#include <string_view>
#include <vector>

#include "inferscale/catalog.h"
#include "inferscale/result.h"
#include "inferscale/types.h"

namespace inferscale {

struct PortableFact {
  Fact fact;
  Scope scope;  ///< as given; may have no owner
  std::vector<HistoryEntry> history;
};

/// JSON Lines with a fact an object, or one JSON document: an array of them, or an object that
/// holds it as "results" or "memories". A fact has "memory" (or "text"), and perhaps "id",
/// "metadata", "name", "role", "actor_id", "event_time", "created_at", "updated_at",
/// "expiration_date", "superseded_by", "history" and user_id, agent_id, run_id, app_id. All or
/// nothing: kInvalidArgument names the line or item to blame; text that is not UTF-8 is refused.
Result<std::vector<PortableFact>> ParsePortableFacts(std::string_view content,
                                                     const std::string& name);

}  // namespace inferscale

#endif  // INFERSCALE_CLI_PORTABLE_FACTS_H_
