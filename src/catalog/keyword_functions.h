#ifndef INFERSCALE_CATALOG_KEYWORD_FUNCTIONS_H_
#define INFERSCALE_CATALOG_KEYWORD_FUNCTIONS_H_

#include <cstdint>
#include <span>
#include <vector>

#include <SQLiteCpp/Database.h>

namespace inferscale::catalog {

/// Adds our functions to a connection; throws SQLite::Exception.
///
/// inferscale_hits(keyword index): of the current row, 32-bit integers in one blob: the terms in
/// its last column, then each query phrase's hits. FTS5's own bm25() walks every owner's rows to
/// learn how rare a word is; with this, the rows of one owner are enough.
///
/// inferscale_fold(text): the text case folded (CaseFold).
void RegisterKeywordFunctions(SQLite::Database& database);

/// One row that has at least one of the terms.
struct TermCounts {
  std::int64_t row = 0;
  std::int32_t length = 0;           ///< terms in the text
  std::vector<std::int32_t> counts;  ///< hits of each query term
};

/// BM25 (k1 = 1.2, b = 0.75) with idf = ln(1 + (N - n + 0.5) / (n + 0.5)), which is always
/// positive. \param documents N, at least rows.size(). \param rows all rows with a hit.
std::vector<double> Bm25(std::span<const TermCounts> rows, std::int64_t documents);

}  // namespace inferscale::catalog

#endif  // INFERSCALE_CATALOG_KEYWORD_FUNCTIONS_H_
