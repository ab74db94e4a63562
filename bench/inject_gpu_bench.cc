// Claim: on one H200 an injection or capture of k facts costs at most 1.25 times the device's own
// copy of as many bytes (half of what is read and written), from the quantised codecs too, and
// reaches 80 % of the copy's rate from 500 tokens on. Times are medians of the device's own between
// two events, the copy of the arguments included; injections and copies take turns, each with
// memory that the caches have lost since. host_us is what the call takes of the caller's time.
//
//   inject_gpu_bench [--out inject.json] [--small]

#include <cuda_runtime_api.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdio>
#include <memory>
#include <nlohmann/json.hpp>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include "gpu_bench.h"
#include "kernels/device.h"
#include "kernels/kernels.h"

namespace inferscale::kernels {
namespace {

constexpr int kRoundsAtOnce = 8;  // are given to the device before it starts on them
constexpr std::int32_t kBlockSlots = 16;
constexpr std::int64_t kForgottenBytes = std::int64_t{256} << 20;  // several times any second cache

using gpu_bench::Fail;
using gpu_bench::Must;

struct Shape {
  const char* name;
  std::int32_t layers, kv_heads, head_dim;
  RopePairing pairing;
};

struct Case {
  Shape shape;
  std::int32_t tokens;
  KvCodec codec;
  bool inject;
};

const char* CodecName(KvCodec codec) {
  constexpr std::array names = {"f32", "f16", "bf16", "int8", "int4"};
  return names[static_cast<std::size_t>(codec)];
}

double Median(std::vector<double> values) {
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

/// Device memory full of random bytes.
class RandomMemory {
 public:
  RandomMemory(Device& device, std::int64_t bytes) : device_(device) {
    memory_ = Must(device.Allocate(bytes));
    static const std::vector<std::uint64_t> noise = [] {
      std::vector<std::uint64_t> made(1 << 20);
      std::mt19937_64 random(1);
      for (std::uint64_t& word : made) {
        // Exponents stay small: numbers, whichever type they are read as.
        word = random() & 0xbfbfbfbfbfbfbfbfull;
      }
      return made;
    }();
    const auto chunk = static_cast<std::int64_t>(noise.size() * sizeof(noise[0]));
    for (std::int64_t at = 0; at < bytes; at += chunk) {
      Must(cudaMemcpy(memory_ + at, noise.data(),
                      static_cast<std::size_t>(std::min(chunk, bytes - at)),
                      cudaMemcpyHostToDevice));
    }
  }
  ~RandomMemory() { device_.Free(memory_); }
  RandomMemory(const RandomMemory&) = delete;
  RandomMemory& operator=(const RandomMemory&) = delete;
  std::uint8_t* at(std::int64_t offset) const { return memory_ + offset; }

 private:
  Device& device_;
  std::uint8_t* memory_ = nullptr;
};

/// Facts of a step, and as many sets of them, in other places, as the caches need to forget one.
struct Steps {
  std::int64_t set_bytes = 0;    ///< of payloads
  std::int64_t moved_bytes = 0;  ///< read and written by a step
  std::int32_t sets = 0;
  std::int32_t blocks = 0;  ///< of a step
  std::vector<FactDescriptor> facts;
};

Steps MakeSteps(const Case& what, const CodecView& view) {
  Steps steps;
  std::int64_t payload_bytes = 0;
  // Lengths of facts as people write them: 24 to 36 tokens.
  std::int32_t token = 0;
  for (std::int32_t i = 0; token < what.tokens; ++i) {
    const std::int32_t tokens = std::min(24 + i * 5 % 13, what.tokens - token);
    FactDescriptor fact;
    fact.payload = reinterpret_cast<std::uint8_t*>(steps.set_bytes);
    fact.tokens = fact.count = tokens;
    fact.position = fact.slot = token;
    steps.facts.push_back(fact);
    const auto bytes = static_cast<std::int64_t>(PayloadBytes(view, tokens));
    payload_bytes += bytes;
    steps.set_bytes += (bytes + 255) / 256 * 256;
    token += tokens;
  }
  const std::int64_t cache_bytes =
      std::int64_t{2} * 2 * view.layers * view.kv_heads * view.key_dim * what.tokens;
  steps.moved_bytes = payload_bytes + cache_bytes;
  steps.sets = static_cast<std::int32_t>(
      std::clamp<std::int64_t>(2 * kForgottenBytes / steps.moved_bytes + 1, 2, 64));
  steps.blocks = (what.tokens + kBlockSlots - 1) / kBlockSlots;
  return steps;
}

class Bench {
 public:
  Bench() : device_(Must(MakeCudaDevice(0))) {
    Must(cudaSetDevice(0));
    Must(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking));
    for (cudaEvent_t& event : events_) Must(cudaEventCreate(&event));
  }

  nlohmann::json Run(const Case& what, int batches) {
    const Shape& shape = what.shape;
    const CodecView view{what.codec, shape.layers, shape.kv_heads, shape.head_dim, shape.head_dim};
    const Steps steps = MakeSteps(what, view);
    const std::int32_t physical_blocks = steps.blocks * steps.sets;
    const std::int64_t tensor =
        std::int64_t{2} * 2 * kBlockSlots * shape.kv_heads * shape.head_dim * physical_blocks;
    const RandomMemory payloads(*device_, steps.set_bytes * steps.sets);
    const RandomMemory cache(*device_, tensor * shape.layers);
    const std::int64_t copy_bytes = steps.moved_bytes / 2 / 16 * 16;
    const std::int64_t copy_pitch = (copy_bytes + 255) / 256 * 256;
    const RandomMemory from(*device_, copy_pitch * steps.sets);
    const RandomMemory to(*device_, copy_pitch * steps.sets);
    const RandomMemory forgotten(*device_, kForgottenBytes);
    const auto transfer = MakeTransfer(view, shape, what.tokens, physical_blocks, tensor, cache,
                                       static_cast<std::int32_t>(steps.facts.size()), steps.blocks);
    std::vector<std::int32_t> blocks(static_cast<std::size_t>(physical_blocks));
    std::iota(blocks.begin(), blocks.end(), 0);
    std::shuffle(blocks.begin(), blocks.end(), std::mt19937_64(2));

    std::vector<double> move_ms, copy_ms, host_us;
    std::int32_t set = 0;
    for (int batch = -1; batch < batches; ++batch) {
      // Keeps the device busy until all of the batch has reached it.
      Must(cudaMemsetAsync(forgotten.at(0), batch, kForgottenBytes, stream_));
      Must(cudaMemsetAsync(forgotten.at(0), batch, kForgottenBytes, stream_));
      std::array<bool, kRoundsAtOnce> copied_first{};
      std::size_t event = 0;
      for (bool& copy_first : copied_first) {
        set = (set + 1) % steps.sets;
        copy_first = set % 2 != batch % 2;
        std::vector<FactDescriptor> facts = steps.facts;
        for (FactDescriptor& fact : facts) {
          fact.payload =
              payloads.at(set * steps.set_bytes) + reinterpret_cast<std::uintptr_t>(fact.payload);
        }
        const auto copy = [&] {
          Must(cudaMemcpyAsync(to.at(set * copy_pitch), from.at(set * copy_pitch),
                               static_cast<std::size_t>(copy_bytes), cudaMemcpyDeviceToDevice,
                               stream_));
        };
        const auto mark = [&] { Must(cudaEventRecord(events_[event++], stream_)); };
        mark();
        if (copy_first) copy(), mark();
        const auto begin = std::chrono::steady_clock::now();
        const auto call = what.inject ? &DeviceTransfer::Inject : &DeviceTransfer::Capture;
        const KernelStatus status =
            ((*transfer).*call)(facts.data(), static_cast<std::int32_t>(facts.size()),
                                blocks.data() + set * steps.blocks, steps.blocks,
                                reinterpret_cast<std::uintptr_t>(stream_));
        const auto end = std::chrono::steady_clock::now();
        if (status != KernelStatus::kOk) Fail("a transfer was refused");
        mark();
        if (!copy_first) copy(), mark();
        if (batch >= 0) {
          host_us.push_back(std::chrono::duration<double, std::micro>(end - begin).count());
        }
      }
      Must(cudaStreamSynchronize(stream_));
      if (batch < 0) continue;
      for (std::size_t i = 0; i < copied_first.size(); ++i) {
        const double first = Between(3 * i), second = Between(3 * i + 1);
        copy_ms.push_back(copied_first[i] ? first : second);
        move_ms.push_back(copied_first[i] ? second : first);
      }
    }
    return Report(what, steps, Median(move_ms), Median(copy_ms), Median(host_us));
  }

 private:
  std::unique_ptr<DeviceTransfer> MakeTransfer(const CodecView& view, const Shape& shape,
                                               std::int32_t tokens, std::int32_t physical_blocks,
                                               std::int64_t tensor, const RandomMemory& cache,
                                               std::int32_t facts, std::int32_t blocks) {
    TransferSetup setup;
    setup.view = view;
    const std::vector<std::int32_t> groups(static_cast<std::size_t>(shape.layers), 0);
    std::vector<float> cos_sin(static_cast<std::size_t>(tokens) *
                               static_cast<std::size_t>(shape.head_dim));
    for (std::size_t i = 0; i < cos_sin.size(); ++i) cos_sin[i] = i % 2 == 0 ? 0.8f : 0.6f;
    setup.rope = {cos_sin.data(), groups.data(), 1, tokens, shape.head_dim, shape.pairing};
    std::vector<void*> keys, values;
    const std::int64_t row = std::int64_t{2} * shape.head_dim, slot = row * shape.kv_heads;
    for (std::int32_t layer = 0; layer < shape.layers; ++layer) {
      keys.push_back(cache.at(layer * tensor));
      values.push_back(cache.at(layer * tensor + kBlockSlots * slot));
    }
    // vLLM's FlashAttention cache: [blocks, 2, 16, heads, dim].
    PagedLayout& layout = setup.layout;
    layout.type = ScalarType::kBF16;
    layout.key_base = keys.data();
    layout.value_base = values.data();
    layout.block_slots = kBlockSlots;
    layout.slots = std::int64_t{kBlockSlots} * physical_blocks;
    layout.key_block_stride = layout.value_block_stride = 2 * kBlockSlots * slot;
    layout.key_slot_stride = layout.value_slot_stride = slot;
    layout.key_head_stride = layout.value_head_stride = row;
    layout.key_dim_stride = layout.value_dim_stride = 2;
    setup.max_facts = facts;
    setup.max_table_blocks = blocks;
    return Must(device_->MakeTransfer(setup));
  }

  double Between(std::size_t event) const {
    float ms = 0;
    Must(cudaEventElapsedTime(&ms, events_[event], events_[event + 1]));
    return ms;
  }

  static nlohmann::json Report(const Case& what, const Steps& steps, double move_ms, double copy_ms,
                               double host_us) {
    const char* direction = what.inject ? "inject" : "capture";
    const double rate = static_cast<double>(steps.moved_bytes) / move_ms / 1e9;
    std::printf("%-13s %6d %-5s %-8s %10.4f %10.4f %6.2f %8.2f %8.1f\n", what.shape.name,
                what.tokens, CodecName(what.codec), direction, move_ms, copy_ms, move_ms / copy_ms,
                rate, host_us);
    std::fflush(stdout);
    return {{"shape", what.shape.name},    {"tokens", what.tokens},
            {"facts", steps.facts.size()}, {"codec", CodecName(what.codec)},
            {"direction", direction},      {"inject_ms", move_ms},
            {"copy_ms", copy_ms},          {"ratio", move_ms / copy_ms},
            {"terabytes_per_s", rate},     {"host_us", host_us}};
  }

  const std::unique_ptr<Device> device_;
  cudaStream_t stream_ = nullptr;
  std::array<cudaEvent_t, 3 * kRoundsAtOnce> events_{};
};

int Main(int argc, char** argv) {
  const gpu_bench::Arguments arguments = gpu_bench::ReadArguments(argc, argv);
  std::vector<Shape> shapes = {
      {"Llama-3.1-8B", 32, 8, 128, RopePairing::kHalf},
      {"Qwen2.5-7B", 28, 4, 128, RopePairing::kHalf},
      {"Mistral-7B", 32, 8, 128, RopePairing::kHalf},
  };
  std::vector<std::int32_t> lengths = {100, 250, 500, 1000, 1500, 2000, 4000, 8000};
  if (arguments.small) {
    shapes.resize(1);
    lengths = {100, 500, 1500};
  }
  Bench bench;
  nlohmann::json report = gpu_bench::NewReport(arguments);
  std::printf("%-13s %6s %-5s %-8s %10s %10s %6s %8s %8s\n", "shape", "tokens", "codec", "", "ms",
              "copy ms", "ratio", "TB/s", "host us");
  for (const Shape& shape : shapes) {
    for (const bool inject : {true, false}) {
      for (const KvCodec codec : {KvCodec::kBF16, KvCodec::kF16, KvCodec::kInt8, KvCodec::kInt4}) {
        for (const std::int32_t tokens : lengths) {
          report["rows"].push_back(
              bench.Run({shape, tokens, codec, inject}, arguments.small ? 10 : 25));
        }
      }
    }
  }
  gpu_bench::WriteReport(arguments, report);
  return 0;
}

}  // namespace
}  // namespace inferscale::kernels

int main(int argc, char** argv) { return inferscale::kernels::Main(argc, argv); }
