#include "memory/extraction_answer.h"

#include <charconv>
#include <nlohmann/json.hpp>

#include "base/utf8.h"

namespace inferscale {
namespace {

using nlohmann::json;

/// No honest answer is longer, and everything after it is not looked at.
constexpr std::size_t kMaxAnswerBytes = 256 << 10;
constexpr std::size_t kMaxItems = 100;
/// An item is {"contradicts":[…]}: two levels, and room for what a model may add.
constexpr int kMaxDepth = 8;

std::size_t SkipString(std::string_view text, std::size_t offset) {
  for (++offset; offset < text.size(); ++offset) {
    if (text[offset] == '\\') {
      ++offset;
    } else if (text[offset] == '"') {
      return offset + 1;
    }
  }
  return std::string_view::npos;
}

/// The offset behind the object or list that starts at `offset`; npos: cut off or too deep.
std::size_t SkipNested(std::string_view text, std::size_t offset) {
  int depth = 0;
  while (offset < text.size()) {
    const char c = text[offset];
    if (c == '"') {
      offset = SkipString(text, offset);
      if (offset == std::string_view::npos) return offset;
      continue;
    }
    if (c == '{' || c == '[') {
      if (++depth > kMaxDepth) return std::string_view::npos;
    } else if (c == '}' || c == ']') {
      if (--depth == 0) return offset + 1;
    }
    ++offset;
  }
  return std::string_view::npos;
}

std::string TextMember(const json& item, std::initializer_list<const char*> names) {
  for (const char* name : names) {
    const auto found = item.find(name);
    if (found == item.end() || !found->is_string()) continue;
    return std::string(TrimWhitespace(found->get_ref<const std::string&>()));
  }
  return "";
}

void ReadContradicts(const json& item, std::vector<std::int64_t>& numbers) {
  const auto found = item.find("contradicts");
  if (found == item.end()) return;
  const auto read = [&](const json& value) {
    if (numbers.size() >= kMaxItems) return;
    if (value.is_number_unsigned() && value.get<std::uint64_t>() < (std::uint64_t{1} << 31)) {
      numbers.push_back(value.get<std::int64_t>());
    } else if (value.is_string()) {
      const std::string& text = value.get_ref<const std::string&>();
      std::int32_t number = 0;
      const auto parsed = std::from_chars(text.data(), text.data() + text.size(), number);
      if (parsed.ec == std::errc() && parsed.ptr == text.data() + text.size()) {
        numbers.push_back(number);
      }
    }
  };
  if (found->is_array()) {
    for (const json& value : *found) read(value);
  } else {
    read(*found);
  }
}

void AddItem(std::string_view text, std::vector<AnswerFact>& facts) {
  const json item = json::parse(text, nullptr, /*allow_exceptions=*/false);
  AnswerFact fact;
  if (item.is_string()) {
    fact.text = std::string(TrimWhitespace(item.get_ref<const std::string&>()));
  } else if (item.is_object()) {
    fact.text = TextMember(item, {"text", "fact", "memory"});
    fact.name = TextMember(item, {"name"});
    ReadContradicts(item, fact.contradicts);
  }
  if (!fact.text.empty()) facts.push_back(std::move(fact));
}

/// Where the list of items begins: behind "facts", else at the first bracket.
std::size_t FindList(std::string_view answer) {
  for (const std::string_view key : {"\"facts\"", "\"memory\""}) {
    std::size_t offset = answer.rfind(key);
    if (offset == std::string_view::npos) continue;
    offset = answer.find_first_not_of(" \t\r\n:", offset + key.size());
    if (offset != std::string_view::npos && answer[offset] == '[') return offset + 1;
  }
  const std::size_t bracket = answer.find_first_of("[{");
  if (bracket == std::string_view::npos) return bracket;
  return answer[bracket] == '[' ? bracket + 1 : bracket;
}

}  // namespace

std::vector<AnswerFact> ParseExtractionAnswer(std::string_view answer) {
  answer = answer.substr(0, kMaxAnswerBytes);
  constexpr std::string_view kReasoningEnd = "</think>";
  if (const std::size_t end = answer.rfind(kReasoningEnd); end != std::string_view::npos) {
    answer.remove_prefix(end + kReasoningEnd.size());
  }
  std::vector<AnswerFact> facts;
  std::size_t offset = FindList(answer);
  while (offset < answer.size() && facts.size() < kMaxItems) {
    const char c = answer[offset];
    if (c == ']') break;
    if (c != '{' && c != '"') {
      ++offset;
      continue;
    }
    const std::size_t end = c == '{' ? SkipNested(answer, offset) : SkipString(answer, offset);
    if (end == std::string_view::npos) break;
    AddItem(answer.substr(offset, end - offset), facts);
    offset = end;
  }
  return facts;
}

}  // namespace inferscale
