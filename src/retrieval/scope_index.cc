#include "retrieval/scope_index.h"

#include <algorithm>
#include <mutex>
#include <string>

namespace inferscale {

Status ScopeIndex::Refresh(Catalog& catalog, const std::string& embedder_id, const ScopeInfo& info,
                           const std::string& today) {
  {
    std::shared_lock lock(mutex_);
    if (loaded_ && epoch_ >= info.epoch && revision_ >= info.revision && today_ == today) {
      return OkStatus();
    }
  }
  std::unique_lock lock(mutex_);
  const bool current = loaded_ && epoch_ >= info.epoch && revision_ >= info.revision;
  if (current && today_ == today) return OkStatus();
  if (!current) {
    Status loaded = Load(catalog, embedder_id, info);
    if (!loaded.ok()) {
      Clear();
      return loaded;
    }
  }

  FactQuery query;
  query.scopes = {scope_};
  query.show_superseded = false;
  const Result<std::vector<std::int64_t>> matching = catalog.MatchingRows(query);
  if (!matching.ok()) {
    Clear();
    return matching.status();
  }
  const std::vector<std::int64_t>& rows = *matching;
  served_ = ToBitmap(rows);
  all_served_ = true;
  for (std::size_t i = 0; i < row_ids_.size() && all_served_; ++i) all_served_ = served_.Test(i);
  today_ = today;
  MeasureMemory();
  return OkStatus();
}

Status ScopeIndex::Load(Catalog& catalog, const std::string& embedder_id, const ScopeInfo& info) {
  // What is read may be newer than `info`; then the next search reads the rest again and finds it
  // here.
  if (loaded_ && epoch_ == info.epoch) {
    const std::int64_t after = row_ids_.empty() ? -1 : row_ids_.back();
    INFERSCALE_ASSIGN_OR_RETURN(const std::vector<EmbeddingRow> rows,
                                catalog.LoadEmbeddings(scope_, embedder_id, after));
    INFERSCALE_RETURN_IF_ERROR(Append(rows));
    revision_ = info.revision;
    return OkStatus();
  }
  Clear();
  INFERSCALE_ASSIGN_OR_RETURN(const std::vector<EmbeddingRow> rows,
                              catalog.LoadEmbeddings(scope_, embedder_id, -1));
  row_ids_.reserve(rows.size());
  positions_.reserve(rows.size());
  INFERSCALE_RETURN_IF_ERROR(Append(rows));
  epoch_ = info.epoch;
  revision_ = info.revision;
  loaded_ = true;
  return OkStatus();
}

Status ScopeIndex::Append(std::span<const EmbeddingRow> rows) {
  std::int64_t last = row_ids_.empty() ? -1 : row_ids_.back();
  for (const EmbeddingRow& row : rows) {
    if (row.row <= last) {
      return Internal("the catalog gave the vectors of scope " + std::to_string(scope_) +
                      " out of order");
    }
    if (row.vector.size() != static_cast<std::size_t>(dimensions_)) {
      return DataLoss("fact " + row.fact_id + " has a vector of " +
                      std::to_string(row.vector.size()) + " dimensions instead of " +
                      std::to_string(dimensions_) + "; export the memories and import them again");
    }
    last = row.row;
  }
  if (rows.empty()) return OkStatus();
  if (vectors_ == nullptr) {
    INFERSCALE_ASSIGN_OR_RETURN(vectors_, memory_->MakeRows(dimensions_));
  }
  INFERSCALE_RETURN_IF_ERROR(vectors_->Append(rows));
  for (const EmbeddingRow& row : rows) {
    row_ids_.push_back(row.row);
    fact_ids_.push_back(row.fact_id);
    // A fact that was embedded again has a newer row; its old one is no longer among the served.
    positions_[fact_ids_.back()] = static_cast<std::uint32_t>(row_ids_.size() - 1);
  }
  return OkStatus();
}

void ScopeIndex::Clear() {
  loaded_ = false;
  positions_.clear();
  fact_ids_.clear();
  row_ids_.clear();
  vectors_.reset();
  served_ = Bitmap();
  today_.clear();
}

void ScopeIndex::MeasureMemory() {
  std::size_t bytes = (vectors_ == nullptr ? 0 : vectors_->MemorySizeBytes()) +
                      row_ids_.capacity() * sizeof(std::int64_t) + served_.MemorySizeBytes();
  // A node of the map: key, position, hash and link, and its share of the buckets.
  constexpr std::size_t kNodeBytes = sizeof(std::string_view) + 4 * sizeof(void*);
  bytes += fact_ids_.size() * (sizeof(std::string) + kNodeBytes);
  for (const std::string& id : fact_ids_) bytes += id.capacity();
  memory_bytes_.store(bytes, std::memory_order_relaxed);
}

std::optional<std::uint32_t> ScopeIndex::Find(std::string_view fact_id) const {
  const auto found = positions_.find(fact_id);
  if (found == positions_.end()) return std::nullopt;
  return found->second;
}

Bitmap ScopeIndex::ToBitmap(std::span<const std::int64_t> rows) const {
  Bitmap bitmap(row_ids_.size());
  std::size_t position = 0;
  for (const std::int64_t row : rows) {
    while (position < row_ids_.size() && row_ids_[position] < row) ++position;
    if (position == row_ids_.size()) break;
    if (row_ids_[position] == row) bitmap.Set(position);
  }
  return bitmap;
}

Result<std::vector<VectorMatch>> ScopeIndex::TopK(std::span<const float> query,
                                                  const Bitmap& allowed, std::int32_t k) const {
  if (vectors_ == nullptr || k <= 0) return std::vector<VectorMatch>();
  const bool unrestricted = all_served_ && &allowed == &served_;
  return vectors_->TopK(query, unrestricted ? nullptr : allowed.words(), k);
}

Result<std::vector<float>> ScopeIndex::Scores(std::span<const float> query,
                                              std::span<const std::uint32_t> positions) const {
  if (vectors_ == nullptr) return std::vector<float>();
  return vectors_->Scores(query, positions);
}

}  // namespace inferscale
