// Times of the CPU kernels on one thread: injecting 50 facts of 30 tokens of a 135M model's KV into
// llama.cpp's state layouts, capturing them, and exact search over 100,000 embeddings.
// Prints one table; the best and the median of several runs, in milliseconds.

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <random>
#include <vector>

#include "inferscale/rope.h"
#include "kernels/kernels.h"

namespace inferscale::kernels {
namespace {

constexpr std::int32_t kLayers = 30, kHeads = 3, kDim = 64, kFacts = 50, kFactTokens = 30;
constexpr std::int32_t kTokens = kFacts * kFactTokens;
constexpr int kRuns = 21;

void Measure(const char* name, const std::function<void()>& work) {
  std::vector<double> times;
  for (int i = 0; i < kRuns; ++i) {
    const auto start = std::chrono::steady_clock::now();
    work();
    times.push_back(
        std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - start)
            .count());
  }
  std::sort(times.begin(), times.end());
  std::printf("%-44s %8.2f %8.2f\n", name, times.front(), times[times.size() / 2]);
}

// A cache as llama.cpp's state blobs hold it: keys by token, values by token or by channel.
struct Cache {
  explicit Cache(bool transposed) : keys(kSize), values(kSize) {
    for (std::int32_t layer = 0; layer < kLayers; ++layer) {
      key_base.push_back(keys.data() + layer * kTokens * kHeads * kDim);
      value_base.push_back(values.data() + layer * kTokens * kHeads * kDim);
    }
    layout.key_base = key_base.data();
    layout.value_base = value_base.data();
    layout.slots = kTokens;
    layout.key_dim_stride = 2;
    layout.key_head_stride = kDim * 2;
    layout.key_slot_stride = kHeads * kDim * 2;
    layout.value_dim_stride = transposed ? kTokens * 2 : 2;
    layout.value_head_stride = layout.value_dim_stride * kDim;
    layout.value_slot_stride = transposed ? 2 : kHeads * kDim * 2;
  }
  static constexpr std::size_t kSize = std::size_t{kLayers} * kTokens * kHeads * kDim;
  std::vector<std::uint16_t> keys, values;
  std::vector<void*> key_base, value_base;
  PagedLayout layout;
};

void MeasureTransfer(KvCodec codec, const char* codec_name, bool transposed,
                     const RopeTables& tables, RopePairing pairing) {
  const CodecView view{codec, kLayers, kHeads, kDim, kDim};
  const RopeTable rope{tables.cos_sin().data(),
                       tables.spec().layer_group.data(),
                       1,
                       tables.positions(),
                       tables.spec().width,
                       pairing};
  Cache cache(transposed);
  std::mt19937 random(1);
  std::normal_distribution<float> normal;
  std::vector<float> numbers(Cache::kSize);
  for (float& x : numbers) x = normal(random);
  FloatToHalf(numbers.data(), cache.keys.data(), cache.keys.size());
  FloatToHalf(numbers.data(), cache.values.data(), cache.values.size());
  std::vector<std::vector<std::uint8_t>> payloads(kFacts);
  std::vector<FactDescriptor> facts;
  for (std::int32_t i = 0; i < kFacts; ++i) {
    payloads[static_cast<std::size_t>(i)].resize(PayloadBytes(view, kFactTokens));
    facts.push_back({payloads[static_cast<std::size_t>(i)].data(), kFactTokens, 0, kFactTokens,
                     i * kFactTokens, i * kFactTokens});
  }
  char name[80];
  std::snprintf(name, sizeof(name), "capture %s, values %s, %s", codec_name,
                transposed ? "transposed" : "by token",
                pairing == RopePairing::kHalf ? "half" : "interleaved");
  Measure(name, [&] {
    if (Capture(view, rope, cache.layout, facts.data(), kFacts) != KernelStatus::kOk) std::abort();
  });
  std::snprintf(name, sizeof(name), "inject %s, values %s, %s", codec_name,
                transposed ? "transposed" : "by token",
                pairing == RopePairing::kHalf ? "half" : "interleaved");
  Measure(name, [&] {
    if (Inject(view, rope, cache.layout, facts.data(), kFacts) != KernelStatus::kOk) std::abort();
  });
}

void MeasureTopK() {
  constexpr std::int64_t kRows = 100'000;
  constexpr std::int32_t kWidth = 384;
  std::mt19937 random(2);
  std::vector<std::uint16_t> rows(kRows * kWidth);
  std::vector<float> row(kWidth), query(kWidth);
  std::uniform_real_distribution<float> uniform(-0.1f, 0.1f);
  for (std::int64_t r = 0; r < kRows; ++r) {
    for (float& x : row) x = uniform(random);
    FloatToHalf(row.data(), rows.data() + r * kWidth, row.size());
  }
  for (float& x : query) x = uniform(random);
  std::vector<std::int64_t> found(50);
  std::vector<float> scores(50);
  Measure("top-50 of 100,000 x 384 f16", [&] {
    if (TopK(rows.data(), kRows, kWidth, query.data(), nullptr, 50, found.data(), scores.data()) !=
        50)
      std::abort();
  });
}

int Main() {
  std::printf("%d tokens x %d layers x %d heads x %d, f16 cache, one thread\n", kTokens, kLayers,
              kHeads, kDim);
  std::printf("%-44s %8s %8s\n", "", "best ms", "median ms");
  for (const RopePairing pairing : {RopePairing::kInterleaved, RopePairing::kHalf}) {
    RopeSpec spec;
    spec.pairing = pairing;
    spec.width = kDim;
    spec.groups = {MakeRopeGroup(1e5, kDim)};
    spec.layer_group.assign(kLayers, 0);
    const auto tables = RopeTables::Create(spec, 4096);
    if (!tables.ok()) return 1;
    for (const bool transposed : {false, true}) {
      MeasureTransfer(KvCodec::kInt4, "int4", transposed, **tables, pairing);
      MeasureTransfer(KvCodec::kF16, "f16", transposed, **tables, pairing);
    }
  }
  MeasureTopK();
  return 0;
}

}  // namespace
}  // namespace inferscale::kernels

int main() { return inferscale::kernels::Main(); }
