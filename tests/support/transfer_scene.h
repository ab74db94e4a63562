#ifndef INFERSCALE_TESTS_SUPPORT_TRANSFER_SCENE_H_
#define INFERSCALE_TESTS_SUPPORT_TRANSFER_SCENE_H_

/// \file transfer_scene.h
/// Made-up geometries, caches and steps of requests, on a Device and on the host alike.

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <memory>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include "kernels/device.h"
#include "kernels/kernels.h"

namespace inferscale::kernels::transfer_cases {

using Bytes = std::vector<std::uint8_t>;

/// Device memory with a copy of host bytes, through pinned memory as a caller would.
class DeviceBytes {
 public:
  DeviceBytes(Device& device, const Bytes& bytes) : device_(device), size_(bytes.size()) {
    const auto size = static_cast<std::int64_t>(std::max<std::size_t>(size_, 1));
    auto memory = device.Allocate(size);
    auto pinned = device.AllocatePinned(size);
    EXPECT_TRUE(memory.ok() && pinned.ok());
    if (!memory.ok() || !pinned.ok()) std::abort();
    memory_ = *memory;
    pinned_ = *pinned;
    Set(bytes);
  }
  ~DeviceBytes() {
    device_.Free(memory_);
    device_.FreePinned(pinned_);
  }
  DeviceBytes(const DeviceBytes&) = delete;
  DeviceBytes& operator=(const DeviceBytes&) = delete;

  void Set(const Bytes& bytes) {
    std::copy(bytes.begin(), bytes.end(), pinned_);
    EXPECT_TRUE(device_.CopyToDevice(memory_, pinned_, Size(), device_.copy_stream()).ok());
    Synchronise();
  }
  Bytes Get() const {
    EXPECT_TRUE(device_.CopyToHost(pinned_, memory_, Size(), device_.copy_stream()).ok());
    Synchronise();
    return Bytes(pinned_, pinned_ + size_);
  }
  std::uint8_t* address() const { return memory_; }

 private:
  std::int64_t Size() const { return static_cast<std::int64_t>(size_); }
  void Synchronise() const {
    const auto event = device_.Record(device_.copy_stream());
    EXPECT_TRUE(event.ok());
    if (event.ok()) {
      EXPECT_TRUE(device_.Wait(*event).ok());
    }
  }

  Device& device_;
  std::size_t size_;
  std::uint8_t* memory_ = nullptr;
  std::uint8_t* pinned_ = nullptr;
};

enum class Arrangement { kNhd, kHnd, kPacked, kFlat, kTransposed, kOdd };
inline constexpr int kArrangements = 6;

/// A geometry with its cache's layout, relative to address 0 of the cache.
struct Scene {
  CodecView view;
  RopeTable rope;
  std::vector<float> cos_sin;
  std::vector<std::int32_t> layer_group;
  PagedLayout layout;
  std::int64_t physical_blocks = 0;
  std::vector<std::int64_t> key_offset, value_offset;  ///< of the layers, in the cache
  std::int64_t cache_bytes = 0;
  Arrangement arrangement = Arrangement::kNhd;

  bool paged() const { return arrangement != Arrangement::kFlat; }

  /// The layout in a cache at `base`. \param bases filled with what it points to
  PagedLayout At(std::uint8_t* base, std::vector<void*>& bases) const {
    bases.clear();
    for (const std::int64_t offset : key_offset) bases.push_back(base + offset);
    for (const std::int64_t offset : value_offset) bases.push_back(base + offset);
    PagedLayout placed = layout;
    placed.key_base = bases.data();
    placed.value_base = bases.data() + view.layers;
    return placed;
  }
};

class Dice {
 public:
  explicit Dice(std::uint64_t seed) : engine_(seed * 2654435761u + 17) {}
  std::int32_t Between(std::int32_t low, std::int32_t high) {
    return std::uniform_int_distribution<std::int32_t>(low, high)(engine_);
  }
  template <typename T>
  T OneOf(std::initializer_list<T> choices) {
    return *(choices.begin() + Between(0, static_cast<std::int32_t>(choices.size()) - 1));
  }
  std::uint64_t Bits() { return engine_() >> 7; }
  float Normal() { return std::normal_distribution<float>()(engine_); }
  template <typename T>
  void Shuffle(std::vector<T>& items) {
    std::shuffle(items.begin(), items.end(), engine_);
  }

 private:
  std::mt19937_64 engine_;
};

inline void PlaceStrides(Scene& scene, Dice& dice) {
  PagedLayout& layout = scene.layout;
  const std::int64_t element = layout.type == ScalarType::kF32 ? 4 : 2;
  const std::int64_t heads = scene.view.kv_heads, slots = layout.block_slots;
  const std::int64_t key_row = scene.view.key_dim * element;
  const std::int64_t value_row = scene.view.value_dim * element;
  layout.key_dim_stride = layout.value_dim_stride = element;
  std::int64_t values_at = slots * heads * key_row, block = slots * heads * (key_row + value_row);
  std::int64_t shift = 0;
  switch (scene.arrangement) {
    case Arrangement::kNhd:
    case Arrangement::kFlat:
      layout.key_head_stride = key_row, layout.key_slot_stride = heads * key_row;
      layout.value_head_stride = value_row, layout.value_slot_stride = heads * value_row;
      break;
    case Arrangement::kHnd:
      layout.key_slot_stride = key_row, layout.key_head_stride = slots * key_row;
      layout.value_slot_stride = value_row, layout.value_head_stride = slots * value_row;
      break;
    case Arrangement::kPacked:
      layout.key_slot_stride = layout.value_slot_stride = key_row + value_row;
      layout.key_head_stride = layout.value_head_stride = slots * (key_row + value_row);
      values_at = key_row;
      break;
    case Arrangement::kTransposed:
      layout.key_slot_stride = layout.value_slot_stride = element;
      layout.key_dim_stride = layout.value_dim_stride = slots * element;
      layout.key_head_stride = slots * key_row, layout.value_head_stride = slots * value_row;
      break;
    case Arrangement::kOdd:
      // Rows that no vector access fits, and half of the time no element either.
      shift = dice.OneOf({0, 1});
      layout.key_head_stride = key_row + 6 + shift;
      layout.value_head_stride = value_row + 10;
      layout.key_slot_stride = heads * (key_row + 6 + shift);
      layout.value_slot_stride = heads * (value_row + 10) + 2;
      values_at = slots * layout.key_slot_stride + shift;
      block = values_at + slots * layout.value_slot_stride;
      break;
  }
  layout.key_block_stride = layout.value_block_stride = block;
  // Layers are a bit apart, so that a write past one's end shows.
  const std::int64_t tensor = (scene.physical_blocks * block + 255) / 256 * 256 + 256;
  for (std::int32_t layer = 0; layer < scene.view.layers; ++layer) {
    scene.key_offset.push_back(layer * tensor + 64 + shift);
    scene.value_offset.push_back(layer * tensor + 64 + shift + values_at);
  }
  scene.cache_bytes = scene.view.layers * tensor + 512;
}

/// The codec, cache type, pairing and arrangement go through all combinations as `number` ascends;
/// every other time with the dimensions that most models have, for which some kernels are made.
inline Scene MakeScene(std::uint64_t number, Dice& dice) {
  Scene scene;
  const auto digit = [&number](int base) {
    const auto value = static_cast<int>(number % static_cast<std::uint64_t>(base));
    number /= static_cast<std::uint64_t>(base);
    return value;
  };
  scene.view.codec = static_cast<KvCodec>(digit(5));
  scene.layout.type = static_cast<ScalarType>(digit(3));
  scene.rope.pairing = static_cast<RopePairing>(digit(2));
  scene.arrangement = static_cast<Arrangement>(digit(kArrangements));
  const bool usual = digit(2) == 1;
  CodecView& view = scene.view;
  view.layers = dice.Between(1, 4);
  view.kv_heads = dice.OneOf({1, 2, 3, 4, 5, 8});
  view.key_dim = dice.OneOf({64, 128, 128, 256, 96, 48, 512, 7, 20, 33, 80, 576});
  view.value_dim = dice.Between(0, 2) > 0 ? view.key_dim : dice.OneOf({64, 128, 32, 16, 272, 9});
  if (usual) {
    view.key_dim = view.value_dim = 128;
    view.layers = dice.Between(1, 5);
  }
  scene.layout.block_slots = dice.OneOf({1, 7, 16, 16, 32, 100});
  scene.physical_blocks = std::max<std::int64_t>(4, 700 / scene.layout.block_slots);
  if (scene.arrangement == Arrangement::kFlat) {
    scene.layout.block_slots *= scene.physical_blocks;
    scene.physical_blocks = 1;
  }
  scene.layout.slots = scene.physical_blocks * scene.layout.block_slots;
  PlaceStrides(scene, dice);

  RopeTable& rope = scene.rope;
  rope.groups = dice.Between(1, 3);
  rope.positions = 1024;
  rope.width = view.key_dim / 2 * 2;
  if (dice.Between(0, 2) == 0) rope.width = std::max(2, dice.Between(1, view.key_dim / 2) * 2);
  if (dice.Between(0, 3) == 0 && view.key_dim >= 32) rope.width = view.key_dim / 32 * 16;
  if (usual) rope.width = 128;
  for (std::int32_t layer = 0; layer < view.layers; ++layer) {
    scene.layer_group.push_back(dice.Between(0, 3) == 0 ? -1 : dice.Between(0, rope.groups - 1));
  }
  scene.cos_sin.resize(static_cast<std::size_t>(rope.groups) *
                       static_cast<std::size_t>(rope.positions) *
                       static_cast<std::size_t>(rope.width));
  for (std::size_t i = 0; i < scene.cos_sin.size(); i += 2) {
    const auto angle = static_cast<float>(i % 100003) * 0.37f;
    scene.cos_sin[i] = std::cos(angle);
    scene.cos_sin[i + 1] = std::sin(angle);
  }
  return scene;
}

/// The facts of a step: several requests' tables behind each other, facts that follow each other.
struct Step {
  std::vector<FactDescriptor> facts;  ///< payload: offset in the payloads' memory
  std::vector<std::int32_t> table;    ///< empty: slots as they are
  std::int64_t payload_bytes = 0;
};

inline Step MakeStep(const Scene& scene, Dice& dice, bool whole_facts) {
  Step step;
  std::vector<std::int32_t> free_blocks(static_cast<std::size_t>(scene.physical_blocks));
  std::iota(free_blocks.begin(), free_blocks.end(), 0);
  dice.Shuffle(free_blocks);
  std::int64_t taken_slots = 0;  // of a flat cache
  const std::int32_t requests = dice.Between(1, 4);
  for (std::int32_t request = 0; request < requests; ++request) {
    const auto table_begin = static_cast<std::int64_t>(step.table.size());
    const auto blocks = static_cast<std::size_t>(
        dice.Between(0, static_cast<std::int32_t>(free_blocks.size()) / (requests - request)));
    std::int64_t slots = static_cast<std::int64_t>(blocks) * scene.layout.block_slots;
    if (scene.paged()) {
      step.table.insert(step.table.end(), free_blocks.end() - static_cast<std::ptrdiff_t>(blocks),
                        free_blocks.end());
      free_blocks.resize(free_blocks.size() - blocks);
    } else {
      slots = (scene.layout.slots - taken_slots) / (requests - request);
    }
    std::int64_t slot = dice.Between(0, 3);
    while (true) {
      FactDescriptor fact;
      fact.tokens = dice.Between(0, 9) == 0 ? dice.Between(48, 200) : dice.Between(1, 60);
      fact.first = 0;
      fact.count = fact.tokens;
      if (!whole_facts && dice.Between(0, 2) == 0) {
        fact.first = dice.Between(0, fact.tokens - 1);
        fact.count = dice.Between(1, fact.tokens - fact.first);
      }
      if (slot + fact.count > slots || step.facts.size() >= 24) break;
      fact.position = dice.Between(0, scene.rope.positions - fact.count);
      fact.slot = static_cast<std::int32_t>(
          slot + (scene.paged() ? table_begin * scene.layout.block_slots : taken_slots));
      fact.payload = reinterpret_cast<std::uint8_t*>(step.payload_bytes);
      step.payload_bytes += static_cast<std::int64_t>(PayloadBytes(scene.view, fact.tokens)) + 48;
      step.facts.push_back(fact);
      slot += fact.count + (dice.Between(0, 3) == 0 ? dice.Between(1, 5) : 0);
    }
    taken_slots += slots;
  }
  if (scene.paged() && step.table.empty()) step.table.push_back(free_blocks.back());
  return step;
}

inline std::vector<FactDescriptor> FactsAt(const Step& step, std::uint8_t* payloads) {
  std::vector<FactDescriptor> facts = step.facts;
  for (FactDescriptor& fact : facts) {
    fact.payload = payloads + reinterpret_cast<std::uintptr_t>(fact.payload);
  }
  return facts;
}

/// A cache full of numbers, outliers and zeros among them. Where they will be quantised there are
/// now and then some that no half can hold; plain codecs keep those, but not which NaN it was.
inline Bytes RandomCache(const Scene& scene, Dice& dice) {
  Bytes cache(static_cast<std::size_t>(scene.cache_bytes));
  for (std::uint8_t& byte : cache) byte = static_cast<std::uint8_t>(dice.Bits());
  const std::int64_t element = scene.layout.type == ScalarType::kF32 ? 4 : 2;
  const auto put = [&](std::int64_t at, float x) {
    std::uint32_t bits = 0;
    std::memcpy(&bits, &x, sizeof(bits));
    std::uint16_t half = static_cast<std::uint16_t>(bits >> 16);
    if (scene.layout.type == ScalarType::kF16) FloatToHalf(&x, &half, 1);
    if (element == 4) {
      std::memcpy(cache.data() + at, &bits, 4);
    } else {
      std::memcpy(cache.data() + at, &half, 2);
    }
  };
  static const std::vector<float> numbers = [] {
    Dice fixed(1);
    std::vector<float> made(4096);
    for (float& x : made) {
      x = fixed.Normal();
      const std::int32_t kind = fixed.Between(0, 99);
      if (kind == 0) x *= 50.0f;
      if (kind == 1) x *= 1e-6f;  // a subnormal half
      if (kind == 2) x = 0.0f;
    }
    return made;
  }();
  const bool quantised = scene.view.codec == KvCodec::kInt8 || scene.view.codec == KvCodec::kInt4;
  const bool unclean = quantised && dice.Between(0, 3) == 0;
  const auto number = [&] {
    const std::uint64_t bits = dice.Bits();
    if (unclean && bits % 1021 == 0) {
      constexpr float kInfinity = std::numeric_limits<float>::infinity();
      return dice.OneOf({kInfinity, -kInfinity, std::nanf(""), 1e6f, -65536.0f, 65504.0f});
    }
    return numbers[bits % numbers.size()];
  };
  const PagedLayout& layout = scene.layout;
  for (std::int32_t layer = 0; layer < scene.view.layers; ++layer) {
    const auto l = static_cast<std::size_t>(layer);
    for (std::int64_t slot = 0; slot < layout.slots; ++slot) {
      const std::int64_t block = slot / layout.block_slots, within = slot % layout.block_slots;
      for (std::int32_t head = 0; head < scene.view.kv_heads; ++head) {
        const std::int64_t key = scene.key_offset[l] + block * layout.key_block_stride +
                                 within * layout.key_slot_stride + head * layout.key_head_stride;
        const std::int64_t value = scene.value_offset[l] + block * layout.value_block_stride +
                                   within * layout.value_slot_stride +
                                   head * layout.value_head_stride;
        for (std::int32_t d = 0; d < scene.view.key_dim; ++d) {
          put(key + d * layout.key_dim_stride, number());
        }
        for (std::int32_t d = 0; d < scene.view.value_dim; ++d) {
          put(value + d * layout.value_dim_stride, number());
        }
      }
    }
  }
  return cache;
}

/// Where two byte strings first differ, or npos.
inline std::size_t FirstDifference(const Bytes& a, const Bytes& b) {
  const auto pair = std::mismatch(a.begin(), a.end(), b.begin(), b.end());
  return pair.first == a.end() ? std::string::npos
                               : static_cast<std::size_t>(pair.first - a.begin());
}

/// Which number of a step's payloads the byte at `at` belongs to.
inline std::string DescribePayloadByte(const Scene& scene, const Step& step, std::size_t at) {
  const CodecView& view = scene.view;
  const bool quantised = view.codec == KvCodec::kInt8 || view.codec == KvCodec::kInt4;
  for (std::size_t i = 0; i < step.facts.size(); ++i) {
    const FactDescriptor& fact = step.facts[i];
    const auto begin = reinterpret_cast<std::uintptr_t>(fact.payload);
    if (at < begin || at - begin >= PayloadBytes(view, fact.tokens)) continue;
    const std::size_t key_bytes = KeySegmentBytes(view.codec, fact.tokens, view.key_dim);
    const std::size_t head_bytes =
        key_bytes + ValueSegmentBytes(view.codec, fact.tokens, view.value_dim);
    const std::size_t segment = (at - begin) / head_bytes, within = (at - begin) % head_bytes;
    const bool is_key = within < key_bytes;
    const std::size_t byte = is_key ? within : within - key_bytes;
    const std::int32_t value_groups =
        (view.value_dim + kValueGroupChannels - 1) / kValueGroupChannels;
    const auto parameters = static_cast<std::size_t>(
        2 * (is_key ? KeyGroups(fact.tokens) * view.key_dim : fact.tokens * value_groups));
    const char* what = quantised ? "codes" : "elements";
    std::size_t part_begin = quantised ? 2 * parameters : 0;
    if (byte < part_begin) {
      what = byte < parameters ? "scales" : "zeros";
      part_begin = byte < parameters ? 0 : parameters;
    }
    const auto heads = static_cast<std::size_t>(view.kv_heads);
    return "fact " + std::to_string(i) + " of " + std::to_string(fact.tokens) + " tokens, layer " +
           std::to_string(segment / heads) + ", head " + std::to_string(segment % heads) + ", " +
           (is_key ? "keys" : "values") + ", byte " + std::to_string(byte - part_begin) +
           " of the " + what;
  }
  return "between the payloads";
}

inline std::string Describe(const Scene& scene) {
  return "codec " + std::to_string(static_cast<int>(scene.view.codec)) + ", type " +
         std::to_string(static_cast<int>(scene.layout.type)) + ", pairing " +
         std::to_string(static_cast<int>(scene.rope.pairing)) + ", arrangement " +
         std::to_string(static_cast<int>(scene.arrangement)) + ", layers " +
         std::to_string(scene.view.layers) + ", heads " + std::to_string(scene.view.kv_heads) +
         ", dims " + std::to_string(scene.view.key_dim) + "/" +
         std::to_string(scene.view.value_dim) + ", width " + std::to_string(scene.rope.width) +
         ", block slots " + std::to_string(scene.layout.block_slots);
}

inline void Finish(Device& device, std::uintptr_t stream) {
  const auto event = device.Record(stream);
  ASSERT_TRUE(event.ok()) << event.status().ToString();
  const Status status = device.Wait(*event);
  ASSERT_TRUE(status.ok()) << status.ToString();
}

/// A scene on the host and on a device, with equal bytes in both caches.
class Stage {
 public:
  Bytes host_cache;
  DeviceBytes device_cache;

  Stage(Device& device, Scene scene, const Bytes& cache)
      : host_cache(cache), device_cache(device, cache), device_(device), scene_(std::move(scene)) {
    scene_.rope.cos_sin = scene_.cos_sin.data();
    scene_.rope.layer_group = scene_.layer_group.data();
  }

  TransferSetup Setup(std::int32_t max_facts, std::int32_t max_table_blocks) {
    return {scene_.view, scene_.rope, scene_.At(device_cache.address(), device_bases_), max_facts,
            max_table_blocks};
  }
  std::unique_ptr<DeviceTransfer> Transfer(std::int32_t max_facts, std::int32_t max_blocks) {
    auto transfer = device_.MakeTransfer(Setup(max_facts, max_blocks));
    EXPECT_TRUE(transfer.ok()) << transfer.status().ToString();
    return transfer.ok() ? std::move(transfer).value() : nullptr;
  }
  KernelStatus OnHost(bool inject, const Step& step, std::uint8_t* payloads) {
    PagedLayout layout = scene_.At(host_cache.data(), host_bases_);
    layout.block_table = step.table.empty() ? nullptr : step.table.data();
    const auto facts = FactsAt(step, payloads);
    return (inject ? Inject : Capture)(scene_.view, scene_.rope, layout, facts.data(),
                                       static_cast<std::int32_t>(facts.size()));
  }
  KernelStatus OnDevice(bool inject, DeviceTransfer& transfer, const Step& step,
                        std::uint8_t* payloads, std::uintptr_t stream) {
    auto facts = FactsAt(step, payloads);
    auto table = step.table;
    const auto call = inject ? &DeviceTransfer::Inject : &DeviceTransfer::Capture;
    const KernelStatus status = (transfer.*call)(
        facts.data(), static_cast<std::int32_t>(facts.size()),
        table.empty() ? nullptr : table.data(), static_cast<std::int32_t>(table.size()), stream);
    // The call has copied them: these would be read otherwise.
    std::fill(table.begin(), table.end(), INT32_MAX);
    for (FactDescriptor& fact : facts) fact = {nullptr, -1, -1, -1, -1, -1};
    return status;
  }

 private:
  Device& device_;
  Scene scene_;
  std::vector<void*> host_bases_, device_bases_;
};

/// 16-byte aligned host memory for payloads.
class PayloadMemory {
 public:
  PayloadMemory(std::int64_t bytes, std::uint8_t fill)
      : size_(static_cast<std::size_t>(bytes)), words_(size_ / sizeof(Word) + 1) {
    std::memset(data(), fill, size_);
  }
  std::uint8_t* data() { return reinterpret_cast<std::uint8_t*>(words_.data()); }
  Bytes Get() { return Bytes(data(), data() + size_); }

 private:
  struct alignas(16) Word {
    std::uint8_t bytes[16];
  };
  std::size_t size_;
  std::vector<Word> words_;
};

}  // namespace inferscale::kernels::transfer_cases

#endif  // INFERSCALE_TESTS_SUPPORT_TRANSFER_SCENE_H_
