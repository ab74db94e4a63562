#include <cstring>

#include "kernels/cpu/codec.h"
#include "kernels/cpu/rotate.h"
#include "kernels/cpu/transfer.h"
#include "kernels/kernels.h"
#include "kernels/validate.h"

namespace inferscale::kernels {
namespace {

using cpu::kTileTokens;
static_assert(kMaxKeyGroupTokens <= kTileTokens, "a key group is encoded in one piece");

// Tokens [first, first + count) of a head, as f32 rows in the tile.
void Load(const PagedLayout& layout, const FactDescriptor& fact, std::int32_t first,
          std::int32_t count, std::int32_t dim, const cpu::HeadStrides& cache, cpu::Tile& tile) {
  cpu::GatherRows(cache, cpu::SlotsOf(layout, fact, first, count), dim,
                  cpu::ScalarBytes(layout.type), tile.element_bytes());
  cpu::FromScalars(layout.type, tile.element_bytes(), tile.rows.data(),
                   static_cast<std::size_t>(count) * static_cast<std::size_t>(dim));
}

void CaptureKeys(const CodecView& view, const RopeTable& rope, const PagedLayout& layout,
                 const FactDescriptor& fact, std::int32_t layer, std::int32_t head,
                 std::uint8_t* segment, cpu::Tile& tile) {
  const cpu::HeadStrides cache = cpu::KeysOf(layout, layer, head);
  const float* angles = cpu::AnglesOf(rope, layer, fact.position);
  for (std::int32_t group = 0; group < KeyGroups(fact.tokens); ++group) {
    const std::int32_t first = KeyGroupBegin(fact.tokens, group);
    const std::int32_t count = KeyGroupBegin(fact.tokens, group + 1) - first;
    Load(layout, fact, first, count, view.key_dim, cache, tile);
    if (angles != nullptr) {
      cpu::RotateRows(tile.rows.data(), count, view.key_dim,
                      angles + std::int64_t{first} * rope.width, rope.width, rope.pairing,
                      /*inverse=*/true);
    }
    cpu::EncodeKeyGroup(view.codec, tile.rows.data(), fact.tokens, view.key_dim, group, segment);
  }
}

void CaptureValues(const CodecView& view, const PagedLayout& layout, const FactDescriptor& fact,
                   std::int32_t layer, std::int32_t head, std::uint8_t* segment, cpu::Tile& tile) {
  const cpu::HeadStrides cache = cpu::ValuesOf(layout, layer, head);
  if (cpu::SameElements(view.codec, layout.type)) {
    cpu::GatherRows(cache, cpu::SlotsOf(layout, fact, 0, fact.count), view.value_dim,
                    cpu::ScalarBytes(layout.type), segment);
    return;
  }
  for (std::int32_t first = 0; first < fact.count; first += kTileTokens) {
    const std::int32_t count = std::min(kTileTokens, fact.count - first);
    Load(layout, fact, first, count, view.value_dim, cache, tile);
    cpu::EncodeValues(view.codec, tile.rows.data(), fact.tokens, view.value_dim, first, count,
                      segment);
  }
}

// Padding is zeros, so that equal KV gives equal bytes.
void ClearPadding(std::uint8_t* segment, std::size_t bytes) {
  std::memset(segment + bytes - kSegmentAlignment, 0, kSegmentAlignment);
}

}  // namespace

KernelStatus Capture(const CodecView& view, const RopeTable& rope, const PagedLayout& layout,
                     const FactDescriptor* facts, std::int32_t fact_count) {
  const KernelStatus status =
      ValidateArguments(view, rope, layout, facts, fact_count, Direction::kCapture);
  if (status != KernelStatus::kOk || fact_count == 0) return status;
  cpu::Tile& tile = cpu::Tile::OfThread(view);
  for (std::int32_t layer = 0; layer < view.layers; ++layer) {
    for (std::int32_t i = 0; i < fact_count; ++i) {
      const FactDescriptor& fact = facts[i];
      const std::size_t key_bytes = KeySegmentBytes(view.codec, fact.tokens, view.key_dim);
      const std::size_t value_bytes = ValueSegmentBytes(view.codec, fact.tokens, view.value_dim);
      for (std::int32_t head = 0; head < view.kv_heads; ++head) {
        std::uint8_t* keys = fact.payload + SegmentOffset(view, fact.tokens, layer, head);
        std::uint8_t* values = keys + key_bytes;
        ClearPadding(keys, key_bytes);
        ClearPadding(values, value_bytes);
        CaptureKeys(view, rope, layout, fact, layer, head, keys, tile);
        CaptureValues(view, layout, fact, layer, head, values, tile);
      }
    }
  }
  return KernelStatus::kOk;
}

}  // namespace inferscale::kernels
