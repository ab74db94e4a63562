#ifndef INFERSCALE_KV_FORMATS_H_
#define INFERSCALE_KV_FORMATS_H_

/// \file kv_formats.h
/// Enumerations shared by the block format, the kernels and their callers. Their values are part of
/// the KV block file format. No dependencies, so that CUDA code can include it.

#include <cstdint>

namespace inferscale {

/// How stored keys and values are compressed.
enum class KvCodec : std::uint8_t { kF32 = 0, kF16 = 1, kBF16 = 2, kInt8 = 3, kInt4 = 4 };

/// Which two elements of a key are rotated together: (2i, 2i+1) or (i, i + width/2).
enum class RopePairing : std::uint8_t { kInterleaved = 0, kHalf = 1 };

}  // namespace inferscale

#endif  // INFERSCALE_KV_FORMATS_H_
