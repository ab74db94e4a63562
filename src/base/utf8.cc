#include "base/utf8.h"

#include <utf8proc.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <iterator>
#include <memory>

namespace inferscale {
namespace {

struct CodepointRange {
  std::int32_t first, last;
};

// Han, Kana, Bopomofo and Hangul: scripts written without blanks, or whose words are worth finding
// by part. Sorted.
constexpr auto kUnspaced = std::to_array<CodepointRange>({
    {0x1100, 0x11FF},                      // Hangul Jamo
    {0x2E80, 0x2FDF},                      // CJK and Kangxi radicals
    {0x3005, 0x3007},                      // iteration mark, closing mark, zero
    {0x3021, 0x3029},                      // Hangzhou numerals
    {0x3031, 0x3035},                      // Kana repeat marks
    {0x3041, 0x3096},                      // Hiragana
    {0x309D, 0x309F},   {0x30A1, 0x30FA},  // Katakana
    {0x30FC, 0x30FF},   {0x3105, 0x318E},  // Bopomofo, Hangul compatibility Jamo
    {0x31A0, 0x31BF},   {0x31F0, 0x31FF},   {0x3400, 0x4DBF},  // Han
    {0x4E00, 0x9FFF},   {0xA960, 0xA97C},   {0xAC00, 0xD7FB},  // Hangul syllables
    {0xF900, 0xFAFF},   {0x1B000, 0x1B2FF},                    // Kana supplements
    {0x20000, 0x3FFFF},                                        // Han, supplementary planes
});

constexpr std::string_view kReplacement = "\xEF\xBF\xBD";          // U+FFFD
constexpr std::string_view kCombiningGraphemeJoiner = "\xCD\x8F";  // U+034F
constexpr int kMaxCombiningRun = 30;

// Length of the character at the front, or 0 if there is none; its code point in `code_point`.
std::size_t DecodeFront(std::string_view text, utf8proc_int32_t& code_point) {
  const utf8proc_ssize_t size =
      utf8proc_iterate(reinterpret_cast<const utf8proc_uint8_t*>(text.data()),
                       static_cast<utf8proc_ssize_t>(text.size()), &code_point);
  return size > 0 ? static_cast<std::size_t>(size) : 0;
}

bool IsWhitespace(utf8proc_int32_t c) {
  return (c >= 0x09 && c <= 0x0D) || c == 0x20 || c == 0x85 || c == 0xA0 || c == 0x1680 ||
         (c >= 0x2000 && c <= 0x200A) || c == 0x2028 || c == 0x2029 || c == 0x202F || c == 0x205F ||
         c == 0x3000;
}

// utf8proc sorts combining marks in quadratic time; without a bound a megabyte of them would take
// hours.
std::string BreakCombiningRuns(std::string_view text) {
  std::string result;
  result.reserve(text.size());
  int run = 0;
  while (!text.empty()) {
    utf8proc_int32_t code_point = 0;
    const std::size_t size = DecodeFront(text, code_point);
    run = utf8proc_get_property(code_point)->combining_class != 0 ? run + 1 : 0;
    if (run > kMaxCombiningRun) {
      result += kCombiningGraphemeJoiner;
      run = 1;
    }
    result += text.substr(0, size);
    text.remove_prefix(size);
  }
  return result;
}

std::string Map(std::string_view text, int options) {
  std::string input = BreakCombiningRuns(ToValidUtf8(text));
  utf8proc_uint8_t* mapped = nullptr;
  const utf8proc_ssize_t size =
      utf8proc_map(reinterpret_cast<const utf8proc_uint8_t*>(input.data()),
                   static_cast<utf8proc_ssize_t>(input.size()), &mapped,
                   static_cast<utf8proc_option_t>(UTF8PROC_STABLE | UTF8PROC_COMPOSE | options));
  const std::unique_ptr<utf8proc_uint8_t, void (*)(void*)> owner(mapped, &std::free);
  if (size < 0) return input;
  return std::string(reinterpret_cast<const char*>(mapped), static_cast<std::size_t>(size));
}

}  // namespace

bool IsValidUtf8(std::string_view text) {
  while (!text.empty()) {
    utf8proc_int32_t code_point = 0;
    const std::size_t size = DecodeFront(text, code_point);
    if (size == 0) return false;
    text.remove_prefix(size);
  }
  return true;
}

std::string ToValidUtf8(std::string_view text) {
  std::string result;
  result.reserve(text.size());
  while (!text.empty()) {
    utf8proc_int32_t code_point = 0;
    const std::size_t size = DecodeFront(text, code_point);
    result += size == 0 ? kReplacement : text.substr(0, size);
    text.remove_prefix(size == 0 ? 1 : size);
  }
  return result;
}

std::string Nfc(std::string_view text) { return Map(text, 0); }

std::string CaseFold(std::string_view text) { return Map(text, UTF8PROC_CASEFOLD); }

std::string_view TrimWhitespace(std::string_view text) {
  utf8proc_int32_t code_point = 0;
  while (!text.empty()) {
    const std::size_t size = DecodeFront(text, code_point);
    if (size == 0 || !IsWhitespace(code_point)) break;
    text.remove_prefix(size);
  }
  while (!text.empty()) {
    std::size_t start = text.size() - 1;
    while (start > 0 && text.size() - start < 4 && (text[start] & 0xC0) == 0x80) --start;
    const std::size_t size = DecodeFront(text.substr(start), code_point);
    if (size != text.size() - start || !IsWhitespace(code_point)) break;
    text.remove_suffix(size);
  }
  return text;
}

std::string NormalizeForEquality(std::string_view text) {
  const std::string composed = Nfc(text);
  return CaseFold(TrimWhitespace(composed));
}

std::string_view TruncateUtf8(std::string_view text, std::size_t max_bytes) {
  if (text.size() <= max_bytes) return text;
  std::size_t end = max_bytes;
  // At most three bytes back: text that is not UTF-8 must not shrink to nothing.
  while (end > 0 && max_bytes - end < 3 && (text[end] & 0xC0) == 0x80) --end;
  if ((text[end] & 0xC0) == 0x80) end = max_bytes;
  return text.substr(0, end);
}

bool IsUnspacedCharacter(std::int32_t codepoint) {
  const auto* range =
      std::upper_bound(kUnspaced.begin(), kUnspaced.end(), codepoint,
                       [](std::int32_t value, const CodepointRange& r) { return value < r.first; });
  return range != kUnspaced.begin() && codepoint <= std::prev(range)->last;
}

bool IsWordCharacter(std::int32_t codepoint) {
  switch (utf8proc_category(codepoint)) {
    case UTF8PROC_CATEGORY_LU:
    case UTF8PROC_CATEGORY_LL:
    case UTF8PROC_CATEGORY_LT:
    case UTF8PROC_CATEGORY_LM:
    case UTF8PROC_CATEGORY_LO:
    case UTF8PROC_CATEGORY_MN:
    case UTF8PROC_CATEGORY_MC:
    case UTF8PROC_CATEGORY_ND:
    case UTF8PROC_CATEGORY_NL:
    case UTF8PROC_CATEGORY_NO:
      return true;
    default:
      return false;
  }
}

}  // namespace inferscale
