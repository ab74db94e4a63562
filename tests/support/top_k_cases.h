#ifndef INFERSCALE_TESTS_SUPPORT_TOP_K_CASES_H_
#define INFERSCALE_TESTS_SUPPORT_TOP_K_CASES_H_

#include <cstdint>
#include <random>
#include <span>
#include <vector>

#include "kernels/device.h"
#include "kernels/device_top_k.h"

namespace inferscale::testing {

/// Rows of one owner: on the host in double, and on a device as DeviceTopK takes them.
class TestRows {
 public:
  enum class Kind {
    kSmallIntegers,  ///< sums are exact, ties are many
    kUnit,           ///< random directions
    kAlike,          ///< one direction with little noise: scores lie close to each other
    /// Sums are exact, and with the query rounded to f16 the best rows are the worst; dim >= 3.
    kMisleading,
  };

  TestRows(kernels::Device& device, kernels::RowType type, std::int64_t count, std::int32_t dim,
           Kind kind, std::mt19937& random);
  ~TestRows();
  TestRows(const TestRows&) = delete;
  TestRows& operator=(const TestRows&) = delete;

  const kernels::RowRange& range() const { return range_; }
  /// Whether sums in f32 have no rounding.
  bool exact() const { return kind_ == Kind::kSmallIntegers || kind_ == Kind::kMisleading; }
  double Score(std::int64_t row, const std::vector<float>& vector) const;
  /// A query of the same kind.
  std::vector<float> MakeQuery(std::mt19937& random) const;

 private:
  std::vector<float> MakeRow(std::mt19937& random) const;

  kernels::Device& device_;
  const std::int32_t dim_;
  const Kind kind_;
  kernels::RowRange range_;
  std::vector<float> rows_;       // as the device has them, without padding
  std::vector<float> direction_;  // kAlike
  std::uint8_t* memory_ = nullptr;
  std::uint8_t* scales_ = nullptr;
};

std::vector<std::uint64_t> MakeBitmap(std::int64_t rows, double share, std::mt19937& random);

/// Searches and checks every query's hits: as many as there can be, sorted, all allowed, each with
/// its row's score within f32's rounding, and none missing that is better than the last by more
/// than that. Equal scores of small integers have to be in the order of their rows.
/// \param owners [queries] whose rows each query searches
void ExpectExactHits(kernels::Device& device, kernels::DeviceTopK& search,
                     std::span<const kernels::TopKQuery> queries,
                     std::span<const TestRows* const> owners, std::int32_t dim);

}  // namespace inferscale::testing

#endif  // INFERSCALE_TESTS_SUPPORT_TOP_K_CASES_H_
