#include "kernels/cpu/codec.h"
#include "kernels/cpu/rotate.h"
#include "kernels/cpu/transfer.h"
#include "kernels/kernels.h"
#include "kernels/validate.h"

namespace inferscale::kernels {
namespace {

using cpu::kTileTokens;

class Injector {
 public:
  Injector(const CodecView& view, const RopeTable& rope, const PagedLayout& layout)
      : view_(view),
        rope_(rope),
        layout_(layout),
        tile_(cpu::Tile::OfThread(view)),
        element_bytes_(cpu::ScalarBytes(layout.type)),
        copies_(cpu::SameElements(view.codec, layout.type)) {}

  void Keys(const FactDescriptor& fact, const std::uint8_t* segment, std::int32_t layer,
            std::int32_t head) {
    const cpu::HeadStrides cache = cpu::KeysOf(layout_, layer, head);
    const float* angles = cpu::AnglesOf(rope_, layer, fact.position);
    if (angles == nullptr && copies_) return Copy(fact, segment, view_.key_dim, cache);
    for (std::int32_t done = 0; done < fact.count; done += kTileTokens) {
      const std::int32_t count = std::min(kTileTokens, fact.count - done);
      float* rows = tile_.rows.data();
      cpu::DecodeKeys(view_.codec, segment, fact.tokens, view_.key_dim, fact.first + done, count,
                      rows);
      if (angles != nullptr) {
        cpu::RotateRows(rows, count, view_.key_dim, angles + std::int64_t{done} * rope_.width,
                        rope_.width, rope_.pairing, /*inverse=*/false);
      }
      Scatter(view_.key_dim, cpu::SlotsOf(layout_, fact, done, count), cache);
    }
  }

  void Values(const FactDescriptor& fact, const std::uint8_t* segment, std::int32_t layer,
              std::int32_t head) {
    const cpu::HeadStrides cache = cpu::ValuesOf(layout_, layer, head);
    if (copies_) return Copy(fact, segment, view_.value_dim, cache);
    for (std::int32_t done = 0; done < fact.count; done += kTileTokens) {
      const std::int32_t count = std::min(kTileTokens, fact.count - done);
      cpu::DecodeValues(view_.codec, segment, fact.tokens, view_.value_dim, fact.first + done,
                        count, tile_.rows.data());
      Scatter(view_.value_dim, cpu::SlotsOf(layout_, fact, done, count), cache);
    }
  }

 private:
  void Copy(const FactDescriptor& fact, const std::uint8_t* segment, std::int32_t dim,
            const cpu::HeadStrides& cache) {
    const std::size_t row_bytes = static_cast<std::size_t>(dim) * element_bytes_;
    cpu::ScatterRows(segment + static_cast<std::size_t>(fact.first) * row_bytes, dim,
                     element_bytes_, cpu::SlotsOf(layout_, fact, 0, fact.count), cache);
  }

  void Scatter(std::int32_t dim, const cpu::SlotRun& slots, const cpu::HeadStrides& cache) {
    cpu::ToScalars(layout_.type, tile_.rows.data(), tile_.element_bytes(),
                   static_cast<std::size_t>(slots.count) * static_cast<std::size_t>(dim));
    cpu::ScatterRows(tile_.element_bytes(), dim, element_bytes_, slots, cache);
  }

  const CodecView& view_;
  const RopeTable& rope_;
  const PagedLayout& layout_;
  cpu::Tile& tile_;
  const std::size_t element_bytes_;
  const bool copies_;
};

}  // namespace

KernelStatus Inject(const CodecView& view, const RopeTable& rope, const PagedLayout& layout,
                    const FactDescriptor* facts, std::int32_t fact_count) {
  const KernelStatus status =
      ValidateArguments(view, rope, layout, facts, fact_count, Direction::kInject);
  if (status != KernelStatus::kOk || fact_count == 0) return status;
  Injector injector(view, rope, layout);
  // Layers outermost: the cache lines that neighbouring facts and heads share are then written
  // while they are still near.
  for (std::int32_t layer = 0; layer < view.layers; ++layer) {
    for (std::int32_t i = 0; i < fact_count; ++i) {
      const FactDescriptor& fact = facts[i];
      const std::size_t key_bytes = KeySegmentBytes(view.codec, fact.tokens, view.key_dim);
      for (std::int32_t head = 0; head < view.kv_heads; ++head) {
        const std::uint8_t* segment = fact.payload + SegmentOffset(view, fact.tokens, layer, head);
        injector.Keys(fact, segment, layer, head);
        injector.Values(fact, segment + key_bytes, layer, head);
      }
    }
  }
  return KernelStatus::kOk;
}

}  // namespace inferscale::kernels
