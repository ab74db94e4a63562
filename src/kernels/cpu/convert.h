#ifndef INFERSCALE_KERNELS_CPU_CONVERT_H_
#define INFERSCALE_KERNELS_CPU_CONVERT_H_

/// \file convert.h
/// Between f32 and the element types of engine caches. See also FloatToHalf in kernels.h.

#include <cstddef>
#include <cstdint>

#include "kernels/kernels.h"

namespace inferscale::kernels::cpu {

constexpr std::size_t ScalarBytes(ScalarType type) { return type == ScalarType::kF32 ? 4 : 2; }

/// bf16, rounded to nearest even; a NaN stays one.
void FloatToBFloat(const float* in, std::uint16_t* out, std::size_t count);
void BFloatToFloat(const std::uint16_t* in, float* out, std::size_t count);

/// `out` and `in` need not be aligned to their element type.
void ToScalars(ScalarType type, const float* in, std::uint8_t* out, std::size_t count);
void FromScalars(ScalarType type, const std::uint8_t* in, float* out, std::size_t count);

}  // namespace inferscale::kernels::cpu

#endif  // INFERSCALE_KERNELS_CPU_CONVERT_H_
