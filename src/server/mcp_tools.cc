#include "server/mcp_tools.h"

#include <algorithm>
#include <array>
#include <optional>
#include <utility>

#include "server/mem0_filters.h"

namespace inferscale::mcp {
namespace {

using nlohmann::json;
using nlohmann::ordered_json;

constexpr auto kOwnerIds = std::to_array<std::pair<const char*, const char*>>(
    {{"user_id", "user"}, {"agent_id", "agent"}, {"app_id", "app"}, {"run_id", "run"}});

bool IsOwnerId(const std::string& name) {
  return std::any_of(kOwnerIds.begin(), kOwnerIds.end(),
                     [&](const auto& id) { return name == id.first; });
}

void CopyIfAny(const json& from, const char* name, json* to, const char* as = nullptr) {
  const auto found = from.find(name);
  if (found != from.end() && !found->is_null()) (*to)[as == nullptr ? name : as] = *found;
}

/// At any depth of AND, OR and NOT.
bool NamesOwner(const json& filters) {
  if (filters.is_array()) return std::any_of(filters.begin(), filters.end(), NamesOwner);
  if (!filters.is_object()) return false;
  for (const auto& [name, value] : filters.items()) {
    if (IsOwnerId(name) || NamesOwner(value)) return true;
  }
  return false;
}

Status PutFilters(const json& arguments, const json& owner, json* body) {
  json filters = json::object();
  if (const auto given = arguments.find("filters"); given != arguments.end() && !given->is_null()) {
    if (!given->is_object()) return InvalidArgument("'filters' must be an object");
    filters = *given;
  }
  (*body)["filters"] =
      NamesOwner(filters) ? std::move(filters) : mem0::BothOf(std::move(filters), owner);
  return OkStatus();
}

Result<std::string> Required(const json& arguments, const char* name) {
  INFERSCALE_ASSIGN_OR_RETURN(std::optional<std::string> value, StringField(arguments, name));
  if (!value || value->empty()) {
    return InvalidArgument("'" + std::string(name) + "' is missing");
  }
  return *std::move(value);
}

Result<Mem0Call> AddMemory(const json& arguments, const json& owner) {
  Mem0Call call;
  call.body = mem0::OwnersIn(arguments);
  if (call.body.empty()) call.body = owner;
  CopyIfAny(arguments, "text", &call.body, "messages");
  CopyIfAny(arguments, "messages", &call.body);
  if (!call.body.contains("messages")) return InvalidArgument("'text' is missing");
  for (const char* name : {"metadata", "infer", "expiration_date"}) {
    CopyIfAny(arguments, name, &call.body);
  }
  // A model that is told "pending" could not know what became of it.
  call.body["async_mode"] = false;
  return call;
}

Result<Mem0Call> SearchMemories(const json& arguments, const json& owner) {
  Mem0Call call;
  call.body = json::object();
  CopyIfAny(arguments, "query", &call.body);
  CopyIfAny(arguments, "limit", &call.body, "top_k");
  INFERSCALE_RETURN_IF_ERROR(PutFilters(arguments, owner, &call.body));
  return call;
}

Result<Mem0Call> GetMemories(const json& arguments, const json& owner) {
  Mem0Call call;
  call.body = json::object();
  CopyIfAny(arguments, "page", &call.body);
  CopyIfAny(arguments, "page_size", &call.body);
  INFERSCALE_RETURN_IF_ERROR(PutFilters(arguments, owner, &call.body));
  return call;
}

Result<Mem0Call> OneMemory(const json& arguments, const json&) {
  Mem0Call call;
  INFERSCALE_ASSIGN_OR_RETURN(call.parameters["memory_id"], Required(arguments, "memory_id"));
  return call;
}

Result<Mem0Call> UpdateMemory(const json& arguments, const json& owner) {
  INFERSCALE_ASSIGN_OR_RETURN(Mem0Call call, OneMemory(arguments, owner));
  INFERSCALE_ASSIGN_OR_RETURN(std::string text, Required(arguments, "text"));
  call.body = {{"text", std::move(text)}};
  return call;
}

/// The owner ids among arguments that may hold nothing else: what is not understood could narrow
/// what is deleted.
Result<NameValues> OwnerArguments(const json& arguments) {
  NameValues ids;
  for (const auto& [name, value] : arguments.items()) {
    if (!IsOwnerId(name)) {
      return InvalidArgument("'" + name + "' is unknown here; nothing was deleted");
    }
    if (value.is_null()) continue;
    INFERSCALE_ASSIGN_OR_RETURN(std::string id, EntityId(value, name));
    ids.emplace_back(name, std::move(id));
  }
  return ids;
}

Result<Mem0Call> DeleteAllMemories(const json& arguments, const json& owner) {
  Mem0Call call;
  INFERSCALE_ASSIGN_OR_RETURN(call.query, OwnerArguments(arguments));
  if (call.query.empty()) {
    INFERSCALE_ASSIGN_OR_RETURN(call.query, OwnerArguments(owner));
  }
  return call;
}

Result<Mem0Call> ListEntities(const json&, const json&) { return Mem0Call(); }

Result<Mem0Call> DeleteEntities(const json& arguments, const json&) {
  INFERSCALE_ASSIGN_OR_RETURN(NameValues ids, OwnerArguments(arguments));
  if (ids.size() != 1) {
    return InvalidArgument("give exactly one of user_id, agent_id, app_id, run_id");
  }
  Mem0Call call;
  for (const auto& [name, type] : kOwnerIds) {
    if (ids.front().first == name) call.parameters["type"] = type;
  }
  call.parameters["entity_id"] = std::move(ids.front().second);
  return call;
}

constexpr const char* kAddInput = R"({"type":"object","required":["text"],"properties":{
"text":{"type":"string","description":"What to remember, as one plain sentence. Ignored if `messages` is given."},
"messages":{"type":"array","minItems":1,"description":"A conversation to remember instead of `text`.",
"items":{"type":"object","required":["role","content"],"properties":{"role":{"type":"string"},"content":{"type":"string"}}}},
"user_id":{"type":"string","description":"Whose memory; by default the user of this connection."},
"agent_id":{"type":"string","description":"The agent whose memory it is."},
"app_id":{"type":"string","description":"The app whose memory it is."},
"run_id":{"type":"string","description":"The session whose memory it is."},
"metadata":{"type":"object","description":"Any JSON object to keep beside the memory."},
"infer":{"type":"boolean","description":"false keeps the text word for word."}}})";
constexpr const char* kFiltersInput =
    R"("filters":{"type":"object","description":"Which memories: {\"user_id\": \"anna\"}, or conditions joined by AND, OR and NOT, such as {\"AND\": [{\"user_id\": \"anna\"}, {\"created_at\": {\"gte\": \"2026-01-01\"}}]}. The user of this connection if no owner is named."})";
constexpr const char* kIdInput = R"({"type":"object","required":["memory_id"],"properties":{
"memory_id":{"type":"string","minLength":1,"description":"The id that a search or a list gave."}}})";
constexpr const char* kUpdateInput =
    R"({"type":"object","required":["memory_id","text"],"properties":{
"memory_id":{"type":"string","minLength":1,"description":"The id that a search or a list gave."},
"text":{"type":"string","minLength":1,"description":"The whole new text."}}})";
constexpr const char* kOwnerInput = R"({"type":"object","additionalProperties":false,"properties":{
"user_id":{"type":"string"},"agent_id":{"type":"string"},"app_id":{"type":"string"},
"run_id":{"type":"string"}}})";
constexpr const char* kNoInput = R"({"type":"object","properties":{}})";

constexpr const char* kListOutput = R"({"type":"object","required":["results"],"properties":{
"results":{"type":"array","items":{"type":"object","required":["id"],"properties":{
"id":{"type":"string"},"memory":{"type":"string"}}}},"count":{"type":"integer"}}})";
constexpr const char* kMemoryOutput = R"({"type":"object","required":["id","memory"],"properties":{
"id":{"type":"string"},"memory":{"type":"string"},"metadata":{"type":"object"},
"created_at":{"type":"string"},"updated_at":{"type":"string"}}})";
constexpr const char* kDoneOutput = R"({"type":"object","required":["message"],"properties":{
"message":{"type":"string"}}})";

const std::string& SearchInput() {
  static const std::string schema =
      R"({"type":"object","required":["query"],"properties":{
"query":{"type":"string","minLength":1,"description":"What to find, in natural language."},
"limit":{"type":"integer","minimum":1,"maximum":1000,"description":"How many at most; 10 by default."},)" +
      std::string(kFiltersInput) + "}}";
  return schema;
}

const std::string& ListInput() {
  static const std::string schema = R"({"type":"object","properties":{
"page":{"type":"integer","minimum":1},"page_size":{"type":"integer","minimum":1,"maximum":1000},)" +
                                    std::string(kFiltersInput) + "}}";
  return schema;
}

const std::array<Tool, 9>& Tools() {
  static const std::array<Tool, 9> tools = {{
      {"add_memory", "Add a memory",
       "Remembers a fact, a preference or a conversation. Answers with what was stored.", kAddInput,
       kListOutput, "POST", "/v3/memories/add", false, false, false, AddMemory},
      {"search_memories", "Search memories",
       "Finds the memories that fit a question, by meaning and by words; the best first. Use it "
       "before answering anything that may depend on what is known of the user.",
       SearchInput().c_str(), kListOutput, "POST", "/v3/memories/search", true, false, true,
       SearchMemories},
      {"get_memories", "List memories", "Lists memories, the newest first, by pages.",
       ListInput().c_str(), kListOutput, "POST", "/v3/memories", true, false, true, GetMemories},
      {"get_memory", "Read a memory", "Reads one memory by its id.", kIdInput, kMemoryOutput, "GET",
       "/v1/memories/{memory_id}", true, false, true, OneMemory},
      {"update_memory", "Change a memory", "Replaces the text of one memory.", kUpdateInput,
       kMemoryOutput, "PUT", "/v1/memories/{memory_id}", false, true, true, UpdateMemory},
      {"delete_memory", "Delete a memory", "Deletes one memory. This cannot be undone.", kIdInput,
       kDoneOutput, "DELETE", "/v1/memories/{memory_id}", false, true, true, OneMemory},
      {"delete_all_memories", "Delete all memories",
       "Deletes every memory of an owner; without arguments of the user of this connection. This "
       "cannot be undone: ask the user first.",
       kOwnerInput, kDoneOutput, "DELETE", "/v1/memories", false, true, true, DeleteAllMemories},
      {"list_entities", "List owners", "Lists the users, agents, apps and runs that have memories.",
       kNoInput, kListOutput, "GET", "/v1/entities", true, false, true, ListEntities},
      {"delete_entities", "Delete an owner",
       "Deletes a user, an agent, an app or a run with all its memories: give exactly one id. This "
       "cannot be undone: ask the user first.",
       kOwnerInput, kDoneOutput, "DELETE", "/v2/entities/{type}/{entity_id}", false, true, true,
       DeleteEntities},
  }};
  return tools;
}

ordered_json TextResult(std::string text, bool is_error) {
  ordered_json result;
  result["content"] = ordered_json::array({{{"type", "text"}, {"text", std::move(text)}}});
  result["isError"] = is_error;
  return result;
}

}  // namespace

const Tool* FindTool(std::string_view name) {
  for (const Tool& tool : Tools()) {
    if (name == tool.name) return &tool;
  }
  return nullptr;
}

ordered_json ToolList() {
  ordered_json list = ordered_json::array();
  for (const Tool& tool : Tools()) {
    ordered_json item;
    item["name"] = tool.name;
    item["title"] = tool.title;
    item["description"] = tool.description;
    item["inputSchema"] = ordered_json::parse(tool.input_schema);
    item["outputSchema"] = ordered_json::parse(tool.output_schema);
    item["annotations"] = {{"title", tool.title},
                           {"readOnlyHint", tool.read_only},
                           {"destructiveHint", tool.destructive},
                           {"idempotentHint", tool.idempotent},
                           {"openWorldHint", false}};
    list.push_back(std::move(item));
  }
  return list;
}

ordered_json ToolResult(const HttpResponse& response) {
  ordered_json body = ordered_json::parse(response.body, nullptr, /*allow_exceptions=*/false);
  if (response.status >= 400) {
    const auto detail = body.is_object() ? body.find("detail") : body.end();
    return ToolError(detail != body.end() && detail->is_string()
                         ? detail->get<std::string>()
                         : "the call failed with status " + std::to_string(response.status));
  }
  if (!body.is_object()) return ToolError("the call gave no object");
  // Addresses of pages mean nothing here; the arguments are page and page_size.
  body.erase("next");
  body.erase("previous");
  ordered_json result = TextResult(body.dump(), false);
  result["structuredContent"] = std::move(body);
  return result;
}

ordered_json ToolError(const std::string& message) { return TextResult(message, true); }

std::string MissingRoute(const Routes& routes) {
  for (const Tool& tool : Tools()) {
    if (routes.Handler(tool.method, tool.pattern) == nullptr) {
      return std::string(tool.method) + " " + tool.pattern;
    }
  }
  return {};
}

}  // namespace inferscale::mcp
