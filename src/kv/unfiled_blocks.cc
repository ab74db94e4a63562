#include "kv/unfiled_blocks.h"

#include <algorithm>

namespace inferscale {

void UnfiledBlocks::Add(const KvKey& key, std::uint64_t scope_tag) {
  if (!scopes_.insert_or_assign(key, scope_tag).second) return;
  // Erased keys leave their turns behind: taken out when they are the most.
  if (turns_.size() > 2 * scopes_.size() + kLook) {
    turns_.clear();
    for (const auto& [known, scope] : scopes_) turns_.push_back(known);
    return;
  }
  turns_.push_back(key);
}

void UnfiledBlocks::Erase(std::span<const KvKey> keys) {
  if (scopes_.empty()) return;
  for (const KvKey& key : keys) scopes_.erase(key);
}

void UnfiledBlocks::EraseScope(std::uint64_t scope_tag) {
  std::erase_if(scopes_, [&](const auto& block) { return block.second == scope_tag; });
}

void UnfiledBlocks::Clear() {
  scopes_.clear();
  turns_.clear();
}

std::vector<KvKey> UnfiledBlocks::TakeGone(const std::function<bool(const KvKey&)>& held) {
  std::vector<KvKey> gone;
  for (std::size_t looks = std::min(kLook, turns_.size()); looks > 0; --looks) {
    const KvKey key = turns_.front();
    turns_.pop_front();
    const auto found = scopes_.find(key);
    if (found == scopes_.end()) continue;
    if (held(key)) {
      turns_.push_back(key);
    } else {
      scopes_.erase(found);
      gone.push_back(key);
    }
  }
  return gone;
}

}  // namespace inferscale
