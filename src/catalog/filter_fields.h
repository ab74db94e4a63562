#ifndef INFERSCALE_CATALOG_FILTER_FIELDS_H_
#define INFERSCALE_CATALOG_FILTER_FIELDS_H_

/// \file filter_fields.h
/// One condition of a filter as SQL: a field, an operator and a value. What is written never holds
/// anything from outside; that is bound.

#include <string>
#include <string_view>

#include <nlohmann/json.hpp>

#include "catalog/filter.h"
#include "inferscale/result.h"

namespace inferscale::catalog {

enum class FilterOperator {
  kEqual,
  kNotEqual,
  kIn,
  kNotIn,
  kGreater,
  kGreaterOrEqual,
  kLess,
  kLessOrEqual,
  kContains,
  kContainsIgnoringCase,
  kExists,
};

/// "eq", "ne", "in"…; kInvalidArgument, naming it, for another word.
Result<FilterOperator> ParseFilterOperator(std::string_view word);

class FilterField {
 public:
  /// A field by its name on the top level of a filter. kInvalidArgument for ids that name a scope.
  static Result<FilterField> Named(const std::string& name);
  /// A key of the metadata, whatever its name.
  static Result<FilterField> Metadata(const std::string& key);

  /// Whether a bare list of values means "in".
  bool TakesBareList() const { return kind_ == Kind::kId || kind_ == Kind::kCategories; }
  /// What a bare value means.
  FilterOperator BareOperator() const {
    return kind_ == Kind::kKeywords ? FilterOperator::kContainsIgnoringCase
                                    : FilterOperator::kEqual;
  }

  /// Appends a condition that is never NULL. kInvalidArgument for a value of the wrong type.
  Status Append(FilterOperator op, const nlohmann::json& value, Filter::Sql& sql) const;

 private:
  enum class Kind { kText, kId, kKeywords, kTime, kCategories, kMetadata };

  FilterField(Kind kind, std::string name, std::string column)
      : kind_(kind), name_(std::move(name)), column_(std::move(column)) {}

  Status AppendText(FilterOperator op, const nlohmann::json& value, Filter::Sql& sql) const;
  Status AppendTime(FilterOperator op, const nlohmann::json& value, Filter::Sql& sql) const;
  Status AppendCategories(FilterOperator op, const nlohmann::json& value, Filter::Sql& sql) const;
  Status AppendMetadata(FilterOperator op, const nlohmann::json& value, Filter::Sql& sql) const;
  Status AppendMetadataEqual(const nlohmann::json& value, Filter::Sql& sql) const;
  Status AppendMetadataContains(bool ignoring_case, const nlohmann::json& value,
                                Filter::Sql& sql) const;

  /// The metadata's value, its JSON type, and the rows of its elements if it is a list.
  void AppendValue(Filter::Sql& sql) const;
  void AppendType(Filter::Sql& sql) const;
  void AppendItems(Filter::Sql& sql) const;

  Status WrongValue(std::string_view wanted) const;
  Status WrongOperator(std::string_view allowed) const;

  Kind kind_;
  std::string name_;    ///< as given
  std::string column_;  ///< SQL expression; of metadata: empty
  std::string path_;    ///< JSON path, or empty when the key fits in none
};

}  // namespace inferscale::catalog

#endif  // INFERSCALE_CATALOG_FILTER_FIELDS_H_
