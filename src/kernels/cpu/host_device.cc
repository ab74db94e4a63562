#include <unistd.h>

#include <cstdlib>
#include <cstring>
#include <memory>
#include <mutex>
#include <string>
#include <utility>

#include "kernels/device.h"
#include "kernels/transfer_setup.h"

namespace inferscale::kernels {
namespace {

constexpr std::size_t kAlignment = 256;

class HostTransfer : public DeviceTransfer {
 public:
  explicit HostTransfer(OwnedSetup setup) : setup_(std::move(setup)) {}

  KernelStatus Inject(const FactDescriptor* facts, std::int32_t fact_count,
                      const std::int32_t* block_table, std::int32_t table_blocks,
                      std::uintptr_t) override {
    const KernelStatus status =
        setup_.Check(facts, fact_count, block_table, table_blocks, Direction::kInject);
    if (status != KernelStatus::kOk || fact_count == 0) return status;
    return kernels::Inject(setup_.view(), setup_.rope(), setup_.layout(block_table), facts,
                           fact_count);
  }

  KernelStatus Capture(const FactDescriptor* facts, std::int32_t fact_count,
                       const std::int32_t* block_table, std::int32_t table_blocks,
                       std::uintptr_t) override {
    const KernelStatus status =
        setup_.Check(facts, fact_count, block_table, table_blocks, Direction::kCapture);
    if (status != KernelStatus::kOk || fact_count == 0) return status;
    return kernels::Capture(setup_.view(), setup_.rope(), setup_.layout(block_table), facts,
                            fact_count);
  }

 private:
  const OwnedSetup setup_;
};

class HostDevice : public Device {
 public:
  Result<std::uint8_t*> Allocate(std::int64_t bytes) override {
    if (bytes <= 0) return InvalidArgument("an allocation needs a positive number of bytes");
    const std::size_t size =
        (static_cast<std::size_t>(bytes) + kAlignment - 1) / kAlignment * kAlignment;
    void* memory = std::aligned_alloc(kAlignment, size);
    if (memory == nullptr) {
      return ResourceExhausted("no memory for " + std::to_string(bytes) + " bytes");
    }
    return static_cast<std::uint8_t*>(memory);
  }
  void Free(std::uint8_t* memory) override { std::free(memory); }
  Result<std::uint8_t*> AllocatePinned(std::int64_t bytes) override { return Allocate(bytes); }
  void FreePinned(std::uint8_t* memory) override { Free(memory); }

  Status CopyToDevice(std::uint8_t* to, const std::uint8_t* from, std::int64_t bytes,
                      std::uintptr_t) override {
    return Copy(to, from, bytes);
  }
  Status CopyToHost(std::uint8_t* to, const std::uint8_t* from, std::int64_t bytes,
                    std::uintptr_t) override {
    return Copy(to, from, bytes);
  }
  Status CopyOnDevice(std::uint8_t* to, const std::uint8_t* from, std::int64_t bytes,
                      std::uintptr_t) override {
    return Copy(to, from, bytes);
  }

  Result<std::uint64_t> Record(std::uintptr_t) override {
    const std::lock_guard lock(mutex_);
    return ++recorded_;
  }
  Result<bool> Done(std::uint64_t event) override {
    INFERSCALE_RETURN_IF_ERROR(Known(event));
    return true;
  }
  Status Wait(std::uint64_t event) override { return Known(event); }
  Status StreamWait(std::uintptr_t, std::uint64_t event) override { return Known(event); }
  std::uintptr_t copy_stream() override { return 0; }

  Result<std::int64_t> FreeBytes() override {
    const long pages = sysconf(_SC_AVPHYS_PAGES), page_bytes = sysconf(_SC_PAGESIZE);
    if (pages < 0 || page_bytes < 0) return Internal("the system does not tell its free memory");
    return static_cast<std::int64_t>(pages) * page_bytes;
  }

  Result<std::unique_ptr<DeviceTransfer>> MakeTransfer(const TransferSetup& setup) override {
    INFERSCALE_ASSIGN_OR_RETURN(OwnedSetup owned, OwnedSetup::Copy(setup));
    return std::unique_ptr<DeviceTransfer>(new HostTransfer(std::move(owned)));
  }

 private:
  static Status Copy(std::uint8_t* to, const std::uint8_t* from, std::int64_t bytes) {
    if (bytes < 0) return InvalidArgument("a copy of a negative number of bytes");
    if (bytes > 0) std::memcpy(to, from, static_cast<std::size_t>(bytes));
    return OkStatus();
  }

  Status Known(std::uint64_t event) {
    const std::lock_guard lock(mutex_);
    if (event > 0 && event <= recorded_) return OkStatus();
    return InvalidArgument("event " + std::to_string(event) + " was never recorded");
  }

  std::mutex mutex_;
  std::uint64_t recorded_ = 0;
};

}  // namespace

Result<std::unique_ptr<Device>> MakeHostDevice() {
  return std::unique_ptr<Device>(new HostDevice());
}

}  // namespace inferscale::kernels
