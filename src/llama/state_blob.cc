#include "llama/state_blob.h"

#include <algorithm>
#include <cstring>
#include <numeric>
#include <string>

#include "base/bytes.h"

namespace inferscale {
namespace {

constexpr std::uint32_t kMagic = 0xaf143cd8;
constexpr std::uint32_t kMaxStreams = 256;
constexpr std::uint32_t kMaxLayers = 4096;
constexpr std::uint32_t kMaxRowElements = 1U << 24;
constexpr std::size_t kCellHeaderBytes = 12;

std::int32_t ElementBytes(std::int32_t type) {
  if (type == kStateF32) return 4;
  return type == kStateF16 || type == kStateBF16 ? 2 : 0;
}

/// Records a property of a layer, or finds that it differs from the layers before.
template <typename T>
bool Agree(bool first, T value, T& common) {
  if (first) common = value;
  return value == common;
}

Status Differs(const char* what) {
  return Unsupported(std::string("layers of this model differ in their ") + what);
}

/// Parses one stream that has cells. `first` is true until a layer has set the shape.
Status ParseStream(ByteReader& reader, std::uint32_t cells, bool& first, StateShape& shape,
                   StateSection& section, std::int32_t& layers_out) {
  for (std::uint32_t i = 0; i < cells; ++i) {
    section.positions.push_back(reader.ReadI32());
    if (reader.ReadU32() != 1) reader.Fail();
    reader.ReadI32();
    if (!reader.ok() || section.positions.back() < 0) return reader.status("sequence state cells");
  }
  const std::uint32_t transposed = reader.ReadU32();
  const std::uint32_t layers = reader.ReadU32();
  if (!reader.ok() || transposed > 1 || layers == 0 || layers > kMaxLayers) {
    return DataLoss("the sequence state has a wrong layer count or value order");
  }
  layers_out = static_cast<std::int32_t>(layers);
  bool first_value = first;
  const bool first_section = first;
  if (!Agree(first_section, transposed == 1, shape.transposed_values))
    return Differs("value order");
  for (std::uint32_t layer = 0; layer < layers; ++layer) {
    const std::int32_t type = reader.ReadI32();
    const std::uint64_t row_bytes = reader.ReadU64();
    if (!reader.ok()) return reader.status("sequence state keys");
    const std::int32_t element_bytes = ElementBytes(type);
    if (element_bytes == 0) return Unsupported("the KV cache is quantised; use an f16 cache");
    if (row_bytes == 0 || row_bytes % element_bytes != 0 ||
        row_bytes / element_bytes > kMaxRowElements) {
      return DataLoss("the sequence state has a wrong key row size");
    }
    if (!Agree(first, type, shape.element_type)) return Differs("cache type");
    if (!Agree(first, static_cast<std::int32_t>(row_bytes / element_bytes), shape.key_elements)) {
      return Differs("key size");
    }
    shape.element_bytes = element_bytes;
    first = false;
    section.key_offset.push_back(reader.offset());
    reader.ReadArray(cells, row_bytes);
    if (!reader.ok()) return reader.status("sequence state keys");
  }
  for (std::uint32_t layer = 0; layer < layers; ++layer) {
    const std::int32_t type = reader.ReadI32();
    std::uint64_t row_bytes = 0;
    if (transposed == 1) {
      const std::uint32_t element_bytes = reader.ReadU32();
      const std::uint32_t elements = reader.ReadU32();
      if (element_bytes != static_cast<std::uint32_t>(shape.element_bytes)) reader.Fail();
      row_bytes = std::uint64_t{element_bytes} * elements;
    } else {
      row_bytes = reader.ReadU64();
    }
    if (!reader.ok()) return reader.status("sequence state values");
    if (type != shape.element_type) return Differs("cache type");
    if (row_bytes == 0 || row_bytes % shape.element_bytes != 0 ||
        row_bytes / shape.element_bytes > kMaxRowElements) {
      return DataLoss("the sequence state has a wrong value row size");
    }
    if (!Agree(first_value, static_cast<std::int32_t>(row_bytes / shape.element_bytes),
               shape.value_elements)) {
      return Differs("value size");
    }
    first_value = false;
    section.value_offset.push_back(reader.offset());
    reader.ReadArray(cells, row_bytes);
    if (!reader.ok()) return reader.status("sequence state values");
  }
  return OkStatus();
}

class Writer {
 public:
  explicit Writer(std::uint8_t* data) : data_(data) {}
  template <typename T>
  void Write(T value) {
    if (data_ != nullptr) std::memcpy(data_ + offset_, &value, sizeof(value));
    offset_ += sizeof(value);
  }
  void Skip(std::size_t bytes) { offset_ += bytes; }
  std::size_t offset() const { return offset_; }

 private:
  std::uint8_t* data_;  // nullptr: only measures
  std::size_t offset_ = 0;
};

void WriteState(const StateShape& shape, std::span<const CellRange> ranges, std::int32_t stream,
                Writer& writer, ParsedState& state) {
  state.shape = shape;
  state.sections.assign(ranges.size(), {});
  writer.Write(kMagic);
  writer.Write(stream);
  for (std::size_t s = 0; s < ranges.size(); ++s) {
    StateSection& section = state.sections[s];
    const std::int32_t section_layers = shape.section_layers[s];
    const std::size_t cells = static_cast<std::size_t>(ranges[s].count);
    writer.Write(static_cast<std::uint32_t>(shape.streams));
    for (std::int32_t i = 0; i < shape.streams; ++i) {
      const bool here = i == std::min(stream, shape.streams - 1);
      writer.Write(static_cast<std::uint32_t>(here ? cells : 0));
      if (!here || cells == 0) continue;
      section.stream = i;
      section.positions.resize(cells);
      std::iota(section.positions.begin(), section.positions.end(), ranges[s].first_position);
      for (const std::int32_t position : section.positions) {
        writer.Write(position);
        writer.Write(std::uint32_t{1});
        writer.Write(stream);
      }
      writer.Write(static_cast<std::uint32_t>(shape.transposed_values ? 1 : 0));
      writer.Write(static_cast<std::uint32_t>(section_layers));
      const std::size_t key_row =
          static_cast<std::size_t>(shape.key_elements) * shape.element_bytes;
      const std::size_t value_row =
          static_cast<std::size_t>(shape.value_elements) * shape.element_bytes;
      for (std::int32_t layer = 0; layer < section_layers; ++layer) {
        writer.Write(shape.element_type);
        writer.Write(static_cast<std::uint64_t>(key_row));
        section.key_offset.push_back(writer.offset());
        writer.Skip(cells * key_row);
      }
      for (std::int32_t layer = 0; layer < section_layers; ++layer) {
        writer.Write(shape.element_type);
        if (shape.transposed_values) {
          writer.Write(static_cast<std::uint32_t>(shape.element_bytes));
          writer.Write(static_cast<std::uint32_t>(shape.value_elements));
        } else {
          writer.Write(static_cast<std::uint64_t>(value_row));
        }
        section.value_offset.push_back(writer.offset());
        writer.Skip(cells * value_row);
      }
    }
  }
}

}  // namespace

void RawBuffer::Resize(std::size_t size) {
  if (size > capacity_) {
    capacity_ = size + size / 4;
    data_.reset();
    data_ = std::make_unique_for_overwrite<std::uint8_t[]>(capacity_);
  }
  size_ = size;
}

std::int32_t StateShape::layers() const {
  return std::accumulate(section_layers.begin(), section_layers.end(), 0);
}

Result<ParsedState> ParseState(std::span<const std::uint8_t> blob, std::int32_t sections) {
  if (sections < 1 || sections > 2) return InvalidArgument("a sequence state has 1 or 2 sections");
  ByteReader reader(blob);
  if (reader.ReadU32() != kMagic || !reader.ok()) {
    return DataLoss("this is not a sequence state of the llama.cpp this program was built with");
  }
  reader.ReadI32();
  ParsedState state;
  bool first = true;
  for (std::int32_t s = 0; s < sections; ++s) {
    StateSection section;
    std::int32_t layers = 0;
    const std::uint32_t streams = reader.ReadU32();
    if (!reader.ok() || streams == 0 || streams > kMaxStreams) {
      return DataLoss("the sequence state has a wrong stream count");
    }
    if (s > 0 && static_cast<std::int32_t>(streams) != state.shape.streams) {
      return DataLoss("the sections of the sequence state differ in their stream count");
    }
    state.shape.streams = static_cast<std::int32_t>(streams);
    for (std::uint32_t stream = 0; stream < streams; ++stream) {
      const std::uint32_t cells = reader.ReadU32();
      if (!reader.ok() || (cells > 0 && !reader.CanHold(cells, kCellHeaderBytes))) {
        return DataLoss("the sequence state is cut short at byte " +
                        std::to_string(reader.offset()));
      }
      if (cells == 0) continue;
      if (layers != 0) return DataLoss("the sequence state has cells in two streams");
      section.stream = static_cast<std::int32_t>(stream);
      INFERSCALE_RETURN_IF_ERROR(ParseStream(reader, cells, first, state.shape, section, layers));
    }
    state.shape.section_layers.push_back(layers);
    state.sections.push_back(std::move(section));
  }
  if (!reader.ok() || reader.remaining() != 0) {
    return DataLoss("the sequence state has " + std::to_string(reader.remaining()) +
                    " bytes this program does not know");
  }
  return state;
}

Result<ParsedState> LayOutState(const StateShape& shape, std::span<const CellRange> ranges,
                                std::int32_t stream, RawBuffer& blob) {
  if (ranges.size() != shape.section_layers.size() || shape.streams < 1 || stream < 0 ||
      shape.key_elements < 1 || shape.value_elements < 1 ||
      ElementBytes(shape.element_type) != shape.element_bytes) {
    return InvalidArgument("a sequence state cannot be laid out with these sizes");
  }
  constexpr std::int64_t kMaxBytes = std::int64_t{1} << 36;
  std::int64_t estimate = 0;
  for (std::size_t s = 0; s < ranges.size(); ++s) {
    if (ranges[s].count < 0 || ranges[s].first_position < 0 || shape.section_layers[s] < 1) {
      return InvalidArgument("a sequence state cannot have a negative count or position");
    }
    const std::int64_t row =
        (std::int64_t{shape.key_elements} + shape.value_elements) * shape.element_bytes;
    if (row > kMaxBytes / shape.section_layers[s] ||
        (ranges[s].count > 0 && row * shape.section_layers[s] > kMaxBytes / ranges[s].count)) {
      return ResourceExhausted("a sequence state would be too large");
    }
    estimate += row * shape.section_layers[s] * ranges[s].count;
  }
  if (estimate > kMaxBytes) return ResourceExhausted("a sequence state would be too large");
  ParsedState state;
  Writer measure(nullptr);
  WriteState(shape, ranges, stream, measure, state);
  blob.Resize(measure.offset());
  Writer writer(blob.data());
  WriteState(shape, ranges, stream, writer, state);
  return state;
}

}  // namespace inferscale
