#ifndef INFERSCALE_ENGINE_LLAMA_PROMPT_INJECTOR_H_
#define INFERSCALE_ENGINE_LLAMA_PROMPT_INJECTOR_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "engine/llama/composition_match.h"
#include "engine/llama/kv_transfer.h"
#include "inferscale/engine.h"
#include "inferscale/kv_store.h"
#include "llama/llama_context.h"
#include "llama/state_blob.h"

namespace inferscale {

/// Finds the blocks of a prompt and writes them into an empty sequence of the serving context.
/// Owned and used by the serving thread alone.
class PromptInjector {
 public:
  struct Options {
    KvStore* store = nullptr;                      ///< null: nothing is injected
    std::shared_ptr<const KvTransfer> transfer;    ///< null: nothing is injected
    StateShape shape;                              ///< of the serving context
    std::int32_t window = 0;                       ///< sliding window in tokens; 0: none
    std::function<bool(const KvKey&)> was_stored;  ///< told apart: "evicted" from "not_ready"
  };
  explicit PromptInjector(Options options) : options_(std::move(options)) {}

  /// A plan and the pins that keep its blocks.
  struct Prepared {
    MatchPlan plan;
    std::vector<KvStore::Pin> pins;  ///< [plan.runs]
  };
  /// At most `limit` tokens.
  Prepared Prepare(const Composition& composition, std::int32_t limit);
  /// Reasons for blocks that reach beyond the first `covered` tokens, when those come from
  /// elsewhere.
  FallbackCounter ReasonsBeyond(const Composition& composition, std::int32_t covered) const;

  /// Writes what was prepared into `sequence`, which is empty, and stays so on an error.
  Status Write(LlamaContext& context, std::int32_t sequence, const Prepared& prepared);

 private:
  std::string ReasonAbsent(const KvKey& key) const;
  std::string WhyOff(const Composition& composition) const;

  Options options_;
  RawBuffer blob_;
  std::int32_t failures_ = 0;
};

}  // namespace inferscale

#endif  // INFERSCALE_ENGINE_LLAMA_PROMPT_INJECTOR_H_
