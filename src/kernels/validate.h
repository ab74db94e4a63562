#ifndef INFERSCALE_KERNELS_VALIDATE_H_
#define INFERSCALE_KERNELS_VALIDATE_H_

/// \file validate.h
/// The argument checks that the CPU and the CUDA kernels make before they touch anything.

#include "kernels/kernels.h"

namespace inferscale::kernels {

enum class Direction { kInject, kCapture };

/// Checks everything Inject and Capture promise to check. The block table is read (on the host), so
/// it must cover every logical slot that the descriptors name.
KernelStatus ValidateArguments(const CodecView& view, const RopeTable& rope,
                               const PagedLayout& layout, const FactDescriptor* facts,
                               std::int32_t fact_count, Direction direction);

/// The part that concerns neither descriptors nor a block table's entries, for implementations that
/// check it once. \param with_table whether calls bring a block table
KernelStatus ValidateSetup(const CodecView& view, const RopeTable& rope, const PagedLayout& layout,
                           bool with_table);
/// The rest, for a view, rotation and layout that ValidateSetup has passed.
KernelStatus ValidateDescriptors(const CodecView& view, const RopeTable& rope,
                                 const PagedLayout& layout, const FactDescriptor* facts,
                                 std::int32_t fact_count, Direction direction);

}  // namespace inferscale::kernels

#endif  // INFERSCALE_KERNELS_VALIDATE_H_
