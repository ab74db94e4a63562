#ifndef INFERSCALE_EVAL_DATASET_H_
#define INFERSCALE_EVAL_DATASET_H_

/// \file dataset.h
/// Histories with questions and gold answers, and the loaders that check them. Thread-safe.

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "inferscale/result.h"
#include "inferscale/types.h"

namespace inferscale {

struct EvalTurn {
  std::string id, speaker, text;
  TimeMs time_ms = 0;
  std::int32_t session = 0;  ///< index into no list: turns of a session share it, sessions ascend
};

struct EvalFact {
  std::string speaker;
  std::string text;      ///< reads after "Speaker: "
  std::string sentence;  ///< reads alone; empty: `text` does
  TimeMs time_ms = 0;
  std::vector<std::string> sources;  ///< ids of turns; unknown ones are ignored
  std::int32_t session = 0;
  std::optional<std::size_t> supersedes;  ///< index of an earlier fact of the conversation
};

struct EvalQuestion {
  std::string id, question, answer;
  std::string category;
  bool adversarial = false;  ///< the history does not answer it (LoCoMo's category 5)
  std::vector<std::string> evidence;
  TimeMs time_ms = 0;  ///< when it is asked; 0: a day after the last history of the dataset
};

struct EvalConversation {
  std::string id;
  std::vector<std::string> speakers;
  std::vector<EvalTurn> turns;
  std::vector<EvalFact> facts;
  std::vector<EvalQuestion> questions;
};

struct EvalDataset {
  std::string name;
  std::vector<EvalConversation> conversations;
};

/// Whom facts and questions name, `--names`.
enum class EvalNames : std::uint8_t {
  kGiven,  ///< a fact has its speaker's name
  kText,   ///< no fact has a name, its text says whom it is about
  kUser,   ///< the same, and every speaker is "the user", in turns, questions and answers too
  kNone,   ///< no fact has a name, and its text has lost its subject; questions still name people
};
/// "given", "text", "user", "none".
Result<EvalNames> ParseEvalNames(std::string_view name);

/// Puts the dataset into that form: facts' texts, and for kUser everything that is said.
void ApplyNames(EvalNames names, EvalDataset* dataset);

/// Format of src/eval/data/demo.json. kInvalidArgument names the place of the fault.
Result<EvalConversation> ParseDemo(std::string_view json);
/// The demo history that is built into the program.
Result<EvalConversation> BuiltInDemo();

/// LoCoMo's JSON: a list of samples. Observations lose the speaker's name at their start, since a
/// fact is served behind it. A question without an answer takes the adversarial one.
Result<EvalDataset> ParseLocomo(std::string_view json);
/// The same from a file of at most 256 MiB.
Result<EvalDataset> LoadLocomo(const std::filesystem::path& path);

/// LongMemEval's JSON: a list of questions, each with a history of its own. What the user says has
/// no speaker, the assistant is "The assistant". Questions whose id ends in "_abs" are adversarial.
Result<EvalDataset> ParseLongMemEval(std::string_view json);
/// The same from a file of at most 1 GiB.
Result<EvalDataset> LoadLongMemEval(const std::filesystem::path& path);

/// One history a line, see docs/measuring.md. Blank lines are left out.
Result<EvalDataset> ParseHistoryLines(std::string_view text);
/// The same from a file of at most 1 GiB.
Result<EvalDataset> LoadHistoryLines(const std::filesystem::path& path);

/// "2023/05/20 (Sat) 02:21"; without a time, midnight.
Result<TimeMs> ParseLongMemEvalTime(std::string_view text);
/// "1:56 pm on 8 May, 2023"
Result<TimeMs> ParseLocomoTime(std::string_view text);

}  // namespace inferscale

#endif  // INFERSCALE_EVAL_DATASET_H_
