#include <algorithm>

#include "kernels/cuda/vector.cuh"
#include "kernels/cuda/work.cuh"

namespace inferscale::kernels::cuda {
namespace {

/// Where a lane finds its two chunks of a row in head 0's segment. A head's chunks are `offset`
/// bytes further on. Load() only fetches, so that several heads are under way before one is used.
template <KvCodec kCodec, bool kValues>
struct PayloadRow {
  static constexpr int kHeadsAtOnce = 4;
  struct Raw {
    uint4 a, b;
  };
  const std::uint8_t* a;
  const std::uint8_t* b;

  __device__ PayloadRow(const std::uint8_t* segment, const FactDescriptor&, std::int32_t token,
                        std::int32_t dim, const LaneColumns& columns) {
    const std::uint8_t* row = segment + std::int64_t{token} * dim * 2;
    a = row + 2 * columns.a;
    b = row + 2 * columns.b;
  }
  __device__ Raw Load(std::int64_t offset) const {
    return {__ldcs(reinterpret_cast<const uint4*>(a + offset)),
            __ldcs(reinterpret_cast<const uint4*>(b + offset))};
  }
  static __device__ void Decode(const Raw& raw, float* x, float* y) {
    Chunk8<PlainType(kCodec)>::Decode(raw.a, x);
    Chunk8<PlainType(kCodec)>::Decode(raw.b, y);
  }
};

/// Eight codes.
template <KvCodec kCodec>
struct Codes8;

template <>
struct Codes8<KvCodec::kInt8> {
  using Raw = uint2;
  static constexpr int kBytes = 8;
  // The code becomes the last bits of 2^23 + code: cheaper than a conversion.
  static __device__ float Code(const Raw& raw, int i) {
    const std::uint32_t word = i < 4 ? raw.x : raw.y;
    return __fsub_rn(__uint_as_float(__byte_perm(word, 0x4b000000u, 0x7540u | (i & 3))),
                     8388608.0f);
  }
};

template <>
struct Codes8<KvCodec::kInt4> {
  using Raw = std::uint32_t;
  static constexpr int kBytes = 4;
  static __device__ float Code(const Raw& raw, int i) {
    return __fsub_rn(__uint_as_float((raw >> (4 * i) & 15u) | 0x4b000000u), 8388608.0f);
  }
};

/// Quantised keys: a scale and a zero for each channel.
template <KvCodec kCodec>
struct QuantisedKeyRow {
  static constexpr int kHeadsAtOnce = 2;
  using Codes = Codes8<kCodec>;
  struct Raw {
    typename Codes::Raw codes_a, codes_b;
    uint4 scales_a, scales_b, zeros_a, zeros_b;
  };
  const std::uint8_t *codes_a, *codes_b, *scales_a, *scales_b;
  std::int64_t zeros;  ///< behind the scales

  __device__ QuantisedKeyRow(const std::uint8_t* segment, const FactDescriptor& fact,
                             std::int32_t token, std::int32_t dim, const LaneColumns& columns) {
    const std::uint8_t* codes = segment + KeyParameterBytes(kCodec, fact.tokens, dim) +
                                std::int64_t{token} * CodeRowBytes(kCodec, dim);
    codes_a = codes + columns.a * Codes::kBytes / kChunk;
    codes_b = codes + columns.b * Codes::kBytes / kChunk;
    const std::uint8_t* scales = segment + std::int64_t{KeyGroupOf(fact.tokens, token)} * dim * 2;
    scales_a = scales + 2 * columns.a;
    scales_b = scales + 2 * columns.b;
    zeros = std::int64_t{KeyGroups(fact.tokens)} * dim * 2;
  }
  __device__ Raw Load(std::int64_t offset) const {
    const auto parameters = [&](const std::uint8_t* from) {
      return __ldg(reinterpret_cast<const uint4*>(from + offset));
    };
    return {__ldcs(reinterpret_cast<const typename Codes::Raw*>(codes_a + offset)),
            __ldcs(reinterpret_cast<const typename Codes::Raw*>(codes_b + offset)),
            parameters(scales_a),
            parameters(scales_b),
            parameters(scales_a + zeros),
            parameters(scales_b + zeros)};
  }
  static __device__ void DecodeChunk(const typename Codes::Raw& codes, const uint4& raw_scales,
                                     const uint4& raw_zeros, float* x) {
    float scales[kChunk], zeros[kChunk];
    Chunk8<ScalarType::kF16>::Decode(raw_scales, scales);
    Chunk8<ScalarType::kF16>::Decode(raw_zeros, zeros);
#pragma unroll
    for (int i = 0; i < kChunk; ++i) {
      x[i] = __fadd_rn(__fmul_rn(scales[i], Codes::Code(codes, i)), zeros[i]);
    }
  }
  static __device__ void Decode(const Raw& raw, float* x, float* y) {
    DecodeChunk(raw.codes_a, raw.scales_a, raw.zeros_a, x);
    DecodeChunk(raw.codes_b, raw.scales_b, raw.zeros_b, y);
  }
};

/// Quantised values: a scale and a zero for each token and group of channels.
template <KvCodec kCodec>
struct QuantisedValueRow {
  static constexpr int kHeadsAtOnce = 4;
  using Codes = Codes8<kCodec>;
  struct Raw {
    typename Codes::Raw codes_a, codes_b;
    std::uint16_t scale_a, scale_b, zero_a, zero_b;
  };
  const std::uint8_t *codes_a, *codes_b, *scale_a, *scale_b;
  std::int64_t zeros;

  __device__ QuantisedValueRow(const std::uint8_t* segment, const FactDescriptor& fact,
                               std::int32_t token, std::int32_t dim, const LaneColumns& columns) {
    const std::uint8_t* codes = segment + ValueParameterBytes(kCodec, fact.tokens, dim) +
                                std::int64_t{token} * CodeRowBytes(kCodec, dim);
    codes_a = codes + columns.a * Codes::kBytes / kChunk;
    codes_b = codes + columns.b * Codes::kBytes / kChunk;
    const std::int32_t groups = ValueGroupsOf(dim);
    const std::uint8_t* scales = segment + std::int64_t{token} * groups * 2;
    scale_a = scales + columns.a / kValueGroupChannels * 2;
    scale_b = scales + columns.b / kValueGroupChannels * 2;
    zeros = std::int64_t{fact.tokens} * groups * 2;
  }
  __device__ Raw Load(std::int64_t offset) const {
    const auto parameter = [&](const std::uint8_t* from) {
      return __ldg(reinterpret_cast<const std::uint16_t*>(from + offset));
    };
    return {__ldcs(reinterpret_cast<const typename Codes::Raw*>(codes_a + offset)),
            __ldcs(reinterpret_cast<const typename Codes::Raw*>(codes_b + offset)),
            parameter(scale_a),
            parameter(scale_b),
            parameter(scale_a + zeros),
            parameter(scale_b + zeros)};
  }
  static __device__ void DecodeChunk(const typename Codes::Raw& codes, std::uint16_t raw_scale,
                                     std::uint16_t raw_zero, float* x) {
    const float scale = __half2float(__ushort_as_half(raw_scale));
    const float zero = __half2float(__ushort_as_half(raw_zero));
#pragma unroll
    for (int i = 0; i < kChunk; ++i) {
      x[i] = __fadd_rn(__fmul_rn(scale, Codes::Code(codes, i)), zero);
    }
  }
  static __device__ void Decode(const Raw& raw, float* x, float* y) {
    DecodeChunk(raw.codes_a, raw.scale_a, raw.zero_a, x);
    DecodeChunk(raw.codes_b, raw.scale_b, raw.zero_b, y);
  }
};

template <>
struct PayloadRow<KvCodec::kInt8, false> : QuantisedKeyRow<KvCodec::kInt8> {
  using QuantisedKeyRow::QuantisedKeyRow;
};
template <>
struct PayloadRow<KvCodec::kInt4, false> : QuantisedKeyRow<KvCodec::kInt4> {
  using QuantisedKeyRow::QuantisedKeyRow;
};
template <>
struct PayloadRow<KvCodec::kInt8, true> : QuantisedValueRow<KvCodec::kInt8> {
  using QuantisedValueRow::QuantisedValueRow;
};
template <>
struct PayloadRow<KvCodec::kInt4, true> : QuantisedValueRow<KvCodec::kInt4> {
  using QuantisedValueRow::QuantisedValueRow;
};

/// Moves a lane's chunks of all heads. `rotate(x, y)` turns them; `cache_row()` says where head 0's
/// row lies, which is asked for behind the first loads: it waits for the block table. A head's
/// registers are loaded again as soon as they have been stored.
template <ScalarType kType, bool kCopies, typename Row, typename CacheRow, typename Rotate>
__device__ void InjectHeads(const Row& row, std::int64_t segment_stride, CacheRow cache_row,
                            std::int64_t head_stride, std::int32_t heads,
                            const LaneColumns& columns, Rotate rotate) {
  constexpr int kAtOnce = Row::kHeadsAtOnce;
  typename Row::Raw raw[kAtOnce];
#pragma unroll
  for (int i = 0; i < kAtOnce; ++i) {
    if (i < heads) raw[i] = row.Load(i * segment_stride);
  }
  std::uint8_t* const cache = cache_row();
  for (std::int32_t head = 0; head < heads; head += kAtOnce) {
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
      if (head + i >= heads) break;
      uint4 a, b;
      if constexpr (kCopies) {
        a = raw[i].a;
        b = raw[i].b;
      } else {
        float x[kChunk], y[kChunk];
        Row::Decode(raw[i], x, y);
        rotate(x, y);
        a = Chunk8<kType>::Encode(x);
        b = Chunk8<kType>::Encode(y);
      }
      if (head + i + kAtOnce < heads) raw[i] = row.Load((head + i + kAtOnce) * segment_stride);
      std::uint8_t* to = cache + (head + i) * head_stride;
      *reinterpret_cast<uint4*>(to + 2 * columns.a) = a;
      *reinterpret_cast<uint4*>(to + 2 * columns.b) = b;
    }
  }
}

template <KvCodec kCodec, ScalarType kType, RopePairing kPairing>
__global__ __launch_bounds__(kThreads,
                             5) void InjectKernel(const Geometry geometry,
                                                  const __grid_constant__ Arguments arguments) {
  const Work work = WorkOf(arguments);
  const LanePlace place = FindLane(geometry, work);
  if (!place.active) return;
  constexpr bool kSame =
      !(kCodec == KvCodec::kInt8 || kCodec == KvCodec::kInt4) && PlainType(kCodec) == kType;
  const FactDescriptor& fact = place.tile.fact;
  const SegmentSizes sizes =
      SegmentSizesOf(kCodec, fact.tokens, geometry.key_dim, geometry.value_dim);
  const std::int64_t stride = sizes.key_bytes + sizes.value_bytes;
  const std::uint8_t* segment = fact.payload + stride * geometry.heads * place.layer;
  const CacheSide& side = place.values ? geometry.values : geometry.keys;
  const std::int32_t token = fact.first + place.token;
  const auto cache_row = [&] {
    return RowOf(geometry, side, work, place.layer, fact, place.token);
  };
  const auto no_rotation = [](float*, float*) {};
  if (place.values) {
    const LaneColumns columns = PlainColumns(place.column, place.dim);
    const PayloadRow<kCodec, true> row(segment + sizes.key_bytes, fact, token, place.dim, columns);
    InjectHeads<kType, kSame>(row, stride, cache_row, side.head_stride, geometry.heads, columns,
                              no_rotation);
    return;
  }
  const float* cos_sin = AnglesOf(geometry, place.layer, fact, place.token);
  if (cos_sin == nullptr) {
    const LaneColumns columns = PlainColumns(place.column, place.dim);
    const PayloadRow<kCodec, false> row(segment, fact, token, place.dim, columns);
    InjectHeads<kType, kSame>(row, stride, cache_row, side.head_stride, geometry.heads, columns,
                              no_rotation);
    return;
  }
  const LaneColumns columns = RotatedColumns<kPairing>(place.column, place.dim, geometry.width);
  LaneAngles angles;
  angles.Load<kPairing>(cos_sin, columns);
  const PayloadRow<kCodec, false> row(segment, fact, token, place.dim, columns);
  InjectHeads<kType, false>(
      row, stride, cache_row, side.head_stride, geometry.heads, columns,
      [&](float* x, float* y) { RotateChunks<kPairing, false>(x, y, angles, columns); });
}

using Kernel = void (*)(Geometry, Arguments);

template <KvCodec kCodec, ScalarType kType>
Kernel WithPairing(RopePairing pairing) {
  return pairing == RopePairing::kHalf ? InjectKernel<kCodec, kType, RopePairing::kHalf>
                                       : InjectKernel<kCodec, kType, RopePairing::kInterleaved>;
}

template <KvCodec kCodec>
Kernel WithType(ScalarType type, RopePairing pairing) {
  return type == ScalarType::kBF16 ? WithPairing<kCodec, ScalarType::kBF16>(pairing)
                                   : WithPairing<kCodec, ScalarType::kF16>(pairing);
}

Kernel KernelFor(const Geometry& geometry) {
  switch (geometry.codec) {
    case KvCodec::kBF16:
      return WithType<KvCodec::kBF16>(geometry.type, geometry.pairing);
    case KvCodec::kInt8:
      return WithType<KvCodec::kInt8>(geometry.type, geometry.pairing);
    case KvCodec::kInt4:
      return WithType<KvCodec::kInt4>(geometry.type, geometry.pairing);
    default:
      return WithType<KvCodec::kF16>(geometry.type, geometry.pairing);
  }
}

}  // namespace

cudaError_t PrepareVectorInject(const Geometry& geometry) {
  return TakesQuantisedInject(geometry) ? PrepareQuantisedInject(geometry)
                                        : Prepare(KernelFor(geometry));
}

cudaError_t LaunchVectorInject(const Geometry& geometry, const Arguments& arguments,
                               std::int64_t tiles, cudaStream_t stream) {
  if (TakesQuantisedInject(geometry)) {
    return LaunchQuantisedInject(geometry, arguments, tiles, stream);
  }
  const std::int64_t blocks = tiles * 2 * geometry.layers;
  if (blocks > INT32_MAX) return cudaErrorInvalidConfiguration;
  KernelFor(geometry)<<<static_cast<unsigned>(blocks), kThreads, 0, stream>>>(geometry, arguments);
  return cudaGetLastError();
}

}  // namespace inferscale::kernels::cuda
