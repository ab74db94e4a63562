// Any head dimension, strides and element types, an element at a time: what the vector kernels
// cannot do is done here, slowly.

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "kernels/cuda/work.cuh"

namespace inferscale::kernels::cuda {
namespace {

__device__ int ElementBytes(ScalarType type) { return type == ScalarType::kF32 ? 4 : 2; }

__device__ std::uint32_t LoadBits(const std::uint8_t* from, int bytes, bool aligned) {
  if (aligned) {
    return bytes == 4 ? *reinterpret_cast<const std::uint32_t*>(from)
                      : *reinterpret_cast<const std::uint16_t*>(from);
  }
  std::uint32_t bits = 0;
  for (int i = 0; i < bytes; ++i) bits |= std::uint32_t{from[i]} << (8 * i);
  return bits;
}

__device__ void StoreBits(std::uint8_t* to, std::uint32_t bits, int bytes, bool aligned) {
  if (!aligned) {
    for (int i = 0; i < bytes; ++i) to[i] = static_cast<std::uint8_t>(bits >> (8 * i));
  } else if (bytes == 4) {
    *reinterpret_cast<std::uint32_t*>(to) = bits;
  } else {
    *reinterpret_cast<std::uint16_t*>(to) = static_cast<std::uint16_t>(bits);
  }
}

__device__ float FromBits(ScalarType type, std::uint32_t bits) {
  if (type == ScalarType::kF32) return __uint_as_float(bits);
  if (type == ScalarType::kBF16) return __uint_as_float(bits << 16);
  return __half2float(__ushort_as_half(static_cast<std::uint16_t>(bits)));
}

__device__ std::uint32_t ToBits(ScalarType type, float x) {
  if (type == ScalarType::kF32) return __float_as_uint(x);
  if (type == ScalarType::kBF16) return __bfloat16_as_ushort(__float2bfloat16_rn(x));
  return __half_as_ushort(__float2half_rn(x));
}

__device__ float HalfAt(const std::uint8_t* halves, std::int64_t index) {
  return __half2float(__ushort_as_half(reinterpret_cast<const std::uint16_t*>(halves)[index]));
}

__device__ ScalarType PlainTypeOf(KvCodec codec) {
  if (codec == KvCodec::kF32) return ScalarType::kF32;
  return codec == KvCodec::kF16 ? ScalarType::kF16 : ScalarType::kBF16;
}

/// One segment of a payload.
struct Segment {
  std::uint8_t* bytes;
  std::int32_t tokens, dim;
  bool values;
};

__device__ std::int64_t ParameterBytes(KvCodec codec, const Segment& segment) {
  return segment.values ? ValueParameterBytes(codec, segment.tokens, segment.dim)
                        : KeyParameterBytes(codec, segment.tokens, segment.dim);
}

__device__ float DecodeElement(KvCodec codec, const Segment& segment, std::int32_t token,
                               std::int32_t dim) {
  if (!Quantised(codec)) {
    const ScalarType type = PlainTypeOf(codec);
    const int bytes = ElementBytes(type);
    return FromBits(
        type,
        LoadBits(segment.bytes + (std::int64_t{token} * segment.dim + dim) * bytes, bytes, true));
  }
  const std::uint8_t* row =
      segment.bytes + ParameterBytes(codec, segment) + token * CodeRowBytes(codec, segment.dim);
  const int code = codec == KvCodec::kInt8 ? row[dim] : row[dim / 2] >> (dim % 2 * 4) & 15;
  std::int64_t at = 0, zeros = 0;
  if (segment.values) {
    const std::int64_t groups = ValueGroupsOf(segment.dim);
    at = token * groups + dim / kValueGroupChannels;
    zeros = segment.tokens * groups;
  } else {
    at = std::int64_t{KeyGroupOf(segment.tokens, token)} * segment.dim + dim;
    zeros = std::int64_t{KeyGroups(segment.tokens)} * segment.dim;
  }
  return __fadd_rn(__fmul_rn(HalfAt(segment.bytes, at), static_cast<float>(code)),
                   HalfAt(segment.bytes, zeros + at));
}

/// Element `dim` of a row after rotation. `element(d)` gives the row's elements before it.
/// \param angles the token's, or nullptr
template <typename Element>
__device__ float Rotated(const Geometry& geometry, const float* angles, std::int32_t dim,
                         bool inverse, Element element) {
  if (angles == nullptr || dim >= geometry.width) return element(dim);
  const std::int32_t half = geometry.width / 2;
  std::int32_t pair = 0, partner = 0;
  bool second = false;
  if (geometry.pairing == RopePairing::kHalf) {
    second = dim >= half;
    pair = second ? dim - half : dim;
    partner = second ? pair : dim + half;
  } else {
    second = dim % 2 != 0;
    pair = dim / 2;
    partner = dim ^ 1;
  }
  const float straight = __fmul_rn(element(dim), angles[2 * pair]);
  const float crossed = __fmul_rn(element(partner), angles[2 * pair + 1]);
  return second != inverse ? __fadd_rn(straight, crossed) : __fsub_rn(straight, crossed);
}

/// A thread block's tile and slice: one side of a layer.
struct SlicePlace {
  TokenTile tile;
  std::int32_t layer, dim;
  bool values;
  SegmentSizes sizes;

  __device__ SlicePlace(const Geometry& geometry, const Work& work) {
    const std::uint32_t slices = 2u * static_cast<std::uint32_t>(geometry.layers);
    const std::uint32_t slice = blockIdx.x % slices;
    layer = static_cast<std::int32_t>(slice / 2);
    values = slice % 2 != 0;
    dim = values ? geometry.value_dim : geometry.key_dim;
    tile = FindTile(work, static_cast<std::int32_t>(blockIdx.x / slices));
    sizes = SegmentSizesOf(geometry.codec, tile.fact.tokens, geometry.key_dim, geometry.value_dim);
  }
  __device__ Segment SegmentOf(const Geometry& geometry, std::int32_t head) const {
    const std::int64_t index = std::int64_t{geometry.heads} * layer + head;
    return {tile.fact.payload + index * (sizes.key_bytes + sizes.value_bytes) +
                (values ? sizes.key_bytes : 0),
            tile.fact.tokens, dim, values};
  }
};

__global__ __launch_bounds__(kThreads) void GenericInjectKernel(
    const Geometry geometry, const __grid_constant__ Arguments arguments) {
  const Work work = WorkOf(arguments);
  const SlicePlace place(geometry, work);
  const CacheSide& side = place.values ? geometry.values : geometry.keys;
  const int bytes = ElementBytes(geometry.type);
  const bool same = !Quantised(geometry.codec) && PlainTypeOf(geometry.codec) == geometry.type;
  const std::int64_t elements = std::int64_t{place.tile.count} * place.dim;
  for (std::int64_t i = threadIdx.x; i < elements; i += kThreads) {
    const std::int32_t row = static_cast<std::int32_t>(i / place.dim);
    const std::int32_t dim = static_cast<std::int32_t>(i - std::int64_t{row} * place.dim);
    const std::int32_t token = place.tile.first + row;
    const std::int32_t stored = place.tile.fact.first + token;
    const float* angles =
        place.values ? nullptr : AnglesOf(geometry, place.layer, place.tile.fact, token);
    std::uint8_t* cache =
        RowOf(geometry, side, work, place.layer, place.tile.fact, token) + dim * side.dim_stride;
    for (std::int32_t head = 0; head < geometry.heads; ++head) {
      const Segment segment = place.SegmentOf(geometry, head);
      std::uint32_t bits = 0;
      if (same && angles == nullptr) {
        bits =
            LoadBits(segment.bytes + (std::int64_t{stored} * place.dim + dim) * bytes, bytes, true);
      } else {
        bits = ToBits(geometry.type, Rotated(geometry, angles, dim, false, [&](std::int32_t d) {
                        return DecodeElement(geometry.codec, segment, stored, d);
                      }));
      }
      StoreBits(cache + head * side.head_stride, bits, bytes, geometry.aligned);
    }
  }
}

__device__ float Cleaned(float x) { return x != x ? 0.0f : fminf(fmaxf(x, -65504.0f), 65504.0f); }

/// Scale and zero of a run of numbers, stored at `scale` and `zero`. `number(i)` gives them.
struct RunParameters {
  float zero, inverse, levels;

  template <typename Number>
  __device__ RunParameters(KvCodec codec, std::int32_t count, std::uint16_t* stored_scale,
                           std::uint16_t* stored_zero, Number number) {
    levels = codec == KvCodec::kInt4 ? 15.0f : 255.0f;
    float low = Cleaned(number(0)), high = low;
    for (std::int32_t i = 1; i < count; ++i) {
      const float x = Cleaned(number(i));
      low = fminf(low, x);
      high = fmaxf(high, x);
    }
    // -0 is stored as +0, as the CPU kernels do.
    const __half zero_half = __float2half_rn(__fadd_rn(low, 0.0f));
    zero = __half2float(zero_half);
    const __half scale_half =
        __float2half_rn(fmaxf(0.0f, __fdiv_rn(__fsub_rn(high, zero), levels)));
    const float scale = __half2float(scale_half);
    inverse = scale > 0.0f ? __fdiv_rn(1.0f, scale) : 0.0f;
    *stored_scale = __half_as_ushort(scale_half);
    *stored_zero = __half_as_ushort(zero_half);
  }
  __device__ std::uint32_t Code(float x) const {
    const float code = __fmul_rn(__fsub_rn(Cleaned(x), zero), inverse);
    return static_cast<std::uint32_t>(__float2int_rn(fminf(fmaxf(code, 0.0f), levels)));
  }
};

/// Channels [begin, begin + count) of a tile's keys, each over all tokens. `number(row, dim)`.
/// Two channels share a byte of int4 codes, so one thread takes both.
template <typename Number>
__device__ void EncodeKeyChannels(KvCodec codec, const Segment& segment, const TokenTile& tile,
                                  std::int32_t begin, std::int32_t count, Number number) {
  auto* scales =
      reinterpret_cast<std::uint16_t*>(segment.bytes) + std::int64_t{tile.key_group} * segment.dim;
  auto* zeros = scales + std::int64_t{KeyGroups(segment.tokens)} * segment.dim;
  const auto parameters_of = [&](std::int32_t dim) {
    return RunParameters(codec, tile.count, scales + dim, zeros + dim,
                         [&](std::int32_t row) { return number(row, dim); });
  };
  const std::int64_t row_bytes = CodeRowBytes(codec, segment.dim);
  std::uint8_t* codes = segment.bytes + ParameterBytes(codec, segment) + tile.first * row_bytes;
  const RunParameters first = parameters_of(begin);
  const RunParameters second = count > 1 ? parameters_of(begin + 1) : first;
  for (std::int32_t row = 0; row < tile.count; ++row, codes += row_bytes) {
    const std::uint32_t low = first.Code(number(row, begin));
    const std::uint32_t high = count > 1 ? second.Code(number(row, begin + 1)) : 0;
    if (codec == KvCodec::kInt4) {
      codes[begin / 2] = static_cast<std::uint8_t>(low | high << 4);
    } else {
      codes[begin] = static_cast<std::uint8_t>(low);
      if (count > 1) codes[begin + 1] = static_cast<std::uint8_t>(high);
    }
  }
}

/// A group of channels of one token's values. `number(dim)`.
template <typename Number>
__device__ void EncodeValueGroup(KvCodec codec, const Segment& segment, std::int32_t token,
                                 std::int32_t group, Number number) {
  const std::int32_t groups = ValueGroupsOf(segment.dim), begin = group * kValueGroupChannels;
  const std::int32_t count = min(kValueGroupChannels, segment.dim - begin);
  auto* scales = reinterpret_cast<std::uint16_t*>(segment.bytes) + std::int64_t{token} * groups;
  const RunParameters parameters(codec, count, scales + group,
                                 scales + std::int64_t{segment.tokens} * groups + group,
                                 [&](std::int32_t i) { return number(begin + i); });
  std::uint8_t* codes =
      segment.bytes + ParameterBytes(codec, segment) + token * CodeRowBytes(codec, segment.dim);
  for (std::int32_t i = 0; i < count; ++i) {
    const std::uint32_t code = parameters.Code(number(begin + i));
    if (codec == KvCodec::kInt8) {
      codes[begin + i] = static_cast<std::uint8_t>(code);
    } else {
      const bool paired = i + 1 < count;
      const std::uint32_t high = paired ? parameters.Code(number(begin + i + 1)) : 0;
      codes[(begin + i) / 2] = static_cast<std::uint8_t>(code | high << 4);
      ++i;
    }
  }
}

__global__ __launch_bounds__(kThreads) void GenericCaptureKernel(
    const Geometry geometry, const __grid_constant__ Arguments arguments) {
  const Work work = WorkOf(arguments);
  const SlicePlace place(geometry, work);
  const TokenTile& tile = place.tile;
  const CacheSide& side = place.values ? geometry.values : geometry.keys;
  const KvCodec codec = geometry.codec;
  const int bytes = ElementBytes(geometry.type);
  for (std::int32_t head = 0; head < geometry.heads; ++head) {
    const Segment segment = place.SegmentOf(geometry, head);
    const auto bits_at = [&](std::int32_t row, std::int32_t dim) {
      return LoadBits(RowOf(geometry, side, work, place.layer, tile.fact, tile.first + row) +
                          head * side.head_stride + dim * side.dim_stride,
                      bytes, geometry.aligned);
    };
    const auto number = [&](std::int32_t row, std::int32_t dim) {
      const float* angles =
          place.values ? nullptr : AnglesOf(geometry, place.layer, tile.fact, tile.first + row);
      return Rotated(geometry, angles, dim, true,
                     [&](std::int32_t d) { return FromBits(geometry.type, bits_at(row, d)); });
    };
    if (!Quantised(codec)) {
      const ScalarType stored_type = PlainTypeOf(codec);
      const int stored_bytes = ElementBytes(stored_type);
      const bool copies = place.values && stored_type == geometry.type;
      const std::int64_t elements = std::int64_t{tile.count} * place.dim;
      for (std::int64_t i = threadIdx.x; i < elements; i += kThreads) {
        const std::int32_t row = static_cast<std::int32_t>(i / place.dim);
        const std::int32_t dim = static_cast<std::int32_t>(i - std::int64_t{row} * place.dim);
        StoreBits(segment.bytes + (std::int64_t{tile.first} * place.dim + i) * stored_bytes,
                  copies ? bits_at(row, dim) : ToBits(stored_type, number(row, dim)), stored_bytes,
                  true);
      }
    } else if (place.values) {
      const std::int32_t groups = ValueGroupsOf(place.dim);
      for (std::int32_t i = static_cast<std::int32_t>(threadIdx.x); i < tile.count * groups;
           i += kThreads) {
        const std::int32_t row = i / groups;
        EncodeValueGroup(codec, segment, tile.first + row, i - row * groups,
                         [&](std::int32_t dim) { return number(row, dim); });
      }
    } else {
      for (std::int32_t i = static_cast<std::int32_t>(threadIdx.x); 2 * i < place.dim;
           i += kThreads) {
        EncodeKeyChannels(codec, segment, tile, 2 * i, min(2, place.dim - 2 * i), number);
      }
    }
    if (tile.first + tile.count == tile.fact.tokens && threadIdx.x < kSegmentAlignment) {
      const std::int64_t used =
          ParameterBytes(codec, segment) + CodeRowBytes(codec, place.dim) * tile.fact.tokens;
      if (used + threadIdx.x < PaddedBytes(used)) segment.bytes[used + threadIdx.x] = 0;
    }
  }
}

cudaError_t Blocks(const Geometry& geometry, std::int64_t tiles, unsigned& blocks) {
  const std::int64_t wanted = tiles * 2 * geometry.layers;
  if (wanted > INT32_MAX) return cudaErrorInvalidConfiguration;
  blocks = static_cast<unsigned>(wanted);
  return cudaSuccess;
}

}  // namespace

cudaError_t PrepareGeneric() {
  const cudaError_t error = Prepare(GenericInjectKernel);
  return error == cudaSuccess ? Prepare(GenericCaptureKernel) : error;
}

cudaError_t LaunchGenericInject(const Geometry& geometry, const Arguments& arguments,
                                std::int64_t tiles, cudaStream_t stream) {
  unsigned blocks = 0;
  const cudaError_t error = Blocks(geometry, tiles, blocks);
  if (error != cudaSuccess) return error;
  GenericInjectKernel<<<blocks, kThreads, 0, stream>>>(geometry, arguments);
  return cudaGetLastError();
}

cudaError_t LaunchGenericCapture(const Geometry& geometry, const Arguments& arguments,
                                 std::int64_t tiles, cudaStream_t stream) {
  unsigned blocks = 0;
  const cudaError_t error = Blocks(geometry, tiles, blocks);
  if (error != cudaSuccess) return error;
  GenericCaptureKernel<<<blocks, kThreads, 0, stream>>>(geometry, arguments);
  return cudaGetLastError();
}

}  // namespace inferscale::kernels::cuda
