#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <vector>

#include "kernels/kernels.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/top_k.cc"
#include "hwy/foreach_target.h"  // must come before highway.h
#include "hwy/highway.h"
#include "kernels/cpu/half-inl.h"

#ifndef INFERSCALE_KERNELS_CPU_TOP_K_HEAP_
#define INFERSCALE_KERNELS_CPU_TOP_K_HEAP_
namespace inferscale::kernels::cpu {

struct Hit {
  float score;
  std::int64_t row;
};

inline bool IsBetter(const Hit& a, const Hit& b) {
  return a.score != b.score ? a.score > b.score : a.row < b.row;
}

/// The k best hits so far, the worst of them on top. Rows come in ascending order.
class BestHits {
 public:
  explicit BestHits(std::size_t capacity) : capacity_(capacity) { hits_.reserve(capacity); }

  /// Whether a score is good enough to be kept. An equal one of a later row is not.
  bool Wants(float score) const { return hits_.size() < capacity_ || score > threshold_; }

  void Offer(float score, std::int64_t row) {
    if (!(score == score)) score = -std::numeric_limits<float>::infinity();
    if (!Wants(score)) return;
    if (hits_.size() == capacity_) {
      std::pop_heap(hits_.begin(), hits_.end(), IsBetter);
      hits_.back() = {score, row};
    } else {
      hits_.push_back({score, row});
    }
    std::push_heap(hits_.begin(), hits_.end(), IsBetter);
    threshold_ = hits_.front().score;
  }

  const std::vector<Hit>& Sorted() {
    std::sort(hits_.begin(), hits_.end(), IsBetter);
    return hits_;
  }

 private:
  std::size_t capacity_;
  std::vector<Hit> hits_;
  float threshold_ = -std::numeric_limits<float>::infinity();
};

}  // namespace inferscale::kernels::cpu
#endif  // INFERSCALE_KERNELS_CPU_TOP_K_HEAP_

HWY_BEFORE_NAMESPACE();
namespace inferscale::kernels::cpu::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

constexpr std::size_t kRowsAtOnce = 4;

// Inner products of `kRows` rows. Each is summed in the same order whatever kRows is, so that equal
// rows have equal scores. \param query padded with zeros to whole vectors
template <std::size_t kRows>
HWY_INLINE void Score(const std::uint16_t* const* rows, std::size_t dim,
                      const float* HWY_RESTRICT query, float* scores) {
  const hn::ScalableTag<float> df;
  using V = hn::Vec<decltype(df)>;
  const std::size_t lanes = hn::Lanes(df);
  V sum0 = hn::Zero(df), sum1 = sum0, sum2 = sum0, sum3 = sum0;
  const auto step = [&](const std::uint16_t* r0, const std::uint16_t* r1, const std::uint16_t* r2,
                        const std::uint16_t* r3, const float* q) {
    const V weights = hn::LoadU(df, q);
    sum0 = hn::MulAdd(LoadHalf(df, r0), weights, sum0);
    if constexpr (kRows > 1) {
      sum1 = hn::MulAdd(LoadHalf(df, r1), weights, sum1);
      sum2 = hn::MulAdd(LoadHalf(df, r2), weights, sum2);
      sum3 = hn::MulAdd(LoadHalf(df, r3), weights, sum3);
    }
  };
  const std::uint16_t* r[4];
  for (std::size_t j = 0; j < 4; ++j) r[j] = rows[j < kRows ? j : 0];
  std::size_t i = 0;
  // The scan is bound by memory and the hardware's prefetchers stop at page borders: asking for the
  // rows two batches ahead keeps more lines on their way. An address past the end does no harm.
  const std::size_t ahead = 2 * kRowsAtOnce * dim;
  for (; i + lanes <= dim; i += lanes) {
    for (std::size_t j = 0; j < kRows; ++j) __builtin_prefetch(r[j] + i + ahead);
    step(r[0] + i, r[1] + i, r[2] + i, r[3] + i, query + i);
  }
  if (i < dim) {
    HWY_ALIGN std::uint16_t tails[4][hn::MaxLanes(df)] = {};
    for (std::size_t j = 0; j < kRows; ++j) std::copy(r[j] + i, r[j] + dim, tails[j]);
    step(tails[0], tails[1], tails[2], tails[3], query + i);
  }
  scores[0] = hn::GetLane(hn::SumOfLanes(df, sum0));
  if constexpr (kRows > 1) {
    scores[1] = hn::GetLane(hn::SumOfLanes(df, sum1));
    scores[2] = hn::GetLane(hn::SumOfLanes(df, sum2));
    scores[3] = hn::GetLane(hn::SumOfLanes(df, sum3));
  }
}

void ScanImpl(const std::uint16_t* rows, std::int64_t row_count, std::int32_t dim,
              const float* query, const std::uint64_t* allowed, BestHits* best) {
  const std::size_t size = static_cast<std::size_t>(dim);
  std::int64_t batch[kRowsAtOnce];
  const std::uint16_t* pointers[kRowsAtOnce];
  std::size_t batched = 0;
  const auto flush = [&] {
    float scores[kRowsAtOnce];
    if (batched == kRowsAtOnce) {
      Score<kRowsAtOnce>(pointers, size, query, scores);
    } else {
      for (std::size_t j = 0; j < batched; ++j) Score<1>(pointers + j, size, query, scores + j);
    }
    for (std::size_t j = 0; j < batched; ++j) best->Offer(scores[j], batch[j]);
    batched = 0;
  };
  const auto add = [&](std::int64_t row) {
    batch[batched] = row;
    pointers[batched] = rows + static_cast<std::size_t>(row) * size;
    if (++batched == kRowsAtOnce) flush();
  };
  for (std::int64_t start = 0; start < row_count; start += 64) {
    const std::int64_t count = std::min<std::int64_t>(64, row_count - start);
    std::uint64_t bits = allowed == nullptr ? ~std::uint64_t{0} : allowed[start / 64];
    if (count < 64) bits &= (std::uint64_t{1} << count) - 1;
    for (; bits != 0; bits &= bits - 1) add(start + __builtin_ctzll(bits));
  }
  flush();
}

// Floats that a padded query must have after its end.
std::size_t PaddingImpl() { return hn::Lanes(hn::ScalableTag<float>()); }

}  // namespace inferscale::kernels::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace inferscale::kernels {
namespace cpu {

HWY_EXPORT(ScanImpl);
HWY_EXPORT(PaddingImpl);

}  // namespace cpu

std::int32_t TopK(const std::uint16_t* rows, std::int64_t row_count, std::int32_t dim,
                  const float* query, const std::uint64_t* allowed, std::int32_t k,
                  std::int64_t* out_rows, float* out_scores) {
  std::int64_t elements = 0;
  if (row_count < 0 || dim <= 0 || k < 0 || __builtin_mul_overflow(row_count, dim, &elements)) {
    return -1;
  }
  if (row_count == 0 || k == 0) return 0;
  if (rows == nullptr || query == nullptr || out_rows == nullptr || out_scores == nullptr)
    return -1;
  std::vector<float> padded(static_cast<std::size_t>(dim) +
                            HWY_DYNAMIC_DISPATCH(cpu::PaddingImpl)());
  std::copy(query, query + dim, padded.begin());
  cpu::BestHits best(static_cast<std::size_t>(std::min<std::int64_t>(k, row_count)));
  HWY_DYNAMIC_DISPATCH(cpu::ScanImpl)(rows, row_count, dim, padded.data(), allowed, &best);
  std::int32_t written = 0;
  for (const cpu::Hit& hit : best.Sorted()) {
    out_rows[written] = hit.row;
    out_scores[written++] = hit.score;
  }
  return written;
}

}  // namespace inferscale::kernels
#endif  // HWY_ONCE
