#include "kernels/cuda/vector.cuh"
#include "kernels/cuda/work.cuh"

namespace inferscale::kernels::cuda {
namespace {

constexpr int kHeadsAtOnce = 4;

/// A lane's chunks of all heads, from the cache into a payload of a plain codec.
template <KvCodec kCodec, ScalarType kType, bool kCopies, typename Rotate>
__device__ void CaptureHeads(const std::uint8_t* cache, std::int64_t head_stride, std::uint8_t* row,
                             std::int64_t segment_stride, std::int32_t heads,
                             const LaneColumns& columns, Rotate rotate) {
  struct Raw {
    uint4 a, b;
  };
  const auto load = [&](std::int32_t head) -> Raw {
    const std::uint8_t* from = cache + head * head_stride;
    return {__ldg(reinterpret_cast<const uint4*>(from + 2 * columns.a)),
            __ldg(reinterpret_cast<const uint4*>(from + 2 * columns.b))};
  };
  Raw raw[kHeadsAtOnce];
#pragma unroll
  for (int i = 0; i < kHeadsAtOnce; ++i) {
    if (i < heads) raw[i] = load(i);
  }
  for (std::int32_t head = 0; head < heads; head += kHeadsAtOnce) {
#pragma unroll
    for (int i = 0; i < kHeadsAtOnce; ++i) {
      if (head + i >= heads) break;
      Raw moved = raw[i];
      if constexpr (!kCopies) {
        float x[kChunk], y[kChunk];
        Chunk8<kType>::Decode(moved.a, x);
        Chunk8<kType>::Decode(moved.b, y);
        rotate(x, y);
        moved = {Chunk8<PlainType(kCodec)>::Encode(x), Chunk8<PlainType(kCodec)>::Encode(y)};
      }
      // Loaded again as soon as they are free: several heads are always under way.
      if (head + i + kHeadsAtOnce < heads) raw[i] = load(head + i + kHeadsAtOnce);
      std::uint8_t* to = row + (head + i) * segment_stride;
      __stcs(reinterpret_cast<uint4*>(to + 2 * columns.a), moved.a);
      __stcs(reinterpret_cast<uint4*>(to + 2 * columns.b), moved.b);
    }
  }
}

template <KvCodec kCodec, ScalarType kType, RopePairing kPairing>
__global__ __launch_bounds__(kThreads, 5) void CapturePlainKernel(
    const Geometry geometry, const __grid_constant__ Arguments arguments) {
  const Work work = WorkOf(arguments);
  const LanePlace place = FindLane(geometry, work);
  if (!place.active) return;
  constexpr bool kSame = PlainType(kCodec) == kType;
  const FactDescriptor& fact = place.tile.fact;
  const SegmentSizes sizes =
      SegmentSizesOf(kCodec, fact.tokens, geometry.key_dim, geometry.value_dim);
  const std::int64_t stride = sizes.key_bytes + sizes.value_bytes;
  std::uint8_t* row = fact.payload + stride * geometry.heads * place.layer +
                      (place.values ? sizes.key_bytes : 0) +
                      std::int64_t{place.token} * place.dim * 2;
  const CacheSide& side = place.values ? geometry.values : geometry.keys;
  const std::uint8_t* cache = RowOf(geometry, side, work, place.layer, fact, place.token);
  const float* cos_sin =
      place.values ? nullptr : AnglesOf(geometry, place.layer, fact, place.token);
  if (cos_sin == nullptr) {
    CaptureHeads<kCodec, kType, kSame>(cache, side.head_stride, row, stride, geometry.heads,
                                       PlainColumns(place.column, place.dim),
                                       [](float*, float*) {});
    return;
  }
  const LaneColumns columns = RotatedColumns<kPairing>(place.column, place.dim, geometry.width);
  LaneAngles angles;
  angles.Load<kPairing>(cos_sin, columns);
  CaptureHeads<kCodec, kType, false>(
      cache, side.head_stride, row, stride, geometry.heads, columns,
      [&](float* x, float* y) { RotateChunks<kPairing, true>(x, y, angles, columns); });
}

using Kernel = void (*)(Geometry, Arguments);

template <KvCodec kCodec>
Kernel WithTypes(ScalarType type, RopePairing pairing) {
  if (type == ScalarType::kBF16) {
    return pairing == RopePairing::kHalf
               ? CapturePlainKernel<kCodec, ScalarType::kBF16, RopePairing::kHalf>
               : CapturePlainKernel<kCodec, ScalarType::kBF16, RopePairing::kInterleaved>;
  }
  return pairing == RopePairing::kHalf
             ? CapturePlainKernel<kCodec, ScalarType::kF16, RopePairing::kHalf>
             : CapturePlainKernel<kCodec, ScalarType::kF16, RopePairing::kInterleaved>;
}

Kernel KernelFor(const Geometry& geometry) {
  return geometry.codec == KvCodec::kBF16
             ? WithTypes<KvCodec::kBF16>(geometry.type, geometry.pairing)
             : WithTypes<KvCodec::kF16>(geometry.type, geometry.pairing);
}

}  // namespace

cudaError_t PrepareVectorCapture(const Geometry& geometry) {
  return Quantised(geometry.codec) ? PrepareQuantisedCapture(geometry)
                                   : Prepare(KernelFor(geometry));
}

cudaError_t LaunchVectorCapture(const Geometry& geometry, const Arguments& arguments,
                                std::int64_t tiles, cudaStream_t stream) {
  if (Quantised(geometry.codec)) {
    return LaunchQuantisedCapture(geometry, arguments, tiles, stream);
  }
  const std::int64_t blocks = tiles * 2 * geometry.layers;
  if (blocks > INT32_MAX) return cudaErrorInvalidConfiguration;
  KernelFor(geometry)<<<static_cast<unsigned>(blocks), kThreads, 0, stream>>>(geometry, arguments);
  return cudaGetLastError();
}

}  // namespace inferscale::kernels::cuda
