#ifndef INFERSCALE_EVAL_EVAL_REPORT_H_
#define INFERSCALE_EVAL_EVAL_REPORT_H_

#include <cstdint>
#include <filesystem>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "eval/commands.h"
#include "eval/results.h"
#include "eval/table.h"

namespace inferscale {

/// How the facts of a row were served: mode, recipe, codec and best.
std::string ServedAs(const Summary& row);
/// Columns of a summary; those of generated answers only if there are any.
Table SummaryTable(const std::vector<Summary>& rows);

struct EvalReport {
  std::string title;
  std::vector<std::pair<std::string, std::string>> settings;  ///< name, value
  std::vector<std::string> warnings;
  std::vector<Summary> rows;
  std::vector<Summary> adversarial;
  std::vector<std::pair<std::string, std::vector<Summary>>> categories;
};
std::string EvalReportMarkdown(const EvalReport& report);
/// One HTML page with plots, without outside resources or scripts; every text in it is escaped.
std::string EvalReportHtml(const EvalReport& report);
/// {rows, adversarial, categories}
nlohmann::ordered_json EvalReportJson(const EvalReport& report);
/// report.md, report.html and report.json, which has title and settings as well.
Status WriteReportFiles(const EvalReport& report, const std::filesystem::path& folder);

/// What a report is about.
struct ReportScope {
  std::vector<std::int32_t> ks;
  std::set<std::string> questions;
  std::uint64_t seed = 1;
};
/// Summarises results, writes the report into `out`, and prints the tables, or with --json the
/// object of docs/measuring.md.
Status WriteEvalReport(EvalContext& context, const ResultFile& results, const ReportScope& scope,
                       const std::filesystem::path& out);

}  // namespace inferscale

#endif  // INFERSCALE_EVAL_EVAL_REPORT_H_
