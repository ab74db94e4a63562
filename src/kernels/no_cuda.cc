// Stands for kernels/cuda in builds without CUDA.

#include "kernels/device.h"
#include "kernels/device_top_k.h"

namespace inferscale::kernels {
namespace {

Status NoCuda() {
  return Unsupported("this build has no CUDA kernels: build with -DINFERSCALE_CUDA=ON");
}

}  // namespace

Result<std::unique_ptr<Device>> MakeCudaDevice(int) { return NoCuda(); }

Result<std::unique_ptr<DeviceTopK>> MakeCudaTopK(int, const TopKSetup&) { return NoCuda(); }

}  // namespace inferscale::kernels
