#ifndef INFERSCALE_TESTS_SUPPORT_FAKE_PAGED_ENGINE_H_
#define INFERSCALE_TESTS_SUPPORT_FAKE_PAGED_ENGINE_H_

/// \file fake_paged_engine.h
/// FakePagedEngine: a paged cache whose keys are known by formula, for the connector's tests.

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "connector/worker.h"
#include "inferscale/types.h"

namespace inferscale::test {

inline constexpr std::int32_t kLayers = 3, kHeads = 4, kDim = 16, kBlockSlots = 16, kBlocks = 200;

/// A paged cache whose keys are R(position) of a key that depends on the token alone.
class FakePagedEngine {
 public:
  FakePagedEngine(std::int32_t first_head, std::int32_t heads)
      : first_head_(first_head), heads_(heads) {
    const std::size_t elements = std::size_t{kLayers} * kBlocks * kBlockSlots * Row();
    keys_.assign(elements, 0);
    values_.assign(elements, 0);
    for (std::int32_t layer = 0; layer < kLayers; ++layer) SetBase(layer, 1e4);
  }

  /// Of a layer's rotation; 0: it has none.
  void SetBase(std::int32_t layer, double base) {
    frequency_.resize(kLayers, std::vector<double>(kDim / 2));
    for (std::size_t i = 0; i < kDim / 2; ++i) {
      frequency_[static_cast<std::size_t>(layer)][i] =
          base > 0 ? std::pow(base, -2.0 * static_cast<double>(i) / kDim) : 0;
    }
  }

  std::size_t Row() const { return static_cast<std::size_t>(heads_) * kDim; }

  std::vector<float> Key(TokenId token, std::int32_t layer, std::int32_t position) const {
    std::vector<float> row(Row());
    for (std::size_t e = 0; e < row.size(); ++e) row[e] = Raw(token, layer, First() + e);
    for (std::size_t head = 0; head < static_cast<std::size_t>(heads_); ++head) {
      for (std::size_t i = 0; i < kDim / 2; ++i) {
        float& x = row[head * kDim + i];
        float& y = row[head * kDim + i + kDim / 2];
        const double angle = position * frequency_[static_cast<std::size_t>(layer)][i];
        const double c = std::cos(angle), s = std::sin(angle), x0 = x, y0 = y;
        x = Rounded(static_cast<float>(x0 * c - y0 * s));
        y = Rounded(static_cast<float>(x0 * s + y0 * c));
      }
    }
    return row;
  }

  void Compute(const TokenIds& prompt, const std::vector<std::int32_t>& table, std::int32_t begin,
               std::int32_t end) {
    for (std::int32_t position = begin; position < end; ++position) {
      const std::int64_t slot = SlotOf(table, position);
      for (std::int32_t layer = 0; layer < kLayers; ++layer) {
        const auto token = prompt[static_cast<std::size_t>(position)];
        const std::vector<float> key = Key(token, layer, position);
        std::copy(key.begin(), key.end(), At(keys_, layer, slot));
        for (std::size_t e = 0; e < Row(); ++e)
          At(values_, layer, slot)[e] = Raw(token, layer, First() + e + 99);
      }
    }
  }

  /// The largest difference from what Compute would have written.
  float Difference(const TokenIds& prompt, const std::vector<std::int32_t>& table,
                   std::int32_t begin, std::int32_t end) {
    float most = 0;
    for (std::int32_t position = begin; position < end; ++position) {
      const std::int64_t slot = SlotOf(table, position);
      for (std::int32_t layer = 0; layer < kLayers; ++layer) {
        const auto token = prompt[static_cast<std::size_t>(position)];
        const std::vector<float> key = Key(token, layer, position);
        for (std::size_t e = 0; e < Row(); ++e) {
          most = std::max(
              {most, std::abs(At(keys_, layer, slot)[e] - key[e]),
               std::abs(At(values_, layer, slot)[e] - Raw(token, layer, First() + e + 99))});
        }
      }
    }
    return most;
  }

  static std::int64_t SlotOf(const std::vector<std::int32_t>& table, std::int32_t position) {
    return std::int64_t{table.at(static_cast<std::size_t>(position / kBlockSlots))} * kBlockSlots +
           position % kBlockSlots;
  }

  /// One step of a worker's hooks. \param compute the pass.
  template <typename Compute>
  void Step(ConnectorWorker& worker, const StepPlan& plan, Compute compute) {
    if (!plan.empty()) {
      ASSERT_TRUE(worker.Begin(plan).ok());
      const auto slots = worker.LoadSlots();
      std::vector<float> keys, values;
      Staging staging = Stage(slots, keys, values);
      ASSERT_TRUE(worker.Load(staging).ok());
      Move(slots, keys, values, /*to_cache=*/true);
    }
    compute();
    if (plan.empty()) return;
    for (const bool probe : {true, false}) {
      const auto slots = probe ? worker.ProbeSlots() : worker.CaptureSlots();
      if (slots.empty() && probe) continue;
      std::vector<float> keys, values;
      const Staging staging = Stage(slots, keys, values);
      Move(slots, keys, values, /*to_cache=*/false);
      ASSERT_TRUE((probe ? worker.Probe(staging) : worker.Capture(staging)).ok());
    }
  }

  /// The cache as a device has it: [layers][blocks][slots][heads][dim] of keys, and of values.
  DeviceCache Cache() {
    DeviceCache cache;
    cache.type = kernels::ScalarType::kF32;
    for (std::int32_t layer = 0; layer < kLayers; ++layer) {
      cache.key_base.push_back(reinterpret_cast<std::uintptr_t>(At(keys_, layer, 0)));
      cache.value_base.push_back(reinterpret_cast<std::uintptr_t>(At(values_, layer, 0)));
    }
    cache.key_dim_stride = cache.value_dim_stride = 4;
    cache.key_head_stride = cache.value_head_stride = 4 * kDim;
    cache.key_slot_stride = cache.value_slot_stride = static_cast<std::int64_t>(4 * Row());
    cache.key_block_stride = cache.value_block_stride = kBlockSlots * cache.key_slot_stride;
    return cache;
  }

  void Probe(ConnectorWorker& worker) {
    const auto slots = worker.ProbeSlots();
    if (slots.empty()) return;
    std::vector<float> keys, values;
    const Staging staging = Stage(slots, keys, values);
    Move(slots, keys, values, /*to_cache=*/false);
    ASSERT_TRUE(worker.Probe(staging).ok());
  }

  /// Of these slots: [layers][slots][heads][dim] each.
  void Read(const std::vector<std::int64_t>& slots, std::vector<float>& keys,
            std::vector<float>& values) {
    Move(slots, keys, values, /*to_cache=*/false);
  }

  /// Keys with the precision of bf16.
  void RoundKeys() { rounds_ = true; }

  float& KeyAt(std::int32_t layer, std::int64_t slot) { return *At(keys_, layer, slot); }

 private:
  /// Every rank's heads hold something else: a shard in another's place is seen.
  std::size_t First() const { return static_cast<std::size_t>(first_head_) * kDim; }
  static float Raw(TokenId token, std::int32_t layer, std::size_t element) {
    return std::sin(0.37F * static_cast<float>(token) + 1.7F * static_cast<float>(layer) +
                    0.91F * static_cast<float>(element));
  }
  float* At(std::vector<float>& cache, std::int32_t layer, std::int64_t slot) {
    return cache.data() + (static_cast<std::size_t>(layer) * kBlocks * kBlockSlots +
                           static_cast<std::size_t>(slot)) *
                              Row();
  }
  Staging Stage(const std::vector<std::int64_t>& slots, std::vector<float>& keys,
                std::vector<float>& values) const {
    keys.assign(kLayers * slots.size() * Row(), 0);
    values.assign(keys.size(), 0);
    // An empty vector has no address, and the worker wants one.
    keys.reserve(1);
    values.reserve(1);
    return {kernels::ScalarType::kF32, keys.data(), values.data(),
            static_cast<std::int64_t>(slots.size())};
  }
  void Move(const std::vector<std::int64_t>& slots, std::vector<float>& keys,
            std::vector<float>& values, bool to_cache) {
    for (std::int32_t layer = 0; layer < kLayers; ++layer) {
      for (std::size_t i = 0; i < slots.size(); ++i) {
        const std::size_t place = (static_cast<std::size_t>(layer) * slots.size() + i) * Row();
        for (auto [cache, staged] : {std::pair(&keys_, &keys), std::pair(&values_, &values)}) {
          float* cell = At(*cache, layer, slots[i]);
          if (to_cache) {
            std::copy_n(staged->data() + place, Row(), cell);
          } else {
            std::copy_n(cell, Row(), staged->data() + place);
          }
        }
      }
    }
  }

  float Rounded(float key) const {
    if (!rounds_) return key;
    return std::bit_cast<float>((std::bit_cast<std::uint32_t>(key) + 0x8000u) & 0xffff0000u);
  }

  const std::int32_t first_head_, heads_;
  bool rounds_ = false;
  std::vector<std::vector<double>> frequency_;  ///< [layers]
  std::vector<float> keys_, values_;
};

}  // namespace inferscale::test

#endif  // INFERSCALE_TESTS_SUPPORT_FAKE_PAGED_ENGINE_H_
