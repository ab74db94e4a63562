#ifndef INFERSCALE_RETRIEVAL_VECTOR_MEMORY_H_
#define INFERSCALE_RETRIEVAL_VECTOR_MEMORY_H_

/// \file vector_memory.h
/// Where the vectors of loaded scopes lie and are compared: this process's memory, or a GPU's.
/// Guarantees: both find the same facts, with scores that differ by the rounding of f32 sums; a
/// vector that was appended is found by the next search.

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "inferscale/catalog.h"
#include "inferscale/result.h"
#include "kernels/device.h"
#include "kernels/device_top_k.h"

namespace inferscale {

struct VectorMatch {
  std::uint32_t position = 0;  ///< in the order of appending
  float score = 0;             ///< inner product
};

/// The vectors of one scope. Searches may run at the same time, but not beside Append().
class VectorRows {
 public:
  virtual ~VectorRows() = default;

  /// \param rows with vectors of the dimensions this was made for. After an error the contents are
  /// unspecified.
  virtual Status Append(std::span<const EmbeddingRow> rows) = 0;

  /// The `k` best, best first, then in the order of appending. \param allowed one bit a position,
  /// or nullptr for all.
  virtual Result<std::vector<VectorMatch>> TopK(std::span<const float> query,
                                                const std::uint64_t* allowed,
                                                std::int32_t k) const = 0;
  /// The scores that TopK() gives these positions.
  virtual Result<std::vector<float>> Scores(std::span<const float> query,
                                            std::span<const std::uint32_t> positions) const = 0;
  virtual std::size_t MemorySizeBytes() const = 0;
};

/// Thread-safe. Its rows keep what they need of it alive.
class VectorMemory {
 public:
  virtual ~VectorMemory() = default;
  virtual Result<std::unique_ptr<VectorRows>> MakeRows(std::int32_t dimensions) = 0;
};

std::shared_ptr<VectorMemory> MakeHostVectorMemory();

/// Vectors on a device. Searches that come while one runs go together in the next.
using TopKFactory =
    std::function<Result<std::unique_ptr<kernels::DeviceTopK>>(const kernels::TopKSetup&)>;
std::shared_ptr<VectorMemory> MakeDeviceVectorMemory(std::unique_ptr<kernels::Device> device,
                                                     TopKFactory make_top_k);

/// \param device "cpu", "cuda" or "cuda:N". kInvalidArgument for any other; kUnsupported, saying
/// what to do, where this build or machine has no such GPU.
Result<std::shared_ptr<VectorMemory>> MakeVectorMemory(const std::string& device);

}  // namespace inferscale

#endif  // INFERSCALE_RETRIEVAL_VECTOR_MEMORY_H_
