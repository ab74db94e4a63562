#ifndef INFERSCALE_EVAL_BENCH_H_
#define INFERSCALE_EVAL_BENCH_H_

/// \file bench.h
/// What the benchmarks share. Each bench_*.cc is one benchmark; the claims it checks are printed,
/// never asserted: time depends on the machine.

#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "eval/commands.h"
#include "eval/session.h"

namespace inferscale {

struct BenchOptions {
  std::int32_t questions = 0;                              ///< 0: the benchmark's own number
  std::int32_t facts = 0;                                  ///< 0: the benchmark's own number
  std::int32_t combinations = 0;                           ///< ttft
  std::vector<std::string> codecs{"f16", "int8", "int4"};  ///< codec
  std::vector<std::int32_t> sequences{1, 8, 64};           ///< decode
  bool encode = false;                                     ///< start: with every fact's KV on disk
};

struct Claim {
  std::string text;
  double value = 0;
  double bound = 0;
  bool at_most = true;  ///< the value must not exceed the bound, else not fall below it
  bool Holds() const { return at_most ? value <= bound : value >= bound; }
};

struct BenchReport {
  nlohmann::ordered_json rows = nlohmann::ordered_json::array();
  std::vector<Claim> claims;
  std::vector<std::string> notes;
};

Result<BenchReport> BenchTtft(EvalContext& context, const BenchOptions& options);
Result<BenchReport> BenchIngest(EvalContext& context, const BenchOptions& options);
Result<BenchReport> BenchRetrieval(EvalContext& context, const BenchOptions& options);
Result<BenchReport> BenchCodec(EvalContext& context, const BenchOptions& options);
Result<BenchReport> BenchDecode(EvalContext& context, const BenchOptions& options);
Result<BenchReport> BenchStart(EvalContext& context, const BenchOptions& options);

/// `count` facts: the demo's, then the demo's again and again with a word changed in each.
Result<std::vector<NewFact>> SampleFacts(std::size_t count);
/// Gives each fact the embedding of the demo fact that it varies, with a little noise: as good as
/// its own for measuring a search, in a hundredth of the time.
Status EmbedSampleFacts(Embedder& embedder, std::vector<NewFact>* facts);
/// Adds sample facts in batches of 500, with a progress line.
Status AddSampleFacts(EvalContext& context, MemoryService& service, const Scope& scope,
                      std::vector<NewFact> facts);

/// Milliseconds since `start`.
double MillisecondsSince(std::chrono::steady_clock::time_point start);

}  // namespace inferscale

#endif  // INFERSCALE_EVAL_BENCH_H_
