#ifndef INFERSCALE_EVAL_EVALUATION_H_
#define INFERSCALE_EVAL_EVALUATION_H_

/// \file evaluation.h
/// An evaluation: every question of a dataset, with the same facts, in every mode. What has been
/// measured is kept in `out`/results.jsonl; a stopped run goes on from it. Not thread-safe.

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "eval/commands.h"
#include "eval/dataset.h"
#include "eval/judge.h"

namespace inferscale {

struct EvalOptions {
  std::string file;
  std::string out = "inferscale-eval";
  // Dimensions: each combination is a row, and a run may add some to an earlier one's.
  std::vector<std::int32_t> ks{5, 20, 50};
  std::vector<std::string> modes{"none", "text", "kv"};
  std::vector<std::string> recipes{"primer"};
  std::vector<std::string> codecs{"int4"};
  std::vector<std::int32_t> best{0};  ///< facts computed in kv rows; those above k are left out
  // Choice of questions.
  std::vector<std::string> categories;
  std::vector<std::string> conversations;  ///< ids; of those that were drawn
  std::int32_t questions = 0;              ///< 0: all
  std::uint64_t seed = 1;
  // Settings of a whole run: a folder of results has one of each.
  std::string ingest = "facts";  ///< verbatim if the dataset gives none
  std::string system;            ///< see SystemTextSpec
  std::string names = "given";   ///< as ParseEvalNames() reads it
  std::int32_t profile = 0;      ///< always served: this many of the owner's oldest facts
  std::int32_t generate = 0;
  JudgeFlags judge;  ///< of generated answers; may change from run to run
};

Status RunEvaluation(EvalContext& context, EvalOptions options, EvalDataset dataset);

struct EvalMergeOptions {
  std::vector<std::string> folders;
  std::string out;
  std::uint64_t seed = 1;
};
/// Puts the results of runs with the same settings into one folder, and reports on them. Of a
/// result that several have, the first is kept. kFailedPrecondition names the folder whose settings
/// differ.
Status MergeEvaluations(EvalContext& context, const EvalMergeOptions& options);

}  // namespace inferscale

#endif  // INFERSCALE_EVAL_EVALUATION_H_
