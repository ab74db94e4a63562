#include "engine/llama/kv_transfer.h"

#include <algorithm>
#include <string>

#include "kernels/kernels.h"

namespace inferscale {
namespace {

/// A section of a state as the kernels see it; owns what the layout points to.
struct SectionLayout {
  std::vector<void*> keys, values;
  std::vector<std::int32_t> table;
  kernels::PagedLayout layout;
};

SectionLayout MakeLayout(std::span<std::uint8_t> blob, const StateShape& shape,
                         const StateSection& section, const KvGeometry& geometry) {
  SectionLayout result;
  for (const std::size_t offset : section.key_offset) result.keys.push_back(blob.data() + offset);
  for (const std::size_t offset : section.value_offset)
    result.values.push_back(blob.data() + offset);
  kernels::PagedLayout& layout = result.layout;
  const std::int64_t element = shape.element_bytes;
  const std::int64_t cells = section.cells();
  layout.type = shape.element_type == kStateF32    ? kernels::ScalarType::kF32
                : shape.element_type == kStateBF16 ? kernels::ScalarType::kBF16
                                                   : kernels::ScalarType::kF16;
  layout.key_base = result.keys.data();
  layout.value_base = result.values.data();
  layout.slots = cells;
  layout.key_slot_stride = shape.key_elements * element;
  layout.key_head_stride = geometry.key_dim * element;
  layout.key_dim_stride = element;
  if (shape.transposed_values) {
    layout.value_slot_stride = element;
    layout.value_dim_stride = cells * element;
    layout.value_head_stride = geometry.value_dim * cells * element;
  } else {
    layout.value_slot_stride = shape.value_elements * element;
    layout.value_head_stride = geometry.value_dim * element;
    layout.value_dim_stride = element;
  }
  return result;
}

Status KernelError(kernels::KernelStatus status, const char* what) {
  return Internal(std::string(what) + " refused its arguments (code " +
                  std::to_string(static_cast<int>(status)) + ")");
}

}  // namespace

Result<std::vector<std::uint8_t>> KvTransfer::Capture(std::span<std::uint8_t> blob,
                                                      const ParsedState& state, std::int32_t first,
                                                      std::int32_t tokens, KvCodec codec) const {
  const kernels::CodecView view{codec, geometry_.layers, geometry_.kv_heads, geometry_.key_dim,
                                geometry_.value_dim};
  const std::size_t bytes = kernels::PayloadBytes(view, tokens);
  if (bytes == 0) return InvalidArgument("a block must have at least one token");
  if (first < 0 || first > rope_->positions() - tokens) {
    return InvalidArgument("a block of " + std::to_string(tokens) + " tokens at position " +
                           std::to_string(first) + " is beyond the rotation table");
  }
  if (state.shape.layers() != geometry_.layers) {
    return Internal("the state has " + std::to_string(state.shape.layers()) + " layers, not " +
                    std::to_string(geometry_.layers));
  }
  std::vector<std::uint8_t> payload(bytes);
  std::int32_t first_layer = 0;
  for (std::size_t s = 0; s < state.sections.size(); ++s) {
    const StateSection& section = state.sections[s];
    SectionLayout section_layout = MakeLayout(blob, state.shape, section, geometry_);
    std::vector<std::int32_t> cell_of(static_cast<std::size_t>(tokens), -1);
    for (std::int32_t cell = 0; cell < section.cells(); ++cell) {
      const std::int64_t token = std::int64_t{section.positions[cell]} - first;
      if (token >= 0 && token < tokens) cell_of[token] = cell;
    }
    if (std::find(cell_of.begin(), cell_of.end(), -1) != cell_of.end()) {
      return FailedPrecondition("the fact is longer than the model's sliding window");
    }
    // Cells need not lie in the order of their positions; one-slot blocks put them right.
    kernels::PagedLayout& layout = section_layout.layout;
    layout.block_table = cell_of.data();
    layout.block_slots = 1;
    layout.key_block_stride = layout.key_slot_stride;
    layout.value_block_stride = layout.value_slot_stride;
    bool in_order = true;
    for (std::int32_t i = 0; i < tokens; ++i) in_order = in_order && cell_of[i] == cell_of[0] + i;
    kernels::FactDescriptor fact;
    fact.payload = payload.data() + kernels::SegmentOffset(view, tokens, first_layer, 0);
    fact.tokens = fact.count = tokens;
    fact.position = first;
    if (in_order) {
      layout.block_table = nullptr;
      fact.slot = cell_of[0];
    }
    kernels::CodecView section_view = view;
    section_view.layers = static_cast<std::int32_t>(section.key_offset.size());
    const RopeSpec& spec = rope_->spec();
    const kernels::RopeTable table{rope_->cos_sin().data(),
                                   spec.layer_group.data() + first_layer,
                                   static_cast<std::int32_t>(spec.groups.size()),
                                   rope_->positions(),
                                   spec.width,
                                   spec.pairing};
    const kernels::KernelStatus status = kernels::Capture(section_view, table, layout, &fact, 1);
    if (status != kernels::KernelStatus::kOk) return KernelError(status, "capture");
    first_layer += section_view.layers;
  }
  return payload;
}

Status KvTransfer::Inject(std::span<std::uint8_t> blob, const ParsedState& state,
                          std::span<const BlockUse> uses) const {
  if (state.shape.layers() != geometry_.layers)
    return Internal("the state has a wrong layer count");
  std::int32_t first_layer = 0;
  const RopeSpec& spec = rope_->spec();
  for (const StateSection& section : state.sections) {
    SectionLayout section_layout = MakeLayout(blob, state.shape, section, geometry_);
    const auto layers = static_cast<std::int32_t>(section.key_offset.size());
    if (section.cells() == 0) return InvalidArgument("a state without cells takes no block");
    const std::int32_t begin = section.positions.front();
    const std::int32_t end = begin + section.cells();
    const kernels::RopeTable table{rope_->cos_sin().data(),
                                   spec.layer_group.data() + first_layer,
                                   static_cast<std::int32_t>(spec.groups.size()),
                                   rope_->positions(),
                                   spec.width,
                                   spec.pairing};
    // Neighbours with one codec go in one call.
    std::vector<kernels::FactDescriptor> facts;
    for (std::size_t i = 0; i < uses.size();) {
      const KvCodec codec = uses[i].block->info().codec;
      const kernels::CodecView view{codec, geometry_.layers, geometry_.kv_heads, geometry_.key_dim,
                                    geometry_.value_dim};
      facts.clear();
      for (; i < uses.size() && uses[i].block->info().codec == codec; ++i) {
        const BlockUse& use = uses[i];
        if (use.block->info().geometry != geometry_) {
          return DataLoss("a block has the geometry of another model");
        }
        const std::int32_t from = std::max(use.position, begin);
        const std::int32_t to = std::min(use.position + use.count, end);
        if (to <= from) continue;
        kernels::FactDescriptor fact;
        // The kernel only reads a payload that it injects.
        fact.payload = const_cast<std::uint8_t*>(use.block->payload().data()) +
                       kernels::SegmentOffset(view, use.block->tokens(), first_layer, 0);
        fact.tokens = use.block->tokens();
        fact.first = from - use.position;
        fact.count = to - from;
        fact.position = from;
        fact.slot = from - begin;
        facts.push_back(fact);
      }
      if (facts.empty()) continue;
      kernels::CodecView section_view = view;
      section_view.layers = layers;
      const kernels::KernelStatus status =
          kernels::Inject(section_view, table, section_layout.layout, facts.data(),
                          static_cast<std::int32_t>(facts.size()));
      if (status != kernels::KernelStatus::kOk) return KernelError(status, "inject");
    }
    first_layer += layers;
  }
  return OkStatus();
}

}  // namespace inferscale
