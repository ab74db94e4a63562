#include "kernels/cpu/codec.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstring>
#include <vector>

#include "kernels/cpu/convert.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/codec.cc"
#include "hwy/foreach_target.h"  // must come before highway.h
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace inferscale::kernels::cpu::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

constexpr float kMaxHalf = 65504.0f;

// Codes of one row from nibbles to bytes.
HWY_INLINE void UnpackNibbles(const std::uint8_t* HWY_RESTRICT packed, std::size_t dim,
                              std::uint8_t* HWY_RESTRICT codes) {
  std::size_t i = 0;
#if HWY_TARGET != HWY_SCALAR
  const hn::FixedTag<std::uint8_t, 16> d8;
  const hn::FixedTag<std::uint16_t, 8> d16;
  const auto mask = hn::Set(d8, 15);
  for (; i + 32 <= dim; i += 32) {
    const auto bytes = hn::LoadU(d8, packed + i / 2);
    const auto low = hn::And(bytes, mask);
    const auto shifted = hn::ShiftRight<4>(hn::BitCast(d16, bytes));  // there is no shift of bytes
    const auto high = hn::And(hn::BitCast(d8, shifted), mask);
    hn::StoreU(hn::InterleaveLower(d8, low, high), d8, codes + i);
    hn::StoreU(hn::InterleaveUpper(d8, low, high), d8, codes + i + 16);
  }
#endif
  for (; i < dim; ++i) codes[i] = packed[i / 2] >> (i % 2 * 4) & 15;
}

// Lanes of codes from memory, as f32.
template <class DF>
HWY_INLINE hn::Vec<DF> LoadCodes(DF df, const std::uint8_t* codes) {
  const hn::Rebind<std::uint8_t, DF> du8;
  const hn::RebindToSigned<DF> di;
  return hn::ConvertTo(df, hn::PromoteTo(di, hn::LoadU(du8, codes)));
}

// \param scales, zeros [dim]
HWY_INLINE void DequantiseByChannel(const std::uint8_t* HWY_RESTRICT codes, std::size_t dim,
                                    const float* HWY_RESTRICT scales,
                                    const float* HWY_RESTRICT zeros, float* HWY_RESTRICT row) {
  const hn::ScalableTag<float> df;
  const std::size_t lanes = hn::Lanes(df);
  std::size_t i = 0;
  for (; i + lanes <= dim; i += lanes) {
    const auto product = hn::Mul(hn::LoadU(df, scales + i), LoadCodes(df, codes + i));
    hn::StoreU(hn::Add(product, hn::LoadU(df, zeros + i)), df, row + i);
  }
  for (; i < dim; ++i) row[i] = scales[i] * static_cast<float>(codes[i]) + zeros[i];
}

HWY_INLINE void DequantiseGroup(const std::uint8_t* HWY_RESTRICT codes, std::size_t dim,
                                float scale, float zero, float* HWY_RESTRICT row) {
  const hn::ScalableTag<float> df;
  const std::size_t lanes = hn::Lanes(df);
  const auto scales = hn::Set(df, scale), zeros = hn::Set(df, zero);
  std::size_t i = 0;
  for (; i + lanes <= dim; i += lanes) {
    hn::StoreU(hn::Add(hn::Mul(scales, LoadCodes(df, codes + i)), zeros), df, row + i);
  }
  for (; i < dim; ++i) row[i] = scale * static_cast<float>(codes[i]) + zero;
}

void DecodeKeyGroupImpl(bool nibbles, const std::uint8_t* codes, std::int32_t dim,
                        std::int32_t count, const float* scales, const float* zeros,
                        std::uint8_t* unpacked, float* rows) {
  const std::size_t size = static_cast<std::size_t>(dim);
  const std::size_t row_bytes = nibbles ? (size + 1) / 2 : size;
  for (std::int32_t t = 0; t < count; ++t, codes += row_bytes, rows += size) {
    if (nibbles) UnpackNibbles(codes, size, unpacked);
    DequantiseByChannel(nibbles ? unpacked : codes, size, scales, zeros, rows);
  }
}

// \param scales, zeros [count][value groups]
void DecodeValueRowsImpl(bool nibbles, const std::uint8_t* codes, std::int32_t dim,
                         std::int32_t count, const float* scales, const float* zeros,
                         std::uint8_t* unpacked, float* rows) {
  const std::size_t size = static_cast<std::size_t>(dim);
  const std::size_t row_bytes = nibbles ? (size + 1) / 2 : size;
  for (std::int32_t t = 0; t < count; ++t, codes += row_bytes, rows += size) {
    if (nibbles) UnpackNibbles(codes, size, unpacked);
    const std::uint8_t* row_codes = nibbles ? unpacked : codes;
    for (std::size_t begin = 0; begin < size; begin += kValueGroupChannels) {
      const std::size_t group_size = std::min<std::size_t>(kValueGroupChannels, size - begin);
      DequantiseGroup(row_codes + begin, group_size, *scales++, *zeros++, rows + begin);
    }
  }
}

HWY_INLINE float Clean(float x) {
  return x != x ? 0.0f : std::min(std::max(x, -kMaxHalf), kMaxHalf);
}

template <class DF>
HWY_INLINE hn::Vec<DF> LoadClean(DF df, const float* HWY_RESTRICT in) {
  const auto v = hn::LoadU(df, in);
  const auto number = hn::IfThenElseZero(hn::Eq(v, v), v);
  return hn::Min(hn::Max(number, hn::Set(df, -kMaxHalf)), hn::Set(df, kMaxHalf));
}

// Smallest and largest number of each column.
void ColumnRangesImpl(const float* rows, std::int32_t count, std::int32_t dim, float* low,
                      float* high) {
  const hn::ScalableTag<float> df;
  const std::size_t lanes = hn::Lanes(df), size = static_cast<std::size_t>(dim);
  std::size_t i = 0;
  for (; i + lanes <= size; i += lanes) {
    auto least = LoadClean(df, rows + i), most = least;
    for (std::int32_t t = 1; t < count; ++t) {
      const auto v = LoadClean(df, rows + static_cast<std::size_t>(t) * size + i);
      least = hn::Min(least, v);
      most = hn::Max(most, v);
    }
    hn::StoreU(least, df, low + i);
    hn::StoreU(most, df, high + i);
  }
  for (; i < size; ++i) {
    low[i] = high[i] = Clean(rows[i]);
    for (std::int32_t t = 1; t < count; ++t) {
      const float x = Clean(rows[static_cast<std::size_t>(t) * size + i]);
      low[i] = std::min(low[i], x);
      high[i] = std::max(high[i], x);
    }
  }
}

// Smallest and largest number of each group of a row. \param low, high [value groups]
void GroupRangesImpl(const float* row, std::int32_t dim, float* low, float* high) {
  const hn::ScalableTag<float> df;
  const std::size_t lanes = hn::Lanes(df), size = static_cast<std::size_t>(dim);
  for (std::size_t begin = 0; begin < size; begin += kValueGroupChannels) {
    const std::size_t end = std::min<std::size_t>(begin + kValueGroupChannels, size);
    float least = Clean(row[begin]), most = least;
    std::size_t i = begin;
    if (begin + lanes <= end) {
      auto least_lanes = LoadClean(df, row + i), most_lanes = least_lanes;
      for (i += lanes; i + lanes <= end; i += lanes) {
        const auto v = LoadClean(df, row + i);
        least_lanes = hn::Min(least_lanes, v);
        most_lanes = hn::Max(most_lanes, v);
      }
      least = hn::GetLane(hn::MinOfLanes(df, least_lanes));
      most = hn::GetLane(hn::MaxOfLanes(df, most_lanes));
    }
    for (; i < end; ++i) {
      least = std::min(least, Clean(row[i]));
      most = std::max(most, Clean(row[i]));
    }
    *low++ = least;
    *high++ = most;
  }
}

HWY_INLINE std::uint8_t Quantise(float x, float inverse, float zero, float levels) {
  const float code = std::nearbyintf((Clean(x) - zero) * inverse);
  return static_cast<std::uint8_t>(std::min(std::max(code, 0.0f), levels));
}

// \param inverses, zeros [dim]: 1 / scale (0 for a constant group) and zero
// \param codes [dim], a byte each
void QuantiseRowImpl(const float* HWY_RESTRICT row, std::int32_t dim,
                     const float* HWY_RESTRICT inverses, const float* HWY_RESTRICT zeros,
                     float levels, std::uint8_t* HWY_RESTRICT codes) {
  const hn::ScalableTag<float> df;
  const hn::Rebind<std::uint8_t, decltype(df)> du8;
  const std::size_t lanes = hn::Lanes(df), size = static_cast<std::size_t>(dim);
  const auto top = hn::Set(df, levels);
  std::size_t i = 0;
  for (; i + lanes <= size; i += lanes) {
    auto code = hn::Mul(hn::Sub(LoadClean(df, row + i), hn::LoadU(df, zeros + i)),
                        hn::LoadU(df, inverses + i));
    code = hn::Min(hn::Max(code, hn::Zero(df)), top);
    hn::StoreU(hn::DemoteTo(du8, hn::NearestInt(code)), du8, codes + i);
  }
  for (; i < size; ++i) codes[i] = Quantise(row[i], inverses[i], zeros[i], levels);
}

}  // namespace inferscale::kernels::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace inferscale::kernels::cpu {
namespace {

HWY_EXPORT(DecodeKeyGroupImpl);
HWY_EXPORT(DecodeValueRowsImpl);
HWY_EXPORT(ColumnRangesImpl);
HWY_EXPORT(GroupRangesImpl);
HWY_EXPORT(QuantiseRowImpl);

std::size_t Size(std::int32_t value) { return static_cast<std::size_t>(value); }

bool IsQuantised(KvCodec codec) { return codec == KvCodec::kInt8 || codec == KvCodec::kInt4; }

ScalarType PlainType(KvCodec codec) {
  if (codec == KvCodec::kF32) return ScalarType::kF32;
  return codec == KvCodec::kF16 ? ScalarType::kF16 : ScalarType::kBF16;
}

std::size_t CodeRowBytes(KvCodec codec, std::int32_t dim) {
  return codec == KvCodec::kInt4 ? (Size(dim) + 1) / 2 : Size(dim);
}

std::int32_t ValueGroups(std::int32_t dim) {
  return (dim + kValueGroupChannels - 1) / kValueGroupChannels;
}

const std::uint16_t* Halves(const std::uint8_t* bytes) {
  return reinterpret_cast<const std::uint16_t*>(bytes);
}

std::uint16_t* Halves(std::uint8_t* bytes) { return reinterpret_cast<std::uint16_t*>(bytes); }

void DecodePlain(KvCodec codec, const std::uint8_t* segment, std::int32_t dim, std::int32_t first,
                 std::int32_t count, float* rows) {
  const ScalarType type = PlainType(codec);
  FromScalars(type, segment + Size(first) * Size(dim) * ScalarBytes(type), rows,
              Size(count) * Size(dim));
}

void EncodePlain(KvCodec codec, const float* rows, std::int32_t dim, std::int32_t first,
                 std::int32_t count, std::uint8_t* segment) {
  const ScalarType type = PlainType(codec);
  ToScalars(type, rows, segment + Size(first) * Size(dim) * ScalarBytes(type),
            Size(count) * Size(dim));
}

void StoreCodes(KvCodec codec, const std::uint8_t* codes, std::int32_t dim, std::uint8_t* out) {
  if (codec == KvCodec::kInt8) {
    std::memcpy(out, codes, Size(dim));
    return;
  }
  std::size_t i = 0;
  for (; i + 2 <= Size(dim); i += 2) {
    out[i / 2] = static_cast<std::uint8_t>(codes[i] | codes[i + 1] << 4);
  }
  if (i < Size(dim)) out[i / 2] = codes[i];
}

float Levels(KvCodec codec) { return codec == KvCodec::kInt4 ? 15.0f : 255.0f; }

// Turns ranges into f16 scales and zeros, and leaves in `low` and `high` the zero and 1 / scale
// that decoding will see: encoding with the rounded numbers keeps their rounding out of the error.
void ChooseParameters(float levels, std::size_t count, float* low, float* high,
                      std::uint16_t* scales, std::uint16_t* zeros) {
  // Which of -0 and +0 is the smaller differs by instruction set: +0 is stored for both.
  for (std::size_t i = 0; i < count; ++i) low[i] += 0.0f;
  FloatToHalf(low, zeros, count);
  HalfToFloat(zeros, low, count);
  for (std::size_t i = 0; i < count; ++i) {
    high[i] = std::max(0.0f, (high[i] - low[i]) / levels);
  }
  FloatToHalf(high, scales, count);
  HalfToFloat(scales, high, count);
  for (std::size_t i = 0; i < count; ++i) high[i] = high[i] > 0.0f ? 1.0f / high[i] : 0.0f;
}

}  // namespace

void DecodeKeys(KvCodec codec, const std::uint8_t* segment, std::int32_t tokens, std::int32_t dim,
                std::int32_t first, std::int32_t count, float* rows) {
  if (!IsQuantised(codec)) return DecodePlain(codec, segment, dim, first, count, rows);
  thread_local std::vector<float> parameters;
  thread_local std::vector<std::uint8_t> unpacked;
  parameters.resize(2 * Size(dim));
  unpacked.resize(Size(dim));
  const std::int32_t groups = KeyGroups(tokens);
  const std::size_t row_bytes = CodeRowBytes(codec, dim);
  const std::uint8_t* codes = segment + Size(groups) * Size(dim) * 4;
  for (std::int32_t group = 0; group < groups; ++group) {
    const std::int32_t begin = std::max(first, KeyGroupBegin(tokens, group));
    const std::int32_t end = std::min(first + count, KeyGroupBegin(tokens, group + 1));
    if (begin >= end) continue;
    float* scales = parameters.data();
    float* zeros = scales + dim;
    HalfToFloat(Halves(segment) + Size(group) * Size(dim), scales, Size(dim));
    HalfToFloat(Halves(segment) + Size(groups + group) * Size(dim), zeros, Size(dim));
    HWY_DYNAMIC_DISPATCH(DecodeKeyGroupImpl)
    (codec == KvCodec::kInt4, codes + Size(begin) * row_bytes, dim, end - begin, scales, zeros,
     unpacked.data(), rows + Size(begin - first) * Size(dim));
  }
}

void DecodeValues(KvCodec codec, const std::uint8_t* segment, std::int32_t tokens, std::int32_t dim,
                  std::int32_t first, std::int32_t count, float* rows) {
  if (!IsQuantised(codec)) return DecodePlain(codec, segment, dim, first, count, rows);
  thread_local std::vector<float> parameters;
  thread_local std::vector<std::uint8_t> unpacked;
  const std::size_t groups = Size(ValueGroups(dim));
  parameters.resize(2 * groups * Size(count));
  unpacked.resize(Size(dim));
  float* scales = parameters.data();
  float* zeros = scales + groups * Size(count);
  HalfToFloat(Halves(segment) + Size(first) * groups, scales, Size(count) * groups);
  HalfToFloat(Halves(segment) + Size(tokens) * groups + Size(first) * groups, zeros,
              Size(count) * groups);
  const std::uint8_t* codes = segment + Size(tokens) * groups * 4;
  HWY_DYNAMIC_DISPATCH(DecodeValueRowsImpl)
  (codec == KvCodec::kInt4, codes + Size(first) * CodeRowBytes(codec, dim), dim, count, scales,
   zeros, unpacked.data(), rows);
}

void EncodeKeyGroup(KvCodec codec, const float* rows, std::int32_t tokens, std::int32_t dim,
                    std::int32_t group, std::uint8_t* segment) {
  const std::int32_t begin = KeyGroupBegin(tokens, group);
  const std::int32_t count = KeyGroupBegin(tokens, group + 1) - begin;
  if (!IsQuantised(codec)) return EncodePlain(codec, rows, dim, begin, count, segment);
  thread_local std::vector<float> ranges;
  thread_local std::vector<std::uint8_t> codes;
  ranges.resize(2 * Size(dim));
  codes.resize(Size(dim));
  float* low = ranges.data();
  float* high = low + dim;
  const std::int32_t groups = KeyGroups(tokens);
  HWY_DYNAMIC_DISPATCH(ColumnRangesImpl)(rows, count, dim, low, high);
  ChooseParameters(Levels(codec), Size(dim), low, high, Halves(segment) + Size(group) * Size(dim),
                   Halves(segment) + Size(groups + group) * Size(dim));
  std::uint8_t* out = segment + Size(groups) * Size(dim) * 4;
  const std::size_t row_bytes = CodeRowBytes(codec, dim);
  for (std::int32_t t = 0; t < count; ++t) {
    HWY_DYNAMIC_DISPATCH(QuantiseRowImpl)
    (rows + Size(t) * Size(dim), dim, high, low, Levels(codec), codes.data());
    StoreCodes(codec, codes.data(), dim, out + Size(begin + t) * row_bytes);
  }
}

void EncodeValues(KvCodec codec, const float* rows, std::int32_t tokens, std::int32_t dim,
                  std::int32_t first, std::int32_t count, std::uint8_t* segment) {
  if (!IsQuantised(codec)) return EncodePlain(codec, rows, dim, first, count, segment);
  thread_local std::vector<float> ranges;
  thread_local std::vector<std::uint8_t> codes;
  const std::int32_t groups = ValueGroups(dim);
  ranges.resize(2 * Size(groups) + 2 * Size(dim));
  codes.resize(Size(dim));
  float* low = ranges.data();
  float* high = low + groups;
  float* zeros = high + groups;
  float* inverses = zeros + dim;
  std::uint8_t* out = segment + Size(tokens) * Size(groups) * 4;
  for (std::int32_t t = 0; t < count; ++t) {
    const float* row = rows + Size(t) * Size(dim);
    HWY_DYNAMIC_DISPATCH(GroupRangesImpl)(row, dim, low, high);
    const std::size_t place = Size(first + t) * Size(groups);
    ChooseParameters(Levels(codec), Size(groups), low, high, Halves(segment) + place,
                     Halves(segment) + Size(tokens) * Size(groups) + place);
    for (std::int32_t i = 0; i < dim; ++i) {
      zeros[i] = low[i / kValueGroupChannels];
      inverses[i] = high[i / kValueGroupChannels];
    }
    HWY_DYNAMIC_DISPATCH(QuantiseRowImpl)(row, dim, inverses, zeros, Levels(codec), codes.data());
    StoreCodes(codec, codes.data(), dim, out + Size(first + t) * CodeRowBytes(codec, dim));
  }
}

}  // namespace inferscale::kernels::cpu
#endif  // HWY_ONCE
