#ifndef INFERSCALE_EVAL_SYSTEM_TEXT_H_
#define INFERSCALE_EVAL_SYSTEM_TEXT_H_

/// \file system_text.h
/// The system message that an evaluation puts in front of every prompt (`--system`), so that the
/// served prefix is unlike the one that facts were encoded behind. Thread-safe.

#include <cstdint>
#include <string>

#include "inferscale/engine.h"
#include "inferscale/result.h"

namespace inferscale {

struct SystemTextSpec {
  std::int32_t tokens = 0;  ///< of the built-in application prompt with tool descriptions
  std::string text;         ///< of a file; `tokens` is 0 then

  /// "", "tokens:N" or the path of a UTF-8 text file of at most 1 MiB. kInvalidArgument says what
  /// is allowed.
  static Result<SystemTextSpec> Parse(const std::string& argument);
  bool empty() const { return tokens == 0 && text.empty(); }
  /// For the header of a result file: the number of tokens, or a hash of the text.
  std::string Identity() const;
  /// More tokens than this it does not have.
  std::int32_t MostTokens() const;
  /// The message's text. The built-in prompt is cut by the engine's tokenizer, and goes on with
  /// numbered sections if it is too short.
  std::string Build(const Engine& engine) const;
};

}  // namespace inferscale

#endif  // INFERSCALE_EVAL_SYSTEM_TEXT_H_
