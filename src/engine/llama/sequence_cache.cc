#include "engine/llama/sequence_cache.h"

#include <algorithm>

namespace inferscale {
namespace {

/// Recomputing this many tokens is a fair price for an answer that does not depend on history.
constexpr std::int32_t kRepeatTokens = 64;

}  // namespace

SequenceCache::Prefix SequenceCache::FindPrefix(const TokenIds& prompt, const std::string& salt,
                                                std::int32_t limit) const {
  Prefix best;
  for (std::size_t i = 0; i < slots_.size(); ++i) {
    const Slot& slot = slots_[i];
    if (slot.state != State::kCached || slot.salt != salt) continue;
    const auto differ =
        std::mismatch(slot.ids.begin(), slot.ids.end(), prompt.begin(), prompt.end()).first;
    std::int32_t shared = std::min(static_cast<std::int32_t>(differ - slot.ids.begin()), limit);
    if (shared < slot.prompt_tokens) {
      for (auto start = slot.starts.rbegin(); start != slot.starts.rend(); ++start) {
        if (*start > shared) continue;
        if (shared - *start <= kRepeatTokens) shared = *start;
        break;
      }
    }
    if (shared > best.tokens) best = {static_cast<std::int32_t>(i), shared};
  }
  return best;
}

std::int32_t SequenceCache::FindRoom() const {
  std::int32_t oldest = -1;
  for (std::size_t i = 0; i < slots_.size(); ++i) {
    if (slots_[i].state == State::kFree) return static_cast<std::int32_t>(i);
    if (slots_[i].state == State::kCached && (oldest < 0 || slots_[i].used < slots_[oldest].used)) {
      oldest = static_cast<std::int32_t>(i);
    }
  }
  return oldest;
}

void SequenceCache::Keep(std::int32_t sequence, TokenIds ids, std::string salt,
                         std::vector<std::uint64_t> scope_tags, std::vector<std::int32_t> starts,
                         std::int32_t prompt_tokens) {
  slots_[sequence] = {State::kCached,    std::move(ids), std::move(salt), std::move(scope_tags),
                      std::move(starts), prompt_tokens,  ++uses_};
}

std::vector<std::int32_t> SequenceCache::CachedOf(std::uint64_t scope_tag) const {
  std::vector<std::int32_t> sequences;
  for (std::size_t i = 0; i < slots_.size(); ++i) {
    const std::vector<std::uint64_t>& tags = slots_[i].scope_tags;
    if (slots_[i].state == State::kCached &&
        std::find(tags.begin(), tags.end(), scope_tag) != tags.end()) {
      sequences.push_back(static_cast<std::int32_t>(i));
    }
  }
  return sequences;
}

}  // namespace inferscale
