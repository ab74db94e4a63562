#ifndef INFERSCALE_BASE_UTF8_H_
#define INFERSCALE_BASE_UTF8_H_

/// \file utf8.h
/// Unicode text in UTF-8. Functions that transform first replace what is not UTF-8 (ToValidUtf8).
/// Thread-safe.

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace inferscale {

bool IsValidUtf8(std::string_view text);
/// Each byte that belongs to no valid character becomes U+FFFD.
std::string ToValidUtf8(std::string_view text);

/// Canonical composition. Runs of more than 30 combining marks are broken up by U+034F as in UAX
/// #15's stream-safe format, which bounds the time.
std::string Nfc(std::string_view text);
/// Full case folding and canonical composition.
std::string CaseFold(std::string_view text);
/// Without Unicode white space at both ends; a view of `text`.
std::string_view TrimWhitespace(std::string_view text);
/// Two texts are duplicates when these are equal: NFC, trimmed, case folded.
std::string NormalizeForEquality(std::string_view text);

/// A letter, mark or number.
bool IsWordCharacter(std::int32_t codepoint);
/// Han, Kana, Bopomofo and Hangul: scripts written without blanks, or whose words are worth finding
/// by part.
bool IsUnspacedCharacter(std::int32_t codepoint);

/// The longest prefix of at most `max_bytes` that does not cut a character in two; a view of
/// `text`.
std::string_view TruncateUtf8(std::string_view text, std::size_t max_bytes);

}  // namespace inferscale

#endif  // INFERSCALE_BASE_UTF8_H_
