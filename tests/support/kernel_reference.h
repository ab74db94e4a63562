#ifndef INFERSCALE_TESTS_SUPPORT_KERNEL_REFERENCE_H_
#define INFERSCALE_TESTS_SUPPORT_KERNEL_REFERENCE_H_

/// \file kernel_reference.h
/// Plain references for the kernels' formats, in double precision and sharing no code with them:
/// conversions, payload elements, caches of any arrangement, rotations.

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <numeric>
#include <random>
#include <utility>
#include <vector>

#include "kernels/kernels.h"

namespace inferscale::kernels::reference {

/// f16 bits of the nearest half to f32(x), ties to even; by arithmetic, without any half type.
inline std::uint16_t Half(double x) {
  x = static_cast<float>(x);
  const std::uint16_t sign = std::signbit(x) ? 0x8000 : 0;
  const double magnitude = std::abs(x);
  if (std::isnan(x)) return 0x7e00;
  if (magnitude >= 65520.0) return sign | 0x7c00;
  // Spacing of halves around x: 2^(exponent - 10), and 2^-24 below 2^-14.
  const int exponent = magnitude < 0x1p-14 ? -14 : std::ilogb(magnitude);
  const double units = std::nearbyint(std::ldexp(magnitude, 10 - exponent));
  // A carry into the next power of two is a carry into the exponent field.
  const int bits = static_cast<int>(units) + (exponent + 14) * 1024;
  return static_cast<std::uint16_t>(sign | bits);
}

inline double FromHalf(std::uint16_t bits) {
  const int exponent = bits >> 10 & 31, mantissa = bits & 1023;
  double x;
  if (exponent == 31) {
    x = mantissa == 0 ? INFINITY : NAN;
  } else {
    x = exponent == 0 ? std::ldexp(mantissa, -24) : std::ldexp(1024 + mantissa, exponent - 25);
  }
  return bits & 0x8000 ? -x : x;
}

inline double ReadScalar(ScalarType type, const std::uint8_t* place) {
  if (type == ScalarType::kF32) {
    float x;
    std::memcpy(&x, place, 4);
    return x;
  }
  std::uint16_t bits;
  std::memcpy(&bits, place, 2);
  if (type == ScalarType::kF16) return FromHalf(bits);
  const std::uint32_t wide = static_cast<std::uint32_t>(bits) << 16;
  float x;
  std::memcpy(&x, &wide, 4);
  return x;
}

inline void WriteScalar(ScalarType type, double value, std::uint8_t* place) {
  const float x = static_cast<float>(value);
  if (type == ScalarType::kF32) {
    std::memcpy(place, &x, 4);
  } else if (type == ScalarType::kF16) {
    const std::uint16_t bits = Half(value);
    std::memcpy(place, &bits, 2);
  } else {
    std::uint32_t wide;
    std::memcpy(&wide, &x, 4);
    wide += 0x7fff + (wide >> 16 & 1);
    const std::uint16_t bits = static_cast<std::uint16_t>(wide >> 16);
    std::memcpy(place, &bits, 2);
  }
}

inline double Roundoff(ScalarType type) {
  return type == ScalarType::kF32 ? 1e-6 : type == ScalarType::kF16 ? 0x1p-11 : 0x1p-8;
}

// One element of a payload, decoded by the words of CodecView's documentation.
inline double DecodeElement(const CodecView& view, const std::uint8_t* payload, std::int32_t tokens,
                            std::int32_t layer, std::int32_t head, bool key, std::int32_t token,
                            std::int32_t d) {
  const std::int32_t dim = key ? view.key_dim : view.value_dim;
  const std::uint8_t* segment = payload + SegmentOffset(view, tokens, layer, head);
  if (!key) segment += KeySegmentBytes(view.codec, tokens, view.key_dim);
  const std::size_t index =
      static_cast<std::size_t>(token) * static_cast<std::size_t>(dim) + static_cast<std::size_t>(d);
  switch (view.codec) {
    case KvCodec::kF32:
      return ReadScalar(ScalarType::kF32, segment + 4 * index);
    case KvCodec::kF16:
      return ReadScalar(ScalarType::kF16, segment + 2 * index);
    case KvCodec::kBF16:
      return ReadScalar(ScalarType::kBF16, segment + 2 * index);
    default:
      break;
  }
  std::size_t parameters, place;
  if (key) {
    const std::int32_t groups = tokens < 48 ? 1 : (tokens + 16) / 32;
    std::int32_t group = 0;
    while (std::int64_t{group + 1} * tokens / groups <= token) ++group;
    parameters = static_cast<std::size_t>(groups * dim);
    place = static_cast<std::size_t>(group * dim + d);
  } else {
    const std::int32_t groups = (dim + 31) / 32;
    parameters = static_cast<std::size_t>(tokens * groups);
    place = static_cast<std::size_t>(token * groups + d / 32);
  }
  const double scale = ReadScalar(ScalarType::kF16, segment + 2 * place);
  const double zero = ReadScalar(ScalarType::kF16, segment + 2 * (parameters + place));
  const std::uint8_t* codes = segment + 4 * parameters;
  int code;
  if (view.codec == KvCodec::kInt8) {
    code = codes[index];
  } else {
    const std::uint8_t byte = codes[token * ((dim + 1) / 2) + d / 2];
    code = d % 2 == 0 ? byte & 15 : byte >> 4;
  }
  return scale * code + zero;
}

enum class Order { kByToken, kTransposed, kStrided };

// A cache of any arrangement, with its own address arithmetic.
struct Cache {
  Cache(const CodecView& view, ScalarType type, Order key_order, Order value_order,
        std::int32_t blocks, std::int32_t block_slots, bool paged, std::mt19937& random) {
    const std::int64_t element = type == ScalarType::kF32 ? 4 : 2;
    layout.type = type;
    layout.slots = std::int64_t{blocks} * block_slots;
    layout.block_slots = block_slots;
    const auto arrange = [&](Order order, std::int32_t dim, std::int64_t& block, std::int64_t& slot,
                             std::int64_t& head, std::int64_t& dimension) {
      const std::int64_t slots = layout.slots, heads = view.kv_heads;
      if (order == Order::kByToken) {
        dimension = element, head = dim * element, slot = heads * head, block = slot * block_slots;
      } else if (order == Order::kTransposed) {
        slot = element, dimension = slots * element, head = dim * dimension;
        block = block_slots * slot;
      } else {
        dimension = 3 * element, slot = dim * dimension + element, block = slot * block_slots;
        head = block * blocks;
      }
      return static_cast<std::size_t>(slots * heads * (dim * 3 + 1) * element);
    };
    key_bytes = arrange(key_order, view.key_dim, layout.key_block_stride, layout.key_slot_stride,
                        layout.key_head_stride, layout.key_dim_stride);
    value_bytes =
        arrange(value_order, view.value_dim, layout.value_block_stride, layout.value_slot_stride,
                layout.value_head_stride, layout.value_dim_stride);
    keys.assign(static_cast<std::size_t>(view.layers), std::vector<std::uint8_t>(key_bytes, 0xAB));
    values.assign(static_cast<std::size_t>(view.layers),
                  std::vector<std::uint8_t>(value_bytes, 0xAB));
    for (auto& layer : keys) key_base.push_back(layer.data());
    for (auto& layer : values) value_base.push_back(layer.data());
    layout.key_base = key_base.data();
    layout.value_base = value_base.data();
    if (paged) {
      table.resize(static_cast<std::size_t>(blocks));
      std::iota(table.begin(), table.end(), 0);
      std::shuffle(table.begin(), table.end(), random);
      layout.block_table = table.data();
    }
  }

  std::uint8_t* Place(bool key, std::int32_t layer, std::int64_t slot, std::int32_t head,
                      std::int32_t d) {
    std::int64_t offset = 0;
    if (layout.block_table != nullptr) {
      offset = table[static_cast<std::size_t>(slot / layout.block_slots)] *
               (key ? layout.key_block_stride : layout.value_block_stride);
      slot %= layout.block_slots;
    }
    offset += slot * (key ? layout.key_slot_stride : layout.value_slot_stride);
    offset += head * (key ? layout.key_head_stride : layout.value_head_stride);
    offset += d * (key ? layout.key_dim_stride : layout.value_dim_stride);
    auto& bytes = (key ? keys : values)[static_cast<std::size_t>(layer)];
    EXPECT_LT(static_cast<std::size_t>(offset), bytes.size());
    return bytes.data() + offset;
  }

  PagedLayout layout;
  std::size_t key_bytes, value_bytes;
  std::vector<std::vector<std::uint8_t>> keys, values;
  std::vector<void*> key_base, value_base;
  std::vector<std::int32_t> table;
};

struct Angles {
  Angles(std::int32_t groups, std::int32_t positions, std::int32_t width, RopePairing pairing,
         std::vector<std::int32_t> layer_groups)
      : layer_group(std::move(layer_groups)) {
    for (std::int32_t g = 0; g < groups; ++g) {
      for (std::int32_t p = 0; p < positions; ++p) {
        for (std::int32_t i = 0; i < width / 2; ++i) {
          cos_sin.push_back(static_cast<float>(std::cos(Angle(g, p, i, width))));
          cos_sin.push_back(static_cast<float>(std::sin(Angle(g, p, i, width))));
        }
      }
    }
    table = {cos_sin.data(), layer_group.data(), groups, positions, width, pairing};
  }
  static double Angle(std::int32_t group, std::int32_t position, std::int32_t pair,
                      std::int32_t width) {
    return position * std::pow(group == 0 ? 1e4 : 3e5, -2.0 * pair / width);
  }
  std::vector<float> cos_sin;
  std::vector<std::int32_t> layer_group;
  RopeTable table;
};

// A key head turned by `direction` · the angles of `position`.
inline std::vector<double> Turn(std::vector<double> head, const RopeTable& rope, std::int32_t layer,
                                std::int32_t position, double direction) {
  const std::int32_t group = rope.layer_group[layer];
  for (std::int32_t i = 0; group >= 0 && i < rope.width / 2; ++i) {
    const bool interleaved = rope.pairing == RopePairing::kInterleaved;
    double& x = head[static_cast<std::size_t>(interleaved ? 2 * i : i)];
    double& y = head[static_cast<std::size_t>(interleaved ? 2 * i + 1 : i + rope.width / 2)];
    const double angle = direction * Angles::Angle(group, position, i, rope.width);
    const double turned = x * std::cos(angle) - y * std::sin(angle);
    y = x * std::sin(angle) + y * std::cos(angle);
    x = turned;
  }
  return head;
}

inline std::int32_t Pick(std::mt19937& random, std::int32_t low, std::int32_t high) {
  return std::uniform_int_distribution<std::int32_t>(low, high)(random);
}

struct Case {
  CodecView view;
  ScalarType type;
  Order key_order, value_order;
  bool paged;
  RopePairing pairing;
  std::int32_t width;
};

inline Case RandomCase(std::mt19937& random) {
  Case c;
  c.view.codec = static_cast<KvCodec>(Pick(random, 0, 4));
  c.view.layers = Pick(random, 1, 3);
  c.view.kv_heads = Pick(random, 1, 3);
  c.view.key_dim = Pick(random, 1, 80);
  c.view.value_dim = Pick(random, 1, 80);
  c.type = static_cast<ScalarType>(Pick(random, 0, 2));
  c.key_order = static_cast<Order>(Pick(random, 0, 2));
  c.value_order = static_cast<Order>(Pick(random, 0, 2));
  c.paged = Pick(random, 0, 1) == 1;
  c.pairing = static_cast<RopePairing>(Pick(random, 0, 1));
  c.width = 2 * Pick(random, 0, c.view.key_dim / 2);
  return c;
}

inline Angles MakeAngles(const Case& c, std::mt19937& random) {
  std::vector<std::int32_t> groups;
  for (std::int32_t l = 0; l < c.view.layers; ++l) {
    groups.push_back(c.width == 0 ? -1 : Pick(random, -1, 1));
  }
  return Angles(2, 400, c.width, c.pairing, groups);
}

}  // namespace inferscale::kernels::reference

#endif  // INFERSCALE_TESTS_SUPPORT_KERNEL_REFERENCE_H_
