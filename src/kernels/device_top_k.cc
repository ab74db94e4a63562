#include "kernels/device_top_k.h"

#include <string>

namespace inferscale::kernels {

Status CheckTopKSetup(const TopKSetup& setup) {
  const auto between = [](std::int64_t value, std::int64_t least, std::int64_t most) {
    return value >= least && value <= most;
  };
  constexpr std::int64_t kMostRows = std::int64_t{1} << 31;
  if (!between(setup.dim, 1, kMaxDeviceDim)) {
    return InvalidArgument("top-k of rows of " + std::to_string(setup.dim) +
                           " dimensions; a device takes 1 to " + std::to_string(kMaxDeviceDim));
  }
  if (!between(setup.max_k, 1, kMaxDeviceTopK)) {
    return InvalidArgument("top-k with k up to " + std::to_string(setup.max_k) +
                           "; a device takes 1 to " + std::to_string(kMaxDeviceTopK));
  }
  if (!between(setup.max_queries, 1, kMaxDeviceQueries) || !between(setup.max_rows, 1, kMostRows)) {
    return InvalidArgument("top-k of " + std::to_string(setup.max_queries) + " queries over " +
                           std::to_string(setup.max_rows) + " rows; a device takes up to " +
                           std::to_string(kMaxDeviceQueries) + " over " +
                           std::to_string(kMostRows));
  }
  return OkStatus();
}

Status CheckTopKQueries(const TopKSetup& setup, std::span<const TopKQuery> queries) {
  if (queries.size() > static_cast<std::size_t>(setup.max_queries)) {
    return InvalidArgument("top-k of " + std::to_string(queries.size()) +
                           " queries at once; this was made for " +
                           std::to_string(setup.max_queries));
  }
  constexpr std::uintptr_t kRowAlignment = 64;
  for (std::size_t i = 0; i < queries.size(); ++i) {
    const TopKQuery& query = queries[i];
    const std::string which = "top-k, query " + std::to_string(i) + ": ";
    if (query.k < 0 || query.k > setup.max_k) {
      return InvalidArgument(which + "k is " + std::to_string(query.k) + "; this was made for " +
                             std::to_string(setup.max_k));
    }
    if (query.range.count < 0 || query.range.count > setup.max_rows) {
      return InvalidArgument(which + std::to_string(query.range.count) +
                             " rows; this was made for " + std::to_string(setup.max_rows));
    }
    if (query.vector == nullptr) return InvalidArgument(which + "no vector");
    if (query.range.count == 0) continue;
    if (query.range.rows == nullptr ||
        reinterpret_cast<std::uintptr_t>(query.range.rows) % kRowAlignment != 0 ||
        (setup.type == RowType::kInt8 && query.range.scales == nullptr)) {
      return InvalidArgument(which + "its rows are not aligned to 64 bytes, or lack scales");
    }
  }
  return OkStatus();
}

}  // namespace inferscale::kernels
