#ifndef INFERSCALE_SERVER_MEM0_ITEMS_H_
#define INFERSCALE_SERVER_MEM0_ITEMS_H_

/// \file mem0_items.h
/// Facts, history and events as Mem0's clients read them. Thread-safe.

#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "inferscale/catalog.h"
#include "inferscale/retriever.h"
#include "server/api.h"

namespace inferscale::mem0 {

using Item = nlohmann::ordered_json;

/// A memory in the words of one dialect, without a score. The server's has a null for missing
/// metadata and leaves other missing keys out; the platform's has nulls, categories, and the run
/// under both of its names (run_id, session_id).
Item MemoryItem(const Fact& fact, const Scope& scope, ErrorDialect dialect);

/// The same of a search hit, with its score. \param explain how the score came about
Item HitItem(const SearchHit& hit, const Scope& scope, ErrorDialect dialect, double threshold,
             bool explain);

/// One row of a memory's history. \param scope of the memory. \param input the messages it came
/// from; the platform's dialect alone has them.
Item HistoryItem(const HistoryEntry& entry, const Scope& scope, const std::vector<Turn>& input,
                 ErrorDialect dialect);

/// \param facts those of the event's fact_ids
Item EventItem(const EventInfo& event, const std::vector<Fact>& facts);

/// An entity as both dialects list it; `name` is the platform's word for id.
struct Entity {
  std::string type, id;
  std::int64_t memories = 0;
  TimeMs created_at_ms = 0, updated_at_ms = 0;
};
Item EntityItem(const Entity& entity, ErrorDialect dialect);

}  // namespace inferscale::mem0

#endif  // INFERSCALE_SERVER_MEM0_ITEMS_H_
