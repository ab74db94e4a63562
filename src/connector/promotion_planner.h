#ifndef INFERSCALE_CONNECTOR_PROMOTION_PLANNER_H_
#define INFERSCALE_CONNECTOR_PROMOTION_PLANNER_H_

/// \file promotion_planner.h
/// PromotionPlanner: which requests wait until the ranks have copied their blocks up into the
/// arenas, and which blocks the ranks keep there for them. Guarantees: what is kept never exceeds
/// three quarters of the smallest arena, so that captures and other requests go on; requests take
/// their turns in the order in which the engine asks; a request waits at most kLongestWaitMs in
/// all, at most kStallMs while nothing comes up, and not at all if a rank says that it cannot
/// promote a block, or if it needs more than may be kept. Whoever waits no longer is served as if
/// there were no planner. Does no I/O. Not thread-safe.

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

#include "connector/step.h"

namespace inferscale {

struct PromotionCounters {
  std::int64_t waits = 0;     ///< requests that waited
  std::int64_t given_up = 0;  ///< of these, or instead: loaded when they are scheduled
};

class PromotionPlanner {
 public:
  static constexpr std::int64_t kLongestWaitMs = 10'000;
  static constexpr std::int64_t kStallMs = 2'000;

  /// A block that a request loads.
  struct Wanted {
    PromoteItem item;
    std::uint64_t serial = 0;  ///< the directory's
    std::int64_t bytes = 0;
    bool resident = false;  ///< on every rank
  };

  /// \param steady_ms a clock that never goes back.
  PromotionPlanner(std::int32_t ranks, std::function<std::int64_t()> steady_ms)
      : arenas_(static_cast<std::size_t>(ranks), 0), steady_ms_(std::move(steady_ms)) {}

  void SetArena(std::int32_t rank, std::int64_t bytes);
  /// Every rank has an arena.
  bool enabled() const { return limit_bytes_ > 0; }

  /// Whether a request still waits and its blocks need not be looked at again.
  bool StillWaiting(const std::string& request);
  /// Whether a request that loads these blocks, not all of them resident, is to wait; they are then
  /// promoted and kept by the ranks, now or when it is its turn.
  bool MustWait(const std::string& request, std::span<const Wanted> blocks, StepPlan& plan);
  /// It is loaded by this plan, or has gone: what was kept for it is released.
  void Release(const std::string& request, StepPlan& plan);
  void StepPlanned() { line_blocked_ = false; }

  /// Ranks have reported something; `progress`: a block has come up.
  void Changed(bool progress);
  void Failed(const KvKey& key);
  /// The ranks have forgotten every block.
  void Clear();

  std::int64_t waiting() const;
  std::int64_t kept_bytes() const { return kept_bytes_; }
  const PromotionCounters& counters() const { return counters_; }

 private:
  struct Request {
    std::int64_t since = 0;
    bool planned = false, given_up = false;
    std::int64_t bytes = 0;
    std::uint64_t seen = 0;  ///< changes_ when its blocks were last looked at
    std::unordered_map<KvKey, std::uint64_t> kept;  ///< serials
  };
  struct Kept {
    std::uint64_t serial = 0;
    std::int64_t bytes = 0;
    std::int32_t requests = 0;
    bool failed = false;
    bool sent = false;  ///< the ranks may keep it from an earlier plan
  };

  bool Expired(const Request& request) const;
  bool GiveUp(Request& request);
  void Keep(const Wanted& block, StepPlan& plan);

  std::vector<std::int64_t> arenas_;  ///< bytes by rank
  const std::function<std::int64_t()> steady_ms_;
  std::int64_t limit_bytes_ = 0, kept_bytes_ = 0;
  std::unordered_map<std::string, Request> requests_;
  std::unordered_map<KvKey, Kept> kept_;
  std::uint64_t changes_ = 1;
  std::int64_t last_progress_ = 0;
  bool line_blocked_ = false;  ///< in this step somebody in front waits for room
  PromotionCounters counters_;
};

}  // namespace inferscale

#endif  // INFERSCALE_CONNECTOR_PROMOTION_PLANNER_H_
