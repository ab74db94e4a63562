#include "server/tool_request.h"

#include <algorithm>
#include <cctype>
#include <optional>
#include <set>
#include <string_view>
#include <utility>

#include "server/api.h"

namespace inferscale {
namespace {

using nlohmann::json;

constexpr std::size_t kMaxTools = 128, kMaxNameBytes = 64, kMaxCalls = 256;
constexpr std::size_t kMaxToolBytes = std::size_t{256} << 10;  // of all descriptions and schemas

const json* Member(const json& object, std::string_view name) {
  const auto found = object.find(name);
  return found == object.end() || found->is_null() ? nullptr : &*found;
}

Status MustBe(const std::string& where, std::string_view expected) {
  return InvalidArgument("'" + where + "' must be " + std::string(expected));
}

Status NotHere(const std::string& where, std::string_view why) {
  return Unsupported("'" + where + "' is not supported here: " + std::string(why));
}

Result<std::string> FunctionName(const json& function, const std::string& where) {
  const json* name = Member(function, "name");
  const std::string expected =
      "1 to " + std::to_string(kMaxNameBytes) + " letters, digits, underscores and dashes";
  if (name == nullptr || !name->is_string()) return MustBe(where + ".name", expected);
  const std::string& text = name->get_ref<const std::string&>();
  const bool plain = std::all_of(text.begin(), text.end(), [](unsigned char c) {
    return (c < 128 && std::isalnum(c) != 0) || c == '_' || c == '-';
  });
  if (text.empty() || text.size() > kMaxNameBytes || !plain)
    return MustBe(where + ".name", expected);
  return text;
}

/// `type` must be "function", and `function` an object.
Result<const json*> FunctionOf(const json& item, const std::string& where) {
  if (!item.is_object()) return MustBe(where, "an object");
  const json* type = Member(item, "type");
  if (type == nullptr || !type->is_string()) return MustBe(where + ".type", "\"function\"");
  if (*type != "function") return NotHere(where + ".type", "tools are functions");
  const json* function = Member(item, "function");
  if (function == nullptr || !function->is_object())
    return MustBe(where + ".function", "an object");
  return function;
}

Result<ToolUse::Tool> ToolOf(const json& item, const std::string& where) {
  INFERSCALE_ASSIGN_OR_RETURN(const json* function, FunctionOf(item, where));
  ToolUse::Tool tool;
  const std::string inner = where + ".function";
  INFERSCALE_ASSIGN_OR_RETURN(tool.name, FunctionName(*function, inner));
  if (const json* description = Member(*function, "description")) {
    if (!description->is_string()) return MustBe(inner + ".description", "a string");
    tool.description = description->get<std::string>();
  }
  const json* strict = Member(*function, "strict");
  if (strict != nullptr && !strict->is_boolean()) return MustBe(inner + ".strict", "true or false");
  json parameters = {{"type", "object"}, {"properties", json::object()}};
  if (const json* given = Member(*function, "parameters")) {
    if (!given->is_object()) return MustBe(inner + ".parameters", "a JSON schema");
    if (!given->empty()) parameters = *given;
    if (!parameters.contains("type")) parameters["type"] = "object";
    if (parameters["type"] != "object") return MustBe(inner + ".parameters.type", "\"object\"");
    const json* properties = Member(parameters, "properties");
    if (properties != nullptr && !properties->is_object())
      return MustBe(inner + ".parameters.properties", "an object");
  }
  tool.parameters_json = parameters.dump();
  return tool;
}

/// Reads `tool_choice` into `use`. \return false: nothing may be called.
Result<bool> ReadChoice(const json& body, ToolUse* use) {
  const json* choice = Member(body, "tool_choice");
  if (choice == nullptr) return true;
  const std::string expected =
      "none, auto, required, or {\"type\": \"function\", \"function\": {\"name\": …}}";
  if (choice->is_string()) {
    if (*choice == "none") return false;
    if (*choice != "auto" && *choice != "required") return MustBe("tool_choice", expected);
    if (use->tools.empty()) return InvalidArgument("'tool_choice' needs 'tools'");
    if (*choice == "required") use->choice = ToolUse::Choice::kRequired;
    return true;
  }
  if (!choice->is_object()) return MustBe("tool_choice", expected);
  INFERSCALE_ASSIGN_OR_RETURN(const json* function, FunctionOf(*choice, "tool_choice"));
  INFERSCALE_ASSIGN_OR_RETURN(use->only, FunctionName(*function, "tool_choice.function"));
  use->choice = ToolUse::Choice::kRequired;
  const bool known = std::any_of(use->tools.begin(), use->tools.end(),
                                 [&](const ToolUse::Tool& tool) { return tool.name == use->only; });
  if (!known) return MustBe("tool_choice.function.name", "the name of one of 'tools'");
  return true;
}

}  // namespace

Result<std::shared_ptr<const ToolFormat>> ToolsOf(const json& body,
                                                  const std::vector<ChatMessage>& messages,
                                                  const Engine& engine) {
  for (const char* legacy : {"functions", "function_call"}) {
    const json* value = Member(body, legacy);
    if (value != nullptr && !value->empty() && *value != "none")
      return NotHere(legacy, "send 'tools' and 'tool_choice'");
  }
  ToolUse use;
  if (const json* tools = Member(body, "tools")) {
    if (!tools->is_array() || tools->size() > kMaxTools)
      return MustBe("tools", "a list of at most " + std::to_string(kMaxTools) + " tools");
    std::set<std::string> names;
    std::size_t bytes = 0;
    for (std::size_t i = 0; i < tools->size(); ++i) {
      const std::string where = "tools[" + std::to_string(i) + "]";
      INFERSCALE_ASSIGN_OR_RETURN(ToolUse::Tool tool, ToolOf((*tools)[i], where));
      if (!names.insert(tool.name).second)
        return MustBe(where + ".function.name", "another than those before it");
      bytes += tool.description.size() + tool.parameters_json.size();
      use.tools.push_back(std::move(tool));
    }
    if (bytes > kMaxToolBytes)
      return InvalidArgument("'tools' may have at most " + std::to_string(kMaxToolBytes) +
                             " bytes of descriptions and schemas");
  }
  INFERSCALE_ASSIGN_OR_RETURN(const auto parallel, BooleanField(body, "parallel_tool_calls"));
  use.parallel = parallel.value_or(true);
  INFERSCALE_ASSIGN_OR_RETURN(const bool may_call, ReadChoice(body, &use));
  if (!may_call) use.tools.clear();
  const bool has_calls =
      std::any_of(messages.begin(), messages.end(), [](const ChatMessage& message) {
        return !message.tool_calls.empty() || message.role == "tool";
      });
  if (use.tools.empty() && !has_calls) return std::shared_ptr<const ToolFormat>();
  const json* format = Member(body, "response_format");
  if (!use.tools.empty() && format != nullptr && format->is_object() &&
      format->value("type", json()) != "text") {
    return NotHere("response_format", "an answer is either held to a schema or may call tools");
  }
  Result<std::shared_ptr<const ToolFormat>> made = engine.MakeToolFormat(use);
  if (!made.ok() && made.status().code() == StatusCode::kUnsupported)
    return NotHere("tools", made.status().message());
  return made;
}

Result<std::vector<ToolCall>> ToolCallsOf(const json& message, const std::string& where) {
  std::vector<ToolCall> calls;
  const json* given = Member(message, "tool_calls");
  if (given == nullptr) return calls;
  const std::string list = where + ".tool_calls";
  if (!given->is_array() || given->size() > kMaxCalls)
    return MustBe(list, "a list of at most " + std::to_string(kMaxCalls) + " calls");
  for (std::size_t i = 0; i < given->size(); ++i) {
    const std::string at = list + "[" + std::to_string(i) + "]";
    INFERSCALE_ASSIGN_OR_RETURN(const json* function, FunctionOf((*given)[i], at));
    ToolCall call;
    const json* id = Member((*given)[i], "id");
    if (id == nullptr || !id->is_string() || id->get_ref<const std::string&>().empty() ||
        id->get_ref<const std::string&>().size() > 256) {
      return MustBe(at + ".id", "a string of 1 to 256 bytes");
    }
    call.id = id->get<std::string>();
    INFERSCALE_ASSIGN_OR_RETURN(call.name, FunctionName(*function, at + ".function"));
    const json* arguments = Member(*function, "arguments");
    const std::string expected = "a string with the JSON text of an object";
    if (arguments == nullptr || !arguments->is_string())
      return MustBe(at + ".function.arguments", expected);
    // As JsonBody(): deeper than anything sensible, and a parser's stack is finite.
    constexpr int kMaxDepth = 64;
    bool too_deep = false;
    const json parsed = json::parse(
        arguments->get_ref<const std::string&>(),
        [&](int depth, json::parse_event_t, json&) {
          too_deep = too_deep || depth > kMaxDepth;
          return !too_deep;
        },
        false);
    if (too_deep || !parsed.is_object()) return MustBe(at + ".function.arguments", expected);
    call.arguments = parsed.dump();
    calls.push_back(std::move(call));
  }
  return calls;
}

Status CheckToolResults(const std::vector<ChatMessage>& messages) {
  std::set<std::string> called;
  for (std::size_t i = 0; i < messages.size(); ++i) {
    if (messages[i].role != "tool") {
      called.clear();
      for (const ToolCall& call : messages[i].tool_calls) called.insert(call.id);
    } else if (called.erase(messages[i].tool_call_id) == 0) {
      return MustBe("messages[" + std::to_string(i) + "].tool_call_id",
                    "the id of a call in the assistant's message before it, not yet answered");
    }
  }
  return OkStatus();
}

}  // namespace inferscale
