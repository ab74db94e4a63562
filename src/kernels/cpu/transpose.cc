#include <algorithm>

#include "kernels/cpu/cache_rows.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/transpose.cc"
#include "hwy/foreach_target.h"  // must come before highway.h
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace inferscale::kernels::cpu::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

#if HWY_TARGET != HWY_SCALAR
HWY_INLINE void Transpose8x8(const std::uint16_t* HWY_RESTRICT in, std::size_t in_stride,
                             std::uint16_t* HWY_RESTRICT out, std::size_t out_stride) {
  const hn::FixedTag<std::uint16_t, 8> d16;
  const hn::FixedTag<std::uint32_t, 4> d32;
  const hn::FixedTag<std::uint64_t, 2> d64;
  const auto row = [&](std::size_t r) { return hn::LoadU(d16, in + r * in_stride); };
  const auto low32 = [&](std::size_t r) {
    return hn::BitCast(d32, hn::InterleaveLower(d16, row(r), row(r + 1)));
  };
  const auto high32 = [&](std::size_t r) {
    return hn::BitCast(d32, hn::InterleaveUpper(d16, row(r), row(r + 1)));
  };
  const auto store = [&](std::size_t column, auto upper, auto lower) {
    const auto a = hn::BitCast(d64, upper), b = hn::BitCast(d64, lower);
    hn::StoreU(hn::BitCast(d16, hn::InterleaveLower(d64, a, b)), d16, out + column * out_stride);
    hn::StoreU(hn::BitCast(d16, hn::InterleaveUpper(d64, a, b)), d16,
               out + (column + 1) * out_stride);
  };
  const auto l0 = low32(0), l2 = low32(2), l4 = low32(4), l6 = low32(6);
  store(0, hn::InterleaveLower(d32, l0, l2), hn::InterleaveLower(d32, l4, l6));
  store(2, hn::InterleaveUpper(d32, l0, l2), hn::InterleaveUpper(d32, l4, l6));
  const auto h0 = high32(0), h2 = high32(2), h4 = high32(4), h6 = high32(6);
  store(4, hn::InterleaveLower(d32, h0, h2), hn::InterleaveLower(d32, h4, h6));
  store(6, hn::InterleaveUpper(d32, h0, h2), hn::InterleaveUpper(d32, h4, h6));
}
#endif

void Transpose16Impl(const std::uint16_t* in, std::size_t in_stride, std::size_t rows,
                     std::size_t columns, std::uint16_t* out, std::size_t out_stride) {
#if HWY_TARGET != HWY_SCALAR
  if (rows >= 8 && columns >= 8) {
    // The last block of a side overlaps its neighbour instead of being short. Columns outside: each
    // output row is then finished while its cache line is near.
    for (std::size_t column = 0; column < columns; column += 8) {
      const std::size_t c = std::min(column, columns - 8);
      for (std::size_t row = 0; row < rows; row += 8) {
        const std::size_t r = std::min(row, rows - 8);
        Transpose8x8(in + r * in_stride + c, in_stride, out + c * out_stride + r, out_stride);
      }
    }
    return;
  }
#endif
  for (std::size_t c = 0; c < columns; ++c) {
    for (std::size_t r = 0; r < rows; ++r) out[c * out_stride + r] = in[r * in_stride + c];
  }
}

}  // namespace inferscale::kernels::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace inferscale::kernels::cpu {

HWY_EXPORT(Transpose16Impl);

void Transpose16(const std::uint16_t* in, std::size_t in_stride, std::size_t rows,
                 std::size_t columns, std::uint16_t* out, std::size_t out_stride) {
  HWY_DYNAMIC_DISPATCH(Transpose16Impl)(in, in_stride, rows, columns, out, out_stride);
}

}  // namespace inferscale::kernels::cpu
#endif  // HWY_ONCE
