#include "inferscale/retriever.h"

#include <algorithm>
#include <cmath>
#include <future>
#include <limits>
#include <mutex>
#include <shared_mutex>
#include <thread>
#include <unordered_map>
#include <unordered_set>
#include <utility>

#include <spdlog/spdlog.h>

#include "base/clock.h"
#include "base/utf8.h"
#include "retrieval/fusion.h"
#include "retrieval/scope_index.h"
#include "retrieval/vector_memory.h"

namespace inferscale {
namespace {

constexpr std::int32_t kMaxTopK = 10'000;
/// Keyword search knows no filter: with one, more hits are asked for, because many may fail it.
constexpr std::int32_t kFilteredKeywordHits = 1000;
constexpr std::int64_t kFactsPerPage = 1000;
constexpr std::size_t kMaxKeywordQueryBytes = 4096;

struct Candidate {
  std::string fact_id;
  std::int64_t row = std::numeric_limits<std::int64_t>::max();  ///< facts without a vector are new
  double semantic = 0;
  double keyword = 0;
  double fused = 0;
  bool keyword_hit = false;
  bool embedded = false;
};

using KeywordSearch = std::future<Result<std::vector<Candidate>>>;

/// Takes the hits of a search that is awaited for the first time.
Status Await(KeywordSearch& keyword_search, std::vector<Candidate>& hits) {
  if (!keyword_search.valid()) return OkStatus();
  INFERSCALE_ASSIGN_OR_RETURN(hits, keyword_search.get());
  return OkStatus();
}

bool Before(const Candidate& a, const Candidate& b) {
  if (a.fused != b.fused) return a.fused > b.fused;
  if (a.row != b.row) return a.row > b.row;
  return a.fact_id < b.fact_id;
}

/// What keyword search gets of a query: bounded, and text whatever bytes came in.
std::string KeywordQuery(std::string_view query) {
  std::string text = ToValidUtf8(TruncateUtf8(query, kMaxKeywordQueryBytes));
  std::replace(text.begin(), text.end(), '\0', ' ');
  return text;
}

bool IsZero(std::span<const float> vector) {
  return std::all_of(vector.begin(), vector.end(), [](float x) { return x == 0; });
}

}  // namespace

struct Retriever::Impl {
  Impl(Catalog& catalog_in, Embedder& embedder_in, RetrieverOptions options_in)
      : catalog(catalog_in), embedder(embedder_in), options(std::move(options_in)) {
    if (!options.clock) options.clock = SystemClock();
    if (options.vectors == nullptr) options.vectors = MakeHostVectorMemory();
  }

  Result<std::vector<Candidate>> KeywordHits(const SearchRequest& request,
                                             std::span<const ScopeId> scopes);
  /// \param keyword_search may be under way, or none.
  Result<std::vector<Candidate>> Collect(const SearchRequest& request,
                                         std::span<const ScopeId> scopes,
                                         std::span<const float> query, const std::string& today,
                                         KeywordSearch& keyword_search);
  Status CollectFromScope(const SearchRequest& request, ScopeId scope, std::span<const float> query,
                          const std::string& today, KeywordSearch& keyword_search,
                          std::vector<Candidate>& hits, std::vector<Candidate>& candidates);
  Status DropFiltered(const SearchRequest& request, std::span<const ScopeId> scopes,
                      std::vector<Candidate>& hits);
  Result<std::vector<SearchHit>> Fetch(const SearchRequest& request,
                                       std::span<const ScopeId> scopes,
                                       std::span<const Candidate> ranked, const std::string& today);

  std::shared_ptr<ScopeIndex> Use(ScopeId scope);
  void Forget(ScopeId scope);
  void EvictBut(ScopeId scope);

  struct Entry {
    std::shared_ptr<ScopeIndex> index;
    std::uint64_t last_use = 0;
  };

  Catalog& catalog;
  Embedder& embedder;
  RetrieverOptions options;
  mutable std::mutex mutex;  ///< of what follows; never held during a search or a load
  std::unordered_map<ScopeId, Entry> entries;
  std::uint64_t uses = 0;
};

std::shared_ptr<ScopeIndex> Retriever::Impl::Use(ScopeId scope) {
  std::lock_guard lock(mutex);
  Entry& entry = entries[scope];
  if (!entry.index) {
    entry.index = std::make_shared<ScopeIndex>(scope, embedder.dimensions(), options.vectors);
  }
  entry.last_use = ++uses;
  return entry.index;
}

void Retriever::Impl::Forget(ScopeId scope) {
  std::lock_guard lock(mutex);
  entries.erase(scope);
}

void Retriever::Impl::EvictBut(ScopeId scope) {
  std::lock_guard lock(mutex);
  std::size_t total = 0;
  for (const auto& [id, entry] : entries) total += entry.index->MemorySizeBytes();
  while (total > options.budget_bytes && entries.size() > 1) {
    auto oldest = entries.end();
    for (auto it = entries.begin(); it != entries.end(); ++it) {
      if (it->first == scope) continue;
      if (oldest == entries.end() || it->second.last_use < oldest->second.last_use) oldest = it;
    }
    if (oldest == entries.end()) break;
    total -= oldest->second.index->MemorySizeBytes();
    entries.erase(oldest);
  }
}

/// Adds the scope's nearest facts to `candidates`, and gives those of `hits` that have a vector
/// here their semantic score, or drops them when they are not to be served.
Status Retriever::Impl::CollectFromScope(const SearchRequest& request, ScopeId scope,
                                         std::span<const float> query, const std::string& today,
                                         KeywordSearch& keyword_search,
                                         std::vector<Candidate>& hits,
                                         std::vector<Candidate>& candidates) {
  const Result<ScopeInfo> info = catalog.GetScope(scope);
  if (!info.ok()) {
    if (info.status().code() != StatusCode::kNotFound) return info.status();
    Forget(scope);
    return OkStatus();
  }
  const std::shared_ptr<ScopeIndex> index = Use(scope);
  INFERSCALE_RETURN_IF_ERROR(index->Refresh(catalog, embedder.id(), *info, today));
  EvictBut(scope);

  std::shared_lock lock(index->mutex());
  Bitmap filtered;
  const bool restricted = request.filter != nullptr || request.show_expired;
  if (restricted) {
    FactQuery wanted;
    wanted.scopes = {scope};
    wanted.filter = request.filter;
    wanted.show_expired = request.show_expired;
    wanted.show_superseded = false;
    INFERSCALE_ASSIGN_OR_RETURN(const std::vector<std::int64_t> rows, catalog.MatchingRows(wanted));
    filtered = index->ToBitmap(rows);
  }
  const Bitmap& allowed = restricted ? filtered : index->served();

  const bool by_meaning = !IsZero(query);
  std::vector<VectorMatch> nearest;
  if (by_meaning) {
    INFERSCALE_ASSIGN_OR_RETURN(nearest, index->TopK(query, allowed, CandidatePool(request.top_k)));
  }
  INFERSCALE_RETURN_IF_ERROR(Await(keyword_search, hits));

  std::vector<std::uint32_t> positions;
  std::erase_if(hits, [&](Candidate& hit) {
    const std::optional<std::uint32_t> position = index->Find(hit.fact_id);
    if (!position) return false;
    if (!allowed.Test(*position)) return true;
    hit.row = index->row(*position);
    hit.embedded = true;
    positions.push_back(*position);
    return false;
  });
  if (by_meaning) {
    INFERSCALE_ASSIGN_OR_RETURN(const std::vector<float> scores, index->Scores(query, positions));
    std::unordered_map<std::string_view, float> by_id;
    for (std::size_t i = 0; i < positions.size(); ++i) {
      by_id[index->fact_id(positions[i])] = scores[i];
    }
    for (Candidate& hit : hits) {
      const auto score = by_id.find(hit.fact_id);
      if (score != by_id.end()) hit.semantic = score->second;
    }
  }
  std::unordered_set<std::string_view> hit_ids;
  for (const Candidate& hit : hits) hit_ids.insert(hit.fact_id);
  for (const VectorMatch& match : nearest) {
    if (match.score < request.threshold) break;
    if (hit_ids.contains(index->fact_id(match.position))) continue;
    Candidate candidate;
    candidate.fact_id = index->fact_id(match.position);
    candidate.row = index->row(match.position);
    candidate.semantic = match.score;
    candidate.embedded = true;
    candidates.push_back(std::move(candidate));
  }
  return OkStatus();
}

/// Hits without a vector were compared with no bitmap: keeps those that pass the filter.
Status Retriever::Impl::DropFiltered(const SearchRequest& request, std::span<const ScopeId> scopes,
                                     std::vector<Candidate>& hits) {
  const auto open =
      std::count_if(hits.begin(), hits.end(), [](const Candidate& hit) { return !hit.embedded; });
  if (open == 0) return OkStatus();
  std::unordered_set<std::string> passing;
  FactQuery wanted;
  wanted.scopes.assign(scopes.begin(), scopes.end());
  wanted.filter = request.filter;
  wanted.show_expired = request.show_expired;
  wanted.show_superseded = false;
  wanted.limit = kFactsPerPage;
  while (true) {
    INFERSCALE_ASSIGN_OR_RETURN(const std::vector<Fact> facts, catalog.ListFacts(wanted));
    for (const Fact& fact : facts) passing.insert(fact.id);
    if (static_cast<std::int64_t>(facts.size()) < kFactsPerPage) break;
    wanted.offset += kFactsPerPage;
  }
  std::erase_if(
      hits, [&](const Candidate& hit) { return !hit.embedded && !passing.contains(hit.fact_id); });
  return OkStatus();
}

Result<std::vector<Candidate>> Retriever::Impl::KeywordHits(const SearchRequest& request,
                                                            std::span<const ScopeId> scopes) {
  const std::int32_t pool = CandidatePool(request.top_k);
  const std::int32_t limit = request.filter ? std::max(pool, kFilteredKeywordHits) : pool;
  const std::string keyword_query = KeywordQuery(request.query);
  INFERSCALE_ASSIGN_OR_RETURN(const std::vector<KeywordHit> found,
                              catalog.KeywordSearch(scopes, keyword_query, limit));
  const std::int32_t terms = CountQueryTerms(keyword_query);
  std::vector<Candidate> hits;
  std::unordered_set<std::string_view> seen;
  for (const KeywordHit& hit : found) {
    if (!seen.insert(hit.fact_id).second) continue;
    Candidate candidate;
    candidate.fact_id = hit.fact_id;
    candidate.keyword = KeywordScore(hit.bm25, terms);
    candidate.keyword_hit = true;
    hits.push_back(std::move(candidate));
  }
  return hits;
}

Result<std::vector<Candidate>> Retriever::Impl::Collect(const SearchRequest& request,
                                                        std::span<const ScopeId> scopes,
                                                        std::span<const float> query,
                                                        const std::string& today,
                                                        KeywordSearch& keyword_search) {
  std::vector<Candidate> hits, candidates;
  for (const ScopeId scope : scopes) {
    INFERSCALE_RETURN_IF_ERROR(
        CollectFromScope(request, scope, query, today, keyword_search, hits, candidates));
  }
  INFERSCALE_RETURN_IF_ERROR(Await(keyword_search, hits));
  if (request.filter != nullptr) {
    INFERSCALE_RETURN_IF_ERROR(DropFiltered(request, scopes, hits));
  }
  const double max_possible = hits.empty() ? 1.0 : 2.0;
  candidates.insert(candidates.end(), std::make_move_iterator(hits.begin()),
                    std::make_move_iterator(hits.end()));
  for (Candidate& candidate : candidates) {
    candidate.fused = FusedScore(candidate.semantic, candidate.keyword, max_possible);
  }
  std::sort(candidates.begin(), candidates.end(), Before);
  return candidates;
}

Result<std::vector<SearchHit>> Retriever::Impl::Fetch(const SearchRequest& request,
                                                      std::span<const ScopeId> scopes,
                                                      std::span<const Candidate> ranked,
                                                      const std::string& today) {
  std::vector<SearchHit> found;
  std::size_t next = 0;
  while (found.size() < static_cast<std::size_t>(request.top_k) && next < ranked.size()) {
    const std::size_t count =
        std::min(ranked.size() - next, static_cast<std::size_t>(request.top_k) - found.size());
    std::vector<std::string> ids;
    for (const Candidate& candidate : ranked.subspan(next, count)) ids.push_back(candidate.fact_id);
    INFERSCALE_ASSIGN_OR_RETURN(std::vector<Fact> facts, catalog.GetFacts(ids));
    std::unordered_map<std::string, Fact> by_id;
    for (Fact& fact : facts) {
      std::string id = fact.id;
      by_id.emplace(std::move(id), std::move(fact));
    }
    for (const Candidate& candidate : ranked.subspan(next, count)) {
      const auto fact = by_id.find(candidate.fact_id);
      if (fact == by_id.end()) continue;  // Deleted since the candidates were collected.
      const Fact& value = fact->second;
      const bool expired = !value.expiration_date.empty() && value.expiration_date < today;
      if (!value.superseded_by.empty() || (expired && !request.show_expired) ||
          std::find(scopes.begin(), scopes.end(), value.scope_id) == scopes.end()) {
        continue;
      }
      found.push_back(
          {std::move(fact->second), candidate.fused, candidate.semantic, candidate.keyword});
      by_id.erase(fact);
    }
    next += count;
  }
  // Rows follow the vectors' age, which a new embedder renews: equal scores by the facts' own age.
  std::stable_sort(found.begin(), found.end(), [](const SearchHit& a, const SearchHit& b) {
    if (a.score != b.score) return a.score > b.score;
    return a.fact.created_at_ms > b.fact.created_at_ms;
  });
  return found;
}

Retriever::Retriever(Catalog& catalog, Embedder& embedder, RetrieverOptions options)
    : impl_(std::make_unique<Impl>(catalog, embedder, std::move(options))) {}

Retriever::~Retriever() = default;

Result<std::vector<SearchHit>> Retriever::Search(const SearchRequest& request, Status* embedding) {
  if (embedding != nullptr) *embedding = OkStatus();
  if (request.top_k < 0 || request.top_k > kMaxTopK) {
    return InvalidArgument("top_k is " + std::to_string(request.top_k) +
                           "; it has to be between 0 and " + std::to_string(kMaxTopK));
  }
  if (!std::isfinite(request.threshold)) {
    return InvalidArgument("the threshold is not a number; give one between 0 and 1");
  }
  std::vector<ScopeId> scopes = request.scopes;
  std::sort(scopes.begin(), scopes.end());
  scopes.erase(std::unique(scopes.begin(), scopes.end()), scopes.end());
  if (scopes.empty() || request.top_k == 0 || TrimWhitespace(request.query).empty()) {
    return std::vector<SearchHit>{};
  }

  // The two searches need nothing of each other. Beside an embedder that takes every core, keyword
  // search would only hold up the thread that the others wait for; it then runs beside the scan.
  KeywordSearch keyword_search;
  const auto search_keywords = [&] {
    if (!request.keyword) return;
    keyword_search =
        std::async(std::launch::async, [&] { return impl_->KeywordHits(request, scopes); });
  };
  static const auto cores = static_cast<std::int32_t>(std::thread::hardware_concurrency());
  const bool core_left = impl_->embedder.busy_threads() < cores;
  if (core_left) search_keywords();
  Result<std::vector<std::vector<float>>> vectors = impl_->embedder.Embed({&request.query, 1});
  if (!core_left) search_keywords();
  const auto dimensions = static_cast<std::size_t>(impl_->embedder.dimensions());
  if (!vectors.ok()) {
    if (!request.keyword || !vectors.status().retryable()) return vectors.status();
    spdlog::warn("searching by keywords alone, the question was not embedded: {}",
                 vectors.status().ToString());
    if (embedding != nullptr) *embedding = vectors.status();
    // Near to nothing.
    vectors = std::vector<std::vector<float>>(1, std::vector<float>(dimensions, 0.0f));
  }
  if (vectors->size() != 1 || vectors->front().size() != dimensions) {
    return Internal("the embedder gave no vector of its own dimensions for the query");
  }
  const std::string today = FormatDate(impl_->options.clock());
  INFERSCALE_ASSIGN_OR_RETURN(
      const std::vector<Candidate> ranked,
      impl_->Collect(request, scopes, vectors->front(), today, keyword_search));
  return impl_->Fetch(request, scopes, ranked, today);
}

std::size_t Retriever::MemorySizeBytes() const {
  std::lock_guard lock(impl_->mutex);
  std::size_t total = 0;
  for (const auto& [id, entry] : impl_->entries) total += entry.index->MemorySizeBytes();
  return total;
}

}  // namespace inferscale
