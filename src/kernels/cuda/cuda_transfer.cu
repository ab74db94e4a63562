#include "kernels/cuda/cuda_transfer.h"

namespace inferscale::kernels::cuda {

Result<std::unique_ptr<DeviceTransfer>> MakeCudaTransfer(int, const TransferSetup&) {
  return Unsupported("inject and capture on a GPU");
}

}  // namespace inferscale::kernels::cuda
