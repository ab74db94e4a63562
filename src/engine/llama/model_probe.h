#ifndef INFERSCALE_ENGINE_LLAMA_MODEL_PROBE_H_
#define INFERSCALE_ENGINE_LLAMA_MODEL_PROBE_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "inferscale/kv_block.h"
#include "inferscale/result.h"
#include "inferscale/rope.h"
#include "llama/llama_context.h"
#include "llama/state_blob.h"

namespace inferscale {

/// What relocated KV differs by from the engine's own in one layer: length of the difference over
/// length of what is there.
struct LayerRelocation {
  double keys = 0;
  double values = 0;  ///< nothing moves values: the engine's own noise, 0 where it repeats itself
};

struct RelocationCheck {
  std::vector<LayerRelocation> layers;
  double WorstKeys() const;
  double WorstValues() const;
  /// A CPU repeats its values bit for bit. A GPU does so up to rounding, which grows from layer to
  /// layer, alike in keys and values; a wrong rotation is seen in keys alone, and a position that
  /// enters by another way than rotation in the values of the first layer.
  bool Acceptable() const;
};

/// Of keys and of the first layer's values, where the engine repeats itself: an f16 cache rounds
/// keys three times on the way (2^-11 each), and angles are f32.
inline constexpr double kRelocationTolerance = 2e-3;
inline constexpr double kLargestEngineNoise = 0.25;

/// What has to be known of a model to move its KV.
struct KvProbe {
  KvGeometry geometry;
  RopeSpec rope;
  StateShape shape;  ///< of the probed context; `streams` differs between contexts
  std::int32_t sections = 1;
  RelocationCheck relocation;
};

/// Why the KV of this model cannot be moved exactly, as far as its description tells; nothing: it
/// may.
std::optional<std::string> KvRefusal(const LlamaModel& model);

/// Learns the state format, measures the rotation and checks relocation, by decoding single tokens
/// in `context`, which is empty before and after. kUnsupported says why KV cannot be used.
Result<KvProbe> ProbeModel(LlamaContext& context, TokenId token);

/// The relocation check alone: KV captured at one position and injected at others must be what the
/// engine has there. The worst of several moves in each layer.
Result<RelocationCheck> MeasureRelocation(LlamaContext& context, const KvProbe& probe,
                                          const RopeSpec& rope, TokenId token);

/// State format of `context`, checked by a round trip: decoded, read, taken apart, laid out anew,
/// written back and read again, the bytes must be the same.
Result<StateShape> CheckStateFormat(LlamaContext& context, std::int32_t sections,
                                    const std::vector<TokenId>& tokens);

}  // namespace inferscale

#endif  // INFERSCALE_ENGINE_LLAMA_MODEL_PROBE_H_
