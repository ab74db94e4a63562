#include "memory/injected_texts.h"

#include "base/utf8.h"

namespace inferscale {
namespace {

std::string Key(std::string_view text) {
  const std::string normalized = NormalizeForEquality(text);
  std::string key;
  key.reserve(normalized.size());
  for (const char c : normalized) {
    const bool blank = c == ' ' || (c >= '\t' && c <= '\r');
    if (!blank) {
      key += c;
    } else if (!key.empty() && key.back() != ' ') {
      key += ' ';
    }
  }
  return key;
}

}  // namespace

InjectedTexts::InjectedTexts(std::span<const std::string> texts) {
  for (const std::string& text : texts) {
    std::string key = Key(text);
    if (!key.empty()) keys_.insert(std::move(key));
  }
}

bool InjectedTexts::Contains(std::string_view text) const {
  if (keys_.empty()) return false;
  const std::string whole = Key(text);
  std::string_view rest = whole;
  if (keys_.contains(whole)) return true;
  if (rest.starts_with("- ")) {
    rest.remove_prefix(2);
    if (keys_.contains(std::string(rest))) return true;
  }
  if (rest.starts_with('(')) {
    const std::size_t close = rest.find(") ");
    if (close == std::string_view::npos) return false;
    rest.remove_prefix(close + 2);
    if (keys_.contains(std::string(rest))) return true;
  }
  const std::size_t colon = rest.find(": ");
  return colon != std::string_view::npos && keys_.contains(std::string(rest.substr(colon + 2)));
}

std::string InjectedTexts::RemoveLines(std::string_view text) const {
  if (keys_.empty()) return std::string(text);
  std::string kept;
  bool removed = false;
  for (std::size_t begin = 0; begin < text.size();) {
    const std::size_t line_break = text.find('\n', begin);
    const std::size_t end = line_break == std::string_view::npos ? text.size() : line_break + 1;
    const std::string_view line = text.substr(begin, end - begin);
    if (Contains(line)) {
      removed = true;
    } else {
      kept += line;
    }
    begin = end;
  }
  return removed ? std::string(TrimWhitespace(kept)) : std::string(text);
}

}  // namespace inferscale
