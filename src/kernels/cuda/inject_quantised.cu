/// \file inject_quantised.cu
/// Injection of int8 and int4 payloads of the shape that most models have: rows of 128 elements,
/// keys rotated as a whole with halves paired, a cache of 16-bit elements. The general kernel
/// (inject.cu) gives the same bits, but its warps spend most of their time waiting for the few
/// bytes that such payloads are made of. Here
/// - a warp has a tile of its own, of four tokens: facts are short, and where a block's warps share
///   a tile, those behind a fact's end have nothing to do;
/// - a warp goes on to a second layer, whose rows lie a fixed step further on: the tile, the block
///   table and the angles are looked up half as often;
/// - rows go to shared memory without waiting, some heads ahead, and to the L2 a layer ahead:
///   registers would not hold so many, and would leave room for fewer warps;
/// - codes are unpacked two at a time.

#include <algorithm>

#include "kernels/cuda/ptx.cuh"
#include "kernels/cuda/vector.cuh"
#include "kernels/cuda/work.cuh"

namespace inferscale::kernels::cuda {
namespace {

constexpr int kDim = kUsualDim;
constexpr int kRowLanes = kDim / kLaneElements;
/// From a lane's first chunk to its second, which is also its partner in the rotation.
constexpr int kBetween = kDim / 2;
constexpr int kSectorBytes = 32;
/// Blocks that a processor holds at once, and heads whose rows are on their way to a warp. Together
/// they fill a processor's shared memory with int8 rows; fewer stages for more blocks are slower.
constexpr int kBlocksAtOnce = 6;
constexpr int kStages = 3;
/// Layers of a block; the last blocks have one.
constexpr int kWideLayers = 2;

/// Two halves 2^k + code, less that 2^k, as floats: exact.
__device__ inline void SubtractPower(std::uint32_t halves, std::uint32_t powers, float& first,
                                     float& second) {
  const float2 codes = __half22float2(__hsub2(*reinterpret_cast<const __half2*>(&halves),
                                              *reinterpret_cast<const __half2*>(&powers)));
  first = codes.x;
  second = codes.y;
}

/// Eight codes. They become the last bits of a half whose other bits are a power of two's.
template <KvCodec kCodec>
struct CodeChunk;

template <>
struct CodeChunk<KvCodec::kInt8> {
  using Raw = uint2;
  static constexpr int kBytes = 8;
  static __device__ void Decode(const Raw& raw, float* x) {
    constexpr std::uint32_t k1024 = 0x64006400u;
    const std::uint32_t words[2] = {raw.x, raw.y};
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      SubtractPower(__byte_perm(words[i], k1024, 0x7150), k1024, x[4 * i], x[4 * i + 1]);
      SubtractPower(__byte_perm(words[i], k1024, 0x7352), k1024, x[4 * i + 2], x[4 * i + 3]);
    }
  }
};

template <>
struct CodeChunk<KvCodec::kInt4> {
  using Raw = std::uint32_t;
  static constexpr int kBytes = 4;
  // A code in the upper half of a byte counts 16 times as much, of which a half of 64 makes one.
  static __device__ void Decode(const Raw& raw, float* x) {
    constexpr std::uint32_t k1024 = 0x64006400u, k64 = 0x54005400u;
    const std::uint32_t upper = raw >> 8;
    SubtractPower(MaskedOr<0x000f000fu, k1024>(raw), k1024, x[0], x[4]);
    SubtractPower(MaskedOr<0x00f000f0u, k64>(raw), k64, x[1], x[5]);
    SubtractPower(MaskedOr<0x000f000fu, k1024>(upper), k1024, x[2], x[6]);
    SubtractPower(MaskedOr<0x00f000f0u, k64>(upper), k64, x[3], x[7]);
  }
};

/// A lane's two chunks of a row of quantised keys (a scale and a zero for each channel), one
/// segment after the other. Fetch() starts copies to shared memory; a lane reads only what it has
/// fetched itself, so that a warp's lanes do not wait for each other.
template <KvCodec kCodec>
struct KeyRow {
  using Codes = CodeChunk<kCodec>;
  struct Stage {
    uint4 scales[2][32], zeros[2][32];
    typename Codes::Raw codes[2][32];
  };
  const std::uint8_t *codes, *scales, *zeros;

  __device__ KeyRow(const std::uint8_t* segment, const FactDescriptor& fact, std::int32_t token,
                    int column) {
    codes = segment + KeyParameterBytes(kCodec, fact.tokens, kDim) +
            token * CodeRowBytes(kCodec, kDim) + column * Codes::kBytes;
    scales =
        segment + std::int64_t{KeyGroupOf(fact.tokens, token)} * kDim * 2 + column * kChunk * 2;
    zeros = scales + std::int64_t{KeyGroups(fact.tokens)} * kDim * 2;
  }
  /// Then goes on to the next segment.
  __device__ void Fetch(Stage& stage, int lane, std::int64_t stride) {
#pragma unroll
    for (int chunk = 0; chunk < 2; ++chunk) {
      CopyAsync(stage.scales[chunk][lane], scales + chunk * kBetween * 2);
      CopyAsync(stage.zeros[chunk][lane], zeros + chunk * kBetween * 2);
      CopyAsync(stage.codes[chunk][lane], codes + chunk * kBetween / kChunk * Codes::kBytes);
    }
    codes += stride, scales += stride, zeros += stride;
  }
  static __device__ void Decode(const Stage& stage, int lane, int chunk, int, float* x) {
    float scales[kChunk], zeros[kChunk];
    Chunk8<ScalarType::kF16>::Decode(stage.scales[chunk][lane], scales);
    Chunk8<ScalarType::kF16>::Decode(stage.zeros[chunk][lane], zeros);
    Codes::Decode(stage.codes[chunk][lane], x);
    // A float holds a half times a code exactly, so that fusing rounds as the CPU kernels do.
#pragma unroll
    for (int i = 0; i < kChunk; ++i) x[i] = __fmaf_rn(scales[i], x[i], zeros[i]);
  }
};

/// The same of values, which have a scale and a zero for each token and group of channels.
template <KvCodec kCodec>
struct ValueRow {
  using Codes = CodeChunk<kCodec>;
  static constexpr int kGroups = kDim / kValueGroupChannels;
  /// A row's scales or zeros.
  struct alignas(8) Groups {
    __half of[kGroups];
  };
  struct Stage {
    Groups scales[32], zeros[32];
    typename Codes::Raw codes[2][32];
  };
  const std::uint8_t *codes, *scales, *zeros;

  __device__ ValueRow(const std::uint8_t* segment, const FactDescriptor& fact, std::int32_t token,
                      int column) {
    codes = segment + ValueParameterBytes(kCodec, fact.tokens, kDim) +
            token * CodeRowBytes(kCodec, kDim) + column * Codes::kBytes;
    scales = segment + std::int64_t{token} * kGroups * 2;
    zeros = scales + std::int64_t{fact.tokens} * kGroups * 2;
  }
  __device__ void Fetch(Stage& stage, int lane, std::int64_t stride) {
    CopyAsync(stage.scales[lane], scales);
    CopyAsync(stage.zeros[lane], zeros);
#pragma unroll
    for (int chunk = 0; chunk < 2; ++chunk) {
      CopyAsync(stage.codes[chunk][lane], codes + chunk * kBetween / kChunk * Codes::kBytes);
    }
    codes += stride, scales += stride, zeros += stride;
  }
  static __device__ void Decode(const Stage& stage, int lane, int chunk, int column, float* x) {
    const int group = (chunk * kBetween + column * kChunk) / kValueGroupChannels;
    const float scale = __half2float(stage.scales[lane].of[group]);
    const float zero = __half2float(stage.zeros[lane].of[group]);
    Codes::Decode(stage.codes[chunk][lane], x);
#pragma unroll
    for (int i = 0; i < kChunk; ++i) x[i] = __fmaf_rn(scale, x[i], zero);
  }
};

/// A block's part of a call: kWarps tiles, the keys or the values of some layers.
struct Part {
  std::int32_t first_tile = 0;
  std::int32_t first_layer = 0, layers = 0;
  bool values = false;
};

/// The first groups of kWarps tiles are shared out in parts of kWideLayers layers, the others of
/// one: the GPU's last blocks are short, so that few processors wait for the last of them.
struct Division {
  std::int32_t wide_groups = 0;
};

__host__ __device__ inline std::uint32_t SlicesOf(const Geometry& geometry, std::uint32_t layers) {
  return 2 * ((static_cast<std::uint32_t>(geometry.layers) + layers - 1) / layers);
}

__device__ inline Part PartOf(const Geometry& geometry, const Division& division) {
  const std::uint32_t wide_slices = SlicesOf(geometry, kWideLayers);
  const std::uint32_t wide_blocks = static_cast<std::uint32_t>(division.wide_groups) * wide_slices;
  const bool wide = blockIdx.x < wide_blocks;
  const std::uint32_t layers = wide ? kWideLayers : 1;
  const std::uint32_t number = wide ? blockIdx.x : blockIdx.x - wide_blocks;
  const std::uint32_t slices = wide ? wide_slices : SlicesOf(geometry, 1);
  const std::uint32_t group = number / slices, slice = number - group * slices;
  Part part;
  part.first_tile = (static_cast<std::int32_t>(group) + (wide ? 0 : division.wide_groups)) * kWarps;
  part.first_layer = static_cast<std::int32_t>(slice / 2 * layers);
  part.layers = min(static_cast<std::int32_t>(layers), geometry.layers - part.first_layer);
  part.values = slice % 2 != 0;
  return part;
}

/// The bytes of a segment that a warp needs, cut into sectors: where the lane's one begins. 0,
/// which does no harm, where there are more lanes than sectors.
template <KvCodec kCodec>
__device__ std::int64_t SectorOf(const FactDescriptor& fact, bool values, std::int32_t token,
                                 std::int32_t rows, int lane) {
  const auto row_bytes = static_cast<std::int32_t>(CodeRowBytes(kCodec, kDim));
  const std::int64_t parameters = values ? ValueParameterBytes(kCodec, fact.tokens, kDim)
                                         : KeyParameterBytes(kCodec, fact.tokens, kDim);
  const std::int32_t code_sectors = rows * row_bytes / kSectorBytes;
  if (lane < code_sectors) {
    return parameters + std::int64_t{token} * row_bytes + lane * kSectorBytes;
  }
  // Scales, and as many zeros half of the parameters further on.
  const std::int32_t sectors = values ? 1 : kDim * 2 / kSectorBytes, sector = lane - code_sectors;
  if (sector >= 2 * sectors) return 0;
  const std::int64_t scales = values ? std::int64_t{token} * ValueGroupsOf(kDim) * 2
                                     : std::int64_t{KeyGroupOf(fact.tokens, token)} * kDim * 2;
  return sector < sectors ? scales + sector * kSectorBytes
                          : scales + parameters / 2 + (sector - sectors) * kSectorBytes;
}

/// A lane and what it moves: its chunks of a token's rows of all heads of some layers.
struct Lane {
  const std::uint8_t* ahead = nullptr;  ///< its sector of the next segment to ask for
  std::int64_t segment_stride = 0;
  std::int32_t heads = 0, layers = 0;
  int lane = 0, column = 0;
};

/// \param bases the layers' tensors. `row_offset()` says where head 0's row lies in each: asked for
/// behind the first copies, because it waits for the block table. `ready(layer)` readies `rotate`.
template <ScalarType kType, typename Row, typename RowOffset, typename Ready, typename Rotate>
__device__ void InjectLayers(Row row, typename Row::Stage* stages, Lane lane,
                             std::uint8_t* const* bases, std::int64_t head_stride,
                             RowOffset row_offset, Ready ready, Rotate rotate) {
  std::uint8_t* base = bases[0];
  std::int32_t left = lane.heads * lane.layers, to_fetch = left, stage = 0;
  // A group of copies for each head, behind the last ones an empty one, so that the newest groups
  // are always those of the heads to come.
  const auto fetch = [&](std::int32_t to) {
    if (to_fetch > 0) row.Fetch(stages[to], lane.lane, lane.segment_stride), --to_fetch;
    CommitCopies();
  };
  const auto prefetch = [&] {
    PrefetchL2(lane.ahead);
    lane.ahead += lane.segment_stride;
  };
  for (std::int32_t head = 0; head < lane.heads; ++head) prefetch();
#pragma unroll
  for (int i = 0; i < kStages; ++i) fetch(i);
  const std::int64_t offset = row_offset() + lane.column * kChunk * 2;
  for (std::int32_t layer = 0; layer < lane.layers; ++layer) {
    std::uint8_t* to = base + offset;
    if (layer + 1 < lane.layers) base = bases[layer + 1];
    ready(layer);
    for (std::int32_t head = 0; head < lane.heads; ++head, --left) {
      WaitForCopies<kStages - 1>();
      float x[kChunk], y[kChunk];
      Row::Decode(stages[stage], lane.lane, 0, lane.column, x);
      Row::Decode(stages[stage], lane.lane, 1, lane.column, y);
      rotate(x, y);
      const uint4 a = Chunk8<kType>::Encode(x), b = Chunk8<kType>::Encode(y);
      fetch(stage);
      stage = stage + 1 == kStages ? 0 : stage + 1;
      if (left > lane.heads) prefetch();
      StoreGlobal(to, a);
      StoreGlobal(to + kBetween * 2, b);
      to += head_stride;
    }
  }
}

template <KvCodec kCodec, ScalarType kType>
__global__ __launch_bounds__(kThreads, kBlocksAtOnce) void QuantisedInjectKernel(
    const Geometry geometry, const __grid_constant__ Arguments arguments, const Division division) {
  union Stages {
    typename KeyRow<kCodec>::Stage keys[kStages];
    typename ValueRow<kCodec>::Stage values[kStages];
  };
  __shared__ Stages all_stages[kWarps];
  const Work work = WorkOf(arguments);
  const Part part = PartOf(geometry, division);
  const int lane = static_cast<int>(threadIdx.x) & 31, warp = static_cast<int>(threadIdx.x) >> 5;
  const std::int32_t* layer_group = geometry.layer_group + part.first_layer;
  std::int32_t next_group = part.values ? -1 : __ldg(layer_group);
  // Behind the last tile this is one without tokens.
  const TokenTile tile = FindTile(work, part.first_tile + warp);
  const FactDescriptor& fact = tile.fact;
  const int row = lane / kRowLanes, column = lane % kRowLanes;
  if (row >= tile.count) return;
  Stages& stages = all_stages[warp];
  const std::int32_t token = tile.first + row;
  const SegmentSizes sizes = SegmentSizesOf(kCodec, fact.tokens, kDim, kDim);
  Lane own;
  own.segment_stride = sizes.key_bytes + sizes.value_bytes;
  own.heads = geometry.heads;
  own.layers = part.layers;
  own.lane = lane;
  own.column = column;
  const std::uint8_t* segment = fact.payload +
                                own.segment_stride * geometry.heads * part.first_layer +
                                (part.values ? sizes.key_bytes : 0);
  own.ahead =
      segment + SectorOf<kCodec>(fact, part.values, fact.first + tile.first, tile.count, lane);
  const CacheSide& side = part.values ? geometry.values : geometry.keys;
  std::uint8_t* const* bases = side.base + part.first_layer;
  const auto row_offset = [&] { return RowOffsetOf(geometry, side, work, fact, token); };
  if (part.values) {
    const ValueRow<kCodec> from(segment, fact, fact.first + token, column);
    InjectLayers<kType>(
        from, stages.values, own, bases, side.head_stride, row_offset, [](std::int32_t) {},
        [](float*, float*) {});
    return;
  }
  const KeyRow<kCodec> from(segment, fact, fact.first + token, column);
  LaneColumns columns = RotatedColumns<RopePairing::kHalf>(column, kDim, kDim);
  LaneAngles angles;
  std::int32_t group = -1;
  InjectLayers<kType>(
      from, stages.keys, own, bases, side.head_stride, row_offset,
      [&](std::int32_t layer) {
        columns.rotate_a = columns.rotate_b = next_group >= 0;
        if (next_group != group && next_group >= 0) {
          angles.Load<RopePairing::kHalf>(AnglesOfGroup(geometry, next_group, fact, token),
                                          columns);
        }
        group = next_group;
        if (layer + 1 < part.layers) next_group = __ldg(layer_group + layer + 1);
      },
      [&](float* x, float* y) { RotateChunks<RopePairing::kHalf, false>(x, y, angles, columns); });
}

using Kernel = void (*)(Geometry, Arguments, Division);

template <KvCodec kCodec>
Kernel WithType(ScalarType type) {
  return type == ScalarType::kBF16 ? QuantisedInjectKernel<kCodec, ScalarType::kBF16>
                                   : QuantisedInjectKernel<kCodec, ScalarType::kF16>;
}

Kernel KernelFor(const Geometry& geometry) {
  return geometry.codec == KvCodec::kInt8 ? WithType<KvCodec::kInt8>(geometry.type)
                                          : WithType<KvCodec::kInt4>(geometry.type);
}

}  // namespace

cudaError_t PrepareQuantisedInject(const Geometry& geometry) {
  return Prepare(KernelFor(geometry));
}

cudaError_t LaunchQuantisedInject(const Geometry& geometry, const Arguments& arguments,
                                  std::int64_t tiles, cudaStream_t stream) {
  const std::int64_t groups = (tiles + kWarps - 1) / kWarps;
  const std::int64_t wide_slices = SlicesOf(geometry, kWideLayers);
  const std::int64_t narrow_slices = SlicesOf(geometry, 1);
  // As many blocks of one layer as run at once.
  const std::int64_t narrow = std::min<std::int64_t>(
      groups, (geometry.processors * kBlocksAtOnce + narrow_slices - 1) / narrow_slices);
  const std::int64_t blocks = (groups - narrow) * wide_slices + narrow * narrow_slices;
  if (blocks > INT32_MAX) return cudaErrorInvalidConfiguration;
  const Division division{static_cast<std::int32_t>(groups - narrow)};
  KernelFor(geometry)<<<static_cast<unsigned>(blocks), kThreads, 0, stream>>>(geometry, arguments,
                                                                              division);
  return cudaGetLastError();
}

}  // namespace inferscale::kernels::cuda
