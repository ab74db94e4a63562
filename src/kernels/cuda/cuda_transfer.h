#ifndef INFERSCALE_KERNELS_CUDA_CUDA_TRANSFER_H_
#define INFERSCALE_KERNELS_CUDA_CUDA_TRANSFER_H_

#include <memory>

#include "inferscale/result.h"
#include "kernels/device.h"

namespace inferscale::kernels::cuda {

/// The DeviceTransfer of GPU `ordinal`, which must exist.
Result<std::unique_ptr<DeviceTransfer>> MakeCudaTransfer(int ordinal, const TransferSetup& setup);

}  // namespace inferscale::kernels::cuda

#endif  // INFERSCALE_KERNELS_CUDA_CUDA_TRANSFER_H_
