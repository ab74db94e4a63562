#include <set>

#include "base/files.h"
#include "eval/eval_report.h"
#include "eval/evaluation.h"
#include "eval/results.h"

namespace inferscale {

Status MergeEvaluations(EvalContext& context, const EvalMergeOptions& options) {
  std::vector<ResultFile> shards;
  for (const std::string& folder : options.folders) {
    INFERSCALE_ASSIGN_OR_RETURN(ResultFile shard,
                                ResultFile::Read(std::filesystem::path(folder) / "results.jsonl"));
    if (!shards.empty() && shard.header() != shards.front().header()) {
      return FailedPrecondition(folder + " was measured with other settings (" +
                                shard.header().dump() + ") than " + options.folders.front() + " (" +
                                shards.front().header().dump() + ")");
    }
    shards.push_back(std::move(shard));
  }
  if (shards.empty()) return InvalidArgument("merge needs folders of results");
  const std::filesystem::path out(options.out);
  INFERSCALE_RETURN_IF_ERROR(CreatePrivateFolder(out));
  INFERSCALE_ASSIGN_OR_RETURN(ResultFile merged,
                              ResultFile::Open(out / "results.jsonl", shards.front().header()));
  for (const ResultFile& shard : shards) {
    for (const auto& [question, facts] : shard.retrieved()) {
      if (merged.FindRetrieved(question) == nullptr)
        INFERSCALE_RETURN_IF_ERROR(merged.AddRetrieved(question, facts));
    }
    for (const auto& [key, result] : shard.results()) {
      if (merged.Find(key) == nullptr) INFERSCALE_RETURN_IF_ERROR(merged.Add(result));
    }
  }
  ReportScope scope;
  std::set<std::int32_t> ks;
  for (const auto& [key, result] : merged.results()) {
    scope.questions.insert(key.question);
    if (key.mode == "text") ks.insert(key.k);
  }
  scope.ks.assign(ks.begin(), ks.end());
  scope.seed = options.seed;
  return WriteEvalReport(context, merged, scope, out);
}

}  // namespace inferscale
