#include "connector/promotion_planner.h"

#include <algorithm>
#include <utility>

namespace inferscale {

void PromotionPlanner::SetArena(std::int32_t rank, std::int64_t bytes) {
  arenas_[static_cast<std::size_t>(rank)] = bytes;
  // The directory marks a block's arenas in one word.
  const bool known = arenas_.size() <= 64;
  limit_bytes_ = known ? *std::min_element(arenas_.begin(), arenas_.end()) / 4 * 3 : 0;
}

bool PromotionPlanner::Expired(const Request& request) const {
  const std::int64_t now = steady_ms_();
  return now - request.since > kLongestWaitMs ||
         now - std::max(request.since, last_progress_) > kStallMs;
}

bool PromotionPlanner::GiveUp(Request& request) {
  request.given_up = true;
  ++counters_.given_up;
  return false;
}

bool PromotionPlanner::StillWaiting(const std::string& request) {
  if (requests_.empty()) return false;
  const auto found = requests_.find(request);
  if (found == requests_.end() || found->second.given_up) return false;
  Request& waiting = found->second;
  if (waiting.planned && waiting.seen != changes_) return false;  // MustWait, if it still has to
  if (Expired(waiting)) return GiveUp(waiting);
  if (waiting.planned) return true;
  if (kept_bytes_ + waiting.bytes > limit_bytes_) line_blocked_ = true;
  return line_blocked_;
}

bool PromotionPlanner::MustWait(const std::string& request, std::span<const Wanted> blocks,
                                StepPlan& plan) {
  const auto [place, is_new] = requests_.try_emplace(request);
  Request& waiting = place->second;
  if (is_new) waiting.since = steady_ms_();
  if (waiting.given_up) return false;
  if (Expired(waiting)) return GiveUp(waiting);
  waiting.seen = changes_;
  if (!waiting.planned) {
    waiting.bytes = 0;
    for (const Wanted& block : blocks) waiting.bytes += block.bytes;
    if (waiting.bytes > limit_bytes_) return GiveUp(waiting);
    if (is_new) ++counters_.waits;
    if (line_blocked_ || kept_bytes_ + waiting.bytes > limit_bytes_) {
      line_blocked_ = true;
      return true;
    }
    waiting.planned = true;
    last_progress_ = steady_ms_();
  }
  for (const Wanted& block : blocks) {
    std::uint64_t& serial = waiting.kept[block.item.key];
    if (serial != block.serial) {
      const auto kept = kept_.find(block.item.key);
      const std::int64_t more = block.bytes - (kept != kept_.end() ? kept->second.bytes : 0);
      if (kept_bytes_ + more > limit_bytes_) return GiveUp(waiting);  // came since its turn
      serial = block.serial;
      Keep(block, plan);
    } else if (!block.resident) {
      const auto kept = kept_.find(block.item.key);
      if (kept != kept_.end() && kept->second.failed) return GiveUp(waiting);
    }
  }
  return true;
}

void PromotionPlanner::Keep(const Wanted& block, StepPlan& plan) {
  const KvKey& key = block.item.key;
  Kept& kept = kept_[key];
  if (kept.requests > 0 && kept.serial == block.serial && !kept.failed) {
    ++kept.requests;
    return;
  }
  const std::int32_t others = kept.serial == block.serial ? kept.requests : 0;
  kept_bytes_ += block.bytes - kept.bytes;
  const bool sent = kept.requests > 0 || std::erase(plan.release, key) > 0;
  kept = {block.serial, block.bytes, others + 1, false, sent};
  plan.promote.push_back(block.item);
}

void PromotionPlanner::Release(const std::string& request, StepPlan& plan) {
  const auto found = requests_.find(request);
  if (found == requests_.end()) return;
  for (const auto& [key, serial] : found->second.kept) {
    const auto kept = kept_.find(key);
    if (kept == kept_.end() || kept->second.serial != serial || --kept->second.requests > 0) {
      continue;
    }
    const auto is_key = [&key = key](const PromoteItem& item) { return item.key == key; };
    const bool unsent = std::erase_if(plan.promote, is_key) > 0;
    if (!unsent || kept->second.sent) plan.release.push_back(key);
    kept_bytes_ -= kept->second.bytes;
    kept_.erase(kept);
  }
  requests_.erase(found);
  if (!requests_.empty()) last_progress_ = steady_ms_();  // there is room for the next one
}

void PromotionPlanner::Changed(bool progress) {
  ++changes_;
  if (progress && !requests_.empty()) last_progress_ = steady_ms_();
}

void PromotionPlanner::Failed(const KvKey& key) {
  const auto kept = kept_.find(key);
  if (kept != kept_.end()) kept->second.failed = true;
}

void PromotionPlanner::Clear() {
  ++changes_;
  kept_.clear();
  kept_bytes_ = 0;
  for (auto& [name, request] : requests_) request.kept.clear();
}

std::int64_t PromotionPlanner::waiting() const {
  return std::count_if(requests_.begin(), requests_.end(),
                       [](const auto& request) { return !request.second.given_up; });
}

}  // namespace inferscale
