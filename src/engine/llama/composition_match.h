#ifndef INFERSCALE_ENGINE_LLAMA_COMPOSITION_MATCH_H_
#define INFERSCALE_ENGINE_LLAMA_COMPOSITION_MATCH_H_

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "inferscale/engine.h"

namespace inferscale {

/// Reasons and their counts, for a report.
class FallbackCounter {
 public:
  void Add(const std::string& reason, std::int32_t count = 1) {
    if (count > 0) counts_[reason] += count;
  }
  std::vector<Fallback> Take() const;

 private:
  std::map<std::string, std::int32_t> counts_;
};

/// What asking for a block came to.
struct BlockLookup {
  std::string reason;               ///< empty: found; else why not
  std::span<const TokenId> tokens;  ///< the found block's own, valid while the caller pins it
};

struct InjectionRun {
  std::size_t block = 0;      ///< index into Composition::blocks
  std::int32_t count = 0;     ///< tokens used from the block's first
  std::int32_t position = 0;  ///< of the first one
};

struct MatchPlan {
  std::vector<InjectionRun> runs;
  std::int32_t covered = 0;  ///< tokens [0, covered) come out of blocks
  FallbackCounter fallbacks;
};

/// Spans must ascend, not overlap and lie inside the prompt.
Status ValidateComposition(const Composition& composition, std::int32_t vocabulary,
                           std::int32_t context_tokens);

/// Which blocks form one contiguous range from position 0. The first block that is missing, has
/// other tokens than the prompt, or leaves a gap ends it. At most `limit` tokens, the last block in
/// part. \param acquire pins block i of the composition; called in order, not after the range has
/// ended. \param reason_absent why block i is not there, or empty if it is; loads nothing.
MatchPlan MatchComposition(const Composition& composition, std::int32_t limit,
                           const std::function<BlockLookup(std::size_t)>& acquire,
                           const std::function<std::string(std::size_t)>& reason_absent);

}  // namespace inferscale

#endif  // INFERSCALE_ENGINE_LLAMA_COMPOSITION_MATCH_H_
