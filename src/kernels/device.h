#ifndef INFERSCALE_KERNELS_DEVICE_H_
#define INFERSCALE_KERNELS_DEVICE_H_

/// \file device.h
/// Memory, copies, events, and the transfer of KV on one device, for callers that know nothing of
/// CUDA: addresses are raw, a stream is the integer value of its handle (0: the default stream).
/// MakeHostDevice is the twin that tests compare with: its device memory is this process's, and
/// everything has happened when a call returns.

#include <cstdint>
#include <memory>

#include "inferscale/result.h"
#include "kernels/kernels.h"

namespace inferscale::kernels {

/// What stays the same between calls. Host arrays are copied by MakeTransfer.
struct TransferSetup {
  CodecView view;
  RopeTable rope;  ///< host pointers
  /// `key_base` and `value_base` are host arrays of device addresses; `block_table` is unused;
  /// `slots` counts the cache's physical slots.
  PagedLayout layout;
  std::int32_t max_facts = 0;         ///< descriptors of one call
  std::int32_t max_table_blocks = 0;  ///< entries of one call's block table
};

/// Inject and capture on one device. Facts of many requests go in one call: `block_table` is the
/// concatenation of the requests' tables, and a descriptor's `slot` counts from its start (offset
/// of the request's table · block_slots + position in the request). Without a table (nullptr, 0)
/// slots are used as they are. `payload` addresses are the device's and 16-byte aligned.
/// Asynchronous on `stream`; the arguments have been copied when a call returns. One thread at a
/// time may use it, and it must not outlive its Device.
/// Errors are those of Inject and Capture in kernels.h; kBadDescriptor also for more facts or table
/// entries than the setup allows and for slots outside the table.
class DeviceTransfer {
 public:
  virtual ~DeviceTransfer() = default;
  /// One launch for all layers and requests.
  virtual KernelStatus Inject(const FactDescriptor* facts, std::int32_t fact_count,
                              const std::int32_t* block_table, std::int32_t table_blocks,
                              std::uintptr_t stream) = 0;
  virtual KernelStatus Capture(const FactDescriptor* facts, std::int32_t fact_count,
                               const std::int32_t* block_table, std::int32_t table_blocks,
                               std::uintptr_t stream) = 0;
};

/// Memory, copies and events of one device. Thread-safe.
class Device {
 public:
  virtual ~Device() = default;
  /// At least 256-byte aligned. \return kResourceExhausted if there is not enough.
  virtual Result<std::uint8_t*> Allocate(std::int64_t bytes) = 0;
  virtual void Free(std::uint8_t* memory) = 0;
  /// Host memory that the device copies from and to at full speed.
  virtual Result<std::uint8_t*> AllocatePinned(std::int64_t bytes) = 0;
  virtual void FreePinned(std::uint8_t* memory) = 0;
  /// Asynchronous on `stream`; host sides are pinned memory, and the two sides do not overlap.
  virtual Status CopyToDevice(std::uint8_t* to, const std::uint8_t* from, std::int64_t bytes,
                              std::uintptr_t stream) = 0;
  virtual Status CopyToHost(std::uint8_t* to, const std::uint8_t* from, std::int64_t bytes,
                            std::uintptr_t stream) = 0;
  virtual Status CopyOnDevice(std::uint8_t* to, const std::uint8_t* from, std::int64_t bytes,
                              std::uintptr_t stream) = 0;
  /// An event behind all that `stream` was given so far; ids ascend.
  virtual Result<std::uint64_t> Record(std::uintptr_t stream) = 0;
  /// Whether an event has happened; never waits. Events that were seen to have happened stay so.
  virtual Result<bool> Done(std::uint64_t event) = 0;
  virtual Status Wait(std::uint64_t event) = 0;
  /// What `stream` is given from now on starts after `event`.
  virtual Status StreamWait(std::uintptr_t stream, std::uint64_t event) = 0;
  /// A stream of its own for promotion and eviction.
  virtual std::uintptr_t copy_stream() = 0;
  virtual Result<std::int64_t> FreeBytes() = 0;
  /// \return kInvalidArgument for a setup that no call could satisfy.
  virtual Result<std::unique_ptr<DeviceTransfer>> MakeTransfer(const TransferSetup& setup) = 0;
};

/// The twin: memory of this process, kernels/cpu.
Result<std::unique_ptr<Device>> MakeHostDevice();
/// \return kUnsupported in a build without CUDA, or where no such GPU is there.
Result<std::unique_ptr<Device>> MakeCudaDevice(int ordinal);

}  // namespace inferscale::kernels

#endif  // INFERSCALE_KERNELS_DEVICE_H_
