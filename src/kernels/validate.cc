#include "kernels/validate.h"

#include <limits>

namespace inferscale::kernels {
namespace {

KernelStatus CheckView(const CodecView& view) {
  const bool ok = view.codec <= KvCodec::kInt4 && view.layers > 0 && view.kv_heads > 0 &&
                  view.key_dim > 0 && view.key_dim <= kMaxHeadDim && view.value_dim > 0 &&
                  view.value_dim <= kMaxHeadDim;
  return ok ? KernelStatus::kOk : KernelStatus::kBadView;
}

// \param rotates whether any layer is rotated.
KernelStatus CheckRope(const CodecView& view, const RopeTable& rope, bool& rotates) {
  rotates = false;
  if (rope.layer_group == nullptr || rope.groups < 0) return KernelStatus::kBadRope;
  for (std::int32_t layer = 0; layer < view.layers; ++layer) {
    const std::int32_t group = rope.layer_group[layer];
    if (group < -1 || group >= rope.groups) return KernelStatus::kBadRope;
    rotates = rotates || group >= 0;
  }
  if (!rotates) return KernelStatus::kOk;
  const bool ok = rope.cos_sin != nullptr && rope.positions > 0 && rope.width > 0 &&
                  rope.width % 2 == 0 && rope.width <= view.key_dim &&
                  rope.pairing <= RopePairing::kHalf;
  return ok ? KernelStatus::kOk : KernelStatus::kBadRope;
}

KernelStatus CheckLayout(const CodecView& view, const PagedLayout& layout, bool with_table) {
  if (layout.type > ScalarType::kBF16 || layout.key_base == nullptr ||
      layout.value_base == nullptr || layout.slots <= 0) {
    return KernelStatus::kBadLayout;
  }
  if (with_table && layout.block_slots <= 0) return KernelStatus::kBadLayout;
  for (std::int32_t layer = 0; layer < view.layers; ++layer) {
    if (layout.key_base[layer] == nullptr || layout.value_base[layer] == nullptr) {
      return KernelStatus::kBadLayout;
    }
  }
  return KernelStatus::kOk;
}

bool SlotsInRange(const PagedLayout& layout, std::int64_t first, std::int64_t count) {
  if (layout.block_table == nullptr) return first + count <= layout.slots;
  for (std::int64_t slot = first; slot < first + count;) {
    const std::int64_t block = layout.block_table[slot / layout.block_slots];
    const std::int64_t within = slot % layout.block_slots;
    const std::int64_t run = first + count - slot < layout.block_slots - within
                                 ? first + count - slot
                                 : layout.block_slots - within;
    std::int64_t end = 0;
    if (block < 0 || __builtin_mul_overflow(block, layout.block_slots, &end) ||
        __builtin_add_overflow(end, within + run, &end) || end > layout.slots) {
      return false;
    }
    slot += run;
  }
  return true;
}

bool DescriptorOk(const CodecView& view, const RopeTable& rope, bool rotates,
                  const PagedLayout& layout, const FactDescriptor& fact, Direction direction) {
  if (fact.payload == nullptr || fact.tokens <= 0 || fact.first < 0 || fact.count <= 0 ||
      std::int64_t{fact.first} + fact.count > fact.tokens || fact.position < 0 || fact.slot < 0 ||
      fact.tokens > std::numeric_limits<std::int32_t>::max() - 16) {
    return false;
  }
  if (direction == Direction::kCapture && (fact.first != 0 || fact.count != fact.tokens))
    return false;
  if (PayloadBytes(view, fact.tokens) == 0) return false;
  if (rotates && std::int64_t{fact.position} + fact.count > rope.positions) return false;
  return SlotsInRange(layout, fact.slot, fact.count);
}

}  // namespace

KernelStatus ValidateSetup(const CodecView& view, const RopeTable& rope, const PagedLayout& layout,
                           bool with_table) {
  KernelStatus status = CheckView(view);
  if (status != KernelStatus::kOk) return status;
  bool rotates = false;
  status = CheckRope(view, rope, rotates);
  if (status != KernelStatus::kOk) return status;
  return CheckLayout(view, layout, with_table);
}

KernelStatus ValidateDescriptors(const CodecView& view, const RopeTable& rope,
                                 const PagedLayout& layout, const FactDescriptor* facts,
                                 std::int32_t fact_count, Direction direction) {
  bool rotates = false;
  for (std::int32_t layer = 0; layer < view.layers; ++layer) {
    rotates = rotates || rope.layer_group[layer] >= 0;
  }
  for (std::int32_t i = 0; i < fact_count; ++i) {
    if (!DescriptorOk(view, rope, rotates, layout, facts[i], direction)) {
      return KernelStatus::kBadDescriptor;
    }
  }
  return KernelStatus::kOk;
}

KernelStatus ValidateArguments(const CodecView& view, const RopeTable& rope,
                               const PagedLayout& layout, const FactDescriptor* facts,
                               std::int32_t fact_count, Direction direction) {
  if (fact_count == 0) return KernelStatus::kOk;
  if (fact_count < 0 || facts == nullptr) return KernelStatus::kBadDescriptor;
  const KernelStatus status = ValidateSetup(view, rope, layout, layout.block_table != nullptr);
  if (status != KernelStatus::kOk) return status;
  return ValidateDescriptors(view, rope, layout, facts, fact_count, direction);
}

}  // namespace inferscale::kernels
