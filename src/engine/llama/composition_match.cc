#include "engine/llama/composition_match.h"

#include <algorithm>
#include <string>

#include "engine/context_limit.h"

namespace inferscale {

std::vector<Fallback> FallbackCounter::Take() const {
  std::vector<Fallback> fallbacks;
  for (const auto& [reason, count] : counts_) fallbacks.push_back({reason, count});
  return fallbacks;
}

Status ValidateComposition(const Composition& composition, std::int32_t vocabulary,
                           std::int32_t context_tokens) {
  if (composition.ids.empty()) return InvalidArgument("the prompt is empty");
  if (composition.ids.size() >= static_cast<std::size_t>(context_tokens)) {
    return ContextExceeded(static_cast<std::int64_t>(composition.ids.size()), context_tokens - 1);
  }
  for (const TokenId id : composition.ids) {
    if (id < 0 || id >= vocabulary) {
      return InvalidArgument("the prompt has token id " + std::to_string(id) +
                             ", which this model's vocabulary of " + std::to_string(vocabulary) +
                             " does not have");
    }
  }
  std::int32_t end = 0;
  for (const BlockSpan& span : composition.blocks) {
    if (span.begin < end || span.end <= span.begin ||
        span.end > static_cast<std::int32_t>(composition.ids.size())) {
      return InvalidArgument(
          "the composition's blocks overlap, are empty or reach beyond the prompt");
    }
    end = span.end;
  }
  return OkStatus();
}

MatchPlan MatchComposition(const Composition& composition, std::int32_t limit,
                           const std::function<BlockLookup(std::size_t)>& acquire,
                           const std::function<std::string(std::size_t)>& reason_absent) {
  MatchPlan plan;
  bool open = true;
  for (std::size_t i = 0; i < composition.blocks.size(); ++i) {
    const BlockSpan& span = composition.blocks[i];
    if (open && span.begin >= limit) break;  // nothing of what follows may be injected
    if (!open || span.begin != plan.covered) {
      open = false;
      const std::string reason = reason_absent(i);
      plan.fallbacks.Add(reason.empty() ? "not_contiguous" : reason);
      continue;
    }
    const BlockLookup found = acquire(i);
    if (!found.reason.empty()) {
      open = false;
      plan.fallbacks.Add(found.reason);
      continue;
    }
    const auto prompt = composition.ids.begin() + span.begin;
    if (!std::equal(found.tokens.begin(), found.tokens.end(), prompt,
                    composition.ids.begin() + span.end)) {
      open = false;
      plan.fallbacks.Add("token_mismatch");
      continue;
    }
    const std::int32_t count = std::min(span.end, limit) - span.begin;
    plan.runs.push_back({i, count, span.begin});
    plan.covered = span.begin + count;
  }
  return plan;
}

}  // namespace inferscale
