#include "engine/llama/prompt_injector.h"

#include <algorithm>

#include <spdlog/spdlog.h>

namespace inferscale {
namespace {

constexpr std::int32_t kFailuresUntilOff = 3;

}  // namespace

std::string PromptInjector::WhyOff(const Composition& composition) const {
  if (!composition.inject) return "text_mode";
  if (options_.store == nullptr || !options_.transfer || failures_ >= kFailuresUntilOff) {
    return "model_unsupported";
  }
  return {};
}

std::string PromptInjector::ReasonAbsent(const KvKey& key) const {
  const std::vector<KvTier> tiers = options_.store->Presence({&key, 1});
  if (!tiers.empty() && tiers[0] != KvTier::kNone) return {};
  return options_.was_stored && options_.was_stored(key) ? "evicted" : "not_ready";
}

PromptInjector::Prepared PromptInjector::Prepare(const Composition& composition,
                                                 std::int32_t limit) {
  Prepared prepared;
  if (const std::string off = WhyOff(composition); !off.empty()) {
    prepared.plan.fallbacks.Add(off, static_cast<std::int32_t>(composition.blocks.size()));
    return prepared;
  }
  limit = std::min(limit, options_.transfer->positions());
  const auto acquire = [&](std::size_t i) -> BlockLookup {
    const KvKey& key = composition.blocks[i].key;
    Result<KvStore::Pin> pin = options_.store->Acquire(key);
    if (!pin.ok()) {
      if (pin.status().code() == StatusCode::kDataLoss) return {"corrupt", {}};
      const std::string reason = ReasonAbsent(key);
      return {reason.empty() ? "evicted" : reason, {}};
    }
    if ((*pin)->info().geometry != options_.transfer->geometry()) return {"corrupt", {}};
    prepared.pins.push_back(std::move(*pin));
    return {"", prepared.pins.back()->info().tokens};
  };
  prepared.plan = MatchComposition(composition, limit, acquire, [&](std::size_t i) {
    return ReasonAbsent(composition.blocks[i].key);
  });
  return prepared;
}

FallbackCounter PromptInjector::ReasonsBeyond(const Composition& composition,
                                              std::int32_t covered) const {
  FallbackCounter fallbacks;
  const std::string off = WhyOff(composition);
  for (const BlockSpan& span : composition.blocks) {
    if (span.end <= covered) continue;
    const std::string reason = off.empty() ? ReasonAbsent(span.key) : off;
    fallbacks.Add(reason.empty() ? "not_contiguous" : reason);
  }
  return fallbacks;
}

Status PromptInjector::Write(LlamaContext& context, std::int32_t sequence,
                             const Prepared& prepared) {
  const std::int32_t covered = prepared.plan.covered;
  // A sliding-window layer holds only what a next token can still see.
  std::vector<CellRange> ranges(options_.shape.section_layers.size(), CellRange{0, covered});
  if (ranges.size() == 2 && options_.window > 0 && covered > options_.window) {
    ranges[1] = {covered - options_.window, options_.window};
  }
  const auto write = [&]() -> Status {
    INFERSCALE_ASSIGN_OR_RETURN(const ParsedState state,
                                LayOutState(options_.shape, ranges, sequence, blob_));
    std::vector<BlockUse> uses;
    for (std::size_t i = 0; i < prepared.plan.runs.size(); ++i) {
      const InjectionRun& run = prepared.plan.runs[i];
      uses.push_back({&*prepared.pins[i], run.count, run.position});
    }
    INFERSCALE_RETURN_IF_ERROR(options_.transfer->Inject(blob_.bytes(), state, uses));
    return context.SetState(sequence, blob_.bytes());
  };
  const Status status = write();
  if (status.ok()) {
    failures_ = 0;
  } else if (++failures_ == kFailuresUntilOff) {
    spdlog::warn("KV injection failed {} times in a row and is off until a restart: {}", failures_,
                 status.message());
  }
  return status;
}

}  // namespace inferscale
