#ifndef INFERSCALE_EVAL_ACCURACY_CHECK_H_
#define INFERSCALE_EVAL_ACCURACY_CHECK_H_

/// \file accuracy_check.h
/// Is KV as good as text for a model, recipe and codec? A few dozen questions, each asked with the
/// same facts as text, as KV and without facts; a verdict by stated bounds. Not thread-safe.

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "eval/dataset.h"
#include "eval/session.h"
#include "memory/accuracy_verdict.h"

namespace inferscale {

/// What decides. KV fails at a number of facts when
/// - the gold answer's log-probability a token is less than text's by more than `least_diff` in the
///   mean, and the 95 % interval of the difference lies below 0: materially and significantly
///   worse;
/// - or its first answer token is, by KL, farther from text's than without any fact, and farther
/// than
///   `most_kl`: the facts are not read at all. (The same facts in another order give .02 to .05, no
///   facts at all .5 to .7.);
/// - or its likeliest first token is text's less often than `least_top1`: with 24 questions a model
///   that agrees every second time falls below that once in a thousand checks.
struct AccuracyBounds {
  double least_diff = -0.15;
  double most_kl = 1.0;
  double least_top1 = 0.2;
};

/// \param figures at least one; none fails.
AccuracyVerdict JudgeAccuracy(std::vector<AccuracyFigures> figures, TimeMs now,
                              const AccuracyBounds& bounds = {});

struct AccuracyCheckOptions {
  std::vector<std::int32_t> ks{5, 20};
  std::size_t questions = 24;  ///< spread over the conversation's; 0: all
  std::size_t max_facts = 0;   ///< 0: all
  std::uint64_t seed = 1;      ///< of the intervals
};

/// Asks one conversation's questions. Text and "no facts" are asked once and serve every recipe and
/// codec measured after one another on the same data folder.
class AccuracyCheck {
 public:
  AccuracyCheck(EvalConversation conversation, AccuracyCheckOptions options);

  /// Stores the facts unless they are, waits for their KV, and measures. kInternal when KV was not
  /// injected although the engine can.
  Result<std::vector<AccuracyFigures>> Measure(EvalContext& context, EvalSession& session);

 private:
  struct Item {
    const EvalQuestion* question = nullptr;
    std::vector<Fact> facts;
    std::vector<double> text_logprobs;     ///< [ks]
    std::vector<SparseDistribution> text;  ///< [ks]
    std::vector<double> kl_no_facts;       ///< [ks]
  };
  Status AskWithText(EvalSession& session, Item* item);

  EvalConversation conversation_;
  AccuracyCheckOptions options_;
  Scope scope_;
  std::vector<Item> items_;
};

/// The check of `doctor --accuracy`: the built-in history, in a folder of its own.
/// \param encoding_id receives what the verdict is about.
Result<AccuracyVerdict> RunAccuracyCheck(EvalContext& context, const std::filesystem::path& folder,
                                         std::string* encoding_id);

/// {"passed", "bounds", "figures": [{k, questions, diff, diff_low, diff_high, top1, kl,
/// kl_no_facts}], "reasons"}
nlohmann::json AccuracyJson(const AccuracyVerdict& verdict);

}  // namespace inferscale

#endif  // INFERSCALE_EVAL_ACCURACY_CHECK_H_
