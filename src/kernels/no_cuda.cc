// Stands for kernels/cuda in builds without CUDA.

#include "kernels/device.h"

namespace inferscale::kernels {

Result<std::unique_ptr<Device>> MakeCudaDevice(int) {
  return Unsupported("this build has no CUDA kernels: build with -DINFERSCALE_CUDA=ON");
}

}  // namespace inferscale::kernels
