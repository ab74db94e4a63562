#include "kernels/cpu/cache_rows.h"

#include <algorithm>
#include <cstring>

namespace inferscale::kernels::cpu {
namespace {

bool IsAligned(const std::uint8_t* pointer, std::int64_t stride) {
  return reinterpret_cast<std::uintptr_t>(pointer) % 2 == 0 && stride % 2 == 0;
}

// Tokens of one block, at slots that are `cache.slot` bytes apart from `place` on.
void ScatterRun(const std::uint8_t* tile, std::int32_t count, std::int32_t dim,
                std::size_t element_bytes, const HeadStrides& cache, std::uint8_t* place) {
  const auto element = static_cast<std::int64_t>(element_bytes);
  const std::size_t row_bytes = static_cast<std::size_t>(dim) * element_bytes;
  if (cache.dim == element) {
    for (std::int32_t t = 0; t < count; ++t) {
      std::memcpy(place + t * cache.slot, tile + static_cast<std::size_t>(t) * row_bytes,
                  row_bytes);
    }
  } else if (element == 2 && cache.slot == 2 && cache.dim > 0 && IsAligned(place, cache.dim)) {
    Transpose16(reinterpret_cast<const std::uint16_t*>(tile), static_cast<std::size_t>(dim),
                static_cast<std::size_t>(count), static_cast<std::size_t>(dim),
                reinterpret_cast<std::uint16_t*>(place), static_cast<std::size_t>(cache.dim) / 2);
  } else {
    for (std::int32_t t = 0; t < count; ++t) {
      for (std::int32_t d = 0; d < dim; ++d, tile += element_bytes) {
        std::memcpy(place + t * cache.slot + d * cache.dim, tile, element_bytes);
      }
    }
  }
}

void GatherRun(std::uint8_t* tile, std::int32_t count, std::int32_t dim, std::size_t element_bytes,
               const HeadStrides& cache, const std::uint8_t* place) {
  const auto element = static_cast<std::int64_t>(element_bytes);
  const std::size_t row_bytes = static_cast<std::size_t>(dim) * element_bytes;
  if (cache.dim == element) {
    for (std::int32_t t = 0; t < count; ++t) {
      std::memcpy(tile + static_cast<std::size_t>(t) * row_bytes, place + t * cache.slot,
                  row_bytes);
    }
  } else if (element == 2 && cache.slot == 2 && cache.dim > 0 && IsAligned(place, cache.dim)) {
    Transpose16(reinterpret_cast<const std::uint16_t*>(place),
                static_cast<std::size_t>(cache.dim) / 2, static_cast<std::size_t>(dim),
                static_cast<std::size_t>(count), reinterpret_cast<std::uint16_t*>(tile),
                static_cast<std::size_t>(dim));
  } else {
    for (std::int32_t t = 0; t < count; ++t) {
      for (std::int32_t d = 0; d < dim; ++d, tile += element_bytes) {
        std::memcpy(tile, place + t * cache.slot + d * cache.dim, element_bytes);
      }
    }
  }
}

// Calls `run(first token, tokens, address)` for each part of `slots` that lies in one block.
template <typename Run>
void ForEachRun(const SlotRun& slots, const HeadStrides& cache, Run run) {
  if (slots.block_table == nullptr) {
    run(0, slots.count, cache.base + slots.first * cache.slot);
    return;
  }
  for (std::int32_t done = 0; done < slots.count;) {
    const std::int64_t slot = slots.first + done;
    const std::int64_t block = slots.block_table[slot / slots.block_slots];
    const std::int64_t within = slot % slots.block_slots;
    const auto count = static_cast<std::int32_t>(
        std::min<std::int64_t>(slots.count - done, slots.block_slots - within));
    run(done, count, cache.base + block * cache.block + within * cache.slot);
    done += count;
  }
}

}  // namespace

void ScatterRows(const std::uint8_t* tile, std::int32_t dim, std::size_t element_bytes,
                 const SlotRun& slots, const HeadStrides& cache) {
  const std::size_t row_bytes = static_cast<std::size_t>(dim) * element_bytes;
  ForEachRun(slots, cache, [&](std::int32_t first, std::int32_t count, std::uint8_t* place) {
    ScatterRun(tile + static_cast<std::size_t>(first) * row_bytes, count, dim, element_bytes, cache,
               place);
  });
}

void GatherRows(const HeadStrides& cache, const SlotRun& slots, std::int32_t dim,
                std::size_t element_bytes, std::uint8_t* tile) {
  const std::size_t row_bytes = static_cast<std::size_t>(dim) * element_bytes;
  ForEachRun(slots, cache, [&](std::int32_t first, std::int32_t count, const std::uint8_t* place) {
    GatherRun(tile + static_cast<std::size_t>(first) * row_bytes, count, dim, element_bytes, cache,
              place);
  });
}

}  // namespace inferscale::kernels::cpu
