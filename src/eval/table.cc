#include "eval/table.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>

#include "base/html.h"
#include "base/utf8.h"

namespace inferscale {
namespace {

std::size_t Width(std::string_view text) {
  return static_cast<std::size_t>(std::count_if(text.begin(), text.end(), [](char c) {
    return (static_cast<unsigned char>(c) & 0xC0) != 0x80;
  }));
}

std::string Format(const char* format, double value, int digits) {
  if (!std::isfinite(value)) return "-";
  std::array<char, 64> buffer{};
  const int length = std::snprintf(buffer.data(), buffer.size(), format, digits, value);
  return length > 0 && static_cast<std::size_t>(length) < buffer.size() ? std::string(buffer.data())
                                                                        : "-";
}

std::string CellText(const nlohmann::ordered_json& value) {
  if (value.is_null()) return "-";
  if (value.is_string()) return value.get<std::string>();
  if (value.is_number_float()) {
    const double number = value.get<double>();
    return Decimal(number, std::abs(number) >= 100 ? 0 : std::abs(number) >= 10 ? 1 : 3);
  }
  return value.dump();
}

std::string MarkdownRow(const std::vector<std::string>& cells) {
  std::string line = "|";
  for (std::string cell : cells) {
    for (std::size_t at = 0; (at = cell.find('|', at)) != std::string::npos; at += 2)
      cell.insert(at, "\\");
    std::replace(cell.begin(), cell.end(), '\n', ' ');
    line += " " + cell + " |";
  }
  return line + "\n";
}

}  // namespace

std::string Table::ToText() const {
  std::vector<std::size_t> widths(header.size());
  for (std::size_t c = 0; c < header.size(); ++c) {
    widths[c] = Width(header[c]);
    for (const auto& row : rows) {
      if (c < row.size()) widths[c] = std::max(widths[c], Width(row[c]));
    }
  }
  std::string text;
  const auto add = [&](const std::vector<std::string>& cells) {
    std::string line;
    for (std::size_t c = 0; c < header.size() && c < cells.size(); ++c) {
      const std::string padding(widths[c] - Width(cells[c]), ' ');
      line += "  ";
      line += c == 0 ? cells[c] + padding : padding + cells[c];
    }
    line.erase(line.find_last_not_of(' ') + 1);
    text += line + "\n";
  };
  add(header);
  for (const auto& row : rows) add(row);
  return text;
}

std::string Table::ToMarkdown() const {
  std::string text = MarkdownRow(header) + "|";
  for (std::size_t c = 0; c < header.size(); ++c) text += c == 0 ? " --- |" : " ---: |";
  text += "\n";
  for (const auto& row : rows) text += MarkdownRow(row);
  return text;
}

std::string Table::ToHtml() const {
  std::string html = "<table>\n<thead><tr>";
  for (const std::string& cell : header) html += "<th>" + EscapeHtml(cell) + "</th>";
  html += "</tr></thead>\n<tbody>\n";
  for (const auto& row : rows) {
    html += "<tr>";
    for (const std::string& cell : row) html += "<td>" + EscapeHtml(cell) + "</td>";
    html += "</tr>\n";
  }
  return html + "</tbody>\n</table>\n";
}

Table TableOf(const nlohmann::ordered_json& rows) {
  Table table;
  if (!rows.is_array() || rows.empty()) return table;
  for (const auto& row : rows) {
    for (const auto& member : row.items()) {
      if (std::find(table.header.begin(), table.header.end(), member.key()) == table.header.end()) {
        table.header.push_back(member.key());
      }
    }
  }
  for (const auto& row : rows) {
    std::vector<std::string> cells;
    for (const std::string& name : table.header) {
      cells.push_back(row.contains(name) ? CellText(row.at(name)) : std::string("-"));
    }
    table.rows.push_back(std::move(cells));
  }
  return table;
}

std::string Decimal(double value, int digits) { return Format("%.*f", value, digits); }
std::string Signed(double value, int digits) { return Format("%+.*f", value, digits); }

}  // namespace inferscale
