#ifndef INFERSCALE_CATALOG_FILTER_H_
#define INFERSCALE_CATALOG_FILTER_H_

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "inferscale/result.h"

namespace inferscale {

/// A checked filter over facts in Mem0's grammar: {"key": value}, {"key": {op: value}} with eq ne
/// in nin gt gte lt lte contains icontains and "*" (any non-null), siblings ANDed, AND / OR / NOT
/// with lists. Keys: created_at, updated_at, timestamp, expiration_date, text, memory_ids,
/// keywords, name, role, actor_id, categories, metadata (an object of keys), anything else is a
/// metadata key. user_id, agent_id, run_id, app_id are refused here: scopes are resolved before.
/// Anything not understood is an error, never "no filter". Immutable.
class Filter {
 public:
  static Result<std::unique_ptr<const Filter>> Parse(std::string_view json);
  ~Filter();

  /// An SQL condition over the facts table with `?` placeholders, and what to bind to them in
  /// order.
  struct Sql {
    std::string condition;
    std::vector<std::variant<std::int64_t, double, std::string>> bindings;
  };
  const Sql& sql() const { return sql_; }

 private:
  Filter() = default;
  Sql sql_;
};

}  // namespace inferscale

#endif  // INFERSCALE_CATALOG_FILTER_H_
