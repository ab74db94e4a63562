#ifndef INFERSCALE_ENGINE_VLLM_CAPTURE_HISTORY_H_
#define INFERSCALE_ENGINE_VLLM_CAPTURE_HISTORY_H_

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <list>
#include <mutex>
#include <unordered_map>

#include "inferscale/result.h"
#include "inferscale/types.h"

namespace inferscale {

/// How captures of blocks ended, so that nobody pays for one that ends the same way: a chat asks
/// for what is missing each time. What can never be stored is not tried again; what may be later,
/// after a pause that doubles; what was stored and is gone within a minute counts as the latter. A
/// core that is started anew and an erasure of the block's scope begin anew. Of many blocks the
/// latest are remembered. Thread-safe.
class CaptureHistory {
 public:
  using Time = std::chrono::steady_clock::time_point;

  struct Attempt {
    const void* core = nullptr;
    std::uint64_t start = 0;  ///< of the core
    KvKey key;
    std::uint64_t epoch = 0;  ///< of the scope
  };

  /// \return ok, or how it would end.
  Status MayTry(const Attempt& attempt, Time now);
  /// Not to be told of what the caller broke off.
  void Ended(const Attempt& attempt, const Status& status, Time now);
  std::size_t size() const;

  static constexpr std::size_t kMost = 16384;
  static constexpr std::chrono::milliseconds kFirstPause{1'000}, kLongestPause{64'000};
  /// Stored for as long, a block was worth it.
  static constexpr std::chrono::milliseconds kLasts{60'000};

 private:
  struct Place {
    const void* core = nullptr;
    KvKey key;
    bool operator==(const Place&) const = default;
  };
  struct PlaceHash {
    std::size_t operator()(const Place& place) const {
      return std::hash<KvKey>()(place.key) ^ std::hash<const void*>()(place.core);
    }
  };
  struct Past {
    std::uint64_t start = 0, epoch = 0;
    Status status;
    std::int32_t repeated = 0;
    Time ended;
    std::list<Place>::iterator age;
  };
  using Pasts = std::unordered_map<Place, Past, PlaceHash>;
  void Forget(Pasts::iterator past);
  /// What still holds of the block's past, or end().
  Pasts::iterator Find(const Attempt& attempt, Time now);

  mutable std::mutex mutex_;
  Pasts pasts_;
  std::list<Place> oldest_first_;
};

}  // namespace inferscale

#endif  // INFERSCALE_ENGINE_VLLM_CAPTURE_HISTORY_H_
