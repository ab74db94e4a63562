#ifndef INFERSCALE_MEMORY_ACCURACY_VERDICT_H_
#define INFERSCALE_MEMORY_ACCURACY_VERDICT_H_

/// \file accuracy_verdict.h
/// Whether answers from KV were found to be as good as answers from text, for one encoding (model ×
/// recipe × codec). Kept in the catalog, so that serving can act on it. Thread-safe.

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "inferscale/catalog.h"
#include "inferscale/result.h"
#include "inferscale/types.h"

namespace inferscale {

/// Paired figures at one number of facts, KV against text.
struct AccuracyFigures {
  std::int32_t k = 0;
  std::int64_t questions = 0;
  double diff = 0;  ///< of the gold answer's log-probability a token, to text
  double diff_low = 0, diff_high = 0;
  double top1 = 0;         ///< share of questions with text's likeliest first answer token
  double kl = 0;           ///< of the first answer token, from text
  double kl_no_facts = 0;  ///< the same for a prompt without facts
};

struct AccuracyVerdict {
  bool passed = false;
  TimeMs time_ms = 0;
  std::vector<AccuracyFigures> figures;
  std::vector<std::string> reasons;  ///< why it failed, in words; empty when it passed

  /// "passed on 2026-11-29: diff to text +0.03 [-0.01, +0.07] at k = 5, …"
  std::string ToString() const;
};

/// {k, questions, diff, diff_low, diff_high, top1, kl, kl_no_facts}
nlohmann::json ToJson(const AccuracyFigures& at);

/// \param encoding_id MemoryService::encoding_id()
Status StoreAccuracyVerdict(Catalog& catalog, const std::string& encoding_id,
                            const AccuracyVerdict& verdict);
/// Nothing when the encoding was never checked, or when what is stored cannot be read.
Result<std::optional<AccuracyVerdict>> LoadAccuracyVerdict(Catalog& catalog,
                                                           const std::string& encoding_id);

}  // namespace inferscale

#endif  // INFERSCALE_MEMORY_ACCURACY_VERDICT_H_
