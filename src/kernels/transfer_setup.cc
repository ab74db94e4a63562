#include "kernels/transfer_setup.h"

#include <cstddef>

namespace inferscale::kernels {
namespace {

Status Refusal(KernelStatus status) {
  switch (status) {
    case KernelStatus::kBadView:
      return InvalidArgument("transfer setup: unknown codec, or a count that is out of range");
    case KernelStatus::kBadRope:
      return InvalidArgument("transfer setup: the rotation does not fit the layers or keys");
    case KernelStatus::kBadLayout:
      return InvalidArgument("transfer setup: the cache's layout has no base, slots or blocks");
    default:
      return OkStatus();
  }
}

}  // namespace

Result<OwnedSetup> OwnedSetup::Copy(const TransferSetup& setup) {
  if (setup.max_facts < 1 || setup.max_table_blocks < 0) {
    return InvalidArgument("transfer setup: max_facts must be at least 1, max_table_blocks 0");
  }
  INFERSCALE_RETURN_IF_ERROR(
      Refusal(ValidateSetup(setup.view, setup.rope, setup.layout, setup.max_table_blocks > 0)));
  OwnedSetup owned;
  owned.view_ = setup.view;
  owned.rope_ = setup.rope;
  owned.layout_ = setup.layout;
  owned.max_facts_ = setup.max_facts;
  owned.max_table_blocks_ = setup.max_table_blocks;
  const auto layers = static_cast<std::size_t>(setup.view.layers);
  owned.layer_group_.assign(setup.rope.layer_group, setup.rope.layer_group + layers);
  owned.key_base_.assign(setup.layout.key_base, setup.layout.key_base + layers);
  owned.value_base_.assign(setup.layout.value_base, setup.layout.value_base + layers);
  if (setup.rope.cos_sin != nullptr && setup.rope.groups > 0 && setup.rope.positions > 0 &&
      setup.rope.width > 0) {
    const auto floats = static_cast<std::size_t>(setup.rope.groups) *
                        static_cast<std::size_t>(setup.rope.positions) *
                        static_cast<std::size_t>(setup.rope.width);
    owned.cos_sin_.assign(setup.rope.cos_sin, setup.rope.cos_sin + floats);
  }
  return owned;
}

KernelStatus OwnedSetup::Check(const FactDescriptor* facts, std::int32_t fact_count,
                               const std::int32_t* block_table, std::int32_t table_blocks,
                               Direction direction) const {
  if (fact_count == 0) return KernelStatus::kOk;
  if (fact_count < 0 || fact_count > max_facts_ || facts == nullptr || table_blocks < 0 ||
      table_blocks > max_table_blocks_ || (block_table == nullptr) != (table_blocks == 0)) {
    return KernelStatus::kBadDescriptor;
  }
  for (std::int32_t i = 0; i < fact_count; ++i) {
    if (reinterpret_cast<std::uintptr_t>(facts[i].payload) % kSegmentAlignment != 0) {
      return KernelStatus::kBadDescriptor;
    }
  }
  if (block_table != nullptr) {
    // Before the other checks, which read the table at these slots.
    const std::int64_t covered = table_blocks * layout_.block_slots;
    for (std::int32_t i = 0; i < fact_count; ++i) {
      if (std::int64_t{facts[i].slot} + facts[i].count > covered) {
        return KernelStatus::kBadDescriptor;
      }
    }
  }
  return ValidateDescriptors(view_, rope(), layout(block_table), facts, fact_count, direction);
}

RopeTable OwnedSetup::rope() const {
  RopeTable rope = rope_;
  rope.cos_sin = cos_sin_.empty() ? nullptr : cos_sin_.data();
  rope.layer_group = layer_group_.data();
  return rope;
}

PagedLayout OwnedSetup::layout(const std::int32_t* block_table) const {
  PagedLayout layout = layout_;
  layout.key_base = key_base_.data();
  layout.value_base = value_base_.data();
  layout.block_table = block_table;
  return layout;
}

}  // namespace inferscale::kernels
