#ifndef INFERSCALE_MEMORY_SENTENCE_SPLITTER_H_
#define INFERSCALE_MEMORY_SENTENCE_SPLITTER_H_

#include <cstddef>
#include <string_view>
#include <vector>

namespace inferscale {

/// Number of characters (code points; a byte that is not UTF-8 counts as one).
std::size_t CountCharacters(std::string_view text);

/// Pieces of at most `max_characters`, together the whole text but for blanks at the cuts: cut
/// after the last sentence that fits, else at the last blank, else in the middle of a word, but
/// never inside a character. A text that fits is one piece, untouched. Views of `text`.
std::vector<std::string_view> SplitSentences(std::string_view text, std::size_t max_characters);

}  // namespace inferscale

#endif  // INFERSCALE_MEMORY_SENTENCE_SPLITTER_H_
