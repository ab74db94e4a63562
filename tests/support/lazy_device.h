#ifndef INFERSCALE_TESTS_SUPPORT_LAZY_DEVICE_H_
#define INFERSCALE_TESTS_SUPPORT_LAZY_DEVICE_H_

/// \file lazy_device.h
/// LazyDevice: a device whose streams do their work as late as they may, or at random times before.
/// Whoever forgets to order two streams, or frees what one still reads, sees wrong bytes.

#include <algorithm>
#include <condition_variable>
#include <cstdint>
#include <cstdlib>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <random>
#include <set>
#include <utility>
#include <vector>

#include "kernels/device.h"

namespace inferscale::test {

class LazyDevice : public kernels::Device {
 public:
  explicit LazyDevice(std::uint64_t seed) : host_(*kernels::MakeHostDevice()), random_(seed) {}

  Result<std::uint8_t*> Allocate(std::int64_t bytes) override { return host_->Allocate(bytes); }
  void Free(std::uint8_t* memory) override { host_->Free(memory); }
  Result<std::uint8_t*> AllocatePinned(std::int64_t bytes) override { return Allocate(bytes); }
  void FreePinned(std::uint8_t* memory) override { Free(memory); }
  Status CopyToDevice(std::uint8_t* to, const std::uint8_t* from, std::int64_t bytes,
                      std::uintptr_t stream) override {
    return Copy(to, from, bytes, stream);
  }
  Status CopyToHost(std::uint8_t* to, const std::uint8_t* from, std::int64_t bytes,
                    std::uintptr_t stream) override {
    return Copy(to, from, bytes, stream);
  }
  Status CopyOnDevice(std::uint8_t* to, const std::uint8_t* from, std::int64_t bytes,
                      std::uintptr_t stream) override {
    if (to < from + bytes && from < to + bytes) return InvalidArgument("the sides overlap");
    return Copy(to, from, bytes, stream);
  }
  Result<std::uint64_t> Record(std::uintptr_t stream) override {
    const std::lock_guard lock(mutex_);
    const std::uint64_t event = ++last_event_;
    recorded_on_[event] = stream;
    Push(stream, {[this, event] { done_.insert(event); }, 0});
    return event;
  }
  Result<bool> Done(std::uint64_t event) override {
    const std::lock_guard lock(mutex_);
    return !held_ && done_.contains(event);
  }
  Status Wait(std::uint64_t event) override {
    std::unique_lock lock(mutex_);
    released_.wait(lock, [&] { return !held_; });
    Reach(event);
    return OkStatus();
  }
  Status StreamWait(std::uintptr_t stream, std::uint64_t event) override {
    const std::lock_guard lock(mutex_);
    if (stream == broken_stream_) return ResourceExhausted("no memory for another wait");
    Push(stream, {nullptr, event});
    return OkStatus();
  }
  std::uintptr_t copy_stream() override { return 77; }
  Result<std::int64_t> FreeBytes() override { return host_->FreeBytes(); }
  Result<std::unique_ptr<kernels::DeviceTransfer>> MakeTransfer(
      const kernels::TransferSetup& setup) override {
    INFERSCALE_ASSIGN_OR_RETURN(auto transfer, host_->MakeTransfer(setup));
    return std::unique_ptr<kernels::DeviceTransfer>(new Transfer(*this, std::move(transfer)));
  }

  /// Other work of a stream, such as an engine's pass.
  void Enqueue(std::uintptr_t stream, std::function<void()> work) {
    const std::lock_guard lock(mutex_);
    Push(stream, {std::move(work), 0});
  }
  /// Everything that was asked for happens.
  void Finish() {
    const std::lock_guard lock(mutex_);
    for (auto& [stream, queue] : queues_) {
      while (!queue.empty()) RunOne(stream);
    }
  }
  int launches() const { return launches_; }
  /// From now on whoever asks for an event, or waits for one, sees nothing happen; until released.
  void HoldEvents(bool held) {
    {
      const std::lock_guard lock(mutex_);
      held_ = held;
    }
    released_.notify_all();
  }
  /// This stream cannot be made to wait from now on; 0: every stream can.
  void BreakWaitsOf(std::uintptr_t stream) { broken_stream_ = stream; }

 private:
  struct Operation {
    std::function<void()> work;
    std::uint64_t wait_for = 0;
  };

  class Transfer : public kernels::DeviceTransfer {
   public:
    Transfer(LazyDevice& device, std::unique_ptr<kernels::DeviceTransfer> host)
        : device_(device), host_(std::move(host)) {}
    kernels::KernelStatus Inject(const kernels::FactDescriptor* facts, std::int32_t count,
                                 const std::int32_t* table, std::int32_t blocks,
                                 std::uintptr_t stream) override {
      return Later(&kernels::DeviceTransfer::Inject, facts, count, table, blocks, stream);
    }
    kernels::KernelStatus Capture(const kernels::FactDescriptor* facts, std::int32_t count,
                                  const std::int32_t* table, std::int32_t blocks,
                                  std::uintptr_t stream) override {
      return Later(&kernels::DeviceTransfer::Capture, facts, count, table, blocks, stream);
    }

   private:
    template <typename Method>
    kernels::KernelStatus Later(Method method, const kernels::FactDescriptor* facts,
                                std::int32_t count, const std::int32_t* table, std::int32_t blocks,
                                std::uintptr_t stream) {
      const std::lock_guard lock(device_.mutex_);
      ++device_.launches_;
      std::vector<kernels::FactDescriptor> kept(facts, facts + count);
      std::vector<std::int32_t> kept_table(table, table + blocks);
      device_.Push(stream, {[this, method, kept, kept_table, stream] {
                              const auto status = ((*host_).*method)(
                                  kept.data(), static_cast<std::int32_t>(kept.size()),
                                  kept_table.data(), static_cast<std::int32_t>(kept_table.size()),
                                  stream);
                              if (status != kernels::KernelStatus::kOk) std::abort();
                            },
                            0});
      return kernels::KernelStatus::kOk;
    }
    LazyDevice& device_;
    std::unique_ptr<kernels::DeviceTransfer> host_;
  };

  Status Copy(std::uint8_t* to, const std::uint8_t* from, std::int64_t bytes,
              std::uintptr_t stream) {
    const std::lock_guard lock(mutex_);
    Push(stream, {[=] { std::copy_n(from, bytes, to); }, 0});
    return OkStatus();
  }
  void Push(std::uintptr_t stream, Operation operation) {
    queues_[stream].push_back(std::move(operation));
    // Now and then a stream gets ahead.
    if (random_() % 8 != 0) return;
    auto chosen =
        std::next(queues_.begin(), static_cast<std::ptrdiff_t>(random_() % queues_.size()));
    for (std::uint64_t count = random_() % 6; count > 0 && !chosen->second.empty(); --count) {
      RunOne(chosen->first);
    }
  }
  void RunOne(std::uintptr_t stream) {
    const Operation operation = std::move(queues_[stream].front());
    queues_[stream].pop_front();
    if (operation.wait_for != 0) Reach(operation.wait_for);
    if (operation.work) operation.work();
  }
  void Reach(std::uint64_t event) {
    while (!done_.contains(event)) RunOne(recorded_on_.at(event));
  }

  std::unique_ptr<kernels::Device> host_;
  std::recursive_mutex mutex_;
  std::condition_variable_any released_;
  bool held_ = false;
  std::mt19937_64 random_;
  std::map<std::uintptr_t, std::deque<Operation>> queues_;
  std::map<std::uint64_t, std::uintptr_t> recorded_on_;
  std::set<std::uint64_t> done_;
  std::uint64_t last_event_ = 0;
  int launches_ = 0;
  std::uintptr_t broken_stream_ = 0;
};

}  // namespace inferscale::test

#endif  // INFERSCALE_TESTS_SUPPORT_LAZY_DEVICE_H_
