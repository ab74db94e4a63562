#ifndef INFERSCALE_KERNELS_CPU_ROTATE_H_
#define INFERSCALE_KERNELS_CPU_ROTATE_H_

#include <cstddef>
#include <cstdint>

#include "inferscale/kv_formats.h"

namespace inferscale::kernels::cpu {

/// Turns the first `width` elements of each row by its angles, in place; row r uses the angles of
/// the r-th position from `cos_sin` on. No multiply-add is fused, so every target gives the same
/// bits. \param tile [rows][dim] \param cos_sin [rows][width/2][2] \param inverse turn back instead
void RotateRows(float* tile, std::int32_t rows, std::int32_t dim, const float* cos_sin,
                std::int32_t width, RopePairing pairing, bool inverse);

}  // namespace inferscale::kernels::cpu

#endif  // INFERSCALE_KERNELS_CPU_ROTATE_H_
