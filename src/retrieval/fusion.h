#ifndef INFERSCALE_RETRIEVAL_FUSION_H_
#define INFERSCALE_RETRIEVAL_FUSION_H_

#include <cstdint>
#include <string_view>

namespace inferscale {

/// Words of a query as keyword search counts them: runs of letters and digits, and one for every
/// two characters of scripts written without blanks (at least one a run).
std::int32_t CountQueryTerms(std::string_view query);

/// BM25 brought to 0…1 by a logistic that expects more of longer queries (Mem0's constants).
double KeywordScore(double bm25, std::int32_t query_terms);

/// Facts that are ranked for `top_k` results.
std::int32_t CandidatePool(std::int32_t top_k);

/// (semantic + keyword) / `max_possible`, which is 2 when any candidate has a keyword hit, else 1;
/// kept within 0…1.
double FusedScore(double semantic, double keyword, double max_possible);

}  // namespace inferscale

#endif  // INFERSCALE_RETRIEVAL_FUSION_H_
