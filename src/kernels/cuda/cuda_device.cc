#include <cuda_runtime_api.h>

#include <cstddef>
#include <map>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "kernels/cuda/cuda_status.h"
#include "kernels/cuda/cuda_transfer.h"
#include "kernels/device.h"

namespace inferscale::kernels {
namespace {

using cuda::DeviceScope;
using cuda::StreamOf;
using cuda::ToStatus;

class CudaDevice : public Device {
 public:
  explicit CudaDevice(int ordinal) : ordinal_(ordinal) {}

  ~CudaDevice() override {
    const DeviceScope scope(ordinal_);
    for (const auto& [id, event] : pending_) cudaEventDestroy(event);
    for (const cudaEvent_t event : spare_) cudaEventDestroy(event);
    if (copy_stream_ != nullptr) cudaStreamDestroy(copy_stream_);
  }

  Status Open() {
    const DeviceScope scope(ordinal_);
    INFERSCALE_RETURN_IF_ERROR(ToStatus(scope.error(), "choosing the GPU"));
    return ToStatus(cudaStreamCreateWithFlags(&copy_stream_, cudaStreamNonBlocking),
                    "creating the copy stream");
  }

  Result<std::uint8_t*> Allocate(std::int64_t bytes) override {
    if (bytes <= 0) return InvalidArgument("an allocation needs a positive number of bytes");
    const DeviceScope scope(ordinal_);
    void* memory = nullptr;
    const cudaError_t error = cudaMalloc(&memory, static_cast<std::size_t>(bytes));
    INFERSCALE_RETURN_IF_ERROR(
        Cleared(error, "no " + std::to_string(bytes) + " bytes of GPU memory"));
    return static_cast<std::uint8_t*>(memory);
  }

  void Free(std::uint8_t* memory) override {
    const DeviceScope scope(ordinal_);
    cudaFree(memory);
  }

  Result<std::uint8_t*> AllocatePinned(std::int64_t bytes) override {
    if (bytes <= 0) return InvalidArgument("an allocation needs a positive number of bytes");
    const DeviceScope scope(ordinal_);
    void* memory = nullptr;
    const cudaError_t error =
        cudaHostAlloc(&memory, static_cast<std::size_t>(bytes), cudaHostAllocPortable);
    INFERSCALE_RETURN_IF_ERROR(
        Cleared(error, "no " + std::to_string(bytes) + " bytes of pinned memory"));
    return static_cast<std::uint8_t*>(memory);
  }

  void FreePinned(std::uint8_t* memory) override {
    const DeviceScope scope(ordinal_);
    cudaFreeHost(memory);
  }

  Status CopyToDevice(std::uint8_t* to, const std::uint8_t* from, std::int64_t bytes,
                      std::uintptr_t stream) override {
    return Copy(to, from, bytes, cudaMemcpyHostToDevice, stream);
  }
  Status CopyToHost(std::uint8_t* to, const std::uint8_t* from, std::int64_t bytes,
                    std::uintptr_t stream) override {
    return Copy(to, from, bytes, cudaMemcpyDeviceToHost, stream);
  }
  Status CopyOnDevice(std::uint8_t* to, const std::uint8_t* from, std::int64_t bytes,
                      std::uintptr_t stream) override {
    return Copy(to, from, bytes, cudaMemcpyDeviceToDevice, stream);
  }

  Result<std::uint64_t> Record(std::uintptr_t stream) override {
    const DeviceScope scope(ordinal_);
    const std::lock_guard lock(mutex_);
    cudaEvent_t event = nullptr;
    if (spare_.empty()) RetireHappened();
    if (spare_.empty()) {
      INFERSCALE_RETURN_IF_ERROR(
          ToStatus(cudaEventCreateWithFlags(&event, cudaEventDisableTiming), "creating an event"));
    } else {
      event = spare_.back();
      spare_.pop_back();
    }
    const Status status = ToStatus(cudaEventRecord(event, StreamOf(stream)), "recording an event");
    if (!status.ok()) {
      spare_.push_back(event);
      return status;
    }
    pending_.emplace(++recorded_, event);
    return recorded_;
  }

  Result<bool> Done(std::uint64_t event) override {
    const DeviceScope scope(ordinal_);
    const std::lock_guard lock(mutex_);
    INFERSCALE_RETURN_IF_ERROR(Known(event));
    const auto found = pending_.find(event);
    if (found == pending_.end()) return true;
    const cudaError_t error = cudaEventQuery(found->second);
    if (error == cudaErrorNotReady) {
      cudaGetLastError();  // or the next launch's check finds it
      return false;
    }
    INFERSCALE_RETURN_IF_ERROR(ToStatus(error, "asking for an event"));
    Retire(found);
    return true;
  }

  Status Wait(std::uint64_t event) override {
    const DeviceScope scope(ordinal_);
    cudaEvent_t handle = nullptr;
    {
      const std::lock_guard lock(mutex_);
      INFERSCALE_RETURN_IF_ERROR(Known(event));
      const auto found = pending_.find(event);
      if (found == pending_.end()) return OkStatus();
      handle = found->second;
      ++waiting_[event];
    }
    const cudaError_t error = cudaEventSynchronize(handle);
    const std::lock_guard lock(mutex_);
    if (--waiting_[event] == 0) waiting_.erase(event);
    INFERSCALE_RETURN_IF_ERROR(ToStatus(error, "waiting for an event"));
    const auto found = pending_.find(event);
    if (found != pending_.end()) Retire(found);
    return OkStatus();
  }

  Status StreamWait(std::uintptr_t stream, std::uint64_t event) override {
    const DeviceScope scope(ordinal_);
    const std::lock_guard lock(mutex_);
    INFERSCALE_RETURN_IF_ERROR(Known(event));
    const auto found = pending_.find(event);
    if (found == pending_.end()) return OkStatus();
    return ToStatus(cudaStreamWaitEvent(StreamOf(stream), found->second, 0),
                    "making a stream wait");
  }

  std::uintptr_t copy_stream() override { return reinterpret_cast<std::uintptr_t>(copy_stream_); }

  Result<std::int64_t> FreeBytes() override {
    const DeviceScope scope(ordinal_);
    std::size_t free_bytes = 0, total_bytes = 0;
    INFERSCALE_RETURN_IF_ERROR(
        ToStatus(cudaMemGetInfo(&free_bytes, &total_bytes), "asking for free GPU memory"));
    return static_cast<std::int64_t>(free_bytes);
  }

  Result<std::unique_ptr<DeviceTransfer>> MakeTransfer(const TransferSetup& setup) override {
    return cuda::MakeCudaTransfer(ordinal_, setup);
  }

 private:
  using Pending = std::map<std::uint64_t, cudaEvent_t>;

  // A failed allocation must not be found again by the next launch's check.
  static Status Cleared(cudaError_t error, const std::string& what) {
    if (error != cudaSuccess) cudaGetLastError();
    return ToStatus(error, what);
  }

  Status Copy(std::uint8_t* to, const std::uint8_t* from, std::int64_t bytes, cudaMemcpyKind kind,
              std::uintptr_t stream) {
    if (bytes < 0) return InvalidArgument("a copy of a negative number of bytes");
    if (bytes == 0) return OkStatus();
    const DeviceScope scope(ordinal_);
    return ToStatus(
        cudaMemcpyAsync(to, from, static_cast<std::size_t>(bytes), kind, StreamOf(stream)),
        "copying");
  }

  Status Known(std::uint64_t event) const {
    if (event > 0 && event <= recorded_) return OkStatus();
    return InvalidArgument("event " + std::to_string(event) + " was never recorded");
  }

  // An event that a thread waits for is kept: recorded again, it would mean something else.
  void Retire(Pending::iterator found) {
    if (waiting_.contains(found->first)) return;
    spare_.push_back(found->second);
    pending_.erase(found);
  }

  // Nobody need ask about an event again: without this, each of those would be kept for good.
  void RetireHappened() {
    for (auto next = pending_.begin(); next != pending_.end();) {
      const auto found = next++;
      if (cudaEventQuery(found->second) != cudaSuccess) {
        cudaGetLastError();
        return;
      }
      Retire(found);
    }
  }

  const int ordinal_;
  cudaStream_t copy_stream_ = nullptr;
  std::mutex mutex_;
  std::uint64_t recorded_ = 0;
  Pending pending_;  ///< not yet seen to have happened
  std::map<std::uint64_t, int> waiting_;
  std::vector<cudaEvent_t> spare_;
};

}  // namespace

Result<std::unique_ptr<Device>> MakeCudaDevice(int ordinal) {
  int count = 0;
  const cudaError_t error = cudaGetDeviceCount(&count);
  if (error != cudaSuccess) {
    cudaGetLastError();
    return Unsupported(std::string("no GPU can be used: ") + cudaGetErrorString(error));
  }
  if (ordinal < 0 || ordinal >= count) {
    return Unsupported("there is no GPU " + std::to_string(ordinal) + ": this machine has " +
                       std::to_string(count));
  }
  auto device = std::make_unique<CudaDevice>(ordinal);
  INFERSCALE_RETURN_IF_ERROR(device->Open());
  return std::unique_ptr<Device>(std::move(device));
}

}  // namespace inferscale::kernels
