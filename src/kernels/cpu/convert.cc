#include "kernels/cpu/convert.h"

#include <cstring>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/convert.cc"
#include "hwy/foreach_target.h"  // must come before highway.h
#include "hwy/highway.h"
#include "kernels/cpu/half-inl.h"

HWY_BEFORE_NAMESPACE();
namespace inferscale::kernels::cpu::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

void HalfToFloatImpl(const std::uint16_t* HWY_RESTRICT in, float* HWY_RESTRICT out,
                     std::size_t count) {
  const hn::ScalableTag<float> df;
  const std::size_t lanes = hn::Lanes(df);
  std::size_t i = 0;
  for (; i + lanes <= count; i += lanes) hn::StoreU(LoadHalf(df, in + i), df, out + i);
  if (i == count) return;
  HWY_ALIGN std::uint16_t tail_in[hn::MaxLanes(df)] = {};
  HWY_ALIGN float tail_out[hn::MaxLanes(df)];
  std::memcpy(tail_in, in + i, (count - i) * sizeof(*in));
  hn::Store(LoadHalf(df, tail_in), df, tail_out);
  std::memcpy(out + i, tail_out, (count - i) * sizeof(*out));
}

void FloatToHalfImpl(const float* HWY_RESTRICT in, std::uint16_t* HWY_RESTRICT out,
                     std::size_t count) {
  const hn::ScalableTag<float> df;
  const std::size_t lanes = hn::Lanes(df);
  std::size_t i = 0;
  for (; i + lanes <= count; i += lanes) StoreHalf(df, hn::LoadU(df, in + i), out + i);
  if (i == count) return;
  HWY_ALIGN float tail_in[hn::MaxLanes(df)] = {};
  HWY_ALIGN std::uint16_t tail_out[hn::MaxLanes(df)];
  std::memcpy(tail_in, in + i, (count - i) * sizeof(*in));
  StoreHalf(df, hn::Load(df, tail_in), tail_out);
  std::memcpy(out + i, tail_out, (count - i) * sizeof(*out));
}

}  // namespace inferscale::kernels::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace inferscale::kernels {
namespace cpu {

HWY_EXPORT(HalfToFloatImpl);
HWY_EXPORT(FloatToHalfImpl);

void FloatToBFloat(const float* in, std::uint16_t* out, std::size_t count) {
  for (std::size_t i = 0; i < count; ++i) {
    std::uint32_t bits;
    std::memcpy(&bits, in + i, sizeof(bits));
    const bool is_nan = (bits & 0x7fffffffu) > 0x7f800000u;
    const std::uint32_t rounded = (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16;
    out[i] = static_cast<std::uint16_t>(is_nan ? (bits >> 16 | 0x40u) : rounded);
  }
}

void BFloatToFloat(const std::uint16_t* in, float* out, std::size_t count) {
  for (std::size_t i = 0; i < count; ++i) {
    const std::uint32_t bits = static_cast<std::uint32_t>(in[i]) << 16;
    std::memcpy(out + i, &bits, sizeof(bits));
  }
}

void ToScalars(ScalarType type, const float* in, std::uint8_t* out, std::size_t count) {
  switch (type) {
    case ScalarType::kF32:
      std::memcpy(out, in, count * sizeof(float));
      return;
    case ScalarType::kF16:
      FloatToHalf(in, reinterpret_cast<std::uint16_t*>(out), count);
      return;
    case ScalarType::kBF16:
      FloatToBFloat(in, reinterpret_cast<std::uint16_t*>(out), count);
      return;
  }
}

void FromScalars(ScalarType type, const std::uint8_t* in, float* out, std::size_t count) {
  switch (type) {
    case ScalarType::kF32:
      std::memcpy(out, in, count * sizeof(float));
      return;
    case ScalarType::kF16:
      HalfToFloat(reinterpret_cast<const std::uint16_t*>(in), out, count);
      return;
    case ScalarType::kBF16:
      BFloatToFloat(reinterpret_cast<const std::uint16_t*>(in), out, count);
      return;
  }
}

}  // namespace cpu

void FloatToHalf(const float* in, std::uint16_t* out, std::size_t count) {
  HWY_DYNAMIC_DISPATCH(cpu::FloatToHalfImpl)(in, out, count);
}

void HalfToFloat(const std::uint16_t* in, float* out, std::size_t count) {
  HWY_DYNAMIC_DISPATCH(cpu::HalfToFloatImpl)(in, out, count);
}

}  // namespace inferscale::kernels
#endif  // HWY_ONCE
