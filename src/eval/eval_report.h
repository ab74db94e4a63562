#ifndef INFERSCALE_EVAL_EVAL_REPORT_H_
#define INFERSCALE_EVAL_EVAL_REPORT_H_

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "eval/results.h"
#include "eval/table.h"

namespace inferscale {

/// Columns of a summary; those of generated answers only if there are any.
Table SummaryTable(const std::vector<Summary>& rows);

struct EvalReport {
  std::string title;
  std::vector<std::pair<std::string, std::string>> settings;  ///< name, value
  std::vector<Summary> rows;
  std::vector<Summary> adversarial;
  std::vector<std::pair<std::string, std::vector<Summary>>> categories;
};
std::string EvalReportMarkdown(const EvalReport& report);

}  // namespace inferscale

#endif  // INFERSCALE_EVAL_EVAL_REPORT_H_
