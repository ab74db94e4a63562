#ifndef INFERSCALE_KERNELS_CUDA_WORK_CUH_
#define INFERSCALE_KERNELS_CUDA_WORK_CUH_

/// \file work.cuh
/// What the kernels are given: the geometry, which stays, and the work of one call; and how a
/// thread block finds its part of it.
///
/// A call's tokens are cut into tiles of consecutive tokens of one fact. A thread block takes one
/// tile and one slice: the keys or the values of a layer (of all heads, or of one head).

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>

#include "kernels/kernels.h"

namespace inferscale::kernels::cuda {

inline constexpr int kThreads = 128;
inline constexpr int kWarps = kThreads / 32;
/// Elements that a lane of the vector kernels moves of a row: two chunks of kChunk.
inline constexpr int kLaneElements = 16;
inline constexpr int kChunk = 8;
/// Largest head dimension of a quantised vector capture: a lane has one chunk of a value row.
inline constexpr int kMaxGroupDim = 32 * kChunk;
/// Head dimension of most models, for which quantised injection has kernels of its own.
inline constexpr int kUsualDim = 128;

/// The keys or the values of a cache; strides in bytes.
struct CacheSide {
  std::uint8_t* const* base = nullptr;  ///< [layers], in device memory
  std::int64_t block_stride = 0, slot_stride = 0, head_stride = 0, dim_stride = 0;
};

struct Geometry {
  KvCodec codec = KvCodec::kF16;
  ScalarType type = ScalarType::kF16;
  RopePairing pairing = RopePairing::kInterleaved;
  std::int32_t layers = 0;
  std::int32_t heads = 0;
  std::int32_t key_dim = 0;
  std::int32_t value_dim = 0;
  std::uint32_t block_slots = 0;
  bool aligned = false;  ///< every element of the cache is aligned to its size
  CacheSide keys, values;
  const float* cos_sin = nullptr;             ///< device; [groups][positions][width]
  const std::int32_t* layer_group = nullptr;  ///< device; [layers]
  std::int64_t positions = 0;
  std::int32_t width = 0;
  std::int32_t processors = 0;  ///< multiprocessors of the GPU
};

/// The work of one call. Where it is small it travels in the kernel's own parameters: a copy to the
/// device would be one more operation of the stream, which the kernel would wait for.
struct Arguments {
  static constexpr std::size_t kInlineBytes = 3584;
  const std::uint8_t* device = nullptr;  ///< in device memory; nullptr: in `bytes`
  std::int32_t fact_count = 0;
  std::int32_t tile_tokens = 0;
  bool has_table = false;
  /// The facts, the first tile of each, and the block table. Set as far as it is used.
  alignas(16) std::uint8_t bytes[kInlineBytes];
};
// What every GPU and driver takes, less room for what a kernel is told besides.
static_assert(sizeof(Geometry) + sizeof(Arguments) <= 4096 - 64);

/// Where a kernel finds its Arguments' parts: in device memory or among its parameters, so that
/// they are read by plain loads, not by those of global memory (__ldg).
struct Work {
  const FactDescriptor* facts = nullptr;
  const std::int32_t* tile_begin = nullptr;   ///< [fact_count]: first tile of each fact; ascending
  const std::int32_t* block_table = nullptr;  ///< or nullptr
  std::int32_t fact_count = 0;
  std::int32_t tile_tokens = 0;  ///< 0: each key group is a tile
};

/// Sizes of a fact's segments.
struct SegmentSizes {
  std::int64_t key_bytes = 0, value_bytes = 0;
};

__host__ __device__ inline std::int64_t CodeRowBytes(KvCodec codec, std::int32_t dim) {
  switch (codec) {
    case KvCodec::kF32:
      return std::int64_t{dim} * 4;
    case KvCodec::kF16:
    case KvCodec::kBF16:
      return std::int64_t{dim} * 2;
    case KvCodec::kInt8:
      return dim;
    default:
      return (std::int64_t{dim} + 1) / 2;
  }
}

__host__ __device__ inline bool Quantised(KvCodec codec) {
  return codec == KvCodec::kInt8 || codec == KvCodec::kInt4;
}

__host__ __device__ inline std::int32_t ValueGroupsOf(std::int32_t dim) {
  return (dim + kValueGroupChannels - 1) / kValueGroupChannels;
}

/// Bytes of scales and zeros, which the codes follow.
__host__ __device__ inline std::int64_t KeyParameterBytes(KvCodec codec, std::int32_t tokens,
                                                          std::int32_t dim) {
  return Quantised(codec) ? std::int64_t{KeyGroups(tokens)} * dim * 4 : 0;
}
__host__ __device__ inline std::int64_t ValueParameterBytes(KvCodec codec, std::int32_t tokens,
                                                            std::int32_t dim) {
  return Quantised(codec) ? std::int64_t{tokens} * ValueGroupsOf(dim) * 4 : 0;
}

__host__ __device__ inline std::int64_t PaddedBytes(std::int64_t bytes) {
  constexpr std::int64_t kMask = kSegmentAlignment - 1;
  return (bytes + kMask) & ~kMask;
}

__host__ __device__ inline SegmentSizes SegmentSizesOf(KvCodec codec, std::int32_t tokens,
                                                       std::int32_t key_dim,
                                                       std::int32_t value_dim) {
  return {PaddedBytes(KeyParameterBytes(codec, tokens, key_dim) +
                      CodeRowBytes(codec, key_dim) * tokens),
          PaddedBytes(ValueParameterBytes(codec, tokens, value_dim) +
                      CodeRowBytes(codec, value_dim) * tokens)};
}

#ifdef __CUDACC__

/// \param arguments a __grid_constant__ parameter, whose address stays valid without a copy
__device__ inline Work WorkOf(const Arguments& arguments) {
  const std::uint8_t* bytes = arguments.device != nullptr ? arguments.device : arguments.bytes;
  Work work;
  work.facts = reinterpret_cast<const FactDescriptor*>(bytes);
  work.tile_begin = reinterpret_cast<const std::int32_t*>(work.facts + arguments.fact_count);
  if (arguments.has_table) work.block_table = work.tile_begin + arguments.fact_count;
  work.fact_count = arguments.fact_count;
  work.tile_tokens = arguments.tile_tokens;
  return work;
}

/// The group of a key segment that holds a token.
__device__ inline std::int32_t KeyGroupOf(std::int32_t tokens, std::int32_t token) {
  const std::int32_t groups = KeyGroups(tokens);
  if (groups == 1) return 0;
  // KeyGroupBegin(tokens, g) <= token, solved for the largest g.
  const std::uint64_t numerator = (std::uint64_t(token) + 1) * std::uint64_t(groups) - 1;
  if (numerator >> 32 == 0) {
    return static_cast<std::int32_t>(static_cast<std::uint32_t>(numerator) /
                                     static_cast<std::uint32_t>(tokens));
  }
  return static_cast<std::int32_t>(numerator / std::uint64_t(tokens));
}

/// KeyGroupBegin, by the shorter division where the numbers allow it.
__device__ inline std::int32_t FirstOfKeyGroup(std::int32_t tokens, std::int32_t group) {
  const std::int32_t groups = KeyGroups(tokens);
  if (group == 0) return 0;
  if (group == groups) return tokens;
  const std::uint64_t numerator = std::uint64_t(group) * std::uint64_t(tokens);
  if (numerator >> 32 == 0) {
    return static_cast<std::int32_t>(static_cast<std::uint32_t>(numerator) /
                                     static_cast<std::uint32_t>(groups));
  }
  return static_cast<std::int32_t>(numerator / std::uint64_t(groups));
}

/// Part of a call: tokens [first, first + count) of a descriptor, counted from its first one.
struct TokenTile {
  FactDescriptor fact;
  std::int32_t first = 0;
  std::int32_t count = 0;
  std::int32_t key_group = 0;  ///< where tiles are key groups
};

/// All threads of a warp call it together.
__device__ inline TokenTile FindTile(const Work& work, std::int32_t tile) {
  const int lane = static_cast<int>(threadIdx.x) & 31;
  // The last fact whose tiles begin at or before `tile`: a search in steps of a thirty-second.
  std::int32_t low = 0, size = work.fact_count, begin = 0;
  do {
    const std::int32_t step = (size + 31) / 32;
    const std::int32_t offset = lane * step;
    const std::int32_t probed = offset < size ? work.tile_begin[low + offset] : INT32_MAX;
    const unsigned votes = __ballot_sync(~0u, probed <= tile);
    const int last = 31 - __clz(static_cast<int>(votes));
    begin = __shfl_sync(~0u, probed, last);
    low += last * step;
    size = min(step, size - last * step);
  } while (size > 1);
  TokenTile found;
  const auto* words = reinterpret_cast<const uint4*>(work.facts + low);
  static_assert(sizeof(FactDescriptor) == 32);
  const uint4 head = words[0], tail = words[1];
  found.fact.payload =
      reinterpret_cast<std::uint8_t*>(std::uint64_t{head.x} | std::uint64_t{head.y} << 32);
  found.fact.tokens = static_cast<std::int32_t>(head.z);
  found.fact.first = static_cast<std::int32_t>(head.w);
  found.fact.count = static_cast<std::int32_t>(tail.x);
  found.fact.position = static_cast<std::int32_t>(tail.y);
  found.fact.slot = static_cast<std::int32_t>(tail.z);
  if (work.tile_tokens == 0) {
    found.key_group = tile - begin;
    found.first = FirstOfKeyGroup(found.fact.tokens, found.key_group);
    found.count = FirstOfKeyGroup(found.fact.tokens, found.key_group + 1) - found.first;
  } else {
    found.first = (tile - begin) * work.tile_tokens;
    found.count = min(work.tile_tokens, found.fact.count - found.first);
  }
  return found;
}

/// Where head 0 of a token lies in each layer of the cache.
__device__ inline std::int64_t RowOffsetOf(const Geometry& geometry, const CacheSide& side,
                                           const Work& work, const FactDescriptor& fact,
                                           std::int32_t token) {
  const std::uint32_t slot =
      static_cast<std::uint32_t>(fact.slot) + static_cast<std::uint32_t>(token);
  if (work.block_table == nullptr) return std::int64_t{slot} * side.slot_stride;
  const std::uint32_t block = slot / geometry.block_slots;
  const std::uint32_t within = slot - block * geometry.block_slots;
  return std::int64_t{work.block_table[block]} * side.block_stride +
         std::int64_t{within} * side.slot_stride;
}
__device__ inline std::uint8_t* RowOf(const Geometry& geometry, const CacheSide& side,
                                      const Work& work, std::int32_t layer,
                                      const FactDescriptor& fact, std::int32_t token) {
  return side.base[layer] + RowOffsetOf(geometry, side, work, fact, token);
}

/// Angles of a token of the layers of a group.
__device__ inline const float* AnglesOfGroup(const Geometry& geometry, std::int32_t group,
                                             const FactDescriptor& fact, std::int32_t token) {
  return geometry.cos_sin + (group * geometry.positions + fact.position + token) * geometry.width;
}

/// Angles of a token of a layer, or nullptr where the layer is not rotated.
__device__ inline const float* AnglesOf(const Geometry& geometry, std::int32_t layer,
                                        const FactDescriptor& fact, std::int32_t token) {
  const std::int32_t group = __ldg(geometry.layer_group + layer);
  return group < 0 ? nullptr : AnglesOfGroup(geometry, group, fact, token);
}

#endif  // __CUDACC__

/// Whether the vector kernels can do it; else the generic ones must.
struct VectorSupport {
  bool inject = false;
  bool capture = false;
};
VectorSupport VectorSupportOf(const Geometry& geometry, bool rows_aligned);

/// Whether a vector injection has a kernel of its own (inject_quantised.cu).
bool TakesQuantisedInject(const Geometry& geometry);

/// Tokens of a tile of the vector kernels that do not take key groups as tiles.
std::int32_t VectorTileTokens(const Geometry& geometry);
std::int32_t VectorInjectTileTokens(const Geometry& geometry);
inline constexpr std::int32_t kGenericTileTokens = 32;

/// Asynchronous; `tiles` as Work::tile_begin counts them. The vector launches need VectorSupport.
/// cudaErrorInvalidConfiguration for more tiles than a grid has blocks for.
cudaError_t LaunchVectorInject(const Geometry&, const Arguments&, std::int64_t tiles, cudaStream_t);
cudaError_t LaunchVectorCapture(const Geometry&, const Arguments&, std::int64_t tiles,
                                cudaStream_t);
/// For what TakesQuantisedInject() says yes to; LaunchVectorInject calls it.
cudaError_t LaunchQuantisedInject(const Geometry&, const Arguments&, std::int64_t tiles,
                                  cudaStream_t);
/// Of a quantised codec; LaunchVectorCapture calls it.
cudaError_t LaunchQuantisedCapture(const Geometry&, const Arguments&, std::int64_t tiles,
                                   cudaStream_t);
cudaError_t LaunchGenericInject(const Geometry&, const Arguments&, std::int64_t tiles,
                                cudaStream_t);
cudaError_t LaunchGenericCapture(const Geometry&, const Arguments&, std::int64_t tiles,
                                 cudaStream_t);
/// Load the kernels that the launches of this geometry take, which the first launch would do
/// otherwise, waiting for the device.
cudaError_t PrepareVectorInject(const Geometry&);
cudaError_t PrepareQuantisedInject(const Geometry&);
cudaError_t PrepareVectorCapture(const Geometry&);
cudaError_t PrepareQuantisedCapture(const Geometry&);
cudaError_t PrepareGeneric();

/// Loads a kernel.
template <typename Kernel>
cudaError_t Prepare(Kernel kernel) {
  cudaFuncAttributes attributes{};
  return cudaFuncGetAttributes(&attributes, reinterpret_cast<const void*>(kernel));
}

}  // namespace inferscale::kernels::cuda

#endif  // INFERSCALE_KERNELS_CUDA_WORK_CUH_
