#ifndef INFERSCALE_KERNELS_CPU_TRANSFER_H_
#define INFERSCALE_KERNELS_CPU_TRANSFER_H_

/// \file transfer.h
/// What inject and capture share: where a head lies in a cache, its angles, and scratch memory.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "kernels/cpu/cache_rows.h"
#include "kernels/cpu/convert.h"
#include "kernels/kernels.h"

namespace inferscale::kernels::cpu {

/// Tokens that are worked on at a time: tiles of them stay in the first-level cache.
inline constexpr std::int32_t kTileTokens = 64;

/// Scratch for kTileTokens rows; one a thread, kept between calls.
struct Tile {
  std::vector<float> rows;              ///< [kTileTokens][dim] f32
  std::vector<std::uint16_t> elements;  ///< the same in the cache's type

  static Tile& OfThread(const CodecView& view) {
    thread_local Tile tile;
    const std::size_t size = static_cast<std::size_t>(kTileTokens) *
                             static_cast<std::size_t>(std::max(view.key_dim, view.value_dim));
    if (tile.rows.size() < size) {
      tile.rows.resize(size);
      tile.elements.resize(2 * size);
    }
    return tile;
  }
  std::uint8_t* element_bytes() { return reinterpret_cast<std::uint8_t*>(elements.data()); }
};

inline HeadStrides KeysOf(const PagedLayout& layout, std::int32_t layer, std::int32_t head) {
  return {static_cast<std::uint8_t*>(layout.key_base[layer]) + head * layout.key_head_stride,
          layout.key_block_stride, layout.key_slot_stride, layout.key_dim_stride};
}

inline HeadStrides ValuesOf(const PagedLayout& layout, std::int32_t layer, std::int32_t head) {
  return {static_cast<std::uint8_t*>(layout.value_base[layer]) + head * layout.value_head_stride,
          layout.value_block_stride, layout.value_slot_stride, layout.value_dim_stride};
}

/// Angles of `layer` from `position` on, or nullptr for a layer that is not rotated.
inline const float* AnglesOf(const RopeTable& rope, std::int32_t layer, std::int64_t position) {
  const std::int64_t group = rope.layer_group[layer];
  if (group < 0) return nullptr;
  return rope.cos_sin + (group * rope.positions + position) * rope.width;
}

inline SlotRun SlotsOf(const PagedLayout& layout, const FactDescriptor& fact, std::int32_t offset,
                       std::int32_t count) {
  return {layout.block_table, layout.block_slots, std::int64_t{fact.slot} + offset, count};
}

/// Whether codec and cache hold the same elements, so that they can be copied as they are.
inline bool SameElements(KvCodec codec, ScalarType type) {
  return (codec == KvCodec::kF32 && type == ScalarType::kF32) ||
         (codec == KvCodec::kF16 && type == ScalarType::kF16) ||
         (codec == KvCodec::kBF16 && type == ScalarType::kBF16);
}

}  // namespace inferscale::kernels::cpu

#endif  // INFERSCALE_KERNELS_CPU_TRANSFER_H_
