#ifndef INFERSCALE_KERNELS_KERNELS_H_
#define INFERSCALE_KERNELS_KERNELS_H_

/// \file kernels.h
/// The functions that touch attention KV, on plain data: raw pointers, strides in bytes, counts.
/// The CPU implementation (kernels/cpu) is the oracle of the CUDA one (kernels/cuda); both take
/// exactly these structures. Nothing here allocates on behalf of the caller or keeps a pointer
/// after it returns. All functions are thread-safe for disjoint destinations.

#include <cstddef>
#include <cstdint>

#include "inferscale/kv_formats.h"

namespace inferscale::kernels {

/// Element type of an engine's cache.
enum class ScalarType : std::uint8_t { kF32 = 0, kF16 = 1, kBF16 = 2 };

/// Arrangement of one block's payload. For each layer, for each KV head: the key segment
/// [tokens][key_dim], then the value segment [tokens][value_dim], each encoded by `codec` and
/// padded to kSegmentAlignment bytes, so that a shard of heads or layers is a contiguous slice.
/// - kF32/kF16/kBF16: plain row-major elements, keys before rotation.
/// - kInt8/kInt4 keys: per channel; the tokens are split evenly into KeyGroups(tokens) groups, each
/// with
///   an f16 scale and an f16 zero per channel. Segment: scales [groups][key_dim], zeros the same,
///   then codes in order [tokens][key_dim] (int4: two per byte, low nibble first, rows padded to
///   bytes).
/// - kInt8/kInt4 values: per token; channels in groups of 32 (the last may be shorter), f16 scale
/// and
///   zero each. Segment: scales [tokens][value groups], zeros the same, then codes
///   [tokens][value_dim].
/// x ≈ scale · code + zero, code unsigned.
struct CodecView {
  KvCodec codec = KvCodec::kF16;
  std::int32_t layers = 0;
  std::int32_t kv_heads = 0;
  std::int32_t key_dim = 0;
  std::int32_t value_dim = 0;
};

inline constexpr std::size_t kSegmentAlignment = 16;
inline constexpr std::int32_t kValueGroupChannels = 32;

/// Number of token groups of a key segment: 1 up to 47 tokens, then one per 32 rounded to nearest.
constexpr std::int32_t KeyGroups(std::int32_t tokens) {
  const std::int32_t groups = (tokens + 16) / 32;
  return groups < 1 ? 1 : groups;
}

/// First token of key group `group`; group KeyGroups(tokens) begins at `tokens`. A group never has
/// more than kMaxKeyGroupTokens tokens.
constexpr std::int32_t KeyGroupBegin(std::int32_t tokens, std::int32_t group) {
  return static_cast<std::int32_t>(std::int64_t{group} * tokens / KeyGroups(tokens));
}
inline constexpr std::int32_t kMaxKeyGroupTokens = 47;

/// Larger head dimensions than this are refused (kBadView).
inline constexpr std::int32_t kMaxHeadDim = 1 << 14;

/// Bytes of one key or value segment, padding included. \param dim key_dim or value_dim.
std::size_t KeySegmentBytes(KvCodec codec, std::int32_t tokens, std::int32_t dim);
std::size_t ValueSegmentBytes(KvCodec codec, std::int32_t tokens, std::int32_t dim);
/// Bytes of the whole payload of a block of `tokens` tokens; 0 if a count is not positive or the
/// product overflows.
std::size_t PayloadBytes(const CodecView& view, std::int32_t tokens);
/// Offset of the key segment of (layer, head); the value segment follows it.
std::size_t SegmentOffset(const CodecView& view, std::int32_t tokens, std::int32_t layer,
                          std::int32_t head);

/// Rotation angles as cosine and sine, in f32.
/// cos_sin: [groups][positions][width/2][2]. `layer_group[layer]` selects the group; -1 means that
/// this layer has no rotation.
struct RopeTable {
  const float* cos_sin = nullptr;
  const std::int32_t* layer_group = nullptr;  ///< [layers]
  std::int32_t groups = 0;
  std::int32_t positions = 0;
  std::int32_t width = 0;  ///< rotated elements per head, even, <= key_dim
  RopePairing pairing = RopePairing::kInterleaved;
};

/// A paged (or flat) engine cache, addressed by strides alone. Element (layer, slot, head, dim) of
/// the keys is at key_base[layer] + block·key_block_stride + (slot in block)·key_slot_stride +
/// head·key_head_stride + dim·key_dim_stride; values likewise. All strides are bytes. With
/// block_table == nullptr slots are used as they are (one block).
struct PagedLayout {
  ScalarType type = ScalarType::kF16;
  void* const* key_base = nullptr;    ///< [layers]
  void* const* value_base = nullptr;  ///< [layers]
  std::int64_t slots = 0;             ///< valid slots are [0, slots) after block translation
  std::int64_t block_slots = 0;       ///< slots per block; ignored without a block table
  const std::int32_t* block_table = nullptr;  ///< logical block -> physical block
  std::int64_t key_block_stride = 0, key_slot_stride = 0, key_head_stride = 0, key_dim_stride = 0;
  std::int64_t value_block_stride = 0, value_slot_stride = 0, value_head_stride = 0,
               value_dim_stride = 0;
};

/// One run of tokens to move between a payload and a cache.
struct FactDescriptor {
  std::uint8_t* payload = nullptr;  ///< a block's payload; inject only reads it
  std::int32_t tokens = 0;          ///< tokens of the block
  std::int32_t first = 0;           ///< first token to move
  std::int32_t count = 0;           ///< tokens to move (capture: all of them, first = 0)
  std::int32_t position = 0;  ///< position of token `first` in the sequence: selects the rotation
  std::int32_t slot = 0;      ///< logical slot of token `first`
};

/// Outcome of a kernel: kOk, or which argument is out of range; nothing has been written then.
/// kDeviceFailed: the GPU refused the work, or earlier work has failed.
enum class KernelStatus { kOk = 0, kBadView, kBadRope, kBadLayout, kBadDescriptor, kDeviceFailed };

/// Decodes each descriptor's tokens, rotates the keys to `position + i`, and writes keys and values
/// of all layers and heads into the cache.
KernelStatus Inject(const CodecView& view, const RopeTable& rope, const PagedLayout& layout,
                    const FactDescriptor* facts, std::int32_t fact_count);

/// Reads each descriptor's tokens from the cache, un-rotates the keys from `position + i`, and
/// encodes them into the payload (PayloadBytes(view, tokens) bytes).
KernelStatus Capture(const CodecView& view, const RopeTable& rope, const PagedLayout& layout,
                     const FactDescriptor* facts, std::int32_t fact_count);

/// Exact top-k by inner product over f16 rows.
/// \param rows [row_count][dim] f16, contiguous; \param query [dim] f32
/// \param allowed one bit per row (LSB first), or nullptr for all rows
/// \param out_rows, out_scores [k]; sorted by score descending, then row ascending
/// \return rows written (fewer than k if fewer rows are allowed); -1 on a bad argument.
std::int32_t TopK(const std::uint16_t* rows, std::int64_t row_count, std::int32_t dim,
                  const float* query, const std::uint64_t* allowed, std::int32_t k,
                  std::int64_t* out_rows, float* out_scores);

/// Plain conversions, round to nearest even.
void FloatToHalf(const float* in, std::uint16_t* out, std::size_t count);
void HalfToFloat(const std::uint16_t* in, float* out, std::size_t count);

}  // namespace inferscale::kernels

#endif  // INFERSCALE_KERNELS_KERNELS_H_
