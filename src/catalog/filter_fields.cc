#include "catalog/filter_fields.h"

#include <array>
#include <cmath>
#include <cstdint>
#include <map>
#include <utility>

#include "base/clock.h"
#include "base/utf8.h"

namespace inferscale::catalog {
namespace {

using Json = nlohmann::json;

constexpr TimeMs kDayMs = 24LL * 3600 * 1000;
// SQLite knows neither "any of these words" nor case folding beyond ASCII; inferscale_fold is ours.
constexpr const char* kFold = "inferscale_fold(";

const char* Comparison(FilterOperator op) {
  switch (op) {
    case FilterOperator::kGreater:
      return " > ?";
    case FilterOperator::kGreaterOrEqual:
      return " >= ?";
    case FilterOperator::kLess:
      return " < ?";
    case FilterOperator::kLessOrEqual:
      return " <= ?";
    default:
      return " = ?";
  }
}

bool IsNegated(FilterOperator op) {
  return op == FilterOperator::kNotEqual || op == FilterOperator::kNotIn;
}

/// The operator of which a negated one is the opposite.
FilterOperator Positive(FilterOperator op) {
  if (op == FilterOperator::kNotEqual) return FilterOperator::kEqual;
  if (op == FilterOperator::kNotIn) return FilterOperator::kIn;
  return op;
}

bool IsText(const Json& value) { return value.is_string(); }

/// Binds a number as what it is; an unsigned one too large for SQLite becomes a double.
void BindNumber(const Json& value, Filter::Sql& sql) {
  if (value.is_number_unsigned() &&
      value.get<std::uint64_t>() > static_cast<std::uint64_t>(INT64_MAX)) {
    sql.bindings.emplace_back(value.get<double>());
  } else if (value.is_number_integer()) {
    sql.bindings.emplace_back(value.get<std::int64_t>());
  } else {
    sql.bindings.emplace_back(value.get<double>());
  }
}

void AppendPlaceholders(std::size_t count, Filter::Sql& sql) {
  for (std::size_t i = 0; i < count; ++i) sql.condition += i == 0 ? "?" : ", ?";
}

struct TimeRange {
  TimeMs first, last;
};

/// A day stands for all of its moments, so that "lte 2026-07-31" holds on that day's evening too.
Result<TimeRange> ParseTime(const Json& value) {
  if (value.is_number()) {
    const double seconds = value.get<double>();
    if (!(std::fabs(seconds) < 1e12)) return InvalidArgument("is no time in seconds since 1970");
    const auto ms = static_cast<TimeMs>(std::llround(seconds * 1000));
    return TimeRange{ms, ms};
  }
  if (!value.is_string()) return InvalidArgument("is no time");
  const auto& text = value.get_ref<const std::string&>();
  if (const Result<TimeMs> day = ParseDate(text); day.ok()) {
    return TimeRange{*day, *day + kDayMs - 1};
  }
  INFERSCALE_ASSIGN_OR_RETURN(const TimeMs ms, ParseIso8601(text));
  return TimeRange{ms, ms};
}

}  // namespace

Result<FilterOperator> ParseFilterOperator(std::string_view word) {
  static const std::map<std::string_view, FilterOperator> kOperators = {
      {"eq", FilterOperator::kEqual},
      {"ne", FilterOperator::kNotEqual},
      {"in", FilterOperator::kIn},
      {"nin", FilterOperator::kNotIn},
      {"gt", FilterOperator::kGreater},
      {"gte", FilterOperator::kGreaterOrEqual},
      {"lt", FilterOperator::kLess},
      {"lte", FilterOperator::kLessOrEqual},
      {"contains", FilterOperator::kContains},
      {"icontains", FilterOperator::kContainsIgnoringCase},
  };
  const auto found = kOperators.find(word);
  if (found != kOperators.end()) return found->second;
  return InvalidArgument("unknown filter operator '" + std::string(TruncateUtf8(word, 100)) +
                         "': use eq, ne, in, nin, gt, gte, lt, lte, contains or icontains");
}

Result<FilterField> FilterField::Named(const std::string& name) {
  if (name == "user_id" || name == "agent_id" || name == "run_id" || name == "app_id") {
    return InvalidArgument("'" + name +
                           "' names the owner and cannot be combined with other conditions: give "
                           "it on the top level of the filters");
  }
  static const std::map<std::string_view, std::pair<Kind, const char*>> kFields = {
      {"text", {Kind::kText, "facts.text"}},
      {"name", {Kind::kText, "NULLIF(facts.name, '')"}},
      {"role", {Kind::kText, "NULLIF(facts.role, '')"}},
      {"actor_id", {Kind::kText, "NULLIF(facts.actor_id, '')"}},
      {"memory_ids", {Kind::kId, "facts.id"}},
      {"keywords", {Kind::kKeywords, "facts.text"}},
      {"created_at", {Kind::kTime, "facts.created_at_ms"}},
      {"updated_at", {Kind::kTime, "facts.updated_at_ms"}},
      {"timestamp", {Kind::kTime, "ifnull(NULLIF(facts.event_time_ms, 0), facts.created_at_ms)"}},
      {"expiration_date", {Kind::kTime, "(unixepoch(NULLIF(facts.expiration_date, '')) * 1000)"}},
  };
  const auto found = kFields.find(name);
  if (found != kFields.end()) {
    return FilterField(found->second.first, name, found->second.second);
  }
  INFERSCALE_ASSIGN_OR_RETURN(FilterField field, Metadata(name));
  if (name == "categories") field.kind_ = Kind::kCategories;
  return field;
}

Result<FilterField> FilterField::Metadata(const std::string& key) {
  if (key.starts_with('$')) {
    return InvalidArgument("unknown filter key '" + std::string(TruncateUtf8(key, 100)) +
                           "': keys do not begin with $; use AND, OR and NOT");
  }
  FilterField field(Kind::kMetadata, key, "");
  bool plain = true;
  for (const char c : key) {
    if (c == '\0') return InvalidArgument("a filter key must not contain a NUL character");
    // SQLite's paths have no escapes: such a key is looked up by comparing names.
    if (c == '"' || c == '\\' || static_cast<unsigned char>(c) < 0x20 || c == 0x7f) plain = false;
  }
  if (plain && !key.empty()) field.path_ = "$.\"" + key + "\"";
  return field;
}

Status FilterField::WrongValue(std::string_view wanted) const {
  return InvalidArgument("filter on '" + std::string(TruncateUtf8(name_, 100)) + "' needs " +
                         std::string(wanted));
}

Status FilterField::WrongOperator(std::string_view allowed) const {
  return InvalidArgument("filter on '" + std::string(TruncateUtf8(name_, 100)) + "' allows only " +
                         std::string(allowed));
}

void FilterField::AppendValue(Filter::Sql& sql) const {
  if (path_.empty()) {
    sql.condition += "(SELECT value FROM json_each(facts.metadata) WHERE key = ? LIMIT 1)";
    sql.bindings.emplace_back(name_);
  } else {
    sql.condition += "json_extract(facts.metadata, ?)";
    sql.bindings.emplace_back(path_);
  }
}

void FilterField::AppendType(Filter::Sql& sql) const {
  if (path_.empty()) {
    sql.condition += "(SELECT type FROM json_each(facts.metadata) WHERE key = ? LIMIT 1)";
    sql.bindings.emplace_back(name_);
  } else {
    sql.condition += "json_type(facts.metadata, ?)";
    sql.bindings.emplace_back(path_);
  }
}

void FilterField::AppendItems(Filter::Sql& sql) const {
  sql.condition += "json_each(";
  AppendValue(sql);
  sql.condition += ") AS item";
}

Status FilterField::Append(FilterOperator op, const Json& value, Filter::Sql& sql) const {
  if ((op == FilterOperator::kIn || op == FilterOperator::kNotIn) && !value.is_array()) {
    return WrongValue("a list for 'in' and 'nin'");
  }
  if (value.is_string() && value.get_ref<const std::string&>() == "*" &&
      (op == FilterOperator::kEqual || op == FilterOperator::kNotEqual)) {
    return Append(FilterOperator::kExists, op == FilterOperator::kEqual, sql);
  }
  if ((op == FilterOperator::kContains || op == FilterOperator::kContainsIgnoringCase) &&
      value.is_string() && value.get_ref<const std::string&>().empty()) {
    return WrongValue("some text for 'contains' and 'icontains'");
  }
  if (op == FilterOperator::kExists) {
    sql.condition += value.get<bool>() ? "((" : "(NOT (";
    if (kind_ == Kind::kMetadata || kind_ == Kind::kCategories) {
      sql.condition += "ifnull(";
      AppendType(sql);
      sql.condition += ", 'null') <> 'null'";
    } else {
      sql.condition += column_ + " IS NOT NULL";
    }
    sql.condition += "))";
    return OkStatus();
  }
  // A missing value is not equal to anything: the negated operators hold for it.
  sql.condition += "((";
  const FilterOperator positive = Positive(op);
  Status status;
  switch (kind_) {
    case Kind::kText:
    case Kind::kId:
    case Kind::kKeywords:
      status = AppendText(positive, value, sql);
      break;
    case Kind::kTime:
      status = AppendTime(positive, value, sql);
      break;
    case Kind::kCategories:
      status = AppendCategories(positive, value, sql);
      break;
    case Kind::kMetadata:
      status = AppendMetadata(positive, value, sql);
      break;
  }
  sql.condition += IsNegated(op) ? ") IS NOT TRUE)" : ") IS TRUE)";
  return status;
}

Status FilterField::AppendText(FilterOperator op, const Json& value, Filter::Sql& sql) const {
  const bool contains =
      op == FilterOperator::kContains || op == FilterOperator::kContainsIgnoringCase;
  if (kind_ == Kind::kKeywords && !contains) return WrongOperator("contains and icontains");
  if (kind_ == Kind::kId && op != FilterOperator::kIn && op != FilterOperator::kEqual) {
    return WrongOperator("eq, ne, in and nin");
  }
  if (op == FilterOperator::kIn) {
    sql.condition += column_ + " IN (";
    AppendPlaceholders(value.size(), sql);
    sql.condition += ")";
    for (const Json& item : value) {
      if (!IsText(item)) return WrongValue("a list of strings");
      sql.bindings.emplace_back(item.get<std::string>());
    }
    return OkStatus();
  }
  if (value.is_null() && op == FilterOperator::kEqual) {
    sql.condition += column_ + " IS NULL";
    return OkStatus();
  }
  if (!IsText(value)) return WrongValue("a string");
  if (op == FilterOperator::kContains) {
    sql.condition += "instr(" + column_ + ", ?) > 0";
  } else if (op == FilterOperator::kContainsIgnoringCase) {
    sql.condition += "instr(" + std::string(kFold) + column_ + "), ?) > 0";
    sql.bindings.emplace_back(CaseFold(value.get_ref<const std::string&>()));
    return OkStatus();
  } else {
    sql.condition += column_ + Comparison(op);
  }
  sql.bindings.emplace_back(value.get<std::string>());
  return OkStatus();
}

Status FilterField::AppendTime(FilterOperator op, const Json& value, Filter::Sql& sql) const {
  constexpr std::string_view kWanted =
      "a date (\"2026-11-29\"), a time (\"2026-11-29T08:00:00Z\") or seconds since 1970";
  if (op == FilterOperator::kIn) {
    sql.condition += "0";
    for (const Json& item : value) {
      const Result<TimeRange> range = ParseTime(item);
      if (!range.ok()) return WrongValue(kWanted);
      sql.condition += " OR " + column_ + " BETWEEN ? AND ?";
      sql.bindings.emplace_back(range->first);
      sql.bindings.emplace_back(range->last);
    }
    return OkStatus();
  }
  if (value.is_null() && op == FilterOperator::kEqual) {
    sql.condition += column_ + " IS NULL";
    return OkStatus();
  }
  if (op == FilterOperator::kContains || op == FilterOperator::kContainsIgnoringCase) {
    return WrongOperator("eq, ne, in, nin, gt, gte, lt and lte");
  }
  const Result<TimeRange> range = ParseTime(value);
  if (!range.ok()) return WrongValue(kWanted);
  if (op == FilterOperator::kEqual) {
    sql.condition += column_ + " BETWEEN ? AND ?";
    sql.bindings.emplace_back(range->first);
    sql.bindings.emplace_back(range->last);
    return OkStatus();
  }
  const bool after_last = op == FilterOperator::kGreater || op == FilterOperator::kLessOrEqual;
  sql.condition += column_ + Comparison(op);
  sql.bindings.emplace_back(after_last ? range->last : range->first);
  return OkStatus();
}

Status FilterField::AppendCategories(FilterOperator op, const Json& value, Filter::Sql& sql) const {
  if (op != FilterOperator::kIn && op != FilterOperator::kEqual &&
      op != FilterOperator::kContains) {
    return WrongOperator("eq, ne, in, nin and contains");
  }
  const Json values = op == FilterOperator::kIn ? value : Json::array({value});
  for (const Json& item : values) {
    if (!IsText(item)) return WrongValue("strings");
  }
  const auto append_values = [&] {
    sql.condition += " IN (";
    AppendPlaceholders(values.size(), sql);
    for (const Json& item : values) sql.bindings.emplace_back(item.get<std::string>());
    sql.condition += ")";
  };
  sql.condition += "CASE ";
  AppendType(sql);
  sql.condition += " WHEN 'array' THEN EXISTS(SELECT 1 FROM ";
  AppendItems(sql);
  sql.condition += " WHERE item.value";
  append_values();
  sql.condition += ") WHEN 'text' THEN ";
  AppendValue(sql);
  append_values();
  sql.condition += " ELSE 0 END";
  return OkStatus();
}

Status FilterField::AppendMetadataEqual(const Json& value, Filter::Sql& sql) const {
  // The type is compared too: true would equal 1, and a list the text that writes it.
  AppendType(sql);
  if (value.is_null()) {
    sql.condition += " IS NULL OR ";
    AppendType(sql);
    sql.condition += " = 'null'";
  } else if (value.is_boolean()) {
    sql.condition += value.get<bool>() ? " = 'true'" : " = 'false'";
  } else if (value.is_number()) {
    sql.condition += " IN ('integer', 'real') AND ";
    AppendValue(sql);
    sql.condition += " = ?";
    BindNumber(value, sql);
  } else if (IsText(value)) {
    sql.condition += " = 'text' AND ";
    AppendValue(sql);
    sql.condition += " = ?";
    sql.bindings.emplace_back(value.get<std::string>());
  } else {
    return WrongValue("a string, number, true, false or null; for lists use 'in' or 'contains'");
  }
  return OkStatus();
}

Status FilterField::AppendMetadataContains(bool ignoring_case, const Json& value,
                                           Filter::Sql& sql) const {
  if (ignoring_case ? !IsText(value)
                    : !(IsText(value) || value.is_number() || value.is_boolean())) {
    return WrongValue("a string, number, true or false for 'contains', a string for 'icontains'");
  }
  const std::string fold = ignoring_case ? kFold : "(";
  const auto bind = [&] {
    if (value.is_number()) return BindNumber(value, sql);
    auto text = value.get<std::string>();
    sql.bindings.emplace_back(ignoring_case ? CaseFold(text) : std::move(text));
  };
  sql.condition += "CASE ";
  AppendType(sql);
  sql.condition += " WHEN 'array' THEN EXISTS(SELECT 1 FROM ";
  AppendItems(sql);
  if (value.is_boolean()) {
    sql.condition +=
        value.get<bool>() ? " WHERE item.type = 'true')" : " WHERE item.type = 'false')";
  } else if (value.is_number()) {
    sql.condition += " WHERE item.type IN ('integer', 'real') AND item.value = ?)";
    bind();
  } else {
    sql.condition += " WHERE item.type = 'text' AND " + fold + "item.value) = ?)";
    bind();
    sql.condition += " WHEN 'text' THEN instr(" + fold;
    AppendValue(sql);
    sql.condition += "), ?) > 0";
    bind();
  }
  sql.condition += " ELSE 0 END";
  return OkStatus();
}

Status FilterField::AppendMetadata(FilterOperator op, const Json& value, Filter::Sql& sql) const {
  switch (op) {
    case FilterOperator::kEqual:
      return AppendMetadataEqual(value, sql);
    case FilterOperator::kIn:
      sql.condition += "0";
      for (const Json& item : value) {
        sql.condition += " OR (";
        INFERSCALE_RETURN_IF_ERROR(AppendMetadataEqual(item, sql));
        sql.condition += ")";
      }
      return OkStatus();
    case FilterOperator::kContains:
    case FilterOperator::kContainsIgnoringCase:
      return AppendMetadataContains(op == FilterOperator::kContainsIgnoringCase, value, sql);
    default:
      break;
  }
  if (!value.is_number() && !IsText(value)) return WrongValue("a number or string to compare with");
  AppendType(sql);
  sql.condition += value.is_number() ? " IN ('integer', 'real') AND " : " = 'text' AND ";
  AppendValue(sql);
  sql.condition += Comparison(op);
  if (value.is_number()) {
    BindNumber(value, sql);
  } else {
    sql.bindings.emplace_back(value.get<std::string>());
  }
  return OkStatus();
}

}  // namespace inferscale::catalog
