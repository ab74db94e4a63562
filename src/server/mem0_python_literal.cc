#include "server/mem0_python_literal.h"

#include <charconv>
#include <cmath>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>

#include "base/utf8.h"

namespace inferscale::mem0 {
namespace {

using nlohmann::json;

constexpr int kMaxDepth = 32;

void AppendUtf8(std::uint32_t code, std::string& text) {
  const auto put = [&](std::uint32_t byte) { text.push_back(static_cast<char>(byte)); };
  if (code < 0x80) {
    put(code);
  } else if (code < 0x800) {
    put(0xC0 | code >> 6);
    put(0x80 | (code & 0x3F));
  } else if (code < 0x10000) {
    put(0xE0 | code >> 12);
    put(0x80 | (code >> 6 & 0x3F));
    put(0x80 | (code & 0x3F));
  } else {
    put(0xF0 | code >> 18);
    put(0x80 | (code >> 12 & 0x3F));
    put(0x80 | (code >> 6 & 0x3F));
    put(0x80 | (code & 0x3F));
  }
}

class Parser {
 public:
  explicit Parser(std::string_view text) : text_(text) {}

  Result<json> ParseAll() {
    INFERSCALE_ASSIGN_OR_RETURN(json value, ParseValue(0));
    SkipBlanks();
    if (at_ != text_.size()) return Wrong("something follows the value");
    return value;
  }

 private:
  Status Wrong(std::string_view what) const {
    return InvalidArgument("neither JSON nor a Python literal: " + std::string(what) +
                           " at character " + std::to_string(at_ + 1));
  }
  void SkipBlanks() {
    while (at_ < text_.size() &&
           (text_[at_] == ' ' || text_[at_] == '\t' || text_[at_] == '\n' || text_[at_] == '\r')) {
      ++at_;
    }
  }
  bool Take(char c) {
    SkipBlanks();
    if (at_ >= text_.size() || text_[at_] != c) return false;
    ++at_;
    return true;
  }
  char Peek() {
    SkipBlanks();
    return at_ < text_.size() ? text_[at_] : '\0';
  }

  Result<json> ParseValue(int depth) {
    if (depth > kMaxDepth) return Wrong("nested too deeply");
    const char next = Peek();
    if (next == '{') return ParseDict(depth);
    if (next == '[') return ParseList(depth, ']');
    if (next == '(') return ParseList(depth, ')');
    if (next == '\'' || next == '"') {
      INFERSCALE_ASSIGN_OR_RETURN(std::string text, ParseText());
      return json(std::move(text));
    }
    return ParseWord();
  }

  Result<json> ParseDict(int depth) {
    Take('{');
    json dict = json::object();
    if (Take('}')) return dict;
    while (true) {
      if (const char quote = Peek(); quote != '\'' && quote != '"') {
        return Wrong("a key that is no text");
      }
      INFERSCALE_ASSIGN_OR_RETURN(std::string key, ParseText());
      if (!Take(':')) return Wrong("a missing ':'");
      INFERSCALE_ASSIGN_OR_RETURN(json value, ParseValue(depth + 1));
      if (!dict.emplace(std::move(key), std::move(value)).second) return Wrong("a repeated key");
      if (Take('}')) return dict;
      if (!Take(',')) return Wrong("a missing ','");
      if (Take('}')) return dict;
    }
  }

  Result<json> ParseList(int depth, char close) {
    ++at_;
    json list = json::array();
    while (!Take(close)) {
      INFERSCALE_ASSIGN_OR_RETURN(json value, ParseValue(depth + 1));
      list.push_back(std::move(value));
      const bool comma = Take(',');
      // (x) is no tuple but x in parentheses, which repr() never writes.
      if (!comma && close == ')' && list.size() == 1) return Wrong("no tuple");
      if (!comma && Peek() != close) return Wrong("a missing ','");
    }
    return list;
  }

  std::optional<std::uint32_t> TakeHex(std::size_t digits) {
    if (text_.size() - at_ < digits) return std::nullopt;
    std::uint32_t code = 0;
    const char* begin = text_.data() + at_;
    const auto parsed = std::from_chars(begin, begin + digits, code, 16);
    if (parsed.ec != std::errc() || parsed.ptr != begin + digits) return std::nullopt;
    at_ += digits;
    return code;
  }

  Result<std::string> ParseText() {
    SkipBlanks();
    const char quote = text_[at_++];
    std::string text;
    while (at_ < text_.size()) {
      const char c = text_[at_++];
      if (c == quote) return text;
      if (c == '\n' || c == '\r') return Wrong("a line break inside a text");
      if (c != '\\') {
        text.push_back(c);
        continue;
      }
      if (at_ >= text_.size()) break;
      const char escape = text_[at_++];
      std::size_t digits = 0;
      switch (escape) {
        case '\\':
        case '\'':
        case '"':
          text.push_back(escape);
          continue;
        case 'n':
          text.push_back('\n');
          continue;
        case 'r':
          text.push_back('\r');
          continue;
        case 't':
          text.push_back('\t');
          continue;
        case 'x':
          digits = 2;
          break;
        case 'u':
          digits = 4;
          break;
        case 'U':
          digits = 8;
          break;
        default:
          return Wrong("an unknown escape");
      }
      const std::optional<std::uint32_t> code = TakeHex(digits);
      if (!code || *code > 0x10FFFF || (*code >= 0xD800 && *code < 0xE000)) {
        return Wrong("an escape that is no character");
      }
      AppendUtf8(*code, text);
    }
    return Wrong("a text without an end");
  }

  Result<json> ParseWord() {
    const std::size_t begin = at_;
    while (at_ < text_.size()) {
      const char c = text_[at_];
      const bool part = (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') ||
                        (c >= 'A' && c <= 'Z') || c == '.' || c == '-' || c == '+' || c == '_';
      if (!part) break;
      ++at_;
    }
    const std::string_view word = text_.substr(begin, at_ - begin);
    if (word == "True") return json(true);
    if (word == "False") return json(false);
    if (word == "None") return json(nullptr);
    // The rest of what Python writes for numbers is JSON's; inf and nan are no values here.
    const json number = json::parse(word, nullptr, false);
    if (!number.is_number() || !std::isfinite(number.get<double>())) {
      at_ = begin;
      return Wrong("no value");
    }
    return number;
  }

  std::string_view text_;
  std::size_t at_ = 0;
};

}  // namespace

Result<json> ParseLiteral(std::string_view text) {
  if (!IsValidUtf8(text)) return InvalidArgument("not UTF-8");
  int deepest = 0;
  const json::parser_callback_t bound = [&](int depth, json::parse_event_t, json&) {
    deepest = std::max(deepest, depth);
    return deepest <= kMaxDepth;
  };
  json parsed = json::parse(text, bound, false);
  if (deepest > kMaxDepth) return InvalidArgument("nested too deeply");
  if (!parsed.is_discarded()) return parsed;
  return Parser(text).ParseAll();
}

}  // namespace inferscale::mem0
