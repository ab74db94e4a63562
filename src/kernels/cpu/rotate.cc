#include "kernels/cpu/rotate.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/rotate.cc"
#include "hwy/foreach_target.h"  // must come before highway.h
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace inferscale::kernels::cpu::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

template <bool kInverse>
HWY_INLINE void RotatePair(float& x, float& y, float cosine, float sine) {
  const float x0 = x, y0 = y;
  if (kInverse) {
    x = x0 * cosine + y0 * sine;
    y = y0 * cosine - x0 * sine;
  } else {
    x = x0 * cosine - y0 * sine;
    y = y0 * cosine + x0 * sine;
  }
}

template <bool kInverse>
HWY_INLINE void RotateInterleavedRow(float* HWY_RESTRICT row, const float* HWY_RESTRICT cos_sin,
                                     std::size_t width) {
  std::size_t i = 0;
#if HWY_TARGET != HWY_SCALAR
  const hn::ScalableTag<float> df;
  const std::size_t lanes = hn::Lanes(df);
  for (; i + lanes <= width; i += lanes) {
    const auto v = hn::LoadU(df, row + i);
    const auto angles = hn::LoadU(df, cos_sin + i);
    const auto straight = hn::Mul(v, hn::DupEven(angles));
    const auto crossed = hn::Mul(hn::Reverse2(df, v), hn::DupOdd(angles));
    const auto sum = hn::Add(straight, crossed);
    const auto difference = hn::Sub(straight, crossed);
    hn::StoreU(kInverse ? hn::OddEven(difference, sum) : hn::OddEven(sum, difference), df, row + i);
  }
#endif
  for (; i + 2 <= width; i += 2) {
    RotatePair<kInverse>(row[i], row[i + 1], cos_sin[i], cos_sin[i + 1]);
  }
}

template <bool kInverse>
HWY_INLINE void RotateHalfRow(float* HWY_RESTRICT row, const float* HWY_RESTRICT cos_sin,
                              std::size_t half) {
  const hn::ScalableTag<float> df;
  const std::size_t lanes = hn::Lanes(df);
  std::size_t i = 0;
  for (; i + lanes <= half; i += lanes) {
    hn::Vec<decltype(df)> cosine, sine;
    hn::LoadInterleaved2(df, cos_sin + 2 * i, cosine, sine);
    const auto x = hn::LoadU(df, row + i);
    const auto y = hn::LoadU(df, row + half + i);
    const auto xc = hn::Mul(x, cosine), ys = hn::Mul(y, sine);
    const auto yc = hn::Mul(y, cosine), xs = hn::Mul(x, sine);
    hn::StoreU(kInverse ? hn::Add(xc, ys) : hn::Sub(xc, ys), df, row + i);
    hn::StoreU(kInverse ? hn::Sub(yc, xs) : hn::Add(yc, xs), df, row + half + i);
  }
  for (; i < half; ++i) {
    RotatePair<kInverse>(row[i], row[half + i], cos_sin[2 * i], cos_sin[2 * i + 1]);
  }
}

template <bool kInverse>
void RotateAll(float* tile, std::size_t rows, std::size_t dim, const float* cos_sin,
               std::size_t width, RopePairing pairing) {
  for (std::size_t r = 0; r < rows; ++r, tile += dim, cos_sin += width) {
    if (pairing == RopePairing::kInterleaved) {
      RotateInterleavedRow<kInverse>(tile, cos_sin, width);
    } else {
      RotateHalfRow<kInverse>(tile, cos_sin, width / 2);
    }
  }
}

void RotateRowsImpl(float* tile, std::int32_t rows, std::int32_t dim, const float* cos_sin,
                    std::int32_t width, RopePairing pairing, bool inverse) {
  const auto size = [](std::int32_t value) { return static_cast<std::size_t>(value); };
  if (inverse) {
    RotateAll<true>(tile, size(rows), size(dim), cos_sin, size(width), pairing);
  } else {
    RotateAll<false>(tile, size(rows), size(dim), cos_sin, size(width), pairing);
  }
}

}  // namespace inferscale::kernels::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace inferscale::kernels::cpu {

HWY_EXPORT(RotateRowsImpl);

void RotateRows(float* tile, std::int32_t rows, std::int32_t dim, const float* cos_sin,
                std::int32_t width, RopePairing pairing, bool inverse) {
  HWY_DYNAMIC_DISPATCH(RotateRowsImpl)(tile, rows, dim, cos_sin, width, pairing, inverse);
}

}  // namespace inferscale::kernels::cpu
#endif  // HWY_ONCE
