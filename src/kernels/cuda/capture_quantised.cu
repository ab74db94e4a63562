/// \file capture_quantised.cu
/// Capture into int8 and int4. A block takes a key group of a fact, of one layer: the keys of one
/// head or the values of two. All that it reads of the cache it reads at once, into registers.
/// Ranges are taken of the numbers as they are, NaNs included; only where one turns out not to fit
/// a half are all cleaned and ranged again.

#include <algorithm>

#include "kernels/cuda/ptx.cuh"
#include "kernels/cuda/vector.cuh"
#include "kernels/cuda/work.cuh"

namespace inferscale::kernels::cuda {
namespace {

constexpr int kCaptureThreads = 256;
constexpr int kCaptureWarps = kCaptureThreads / 32;
constexpr int kColumn = 4;      ///< channels of a key row that a thread has: two and their partners
constexpr int kValueRows = 4;   ///< that a warp has under way
constexpr int kValueHeads = 2;  ///< of a block
constexpr float kLargestHalf = 65504.0f;
/// For a larger inverse the scale is no normal half.
constexpr float kCarefulInverse = 16384.0f;

__device__ float Clean(float x) {
  return x != x ? 0.0f : fminf(fmaxf(x, -kLargestHalf), kLargestHalf);
}
/// False for NaNs too.
__device__ bool FitHalves(float low, float high) {
  return low >= -kLargestHalf && high <= kLargestHalf;
}

/// What a group's codes are computed with, and what is stored of it.
struct GroupParameters {
  float zero, inverse;
  std::uint16_t stored_scale, stored_zero;

  __device__ GroupParameters(float low, float high, float levels) {
    // -0 is stored as +0, as the CPU kernels do.
    const __half zero_half = __float2half_rn(__fadd_rn(low, 0.0f));
    zero = __half2float(zero_half);
    const float exact = fmaxf(0.0f, __fdiv_rn(__fsub_rn(high, zero), levels));
    const __half scale_half = __float2half_rn(exact);
    const float scale = __half2float(scale_half);
    inverse = scale > 0.0f ? __fdiv_rn(1.0f, scale) : 0.0f;
    stored_scale = __half_as_ushort(scale_half);
    stored_zero = __half_as_ushort(zero_half);
  }
};

/// Two elements at once; a NaN stays one.
template <ScalarType kType>
__device__ std::uint32_t MinPair(std::uint32_t a, std::uint32_t b) {
  if constexpr (kType == ScalarType::kBF16) {
    const __nv_bfloat162 m = __hmin2_nan(*reinterpret_cast<const __nv_bfloat162*>(&a),
                                         *reinterpret_cast<const __nv_bfloat162*>(&b));
    return *reinterpret_cast<const std::uint32_t*>(&m);
  } else {
    const __half2 m =
        __hmin2_nan(*reinterpret_cast<const __half2*>(&a), *reinterpret_cast<const __half2*>(&b));
    return *reinterpret_cast<const std::uint32_t*>(&m);
  }
}

template <ScalarType kType>
__device__ float2 DecodePair(std::uint32_t word) {
  if constexpr (kType == ScalarType::kBF16) {
    return {__uint_as_float(word << 16), __uint_as_float(word & 0xffff0000u)};
  } else {
    return __half22float2(*reinterpret_cast<const __half2*>(&word));
  }
}

/// A code as the last bits of 2^23 + code. Fast() is for numbers that fit halves and a scale that
/// is a normal half, rounded by so little that the largest number's code is still the last one.
template <KvCodec kCodec>
struct Quantiser {
  static constexpr float kLevels = kCodec == KvCodec::kInt4 ? 15.0f : 255.0f;
  /// Above every code, and a power of two: what saturates at one is scaled exactly.
  static constexpr float kTop = kCodec == KvCodec::kInt4 ? 16.0f : 256.0f;
  static constexpr std::uint32_t kBase = kCodec == KvCodec::kInt4 ? 16u : 256u;

  static __device__ std::uint32_t Fast(float x, float zero, float inverse_of_top) {
    const float part = __saturatef(__fmul_rn(__fsub_rn(x, zero), inverse_of_top));
    return __float_as_uint(__fmaf_rn(part, kTop, 8388608.0f));
  }
  static __device__ std::uint32_t Careful(float x, float zero, float inverse) {
    const float code = fminf(fmaxf(__fmul_rn(__fsub_rn(Clean(x), zero), inverse), 0.0f), kLevels);
    return __float_as_uint(__fadd_rn(code, 8388608.0f));
  }
};

/// What a block's threads tell each other of a key group.
struct KeyShared {
  float low[kCaptureThreads * kColumn], high[kCaptureThreads * kColumn];  ///< [rows at once][dim]
  float zeros[kMaxGroupDim], inverses[kMaxGroupDim];
  uint4 codes[kMaxKeyGroupTokens * kMaxGroupDim / sizeof(uint4)];
};

/// The block's threads lie side by side over some rows; each has the same channels of kRows rows.
template <KvCodec kCodec, ScalarType kType, RopePairing kPairing, int kRows>
__device__ void CaptureKeys(const Geometry& geometry, const TokenTile& tile, std::int32_t layer,
                            std::int32_t head, std::uint8_t* segment,
                            const std::uint8_t* const* cache_rows, KeyShared& shared) {
  using Codes = Quantiser<kCodec>;
  const int dim = geometry.key_dim, thread = static_cast<int>(threadIdx.x);
  const int columns = dim / kColumn, rows_at_once = kCaptureThreads / columns;
  const int first_row = thread / columns, column = thread - first_row * columns;
  const int count = first_row < rows_at_once ? tile.count : 0;  // else the thread has no row
  const std::int32_t group = __ldg(geometry.layer_group + layer);
  const bool rotated = group >= 0 && kColumn * column < geometry.width;
  int a = kColumn * column, b = a + 2;
  if (kPairing == RopePairing::kHalf && rotated) {
    a = 2 * column;
    b = a + geometry.width / 2;
  }

  std::uint32_t raw[kRows][2];
  float4 angles[kRows];
#pragma unroll
  for (int i = 0; i < kRows; ++i) {
    const int row = first_row + i * rows_at_once;
    if (row >= count) continue;
    const std::uint8_t* cache = cache_rows[row] + head * geometry.keys.head_stride;
    raw[i][0] = __ldcs(reinterpret_cast<const std::uint32_t*>(cache + 2 * a));
    raw[i][1] = __ldcs(reinterpret_cast<const std::uint32_t*>(cache + 2 * b));
    if (rotated) {
      const float* from = AnglesOfGroup(geometry, group, tile.fact, tile.first + row);
      // A pair's two angles lie side by side; with halves paired a pair's number is its first
      // row's.
      angles[i] = __ldg(
          reinterpret_cast<const float4*>(from + (kPairing == RopePairing::kHalf ? 2 * a : a)));
    }
  }
  float x[kRows][kColumn];
#pragma unroll
  for (int i = 0; i < kRows; ++i) {
    if (first_row + i * rows_at_once >= count) continue;
    const float2 first = DecodePair<kType>(raw[i][0]), second = DecodePair<kType>(raw[i][1]);
    x[i][0] = first.x, x[i][1] = first.y, x[i][2] = second.x, x[i][3] = second.y;
    if (!rotated) continue;
    constexpr int kPartner = kPairing == RopePairing::kHalf ? 2 : 1;
    RotatePair<true>(x[i][0], x[i][kPartner], angles[i].x, angles[i].y);
    RotatePair<true>(x[i][3 - kPartner], x[i][3], angles[i].z, angles[i].w);
  }

  const std::int32_t groups = KeyGroups(tile.fact.tokens);
  auto* stored_scales =
      reinterpret_cast<std::uint16_t*>(segment) + std::int64_t{tile.key_group} * dim;
  auto* stored_zeros = stored_scales + std::int64_t{groups} * dim;
  while (true) {
    if (first_row < count) {
      float low[kColumn], high[kColumn];
#pragma unroll
      for (int c = 0; c < kColumn; ++c) low[c] = high[c] = x[0][c];
#pragma unroll
      for (int i = 1; i < kRows; ++i) {
        if (first_row + i * rows_at_once >= count) continue;
#pragma unroll
        for (int c = 0; c < kColumn; ++c) {
          low[c] = MinNan(low[c], x[i][c]);
          high[c] = MaxNan(high[c], x[i][c]);
        }
      }
      const auto store = [&](float* to, const float* from) {
        *reinterpret_cast<float2*>(to + first_row * dim + a) = {from[0], from[1]};
        *reinterpret_cast<float2*>(to + first_row * dim + b) = {from[2], from[3]};
      };
      store(shared.low, low);
      store(shared.high, high);
    }
    __syncthreads();
    bool unclean = false;
    if (thread < dim) {
      float low = shared.low[thread], high = shared.high[thread];
      const int rows = min(rows_at_once, tile.count);
#pragma unroll 8
      for (int row = 1; row < rows; ++row) {
        low = MinNan(low, shared.low[row * dim + thread]);
        high = MaxNan(high, shared.high[row * dim + thread]);
      }
      unclean = !FitHalves(low, high);
      const GroupParameters parameters(low, high, Codes::kLevels);
      shared.zeros[thread] = parameters.zero;
      shared.inverses[thread] = parameters.inverse;
      if (!unclean) {
        stored_scales[thread] = parameters.stored_scale;
        stored_zeros[thread] = parameters.stored_zero;
      }
    }
    if (!__syncthreads_or(unclean)) break;
#pragma unroll
    for (int i = 0; i < kRows; ++i) {
#pragma unroll
      for (int c = 0; c < kColumn; ++c) x[i][c] = Clean(x[i][c]);
    }
  }

  const auto row_bytes = static_cast<std::int32_t>(CodeRowBytes(kCodec, dim));
  if (first_row < count) {
    const auto load = [&](const float* from, float* four) {
      const float2 first = *reinterpret_cast<const float2*>(from + a);
      const float2 second = *reinterpret_cast<const float2*>(from + b);
      four[0] = first.x, four[1] = first.y, four[2] = second.x, four[3] = second.y;
    };
    float zeros[kColumn], inverses[kColumn], of_top[kColumn];
    load(shared.zeros, zeros);
    load(shared.inverses, inverses);
    const bool careful =
        fmaxf(fmaxf(inverses[0], inverses[1]), fmaxf(inverses[2], inverses[3])) > kCarefulInverse;
#pragma unroll
    for (int c = 0; c < kColumn; ++c) of_top[c] = __fmul_rn(inverses[c], 1.0f / Codes::kTop);
#pragma unroll
    for (int i = 0; i < kRows; ++i) {
      const int row = first_row + i * rows_at_once;
      if (row >= count) continue;
      std::uint32_t code[kColumn];
      if (careful) {
#pragma unroll
        for (int c = 0; c < kColumn; ++c) code[c] = Codes::Careful(x[i][c], zeros[c], inverses[c]);
      } else {
#pragma unroll
        for (int c = 0; c < kColumn; ++c) code[c] = Codes::Fast(x[i][c], zeros[c], of_top[c]);
      }
      const std::uint32_t pair_a = code[0] + Codes::kBase * code[1];
      const std::uint32_t pair_b = code[2] + Codes::kBase * code[3];
      std::uint8_t* to = reinterpret_cast<std::uint8_t*>(shared.codes) + row * row_bytes;
      if constexpr (kCodec == KvCodec::kInt4) {
        to[a / 2] = static_cast<std::uint8_t>(pair_a);
        to[b / 2] = static_cast<std::uint8_t>(pair_b);
      } else {
        *reinterpret_cast<std::uint16_t*>(to + a) = static_cast<std::uint16_t>(pair_a);
        *reinterpret_cast<std::uint16_t*>(to + b) = static_cast<std::uint16_t>(pair_b);
      }
    }
  }
  __syncthreads();
  constexpr int kUnit = sizeof(uint4);
  auto* codes =
      reinterpret_cast<uint4*>(segment + KeyParameterBytes(kCodec, tile.fact.tokens, dim) +
                               std::int64_t{tile.first} * row_bytes);
  for (int i = thread; i < tile.count * row_bytes / kUnit; i += kCaptureThreads) {
    __stcs(codes + i, shared.codes[i]);
  }
}

/// Four neighbouring lanes have a group of a token's channels; each computes the parameters of one
/// of their four rows.
template <KvCodec kCodec, ScalarType kType>
__device__ void CaptureValues(const Geometry& geometry, const TokenTile& tile,
                              std::int32_t first_head, std::int32_t heads, std::uint8_t* segments,
                              std::int64_t stride, const std::uint8_t* const* cache_rows) {
  using Codes = Quantiser<kCodec>;
  constexpr int kGroupLanes = kValueGroupChannels / kChunk;
  static_assert(kGroupLanes == kValueRows);
  const int dim = geometry.value_dim;
  const std::int32_t tokens = tile.fact.tokens, groups = dim / kValueGroupChannels;
  const int lane = static_cast<int>(threadIdx.x) & 31, warp = static_cast<int>(threadIdx.x) >> 5;
  const int chunks = dim / kChunk, rows_per_warp = 32 / chunks;
  const int lane_row = lane / chunks, chunk = lane - lane_row * chunks;
  const int own = lane % kGroupLanes;
  const std::int32_t row_bytes = static_cast<std::int32_t>(CodeRowBytes(kCodec, dim));
  const int unit_rows = kValueRows * rows_per_warp;
  const int units_of_head = (tile.count + unit_rows - 1) / unit_rows;
  for (int unit = warp; unit < heads * units_of_head; unit += kCaptureWarps) {
    const int head = unit / units_of_head;
    const int first = (unit - head * units_of_head) * unit_rows + lane_row;
    const auto active = [&](int i) {
      return lane_row < rows_per_warp && first + i * rows_per_warp < tile.count;
    };
    std::uint8_t* segment = segments + head * stride;
    uint4 raw[kValueRows];
#pragma unroll
    for (int i = 0; i < kValueRows; ++i) {
      raw[i] = {0, 0, 0, 0};
      if (!active(i)) continue;
      const std::uint8_t* cache =
          cache_rows[first + i * rows_per_warp] + (first_head + head) * geometry.values.head_stride;
      raw[i] = __ldcs(reinterpret_cast<const uint4*>(cache + 2 * kChunk * chunk));
    }
    // The smallest number and the largest one's opposite, as a pair.
    std::uint32_t range = 0;
#pragma unroll
    for (int i = 0; i < kValueRows; ++i) {
      constexpr std::uint32_t kSigns = 0x80008000u;
      const uint4& r = raw[i];
      const std::uint32_t low = MinPair<kType>(MinPair<kType>(r.x, r.y), MinPair<kType>(r.z, r.w));
      const std::uint32_t high = MinPair<kType>(MinPair<kType>(r.x ^ kSigns, r.y ^ kSigns),
                                                MinPair<kType>(r.z ^ kSigns, r.w ^ kSigns));
      std::uint32_t both =
          MinPair<kType>(__byte_perm(low, high, 0x5410), __byte_perm(low, high, 0x7632));
#pragma unroll
      for (int distance = 1; distance < kGroupLanes; distance *= 2) {
        both = MinPair<kType>(both, __shfl_xor_sync(~0u, both, distance));
      }
      if (i == own) range = both;
    }
    float2 ends = DecodePair<kType>(range);
    ends.y = -ends.y;
    const bool unclean = __any_sync(~0u, !FitHalves(ends.x, ends.y));
    if (unclean) {
#pragma unroll
      for (int i = 0; i < kValueRows; ++i) {
        float x[kChunk];
        Chunk8<kType>::Decode(raw[i], x);
        float low = Clean(x[0]), high = low;
#pragma unroll
        for (int c = 1; c < kChunk; ++c) {
          low = fminf(low, Clean(x[c]));
          high = fmaxf(high, Clean(x[c]));
        }
#pragma unroll
        for (int distance = 1; distance < kGroupLanes; distance *= 2) {
          low = fminf(low, __shfl_xor_sync(~0u, low, distance));
          high = fmaxf(high, __shfl_xor_sync(~0u, high, distance));
        }
        if (i == own) ends = {low, high};
      }
    }
    const GroupParameters parameters(ends.x, ends.y, Codes::kLevels);
    if (active(own)) {
      auto* stored = reinterpret_cast<std::uint16_t*>(segment) +
                     std::int64_t{tile.first + first + own * rows_per_warp} * groups +
                     chunk / kGroupLanes;
      stored[0] = parameters.stored_scale;
      stored[std::int64_t{tokens} * groups] = parameters.stored_zero;
    }
    std::uint8_t* codes = segment + ValueParameterBytes(kCodec, tokens, dim);
#pragma unroll
    for (int i = 0; i < kValueRows; ++i) {
      const int from = lane - own + i;
      const float zero = __shfl_sync(~0u, parameters.zero, from);
      const float inverse = __shfl_sync(~0u, parameters.inverse, from);
      if (!active(i)) continue;
      float x[kChunk];
      Chunk8<kType>::Decode(raw[i], x);
      std::uint32_t code[kChunk];
      if (unclean || inverse > kCarefulInverse) {
#pragma unroll
        for (int c = 0; c < kChunk; ++c) code[c] = Codes::Careful(x[c], zero, inverse);
      } else {
        const float of_top = __fmul_rn(inverse, 1.0f / Codes::kTop);
#pragma unroll
        for (int c = 0; c < kChunk; ++c) code[c] = Codes::Fast(x[c], zero, of_top);
      }
      const std::int64_t token = tile.first + first + i * rows_per_warp;
      std::uint8_t* to = codes + token * row_bytes;
      if constexpr (kCodec == KvCodec::kInt4) {
        std::uint32_t word = code[7];
#pragma unroll
        for (int c = 6; c >= 0; --c) word = word * 16u + code[c];
        // What the exponents of the first two have added.
        __stcs(reinterpret_cast<std::uint32_t*>(to) + chunk, word - 0xfb000000u);
      } else {
        const auto pack = [&](int at) {
          return code[at] + 256u * (code[at + 1] + 256u * (code[at + 2] + 256u * code[at + 3])) -
                 0x4b000000u;
        };
        auto* words = reinterpret_cast<std::uint32_t*>(to) + 2 * chunk;
        if (groups % 2 == 0) {
          __stcs(reinterpret_cast<uint2*>(words), uint2{pack(0), pack(4)});
        } else {
          words[0] = pack(0), words[1] = pack(4);
        }
      }
    }
  }
}

/// Blocks of a tile's layer.
__host__ __device__ inline std::uint32_t PartsOf(const Geometry& geometry) {
  return static_cast<std::uint32_t>(geometry.heads +
                                    (geometry.heads + kValueHeads - 1) / kValueHeads);
}

template <KvCodec kCodec, ScalarType kType, RopePairing kPairing, int kRows, int kBlocks>
__global__ __launch_bounds__(kCaptureThreads, kBlocks) void CaptureQuantisedKernel(
    const Geometry geometry, const __grid_constant__ Arguments arguments) {
  __shared__ const std::uint8_t* cache_rows[kMaxKeyGroupTokens];
  __shared__ KeyShared shared;
  const Work work = WorkOf(arguments);
  const auto layers = static_cast<std::uint32_t>(geometry.layers);
  const std::uint32_t parts = PartsOf(geometry);
  const std::uint32_t tile_layer = blockIdx.x / parts;
  const auto part = static_cast<std::int32_t>(blockIdx.x - tile_layer * parts);
  const std::uint32_t tile_number = tile_layer / layers;
  const auto layer = static_cast<std::int32_t>(tile_layer - tile_number * layers);
  const bool values = part >= geometry.heads;
  const std::int32_t first_head = values ? (part - geometry.heads) * kValueHeads : part;
  const std::int32_t heads = values ? min(kValueHeads, geometry.heads - first_head) : 1;
  const TokenTile tile = FindTile(work, static_cast<std::int32_t>(tile_number));
  const FactDescriptor& fact = tile.fact;
  const int thread = static_cast<int>(threadIdx.x);
  if (thread < tile.count) {
    cache_rows[thread] = RowOf(geometry, values ? geometry.values : geometry.keys, work, layer,
                               fact, tile.first + thread);
  }
  const SegmentSizes sizes =
      SegmentSizesOf(kCodec, fact.tokens, geometry.key_dim, geometry.value_dim);
  const std::int64_t stride = sizes.key_bytes + sizes.value_bytes;
  std::uint8_t* segments = fact.payload +
                           stride * (std::int64_t{geometry.heads} * layer + first_head) +
                           (values ? sizes.key_bytes : 0);
  const int dim = values ? geometry.value_dim : geometry.key_dim;
  if (tile.first + tile.count == fact.tokens && thread < static_cast<int>(kSegmentAlignment)) {
    const std::int64_t used = (values ? ValueParameterBytes(kCodec, fact.tokens, dim)
                                      : KeyParameterBytes(kCodec, fact.tokens, dim)) +
                              CodeRowBytes(kCodec, dim) * fact.tokens;
    if (used + thread < PaddedBytes(used)) {
      for (std::int32_t h = 0; h < heads; ++h) segments[h * stride + used + thread] = 0;
    }
  }
  __syncthreads();
  if (values) {
    CaptureValues<kCodec, kType>(geometry, tile, first_head, heads, segments, stride, cache_rows);
  } else {
    CaptureKeys<kCodec, kType, kPairing, kRows>(geometry, tile, layer, first_head, segments,
                                                cache_rows, shared);
  }
}

using Kernel = void (*)(Geometry, Arguments);

/// Rows of a thread, and blocks that a processor then has the registers for.
template <KvCodec kCodec, ScalarType kType, RopePairing kPairing>
Kernel WithRows(std::int32_t key_dim) {
  static_assert(kMaxKeyGroupTokens <= 6 * (kCaptureThreads * kColumn / 128) &&
                kMaxKeyGroupTokens <= 12 * (kCaptureThreads * kColumn / kMaxGroupDim));
  return key_dim <= 128 ? CaptureQuantisedKernel<kCodec, kType, kPairing, 6, 4>
                        : CaptureQuantisedKernel<kCodec, kType, kPairing, 12, 2>;
}

template <KvCodec kCodec, ScalarType kType>
Kernel WithPairing(const Geometry& geometry) {
  return geometry.pairing == RopePairing::kHalf
             ? WithRows<kCodec, kType, RopePairing::kHalf>(geometry.key_dim)
             : WithRows<kCodec, kType, RopePairing::kInterleaved>(geometry.key_dim);
}

template <KvCodec kCodec>
Kernel WithType(const Geometry& geometry) {
  return geometry.type == ScalarType::kBF16 ? WithPairing<kCodec, ScalarType::kBF16>(geometry)
                                            : WithPairing<kCodec, ScalarType::kF16>(geometry);
}

Kernel KernelFor(const Geometry& geometry) {
  return geometry.codec == KvCodec::kInt8 ? WithType<KvCodec::kInt8>(geometry)
                                          : WithType<KvCodec::kInt4>(geometry);
}

}  // namespace

cudaError_t PrepareQuantisedCapture(const Geometry& geometry) {
  return Prepare(KernelFor(geometry));
}

cudaError_t LaunchQuantisedCapture(const Geometry& geometry, const Arguments& arguments,
                                   std::int64_t tiles, cudaStream_t stream) {
  const std::int64_t blocks = tiles * geometry.layers * std::int64_t{PartsOf(geometry)};
  if (blocks > INT32_MAX) return cudaErrorInvalidConfiguration;
  const Kernel kernel = KernelFor(geometry);
  kernel<<<static_cast<unsigned>(blocks), kCaptureThreads, 0, stream>>>(geometry, arguments);
  return cudaGetLastError();
}

}  // namespace inferscale::kernels::cuda
