#include "eval/json_reader.h"

#include <utility>

#include "base/utf8.h"

namespace inferscale {
namespace {

constexpr int kMaxDepth = 32;

}  // namespace

Result<nlohmann::json> ParseCheckedJson(std::string_view text, std::string_view what) {
  bool too_deep = false;
  // Deep nesting would overflow the stack when the value is destroyed.
  const nlohmann::json::parser_callback_t check_depth =
      [&](int depth, nlohmann::json::parse_event_t, nlohmann::json&) {
        if (depth > kMaxDepth) too_deep = true;
        return !too_deep;
      };
  try {
    nlohmann::json value = nlohmann::json::parse(text, check_depth);
    if (too_deep) {
      return InvalidArgument(std::string(what) + ": nested deeper than " +
                             std::to_string(kMaxDepth) + " levels");
    }
    return value;
  } catch (const nlohmann::json::exception& error) {
    return InvalidArgument(std::string(what) + ": not valid JSON: " + error.what());
  }
}

Result<std::string> RequiredString(const nlohmann::json& object, const char* name,
                                   const std::string& where) {
  if (object.is_object()) {
    const auto found = object.find(name);
    if (found != object.end() && found->is_string()) return found->get<std::string>();
  }
  return InvalidArgument(where + ": \"" + name + "\" must be a string");
}

Result<const nlohmann::json*> RequiredArray(const nlohmann::json& object, const char* name,
                                            const std::string& where) {
  if (object.is_object()) {
    const auto found = object.find(name);
    if (found != object.end() && found->is_array()) return &*found;
  }
  return InvalidArgument(where + ": \"" + name + "\" must be a list");
}

Result<std::string> RequiredText(const nlohmann::json& object, const char* name,
                                 const std::string& where) {
  if (object.is_object()) {
    const auto found = object.find(name);
    if (found != object.end() && found->is_number()) return found->dump();
    if (found != object.end() && found->is_string() &&
        !TrimWhitespace(found->get_ref<const std::string&>()).empty()) {
      return found->get<std::string>();
    }
  }
  return InvalidArgument(where + ": \"" + name +
                         "\" must be a number or a string that is not empty");
}

std::vector<std::string> OptionalStrings(const nlohmann::json& object, const char* name) {
  std::vector<std::string> strings;
  const auto found = object.is_object() ? object.find(name) : object.end();
  if (!object.is_object() || found == object.end()) return strings;
  if (found->is_string()) return {found->get<std::string>()};
  if (!found->is_array()) return strings;
  for (const nlohmann::json& element : *found) {
    if (element.is_string()) strings.push_back(element.get<std::string>());
  }
  return strings;
}

}  // namespace inferscale
