#ifndef INFERSCALE_CATALOG_TEXT_SEGMENTS_H_
#define INFERSCALE_CATALOG_TEXT_SEGMENTS_H_

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

namespace inferscale::catalog {

/// The terms by which a text is found: each word (letters, digits and marks, NFKC, case folded) as
/// it is, each run of Han, Kana or Hangul as its single characters and its pairs, because such a
/// run has no blanks between words: a word of one or two characters is a term. Stemming is left to
/// the index. Thread-safe.
std::vector<std::string> SegmentText(std::string_view text);

/// What the index stores: the terms, separated by blanks.
std::string IndexedText(std::string_view text);

/// Distinct terms of a query in its order, at most `max_terms`, without English stop words unless
/// nothing else is left.
std::vector<std::string> QueryTerms(std::string_view query, std::size_t max_terms);

}  // namespace inferscale::catalog

#endif  // INFERSCALE_CATALOG_TEXT_SEGMENTS_H_
