#include "support/top_k_cases.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>

#include "kernels/kernels.h"

namespace inferscale::testing {
namespace {

std::uint8_t* Upload(kernels::Device& device, const void* data, std::size_t bytes) {
  const auto size = static_cast<std::int64_t>(std::max<std::size_t>(bytes, 1));
  auto pinned = device.AllocatePinned(size);
  auto memory = device.Allocate(size);
  EXPECT_TRUE(pinned.ok() && memory.ok()) << memory.status().ToString();
  if (bytes > 0) std::memcpy(*pinned, data, bytes);
  EXPECT_TRUE(device.CopyToDevice(*memory, *pinned, size, device.copy_stream()).ok());
  const auto event = device.Record(device.copy_stream());
  EXPECT_TRUE(event.ok() && device.Wait(*event).ok());
  device.FreePinned(*pinned);
  return *memory;
}

}  // namespace

TestRows::TestRows(kernels::Device& device, kernels::RowType type, std::int64_t count,
                   std::int32_t dim, Kind kind, std::mt19937& random)
    : device_(device), dim_(dim), kind_(kind) {
  const auto size = static_cast<std::size_t>(dim);
  const auto pitch = static_cast<std::size_t>(kernels::RowPitch(dim));
  std::normal_distribution<float> normal;
  if (kind == Kind::kAlike) {
    for (std::size_t i = 0; i < size; ++i) direction_.push_back(normal(random));
  }
  std::vector<std::uint16_t> halves(static_cast<std::size_t>(count) * pitch, 0);
  std::vector<std::int8_t> codes(static_cast<std::size_t>(count) * pitch, 0);
  std::vector<float> scales;
  std::vector<float> row(size);
  double longest = 0;
  for (std::int64_t r = 0; r < count; ++r) {
    row = MakeRow(random);
    const std::size_t at = static_cast<std::size_t>(r) * pitch;
    if (type == kernels::RowType::kF16) {
      kernels::FloatToHalf(row.data(), halves.data() + at, size);
      kernels::HalfToFloat(halves.data() + at, row.data(), size);
    } else {
      float largest = 1e-20f;
      for (const float x : row) largest = std::max(largest, std::fabs(x));
      // A power of two keeps exact sums exact.
      float scale = static_cast<float>(largest / 127.0);
      if (kind == Kind::kSmallIntegers) scale = 0.5f;
      if (kind == Kind::kMisleading) scale = 1.0f / 64;
      scales.push_back(scale);
      for (std::size_t i = 0; i < size; ++i) {
        const auto code = static_cast<std::int8_t>(std::lround(row[i] / scale));
        codes[at + i] = code;
        row[i] = scale * static_cast<float>(code);
      }
    }
    double squares = 0;
    for (const float x : row) squares += double{x} * x;
    longest = std::max(longest, squares);
    rows_.insert(rows_.end(), row.begin(), row.end());
  }
  if (type == kernels::RowType::kF16) {
    memory_ = Upload(device, halves.data(), halves.size() * 2);
  } else {
    memory_ = Upload(device, codes.data(), codes.size());
    scales_ = Upload(device, scales.data(), scales.size() * 4);
  }
  range_ = {memory_, reinterpret_cast<const float*>(scales_), count,
            static_cast<float>(std::sqrt(longest) * 1.001)};
}

TestRows::~TestRows() {
  device_.Free(memory_);
  if (scales_ != nullptr) device_.Free(scales_);
}

double TestRows::Score(std::int64_t row, const std::vector<float>& vector) const {
  double sum = 0;
  const float* const elements = rows_.data() + row * dim_;
  for (std::int32_t i = 0; i < dim_; ++i) {
    sum += double{elements[i]} * vector[static_cast<std::size_t>(i)];
  }
  return sum;
}

std::vector<float> TestRows::MakeRow(std::mt19937& random) const {
  if (kind_ != Kind::kMisleading) return MakeQuery(random);
  // With the query below a row scores 2^-13 a, and -2^-13 a once 1 + 2^-12 has become 1.
  const float a = static_cast<float>(std::uniform_int_distribution<int>(64, 127)(random)) / 64;
  std::vector<float> row(static_cast<std::size_t>(dim_), 0.0f);
  row[0] = a;
  row[1] = a;
  row[2] = -a;
  return row;
}

std::vector<float> TestRows::MakeQuery(std::mt19937& random) const {
  std::vector<float> vector(static_cast<std::size_t>(dim_));
  if (kind_ == Kind::kSmallIntegers) {
    std::uniform_int_distribution<int> small(-3, 3);
    for (float& x : vector) x = static_cast<float>(small(random));
    return vector;
  }
  if (kind_ == Kind::kMisleading) {
    vector[0] = 1 + 0x1p-12f;
    vector[1] = -1;
    vector[2] = 0x1p-13f;
    return vector;
  }
  std::normal_distribution<float> normal;
  double squares = 0;
  for (std::size_t i = 0; i < vector.size(); ++i) {
    vector[i] = normal(random);
    if (kind_ == Kind::kAlike) vector[i] = direction_[i] + 0.02f * vector[i];
    squares += double{vector[i]} * vector[i];
  }
  for (float& x : vector) x = static_cast<float>(x / std::sqrt(squares + 1e-30));
  return vector;
}

std::vector<std::uint64_t> MakeBitmap(std::int64_t rows, double share, std::mt19937& random) {
  std::vector<std::uint64_t> words(static_cast<std::size_t>((rows + 63) / 64), 0);
  std::bernoulli_distribution allowed(share);
  for (std::int64_t row = 0; row < rows; ++row) {
    if (allowed(random))
      words[static_cast<std::size_t>(row / 64)] |= std::uint64_t{1} << (row % 64);
  }
  // Bits after the last row mean nothing.
  if (rows % 64 != 0) words.back() |= ~std::uint64_t{0} << (rows % 64);
  return words;
}

void ExpectExactHits(kernels::Device& device, kernels::DeviceTopK& search,
                     std::span<const kernels::TopKQuery> queries,
                     std::span<const TestRows* const> owners, std::int32_t dim) {
  const auto started = search.Search(queries, device.copy_stream());
  ASSERT_TRUE(started.ok()) << started.status().ToString();
  const auto event = device.Record(device.copy_stream());
  ASSERT_TRUE(event.ok() && device.Wait(*event).ok());
  for (std::size_t q = 0; q < queries.size(); ++q) {
    SCOPED_TRACE("query " + std::to_string(q) + " of " + std::to_string(queries.size()) + ", " +
                 std::to_string(queries[q].range.count) + " rows, dim " + std::to_string(dim) +
                 ", k " + std::to_string(queries[q].k));
    const kernels::TopKQuery& query = queries[q];
    const std::vector<float> vector(query.vector, query.vector + dim);
    const auto k = static_cast<std::size_t>(query.k);
    std::vector<std::int64_t> rows(k + 1, -1);
    std::vector<float> scores(k + 1, 0);
    const auto found = static_cast<std::size_t>(
        search.Hits(*started, static_cast<std::int32_t>(q), rows.data(), scores.data()));

    double norm = 0;
    for (const float x : vector) norm += double{x} * x;
    const double rounding = std::sqrt(norm) * query.range.norm_bound * dim * std::ldexp(1.0, -23);
    struct Expected {
      double score;
      std::int64_t row;
    };
    std::vector<Expected> expected;
    for (std::int64_t row = 0; row < query.range.count; ++row) {
      if (query.allowed != nullptr && (query.allowed[row / 64] >> (row % 64) & 1) == 0) continue;
      expected.push_back({owners[q]->Score(row, vector), row});
    }
    std::sort(expected.begin(), expected.end(), [](const Expected& a, const Expected& b) {
      return a.score != b.score ? a.score > b.score : a.row < b.row;
    });
    ASSERT_EQ(found, std::min(k, expected.size()));
    for (std::size_t i = 0; i < found; ++i) {
      // The i-th best score is unique up to rounding, whichever rows share it.
      ASSERT_NEAR(scores[i], expected[i].score, rounding) << "place " << i;
      ASSERT_TRUE(rows[i] >= 0 && rows[i] < query.range.count) << "place " << i;
      ASSERT_NEAR(scores[i], owners[q]->Score(rows[i], vector), rounding) << "place " << i;
      if (i > 0) {
        ASSERT_TRUE(scores[i - 1] > scores[i] ||
                    (scores[i - 1] == scores[i] && rows[i - 1] < rows[i]))
            << "place " << i;
      }
      if (query.allowed != nullptr) {
        ASSERT_TRUE(query.allowed[rows[i] / 64] >> (rows[i] % 64) & 1) << "place " << i;
      }
      if (owners[q]->exact()) {
        ASSERT_EQ(rows[i], expected[i].row) << "place " << i;
      }
    }
  }
}

}  // namespace inferscale::testing
