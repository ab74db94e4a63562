#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <string>
#include <vector>

#include <cuda_runtime.h>

#include "kernels/cuda/cuda_status.h"
#include "kernels/cuda/top_k.cuh"
#include "kernels/cuda/top_k_select.cuh"
#include "kernels/kernels.h"

namespace inferscale::kernels {
namespace cuda {
namespace {

/// Ranges up to this many rows have a value a row.
constexpr std::int64_t kSmallRange = 8192;
constexpr std::int64_t kAlignment = 256;
constexpr std::uint32_t kLeastCapacity = 4096;

constexpr std::int64_t Aligned(std::int64_t bytes) {
  return (bytes + kAlignment - 1) / kAlignment * kAlignment;
}

Status CheckCuda(cudaError_t error, const char* what) {
  if (error == cudaSuccess) return OkStatus();
  const Status status = ToStatus(error, what).WithContext("top-k on the GPU");
  const bool missing = error == cudaErrorNoDevice || error == cudaErrorInsufficientDriver ||
                       error == cudaErrorInvalidDevice;
  return missing ? Unsupported(status.message()) : status;
}

/// A query as tensor cores take it: times a power of two, so that f16 holds it whatever its length.
struct HalfQuery {
  bool usable = false;
  float margin = 0;
};

/// \param out [pitch] f16
HalfQuery MakeHalfQuery(const float* vector, std::int32_t dim, std::int32_t pitch,
                        double norm_bound, std::uint16_t* out) {
  float largest = 0;
  for (std::int32_t i = 0; i < dim; ++i) {
    const float size = std::fabs(vector[i]);
    if (!std::isfinite(size)) return {};
    largest = std::max(largest, size);
  }
  if (largest == 0) return {};
  int exponent = 0;
  (void)std::frexp(largest, &exponent);
  std::vector<float> scaled(static_cast<std::size_t>(pitch), 0.0f);
  double squares = 0;
  for (std::int32_t i = 0; i < dim; ++i) {
    const float value = std::ldexp(vector[i], -exponent);
    scaled[static_cast<std::size_t>(i)] = value;
    squares += double{value} * value;
  }
  FloatToHalf(scaled.data(), out, scaled.size());
  // An f16 is off by 2^-11 of its size, or 2^-25 where it is subnormal. A tensor core adds 16 exact
  // products to a sum with an error of less than 18 units of 2^-22 of what they add up to; the
  // exact sum in f32 has one of 2^-24 a term of the longest chain. By Cauchy and Schwarz the
  // products' sizes add up to at most the product of the norms.
  const double steps = pitch / 16 + 1;
  const double relative = std::ldexp(1.0, -11) + 18 * steps * std::ldexp(1.0, -22) +
                          (steps + 16) * std::ldexp(1.0, -24);
  const double margin =
      norm_bound * (std::sqrt(squares) * relative + std::sqrt(double(dim)) * std::ldexp(1.0, -25));
  return {true, static_cast<float>(margin * 1.01)};
}

class CudaTopK : public DeviceTopK {
 public:
  CudaTopK(int ordinal, const TopKSetup& setup) : ordinal_(ordinal), setup_(setup) {}
  ~CudaTopK() override;

  Status Allocate();
  Result<std::int32_t> Search(std::span<const TopKQuery> queries, std::uintptr_t stream) override;
  std::int32_t Hits(std::int32_t search, std::int32_t query, std::int64_t* rows,
                    float* scores) const override;

 private:
  struct Slot {
    std::uint8_t* input = nullptr;       // pinned
    unsigned long long* hits = nullptr;  // pinned
    cudaEvent_t done = nullptr;
    bool started = false;
    std::vector<std::int32_t> k;
  };
  struct Plan {
    std::vector<OwnJob> own;
    std::uint32_t own_blocks = 0;
    std::vector<SharedJob> shared;
    std::int64_t bytes = 0;  // of the input
  };

  template <RowType kType>
  Status Prepare();
  template <RowType kType>
  Status Launch(const Plan& plan, std::uint32_t queries, cudaStream_t stream);
  Plan MakePlan(std::span<const TopKQuery> queries, std::uint8_t* input) const;

  std::int64_t JobsOffset() const {
    return Aligned(setup_.max_queries * std::int64_t{sizeof(SearchQuery)});
  }
  std::int64_t ColumnsOffset() const {
    return JobsOffset() + Aligned(setup_.max_queries * std::int64_t{sizeof(OwnJob)});
  }
  std::int64_t VectorsOffset() const {
    return ColumnsOffset() + Aligned(setup_.max_queries * std::int64_t{4});
  }
  std::int64_t HalvesOffset() const {
    return VectorsOffset() + Aligned(std::int64_t{setup_.max_queries} * pitch_ * 4);
  }
  std::int64_t BitmapsOffset() const {
    return HalvesOffset() + Aligned(std::int64_t{setup_.max_queries} * pitch_ * 2);
  }
  std::int64_t BitmapBytes(std::int64_t rows) const { return Aligned((rows + 63) / 64 * 8); }

  const int ordinal_;
  const TopKSetup setup_;
  const std::int32_t pitch_ = RowPitch(setup_.dim);
  std::uint32_t capacity_ = kLeastCapacity;
  std::uint32_t value_pitch_ = 0;
  int processors_ = 0;
  int column_tiles_ = 0;  // of the widest ScanShared; 0: a query is too long for it
  std::uint8_t* input_ = nullptr;
  std::uint32_t* values_ = nullptr;
  unsigned long long* hits_ = nullptr;
  std::array<Slot, kDeviceSearches> slots_;
  std::int32_t next_slot_ = 0;
};

CudaTopK::~CudaTopK() {
  const DeviceScope device(ordinal_);
  for (Slot& slot : slots_) {
    if (slot.started) (void)cudaEventSynchronize(slot.done);
    if (slot.done != nullptr) (void)cudaEventDestroy(slot.done);
    (void)cudaFreeHost(slot.input);
    (void)cudaFreeHost(slot.hits);
  }
  (void)cudaFree(input_);
  (void)cudaFree(values_);
  (void)cudaFree(hits_);
}

Status CudaTopK::Allocate() {
  const DeviceScope device(ordinal_);
  INFERSCALE_RETURN_IF_ERROR(CheckCuda(device.error(), "choosing it"));
  INFERSCALE_RETURN_IF_ERROR(CheckCuda(
      cudaDeviceGetAttribute(&processors_, cudaDevAttrMultiProcessorCount, ordinal_), "its size"));
  int shared_bytes = 0;
  INFERSCALE_RETURN_IF_ERROR(CheckCuda(
      cudaDeviceGetAttribute(&shared_bytes, cudaDevAttrMaxSharedMemoryPerBlockOptin, ordinal_),
      "its shared memory"));
  constexpr std::size_t kStaticBytes = 1024;
  const std::size_t usable = static_cast<std::size_t>(shared_bytes) - kStaticBytes;
  const auto pitch = static_cast<std::uint32_t>(pitch_);
  for (const int tiles : {8, 2}) {
    if (column_tiles_ == 0 && SharedScanBytes(pitch, tiles) <= usable) column_tiles_ = tiles;
  }
  while (capacity_ < 4 * static_cast<std::uint32_t>(setup_.max_k)) capacity_ *= 2;
  if (SelectBytes(capacity_, pitch) > usable) {
    return Unsupported("top-k on the GPU: this one has " + std::to_string(shared_bytes) +
                       " bytes of shared memory a block, too few for k = " +
                       std::to_string(setup_.max_k) + "; search on the CPU");
  }
  INFERSCALE_RETURN_IF_ERROR(setup_.type == RowType::kF16 ? Prepare<RowType::kF16>()
                                                          : Prepare<RowType::kInt8>());

  const std::int64_t small = std::min(setup_.max_rows, kSmallRange);
  const std::int64_t groups = (setup_.max_rows + kGroupRows - 1) / kGroupRows;
  value_pitch_ = static_cast<std::uint32_t>(Aligned(std::max(small, groups)));
  const auto queries = static_cast<std::size_t>(setup_.max_queries);
  const auto input_bytes =
      static_cast<std::size_t>(BitmapsOffset() + setup_.max_queries * BitmapBytes(setup_.max_rows));
  const std::size_t hit_bytes = queries * static_cast<std::size_t>(setup_.max_k) * 8;
  INFERSCALE_RETURN_IF_ERROR(CheckCuda(cudaMalloc(&input_, input_bytes), "memory for queries"));
  INFERSCALE_RETURN_IF_ERROR(
      CheckCuda(cudaMalloc(&values_, queries * value_pitch_ * 4), "memory for values"));
  INFERSCALE_RETURN_IF_ERROR(CheckCuda(cudaMalloc(&hits_, hit_bytes), "memory for hits"));
  for (Slot& slot : slots_) {
    INFERSCALE_RETURN_IF_ERROR(
        CheckCuda(cudaMallocHost(&slot.input, input_bytes), "pinned memory for queries"));
    INFERSCALE_RETURN_IF_ERROR(
        CheckCuda(cudaMallocHost(&slot.hits, hit_bytes), "pinned memory for hits"));
    INFERSCALE_RETURN_IF_ERROR(
        CheckCuda(cudaEventCreateWithFlags(&slot.done, cudaEventDisableTiming), "an event"));
  }
  return OkStatus();
}

template <RowType kType>
Status CudaTopK::Prepare() {
  const auto pitch = static_cast<std::uint32_t>(pitch_);
  const auto allow = [](auto* kernel, std::size_t bytes) {
    return CheckCuda(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                          static_cast<int>(bytes)),
                     "shared memory of a kernel (was it built for this GPU?)");
  };
  if (column_tiles_ >= 2) {
    INFERSCALE_RETURN_IF_ERROR(allow(ScanShared<kType, 2>, SharedScanBytes(pitch, 2)));
  }
  if (column_tiles_ >= 8) {
    INFERSCALE_RETURN_IF_ERROR(allow(ScanShared<kType, 8>, SharedScanBytes(pitch, 8)));
  }
  INFERSCALE_RETURN_IF_ERROR(allow(ScanOwn<kType>, std::size_t{pitch} * 4));
  return allow(Select<kType>, SelectBytes(capacity_, pitch));
}

CudaTopK::Plan CudaTopK::MakePlan(std::span<const TopKQuery> queries, std::uint8_t* input) const {
  Plan plan;
  auto* const described = reinterpret_cast<SearchQuery*>(input);
  auto* const columns = reinterpret_cast<std::uint32_t*>(input + ColumnsOffset());
  auto* const vectors = reinterpret_cast<float*>(input + VectorsOffset());
  auto* const halves = reinterpret_cast<std::uint16_t*>(input + HalvesOffset());
  const auto pitch = static_cast<std::size_t>(pitch_), dim = static_cast<std::size_t>(setup_.dim);

  plan.bytes = BitmapsOffset();
  std::vector<std::uint32_t> order;
  for (std::uint32_t i = 0; i < queries.size(); ++i) {
    const TopKQuery& query = queries[i];
    const std::int64_t count = query.range.count;
    const std::int64_t group = count <= kSmallRange ? 1 : kGroupRows;
    SearchQuery& out = described[i];
    out = {query.range.rows,
           query.range.scales,
           nullptr,
           static_cast<std::uint32_t>(count),
           static_cast<std::uint32_t>(query.k),
           static_cast<std::uint32_t>(group),
           static_cast<std::uint32_t>((count + group - 1) / group),
           0.0f};
    float* const vector = vectors + i * pitch;
    std::copy(query.vector, query.vector + dim, vector);
    std::fill(vector + dim, vector + pitch, 0.0f);
    if (query.allowed != nullptr && count > 0) {
      std::memcpy(input + plan.bytes, query.allowed,
                  static_cast<std::size_t>((count + 63) / 64 * 8));
      out.allowed = reinterpret_cast<const std::uint64_t*>(input_ + plan.bytes);
      plan.bytes += BitmapBytes(count);
    }
    order.push_back(i);
  }

  std::stable_sort(order.begin(), order.end(), [&](std::uint32_t a, std::uint32_t b) {
    const RowRange &x = queries[a].range, &y = queries[b].range;
    return x.rows != y.rows ? x.rows < y.rows : x.count < y.count;
  });
  const auto add_own = [&](std::uint32_t query) {
    if (described[query].count == 0) return;
    plan.own.push_back({plan.own_blocks, query});
    plan.own_blocks += (described[query].count + kOwnRows - 1) / kOwnRows;
  };
  std::uint32_t used = 0;  // columns
  for (std::size_t begin = 0; begin < order.size();) {
    const RowRange& range = queries[order[begin]].range;
    std::size_t end = begin + 1;
    while (end < order.size() && queries[order[end]].range.rows == range.rows &&
           queries[order[end]].range.count == range.count) {
      ++end;
    }
    const bool shared = end - begin > 1 && range.count > kSmallRange && column_tiles_ > 0 &&
                        std::isfinite(range.norm_bound);
    std::uint32_t first = used;
    const auto close = [&] {
      if (used == first) return;
      SharedJob job{};
      job.rows = range.rows;
      job.scales = range.scales;
      job.vectors = reinterpret_cast<const uint4*>(input_ + HalvesOffset() +
                                                   std::int64_t{first} * pitch_ * 2);
      job.column = reinterpret_cast<const std::uint32_t*>(input_ + ColumnsOffset()) + first;
      job.queries = reinterpret_cast<const SearchQuery*>(input_);
      job.values = values_;
      job.value_pitch = value_pitch_;
      job.count = static_cast<std::uint32_t>(range.count);
      job.columns = used - first;
      job.pitch = static_cast<std::uint32_t>(pitch_);
      for (std::uint32_t c = first; c < used; ++c) {
        if (described[columns[c]].allowed != nullptr) job.restricted = true;
      }
      plan.shared.push_back(job);
      first = used;
    };
    for (; begin < end; ++begin) {
      const std::uint32_t query = order[begin];
      HalfQuery half;
      if (shared) {
        half = MakeHalfQuery(queries[query].vector, setup_.dim, pitch_, range.norm_bound,
                             halves + std::size_t{used} * pitch);
      }
      if (!half.usable) {
        add_own(query);
        continue;
      }
      described[query].margin = half.margin;
      columns[used++] = query;
      if (used - first == static_cast<std::uint32_t>(8 * column_tiles_)) close();
    }
    close();
  }
  std::copy(plan.own.begin(), plan.own.end(), reinterpret_cast<OwnJob*>(input + JobsOffset()));
  return plan;
}

template <RowType kType>
Status CudaTopK::Launch(const Plan& plan, std::uint32_t queries, cudaStream_t stream) {
  const auto* const described = reinterpret_cast<const SearchQuery*>(input_);
  const auto* const vectors = reinterpret_cast<const float*>(input_ + VectorsOffset());
  const auto pitch = static_cast<std::uint32_t>(pitch_);
  if (plan.own_blocks > 0) {
    ScanOwn<kType><<<plan.own_blocks, kOwnThreads, std::size_t{pitch} * 4, stream>>>(
        described, reinterpret_cast<const OwnJob*>(input_ + JobsOffset()),
        static_cast<std::uint32_t>(plan.own.size()), vectors, pitch, values_, value_pitch_);
  }
  for (const SharedJob& job : plan.shared) {
    const std::uint32_t tiles = (job.count + kGroupRows - 1) / kGroupRows;
    constexpr std::uint32_t kWarps = kSharedThreads / 32;
    const auto blocks =
        std::min(static_cast<std::uint32_t>(processors_), (tiles + kWarps - 1) / kWarps);
    if (job.columns <= 16) {
      ScanShared<kType, 2><<<blocks, kSharedThreads, SharedScanBytes(pitch, 2), stream>>>(job);
    } else {
      ScanShared<kType, 8><<<blocks, kSharedThreads, SharedScanBytes(pitch, 8), stream>>>(job);
    }
  }
  Select<kType><<<queries, kSelectThreads, SelectBytes(capacity_, pitch), stream>>>(
      described, vectors, pitch, values_, value_pitch_, capacity_, hits_,
      static_cast<std::uint32_t>(setup_.max_k));
  return CheckCuda(cudaGetLastError(), "starting its kernels");
}

Result<std::int32_t> CudaTopK::Search(std::span<const TopKQuery> queries, std::uintptr_t stream) {
  INFERSCALE_RETURN_IF_ERROR(CheckTopKQueries(setup_, queries));
  const DeviceScope device(ordinal_);
  INFERSCALE_RETURN_IF_ERROR(CheckCuda(device.error(), "choosing it"));
  const std::int32_t search = next_slot_;
  Slot& slot = slots_[static_cast<std::size_t>(search)];
  if (slot.started) {
    INFERSCALE_RETURN_IF_ERROR(CheckCuda(cudaEventSynchronize(slot.done), "an earlier search"));
  }
  next_slot_ = (next_slot_ + 1) % kDeviceSearches;
  slot.k.clear();
  for (const TopKQuery& query : queries) slot.k.push_back(query.k);
  if (queries.empty()) return search;

  const Plan plan = MakePlan(queries, slot.input);
  const cudaStream_t on = StreamOf(stream);
  INFERSCALE_RETURN_IF_ERROR(
      CheckCuda(cudaMemcpyAsync(input_, slot.input, static_cast<std::size_t>(plan.bytes),
                                cudaMemcpyHostToDevice, on),
                "copying queries"));
  slot.started = true;
  const auto count = static_cast<std::uint32_t>(queries.size());
  const Status launched = setup_.type == RowType::kF16 ? Launch<RowType::kF16>(plan, count, on)
                                                       : Launch<RowType::kInt8>(plan, count, on);
  const Status copied =
      CheckCuda(cudaMemcpyAsync(slot.hits, hits_,
                                std::size_t{count} * static_cast<std::size_t>(setup_.max_k) * 8,
                                cudaMemcpyDeviceToHost, on),
                "copying hits");
  INFERSCALE_RETURN_IF_ERROR(CheckCuda(cudaEventRecord(slot.done, on), "recording an event"));
  INFERSCALE_RETURN_IF_ERROR(launched);
  INFERSCALE_RETURN_IF_ERROR(copied);
  return search;
}

std::int32_t CudaTopK::Hits(std::int32_t search, std::int32_t query, std::int64_t* rows,
                            float* scores) const {
  const Slot& slot = slots_[static_cast<std::size_t>(search)];
  const std::int32_t k = slot.k[static_cast<std::size_t>(query)];
  const unsigned long long* const hits = slot.hits + std::int64_t{query} * setup_.max_k;
  std::int32_t found = 0;
  for (; found < k && hits[found] != 0; ++found) {
    const auto key = static_cast<std::uint32_t>(hits[found] >> 32);
    const std::uint32_t bits = (key & 0x80000000u) != 0 ? key & 0x7fffffffu : ~key;
    std::memcpy(&scores[found], &bits, sizeof(bits));
    rows[found] = static_cast<std::uint32_t>(~hits[found]);
  }
  return found;
}

}  // namespace
}  // namespace cuda

Result<std::unique_ptr<DeviceTopK>> MakeCudaTopK(int ordinal, const TopKSetup& setup) {
  INFERSCALE_RETURN_IF_ERROR(CheckTopKSetup(setup));
  auto made = std::make_unique<cuda::CudaTopK>(ordinal, setup);
  INFERSCALE_RETURN_IF_ERROR(made->Allocate());
  return std::unique_ptr<DeviceTopK>(std::move(made));
}

}  // namespace inferscale::kernels
