#ifndef INFERSCALE_KERNELS_DEVICE_TOP_K_H_
#define INFERSCALE_KERNELS_DEVICE_TOP_K_H_

/// \file device_top_k.h
/// DeviceTopK: exact nearest rows for a batch of queries, over rows that lie on a device.
/// Guarantees: every query gets what TopK (kernels.h) finds, up to the rounding of f32 sums; equal
/// rows have equal scores, whichever batch finds them; the same batch has the same result every
/// time. Nothing is allocated after it was made. One thread at a time.

#include <cstdint>
#include <memory>
#include <span>

#include "inferscale/result.h"

namespace inferscale::kernels {

enum class RowType : std::uint8_t { kF16 = 0, kInt8 = 1 };

inline constexpr std::int32_t kMaxDeviceTopK = 4096;
inline constexpr std::int32_t kMaxDeviceDim = 8192;
inline constexpr std::int32_t kMaxDeviceQueries = 1024;
/// Searches whose results can be read: one more overwrites the oldest.
inline constexpr std::int32_t kDeviceSearches = 2;

/// Elements from one row to the next: rows on a device are padded with zeros to whole 32.
constexpr std::int32_t RowPitch(std::int32_t dim) { return (dim + 31) / 32 * 32; }

struct TopKSetup {
  RowType type = RowType::kF16;
  std::int32_t dim = 0;
  std::int32_t max_queries = 64;
  std::int32_t max_k = 64;    ///< at most kMaxDeviceTopK
  std::int64_t max_rows = 0;  ///< of one range
};

/// Rows of one owner, addresses on the device.
struct RowRange {
  const std::uint8_t* rows = nullptr;  ///< [count][RowPitch(dim)], aligned to 64 bytes
  const float* scales = nullptr;       ///< [count], int8 only: element = scale · code
  std::int64_t count = 0;
  /// No row is longer (Euclidean norm). Not finite: unknown, which is slower for shared ranges.
  float norm_bound = 0;
};

/// One query; queries of one range are fastest beside each other in one batch. Host addresses.
struct TopKQuery {
  RowRange range;
  const float* vector = nullptr;           ///< [dim], finite
  const std::uint64_t* allowed = nullptr;  ///< one bit per row (LSB first), or nullptr for all
  std::int32_t k = 0;
};

class DeviceTopK {
 public:
  virtual ~DeviceTopK() = default;

  /// Starts a search on `stream`; vectors and bitmaps are copied before it returns. All searches of
  /// one object go to one stream. kInvalidArgument where a query exceeds the setup.
  /// \return the search, for Hits().
  virtual Result<std::int32_t> Search(std::span<const TopKQuery> queries,
                                      std::uintptr_t stream) = 0;

  /// Hits of query `query` of a search that the stream has finished, sorted by score descending,
  /// then row ascending. \param rows, scores [k] \return hits.
  virtual std::int32_t Hits(std::int32_t search, std::int32_t query, std::int64_t* rows,
                            float* scores) const = 0;
};

/// Over memory of this process, for tests.
Result<std::unique_ptr<DeviceTopK>> MakeHostTopK(const TopKSetup& setup);

/// kUnsupported without CUDA in this build or a GPU in this machine; kResourceExhausted where its
/// memory does not suffice.
Result<std::unique_ptr<DeviceTopK>> MakeCudaTopK(int ordinal, const TopKSetup& setup);

/// What every implementation refuses.
Status CheckTopKSetup(const TopKSetup& setup);
Status CheckTopKQueries(const TopKSetup& setup, std::span<const TopKQuery> queries);

}  // namespace inferscale::kernels

#endif  // INFERSCALE_KERNELS_DEVICE_TOP_K_H_
