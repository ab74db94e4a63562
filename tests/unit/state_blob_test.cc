#include "llama/state_blob.h"

#include <gtest/gtest.h>

#include <cstring>
#include <random>

namespace inferscale {
namespace {

StateShape Shape(std::int32_t sections, bool transposed, std::int32_t streams = 3) {
  StateShape shape;
  shape.streams = streams;
  shape.transposed_values = transposed;
  shape.key_elements = 6;
  shape.value_elements = 4;
  shape.section_layers =
      sections == 1 ? std::vector<std::int32_t>{2} : std::vector<std::int32_t>{2, 3};
  return shape;
}

std::vector<std::uint8_t> Blob(const StateShape& shape, std::vector<CellRange> ranges,
                               std::int32_t stream) {
  RawBuffer buffer;
  const auto state = LayOutState(shape, ranges, stream, buffer);
  EXPECT_TRUE(state.ok()) << state.status().ToString();
  std::vector<std::uint8_t> blob(buffer.bytes().begin(), buffer.bytes().end());
  for (const StateSection& section : state->sections) {
    const std::size_t cells = static_cast<std::size_t>(section.cells());
    for (const std::size_t offset : section.key_offset) {
      std::memset(blob.data() + offset, 0x11, cells * 12);
    }
    for (const std::size_t offset : section.value_offset) {
      std::memset(blob.data() + offset, 0x22, cells * 8);
    }
  }
  return blob;
}

TEST(StateBlob, ParsesWhatItLaysOut) {
  for (const std::int32_t sections : {1, 2}) {
    for (const bool transposed : {false, true}) {
      for (const std::int32_t stream : {0, 2}) {
        const StateShape shape = Shape(sections, transposed);
        std::vector<CellRange> ranges = {{0, 5}};
        if (sections == 2) ranges.push_back({3, 2});
        const std::vector<std::uint8_t> blob = Blob(shape, ranges, stream);
        const auto parsed = ParseState(blob, sections);
        ASSERT_TRUE(parsed.ok()) << parsed.status().ToString();
        EXPECT_EQ(parsed->shape, shape);
        EXPECT_EQ(parsed->sections[0].positions, (std::vector<std::int32_t>{0, 1, 2, 3, 4}));
        EXPECT_EQ(parsed->sections[0].stream, stream);
        EXPECT_EQ(parsed->sections[0].key_offset.size(), 2U);
        EXPECT_EQ(blob[parsed->sections[0].key_offset[1]], 0x11);
        EXPECT_EQ(blob[parsed->sections[0].value_offset[1]], 0x22);
        if (sections == 2) {
          EXPECT_EQ(parsed->sections[1].positions, (std::vector<std::int32_t>{3, 4}));
        }
      }
    }
  }
}

TEST(StateBlob, RefusesEveryTruncationAndAnyAddition) {
  for (const bool transposed : {false, true}) {
    const std::vector<std::uint8_t> blob = Blob(Shape(2, transposed), {{0, 4}, {0, 4}}, 1);
    for (std::size_t size = 0; size < blob.size(); ++size) {
      EXPECT_FALSE(ParseState(std::span(blob).first(size), 2).ok()) << size;
    }
    std::vector<std::uint8_t> longer = blob;
    longer.push_back(0);
    EXPECT_FALSE(ParseState(longer, 2).ok());
    EXPECT_FALSE(ParseState(blob, 1).ok());
    EXPECT_FALSE(ParseState(blob, 3).ok());
  }
}

TEST(StateBlob, SurvivesAnyChange) {
  std::mt19937 random(1);
  const std::vector<std::uint8_t> blob = Blob(Shape(2, true), {{0, 4}, {0, 4}}, 1);
  for (int i = 0; i < 20000; ++i) {
    std::vector<std::uint8_t> changed = blob;
    for (int change = 0; change < 3; ++change) {
      changed[random() % changed.size()] = static_cast<std::uint8_t>(random());
    }
    const auto parsed = ParseState(changed, 2);
    if (!parsed.ok()) continue;
    for (const StateSection& section : parsed->sections) {
      for (const std::size_t offset : section.key_offset) ASSERT_LT(offset, changed.size());
      for (const std::size_t offset : section.value_offset) ASSERT_LT(offset, changed.size());
    }
  }
}

TEST(StateBlob, RefusesLayersThatDiffer) {
  const StateShape shape = Shape(1, false);
  RawBuffer buffer;
  const std::vector<CellRange> ranges = {{0, 2}};
  const auto state = LayOutState(shape, ranges, 0, buffer);
  ASSERT_TRUE(state.ok());
  // The second layer's type stands twelve bytes before its keys.
  buffer.data()[state->sections[0].key_offset[1] - 12] = kStateBF16;
  EXPECT_EQ(ParseState(buffer.bytes(), 1).status().code(), StatusCode::kUnsupported);
  buffer.data()[state->sections[0].key_offset[1] - 12] = 2;  // Q4_0
  EXPECT_EQ(ParseState(buffer.bytes(), 1).status().code(), StatusCode::kUnsupported);
}

TEST(StateBlob, LaysOutOnlyWhatMakesSense) {
  RawBuffer buffer;
  const StateShape shape = Shape(1, true);
  const auto fails = [&](StateShape wrong, std::vector<CellRange> ranges, std::int32_t stream) {
    return !LayOutState(wrong, ranges, stream, buffer).ok();
  };
  EXPECT_TRUE(fails(shape, {}, 0));
  EXPECT_TRUE(fails(shape, {{0, -1}}, 0));
  EXPECT_TRUE(fails(shape, {{-1, 1}}, 0));
  EXPECT_TRUE(fails(shape, {{0, 1}}, -1));
  EXPECT_TRUE(fails(shape, {{0, 2147483647}}, 0));
  StateShape wrong = shape;
  wrong.key_elements = 0;
  EXPECT_TRUE(fails(wrong, {{0, 1}}, 0));
  wrong = shape;
  wrong.element_bytes = 3;
  EXPECT_TRUE(fails(wrong, {{0, 1}}, 0));
}

}  // namespace
}  // namespace inferscale
