#include <algorithm>
#include <array>
#include <limits>
#include <vector>

#include "kernels/device_top_k.h"
#include "kernels/kernels.h"

namespace inferscale::kernels {
namespace {

/// A device's search over this process's memory: done when Search() returns.
class HostTopK : public DeviceTopK {
 public:
  explicit HostTopK(const TopKSetup& setup) : setup_(setup) {}

  Result<std::int32_t> Search(std::span<const TopKQuery> queries,
                              std::uintptr_t /*stream*/) override {
    INFERSCALE_RETURN_IF_ERROR(CheckTopKQueries(setup_, queries));
    const std::int32_t search = next_;
    next_ = (next_ + 1) % kDeviceSearches;
    auto& found = searches_[static_cast<std::size_t>(search)];
    found.clear();
    for (const TopKQuery& query : queries) found.push_back(SearchOne(query));
    return search;
  }

  std::int32_t Hits(std::int32_t search, std::int32_t query, std::int64_t* rows,
                    float* scores) const override {
    const Found& found =
        searches_[static_cast<std::size_t>(search)][static_cast<std::size_t>(query)];
    std::copy(found.rows.begin(), found.rows.end(), rows);
    std::copy(found.scores.begin(), found.scores.end(), scores);
    return static_cast<std::int32_t>(found.rows.size());
  }

 private:
  struct Found {
    std::vector<std::int64_t> rows;
    std::vector<float> scores;
  };

  Found SearchOne(const TopKQuery& query) const {
    const std::int32_t pitch = RowPitch(setup_.dim);
    std::vector<float> vector(static_cast<std::size_t>(pitch), 0.0f);
    std::copy(query.vector, query.vector + setup_.dim, vector.begin());
    const auto most = static_cast<std::size_t>(std::min<std::int64_t>(query.k, query.range.count));
    Found found{std::vector<std::int64_t>(most), std::vector<float>(most)};
    if (setup_.type == RowType::kF16) {
      const std::int32_t count =
          TopK(reinterpret_cast<const std::uint16_t*>(query.range.rows), query.range.count, pitch,
               vector.data(), query.allowed, static_cast<std::int32_t>(most), found.rows.data(),
               found.scores.data());
      found.rows.resize(static_cast<std::size_t>(std::max(count, 0)));
      found.scores.resize(found.rows.size());
      return found;
    }
    std::vector<float> scores(static_cast<std::size_t>(query.range.count));
    std::vector<std::int64_t> rows;
    for (std::int64_t row = 0; row < query.range.count; ++row) {
      if (query.allowed != nullptr && (query.allowed[row / 64] >> (row % 64) & 1) == 0) continue;
      const auto* const codes =
          reinterpret_cast<const std::int8_t*>(query.range.rows) + row * pitch;
      float sum = 0;
      for (std::int32_t i = 0; i < setup_.dim; ++i) {
        sum += static_cast<float>(codes[i]) * vector[static_cast<std::size_t>(i)];
      }
      sum *= query.range.scales[row];
      if (!(sum == sum)) sum = -std::numeric_limits<float>::infinity();
      scores[static_cast<std::size_t>(row)] = sum;
      rows.push_back(row);
    }
    std::sort(rows.begin(), rows.end(), [&](std::int64_t a, std::int64_t b) {
      const float x = scores[static_cast<std::size_t>(a)], y = scores[static_cast<std::size_t>(b)];
      return x != y ? x > y : a < b;
    });
    rows.resize(std::min(rows.size(), most));
    found.scores.clear();
    for (const std::int64_t row : rows) {
      found.scores.push_back(scores[static_cast<std::size_t>(row)]);
    }
    found.rows = std::move(rows);
    return found;
  }

  const TopKSetup setup_;
  std::array<std::vector<Found>, kDeviceSearches> searches_;
  std::int32_t next_ = 0;
};

}  // namespace

Result<std::unique_ptr<DeviceTopK>> MakeHostTopK(const TopKSetup& setup) {
  INFERSCALE_RETURN_IF_ERROR(CheckTopKSetup(setup));
  return std::unique_ptr<DeviceTopK>(std::make_unique<HostTopK>(setup));
}

}  // namespace inferscale::kernels
