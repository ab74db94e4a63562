#ifndef INFERSCALE_EVAL_JUDGE_H_
#define INFERSCALE_EVAL_JUDGE_H_

/// \file judge.h
/// A language model behind an OpenAI-compatible endpoint says whether generated answers are right.
/// Each is judged twice: generously, as LoCoMo's answers usually are, and strictly.

#include <chrono>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "eval/commands.h"
#include "eval/results.h"
#include "memory/extractor.h"

namespace inferscale {

enum class JudgeKind { kGenerous, kStrict };

/// The request of one judgement. Texts of the data are fenced, so that they read as data.
std::vector<ChatMessage> JudgeMessages(JudgeKind kind, const std::string& question,
                                       const std::string& gold, const std::string& answer);

/// Reads {"label": "CORRECT"} or "WRONG" out of a model's reply, wherever it stands in it; a reply
/// that names just one of the two words is taken for it. Nothing: it says neither, or both.
std::optional<bool> ParseLabel(std::string_view reply);

/// What the user says of the judge. No endpoint: nothing is judged.
struct JudgeFlags {
  std::string endpoint, model;
  std::string key_variable;  ///< name of an environment variable: a key is never on a command line
};
void AddJudgeOptions(CLI::App& app, JudgeFlags& flags);
/// Checks the flags without asking the endpoint. \return an empty function without an endpoint.
/// \param generates whether there will be answers to judge
Result<CompletionFunction> OpenJudge(const JudgeFlags& flags, bool generates);

struct JudgeOptions {
  std::string model;  ///< labels of another judge do not count
  std::int32_t attempts = 4;
  std::chrono::milliseconds first_wait{1000};  ///< between attempts; doubles
  std::int32_t parallel = 4;                   ///< requests at the same time
  std::int32_t give_up_after = 5;              ///< answers in a row that could not be judged
};

/// One answer to be judged. The same question and answer are asked about once.
struct JudgeItem {
  ResultKey key;
  std::string question, gold;
};

struct JudgeOutcome {
  std::int64_t judged = 0;    ///< now
  std::int64_t unjudged = 0;  ///< still missing a label
  std::string problem;        ///< why, the last one seen; empty when there was none
};

/// Judges what has no label of this judge yet, and stores each as it comes. An endpoint that fails
/// leaves answers unjudged; another run asks for those. \return an error only for what has nothing
/// to do with the endpoint (Ctrl-C, a full disk).
Result<JudgeOutcome> JudgeAnswers(EvalContext& context, const CompletionFunction& complete,
                                  const JudgeOptions& options, const std::vector<JudgeItem>& items,
                                  ResultFile* results);
/// What people are told of the outcome; empty when there was nothing to do.
std::string JudgeNote(const JudgeOutcome& outcome);

}  // namespace inferscale

#endif  // INFERSCALE_EVAL_JUDGE_H_
