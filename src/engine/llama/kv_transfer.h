#ifndef INFERSCALE_ENGINE_LLAMA_KV_TRANSFER_H_
#define INFERSCALE_ENGINE_LLAMA_KV_TRANSFER_H_

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "inferscale/kv_block.h"
#include "inferscale/result.h"
#include "inferscale/rope.h"
#include "llama/state_blob.h"

namespace inferscale {

/// One run of a block's tokens for a prompt.
struct BlockUse {
  const KvBlock* block = nullptr;
  std::int32_t count = 0;     ///< tokens from the block's first
  std::int32_t position = 0;  ///< of the first one
};

/// Moves KV between blocks and sequence states. Layers are numbered as states hold them: full
/// attention first, then sliding windows. Immutable; thread-safe.
class KvTransfer {
 public:
  KvTransfer(KvGeometry geometry, std::shared_ptr<const RopeTables> rope)
      : geometry_(geometry), rope_(std::move(rope)) {}

  const KvGeometry& geometry() const { return geometry_; }
  std::int32_t positions() const { return rope_->positions(); }

  /// The payload of the `tokens` tokens that a state holds at positions first … first + tokens - 1.
  /// kFailedPrecondition when a layer does not hold them all (sliding window).
  Result<std::vector<std::uint8_t>> Capture(std::span<std::uint8_t> blob, const ParsedState& state,
                                            std::int32_t first, std::int32_t tokens,
                                            KvCodec codec) const;

  /// Writes blocks into a laid-out state. Each section takes the tokens its cells stand for.
  Status Inject(std::span<std::uint8_t> blob, const ParsedState& state,
                std::span<const BlockUse> uses) const;

 private:
  KvGeometry geometry_;
  std::shared_ptr<const RopeTables> rope_;
};

}  // namespace inferscale

#endif  // INFERSCALE_ENGINE_LLAMA_KV_TRANSFER_H_
