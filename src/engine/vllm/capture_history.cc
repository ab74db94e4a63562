#include "engine/vllm/capture_history.h"

#include <algorithm>
#include <iterator>

namespace inferscale {
namespace {

bool ForGood(const Status& status) {
  return status.code() == StatusCode::kInvalidArgument || status.code() == StatusCode::kUnsupported;
}

}  // namespace

void CaptureHistory::Forget(Pasts::iterator past) {
  oldest_first_.erase(past->second.age);
  pasts_.erase(past);
}

CaptureHistory::Pasts::iterator CaptureHistory::Find(const Attempt& attempt, Time now) {
  const auto found = pasts_.find({attempt.core, attempt.key});
  if (found == pasts_.end()) return found;
  const Past& past = found->second;
  const bool lasted = past.status.ok() && now - past.ended >= kLasts;
  if (past.start == attempt.start && past.epoch == attempt.epoch && !lasted) return found;
  Forget(found);
  return pasts_.end();
}

Status CaptureHistory::MayTry(const Attempt& attempt, Time now) {
  const std::lock_guard lock(mutex_);
  const auto found = Find(attempt, now);
  if (found == pasts_.end()) return OkStatus();
  const Past& past = found->second;
  if (ForGood(past.status)) return past.status;
  constexpr std::int32_t kMostDoublings = 16;
  const auto pause =
      std::min(kLongestPause, kFirstPause * (1 << std::min(past.repeated, kMostDoublings)));
  if (now >= past.ended + pause) return OkStatus();
  if (!past.status.ok()) return past.status;
  return ResourceExhausted(
      "vLLM has stored a fact's KV and lost it at once; raise host_bytes or file_bytes in "
      "kv_connector_extra_config, or look whether the disk of its folder is full");
}

void CaptureHistory::Ended(const Attempt& attempt, const Status& status, Time now) {
  const std::lock_guard lock(mutex_);
  const auto found = Find(attempt, now);
  std::int32_t repeated = 0;
  if (found != pasts_.end()) {
    if (found->second.status.ok() == status.ok()) repeated = found->second.repeated + 1;
    Forget(found);
  }
  const Place place{attempt.core, attempt.key};
  const auto age = oldest_first_.insert(oldest_first_.end(), place);
  pasts_.emplace(place, Past{attempt.start, attempt.epoch, status, repeated, now, age});
  if (pasts_.size() > kMost) Forget(pasts_.find(oldest_first_.front()));
}

std::size_t CaptureHistory::size() const {
  const std::lock_guard lock(mutex_);
  return pasts_.size();
}

}  // namespace inferscale
