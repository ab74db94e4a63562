#ifndef INFERSCALE_ROPE_H_
#define INFERSCALE_ROPE_H_

/// \file rope.h
/// RopeSpec: how a model rotates its keys with position. Immutable after construction and safe to
/// share between threads. Guarantees that un-rotating and rotating with the same spec are inverse
/// up to f32 rounding. A magnitude factor (YaRN's attention factor) is left inside the keys: it
/// does not depend on position.

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "inferscale/kv_formats.h"
#include "inferscale/result.h"

namespace inferscale {

/// Angles of one group of layers: pair i of a key at position p turns by p · inverse_frequency[i].
struct RopeGroup {
  std::vector<double> inverse_frequency;  ///< [width / 2], radians a position
};

struct RopeSpec {
  RopePairing pairing = RopePairing::kInterleaved;
  std::int32_t width = 0;  ///< rotated elements per head; the rest is left alone
  std::vector<RopeGroup> groups;
  std::vector<std::int32_t> layer_group;  ///< [layers]; -1: this layer is not rotated

  /// Checks the shapes against each other. \param key_dim elements of a key per head.
  Status Validate(std::int32_t layers, std::int32_t key_dim) const;
};

/// Keys of one token decoded alone at several positions, as read from the engine's cache.
struct RopeProbe {
  std::int32_t position = 0;
  std::vector<float> keys;  ///< [layers][kv_heads][key_dim], rotated
};

/// Measures a RopeSpec from probes of the same token at positions 0, 1, 4, 16, … (each at most 4
/// times the one before, so that phases unwrap). \return kUnsupported, saying which layer and pair,
/// when the keys are not a rotation of the first probe's keys within the cache's own precision.
Result<RopeSpec> MeasureRope(std::span<const RopeProbe> probes, std::int32_t layers,
                             std::int32_t kv_heads, std::int32_t key_dim);

/// The same from a configuration. `scaling` factors divide the frequency of pair i; empty: none.
RopeGroup MakeRopeGroup(double base, std::int32_t width, std::span<const double> scaling = {});

/// Cosine and sine of every position below `positions`, laid out for the kernels
/// ([groups][positions][width/2][2], f32). Shared by all threads.
class RopeTables {
 public:
  static Result<std::shared_ptr<const RopeTables>> Create(const RopeSpec& spec,
                                                          std::int32_t positions);
  const RopeSpec& spec() const { return spec_; }
  std::int32_t positions() const { return positions_; }
  const std::vector<float>& cos_sin() const { return cos_sin_; }
  std::size_t MemorySizeBytes() const;

 private:
  RopeSpec spec_;
  std::int32_t positions_ = 0;
  std::vector<float> cos_sin_;
};

/// Largest relative error between `expected` and `keys` after rotating `keys` from position `from`
/// to position `to`, over all layers: the relocation check. Shapes as RopeProbe::keys.
double RelocationError(const RopeSpec& spec, std::span<const float> keys, std::int32_t from,
                       std::span<const float> expected, std::int32_t to, std::int32_t layers,
                       std::int32_t kv_heads, std::int32_t key_dim);

}  // namespace inferscale

#endif  // INFERSCALE_ROPE_H_
