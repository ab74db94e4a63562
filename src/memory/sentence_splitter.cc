#include "memory/sentence_splitter.h"

#include <utf8proc.h>

#include <algorithm>

#include "base/utf8.h"

namespace inferscale {
namespace {

struct Character {
  utf8proc_int32_t code = 0xfffd;
  std::size_t length = 1;
};

Character ReadCharacter(std::string_view text, std::size_t offset) {
  Character character;
  const auto length =
      utf8proc_iterate(reinterpret_cast<const utf8proc_uint8_t*>(text.data()) + offset,
                       static_cast<utf8proc_ssize_t>(text.size() - offset), &character.code);
  if (length <= 0) return Character();
  character.length = static_cast<std::size_t>(length);
  return character;
}

bool IsBlank(utf8proc_int32_t code) {
  if (code <= 0x20) return true;
  const auto category = utf8proc_category(code);
  return category == UTF8PROC_CATEGORY_ZS || category == UTF8PROC_CATEGORY_ZL ||
         category == UTF8PROC_CATEGORY_ZP;
}

/// Marks that end a sentence only in front of a blank ("3.5" and "e.g.x" go on).
bool IsSpacedStop(utf8proc_int32_t code) {
  return code == '.' || code == '!' || code == '?' || code == 0x2026 /* … */ ||
         code == 0x061f /* Arabic question mark */ || code == 0x06d4 /* Arabic full stop */ ||
         code == 0x0964 /* danda */;
}

/// Full-width marks, which no blank follows.
bool IsWideStop(utf8proc_int32_t code) {
  return code == 0x3002 /* 。 */ || code == 0xff01 /* ！ */ || code == 0xff1f /* ？ */ ||
         code == 0xff0e /* ． */ || code == 0xff61 /* ｡ */ || code == 0xff1b /* ； */;
}

/// Quotes and brackets that belong to the sentence they close.
bool IsCloser(utf8proc_int32_t code) {
  if (code == '"' || code == '\'') return true;
  const auto category = utf8proc_category(code);
  return category == UTF8PROC_CATEGORY_PE || category == UTF8PROC_CATEGORY_PF;
}

/// Characters that must not be cut off from the one in front of them.
bool IsExtender(utf8proc_int32_t code) {
  if (code == 0x200d /* joiner */ || (code >= 0x1f3fb && code <= 0x1f3ff) /* skin tones */) {
    return true;
  }
  const auto category = utf8proc_category(code);
  return category == UTF8PROC_CATEGORY_MN || category == UTF8PROC_CATEGORY_ME ||
         category == UTF8PROC_CATEGORY_MC;
}

/// Bytes of the first piece.
std::size_t FirstPiece(std::string_view text, std::size_t max_characters) {
  enum class Stop { kNone, kSpaced, kWide };
  std::size_t sentence_end = 0;
  std::size_t blank_end = 0;
  std::size_t cluster_start = 0;
  std::size_t offset = 0;
  Stop stop = Stop::kNone;
  utf8proc_int32_t previous = 0;
  for (std::size_t count = 0; offset < text.size(); ++count) {
    const Character character = ReadCharacter(text, offset);
    const bool blank = IsBlank(character.code);
    const bool goes_on =
        IsWideStop(character.code) || IsSpacedStop(character.code) || IsCloser(character.code);
    if ((stop == Stop::kWide && !goes_on) || (stop != Stop::kNone && blank) ||
        character.code == '\n') {
      sentence_end = offset;
    }
    if (blank) blank_end = offset;
    if (!IsExtender(character.code) && previous != 0x200d) cluster_start = offset;
    if (count == max_characters) break;
    if (IsWideStop(character.code)) {
      stop = Stop::kWide;
    } else if (IsSpacedStop(character.code)) {
      if (stop == Stop::kNone) stop = Stop::kSpaced;
    } else if (!IsCloser(character.code)) {
      stop = Stop::kNone;
    }
    previous = character.code;
    offset += character.length;
  }
  if (offset == text.size()) return offset;
  if (sentence_end > 0) return sentence_end;
  if (blank_end > 0) return blank_end;
  return cluster_start > 0 ? cluster_start : offset;
}

}  // namespace

std::size_t CountCharacters(std::string_view text) {
  std::size_t count = 0;
  for (std::size_t offset = 0; offset < text.size(); ++count) {
    offset += ReadCharacter(text, offset).length;
  }
  return count;
}

std::vector<std::string_view> SplitSentences(std::string_view text, std::size_t max_characters) {
  if (CountCharacters(text) <= max_characters) return {text};
  std::vector<std::string_view> pieces;
  text = TrimWhitespace(text);
  while (!text.empty()) {
    const std::size_t end = FirstPiece(text, max_characters);
    pieces.push_back(TrimWhitespace(text.substr(0, end)));
    text = TrimWhitespace(text.substr(end));
  }
  return pieces;
}

}  // namespace inferscale
