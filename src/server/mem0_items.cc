#include "server/mem0_items.h"

#include <algorithm>
#include <string_view>
#include <utility>

#include "base/clock.h"
#include "base/hash.h"

namespace inferscale::mem0 {
namespace {

Item TextOrNull(const std::string& text) { return text.empty() ? Item() : Item(text); }

Item MetadataOf(const Fact& fact) {
  Item metadata = Item::parse(fact.metadata_json, nullptr, false);
  return metadata.is_object() ? metadata : Item::object();
}

void PutIfAny(Item& item, const char* name, const std::string& text) {
  if (!text.empty()) item[name] = text;
}

Item ServerItem(const Fact& fact, const Scope& scope) {
  Item item;
  item["id"] = fact.id;
  item["memory"] = fact.text;
  item["hash"] = Md5Hex(fact.text);
  Item metadata = MetadataOf(fact);
  item["metadata"] = metadata.empty() ? Item() : std::move(metadata);
  item["created_at"] = FormatIso8601(fact.created_at_ms);
  item["updated_at"] = FormatIso8601(fact.updated_at_ms);
  PutIfAny(item, "user_id", scope.user);
  PutIfAny(item, "agent_id", scope.agent);
  PutIfAny(item, "app_id", scope.app);
  PutIfAny(item, "run_id", scope.run);
  PutIfAny(item, "actor_id", fact.actor_id);
  PutIfAny(item, "role", fact.role);
  PutIfAny(item, "expiration_date", fact.expiration_date);
  PutIfAny(item, "superseded_by", fact.superseded_by);
  return item;
}

Item PlatformItem(const Fact& fact, const Scope& scope) {
  Item item;
  item["id"] = fact.id;
  item["memory"] = fact.text;
  item["user_id"] = TextOrNull(scope.user);
  item["agent_id"] = TextOrNull(scope.agent);
  item["app_id"] = TextOrNull(scope.app);
  item["run_id"] = TextOrNull(scope.run);
  item["session_id"] = TextOrNull(scope.run);
  item["hash"] = Md5Hex(fact.text);
  Item metadata = MetadataOf(fact);
  Item categories = Item::array();
  if (const auto found = metadata.find("categories");
      found != metadata.end() && found->is_array()) {
    categories = *found;
  }
  item["metadata"] = std::move(metadata);
  item["categories"] = std::move(categories);
  item["actor_id"] = TextOrNull(fact.actor_id);
  item["role"] = TextOrNull(fact.role);
  item["expiration_date"] = TextOrNull(fact.expiration_date);
  PutIfAny(item, "superseded_by", fact.superseded_by);
  item["created_at"] = FormatIso8601(fact.created_at_ms);
  item["updated_at"] = FormatIso8601(fact.updated_at_ms);
  return item;
}

std::string_view StateName(EventInfo::State state) {
  switch (state) {
    case EventInfo::State::kPending:
      return "PENDING";
    case EventInfo::State::kRunning:
      return "RUNNING";
    case EventInfo::State::kFailed:
      return "FAILED";
    case EventInfo::State::kSucceeded:
      break;
  }
  return "SUCCEEDED";
}

}  // namespace

Item MemoryItem(const Fact& fact, const Scope& scope, ErrorDialect dialect) {
  return dialect == ErrorDialect::kMem0Server ? ServerItem(fact, scope) : PlatformItem(fact, scope);
}

Item HitItem(const SearchHit& hit, const Scope& scope, ErrorDialect dialect, double threshold,
             bool explain) {
  Item item = MemoryItem(hit.fact, scope, dialect);
  item["score"] = hit.score;
  if (dialect == ErrorDialect::kMem0Platform) {
    item["score_breakdown"] = {{"semantic", hit.semantic}, {"bm25", hit.keyword}, {"entity", 0.0}};
  } else if (explain) {
    const double raw = hit.semantic + hit.keyword;
    item["score_details"] = {{"semantic_score", hit.semantic},
                             {"bm25_score", hit.keyword},
                             {"entity_boost", 0.0},
                             {"raw_score", raw},
                             {"max_possible_score", hit.score > 0 ? raw / hit.score : 1.0},
                             {"final_score", hit.score},
                             {"threshold", threshold}};
  }
  return item;
}

Item HistoryItem(const HistoryEntry& entry, const Scope& scope, const std::vector<Turn>& input,
                 ErrorDialect dialect) {
  Item item;
  item["id"] = entry.id;
  item["memory_id"] = entry.fact_id;
  if (dialect == ErrorDialect::kMem0Platform) {
    item["input"] = Item::array();
    for (const Turn& turn : input) {
      item["input"].push_back({{"role", turn.role}, {"content", turn.content}});
    }
  }
  item["old_memory"] = entry.old_text ? Item(*entry.old_text) : Item();
  item["new_memory"] = entry.new_text ? Item(*entry.new_text) : Item();
  item["event"] = entry.event;
  if (dialect == ErrorDialect::kMem0Platform) {
    item["user_id"] = TextOrNull(scope.user);
    item["metadata"] = Item();
  } else {
    item["is_deleted"] = entry.is_deleted;
    item["actor_id"] = TextOrNull(entry.actor_id);
    item["role"] = TextOrNull(entry.role);
  }
  item["created_at"] = FormatIso8601(entry.created_at_ms);
  item["updated_at"] = FormatIso8601(entry.updated_at_ms);
  return item;
}

Item EventItem(const EventInfo& event, const std::vector<Fact>& facts) {
  Item item;
  item["id"] = event.id;
  item["event_type"] = event.kind;
  item["status"] = StateName(event.state);
  item["payload"] = Item();
  item["results"] = Item::array();
  for (const Fact& fact : facts) {
    item["results"].push_back({{"id", fact.id},
                               {"event", "ADD"},
                               {"memory", fact.text},
                               {"data", {{"memory", fact.text}}}});
  }
  // What the model's server said is the operator's business, who has it in the log.
  item["error"] = event.error.empty() ? Item()
                                      : Item("the model that extracts memories failed: " +
                                             event.error.substr(0, event.error.find(':')));
  item["latency"] = Item();
  item["created_at"] = FormatIso8601(event.created_at_ms);
  return item;
}

Item EntityItem(const Entity& entity, ErrorDialect dialect) {
  Item item;
  item["id"] = entity.id;
  if (dialect == ErrorDialect::kMem0Platform) item["name"] = entity.id;
  item["type"] = entity.type;
  item["total_memories"] = entity.memories;
  item["created_at"] = FormatIso8601(entity.created_at_ms);
  item["updated_at"] = FormatIso8601(entity.updated_at_ms);
  return item;
}

}  // namespace inferscale::mem0
