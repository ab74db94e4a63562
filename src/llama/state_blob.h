#ifndef INFERSCALE_LLAMA_STATE_BLOB_H_
#define INFERSCALE_LLAMA_STATE_BLOB_H_

/// \file state_blob.h
/// llama.cpp's serialised state of one sequence (llama_state_seq_get_data), taken apart and put
/// together. Little-endian, unpadded:
///   u32 magic, i32 sequence, then one section, or two for sliding-window models (layers of full
///   attention first): u32 streams; per stream u32 cells and, if there are any,
///   cells × { i32 position; u32 1; i32 sequence }, u32 transposed, u32 layers,
///   per layer keys: i32 type, u64 row bytes, rows[cells];
///   per layer values: i32 type, u64 row bytes, rows[cells], or when transposed
///   i32 type, u32 element bytes, u32 elements a row, [elements][cells].
/// Keys are rotated. Nothing here calls llama.cpp; all functions are thread-safe.

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "inferscale/result.h"

namespace inferscale {

/// Memory that grows and is not cleared. Movable.
class RawBuffer {
 public:
  /// Makes room for `size` bytes; old content is lost when it has to grow.
  void Resize(std::size_t size);
  std::uint8_t* data() { return data_.get(); }
  std::span<std::uint8_t> bytes() { return {data_.get(), size_}; }
  std::span<const std::uint8_t> bytes() const { return {data_.get(), size_}; }

 private:
  std::unique_ptr<std::uint8_t[]> data_;
  std::size_t size_ = 0, capacity_ = 0;
};

/// ggml's numbers for the element types a cache may have here.
inline constexpr std::int32_t kStateF32 = 0;
inline constexpr std::int32_t kStateF16 = 1;
inline constexpr std::int32_t kStateBF16 = 30;

/// What all states of one context have in common. All layers must agree.
struct StateShape {
  std::int32_t streams = 1;
  bool transposed_values = false;
  std::int32_t element_type = kStateF16;
  std::int32_t element_bytes = 2;
  std::int32_t key_elements = 0;  ///< a cell's keys of one layer, all heads
  std::int32_t value_elements = 0;
  std::vector<std::int32_t> section_layers;

  bool operator==(const StateShape&) const = default;
  std::int32_t layers() const;
};

/// One section of a state: where its cells' keys and values lie, as offsets into the blob.
struct StateSection {
  std::vector<std::int32_t> positions;  ///< [cells], in the blob's order
  std::vector<std::size_t> key_offset;  ///< [layers]; a cell's row follows the one before it
  std::vector<std::size_t>
      value_offset;  ///< [layers]; transposed: element e of cell c is at e·cells+c
  std::int32_t stream = 0;

  std::int32_t cells() const { return static_cast<std::int32_t>(positions.size()); }
};

struct ParsedState {
  StateShape shape;  ///< section_layers is 0 for a section without cells
  std::vector<StateSection> sections;
};

/// Takes a blob apart. kDataLoss: truncated, trailing bytes, or not of this form. kUnsupported:
/// layers differ in shape or type, or the cache is quantised. \param sections 1, or 2 with a
/// sliding window.
Result<ParsedState> ParseState(std::span<const std::uint8_t> blob, std::int32_t sections);

struct CellRange {
  std::int32_t first_position = 0;
  std::int32_t count = 0;
};

/// Lays out a blob with `ranges[s]` cells in section s, at consecutive positions, for `stream`.
/// Headers are written; keys and values are not. \return where they belong, as ParseState would.
Result<ParsedState> LayOutState(const StateShape& shape, std::span<const CellRange> ranges,
                                std::int32_t stream, RawBuffer& blob);

}  // namespace inferscale

#endif  // INFERSCALE_LLAMA_STATE_BLOB_H_
