#ifndef INFERSCALE_KERNELS_CUDA_VECTOR_CUH_
#define INFERSCALE_KERNELS_CUDA_VECTOR_CUH_

/// \file vector.cuh
/// What the vector kernels share. A row of `dim` elements is moved by dim / 16 lanes, each with two
/// chunks of eight. Nothing inexact is fused into multiply-adds and conversions round to nearest
/// even, so the bits are the CPU kernels' (except that a NaN may be another NaN).

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>

#include "kernels/cuda/work.cuh"

namespace inferscale::kernels::cuda {

/// Eight elements of an engine's cache or a plain codec: 16 bytes.
template <ScalarType kType>
struct Chunk8;

template <>
struct Chunk8<ScalarType::kBF16> {
  static __device__ void Decode(const uint4& raw, float* x) {
    const std::uint32_t words[4] = {raw.x, raw.y, raw.z, raw.w};
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      x[2 * i] = __uint_as_float(words[i] << 16);
      x[2 * i + 1] = __uint_as_float(words[i] & 0xffff0000u);
    }
  }
  static __device__ std::uint32_t Pack(float low, float high) {
    const __nv_bfloat162 pair = __floats2bfloat162_rn(low, high);
    return *reinterpret_cast<const std::uint32_t*>(&pair);
  }
  static __device__ uint4 Encode(const float* x) {
    return {Pack(x[0], x[1]), Pack(x[2], x[3]), Pack(x[4], x[5]), Pack(x[6], x[7])};
  }
};

template <>
struct Chunk8<ScalarType::kF16> {
  static __device__ void Decode(const uint4& raw, float* x) {
    const std::uint32_t words[4] = {raw.x, raw.y, raw.z, raw.w};
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const float2 pair = __half22float2(*reinterpret_cast<const __half2*>(&words[i]));
      x[2 * i] = pair.x;
      x[2 * i + 1] = pair.y;
    }
  }
  static __device__ std::uint32_t Pack(float low, float high) {
    const __half2 pair = __floats2half2_rn(low, high);
    return *reinterpret_cast<const std::uint32_t*>(&pair);
  }
  static __device__ uint4 Encode(const float* x) {
    return {Pack(x[0], x[1]), Pack(x[2], x[3]), Pack(x[4], x[5]), Pack(x[6], x[7])};
  }
};

constexpr ScalarType PlainType(KvCodec codec) {
  return codec == KvCodec::kBF16 ? ScalarType::kBF16 : ScalarType::kF16;
}

/// Which elements of a row a lane moves: chunks that begin at `a` and `b`. With halves paired, the
/// chunks are each other's partners; with neighbours paired, a chunk holds four pairs.
struct LaneColumns {
  int a = 0, b = 0;
  bool rotate_a = false, rotate_b = false;
};

__device__ inline LaneColumns PlainColumns(int column, int dim) {
  return {kChunk * column, dim / 2 + kChunk * column, false, false};
}

template <RopePairing kPairing>
__device__ LaneColumns RotatedColumns(int column, int dim, int width) {
  LaneColumns columns = PlainColumns(column, dim);
  if constexpr (kPairing == RopePairing::kHalf) {
    const int rotated_lanes = width / kLaneElements;
    if (column < rotated_lanes) {
      columns.b = width / 2 + kChunk * column;
      columns.rotate_a = columns.rotate_b = true;
    } else {
      columns.a = width + kLaneElements * (column - rotated_lanes);
      columns.b = columns.a + kChunk;
    }
  } else {
    columns.rotate_a = columns.a < width;
    columns.rotate_b = columns.b < width;
  }
  return columns;
}

/// The cosines and sines of a lane's elements of one row.
struct LaneAngles {
  float values[kLaneElements];

  template <RopePairing kPairing>
  __device__ void Load(const float* row, const LaneColumns& columns) {
    const auto load = [&](int place, const float* from) {
      const float4 four = __ldg(reinterpret_cast<const float4*>(from));
      values[place] = four.x, values[place + 1] = four.y;
      values[place + 2] = four.z, values[place + 3] = four.w;
    };
    if constexpr (kPairing == RopePairing::kHalf) {
      if (!columns.rotate_a) return;
#pragma unroll
      for (int i = 0; i < kLaneElements; i += 4) load(i, row + 2 * columns.a + i);
    } else {
#pragma unroll
      for (int i = 0; i < kChunk; i += 4) {
        if (columns.rotate_a) load(i, row + columns.a + i);
        if (columns.rotate_b) load(kChunk + i, row + columns.b + i);
      }
    }
  }
};

template <bool kInverse>
__device__ inline void RotatePair(float& x, float& y, float cosine, float sine) {
  const float xc = __fmul_rn(x, cosine), ys = __fmul_rn(y, sine);
  const float yc = __fmul_rn(y, cosine), xs = __fmul_rn(x, sine);
  x = kInverse ? __fadd_rn(xc, ys) : __fsub_rn(xc, ys);
  y = kInverse ? __fsub_rn(yc, xs) : __fadd_rn(yc, xs);
}

/// \param a, b [kChunk]
template <RopePairing kPairing, bool kInverse>
__device__ void RotateChunks(float* a, float* b, const LaneAngles& angles,
                             const LaneColumns& columns) {
  if constexpr (kPairing == RopePairing::kHalf) {
    if (!columns.rotate_a) return;
#pragma unroll
    for (int i = 0; i < kChunk; ++i) {
      RotatePair<kInverse>(a[i], b[i], angles.values[2 * i], angles.values[2 * i + 1]);
    }
  } else {
#pragma unroll
    for (int i = 0; i < kChunk; i += 2) {
      if (columns.rotate_a) {
        RotatePair<kInverse>(a[i], a[i + 1], angles.values[i], angles.values[i + 1]);
      }
      if (columns.rotate_b) {
        RotatePair<kInverse>(b[i], b[i + 1], angles.values[kChunk + i],
                             angles.values[kChunk + i + 1]);
      }
    }
  }
}

/// A thread's place in a vector kernel that takes all heads of a slice.
struct LanePlace {
  TokenTile tile;
  std::int32_t layer = 0;
  bool values = false;
  bool active = false;
  std::int32_t token = 0;  ///< of the descriptor
  int column = 0;
  int dim = 0;
};

/// All threads of a block call it together.
__device__ inline LanePlace FindLane(const Geometry& geometry, const Work& work) {
  LanePlace place;
  const std::uint32_t slices = 2u * static_cast<std::uint32_t>(geometry.layers);
  const std::uint32_t tile = blockIdx.x / slices;
  const std::uint32_t slice = blockIdx.x - tile * slices;
  place.layer = static_cast<std::int32_t>(slice / 2);
  place.values = slice % 2 != 0;
  place.dim = place.values ? geometry.value_dim : geometry.key_dim;
  place.tile = FindTile(work, static_cast<std::int32_t>(tile));
  const int lane = static_cast<int>(threadIdx.x) & 31, warp = static_cast<int>(threadIdx.x) >> 5;
  const int lanes_per_row = place.dim / kLaneElements;
  const int rows_per_warp = 32 / lanes_per_row;
  const int row = lane / lanes_per_row;
  place.column = lane - row * lanes_per_row;
  const int offset = warp * rows_per_warp + row;
  place.active = row < rows_per_warp && offset < place.tile.count;
  place.token = place.tile.first + offset;
  return place;
}

}  // namespace inferscale::kernels::cuda

#endif  // INFERSCALE_KERNELS_CUDA_VECTOR_CUH_
