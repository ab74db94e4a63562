#include "kernels/cuda/cuda_status.h"

#include <string>

namespace inferscale::kernels::cuda {

Status ToStatus(cudaError_t error, std::string_view what) {
  if (error == cudaSuccess) return OkStatus();
  const std::string message = std::string(what) + ": " + cudaGetErrorString(error);
  return error == cudaErrorMemoryAllocation ? ResourceExhausted(message) : Internal(message);
}

DeviceScope::DeviceScope(int ordinal) {
  int current = -1;
  error_ = cudaGetDevice(&current);
  if (error_ != cudaSuccess || current == ordinal) return;
  error_ = cudaSetDevice(ordinal);
  if (error_ == cudaSuccess) previous_ = current;
}

DeviceScope::~DeviceScope() {
  if (previous_ >= 0) cudaSetDevice(previous_);
}

}  // namespace inferscale::kernels::cuda
