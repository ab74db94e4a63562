#ifndef INFERSCALE_CLI_TURN_READER_H_
#define INFERSCALE_CLI_TURN_READER_H_

/// \file turn_reader.h
/// Conversations from outside: OpenAI's messages, JSON Lines, plain text.

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

#include "inferscale/result.h"
#include "inferscale/types.h"

namespace inferscale {

enum class TurnFormat { kMessages, kJsonLines, kPlainText };

struct TurnDefaults {
  TimeMs time_ms = 0;  ///< of turns that carry none; 0: none
  std::string name;    ///< of users' turns that carry none
};

struct ReadTurns {
  std::vector<Turn> turns;      ///< blank ones are left out
  bool replaced_bytes = false;  ///< there was text that is not UTF-8, now U+FFFD
};

/// By the name's ending: .json, .jsonl or .ndjson, anything else. Standard input ("-"): by its
/// first character, '[' or '{', else plain text.
TurnFormat GuessTurnFormat(const std::string& name, std::string_view content);

/// kMessages: an array of {"role", "content", "name"?, "date"?}, or an object that holds it as
/// "messages". kJsonLines: one such object a line. Content may be text, null or a list of parts, of
/// which the text ones are joined by line breaks. Dates are ISO 8601 texts or Unix seconds, under
/// "date", "timestamp", "time" or "created_at". kPlainText: one turn a line, "Name: text" or
/// "text"; "User:" and "Assistant:" are roles; a line that is a date alone, also in [] or after #,
/// dates the turns after it. kInvalidArgument with "`name`:line: …" where a line is to blame.
Result<ReadTurns> ParseTurns(std::string_view content, TurnFormat format, const std::string& name,
                             const TurnDefaults& defaults);

/// A file, or standard input to its end for "-". kResourceExhausted above `max_bytes`.
Result<std::string> ReadInput(const std::string& path, std::size_t max_bytes);

}  // namespace inferscale

#endif  // INFERSCALE_CLI_TURN_READER_H_
