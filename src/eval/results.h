#ifndef INFERSCALE_EVAL_RESULTS_H_
#define INFERSCALE_EVAL_RESULTS_H_

/// \file results.h
/// What an evaluation has measured so far, kept line by line in a file so that a stopped run goes
/// on where it was. ResultFile is not thread-safe.

#include <cstdint>
#include <filesystem>
#include <fstream>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <tuple>
#include <vector>

#include <nlohmann/json.hpp>

#include "eval/statistics.h"
#include "inferscale/result.h"

namespace inferscale {

/// What was asked and how it was served. For modes "none" and "text" recipe and codec are empty;
/// for "none" k is 0.
struct ResultKey {
  std::string question;
  std::int32_t k = 0;
  std::string mode;
  std::string recipe, codec;
  std::int32_t best = 0;  ///< of the facts, this many were computed; mode "kv" only
  auto operator<=>(const ResultKey&) const = default;
};

/// What a language model said of a generated answer.
struct Judgement {
  std::string model;                  ///< that judged; empty: none has
  std::optional<bool> label, strict;  ///< whether the answer is right, generously and strictly
};

struct QuestionResult {
  ResultKey key;
  std::string category;
  bool adversarial = false;
  double logprob = 0;        ///< of the gold answer, per token
  SparseDistribution first;  ///< of the first answer token; mode "text" only
  TokenId top = -1;          ///< likeliest first answer token
  double kl = 0;             ///< to text; modes other than "text"
  double ttft_ms = 0;
  std::int32_t injected_tokens = 0, computed_tokens = 0;
  std::int32_t left_out = 0;          ///< facts that the context had no room for
  std::int32_t not_injected = 0;      ///< blocks that were computed although they should not be
  std::optional<std::string> answer;  ///< greedy, with --generate
  double f1 = 0, bleu1 = 0;
  bool exact = false;
  Judgement judged;
};

class ResultFile {
 public:
  /// Reads what is there. A last line without its end (a killed run) is dropped; any other fault,
  /// or a header that differs from `header`, is kFailedPrecondition.
  static Result<ResultFile> Open(const std::filesystem::path& path, const nlohmann::json& header);

  const QuestionResult* Find(const ResultKey& key) const;
  const std::vector<std::string>* FindRetrieved(const std::string& question) const;
  /// Reads a file without writing to it; Add() fails.
  static Result<ResultFile> Read(const std::filesystem::path& path);
  const nlohmann::json& header() const { return header_; }

  Status Add(QuestionResult result);
  Status AddRetrieved(const std::string& question, std::vector<std::string> fact_ids);
  const std::map<ResultKey, QuestionResult>& results() const { return results_; }
  /// Question to ids of facts.
  const std::map<std::string, std::vector<std::string>>& retrieved() const { return retrieved_; }

 private:
  ResultFile() = default;
  /// \return bytes of whole lines
  Result<std::size_t> Load(const std::string& text);
  Status Append(const nlohmann::json& line);

  std::filesystem::path path_;
  nlohmann::json header_;
  std::ofstream out_;
  std::map<ResultKey, QuestionResult> results_;
  std::map<std::string, std::vector<std::string>> retrieved_;
};

nlohmann::json ToJson(const QuestionResult& result);
Result<QuestionResult> QuestionResultFromJson(const nlohmann::json& json);

/// One line of the report: a way of serving, over all questions that were also asked with text.
struct Summary {
  std::int32_t k = 0;
  std::string mode, recipe, codec;
  std::int32_t best = 0;
  std::int64_t n = 0;
  double logprob = 0;
  double diff = 0;  ///< to text on the same questions
  Interval diff_interval;
  double f1 = 0, bleu1 = 0, exact = 0;
  double mcnemar_p = 1;  ///< exact matches against text's
  bool generated = false;
  std::int64_t judged = 0, judged_strict = 0;  ///< answers with such a label, text's as well
  double judge = 0, judge_strict = 0;          ///< shares of right ones among them
  double judge_p = 1, judge_strict_p = 1;      ///< McNemar against text
  double kl = 0, top1 = 0;
  double ttft_ms = 0;                     ///< median
  double left_out = 0, not_injected = 0;  ///< mean a question, see QuestionResult
};

struct SummaryFilter {
  std::set<std::string> questions;  ///< only these; a file may hold those of a longer run
  bool adversarial = false;         ///< LoCoMo's category 5 alone, or everything else
  std::string category;             ///< empty: all
};

/// In the order k, none, text, then kv by recipe, codec and best. \param ks "none" is listed at
/// each.
std::vector<Summary> Summarize(const ResultFile& file, const std::vector<std::int32_t>& ks,
                               const SummaryFilter& filter, std::uint64_t seed);
nlohmann::ordered_json ToJson(const std::vector<Summary>& rows);

}  // namespace inferscale

#endif  // INFERSCALE_EVAL_RESULTS_H_
