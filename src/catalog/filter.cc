#include "catalog/filter.h"

#include <algorithm>
#include <set>
#include <string>
#include <utility>

#include <nlohmann/json.hpp>

#include "base/utf8.h"
#include "catalog/filter_fields.h"

namespace inferscale {
namespace {

using Json = nlohmann::json;
using catalog::FilterField;
using catalog::FilterOperator;

constexpr std::size_t kMaxJsonBytes = std::size_t{1} << 20;
constexpr int kMaxDepth = 16;
constexpr int kMaxJsonDepth = 3 * kMaxDepth;
constexpr int kMaxConditions = 256;
// SQLite's parser holds at most 100 symbols; a condition of ours and the query around take up
// to 45.
constexpr int kMaxPending = 50;
constexpr std::size_t kMaxBindings = 10000;
// SQLite refuses expressions nested deeper than 1,000; lists of alternatives nest.
constexpr std::size_t kMaxAlternatives = 256;

/// JSON in which a key given twice, of which one would be dropped silently, is an error.
Result<Json> ParseStrictly(std::string_view text) {
  std::vector<std::set<std::string>> keys;
  Status problem;
  const Json::parser_callback_t check = [&](int depth, Json::parse_event_t event, Json& parsed) {
    if (!problem.ok()) return false;
    if (depth > kMaxJsonDepth) {
      problem = InvalidArgument("the filter is nested too deeply");
      return false;
    }
    if (event == Json::parse_event_t::object_start) {
      keys.emplace_back();
    } else if (event == Json::parse_event_t::object_end) {
      keys.pop_back();
    } else if (event == Json::parse_event_t::key &&
               !keys.back().insert(parsed.get<std::string>()).second) {
      problem = InvalidArgument("the filter has the key '" +
                                std::string(TruncateUtf8(parsed.get<std::string>(), 100)) +
                                "' twice in one object: join the conditions with AND");
    }
    return problem.ok();
  };
  Json json = Json::parse(text, check, false);
  INFERSCALE_RETURN_IF_ERROR(problem);
  if (json.is_discarded()) return InvalidArgument("the filter is not valid JSON");
  if (!json.is_object()) return InvalidArgument("the filter must be a JSON object");
  return json;
}

bool IsLogic(const std::string& key) { return key == "AND" || key == "OR" || key == "NOT"; }

bool IsNested(const Json& object) {
  if (!object.is_object()) return false;
  for (const auto& [key, value] : object.items()) {
    if (IsLogic(key)) return true;
  }
  return object.size() > 1;
}

class Compiler {
 public:
  explicit Compiler(Filter::Sql& sql) : sql_(sql) {}

  /// The conditions of an object, joined with AND.
  Status AppendObject(const Json& object, int depth);

 private:
  Status AppendList(const std::string& word, const Json& list, int depth);
  Status AppendMember(const std::string& key, const Json& value, int depth);
  Status AppendMetadataObject(const Json& object);
  Status AppendField(const FilterField& field, const Json& value);
  Status AppendCondition(const FilterField& field, FilterOperator op, const Json& value);
  /// Appends parts in parentheses, joined. `append` appends part `i`.
  template <typename Append>
  Status AppendJoined(const char* join, std::size_t count, Append&& append);

  Filter::Sql& sql_;
  int conditions_ = 0;
  int pending_ = 0;  ///< symbols that SQLite's parser holds while it reads what comes next
};

template <typename Append>
Status Compiler::AppendJoined(const char* join, std::size_t count, Append&& append) {
  if (count == 1) return append(0);
  sql_.condition += "(";
  for (std::size_t i = 0; i < count; ++i) {
    if (i > 0) sql_.condition += join;
    const int held = i == 0 ? 1 : 3;  // "(", then also what is before and the word between
    pending_ += held;
    INFERSCALE_RETURN_IF_ERROR(append(i));
    pending_ -= held;
  }
  sql_.condition += ")";
  return OkStatus();
}

Status Compiler::AppendObject(const Json& object, int depth) {
  if (depth > kMaxDepth) {
    return InvalidArgument("the filter is nested deeper than " + std::to_string(kMaxDepth) +
                           " levels");
  }
  if (!object.is_object()) {
    return InvalidArgument("AND, OR and NOT take lists of objects, such as [{\"city\": \"Rome\"}]");
  }
  if (object.empty()) return InvalidArgument("the filter has an empty condition {}");
  // What is nested comes first: the parser then holds least.
  std::vector<std::string> keys;
  for (const auto& [key, value] : object.items()) keys.push_back(key);
  std::stable_partition(keys.begin(), keys.end(), IsLogic);
  return AppendJoined(" AND ", keys.size(), [&](std::size_t i) {
    return AppendMember(keys[i], object.at(keys[i]), depth);
  });
}

Status Compiler::AppendMember(const std::string& key, const Json& value, int depth) {
  if (IsLogic(key)) return AppendList(key, value, depth);
  if (key == "metadata") return AppendMetadataObject(value);
  INFERSCALE_ASSIGN_OR_RETURN(const FilterField field, FilterField::Named(key));
  return AppendField(field, value);
}

Status Compiler::AppendList(const std::string& word, const Json& list, int depth) {
  std::vector<const Json*> items;
  if (word == "NOT" && list.is_object()) {
    items.push_back(&list);
  } else if (list.is_array()) {
    for (const Json& item : list) items.push_back(&item);
  }
  if (items.empty()) {
    return InvalidArgument("'" + word + "' takes a list of at least one condition");
  }
  std::stable_partition(items.begin(), items.end(),
                        [](const Json* item) { return IsNested(*item); });
  // NOT: none of them holds.
  if (word == "NOT") sql_.condition += "NOT (";
  pending_ += 2;
  INFERSCALE_RETURN_IF_ERROR(
      AppendJoined(word == "AND" ? " AND " : " OR ", items.size(),
                   [&](std::size_t i) { return AppendObject(*items[i], depth + 1); }));
  pending_ -= 2;
  if (word == "NOT") sql_.condition += ")";
  return OkStatus();
}

Status Compiler::AppendMetadataObject(const Json& object) {
  if (!object.is_object() || object.empty()) {
    return InvalidArgument("'metadata' takes an object of its keys, such as {\"city\": \"Rome\"}");
  }
  // {"eq": {…}} and the like compare several keys at once.
  if (object.size() == 1 && object.begin()->is_object()) {
    const std::string& word = object.begin().key();
    if (word == "eq" || word == "ne" || word == "contains") {
      sql_.condition += word == "ne" ? "NOT (" : "(";
      INFERSCALE_RETURN_IF_ERROR(AppendMetadataObject(*object.begin()));
      sql_.condition += ")";
      return OkStatus();
    }
  }
  std::vector<std::string> keys;
  for (const auto& [key, value] : object.items()) keys.push_back(key);
  return AppendJoined(" AND ", keys.size(), [&](std::size_t i) -> Status {
    INFERSCALE_ASSIGN_OR_RETURN(const FilterField field, FilterField::Metadata(keys[i]));
    return AppendField(field, object.at(keys[i]));
  });
}

Status Compiler::AppendField(const FilterField& field, const Json& value) {
  if (!value.is_object()) {
    const bool list = value.is_array() && field.TakesBareList();
    return AppendCondition(field, list ? FilterOperator::kIn : field.BareOperator(), value);
  }
  if (value.empty()) return InvalidArgument("the filter has a key without any operator");
  std::vector<std::string> words;
  for (const auto& [word, operand] : value.items()) words.push_back(word);
  return AppendJoined(" AND ", words.size(), [&](std::size_t i) -> Status {
    INFERSCALE_ASSIGN_OR_RETURN(const FilterOperator op, catalog::ParseFilterOperator(words[i]));
    return AppendCondition(field, op, value.at(words[i]));
  });
}

Status Compiler::AppendCondition(const FilterField& field, FilterOperator op, const Json& value) {
  if (++conditions_ > kMaxConditions) {
    return InvalidArgument("the filter has more than " + std::to_string(kMaxConditions) +
                           " conditions");
  }
  if (pending_ > kMaxPending) {
    return InvalidArgument("the filter nests too many lists within lists: flatten it");
  }
  if (value.is_array() && !field.TakesBareList() && value.size() > kMaxAlternatives) {
    return InvalidArgument("a list in the filter has more than " +
                           std::to_string(kMaxAlternatives) + " values");
  }
  if (value.is_array() && value.size() > kMaxBindings) {
    return InvalidArgument("a list in the filter has more than " + std::to_string(kMaxBindings) +
                           " values");
  }
  INFERSCALE_RETURN_IF_ERROR(field.Append(op, value, sql_));
  if (sql_.bindings.size() > 4 * kMaxBindings) {
    return InvalidArgument("the filter has too many values");
  }
  return OkStatus();
}

}  // namespace

Filter::~Filter() = default;

Result<std::unique_ptr<const Filter>> Filter::Parse(std::string_view json) {
  if (json.size() > kMaxJsonBytes) {
    return InvalidArgument("the filter is longer than " + std::to_string(kMaxJsonBytes) + " bytes");
  }
  if (!IsValidUtf8(json)) return InvalidArgument("the filter is not valid UTF-8");
  INFERSCALE_ASSIGN_OR_RETURN(const Json parsed, ParseStrictly(json));
  std::unique_ptr<Filter> filter(new Filter());
  if (parsed.empty()) {
    filter->sql_.condition = "1";
  } else {
    Compiler compiler(filter->sql_);
    INFERSCALE_RETURN_IF_ERROR(compiler.AppendObject(parsed, 1));
  }
  return std::unique_ptr<const Filter>(std::move(filter));
}

}  // namespace inferscale
