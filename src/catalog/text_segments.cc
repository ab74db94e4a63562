#include "catalog/text_segments.h"

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <unordered_set>
#include <utility>

#include <utf8proc.h>

#include "base/utf8.h"

namespace inferscale::catalog {
namespace {

/// Compatibility forms (full-width letters, half-width Kana) and cases made one. Words keep their
/// form when that would need more memory than there is.
std::string Folded(std::string_view text) {
  std::string safe = Nfc(text);  // valid UTF-8 with bounded runs of marks
  utf8proc_uint8_t* mapped = nullptr;
  const utf8proc_ssize_t size =
      utf8proc_map(reinterpret_cast<const utf8proc_uint8_t*>(safe.data()),
                   static_cast<utf8proc_ssize_t>(safe.size()), &mapped,
                   static_cast<utf8proc_option_t>(UTF8PROC_STABLE | UTF8PROC_COMPAT |
                                                  UTF8PROC_COMPOSE | UTF8PROC_CASEFOLD));
  if (size < 0) return safe;
  const std::unique_ptr<utf8proc_uint8_t, decltype(&std::free)> owner(mapped, &std::free);
  return {reinterpret_cast<const char*>(mapped), static_cast<std::size_t>(size)};
}

constexpr auto kStopWords = std::to_array<std::string_view>(
    {"a",    "about", "an",    "and",  "are",   "as",    "at",    "be",    "been", "but",    "by",
     "can",  "could", "did",   "do",   "does",  "for",   "from",  "had",   "has",  "have",   "he",
     "her",  "hers",  "him",   "his",  "how",   "i",     "if",    "in",    "into", "is",     "it",
     "its",  "me",    "my",    "of",   "on",    "or",    "our",   "s",     "she",  "should", "so",
     "t",    "than",  "that",  "the",  "their", "them",  "then",  "there", "they", "this",   "to",
     "was",  "we",    "were",  "what", "when",  "where", "which", "who",   "whom", "whose",  "why",
     "will", "with",  "would", "you",  "your"});
static_assert(std::is_sorted(kStopWords.begin(), kStopWords.end()));

bool IsStopWord(std::string_view term) {
  return std::binary_search(kStopWords.begin(), kStopWords.end(), term);
}

template <typename Emit>
void ForEachTerm(std::string_view text, Emit&& emit) {
  const std::string folded = Folded(text);
  const auto* data = reinterpret_cast<const utf8proc_uint8_t*>(folded.data());
  const auto size = static_cast<utf8proc_ssize_t>(folded.size());
  std::string_view view = folded;

  utf8proc_ssize_t word = -1;      // start of the word being read
  utf8proc_ssize_t previous = -1;  // start of the last character of an unspaced run
  for (utf8proc_ssize_t at = 0; at <= size;) {
    std::int32_t codepoint = -1;
    utf8proc_ssize_t length = 1;
    if (at < size)
      length = std::max<utf8proc_ssize_t>(1, utf8proc_iterate(data + at, size - at, &codepoint));
    const bool unspaced = codepoint >= 0 && IsUnspacedCharacter(codepoint);
    const bool in_word = codepoint >= 0 && !unspaced && IsWordCharacter(codepoint);
    if (!in_word && word >= 0) {
      if (!emit(view.substr(word, at - word))) return;
      word = -1;
    }
    if (unspaced) {
      if (!emit(view.substr(at, length))) return;
      if (previous >= 0 && !emit(view.substr(previous, at + length - previous))) return;
      previous = at;
    } else {
      previous = -1;
      if (in_word && word < 0) word = at;
    }
    at += length;
  }
}

}  // namespace

std::vector<std::string> SegmentText(std::string_view text) {
  std::vector<std::string> terms;
  ForEachTerm(text, [&](std::string_view term) {
    terms.emplace_back(term);
    return true;
  });
  return terms;
}

std::string IndexedText(std::string_view text) {
  std::string indexed;
  indexed.reserve(text.size());
  ForEachTerm(text, [&](std::string_view term) {
    if (!indexed.empty()) indexed.push_back(' ');
    indexed.append(term);
    return true;
  });
  return indexed;
}

std::vector<std::string> QueryTerms(std::string_view query, std::size_t max_terms) {
  std::vector<std::string> terms, stop_words;
  std::unordered_set<std::string> seen;
  ForEachTerm(query, [&](std::string_view term) {
    if (seen.emplace(term).second) {
      auto& list = IsStopWord(term) ? stop_words : terms;
      if (list.size() < max_terms) list.emplace_back(term);
    }
    return terms.size() < max_terms;
  });
  return terms.empty() ? stop_words : terms;
}

}  // namespace inferscale::catalog
