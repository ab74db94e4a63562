#include <limits>

#include "kernels/kernels.h"

namespace inferscale::kernels {
namespace {

using Wide = unsigned __int128;

constexpr Wide kMaxSize = std::numeric_limits<std::size_t>::max() / 2;

bool IsQuantised(KvCodec codec) { return codec == KvCodec::kInt8 || codec == KvCodec::kInt4; }

Wide Padded(Wide bytes) {
  return (bytes + kSegmentAlignment - 1) / kSegmentAlignment * kSegmentAlignment;
}

// Bytes of one token's codes or elements.
Wide RowBytes(KvCodec codec, std::int32_t dim) {
  switch (codec) {
    case KvCodec::kF32:
      return Wide(dim) * 4;
    case KvCodec::kF16:
    case KvCodec::kBF16:
      return Wide(dim) * 2;
    case KvCodec::kInt8:
      return Wide(dim);
    case KvCodec::kInt4:
      return (Wide(dim) + 1) / 2;
  }
  return 0;
}

// Scales and zeros together, f16 each.
Wide SegmentBytes(KvCodec codec, std::int32_t tokens, std::int32_t dim, Wide parameter_pairs) {
  if (tokens <= 0 || dim <= 0) return 0;
  const Wide row = RowBytes(codec, dim);
  if (row == 0) return 0;
  return Padded((IsQuantised(codec) ? parameter_pairs * 4 : 0) + row * Wide(tokens));
}

Wide KeyBytes(KvCodec codec, std::int32_t tokens, std::int32_t dim) {
  if (tokens <= 0 || dim <= 0) return 0;
  // Not KeyGroups(): its sum overflows for the largest counts.
  const Wide groups = tokens < 48 ? 1 : (Wide(tokens) + 16) / 32;
  return SegmentBytes(codec, tokens, dim, groups * Wide(dim));
}

Wide ValueBytes(KvCodec codec, std::int32_t tokens, std::int32_t dim) {
  if (tokens <= 0 || dim <= 0) return 0;
  const Wide groups = (Wide(dim) + kValueGroupChannels - 1) / kValueGroupChannels;
  return SegmentBytes(codec, tokens, dim, groups * Wide(tokens));
}

std::size_t Narrow(Wide bytes) { return bytes > kMaxSize ? 0 : static_cast<std::size_t>(bytes); }

}  // namespace

std::size_t KeySegmentBytes(KvCodec codec, std::int32_t tokens, std::int32_t dim) {
  return Narrow(KeyBytes(codec, tokens, dim));
}

std::size_t ValueSegmentBytes(KvCodec codec, std::int32_t tokens, std::int32_t dim) {
  return Narrow(ValueBytes(codec, tokens, dim));
}

std::size_t PayloadBytes(const CodecView& view, std::int32_t tokens) {
  if (view.layers <= 0 || view.kv_heads <= 0) return 0;
  const Wide keys = KeyBytes(view.codec, tokens, view.key_dim);
  const Wide values = ValueBytes(view.codec, tokens, view.value_dim);
  // Each factor is below 2^72, 2^31 and 2^31, so only the last product could leave 128 bits.
  if (keys == 0 || values == 0 || keys + values > kMaxSize) return 0;
  const Wide layer = (keys + values) * Wide(view.kv_heads);
  return layer > kMaxSize ? 0 : Narrow(layer * Wide(view.layers));
}

std::size_t SegmentOffset(const CodecView& view, std::int32_t tokens, std::int32_t layer,
                          std::int32_t head) {
  const std::size_t segment = KeySegmentBytes(view.codec, tokens, view.key_dim) +
                              ValueSegmentBytes(view.codec, tokens, view.value_dim);
  return (static_cast<std::size_t>(layer) * static_cast<std::size_t>(view.kv_heads) +
          static_cast<std::size_t>(head)) *
         segment;
}

}  // namespace inferscale::kernels
