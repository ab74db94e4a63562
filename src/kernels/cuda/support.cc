#include <algorithm>

#include "kernels/cuda/work.cuh"

namespace inferscale::kernels::cuda {
namespace {

bool VectorDim(std::int32_t dim) { return dim % kLaneElements == 0 && dim <= 32 * kLaneElements; }

}  // namespace

VectorSupport VectorSupportOf(const Geometry& geometry, bool rows_aligned) {
  VectorSupport support;
  if (!rows_aligned || geometry.type == ScalarType::kF32 || geometry.codec == KvCodec::kF32 ||
      !VectorDim(geometry.key_dim) || !VectorDim(geometry.value_dim) ||
      geometry.width % kLaneElements != 0) {
    return support;
  }
  // Eight int8 codes are read at once, and begin where the values' scales and zeros end.
  support.inject = geometry.codec != KvCodec::kInt8 || ValueGroupsOf(geometry.value_dim) % 2 == 0;
  support.capture = true;
  if (Quantised(geometry.codec)) {
    const auto fits = [](std::int32_t dim) {
      return dim % kValueGroupChannels == 0 && dim <= kMaxGroupDim;
    };
    support.capture = fits(geometry.key_dim) && fits(geometry.value_dim);
  }
  return support;
}

std::int32_t VectorTileTokens(const Geometry& geometry) {
  const auto rows_per_warp = [](std::int32_t dim) { return 32 / (dim / kLaneElements); };
  return kWarps * std::min(rows_per_warp(geometry.key_dim), rows_per_warp(geometry.value_dim));
}

bool TakesQuantisedInject(const Geometry& geometry) {
  return Quantised(geometry.codec) && geometry.pairing == RopePairing::kHalf &&
         geometry.key_dim == kUsualDim && geometry.value_dim == kUsualDim &&
         geometry.width == kUsualDim;
}

std::int32_t VectorInjectTileTokens(const Geometry& geometry) {
  const std::int32_t tokens = VectorTileTokens(geometry);
  return TakesQuantisedInject(geometry) ? tokens / kWarps : tokens;
}

}  // namespace inferscale::kernels::cuda
