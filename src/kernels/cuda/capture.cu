#include <algorithm>

#include "kernels/cuda/vector.cuh"
#include "kernels/cuda/work.cuh"

namespace inferscale::kernels::cuda {
namespace {

constexpr int kHeadsAtOnce = 4;

/// A lane's chunks of all heads, from the cache into a payload of a plain codec.
template <KvCodec kCodec, ScalarType kType, bool kCopies, typename Rotate>
__device__ void CaptureHeads(const std::uint8_t* cache, std::int64_t head_stride, std::uint8_t* row,
                             std::int64_t segment_stride, std::int32_t heads,
                             const LaneColumns& columns, Rotate rotate) {
  struct Raw {
    uint4 a, b;
  };
  const auto load = [&](std::int32_t head) -> Raw {
    const std::uint8_t* from = cache + head * head_stride;
    return {__ldg(reinterpret_cast<const uint4*>(from + 2 * columns.a)),
            __ldg(reinterpret_cast<const uint4*>(from + 2 * columns.b))};
  };
  Raw raw[kHeadsAtOnce];
#pragma unroll
  for (int i = 0; i < kHeadsAtOnce; ++i) {
    if (i < heads) raw[i] = load(i);
  }
  for (std::int32_t head = 0; head < heads; head += kHeadsAtOnce) {
#pragma unroll
    for (int i = 0; i < kHeadsAtOnce; ++i) {
      if (head + i >= heads) break;
      Raw moved = raw[i];
      if constexpr (!kCopies) {
        float x[kChunk], y[kChunk];
        Chunk8<kType>::Decode(moved.a, x);
        Chunk8<kType>::Decode(moved.b, y);
        rotate(x, y);
        moved = {Chunk8<PlainType(kCodec)>::Encode(x), Chunk8<PlainType(kCodec)>::Encode(y)};
      }
      // Loaded again as soon as they are free: several heads are always under way.
      if (head + i + kHeadsAtOnce < heads) raw[i] = load(head + i + kHeadsAtOnce);
      std::uint8_t* to = row + (head + i) * segment_stride;
      __stcs(reinterpret_cast<uint4*>(to + 2 * columns.a), moved.a);
      __stcs(reinterpret_cast<uint4*>(to + 2 * columns.b), moved.b);
    }
  }
}

template <KvCodec kCodec, ScalarType kType, RopePairing kPairing>
__global__ __launch_bounds__(kThreads, 5) void CapturePlainKernel(
    const Geometry geometry, const __grid_constant__ Arguments arguments) {
  const Work work = WorkOf(arguments);
  const LanePlace place = FindLane(geometry, work);
  if (!place.active) return;
  constexpr bool kSame = PlainType(kCodec) == kType;
  const FactDescriptor& fact = place.tile.fact;
  const SegmentSizes sizes =
      SegmentSizesOf(kCodec, fact.tokens, geometry.key_dim, geometry.value_dim);
  const std::int64_t stride = sizes.key_bytes + sizes.value_bytes;
  std::uint8_t* row = fact.payload + stride * geometry.heads * place.layer +
                      (place.values ? sizes.key_bytes : 0) +
                      std::int64_t{place.token} * place.dim * 2;
  const CacheSide& side = place.values ? geometry.values : geometry.keys;
  const std::uint8_t* cache = RowOf(geometry, side, work, place.layer, fact, place.token);
  const float* cos_sin =
      place.values ? nullptr : AnglesOf(geometry, place.layer, fact, place.token);
  if (cos_sin == nullptr) {
    CaptureHeads<kCodec, kType, kSame>(cache, side.head_stride, row, stride, geometry.heads,
                                       PlainColumns(place.column, place.dim),
                                       [](float*, float*) {});
    return;
  }
  const LaneColumns columns = RotatedColumns<kPairing>(place.column, place.dim, geometry.width);
  LaneAngles angles;
  angles.Load<kPairing>(cos_sin, columns);
  CaptureHeads<kCodec, kType, false>(
      cache, side.head_stride, row, stride, geometry.heads, columns,
      [&](float* x, float* y) { RotateChunks<kPairing, true>(x, y, angles, columns); });
}

__device__ float Clean(float x) { return x != x ? 0.0f : fminf(fmaxf(x, -65504.0f), 65504.0f); }

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

__device__ std::uint32_t Quantise(float x, float zero, float inverse, float levels) {
  const float code = fminf(fmaxf(__fmul_rn(__fsub_rn(x, zero), inverse), 0.0f), levels);
  // Rounds to nearest even into the last bits.
  return __float_as_uint(__fadd_rn(code, 8388608.0f)) & 0xffu;
}

/// \param codes [kChunk] \param to where the codes of eight elements go
template <KvCodec kCodec>
__device__ void StoreCodes(const std::uint32_t* codes, std::uint8_t* to) {
  if constexpr (kCodec == KvCodec::kInt4) {
    std::uint32_t word = 0;
#pragma unroll
    for (int i = 0; i < kChunk; ++i) word |= codes[i] << (4 * i);
    *reinterpret_cast<std::uint32_t*>(to) = word;
  } else {
    std::uint32_t low = 0, high = 0;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      low |= codes[i] << (8 * i);
      high |= codes[4 + i] << (8 * i);
    }
    // Values' codes begin at a multiple of four bytes.
    reinterpret_cast<std::uint32_t*>(to)[0] = low;
    reinterpret_cast<std::uint32_t*>(to)[1] = high;
  }
}

/// A thread block's part of a quantised capture: one key group of a fact, one side of a layer, one
/// head.
struct GroupPlace {
  TokenTile tile;
  std::int32_t layer, head;
  bool values;
};

template <ScalarType kType>
__device__ void LoadRow(const std::uint8_t* row, const LaneColumns& columns, float* x, float* y) {
  Chunk8<kType>::Decode(__ldg(reinterpret_cast<const uint4*>(row + 2 * columns.a)), x);
  Chunk8<kType>::Decode(__ldg(reinterpret_cast<const uint4*>(row + 2 * columns.b)), y);
}

__device__ void StoreShared(float* to, const float* x) {
#pragma unroll
  for (int i = 0; i < kChunk; i += 4) {
    *reinterpret_cast<float4*>(to + i) =
        make_float4(Clean(x[i]), Clean(x[i + 1]), Clean(x[i + 2]), Clean(x[i + 3]));
  }
}

/// Un-rotated rows go to shared memory; then each channel is ranged over them, then encoded.
/// \param shared [kMaxKeyGroupTokens + 2][key_dim]
template <KvCodec kCodec, ScalarType kType, RopePairing kPairing>
__device__ void CaptureKeyGroup(const Geometry& geometry, const Work& work, const GroupPlace& place,
                                std::uint8_t* segment, float* shared) {
  constexpr float kLevels = kCodec == KvCodec::kInt4 ? 15.0f : 255.0f;
  const int dim = geometry.key_dim, thread = static_cast<int>(threadIdx.x);
  const TokenTile& tile = place.tile;
  const int lanes_per_row = dim / kLaneElements;
  const int rows_at_once = kThreads / lanes_per_row;
  const int column = thread % lanes_per_row;
  for (int row = thread / lanes_per_row; row < tile.count; row += rows_at_once) {
    if (thread / lanes_per_row >= rows_at_once) break;
    const std::int32_t token = tile.first + row;
    const std::uint8_t* cache =
        RowOf(geometry, geometry.keys, work, place.layer, tile.fact, token) +
        place.head * geometry.keys.head_stride;
    const float* cos_sin = AnglesOf(geometry, place.layer, tile.fact, token);
    const LaneColumns columns = cos_sin == nullptr
                                    ? PlainColumns(column, dim)
                                    : RotatedColumns<kPairing>(column, dim, geometry.width);
    float x[kChunk], y[kChunk];
    LoadRow<kType>(cache, columns, x, y);
    if (cos_sin != nullptr) {
      LaneAngles angles;
      angles.Load<kPairing>(cos_sin, columns);
      RotateChunks<kPairing, true>(x, y, angles, columns);
    }
    StoreShared(shared + row * dim + columns.a, x);
    StoreShared(shared + row * dim + columns.b, y);
  }
  __syncthreads();

  float* zeros = shared + kMaxKeyGroupTokens * dim;
  float* inverses = zeros + dim;
  const std::int32_t groups = KeyGroups(tile.fact.tokens);
  auto* stored_scales =
      reinterpret_cast<std::uint16_t*>(segment) + std::int64_t{tile.key_group} * dim;
  auto* stored_zeros = stored_scales + std::int64_t{groups} * dim;
  for (int channel = thread; channel < dim; channel += kThreads) {
    float low = shared[channel], high = low;
    for (int row = 1; row < tile.count; ++row) {
      const float x = shared[row * dim + channel];
      low = fminf(low, x);
      high = fmaxf(high, x);
    }
    const GroupParameters parameters(low, high, kLevels);
    zeros[channel] = parameters.zero;
    inverses[channel] = parameters.inverse;
    stored_scales[channel] = parameters.stored_scale;
    stored_zeros[channel] = parameters.stored_zero;
  }
  __syncthreads();

  const std::int64_t row_bytes = CodeRowBytes(kCodec, dim);
  std::uint8_t* codes =
      segment + KeyParameterBytes(kCodec, tile.fact.tokens, dim) + tile.first * row_bytes;
  const int chunks = dim / kChunk;
  for (int i = thread; i < tile.count * chunks; i += kThreads) {
    const int row = i / chunks, channel = (i - row * chunks) * kChunk;
    std::uint32_t code[kChunk];
#pragma unroll
    for (int j = 0; j < kChunk; ++j) {
      code[j] = Quantise(shared[row * dim + channel + j], zeros[channel + j], inverses[channel + j],
                         kLevels);
    }
    StoreCodes<kCodec>(code, codes + row * row_bytes + channel * row_bytes / dim);
  }
}

/// A value group of a token is the chunks of four neighbouring lanes.
template <KvCodec kCodec, ScalarType kType>
__device__ void CaptureValueRows(const Geometry& geometry, const Work& work,
                                 const GroupPlace& place, std::uint8_t* segment) {
  constexpr float kLevels = kCodec == KvCodec::kInt4 ? 15.0f : 255.0f;
  const int dim = geometry.value_dim;
  const TokenTile& tile = place.tile;
  const std::int32_t tokens = tile.fact.tokens, groups = ValueGroupsOf(dim);
  const int lane = static_cast<int>(threadIdx.x) & 31, warp = static_cast<int>(threadIdx.x) >> 5;
  const int chunks = dim / kChunk, rows_per_warp = 32 / chunks;
  const int lane_row = lane / chunks, chunk = lane - lane_row * chunks;
  const std::int64_t row_bytes = CodeRowBytes(kCodec, dim);
  auto* stored_scales = reinterpret_cast<std::uint16_t*>(segment);
  auto* stored_zeros = stored_scales + std::int64_t{tokens} * groups;
  std::uint8_t* codes = segment + ValueParameterBytes(kCodec, tokens, dim);
  for (int begin = warp * rows_per_warp; begin < tile.count; begin += kWarps * rows_per_warp) {
    const int row = begin + lane_row;
    // All lanes take part in the exchange.
    const bool active = lane_row < rows_per_warp && row < tile.count;
    const std::int32_t token = tile.first + row;
    float x[kChunk] = {};
    if (active) {
      const std::uint8_t* cache =
          RowOf(geometry, geometry.values, work, place.layer, tile.fact, token) +
          place.head * geometry.values.head_stride;
      Chunk8<kType>::Decode(__ldg(reinterpret_cast<const uint4*>(cache + 2 * kChunk * chunk)), x);
    }
#pragma unroll
    for (int i = 0; i < kChunk; ++i) x[i] = Clean(x[i]);
    float low = x[0], high = x[0];
#pragma unroll
    for (int i = 1; i < kChunk; ++i) {
      low = fminf(low, x[i]);
      high = fmaxf(high, x[i]);
    }
#pragma unroll
    for (int distance = 1; distance < kValueGroupChannels / kChunk; distance *= 2) {
      low = fminf(low, __shfl_xor_sync(~0u, low, distance));
      high = fmaxf(high, __shfl_xor_sync(~0u, high, distance));
    }
    if (!active) continue;
    const GroupParameters parameters(low, high, kLevels);
    if (chunk % (kValueGroupChannels / kChunk) == 0) {
      const std::int64_t at = std::int64_t{token} * groups + chunk / (kValueGroupChannels / kChunk);
      stored_scales[at] = parameters.stored_scale;
      stored_zeros[at] = parameters.stored_zero;
    }
    std::uint32_t code[kChunk];
#pragma unroll
    for (int i = 0; i < kChunk; ++i) {
      code[i] = Quantise(x[i], parameters.zero, parameters.inverse, kLevels);
    }
    StoreCodes<kCodec>(code, codes + token * row_bytes + chunk * row_bytes / chunks);
  }
}

template <KvCodec kCodec, ScalarType kType, RopePairing kPairing>
__global__ __launch_bounds__(kThreads, 6) void CaptureQuantisedKernel(
    const Geometry geometry, const __grid_constant__ Arguments arguments) {
  const Work work = WorkOf(arguments);
  extern __shared__ float4 shared[];
  const std::uint32_t heads = static_cast<std::uint32_t>(geometry.heads);
  const std::uint32_t slices = 2u * static_cast<std::uint32_t>(geometry.layers) * heads;
  const std::uint32_t tile = blockIdx.x / slices;
  const std::uint32_t slice = blockIdx.x - tile * slices;
  const std::uint32_t layer_side = slice / heads;
  GroupPlace place;
  place.head = static_cast<std::int32_t>(slice - layer_side * heads);
  place.layer = static_cast<std::int32_t>(layer_side / 2);
  place.values = layer_side % 2 != 0;
  place.tile = FindTile(work, static_cast<std::int32_t>(tile));
  const FactDescriptor& fact = place.tile.fact;
  const SegmentSizes sizes =
      SegmentSizesOf(kCodec, fact.tokens, geometry.key_dim, geometry.value_dim);
  std::uint8_t* segment =
      fact.payload + (sizes.key_bytes + sizes.value_bytes) *
                         (std::int64_t{geometry.heads} * place.layer + place.head);
  const int dim = place.values ? geometry.value_dim : geometry.key_dim;
  if (place.values) segment += sizes.key_bytes;
  if (place.tile.first + place.tile.count == fact.tokens && threadIdx.x < kSegmentAlignment) {
    const std::int64_t used = (place.values ? ValueParameterBytes(kCodec, fact.tokens, dim)
                                            : KeyParameterBytes(kCodec, fact.tokens, dim)) +
                              CodeRowBytes(kCodec, dim) * fact.tokens;
    if (used + threadIdx.x < PaddedBytes(used)) segment[used + threadIdx.x] = 0;
  }
  if (place.values) {
    CaptureValueRows<kCodec, kType>(geometry, work, place, segment);
  } else {
    CaptureKeyGroup<kCodec, kType, kPairing>(geometry, work, place, segment,
                                             reinterpret_cast<float*>(shared));
  }
}

using Kernel = void (*)(Geometry, Arguments);

template <KvCodec kCodec, ScalarType kType, RopePairing kPairing>
Kernel KernelOf() {
  if constexpr (kCodec == KvCodec::kInt8 || kCodec == KvCodec::kInt4) {
    return CaptureQuantisedKernel<kCodec, kType, kPairing>;
  } else {
    return CapturePlainKernel<kCodec, kType, kPairing>;
  }
}

template <KvCodec kCodec>
Kernel WithTypes(ScalarType type, RopePairing pairing) {
  if (type == ScalarType::kBF16) {
    return pairing == RopePairing::kHalf
               ? KernelOf<kCodec, ScalarType::kBF16, RopePairing::kHalf>()
               : KernelOf<kCodec, ScalarType::kBF16, RopePairing::kInterleaved>();
  }
  return pairing == RopePairing::kHalf
             ? KernelOf<kCodec, ScalarType::kF16, RopePairing::kHalf>()
             : KernelOf<kCodec, ScalarType::kF16, RopePairing::kInterleaved>();
}

Kernel KernelFor(const Geometry& geometry) {
  const ScalarType type = geometry.type;
  const RopePairing pairing = geometry.pairing;
  switch (geometry.codec) {
    case KvCodec::kBF16:
      return WithTypes<KvCodec::kBF16>(type, pairing);
    case KvCodec::kInt8:
      return WithTypes<KvCodec::kInt8>(type, pairing);
    case KvCodec::kInt4:
      return WithTypes<KvCodec::kInt4>(type, pairing);
    default:
      return WithTypes<KvCodec::kF16>(type, pairing);
  }
}

std::size_t SharedBytes(std::int32_t key_dim) {
  return static_cast<std::size_t>(kMaxKeyGroupTokens + 2) * static_cast<std::size_t>(key_dim) *
         sizeof(float);
}

}  // namespace

cudaError_t PrepareVectorCapture(const Geometry& geometry) {
  const Kernel kernel = KernelFor(geometry);
  if (Quantised(geometry.codec)) {
    // The same for every geometry: a later transfer must not take memory from an earlier one.
    const cudaError_t error = cudaFuncSetAttribute(reinterpret_cast<const void*>(kernel),
                                                   cudaFuncAttributeMaxDynamicSharedMemorySize,
                                                   static_cast<int>(SharedBytes(kMaxGroupDim)));
    if (error != cudaSuccess) return error;
  }
  return Prepare(kernel);
}

cudaError_t LaunchVectorCapture(const Geometry& geometry, const Arguments& arguments,
                                std::int64_t tiles, cudaStream_t stream) {
  const bool quantised = Quantised(geometry.codec);
  const std::int64_t blocks = tiles * 2 * geometry.layers * (quantised ? geometry.heads : 1);
  if (blocks > INT32_MAX) return cudaErrorInvalidConfiguration;
  const std::size_t shared = quantised ? SharedBytes(geometry.key_dim) : 0;
  const Kernel kernel = KernelFor(geometry);
  kernel<<<static_cast<unsigned>(blocks), kThreads, shared, stream>>>(geometry, arguments);
  return cudaGetLastError();
}

}  // namespace inferscale::kernels::cuda
