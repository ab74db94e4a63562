#ifndef INFERSCALE_KERNELS_CUDA_CUDA_STATUS_H_
#define INFERSCALE_KERNELS_CUDA_CUDA_STATUS_H_

/// \file cuda_status.h
/// CUDA's error codes as Status.

#include <cuda_runtime_api.h>

#include <cstdint>
#include <string_view>

#include "inferscale/result.h"

namespace inferscale::kernels::cuda {

/// kResourceExhausted for a lack of memory, else kInternal. \param what what was attempted
Status ToStatus(cudaError_t error, std::string_view what);

inline cudaStream_t StreamOf(std::uintptr_t stream) {
  return reinterpret_cast<cudaStream_t>(stream);
}

/// Makes a device current for a scope: calls come from threads that serve other devices as well.
class DeviceScope {
 public:
  explicit DeviceScope(int ordinal);
  ~DeviceScope();
  DeviceScope(const DeviceScope&) = delete;
  DeviceScope& operator=(const DeviceScope&) = delete;
  /// Whether the device could be made current.
  cudaError_t error() const { return error_; }

 private:
  int previous_ = -1;
  cudaError_t error_ = cudaSuccess;
};

}  // namespace inferscale::kernels::cuda

#endif  // INFERSCALE_KERNELS_CUDA_CUDA_STATUS_H_
