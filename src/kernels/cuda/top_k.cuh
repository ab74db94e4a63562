#ifndef INFERSCALE_KERNELS_CUDA_TOP_K_CUH_
#define INFERSCALE_KERNELS_CUDA_TOP_K_CUH_

/// \file top_k.cuh
/// The device side of exact top-k. A search is a scan and a selection.
///
/// The scan gives every query one value a row (small ranges), or the best of each group of 32 rows:
/// at most k groups can hold a row of the top k that is better than the k-th best group, so that
/// the selection has to look into about k groups only. A range of one query is scored exactly in
/// f32 (ScanOwn). Queries that share a range are scored together on tensor cores with the queries
/// rounded to f16 (ScanShared); those values are off by at most `margin`, so groups down to the
/// k-th best value less twice the margin are looked into. The selection scores the rows of its
/// groups exactly, with the function that ScanOwn uses.
///
/// Values are keys: unsigned integers in the order of the floats, 0 for "no row is allowed".

#include <cstdint>

#include <cuda_fp16.h>

#include "kernels/device_top_k.h"

namespace inferscale::kernels::cuda {

constexpr std::uint32_t kGroupRows = 32;
constexpr int kOwnThreads = 128;
constexpr int kOwnRows = kOwnThreads;  // a group of 32 a warp
constexpr int kSharedThreads = 256;
constexpr int kSelectThreads = 1024;
constexpr std::uint32_t kBins = 2048;
constexpr std::uint32_t kListed = 2048;

struct SearchQuery {
  const std::uint8_t* rows;
  const float* scales;
  const std::uint64_t* allowed;
  std::uint32_t count;
  std::uint32_t k;
  std::uint32_t group;   // rows a value: 1 or kGroupRows
  std::uint32_t values;  // how many
  float margin;          // of a value, in its own unit
};

/// Blocks from `first_block` on scan the range of `query`.
struct OwnJob {
  std::uint32_t first_block;
  std::uint32_t query;
};

struct SharedJob {
  const std::uint8_t* rows;
  const float* scales;
  const uint4* vectors;         // [columns][pitch] f16
  const std::uint32_t* column;  // [columns] the query of each
  const SearchQuery* queries;
  std::uint32_t* values;
  std::uint32_t value_pitch;
  std::uint32_t count;
  std::uint32_t columns;
  std::uint32_t pitch;
  bool restricted;  // some query has a bitmap
};

__device__ __forceinline__ std::uint32_t KeyOf(float score) {
  if (!(score == score)) score = -INFINITY;  // as TopK does
  if (score == 0) score = 0;                 // one zero
  const std::uint32_t bits = __float_as_uint(score);
  return (bits & 0x80000000u) != 0 ? ~bits : bits | 0x80000000u;
}

__device__ __forceinline__ float ScoreOf(std::uint32_t key) {
  return __uint_as_float((key & 0x80000000u) != 0 ? key & 0x7fffffffu : ~key);
}

/// Eight elements of a row as they lie in memory, and as four pairs of f16.
template <RowType kType>
struct Eight;

template <>
struct Eight<RowType::kF16> {
  static constexpr int kBytes = 16;
  uint4 raw;

  __device__ __forceinline__ void Zero() { raw = make_uint4(0, 0, 0, 0); }
  // Rows are read once: past the first cache, whole lines into the second.
  __device__ __forceinline__ void Load(const std::uint8_t* address) {
    asm volatile("ld.global.nc.L1::no_allocate.L2::128B.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(raw.x), "=r"(raw.y), "=r"(raw.z), "=r"(raw.w)
                 : "l"(address));
  }
  __device__ __forceinline__ void Pairs(std::uint32_t (&pairs)[4]) const {
    pairs[0] = raw.x;
    pairs[1] = raw.y;
    pairs[2] = raw.z;
    pairs[3] = raw.w;
  }
};

template <>
struct Eight<RowType::kInt8> {
  static constexpr int kBytes = 8;
  uint2 raw;

  __device__ __forceinline__ void Zero() { raw = make_uint2(0, 0); }
  __device__ __forceinline__ void Load(const std::uint8_t* address) {
    asm volatile("ld.global.nc.L1::no_allocate.L2::128B.v2.u32 {%0, %1}, [%2];"
                 : "=r"(raw.x), "=r"(raw.y)
                 : "l"(address));
  }
  // 0x6400 | u is the f16 1024 + u; u = code + 128.
  __device__ static __forceinline__ std::uint32_t Pair(std::uint32_t biased, unsigned selector) {
    const std::uint32_t shifted = __byte_perm(biased, 0x64646464u, selector);
    const __half2 codes = __hsub2(*reinterpret_cast<const __half2*>(&shifted),
                                  __half2half2(__ushort_as_half(0x6480)));
    return *reinterpret_cast<const std::uint32_t*>(&codes);
  }
  __device__ __forceinline__ void Pairs(std::uint32_t (&pairs)[4]) const {
    const std::uint32_t low = raw.x ^ 0x80808080u, high = raw.y ^ 0x80808080u;
    pairs[0] = Pair(low, 0x4140);
    pairs[1] = Pair(low, 0x4342);
    pairs[2] = Pair(high, 0x4140);
    pairs[3] = Pair(high, 0x4342);
  }
};

/// The query as ScoreFour takes it: [2][pitch / 8] float4, the first and the second halves of its
/// eights, so that neighbouring lanes read neighbouring words.
__device__ __forceinline__ void LoadVector(const float* vector, std::uint32_t eights,
                                           float4* shared) {
  const auto* quads = reinterpret_cast<const float4*>(vector);
  for (std::uint32_t i = threadIdx.x; i < 2 * eights; i += blockDim.x) {
    shared[(i & 1) * eights + i / 2] = quads[i];
  }
}

/// Exact scores of four rows by sixteen lanes, the same in all of them. Rows whose bit in `wanted`
/// is off are not read and score 0. All lanes of a warp have to call it.
template <RowType kType>
__device__ __forceinline__ void ScoreFour(const SearchQuery& query, std::uint32_t row,
                                          unsigned wanted, const float4* vector,
                                          std::uint32_t eights, float (&scores)[4]) {
  using E = Eight<kType>;
  const std::uint32_t lane = threadIdx.x & 15;
  const std::int64_t row_bytes = std::int64_t{eights} * E::kBytes;
  const std::uint8_t* const first = query.rows + std::int64_t{row} * row_bytes;
#pragma unroll
  for (int r = 0; r < 4; ++r) scores[r] = 0;
#pragma unroll 3
  for (std::uint32_t c = lane; c < eights; c += 16) {
    E row_eight[4];
#pragma unroll
    for (int r = 0; r < 4; ++r) {
      row_eight[r].Zero();
      if ((wanted >> r & 1) != 0) row_eight[r].Load(first + r * row_bytes + c * E::kBytes);
    }
    const float4 a = vector[c], b = vector[eights + c];
#pragma unroll
    for (int r = 0; r < 4; ++r) {
      std::uint32_t pairs[4];
      row_eight[r].Pairs(pairs);
      const float2 p0 = __half22float2(*reinterpret_cast<const __half2*>(&pairs[0]));
      const float2 p1 = __half22float2(*reinterpret_cast<const __half2*>(&pairs[1]));
      const float2 p2 = __half22float2(*reinterpret_cast<const __half2*>(&pairs[2]));
      const float2 p3 = __half22float2(*reinterpret_cast<const __half2*>(&pairs[3]));
      float sum = scores[r];
      sum = __fmaf_rn(p0.x, a.x, sum);
      sum = __fmaf_rn(p0.y, a.y, sum);
      sum = __fmaf_rn(p1.x, a.z, sum);
      sum = __fmaf_rn(p1.y, a.w, sum);
      sum = __fmaf_rn(p2.x, b.x, sum);
      sum = __fmaf_rn(p2.y, b.y, sum);
      sum = __fmaf_rn(p3.x, b.z, sum);
      scores[r] = __fmaf_rn(p3.y, b.w, sum);
    }
  }
#pragma unroll
  for (int r = 0; r < 4; ++r) {
#pragma unroll
    for (int other = 8; other > 0; other /= 2) {
      scores[r] += __shfl_xor_sync(0xffffffffu, scores[r], other);
    }
    if constexpr (kType == RowType::kInt8) {
      if ((wanted >> r & 1) != 0) scores[r] *= query.scales[row + r];
    }
  }
}

/// Which of the four rows from `row` on are in the range and allowed. \param row a multiple of 4
__device__ __forceinline__ unsigned WantedRows(const SearchQuery& query, std::uint32_t row) {
  if (row >= query.count) return 0;
  unsigned wanted = 0xf;
  if (query.allowed != nullptr) wanted &= unsigned(query.allowed[row / 64] >> (row % 64));
  const std::uint32_t left = query.count - row;
  return left < 4 ? wanted & ((1u << left) - 1) : wanted;
}

__device__ __forceinline__ float Pick(const float (&scores)[4], std::uint32_t index) {
  const float low = index == 0 ? scores[0] : scores[1];
  const float high = index == 2 ? scores[2] : scores[3];
  return index < 2 ? low : high;
}

template <RowType kType>
__global__ void __launch_bounds__(kOwnThreads)
    ScanOwn(const SearchQuery* queries, const OwnJob* jobs, std::uint32_t job_count,
            const float* vectors, std::uint32_t pitch, std::uint32_t* values,
            std::uint32_t value_pitch) {
  extern __shared__ float4 shared_vector[];
  std::uint32_t begin = 0, end = job_count;
  while (end - begin > 1) {
    const std::uint32_t middle = (begin + end) / 2;
    if (jobs[middle].first_block <= blockIdx.x) {
      begin = middle;
    } else {
      end = middle;
    }
  }
  const OwnJob job = jobs[begin];
  const SearchQuery query = queries[job.query];
  const std::uint32_t eights = pitch / 8;
  LoadVector(vectors + std::size_t{job.query} * pitch, eights, shared_vector);
  __syncthreads();

  const std::uint32_t warp = threadIdx.x / 32, half = threadIdx.x / 16 & 1, lane = threadIdx.x & 15;
  const std::uint32_t group = (blockIdx.x - job.first_block) * (kOwnThreads / 32) + warp;
  const std::uint32_t first = group * kGroupRows;
  if (first >= query.count) return;
  std::uint32_t* const out = values + std::size_t{job.query} * value_pitch;
  std::uint32_t best = 0;
#pragma unroll 1
  for (std::uint32_t i = 0; i < kGroupRows; i += 8) {
    const std::uint32_t row = first + i + half * 4;
    const unsigned wanted = WantedRows(query, row);
    float scores[4];
    ScoreFour<kType>(query, row, wanted, shared_vector, eights, scores);
    if (lane < 4 && row + lane < query.count) {
      const std::uint32_t key = (wanted >> lane & 1) != 0 ? KeyOf(Pick(scores, lane)) : 0;
      if (query.group == 1) out[row + lane] = key;
      best = max(best, key);
    }
  }
  if (query.group == 1) return;
  best = __reduce_max_sync(0xffffffffu, best);
  if (threadIdx.x % 32 == 0) out[group] = best;
}

__device__ __forceinline__ void Multiply(float (&sum)[4], std::uint32_t a0, std::uint32_t a1,
                                         std::uint32_t a2, std::uint32_t a3, std::uint32_t b0,
                                         std::uint32_t b1) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
      "{%8, %9}, {%0, %1, %2, %3};"
      : "+f"(sum[0]), "+f"(sum[1]), "+f"(sum[2]), "+f"(sum[3])
      : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}

/// uint4 of one query in shared memory: 64 bytes past a multiple of 128, so that the two queries
/// that a quarter of a warp reads at once lie in different banks.
__host__ __device__ constexpr std::uint32_t SharedVectorUnits(std::uint32_t pitch) {
  return (pitch * 2 + 127) / 128 * 8 + 4;
}
constexpr std::size_t SharedScanBytes(std::uint32_t pitch, int column_tiles) {
  return std::size_t{SharedVectorUnits(pitch)} * 16 * 8 * static_cast<std::size_t>(column_tiles);
}

/// A warp scores 32 rows with 8 · kColumnTiles queries at a time. Products of a sum may be taken in
/// any order, so a lane gives the tensor core eight neighbouring elements of a row, one load, where
/// its layout has pairs that lie apart; the queries' elements are permuted in the same way. Loads
/// are kDepth steps of 32 elements ahead, across the end of a tile.
template <RowType kType, int kColumnTiles>
__global__ void __launch_bounds__(kSharedThreads, 1) ScanShared(const SharedJob job) {
  using E = Eight<kType>;
  constexpr int kDepth = 4;
  constexpr int kColumns = 8 * kColumnTiles;
  extern __shared__ uint4 shared_vectors[];
  __shared__ const std::uint32_t* shared_allowed[kColumns];

  const std::uint32_t eights = job.pitch / 8, units = SharedVectorUnits(job.pitch);
  for (std::uint32_t i = threadIdx.x; i < kColumns * eights; i += kSharedThreads) {
    const std::uint32_t column = i / eights;
    shared_vectors[column * units + i % eights] =
        column < job.columns ? job.vectors[i] : make_uint4(0, 0, 0, 0);
  }
  if (threadIdx.x < kColumns) {
    shared_allowed[threadIdx.x] =
        threadIdx.x < job.columns
            ? reinterpret_cast<const std::uint32_t*>(job.queries[job.column[threadIdx.x]].allowed)
            : nullptr;
  }
  __syncthreads();

  const std::uint32_t lane = threadIdx.x % 32, row_lane = lane / 4, part = lane % 4;
  const std::uint32_t tiles = (job.count + kGroupRows - 1) / kGroupRows;
  const std::uint32_t stride = gridDim.x * (kSharedThreads / 32);
  const std::uint32_t first_tile = threadIdx.x / 32 * gridDim.x + blockIdx.x;
  if (first_tile >= tiles) return;
  const std::uint32_t steps = eights / 4;
  const std::uint32_t my_tiles = (tiles - 1 - first_tile) / stride + 1;
  const std::int64_t row_bytes = std::int64_t{eights} * E::kBytes;

  // After the reduction over rows a lane holds these columns' best.
  constexpr int kKept = kColumnTiles >= 4 ? kColumnTiles / 4 : 1;
  const std::uint32_t kept = kColumnTiles >= 4 ? (lane & 16 ? kColumnTiles : 0) +
                                                     (lane & 8 ? kColumnTiles / 2 : 0) +
                                                     (lane & 4 ? kColumnTiles / 4 : 0)
                                               : (lane & 16 ? 2 : 0) + (lane & 8 ? 1 : 0);
  std::uint32_t* out[kKept];
#pragma unroll
  for (int i = 0; i < kKept; ++i) {
    const std::uint32_t index = kept + i;
    const std::uint32_t column = index / 2 * 8 + part * 2 + index % 2;
    const bool mine = column < job.columns && (kColumnTiles >= 4 || (lane & 4) == 0);
    out[i] = mine ? job.values + std::size_t{job.column[column]} * job.value_pitch : nullptr;
  }

  const std::uint8_t* next[4];
  std::uint32_t next_tile = first_tile, next_step = 0, left = my_tiles * steps;
  const auto point = [&] {
#pragma unroll
    for (int r = 0; r < 4; ++r) {
      const std::uint32_t row = min(next_tile * kGroupRows + r * 8 + row_lane, job.count - 1);
      next[r] = job.rows + std::int64_t{row} * row_bytes + part * E::kBytes;
    }
  };
  const auto load = [&](E(&into)[4]) {
    if (left == 0) return;
    --left;
#pragma unroll
    for (int r = 0; r < 4; ++r) {
      into[r].Load(next[r]);
      next[r] += 4 * E::kBytes;
    }
    if (++next_step == steps) {
      next_step = 0;
      next_tile += stride;
      if (left != 0) point();
    }
  };

  float sum[2][kColumnTiles][4] = {};
  const auto finish = [&](std::uint32_t tile) {
    const std::uint32_t first = tile * kGroupRows;
    float scale[4];
    bool inside[4];
#pragma unroll
    for (int r = 0; r < 4; ++r) {
      const std::uint32_t row = first + r * 8 + row_lane;
      inside[r] = row < job.count;
      scale[r] = 1;
      if constexpr (kType == RowType::kInt8) {
        if (inside[r]) scale[r] = job.scales[row];
      }
    }
    float best[2 * kColumnTiles];
#pragma unroll
    for (int c = 0; c < 2 * kColumnTiles; ++c) {
      std::uint32_t word = ~0u;
      if (job.restricted) {
        const std::uint32_t* const allowed = shared_allowed[c / 2 * 8 + part * 2 + c % 2];
        if (allowed != nullptr) word = allowed[tile];
      }
      best[c] = -INFINITY;
#pragma unroll
      for (int r = 0; r < 4; ++r) {
        float score = sum[r / 2][c / 2][r % 2 * 2 + c % 2];
        if constexpr (kType == RowType::kInt8) score *= scale[r];
        if (inside[r] && (word >> (r * 8 + row_lane) & 1) != 0) best[c] = fmaxf(best[c], score);
      }
    }
    // Lanes that share `part` hold the same columns of other rows: each gives half of its columns
    // away for the rows of the other's half.
    int held = 2 * kColumnTiles;
#pragma unroll
    for (int other = 16; other >= 4; other /= 2) {
      if (held > 1) {
        held /= 2;
        const bool upper = (lane & other) != 0;
#pragma unroll
        for (int i = 0; i < kColumnTiles; ++i) {
          if (i >= held) break;
          const float given = upper ? best[i] : best[i + held];
          const float mine = upper ? best[i + held] : best[i];
          best[i] = fmaxf(mine, __shfl_xor_sync(0xffffffffu, given, other));
        }
      } else {
        best[0] = fmaxf(best[0], __shfl_xor_sync(0xffffffffu, best[0], other));
      }
    }
#pragma unroll
    for (int i = 0; i < kKept; ++i) {
      if (out[i] != nullptr) out[i][tile] = best[i] == -INFINITY ? 0 : KeyOf(best[i]);
    }
#pragma unroll
    for (int m = 0; m < 2; ++m) {
#pragma unroll
      for (int c = 0; c < kColumnTiles; ++c) {
#pragma unroll
        for (int i = 0; i < 4; ++i) sum[m][c][i] = 0;
      }
    }
  };

  E ahead[kDepth][4];
  point();
#pragma unroll
  for (int d = 0; d < kDepth; ++d) load(ahead[d]);
  const uint4* const my_vectors = shared_vectors + row_lane * units + part;
  std::uint32_t tile = first_tile, step = 0;
  for (std::uint32_t done = 0; done < my_tiles * steps;) {
#pragma unroll
    for (int d = 0; d < kDepth; ++d) {
      if (done == my_tiles * steps) break;
      std::uint32_t a[4][4];
#pragma unroll
      for (int r = 0; r < 4; ++r) ahead[d][r].Pairs(a[r]);
#pragma unroll
      for (int c = 0; c < kColumnTiles; ++c) {
        const uint4 b = my_vectors[c * 8 * units + step * 4];
#pragma unroll
        for (int m = 0; m < 2; ++m) {
          Multiply(sum[m][c], a[2 * m][0], a[2 * m + 1][0], a[2 * m][1], a[2 * m + 1][1], b.x, b.y);
        }
#pragma unroll
        for (int m = 0; m < 2; ++m) {
          Multiply(sum[m][c], a[2 * m][2], a[2 * m + 1][2], a[2 * m][3], a[2 * m + 1][3], b.z, b.w);
        }
      }
      load(ahead[d]);
      ++done;
      if (++step == steps) {
        finish(tile);
        tile += stride;
        step = 0;
      }
    }
  }
}

}  // namespace inferscale::kernels::cuda

#endif  // INFERSCALE_KERNELS_CUDA_TOP_K_CUH_
