#include "cli/portable_facts.h"

#include <algorithm>
#include <optional>
#include <utility>

#include <nlohmann/json.hpp>

#include "base/clock.h"
#include "base/utf8.h"

namespace inferscale {
namespace {

using nlohmann::json;

constexpr std::size_t kMaxIdBytes = 256;
constexpr int kMaxJsonDepth = 64;

/// A text that may be missing or null.
Result<std::string> OptionalText(const json& item, const char* key) {
  const auto found = item.find(key);
  if (found == item.end() || found->is_null()) return std::string();
  if (!found->is_string()) return InvalidArgument(std::string("\"") + key + "\" must be text");
  return found->get<std::string>();
}

Result<TimeMs> OptionalTime(const json& item, const char* key) {
  INFERSCALE_ASSIGN_OR_RETURN(const std::string text, OptionalText(item, key));
  if (text.empty()) return TimeMs{0};
  Result<TimeMs> time = ParseIso8601(text);
  if (!time.ok()) return time.status().WithContext(std::string("\"") + key + "\"");
  return time;
}

/// A text, or nothing when it is missing or null.
Result<std::optional<std::string>> TextIfAny(const json& item, const char* key) {
  const auto found = item.find(key);
  if (found == item.end() || found->is_null()) return std::optional<std::string>();
  if (!found->is_string()) return InvalidArgument(std::string("\"") + key + "\" must be text");
  return std::optional(found->get<std::string>());
}

Result<std::vector<HistoryEntry>> ParseHistory(const json& item) {
  std::vector<HistoryEntry> history;
  const auto found = item.find("history");
  if (found == item.end() || found->is_null()) return history;
  if (!found->is_array()) return InvalidArgument("\"history\" must be a list");
  for (const json& given : *found) {
    if (!given.is_object()) return InvalidArgument("\"history\" must hold objects");
    HistoryEntry entry;
    INFERSCALE_ASSIGN_OR_RETURN(entry.event, OptionalText(given, "event"));
    if (entry.event != "ADD" && entry.event != "UPDATE" && entry.event != "DELETE" &&
        entry.event != "SUPERSEDE") {
      return InvalidArgument("\"event\" of a \"history\" must be ADD, UPDATE, DELETE or SUPERSEDE");
    }
    INFERSCALE_ASSIGN_OR_RETURN(entry.old_text, TextIfAny(given, "old_memory"));
    INFERSCALE_ASSIGN_OR_RETURN(entry.new_text, TextIfAny(given, "new_memory"));
    INFERSCALE_ASSIGN_OR_RETURN(entry.actor_id, OptionalText(given, "actor_id"));
    INFERSCALE_ASSIGN_OR_RETURN(entry.role, OptionalText(given, "role"));
    INFERSCALE_ASSIGN_OR_RETURN(entry.created_at_ms, OptionalTime(given, "created_at"));
    INFERSCALE_ASSIGN_OR_RETURN(entry.updated_at_ms, OptionalTime(given, "updated_at"));
    const auto deleted = given.find("is_deleted");
    entry.is_deleted = deleted != given.end() && deleted->is_boolean() && deleted->get<bool>();
    history.push_back(std::move(entry));
  }
  return history;
}

/// Mem0 has categories beside the metadata; here they are a key of it, by which filters find them.
Status KeepCategories(const json& item, Fact* fact) {
  const auto categories = item.find("categories");
  if (categories == item.end() || categories->is_null()) return OkStatus();
  if (!categories->is_array()) return InvalidArgument("\"categories\" must be a list");
  json metadata = json::parse(fact->metadata_json, nullptr, false);
  if (categories->empty() || metadata.contains("categories")) return OkStatus();
  metadata["categories"] = *categories;
  fact->metadata_json = metadata.dump();
  return OkStatus();
}

Result<PortableFact> ParseFact(const json& item) {
  if (!item.is_object()) return InvalidArgument("a fact must be a JSON object");
  PortableFact portable;
  Fact& fact = portable.fact;
  INFERSCALE_ASSIGN_OR_RETURN(fact.text, OptionalText(item, "memory"));
  if (fact.text.empty()) {
    INFERSCALE_ASSIGN_OR_RETURN(fact.text, OptionalText(item, "text"));
  }
  if (TrimWhitespace(fact.text).empty()) {
    return InvalidArgument("no text: a fact needs \"memory\" (or \"text\")");
  }
  INFERSCALE_ASSIGN_OR_RETURN(fact.id, OptionalText(item, "id"));
  if (fact.id.size() > kMaxIdBytes ||
      std::any_of(fact.id.begin(), fact.id.end(), [](char c) { return c > 0 && c <= ' '; })) {
    return InvalidArgument("\"id\" must be at most 256 bytes without blanks");
  }
  INFERSCALE_ASSIGN_OR_RETURN(fact.name, OptionalText(item, "name"));
  INFERSCALE_ASSIGN_OR_RETURN(fact.role, OptionalText(item, "role"));
  INFERSCALE_ASSIGN_OR_RETURN(fact.actor_id, OptionalText(item, "actor_id"));
  INFERSCALE_ASSIGN_OR_RETURN(fact.superseded_by, OptionalText(item, "superseded_by"));
  INFERSCALE_ASSIGN_OR_RETURN(fact.event_time_ms, OptionalTime(item, "event_time"));
  INFERSCALE_ASSIGN_OR_RETURN(fact.created_at_ms, OptionalTime(item, "created_at"));
  INFERSCALE_ASSIGN_OR_RETURN(fact.updated_at_ms, OptionalTime(item, "updated_at"));
  INFERSCALE_ASSIGN_OR_RETURN(fact.expiration_date, OptionalText(item, "expiration_date"));
  if (!fact.expiration_date.empty()) {
    const Result<TimeMs> date = ParseIso8601(fact.expiration_date);
    if (!date.ok()) return date.status().WithContext("\"expiration_date\"");
    fact.expiration_date = FormatDate(*date);
  }
  const auto metadata = item.find("metadata");
  if (metadata != item.end() && !metadata->is_null()) {
    if (!metadata->is_object()) return InvalidArgument("\"metadata\" must be an object");
    fact.metadata_json = metadata->dump();
    const auto name = metadata->find("display_name");
    if (fact.name.empty() && name != metadata->end() && name->is_string()) {
      fact.name = name->get<std::string>();
    }
  }
  INFERSCALE_RETURN_IF_ERROR(KeepCategories(item, &fact));
  INFERSCALE_ASSIGN_OR_RETURN(portable.history, ParseHistory(item));
  INFERSCALE_ASSIGN_OR_RETURN(portable.scope.user, OptionalText(item, "user_id"));
  INFERSCALE_ASSIGN_OR_RETURN(portable.scope.agent, OptionalText(item, "agent_id"));
  INFERSCALE_ASSIGN_OR_RETURN(portable.scope.run, OptionalText(item, "run_id"));
  if (portable.scope.run.empty()) {  // what Mem0's lists call it
    INFERSCALE_ASSIGN_OR_RETURN(portable.scope.run, OptionalText(item, "session_id"));
  }
  INFERSCALE_ASSIGN_OR_RETURN(portable.scope.app, OptionalText(item, "app_id"));
  return portable;
}

/// The line on which a text stops being JSON.
std::size_t ErrorLine(std::string_view content) {
  std::size_t position = 0;
  try {
    const json ignored = json::parse(content);
  } catch (const json::parse_error& error) {
    position = error.byte;
  }
  const std::string_view before = content.substr(0, position);
  return static_cast<std::size_t>(std::count(before.begin(), before.end(), '\n')) + 1;
}

/// Writing JSON out again recurses, so depth from outside is bounded first.
bool NestedTooDeeply(std::string_view content) {
  int depth = 0;
  bool in_string = false;
  for (std::size_t i = 0; i < content.size(); ++i) {
    const char c = content[i];
    if (in_string && c == '\\') {
      ++i;
    } else if (c == '"') {
      in_string = !in_string;
    } else if (!in_string && (c == '[' || c == '{')) {
      if (++depth > kMaxJsonDepth) return true;
    } else if (!in_string && (c == ']' || c == '}')) {
      depth = std::max(depth - 1, 0);
    } else if (c == '\n') {
      in_string = false;  // no line break stands inside a JSON string
    }
  }
  return false;
}

Status CheckUtf8(std::string_view content, const std::string& name) {
  if (IsValidUtf8(content)) return OkStatus();
  std::size_t number = 1;
  for (std::size_t begin = 0; begin < content.size(); ++number) {
    const std::size_t end = std::min(content.find('\n', begin), content.size());
    if (!IsValidUtf8(content.substr(begin, end - begin))) break;
    begin = end + 1;
  }
  return InvalidArgument(name + ":" + std::to_string(number) +
                         ": not UTF-8: convert the file first; nothing was imported");
}

Result<std::vector<PortableFact>> ParseDocument(const json& document, const std::string& name) {
  const json* items = &document;
  for (const char* key : {"results", "memories"}) {
    if (document.is_object() && document.contains(key)) items = &document[key];
  }
  if (!items->is_array()) {
    return InvalidArgument(name +
                           ": no facts: give JSON Lines of an export, or Mem0's "
                           "{\"results\": […]}");
  }
  std::vector<PortableFact> facts;
  for (std::size_t i = 0; i < items->size(); ++i) {
    Result<PortableFact> fact = ParseFact((*items)[i]);
    if (!fact.ok()) return fact.status().WithContext(name + ": item " + std::to_string(i));
    facts.push_back(*std::move(fact));
  }
  return facts;
}

}  // namespace

Result<std::vector<PortableFact>> ParsePortableFacts(std::string_view content,
                                                     const std::string& name) {
  INFERSCALE_RETURN_IF_ERROR(CheckUtf8(content, name));
  if (NestedTooDeeply(content)) {
    return InvalidArgument(name + ": JSON nested deeper than " + std::to_string(kMaxJsonDepth) +
                           " levels; nothing was imported");
  }
  constexpr std::string_view kByteOrderMark = "\xEF\xBB\xBF";
  if (content.starts_with(kByteOrderMark)) content.remove_prefix(kByteOrderMark.size());
  // Lines of objects are no JSON document unless there is just one.
  const json document = json::parse(content, nullptr, false);
  const bool one_line_fact =
      document.is_object() && !document.contains("results") && !document.contains("memories");
  if (!document.is_discarded() && !one_line_fact) return ParseDocument(document, name);
  if (TrimWhitespace(content).starts_with('[')) {
    return InvalidArgument(name + ":" + std::to_string(ErrorLine(content)) +
                           ": not JSON; nothing was imported");
  }
  std::vector<PortableFact> facts;
  std::size_t number = 1;
  for (std::size_t begin = 0; begin < content.size(); ++number) {
    const std::size_t end = std::min(content.find('\n', begin), content.size());
    const std::string_view line = TrimWhitespace(content.substr(begin, end - begin));
    begin = end + 1;
    if (line.empty()) continue;
    const std::string where = name + ":" + std::to_string(number);
    const json item = json::parse(line, nullptr, false);
    if (item.is_discarded()) return InvalidArgument(where + ": not JSON; nothing was imported");
    Result<PortableFact> fact = ParseFact(item);
    if (!fact.ok()) return fact.status().WithContext(where);
    facts.push_back(*std::move(fact));
  }
  return facts;
}

}  // namespace inferscale
