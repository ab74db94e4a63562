#ifndef INFERSCALE_EVAL_TABLE_H_
#define INFERSCALE_EVAL_TABLE_H_

#include <iosfwd>
#include <string>
#include <string_view>
#include <vector>

#include <nlohmann/json.hpp>

namespace inferscale {

/// Columns of text, the first left-aligned and the others right-aligned.
struct Table {
  std::vector<std::string> header;
  std::vector<std::vector<std::string>> rows;

  std::string ToText() const;  ///< aligned with blanks, two in front of each line
  std::string ToMarkdown() const;
  std::string ToHtml() const;  ///< <table>…</table>, everything escaped
};

/// A table of JSON objects: columns are their members, in the order in which they first occur.
Table TableOf(const nlohmann::ordered_json& rows);

/// Fixed-point text: Decimal(1.25, 1) is "1.2". Not a number or infinite: "-".
std::string Decimal(double value, int digits);
/// The same with a sign in front.
std::string Signed(double value, int digits);

}  // namespace inferscale

#endif  // INFERSCALE_EVAL_TABLE_H_
