#include "kernels/cuda/cuda_transfer.h"

#include <cuda_runtime_api.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstring>
#include <string>
#include <utility>

#include "kernels/cuda/cuda_status.h"
#include "kernels/cuda/work.cuh"
#include "kernels/transfer_setup.h"

namespace inferscale::kernels::cuda {
namespace {

// Calls that may be under way before the next one waits.
constexpr std::size_t kRingSlots = 16;
constexpr std::size_t kSlotAlignment = 256;

std::size_t Aligned(std::size_t bytes) {
  return (bytes + kSlotAlignment - 1) / kSlotAlignment * kSlotAlignment;
}

/// Device memory that is freed with its owner.
class DeviceMemory {
 public:
  DeviceMemory() = default;
  ~DeviceMemory() { cudaFree(memory_); }
  DeviceMemory(const DeviceMemory&) = delete;
  DeviceMemory& operator=(const DeviceMemory&) = delete;

  Status Allocate(std::size_t bytes) {
    const cudaError_t error = cudaMalloc(&memory_, bytes);
    if (error != cudaSuccess) cudaGetLastError();
    return ToStatus(error, "no " + std::to_string(bytes) + " bytes of GPU memory");
  }
  Status Fill(const void* from, std::size_t bytes) {
    INFERSCALE_RETURN_IF_ERROR(Allocate(bytes));
    return ToStatus(cudaMemcpy(memory_, from, bytes, cudaMemcpyHostToDevice),
                    "copying tables to the GPU");
  }
  std::uint8_t* bytes() const { return static_cast<std::uint8_t*>(memory_); }

 private:
  void* memory_ = nullptr;
};

/// The arguments of the large calls under way: pinned, and their copies on the device. A slot is
/// taken again when the event behind its kernel has happened.
class ArgumentRing {
 public:
  ~ArgumentRing() {
    for (Slot& slot : slots_) {
      if (slot.in_flight) cudaEventSynchronize(slot.done);
      if (slot.done != nullptr) cudaEventDestroy(slot.done);
    }
    cudaFreeHost(pinned_);
  }

  Status Open(std::size_t slot_bytes) {
    slot_bytes_ = Aligned(slot_bytes);
    const cudaError_t error =
        cudaHostAlloc(&pinned_, kRingSlots * slot_bytes_, cudaHostAllocPortable);
    if (error != cudaSuccess) cudaGetLastError();
    INFERSCALE_RETURN_IF_ERROR(ToStatus(error, "no pinned memory for the kernels' arguments"));
    INFERSCALE_RETURN_IF_ERROR(device_.Allocate(kRingSlots * slot_bytes_));
    for (Slot& slot : slots_) {
      INFERSCALE_RETURN_IF_ERROR(ToStatus(
          cudaEventCreateWithFlags(&slot.done, cudaEventDisableTiming), "creating an event"));
    }
    return OkStatus();
  }

  /// The host side of the next slot; waits for the oldest call only if every slot is in use.
  cudaError_t Next(std::uint8_t*& host) {
    Slot& slot = slots_[next_];
    if (slot.in_flight) {
      const cudaError_t error = cudaEventSynchronize(slot.done);
      if (error != cudaSuccess) return error;
      slot.in_flight = false;
    }
    host = static_cast<std::uint8_t*>(pinned_) + next_ * slot_bytes_;
    return cudaSuccess;
  }

  /// Copies what Next() gave to the device. \return the device's side
  cudaError_t Send(std::size_t bytes, cudaStream_t stream, const std::uint8_t*& device) {
    device = device_.bytes() + next_ * slot_bytes_;
    return cudaMemcpyAsync(device_.bytes() + next_ * slot_bytes_,
                           static_cast<std::uint8_t*>(pinned_) + next_ * slot_bytes_, bytes,
                           cudaMemcpyHostToDevice, stream);
  }

  /// Ends the slot's use behind what `stream` was given.
  cudaError_t Finish(cudaStream_t stream) {
    Slot& slot = slots_[next_];
    const cudaError_t error = cudaEventRecord(slot.done, stream);
    slot.in_flight = error == cudaSuccess;
    next_ = (next_ + 1) % kRingSlots;
    return error;
  }

 private:
  struct Slot {
    cudaEvent_t done = nullptr;
    bool in_flight = false;
  };
  std::array<Slot, kRingSlots> slots_;
  std::size_t next_ = 0;
  std::size_t slot_bytes_ = 0;
  void* pinned_ = nullptr;
  DeviceMemory device_;
};

bool Divides(std::int64_t by, std::initializer_list<std::int64_t> numbers) {
  return std::all_of(numbers.begin(), numbers.end(),
                     [by](std::int64_t number) { return number % by == 0; });
}

bool BasesAligned(const PagedLayout& layout, std::int32_t layers, std::uintptr_t to) {
  for (std::int32_t layer = 0; layer < layers; ++layer) {
    if (reinterpret_cast<std::uintptr_t>(layout.key_base[layer]) % to != 0 ||
        reinterpret_cast<std::uintptr_t>(layout.value_base[layer]) % to != 0) {
      return false;
    }
  }
  return true;
}

class CudaTransfer : public DeviceTransfer {
 public:
  CudaTransfer(int ordinal, OwnedSetup setup) : ordinal_(ordinal), setup_(std::move(setup)) {}

  Status Open() {
    const RopeTable rope = setup_.rope();
    const PagedLayout layout = setup_.layout(nullptr);
    const auto layers = static_cast<std::size_t>(setup_.view().layers);
    INFERSCALE_RETURN_IF_ERROR(key_base_.Fill(layout.key_base, layers * sizeof(void*)));
    INFERSCALE_RETURN_IF_ERROR(value_base_.Fill(layout.value_base, layers * sizeof(void*)));
    INFERSCALE_RETURN_IF_ERROR(layer_group_.Fill(rope.layer_group, layers * sizeof(std::int32_t)));
    if (rope.cos_sin != nullptr) {
      INFERSCALE_RETURN_IF_ERROR(
          cos_sin_.Fill(rope.cos_sin, sizeof(float) * static_cast<std::size_t>(rope.groups) *
                                          static_cast<std::size_t>(rope.positions) *
                                          static_cast<std::size_t>(rope.width)));
    }
    // A copy from memory that is not pinned returns before its end; callers' streams wait for none.
    INFERSCALE_RETURN_IF_ERROR(
        ToStatus(cudaStreamSynchronize(cudaStreamLegacy), "copying tables to the GPU"));
    DescribeGeometry(rope, layout);
    INFERSCALE_RETURN_IF_ERROR(ToStatus(
        cudaDeviceGetAttribute(&geometry_.processors, cudaDevAttrMultiProcessorCount, ordinal_),
        "asking for the GPU's size"));
    INFERSCALE_RETURN_IF_ERROR(ToStatus(PrepareKernels(), "loading the kernels"));
    return ring_.Open(static_cast<std::size_t>(setup_.max_facts()) *
                          (sizeof(FactDescriptor) + sizeof(std::int32_t)) +
                      static_cast<std::size_t>(setup_.max_table_blocks()) * sizeof(std::int32_t));
  }

  ~CudaTransfer() override = default;

  KernelStatus Inject(const FactDescriptor* facts, std::int32_t fact_count,
                      const std::int32_t* block_table, std::int32_t table_blocks,
                      std::uintptr_t stream) override {
    const std::int32_t tile_tokens =
        support_.inject ? VectorInjectTileTokens(geometry_) : kGenericTileTokens;
    return Run(facts, fact_count, block_table, table_blocks, Direction::kInject, tile_tokens,
               support_.inject ? LaunchVectorInject : LaunchGenericInject, StreamOf(stream));
  }

  KernelStatus Capture(const FactDescriptor* facts, std::int32_t fact_count,
                       const std::int32_t* block_table, std::int32_t table_blocks,
                       std::uintptr_t stream) override {
    const bool by_group = !support_.capture || Quantised(geometry_.codec);
    return Run(facts, fact_count, block_table, table_blocks, Direction::kCapture,
               by_group ? 0 : VectorTileTokens(geometry_),
               support_.capture ? LaunchVectorCapture : LaunchGenericCapture, StreamOf(stream));
  }

 private:
  using Launch = cudaError_t (*)(const Geometry&, const Arguments&, std::int64_t, cudaStream_t);

  cudaError_t PrepareKernels() const {
    cudaError_t error = cudaSuccess;
    if (support_.inject) error = PrepareVectorInject(geometry_);
    if (error == cudaSuccess && support_.capture) error = PrepareVectorCapture(geometry_);
    if (error == cudaSuccess && !(support_.inject && support_.capture)) error = PrepareGeneric();
    return error;
  }

  void DescribeGeometry(const RopeTable& rope, const PagedLayout& layout) {
    const CodecView& view = setup_.view();
    Geometry& geometry = geometry_;
    geometry.codec = view.codec;
    geometry.type = layout.type;
    geometry.pairing = rope.pairing;
    geometry.layers = view.layers;
    geometry.heads = view.kv_heads;
    geometry.key_dim = view.key_dim;
    geometry.value_dim = view.value_dim;
    // No slot reaches the largest number, so a larger block is as good as that.
    geometry.block_slots =
        static_cast<std::uint32_t>(std::clamp<std::int64_t>(layout.block_slots, 1, UINT32_MAX));
    geometry.keys = {reinterpret_cast<std::uint8_t* const*>(key_base_.bytes()),
                     layout.key_block_stride, layout.key_slot_stride, layout.key_head_stride,
                     layout.key_dim_stride};
    geometry.values = {reinterpret_cast<std::uint8_t* const*>(value_base_.bytes()),
                       layout.value_block_stride, layout.value_slot_stride,
                       layout.value_head_stride, layout.value_dim_stride};
    geometry.cos_sin = reinterpret_cast<const float*>(cos_sin_.bytes());
    geometry.layer_group = reinterpret_cast<const std::int32_t*>(layer_group_.bytes());
    geometry.positions = rope.positions;
    geometry.width = cos_sin_.bytes() == nullptr ? 0 : rope.width;

    const std::int64_t element = layout.type == ScalarType::kF32 ? 4 : 2;
    const auto strides_divide = [&](std::int64_t by) {
      return Divides(by, {layout.key_block_stride, layout.key_slot_stride, layout.key_head_stride,
                          layout.value_block_stride, layout.value_slot_stride,
                          layout.value_head_stride}) &&
             BasesAligned(layout, view.layers, static_cast<std::uintptr_t>(by));
    };
    geometry.aligned = strides_divide(element) &&
                       Divides(element, {layout.key_dim_stride, layout.value_dim_stride});
    const bool rows_aligned = layout.key_dim_stride == element &&
                              layout.value_dim_stride == element && strides_divide(16);
    support_ = VectorSupportOf(geometry, rows_aligned);
  }

  KernelStatus Run(const FactDescriptor* facts, std::int32_t fact_count,
                   const std::int32_t* block_table, std::int32_t table_blocks, Direction direction,
                   std::int32_t tile_tokens, Launch launch, cudaStream_t stream) {
    const KernelStatus status =
        setup_.Check(facts, fact_count, block_table, table_blocks, direction);
    if (status != KernelStatus::kOk || fact_count == 0) return status;
    const DeviceScope scope(ordinal_);
    if (scope.error() != cudaSuccess) return KernelStatus::kDeviceFailed;
    const std::size_t fact_bytes = sizeof(FactDescriptor) * static_cast<std::size_t>(fact_count);
    const std::size_t tile_bytes = sizeof(std::int32_t) * static_cast<std::size_t>(fact_count);
    const std::size_t table_bytes = sizeof(std::int32_t) * static_cast<std::size_t>(table_blocks);
    const std::size_t bytes = fact_bytes + tile_bytes + table_bytes;
    Arguments arguments;
    arguments.fact_count = fact_count;
    arguments.tile_tokens = tile_tokens;
    arguments.has_table = block_table != nullptr;
    const bool in_ring = bytes > Arguments::kInlineBytes;
    std::uint8_t* host = arguments.bytes;
    if (in_ring && ring_.Next(host) != cudaSuccess) return KernelStatus::kDeviceFailed;
    std::memcpy(host, facts, fact_bytes);
    std::int64_t tiles = 0;
    for (std::int32_t i = 0; i < fact_count; ++i) {
      const auto begin = static_cast<std::int32_t>(tiles);
      std::memcpy(host + fact_bytes + sizeof(begin) * static_cast<std::size_t>(i), &begin,
                  sizeof(begin));
      tiles +=
          tile_tokens == 0 ? KeyGroups(facts[i].tokens) : (facts[i].count - 1) / tile_tokens + 1;
      if (tiles > INT32_MAX) return KernelStatus::kBadDescriptor;
    }
    if (table_bytes > 0) std::memcpy(host + fact_bytes + tile_bytes, block_table, table_bytes);
    cudaError_t error = cudaSuccess;
    if (in_ring) error = ring_.Send(bytes, stream, arguments.device);
    if (error == cudaSuccess) error = launch(geometry_, arguments, tiles, stream);
    const cudaError_t finished = in_ring ? ring_.Finish(stream) : cudaSuccess;
    return error == cudaSuccess && finished == cudaSuccess ? KernelStatus::kOk
                                                           : KernelStatus::kDeviceFailed;
  }

  const int ordinal_;
  const OwnedSetup setup_;
  DeviceMemory key_base_, value_base_, layer_group_, cos_sin_;
  ArgumentRing ring_;
  Geometry geometry_;
  VectorSupport support_;
};

}  // namespace

Result<std::unique_ptr<DeviceTransfer>> MakeCudaTransfer(int ordinal, const TransferSetup& setup) {
  const DeviceScope scope(ordinal);
  INFERSCALE_RETURN_IF_ERROR(ToStatus(scope.error(), "choosing the GPU"));
  INFERSCALE_ASSIGN_OR_RETURN(OwnedSetup owned, OwnedSetup::Copy(setup));
  auto transfer = std::make_unique<CudaTransfer>(ordinal, std::move(owned));
  INFERSCALE_RETURN_IF_ERROR(transfer->Open());
  return std::unique_ptr<DeviceTransfer>(std::move(transfer));
}

}  // namespace inferscale::kernels::cuda
