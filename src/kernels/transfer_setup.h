#ifndef INFERSCALE_KERNELS_TRANSFER_SETUP_H_
#define INFERSCALE_KERNELS_TRANSFER_SETUP_H_

/// \file transfer_setup.h
/// The host side that DeviceTransfer's implementations share: a copy of the setup and its checks.

#include <cstdint>
#include <vector>

#include "inferscale/result.h"
#include "kernels/device.h"
#include "kernels/validate.h"

namespace inferscale::kernels {

/// A TransferSetup that owns its arrays.
class OwnedSetup {
 public:
  /// \return kInvalidArgument for a view, rotation or layout that the kernels refuse.
  static Result<OwnedSetup> Copy(const TransferSetup& setup);

  /// The checks of a call, before anything is written. The table must cover all slots.
  KernelStatus Check(const FactDescriptor* facts, std::int32_t fact_count,
                     const std::int32_t* block_table, std::int32_t table_blocks,
                     Direction direction) const;

  const CodecView& view() const { return view_; }
  std::int32_t max_facts() const { return max_facts_; }
  std::int32_t max_table_blocks() const { return max_table_blocks_; }
  /// These point into this object.
  RopeTable rope() const;
  PagedLayout layout(const std::int32_t* block_table) const;

 private:
  CodecView view_;
  RopeTable rope_;
  PagedLayout layout_;
  std::vector<float> cos_sin_;
  std::vector<std::int32_t> layer_group_;
  std::vector<void*> key_base_, value_base_;
  std::int32_t max_facts_ = 0;
  std::int32_t max_table_blocks_ = 0;
};

}  // namespace inferscale::kernels

#endif  // INFERSCALE_KERNELS_TRANSFER_SETUP_H_
