#include "retrieval/fusion.h"

#include <utf8proc.h>

#include <algorithm>
#include <cmath>

#include "base/utf8.h"

namespace inferscale {
std::int32_t CountQueryTerms(std::string_view query) {
  std::int32_t terms = 0;
  std::int32_t unspaced_run = 0;
  bool in_word = false;
  const auto end_runs = [&] {
    if (in_word) ++terms;
    terms += (unspaced_run + 1) / 2;
    in_word = false;
    unspaced_run = 0;
  };
  const auto* bytes = reinterpret_cast<const utf8proc_uint8_t*>(query.data());
  auto left = static_cast<utf8proc_ssize_t>(query.size());
  while (left > 0) {
    utf8proc_int32_t character = 0;
    utf8proc_ssize_t length = utf8proc_iterate(bytes, left, &character);
    if (length <= 0) {
      length = 1;
      end_runs();
    } else if (IsUnspacedCharacter(character)) {
      if (in_word) end_runs();
      ++unspaced_run;
    } else if (IsWordCharacter(character)) {
      if (unspaced_run > 0) end_runs();
      in_word = true;
    } else {
      end_runs();
    }
    bytes += length;
    left -= length;
  }
  end_runs();
  return terms;
}

double KeywordScore(double bm25, std::int32_t query_terms) {
  double midpoint = 12.0;
  double steepness = 0.5;
  if (query_terms <= 3) {
    midpoint = 5.0;
    steepness = 0.7;
  } else if (query_terms <= 6) {
    midpoint = 7.0;
    steepness = 0.6;
  } else if (query_terms <= 9) {
    midpoint = 9.0;
  } else if (query_terms <= 15) {
    midpoint = 10.0;
  }
  return 1.0 / (1.0 + std::exp(-steepness * (bm25 - midpoint)));
}

std::int32_t CandidatePool(std::int32_t top_k) { return std::max(4 * top_k, 60); }

double FusedScore(double semantic, double keyword, double max_possible) {
  return std::clamp((semantic + keyword) / max_possible, 0.0, 1.0);
}

}  // namespace inferscale
