#ifndef INFERSCALE_EVAL_DEMO_RESULT_H_
#define INFERSCALE_EVAL_DEMO_RESULT_H_

#include <cstdint>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "eval/table.h"

namespace inferscale {

/// What the demo measured, as values; the functions below only present it.
struct DemoResult {
  struct Ttft {
    std::int32_t k = 0;
    bool kv = false;
    double ttft_ms = 0;  ///< medians over `questions`
    double injected_tokens = 0;
    double computed_tokens = 0;
    std::int32_t questions = 0;
  };
  struct Accuracy {
    std::int32_t k = 0;
    std::string mode;    ///< "none", "text", "kv", "kv-bare"
    double logprob = 0;  ///< mean over questions of the gold answer's log-probability a token
    double top1 = 0;     ///< share of questions with text's first answer token
    std::int32_t questions = 0;
  };
  struct SideBySide {
    std::string question, gold, text, kv;
    std::int32_t k = 0;
    double text_ttft_ms = 0, kv_ttft_ms = 0;
  };

  std::string model, recipe, codec;
  std::int64_t facts = 0, turns = 0;
  double encode_seconds = 0, prefill_tokens_a_second = 0, total_seconds = 0;
  std::int64_t store_bytes = 0;
  std::string kv_refusal;          ///< empty: KV was measured
  std::vector<std::string> notes;  ///< what was cut, and why
  std::vector<Ttft> ttft;
  std::vector<Accuracy> accuracy;
  std::vector<SideBySide> answers;
};

/// One row a k: TTFT as text and as KV, their ratio, tokens injected and computed.
Table DemoTtftTable(const DemoResult& result);
Table DemoAccuracyTable(const DemoResult& result);
/// The object that `inferscale demo --json` ends with.
nlohmann::ordered_json DemoJson(const DemoResult& result);
/// One HTML page without outside resources; every text in it is escaped.
std::string DemoPage(const DemoResult& result);

}  // namespace inferscale

#endif  // INFERSCALE_EVAL_DEMO_RESULT_H_
