#ifndef INFERSCALE_RETRIEVAL_SCOPE_INDEX_H_
#define INFERSCALE_RETRIEVAL_SCOPE_INDEX_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <shared_mutex>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "inferscale/catalog.h"
#include "inferscale/result.h"
#include "retrieval/vector_memory.h"

namespace inferscale {

/// A set of positions of an index, one bit each.
class Bitmap {
 public:
  Bitmap() = default;
  explicit Bitmap(std::size_t bits) : words_((bits + 63) / 64, 0) {}

  void Set(std::size_t bit) { words_[bit / 64] |= std::uint64_t{1} << (bit % 64); }
  bool Test(std::size_t bit) const { return (words_[bit / 64] >> (bit % 64) & 1) != 0; }
  const std::uint64_t* words() const { return words_.data(); }
  std::size_t MemorySizeBytes() const { return words_.capacity() * sizeof(std::uint64_t); }

 private:
  std::vector<std::uint64_t> words_;
};

/// The vectors of one scope under one embedder, as TopK takes them, and which of them are served
/// when nothing else is asked for (neither superseded nor expired). A copy of what the catalog held
/// at (epoch, revision): appended to while the epoch stays, because the catalog gives each new
/// vector a higher row than all before; loaded anew when it changes.
///
/// Searches hold `mutex()` shared while they use positions; Refresh() takes it for itself.
class ScopeIndex {
 public:
  ScopeIndex(ScopeId scope, std::int32_t dimensions, std::shared_ptr<VectorMemory> memory)
      : scope_(scope), dimensions_(dimensions), memory_(std::move(memory)) {}

  /// Catches up with the catalog where it is behind `info` or `today` ("YYYY-MM-DD").
  Status Refresh(Catalog& catalog, const std::string& embedder_id, const ScopeInfo& info,
                 const std::string& today);

  std::shared_mutex& mutex() const { return mutex_; }
  std::size_t size() const { return row_ids_.size(); }
  const Bitmap& served() const { return served_; }
  const std::string& fact_id(std::uint32_t position) const { return fact_ids_[position]; }
  std::int64_t row(std::uint32_t position) const { return row_ids_[position]; }
  std::optional<std::uint32_t> Find(std::string_view fact_id) const;

  /// \param rows ascending catalog rows; those without a vector here are passed over.
  Bitmap ToBitmap(std::span<const std::int64_t> rows) const;

  /// The `k` best of `allowed` by inner product, best first.
  Result<std::vector<VectorMatch>> TopK(std::span<const float> query, const Bitmap& allowed,
                                        std::int32_t k) const;
  Result<std::vector<float>> Scores(std::span<const float> query,
                                    std::span<const std::uint32_t> positions) const;

  /// Callable without the mutex.
  std::size_t MemorySizeBytes() const { return memory_bytes_.load(std::memory_order_relaxed); }

 private:
  Status Load(Catalog& catalog, const std::string& embedder_id, const ScopeInfo& info);
  Status Append(std::span<const EmbeddingRow> rows);
  void Clear();
  void MeasureMemory();

  const ScopeId scope_;
  const std::int32_t dimensions_;
  const std::shared_ptr<VectorMemory> memory_;
  mutable std::shared_mutex mutex_;

  bool loaded_ = false;
  std::uint64_t epoch_ = 0;
  std::uint64_t revision_ = 0;
  std::string today_;
  std::unique_ptr<VectorRows> vectors_;  ///< [size]; null while empty
  std::vector<std::int64_t> row_ids_;    ///< [size] ascending
  std::deque<std::string> fact_ids_;     ///< [size]; a deque, so that the views below stay valid
  std::unordered_map<std::string_view, std::uint32_t> positions_;
  Bitmap served_;
  bool all_served_ = true;
  std::atomic<std::size_t> memory_bytes_{0};
};

}  // namespace inferscale

#endif  // INFERSCALE_RETRIEVAL_SCOPE_INDEX_H_
