#ifndef INFERSCALE_ENGINE_LLAMA_SEQUENCE_CACHE_H_
#define INFERSCALE_ENGINE_LLAMA_SEQUENCE_CACHE_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "inferscale/types.h"

namespace inferscale {

/// What each sequence of the serving context holds: nothing, a running generation, or the KV of a
/// finished one, kept for a prompt that begins the same way under the same salt. Not thread-safe.
class SequenceCache {
 public:
  explicit SequenceCache(std::int32_t sequences) : slots_(static_cast<std::size_t>(sequences)) {}

  struct Prefix {
    std::int32_t sequence = -1;
    std::int32_t tokens = 0;  ///< how many of its tokens the prompt shares and may keep
  };

  /// The cached sequence of this salt that saves most; at most `limit` tokens. A prompt that ends
  /// inside a cached one keeps it only to where that prompt's last computed run began, if that is
  /// near, so that the same request computes the same batches and gives the same answer.
  Prefix FindPrefix(const TokenIds& prompt, const std::string& salt, std::int32_t limit) const;

  /// An empty sequence, else the cached one unused for longest; -1: all are running.
  std::int32_t FindRoom() const;
  bool IsCached(std::int32_t sequence) const { return slots_[sequence].state == State::kCached; }

  void Occupy(std::int32_t sequence) {
    slots_[sequence] = {};
    slots_[sequence].state = State::kRunning;
  }
  /// Keeps a finished sequence. \param ids tokens whose KV it holds, in order
  /// \param starts positions where computed runs of the prompt began \param prompt_tokens its
  /// length
  void Keep(std::int32_t sequence, TokenIds ids, std::string salt,
            std::vector<std::uint64_t> scope_tags, std::vector<std::int32_t> starts,
            std::int32_t prompt_tokens);
  void Free(std::int32_t sequence) { slots_[sequence] = {}; }
  /// Cached sequences of a scope.
  std::vector<std::int32_t> CachedOf(std::uint64_t scope_tag) const;

 private:
  enum class State { kFree, kRunning, kCached };
  struct Slot {
    State state = State::kFree;
    TokenIds ids;
    std::string salt;
    std::vector<std::uint64_t> scope_tags;
    std::vector<std::int32_t> starts;
    std::int32_t prompt_tokens = 0;
    std::uint64_t used = 0;
  };
  std::vector<Slot> slots_;
  std::uint64_t uses_ = 0;
};

}  // namespace inferscale

#endif  // INFERSCALE_ENGINE_LLAMA_SEQUENCE_CACHE_H_
