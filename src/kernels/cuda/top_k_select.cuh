#ifndef INFERSCALE_KERNELS_CUDA_TOP_K_SELECT_CUH_
#define INFERSCALE_KERNELS_CUDA_TOP_K_SELECT_CUH_

/// \file top_k_select.cuh
/// The second half of a search (top_k.cuh): one block a query makes the sorted top k of the scan's
/// values. Whatever the data, every row that can be among the top k is looked at; many ties only
/// take longer. A hit is (key << 32 | ~row), so that descending order is score descending, then row
/// ascending.

#include "kernels/cuda/top_k.cuh"

namespace inferscale::kernels::cuda {

struct SelectShared {
  unsigned long long least;  // hits have to be better than this: the k-th best so far
  std::uint32_t held;
  std::uint32_t listed;
  std::uint32_t lowest, highest, nonzero;
  std::uint32_t bin, above;
  std::uint32_t sums[kSelectThreads / 32];
};

/// Dynamic shared memory: [capacity] hits, [kBins] counts, [kListed] groups, the query.
constexpr std::size_t SelectBytes(std::uint32_t capacity, std::uint32_t pitch) {
  return std::size_t{capacity} * 8 + kBins * 4 + kListed * 4 + std::size_t{pitch} * 4;
}

/// Inclusive sum over the block's threads in their order.
__device__ __forceinline__ std::uint32_t BlockScan(std::uint32_t value, std::uint32_t* sums) {
  const std::uint32_t lane = threadIdx.x % 32, warp = threadIdx.x / 32;
#pragma unroll
  for (int offset = 1; offset < 32; offset *= 2) {
    const std::uint32_t other = __shfl_up_sync(0xffffffffu, value, offset);
    if (lane >= offset) value += other;
  }
  if (lane == 31) sums[warp] = value;
  __syncthreads();
  if (warp == 0) {
    std::uint32_t sum = sums[lane];
#pragma unroll
    for (int offset = 1; offset < 32; offset *= 2) {
      const std::uint32_t other = __shfl_up_sync(0xffffffffu, sum, offset);
      if (lane >= offset) sum += other;
    }
    sums[lane] = sum;
  }
  __syncthreads();
  return warp == 0 ? value : value + sums[warp - 1];
}

/// The k-th largest of the values that are not 0; 1 if there are no more than k of them. The bins
/// split the range between the lowest and the highest value that the k-th can still have.
__device__ std::uint32_t KthKey(const std::uint32_t* values, std::uint32_t count, std::uint32_t k,
                                std::uint32_t* bins, SelectShared& shared) {
  if (threadIdx.x == 0) {
    shared.lowest = ~0u;
    shared.highest = 0;
    shared.nonzero = 0;
  }
  __syncthreads();
  std::uint32_t lowest = ~0u, highest = 0, nonzero = 0;
#pragma unroll 4
  for (std::uint32_t i = threadIdx.x; i < count; i += kSelectThreads) {
    const std::uint32_t key = values[i];
    if (key != 0) {
      lowest = min(lowest, key);
      highest = max(highest, key);
      ++nonzero;
    }
  }
  lowest = __reduce_min_sync(0xffffffffu, lowest);
  highest = __reduce_max_sync(0xffffffffu, highest);
  nonzero = __reduce_add_sync(0xffffffffu, nonzero);
  if (threadIdx.x % 32 == 0) {
    atomicMin(&shared.lowest, lowest);
    atomicMax(&shared.highest, highest);
    atomicAdd(&shared.nonzero, nonzero);
  }
  __syncthreads();
  lowest = shared.lowest;
  highest = shared.highest;
  if (shared.nonzero <= k) return 1;

  std::uint32_t needed = k;
  while (true) {
    const int bits = 32 - __clz(static_cast<int>(highest - lowest));
    const int shift = bits > 11 ? bits - 11 : 0;
    for (std::uint32_t i = threadIdx.x; i < kBins; i += kSelectThreads) bins[i] = 0;
    __syncthreads();
#pragma unroll 4
    for (std::uint32_t i = threadIdx.x; i < count; i += kSelectThreads) {
      const std::uint32_t key = values[i];
      if (key >= lowest && key <= highest) atomicAdd(&bins[(key - lowest) >> shift], 1u);
    }
    __syncthreads();
    static_assert(kBins == 2 * kSelectThreads);
    const std::uint32_t upper_bin = kBins - 1 - 2 * threadIdx.x;
    const std::uint32_t upper = bins[upper_bin], sum = upper + bins[upper_bin - 1];
    const std::uint32_t through = BlockScan(sum, shared.sums), before = through - sum;
    if (before < needed && needed <= through) {
      const bool in_upper = needed <= before + upper;
      shared.bin = in_upper ? upper_bin : upper_bin - 1;
      shared.above = in_upper ? before : before + upper;
    }
    __syncthreads();
    lowest += shared.bin << shift;
    needed -= shared.above;
    if (shift == 0) return lowest;
    highest = min(highest, lowest + ((1u << shift) - 1));
  }
}

/// Sorts the hits, best first, and keeps the k best. Begins and ends with all threads together.
__device__ void KeepBest(unsigned long long* hits, std::uint32_t k, SelectShared& shared) {
  const std::uint32_t held = shared.held;
  std::uint32_t padded = 2;
  while (padded < held) padded *= 2;
  for (std::uint32_t i = held + threadIdx.x; i < padded; i += kSelectThreads) hits[i] = 0;
  __syncthreads();
  for (std::uint32_t size = 2; size <= padded; size *= 2) {
    for (std::uint32_t stride = size / 2; stride > 0; stride /= 2) {
      for (std::uint32_t i = threadIdx.x; i < padded / 2; i += kSelectThreads) {
        const std::uint32_t low = 2 * i - (i & (stride - 1)), high = low + stride;
        const unsigned long long a = hits[low], b = hits[high];
        if ((a < b) == ((low & size) == 0)) {
          hits[low] = b;
          hits[high] = a;
        }
      }
      __syncthreads();
    }
  }
  if (threadIdx.x == 0) {
    shared.held = min(held, k);
    shared.least = held >= k ? hits[k - 1] : 0;
  }
  __syncthreads();
}

__device__ __forceinline__ void Offer(std::uint32_t key, std::uint32_t row,
                                      unsigned long long* hits, unsigned long long least,
                                      SelectShared& shared) {
  const unsigned long long hit = static_cast<unsigned long long>(key) << 32 | ~row;
  if (hit > least) hits[atomicAdd(&shared.held, 1u)] = hit;
}

/// Scores the rows of the listed groups and empties the list. Begins and ends with all threads
/// together.
template <RowType kType>
__device__ void ScoreListed(const SearchQuery& query, const std::uint32_t* list,
                            const float4* vector, std::uint32_t eights, std::uint32_t capacity,
                            unsigned long long* hits, SelectShared& shared) {
  const std::uint32_t warp = threadIdx.x / 32, half = threadIdx.x / 16 & 1, lane = threadIdx.x & 15;
  const std::uint32_t listed = shared.listed, at_once = (capacity - query.k) / kGroupRows;
  for (std::uint32_t first = 0; first < listed; first += at_once) {
    const std::uint32_t groups = min(at_once, listed - first);
    const std::uint32_t held = shared.held;
    __syncthreads();
    if (held + groups * kGroupRows > capacity) KeepBest(hits, query.k, shared);
    const unsigned long long least = shared.least;
    // Eight rows of a group a warp at a time.
    for (std::uint32_t unit = warp; unit < groups * 4; unit += kSelectThreads / 32) {
      const std::uint32_t row = list[first + unit / 4] * kGroupRows + unit % 4 * 8 + half * 4;
      const unsigned wanted = WantedRows(query, row);
      float scores[4];
      ScoreFour<kType>(query, row, wanted, vector, eights, scores);
      if (lane < 4 && (wanted >> lane & 1) != 0) {
        Offer(KeyOf(Pick(scores, lane)), row + lane, hits, least, shared);
      }
    }
    __syncthreads();
  }
  if (threadIdx.x == 0) shared.listed = 0;
  __syncthreads();
}

/// \param hits [gridDim.x][hit_pitch]; those a query has fewer than k of are 0
template <RowType kType>
__global__ void __launch_bounds__(kSelectThreads)
    Select(const SearchQuery* queries, const float* vectors, std::uint32_t pitch,
           const std::uint32_t* all_values, std::uint32_t value_pitch, std::uint32_t capacity,
           unsigned long long* all_hits, std::uint32_t hit_pitch) {
  extern __shared__ uint4 select_memory[];
  __shared__ SelectShared shared;
  const SearchQuery query = queries[blockIdx.x];
  unsigned long long* const out = all_hits + std::size_t{blockIdx.x} * hit_pitch;
  if (query.count == 0 || query.k == 0) {
    for (std::uint32_t i = threadIdx.x; i < query.k; i += kSelectThreads) out[i] = 0;
    return;
  }
  const std::uint32_t eights = pitch / 8;
  auto* const hits = reinterpret_cast<unsigned long long*>(select_memory);
  auto* const bins = reinterpret_cast<std::uint32_t*>(hits + capacity);
  std::uint32_t* const list = bins + kBins;
  auto* const vector = reinterpret_cast<float4*>(list + kListed);
  const std::uint32_t* const values = all_values + std::size_t{blockIdx.x} * value_pitch;
  if (query.group != 1) LoadVector(vectors + std::size_t{blockIdx.x} * pitch, eights, vector);
  if (threadIdx.x == 0) {
    shared.least = 0;
    shared.held = 0;
    shared.listed = 0;
  }
  const std::uint32_t kth = KthKey(values, query.values, query.k, bins, shared);
  std::uint32_t least_key = kth;
  if (kth > 1 && query.margin > 0) {
    least_key = max(KeyOf(__fsub_rd(ScoreOf(kth), __fmul_ru(2.0f, query.margin))), 1u);
  }

  // Where all that qualifies fits, one pass; else as much at a time as surely fits.
  std::uint32_t qualified = 0;
#pragma unroll 4
  for (std::uint32_t i = threadIdx.x; i < query.values; i += kSelectThreads) {
    if (values[i] >= least_key) ++qualified;
  }
  __syncthreads();
  const std::uint32_t last_sum = BlockScan(qualified, shared.sums);
  if (threadIdx.x == kSelectThreads - 1) shared.nonzero = last_sum;
  __syncthreads();
  qualified = shared.nonzero;
  const std::uint32_t room = query.group == 1 ? capacity : kListed;
  const std::uint32_t pass = qualified <= room ? query.values : kSelectThreads;

  for (std::uint32_t begin = 0; begin < query.values; begin += pass) {
    const std::uint32_t end = min(query.values, begin + pass);
    const unsigned long long least = shared.least;
    for (std::uint32_t i = begin + threadIdx.x; i < end; i += kSelectThreads) {
      const std::uint32_t key = values[i];
      if (key < least_key) continue;
      if (query.group == 1) {
        Offer(key, i, hits, least, shared);
      } else {
        list[atomicAdd(&shared.listed, 1u)] = i;
      }
    }
    __syncthreads();
    const bool last = end == query.values;
    const std::uint32_t used = query.group == 1 ? shared.held : shared.listed;
    __syncthreads();
    if (query.group != 1) {
      if (last || used + kSelectThreads > kListed) {
        ScoreListed<kType>(query, list, vector, eights, capacity, hits, shared);
      }
    } else if (!last && used + kSelectThreads > capacity) {
      KeepBest(hits, query.k, shared);
    }
    __syncthreads();
  }
  KeepBest(hits, query.k, shared);
  const std::uint32_t held = shared.held;
  for (std::uint32_t i = threadIdx.x; i < query.k; i += kSelectThreads) {
    out[i] = i < held ? hits[i] : 0;
  }
}

}  // namespace inferscale::kernels::cuda

#endif  // INFERSCALE_KERNELS_CUDA_TOP_K_SELECT_CUH_
