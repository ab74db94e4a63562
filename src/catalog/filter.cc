#include "catalog/filter.h"

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

class Compiler {
 public:
  explicit Compiler(Filter::Sql& sql) : sql_(sql) {}

  /// The conditions of an object, joined with AND.
  Status AppendObject(const Json& object, int depth);

 private:
  Status AppendList(const std::string& word, const Json& list, int depth);
  Status AppendMetadataObject(const Json& object);
  Status AppendField(const FilterField& field, const Json& value);
  Status AppendCondition(const FilterField& field, FilterOperator op, const Json& value);

  Filter::Sql& sql_;
  int conditions_ = 0;
};

Status Compiler::AppendObject(const Json& object, int depth) {
  if (depth > kMaxDepth) {
    return InvalidArgument("the filter is nested deeper than " + std::to_string(kMaxDepth) +
                           " levels");
  }
  if (!object.is_object()) {
    return InvalidArgument("AND, OR and NOT take lists of objects, such as [{\"city\": \"Rome\"}]");
  }
  if (object.empty()) return InvalidArgument("the filter has an empty condition {}");
  sql_.condition += "(";
  bool first = true;
  for (const auto& [key, value] : object.items()) {
    if (!std::exchange(first, false)) sql_.condition += " AND ";
    if (key == "AND" || key == "OR" || key == "NOT") {
      INFERSCALE_RETURN_IF_ERROR(AppendList(key, value, depth));
    } else if (key == "metadata") {
      INFERSCALE_RETURN_IF_ERROR(AppendMetadataObject(value));
    } else {
      INFERSCALE_ASSIGN_OR_RETURN(const FilterField field, FilterField::Named(key));
      INFERSCALE_RETURN_IF_ERROR(AppendField(field, value));
    }
  }
  sql_.condition += ")";
  return OkStatus();
}

Status Compiler::AppendList(const std::string& word, const Json& list, int depth) {
  const bool single = word == "NOT" && list.is_object();
  if (!single && (!list.is_array() || list.empty())) {
    return InvalidArgument("'" + word + "' takes a list of at least one condition");
  }
  // NOT: none of them holds.
  sql_.condition += word == "NOT" ? "NOT (" : "(";
  const char* join = word == "AND" ? " AND " : " OR ";
  if (single) {
    INFERSCALE_RETURN_IF_ERROR(AppendObject(list, depth + 1));
  } else {
    bool first = true;
    for (const Json& item : list) {
      if (!std::exchange(first, false)) sql_.condition += join;
      INFERSCALE_RETURN_IF_ERROR(AppendObject(item, depth + 1));
    }
  }
  sql_.condition += ")";
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
      if (word == "ne") sql_.condition += "NOT ";
      return AppendMetadataObject(*object.begin());
    }
  }
  sql_.condition += "(";
  bool first = true;
  for (const auto& [key, value] : object.items()) {
    if (!std::exchange(first, false)) sql_.condition += " AND ";
    INFERSCALE_ASSIGN_OR_RETURN(const FilterField field, FilterField::Metadata(key));
    INFERSCALE_RETURN_IF_ERROR(AppendField(field, value));
  }
  sql_.condition += ")";
  return OkStatus();
}

Status Compiler::AppendField(const FilterField& field, const Json& value) {
  if (!value.is_object()) {
    const bool list = value.is_array() && field.TakesBareList();
    return AppendCondition(field, list ? FilterOperator::kIn : field.BareOperator(), value);
  }
  if (value.empty()) return InvalidArgument("the filter has a key without any operator");
  sql_.condition += "(";
  bool first = true;
  for (const auto& [word, operand] : value.items()) {
    if (!std::exchange(first, false)) sql_.condition += " AND ";
    INFERSCALE_ASSIGN_OR_RETURN(const FilterOperator op, catalog::ParseFilterOperator(word));
    INFERSCALE_RETURN_IF_ERROR(AppendCondition(field, op, operand));
  }
  sql_.condition += ")";
  return OkStatus();
}

Status Compiler::AppendCondition(const FilterField& field, FilterOperator op, const Json& value) {
  if (++conditions_ > kMaxConditions) {
    return InvalidArgument("the filter has more than " + std::to_string(kMaxConditions) +
                           " conditions");
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
