#ifndef INFERSCALE_KERNELS_CPU_CACHE_ROWS_H_
#define INFERSCALE_KERNELS_CPU_CACHE_ROWS_H_

/// \file cache_rows.h
/// Rows of elements between a contiguous tile and an engine's cache of any strides.

#include <cstddef>
#include <cstdint>

#include "kernels/kernels.h"

namespace inferscale::kernels::cpu {

/// Where the keys or the values of one head lie in a cache; all strides in bytes.
struct HeadStrides {
  std::uint8_t* base = nullptr;  ///< element (slot 0 of block 0, dim 0)
  std::int64_t block = 0;
  std::int64_t slot = 0;
  std::int64_t dim = 0;
};

/// Which cache slots a run of tokens takes.
struct SlotRun {
  const std::int32_t* block_table = nullptr;
  std::int64_t block_slots = 0;
  std::int64_t first = 0;  ///< logical
  std::int32_t count = 0;
};

/// \param tile [slots.count][dim] elements of `element_bytes` (2 or 4)
void ScatterRows(const std::uint8_t* tile, std::int32_t dim, std::size_t element_bytes,
                 const SlotRun& slots, const HeadStrides& cache);
void GatherRows(const HeadStrides& cache, const SlotRun& slots, std::int32_t dim,
                std::size_t element_bytes, std::uint8_t* tile);

/// out[c][r] = in[r][c] for 16-bit elements; strides in elements. Regions must not overlap.
void Transpose16(const std::uint16_t* in, std::size_t in_stride, std::size_t rows,
                 std::size_t columns, std::uint16_t* out, std::size_t out_stride);

}  // namespace inferscale::kernels::cpu

#endif  // INFERSCALE_KERNELS_CPU_CACHE_ROWS_H_
