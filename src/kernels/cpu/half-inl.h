// Vector conversions between f32 and f16, for the files that are compiled once per target.

#if defined(INFERSCALE_KERNELS_CPU_HALF_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef INFERSCALE_KERNELS_CPU_HALF_INL_H_
#undef INFERSCALE_KERNELS_CPU_HALF_INL_H_
#else
#define INFERSCALE_KERNELS_CPU_HALF_INL_H_
#endif

#include <cstdint>

#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace inferscale::kernels::cpu::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

// Highway's own conversions round to nearest even only where the hardware does it.
#if HWY_ARCH_X86 && HWY_TARGET <= HWY_AVX2 && !defined(HWY_DISABLE_F16C)

template <class DF>
HWY_INLINE hn::Vec<DF> LoadHalf(DF df, const std::uint16_t* HWY_RESTRICT in) {
  const hn::Rebind<hwy::float16_t, DF> dh;
  return hn::PromoteTo(df, hn::LoadU(dh, reinterpret_cast<const hwy::float16_t*>(in)));
}

template <class DF>
HWY_INLINE void StoreHalf(DF df, hn::Vec<DF> v, std::uint16_t* HWY_RESTRICT out) {
  (void)df;
  const hn::Rebind<hwy::float16_t, DF> dh;
  hn::StoreU(hn::DemoteTo(dh, v), dh, reinterpret_cast<hwy::float16_t*>(out));
}

#else

template <class DF>
HWY_INLINE hn::Vec<DF> LoadHalf(DF df, const std::uint16_t* HWY_RESTRICT in) {
  const hn::RebindToUnsigned<DF> du;
  const hn::Rebind<std::uint16_t, DF> du16;
  const auto half = hn::PromoteTo(du, hn::LoadU(du16, in));
  const auto exponent_mask = hn::Set(du, 0x7c00u << 13);
  const auto magnitude = hn::ShiftLeft<13>(hn::And(half, hn::Set(du, 0x7fffu)));
  const auto exponent = hn::And(magnitude, exponent_mask);
  const auto rebiased = hn::Add(magnitude, hn::Set(du, (127u - 15u) << 23));
  const auto special = hn::Add(rebiased, hn::Set(du, (128u - 16u) << 23));
  // A subnormal is the difference of two normal numbers, which is exact.
  const auto magic = hn::Set(du, 113u << 23);
  const auto subnormal = hn::BitCast(
      du,
      hn::Sub(hn::BitCast(df, hn::Add(rebiased, hn::Set(du, 1u << 23))), hn::BitCast(df, magic)));
  auto bits = hn::IfThenElse(hn::Eq(exponent, exponent_mask), special, rebiased);
  bits = hn::IfThenElse(hn::Eq(exponent, hn::Zero(du)), subnormal, bits);
  const auto sign = hn::ShiftLeft<16>(hn::And(half, hn::Set(du, 0x8000u)));
  return hn::BitCast(df, hn::Or(bits, sign));
}

template <class DF>
HWY_INLINE void StoreHalf(DF df, hn::Vec<DF> v, std::uint16_t* HWY_RESTRICT out) {
  const hn::RebindToUnsigned<DF> du;
  const hn::RebindToSigned<DF> di;
  const hn::Rebind<std::uint16_t, DF> du16;
  const auto bits = hn::BitCast(du, v);
  const auto sign = hn::And(bits, hn::Set(du, 0x80000000u));
  const auto magnitude = hn::Xor(bits, sign);
  const auto above = [&](std::uint32_t limit) {
    return hn::RebindMask(
        du, hn::Gt(hn::BitCast(di, magnitude), hn::Set(di, static_cast<std::int32_t>(limit))));
  };
  // Adding this number leaves a subnormal's bits, rounded by the adder, at the bottom.
  const auto magic = hn::Set(du, ((127u - 15u) + (23u - 10u) + 1u) << 23);
  const auto subnormal =
      hn::Sub(hn::BitCast(du, hn::Add(hn::BitCast(df, magnitude), hn::BitCast(df, magic))), magic);
  const auto odd = hn::And(hn::ShiftRight<13>(magnitude), hn::Set(du, 1u));
  const auto normal = hn::ShiftRight<13>(hn::Add(
      hn::Add(magnitude, hn::Set(du, (static_cast<std::uint32_t>(15 - 127) << 23) + 0xfffu)), odd));
  auto half = hn::IfThenElse(above((113u << 23) - 1u), normal, subnormal);
  half = hn::IfThenElse(above((143u << 23) - 1u), hn::Set(du, 0x7c00u), half);
  half = hn::IfThenElse(above(255u << 23), hn::Set(du, 0x7e00u), half);
  half = hn::Or(half, hn::ShiftRight<16>(sign));
  hn::StoreU(hn::DemoteTo(du16, hn::BitCast(di, half)), du16, out);
}

#endif

}  // namespace inferscale::kernels::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // INFERSCALE_KERNELS_CPU_HALF_INL_H_
