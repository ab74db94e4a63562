#ifndef INFERSCALE_EVAL_STATISTICS_H_
#define INFERSCALE_EVAL_STATISTICS_H_

/// \file statistics.h
/// Measures of answers and of differences between them. Pure functions; thread-safe. Empty input
/// gives 0 unless said otherwise.

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "inferscale/types.h"

namespace inferscale {

double Mean(std::span<const double> values);
/// Mean of the middle two for an even count.
double Median(std::vector<double> values);
/// Nearest-rank percentile. \param percent 0…100
double Percentile(std::vector<double> values, double percent);

struct Interval {
  double low = 0, high = 0;
};
/// Percentile bootstrap interval (95 %) of the mean, the same for the same seed on every machine.
/// One value or none: an interval of no width around it.
Interval BootstrapMean(std::span<const double> values, std::uint64_t seed,
                       std::int32_t resamples = 2000);

/// Two-sided exact McNemar test on paired yes/no outcomes.
/// \param only_first, only_second pairs where only that side was right. \return p; 1 without such
/// pairs.
double McNemarExact(std::int64_t only_first, std::int64_t only_second);

/// SQuAD's normalisation: lower case, without punctuation and the articles a, an, the; single
/// blanks.
std::string NormalizeAnswer(std::string_view text);
/// Words of the normalised answer; each CJK character is a word of its own.
std::vector<std::string> AnswerWords(std::string_view text);
/// Harmonic mean of word precision and recall, with multiplicity. Both empty: 1; one empty: 0.
double TokenF1(std::string_view prediction, std::string_view gold);
/// Clipped unigram precision times the brevity penalty.
double Bleu1(std::string_view prediction, std::string_view gold);
bool ExactMatch(std::string_view prediction, std::string_view gold);

/// The likeliest tokens of a distribution, likeliest first, and what is left as one bucket.
struct SparseDistribution {
  std::vector<std::pair<TokenId, float>> logprobs;
  bool empty() const { return logprobs.empty(); }
  TokenId top() const { return logprobs.empty() ? -1 : logprobs.front().first; }
};
/// \param logprobs [vocabulary]
SparseDistribution Sparsify(std::span<const float> logprobs, std::size_t count);
/// KL(reference ‖ other) in nats, over the reference's listed tokens and one bucket for all others:
/// a lower bound of the full one. \param other [vocabulary]; shorter or empty: 0.
double KlDivergence(const SparseDistribution& reference, std::span<const float> other);

}  // namespace inferscale

#endif  // INFERSCALE_EVAL_STATISTICS_H_
