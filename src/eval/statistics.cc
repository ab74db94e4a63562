#include "eval/statistics.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <numeric>

#include "base/utf8.h"

namespace inferscale {
namespace {

/// SplitMix64: the standard library's distributions differ between implementations.
class Generator {
 public:
  explicit Generator(std::uint64_t seed) : state_(seed) {}
  std::size_t Below(std::size_t bound) {
    state_ += 0x9E3779B97F4A7C15u;
    std::uint64_t z = state_;
    z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9u;
    z = (z ^ z >> 27) * 0x94D049BB133111EBu;
    z ^= z >> 31;
    return static_cast<std::size_t>(z % bound);
  }

 private:
  std::uint64_t state_;
};

struct Character {
  std::string_view bytes;
  char32_t code = 0;
};

/// Characters of valid UTF-8.
std::vector<Character> Characters(std::string_view text) {
  std::vector<Character> characters;
  for (std::size_t i = 0; i < text.size();) {
    const auto lead = static_cast<unsigned char>(text[i]);
    const std::size_t length = lead < 0x80 ? 1 : lead < 0xE0 ? 2 : lead < 0xF0 ? 3 : 4;
    char32_t code = length == 1 ? lead : lead & (0xFF >> (length + 1));
    for (std::size_t j = 1; j < length && i + j < text.size(); ++j) {
      code = code << 6 | (static_cast<unsigned char>(text[i + j]) & 0x3F);
    }
    characters.push_back({text.substr(i, length), code});
    i += length;
  }
  return characters;
}

bool IsCjk(char32_t code) {
  return (code >= 0x3040 && code <= 0x30FF) || (code >= 0x3400 && code <= 0x9FFF) ||
         (code >= 0xAC00 && code <= 0xD7AF) || (code >= 0xF900 && code <= 0xFAFF) ||
         (code >= 0x20000 && code <= 0x3FFFF);
}

bool IsPunctuation(char32_t code) {
  if (code < 0x80) {
    return (code >= 0x21 && code <= 0x2F) || (code >= 0x3A && code <= 0x40) ||
           (code >= 0x5B && code <= 0x60) || (code >= 0x7B && code <= 0x7E);
  }
  return (code >= 0x2010 && code <= 0x2027) || (code >= 0x2030 && code <= 0x205E) ||
         (code >= 0x3001 && code <= 0x3003) || (code >= 0x3008 && code <= 0x3011) ||
         (code >= 0xFF01 && code <= 0xFF0F) || (code >= 0xFF1A && code <= 0xFF20) || code == 0xA1 ||
         code == 0xBF || code == 0xAB || code == 0xBB;
}

bool IsBlank(char32_t code) { return code <= 0x20 || code == 0xA0 || code == 0x3000; }

std::int64_t CommonWords(const std::vector<std::string>& a, const std::vector<std::string>& b) {
  std::map<std::string, std::int64_t> counts;
  for (const std::string& word : a) ++counts[word];
  std::int64_t common = 0;
  for (const std::string& word : b) {
    const auto found = counts.find(word);
    if (found != counts.end() && found->second > 0) {
      --found->second;
      ++common;
    }
  }
  return common;
}

}  // namespace

double Mean(std::span<const double> values) {
  if (values.empty()) return 0;
  return std::accumulate(values.begin(), values.end(), 0.0) / static_cast<double>(values.size());
}

double Median(std::vector<double> values) {
  if (values.empty()) return 0;
  std::sort(values.begin(), values.end());
  const std::size_t middle = values.size() / 2;
  return values.size() % 2 == 1 ? values[middle] : (values[middle - 1] + values[middle]) / 2;
}

double Percentile(std::vector<double> values, double percent) {
  if (values.empty()) return 0;
  std::sort(values.begin(), values.end());
  const double rank =
      std::ceil(std::clamp(percent, 0.0, 100.0) / 100 * static_cast<double>(values.size()));
  return values[static_cast<std::size_t>(std::max(rank, 1.0)) - 1];
}

Interval BootstrapMean(std::span<const double> values, std::uint64_t seed, std::int32_t resamples) {
  if (values.size() < 2 || resamples < 1) return {Mean(values), Mean(values)};
  Generator generator(seed);
  std::vector<double> means(static_cast<std::size_t>(resamples));
  for (double& mean : means) {
    double sum = 0;
    for (std::size_t i = 0; i < values.size(); ++i) sum += values[generator.Below(values.size())];
    mean = sum / static_cast<double>(values.size());
  }
  return {Percentile(means, 2.5), Percentile(means, 97.5)};
}

double McNemarExact(std::int64_t only_first, std::int64_t only_second) {
  const std::int64_t n = only_first + only_second;
  if (n <= 0) return 1;
  const std::int64_t smaller = std::min(only_first, only_second);
  // Binomial tail with p = 1/2, summed in logarithms so that large counts do not underflow.
  double tail = 0;
  for (std::int64_t i = 0; i <= smaller; ++i) {
    tail += std::exp(std::lgamma(n + 1.0) - std::lgamma(i + 1.0) - std::lgamma(n - i + 1.0) -
                     static_cast<double>(n) * std::log(2.0));
  }
  return std::min(1.0, 2 * tail);
}

std::vector<std::string> AnswerWords(std::string_view text) {
  const std::string folded = CaseFold(text);
  std::vector<std::string> words;
  std::string word;
  const auto finish = [&] {
    if (!word.empty() && word != "a" && word != "an" && word != "the") words.push_back(word);
    word.clear();
  };
  for (const Character& character : Characters(folded)) {
    if (IsPunctuation(character.code)) continue;
    if (IsBlank(character.code)) {
      finish();
    } else if (IsCjk(character.code)) {
      finish();
      words.emplace_back(character.bytes);
    } else {
      word += character.bytes;
    }
  }
  finish();
  return words;
}

std::string NormalizeAnswer(std::string_view text) {
  std::string normalized;
  for (const std::string& word : AnswerWords(text)) {
    if (!normalized.empty()) normalized += ' ';
    normalized += word;
  }
  return normalized;
}

double TokenF1(std::string_view prediction, std::string_view gold) {
  const std::vector<std::string> predicted = AnswerWords(prediction), expected = AnswerWords(gold);
  if (predicted.empty() || expected.empty()) return predicted.empty() && expected.empty() ? 1 : 0;
  const auto common = static_cast<double>(CommonWords(predicted, expected));
  return 2 * common / static_cast<double>(predicted.size() + expected.size());
}

double Bleu1(std::string_view prediction, std::string_view gold) {
  const std::vector<std::string> predicted = AnswerWords(prediction), expected = AnswerWords(gold);
  if (predicted.empty() || expected.empty()) return predicted.empty() && expected.empty() ? 1 : 0;
  const auto length = static_cast<double>(predicted.size());
  const double precision = static_cast<double>(CommonWords(predicted, expected)) / length;
  const double ratio = static_cast<double>(expected.size()) / length;
  return precision * (ratio > 1 ? std::exp(1 - ratio) : 1.0);
}

bool ExactMatch(std::string_view prediction, std::string_view gold) {
  return NormalizeAnswer(prediction) == NormalizeAnswer(gold);
}

SparseDistribution Sparsify(std::span<const float> logprobs, std::size_t count) {
  std::vector<TokenId> order(logprobs.size());
  std::iota(order.begin(), order.end(), 0);
  count = std::min(count, order.size());
  std::partial_sort(order.begin(), order.begin() + static_cast<std::ptrdiff_t>(count), order.end(),
                    [&](TokenId a, TokenId b) {
                      return logprobs[a] != logprobs[b] ? logprobs[a] > logprobs[b] : a < b;
                    });
  SparseDistribution sparse;
  for (std::size_t i = 0; i < count; ++i)
    sparse.logprobs.emplace_back(order[i], logprobs[order[i]]);
  return sparse;
}

double KlDivergence(const SparseDistribution& reference, std::span<const float> other) {
  if (other.empty()) return 0;
  constexpr double kLeast = 1e-12;
  double kl = 0, reference_mass = 0, other_mass = 0;
  for (const auto& [id, logprob] : reference.logprobs) {
    if (id < 0 || static_cast<std::size_t>(id) >= other.size()) return 0;
    const double p = std::exp(static_cast<double>(logprob));
    reference_mass += p;
    other_mass += std::exp(static_cast<double>(other[id]));
    if (p > 0) kl += p * (logprob - std::max(static_cast<double>(other[id]), std::log(kLeast)));
  }
  const double reference_rest = std::max(1 - reference_mass, 0.0);
  const double other_rest = std::max(1 - other_mass, kLeast);
  if (reference_rest > kLeast) kl += reference_rest * std::log(reference_rest / other_rest);
  return std::max(kl, 0.0);
}

}  // namespace inferscale
