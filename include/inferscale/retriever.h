#ifndef INFERSCALE_RETRIEVER_H_
#define INFERSCALE_RETRIEVER_H_

/// \file retriever.h
/// Retriever: exact nearest facts of an owner, fused with keyword hits. Guarantees: only facts of
/// the scopes asked for are returned, at most once each; a deleted fact or an old text is never
/// returned once the delete or update was answered. Thread-safe; searches of different scopes run
/// in parallel.

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "inferscale/catalog.h"
#include "inferscale/embedder.h"
#include "inferscale/result.h"
#include "inferscale/types.h"

namespace inferscale {

class VectorMemory;  // retrieval/vector_memory.h

struct SearchRequest {
  std::vector<ScopeId> scopes;
  std::string query;
  std::int32_t top_k = 20;
  double threshold = 0.0;  ///< least semantic score; keyword hits pass it too
  const Filter* filter = nullptr;
  bool show_expired = false;
  bool keyword = true;  ///< false: vectors only
};

struct SearchHit {
  Fact fact;
  double score = 0;     ///< fused, 0…1
  double semantic = 0;  ///< cosine
  double keyword = 0;   ///< BM25 after the logistic, 0 without a hit
};

struct RetrieverOptions {
  std::size_t budget_bytes = std::size_t{1} << 30;  ///< of vectors in memory, all scopes together
  std::shared_ptr<VectorMemory> vectors;            ///< that memory; null: this process's
  std::function<TimeMs()> clock;                    ///< the catalog's; empty: the system's
};

class Retriever {
 public:
  /// Both must outlive the retriever.
  Retriever(Catalog& catalog, Embedder& embedder, RetrieverOptions options = {});
  ~Retriever();

  /// Best first; equal scores: newer first. Superseded facts are left out; facts without a vector
  /// yet are found by keyword. A blank query or an unknown scope finds nothing. kInvalidArgument:
  /// top_k outside 0…10,000 or a threshold that is not a number; otherwise the embedder's or
  /// catalog's error. While the embedder is not to be reached, keywords alone are searched.
  /// \param embedding if not null: why the query was not embedded, or OK.
  Result<std::vector<SearchHit>> Search(const SearchRequest& request, Status* embedding = nullptr);
  std::size_t MemorySizeBytes() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace inferscale

#endif  // INFERSCALE_RETRIEVER_H_
