#include "catalog/keyword_functions.h"

#include <algorithm>
#include <cmath>
#include <exception>
#include <string>
#include <string_view>

#include <SQLiteCpp/Exception.h>
#include <sqlite3.h>

#include "base/utf8.h"

namespace inferscale::catalog {
namespace {

// Both functions are called from C: nothing may be thrown out of them.

void Hits(const Fts5ExtensionApi* api, Fts5Context* fts, sqlite3_context* context, int,
          sqlite3_value**) noexcept {
  try {
    const int phrases = api->xPhraseCount(fts);
    std::vector<std::int32_t> counts(static_cast<std::size_t>(phrases) + 1, 0);
    int code = api->xColumnSize(fts, api->xColumnCount(fts) - 1, &counts[0]);
    for (int phrase = 0; code == SQLITE_OK && phrase < phrases; ++phrase) {
      Fts5PhraseIter iterator;
      int column = 0, offset = 0;
      code = api->xPhraseFirst(fts, phrase, &iterator, &column, &offset);
      for (; code == SQLITE_OK && column >= 0; api->xPhraseNext(fts, &iterator, &column, &offset)) {
        ++counts[static_cast<std::size_t>(phrase) + 1];
      }
    }
    if (code != SQLITE_OK) return sqlite3_result_error_code(context, code);
    sqlite3_result_blob64(context, counts.data(), counts.size() * sizeof(counts[0]),
                          SQLITE_TRANSIENT);
  } catch (const std::exception&) {
    sqlite3_result_error_nomem(context);
  }
}

void Fold(sqlite3_context* context, int, sqlite3_value** arguments) noexcept {
  try {
    if (sqlite3_value_type(arguments[0]) != SQLITE_TEXT) return sqlite3_result_null(context);
    const auto* text = reinterpret_cast<const char*>(sqlite3_value_text(arguments[0]));
    if (text == nullptr) return sqlite3_result_error_nomem(context);
    const std::string folded = CaseFold(
        std::string_view(text, static_cast<std::size_t>(sqlite3_value_bytes(arguments[0]))));
    sqlite3_result_text64(context, folded.data(), folded.size(), SQLITE_TRANSIENT, SQLITE_UTF8);
  } catch (const std::exception&) {
    sqlite3_result_error_nomem(context);
  }
}

void Check(sqlite3* handle, int code) {
  if (code != SQLITE_OK) throw SQLite::Exception(handle, code);
}

fts5_api* Fts5Api(sqlite3* handle) {
  fts5_api* api = nullptr;
  sqlite3_stmt* statement = nullptr;
  Check(handle, sqlite3_prepare_v2(handle, "SELECT fts5(?1)", -1, &statement, nullptr));
  sqlite3_bind_pointer(statement, 1, static_cast<void*>(&api), "fts5_api_ptr", nullptr);
  sqlite3_step(statement);
  Check(handle, sqlite3_finalize(statement));
  if (api == nullptr || api->iVersion < 2) {
    throw SQLite::Exception("this SQLite library has no FTS5", SQLITE_ERROR);
  }
  return api;
}

}  // namespace

void RegisterKeywordFunctions(SQLite::Database& database) {
  sqlite3* handle = database.getHandle();
  fts5_api* api = Fts5Api(handle);
  Check(handle, api->xCreateFunction(api, "inferscale_hits", nullptr, &Hits, nullptr));
  Check(handle, sqlite3_create_function_v2(handle, "inferscale_fold", 1,
                                           SQLITE_UTF8 | SQLITE_DETERMINISTIC | SQLITE_INNOCUOUS,
                                           nullptr, &Fold, nullptr, nullptr, nullptr));
}

std::vector<double> Bm25(std::span<const TermCounts> rows, std::int64_t documents) {
  std::vector<double> scores(rows.size(), 0.0);
  if (rows.empty()) return scores;
  const std::size_t terms = rows.front().counts.size();
  std::vector<std::int64_t> with_term(terms, 0);
  double total_length = 0;
  for (const TermCounts& row : rows) {
    total_length += row.length;
    for (std::size_t t = 0; t < terms; ++t) with_term[t] += row.counts[t] > 0 ? 1 : 0;
  }
  // Of the rows with a hit: what the rows without one are like does not change the order.
  const double mean_length = std::max(1.0, total_length / static_cast<double>(rows.size()));
  const double all =
      static_cast<double>(std::max(documents, static_cast<std::int64_t>(rows.size())));

  constexpr double kSaturation = 1.2, kLengthWeight = 0.75;
  for (std::size_t t = 0; t < terms; ++t) {
    const double n = static_cast<double>(with_term[t]);
    const double idf = std::log(1.0 + (all - n + 0.5) / (n + 0.5));
    for (std::size_t r = 0; r < rows.size(); ++r) {
      const double count = rows[r].counts[t];
      if (count <= 0) continue;
      const double length = 1.0 - kLengthWeight + kLengthWeight * rows[r].length / mean_length;
      scores[r] += idf * count * (kSaturation + 1.0) / (count + kSaturation * length);
    }
  }
  return scores;
}

}  // namespace inferscale::catalog
