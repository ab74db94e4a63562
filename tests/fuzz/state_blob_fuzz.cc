// Sequence states: whatever the bytes are, ParseState ends with a value or an error, every offset
// it gives lies inside, and a value whose cells are consecutive is laid out to the same size again.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <span>
#include <vector>

#include "llama/state_blob.h"

namespace {

using namespace inferscale;

void Check(bool holds) {
  if (!holds) std::abort();
}

void Parse(std::span<const std::uint8_t> blob, std::int32_t sections) {
  const auto state = ParseState(blob, sections);
  if (!state.ok()) return;
  std::vector<CellRange> ranges;
  bool consecutive = true;
  for (std::size_t s = 0; s < state->sections.size(); ++s) {
    const StateSection& section = state->sections[s];
    const auto cells = static_cast<std::size_t>(section.cells());
    const auto element = static_cast<std::size_t>(state->shape.element_bytes);
    for (const std::size_t offset : section.key_offset) {
      Check(offset + cells * state->shape.key_elements * element <= blob.size());
    }
    for (const std::size_t offset : section.value_offset) {
      Check(offset + cells * state->shape.value_elements * element <= blob.size());
    }
    for (std::size_t i = 1; i < cells; ++i) {
      consecutive = consecutive && section.positions[i] == section.positions[i - 1] + 1;
    }
    consecutive = consecutive && cells > 0;
    if (cells > 0) ranges.push_back({section.positions[0], section.cells()});
  }
  if (!consecutive) return;
  bool one_stream = true;
  for (const StateSection& section : state->sections) {
    one_stream = one_stream && section.stream == state->sections[0].stream;
  }
  if (!one_stream) return;
  RawBuffer rebuilt;
  const auto laid_out = LayOutState(state->shape, ranges, state->sections[0].stream, rebuilt);
  Check(laid_out.ok() && rebuilt.bytes().size() == blob.size());
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  Parse({data, size}, 1);
  Parse({data, size}, 2);
  return 0;
}
