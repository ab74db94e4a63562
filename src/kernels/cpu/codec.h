#ifndef INFERSCALE_KERNELS_CPU_CODEC_H_
#define INFERSCALE_KERNELS_CPU_CODEC_H_

/// \file codec.h
/// One key or value segment of a payload (CodecView says how it is arranged), to and from f32 rows.
/// Arguments are trusted: validate.h has checked them. No multiply-add is fused, so every target
/// gives the same bits.

#include <cstdint>

#include "kernels/kernels.h"

namespace inferscale::kernels::cpu {

/// Decodes tokens [first, first + count) of a segment of `tokens` tokens into `rows` [count][dim].
void DecodeKeys(KvCodec codec, const std::uint8_t* segment, std::int32_t tokens, std::int32_t dim,
                std::int32_t first, std::int32_t count, float* rows);
void DecodeValues(KvCodec codec, const std::uint8_t* segment, std::int32_t tokens, std::int32_t dim,
                  std::int32_t first, std::int32_t count, float* rows);

/// Encodes the tokens of one key group, [KeyGroupBegin(group), KeyGroupBegin(group + 1)), whose
/// `rows` are given. Numbers that f16 cannot hold are clamped and NaN counts as 0 in the quantised
/// codecs.
void EncodeKeyGroup(KvCodec codec, const float* rows, std::int32_t tokens, std::int32_t dim,
                    std::int32_t group, std::uint8_t* segment);
/// Encodes tokens [first, first + count).
void EncodeValues(KvCodec codec, const float* rows, std::int32_t tokens, std::int32_t dim,
                  std::int32_t first, std::int32_t count, std::uint8_t* segment);

}  // namespace inferscale::kernels::cpu

#endif  // INFERSCALE_KERNELS_CPU_CODEC_H_
