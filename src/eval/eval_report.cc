#include "eval/eval_report.h"

#include <algorithm>

namespace inferscale {

Table SummaryTable(const std::vector<Summary>& rows) {
  const bool generated =
      std::any_of(rows.begin(), rows.end(), [](const Summary& row) { return row.generated; });
  Table table;
  table.header = {"k",    "served as", "n",     "logprob", "diff to text",
                  "95 %", "KL",        "top-1", "TTFT ms"};
  if (generated) {
    for (const char* name : {"F1", "BLEU-1", "EM", "McNemar p"}) table.header.emplace_back(name);
  }
  for (const Summary& row : rows) {
    const bool text = row.mode == "text";
    std::string mode = row.mode;
    if (!row.recipe.empty()) mode += " " + row.recipe + " " + row.codec;
    std::vector<std::string> cells = {std::to_string(row.k),
                                      mode,
                                      std::to_string(row.n),
                                      Decimal(row.logprob, 3),
                                      text ? "-" : Signed(row.diff, 3),
                                      text ? "-"
                                           : "[" + Signed(row.diff_interval.low, 3) + ", " +
                                                 Signed(row.diff_interval.high, 3) + "]",
                                      row.mode == "kv" ? Decimal(row.kl, 3) : "-",
                                      Decimal(row.top1 * 100, 0) + " %",
                                      Decimal(row.ttft_ms, 0)};
    if (generated) {
      cells.push_back(row.generated ? Decimal(row.f1, 3) : "-");
      cells.push_back(row.generated ? Decimal(row.bleu1, 3) : "-");
      cells.push_back(row.generated ? Decimal(row.exact, 3) : "-");
      cells.push_back(row.generated && !text ? Decimal(row.mcnemar_p, 3) : "-");
    }
    table.rows.push_back(std::move(cells));
  }
  return table;
}

std::string EvalReportMarkdown(const EvalReport& report) {
  std::string text = "# " + report.title + "\n\n";
  for (const auto& [name, value] : report.settings) text += "- " + name + ": " + value + "\n";
  text +=
      "\nlogprob: mean over questions of the gold answer's log-probability a token. diff: paired "
      "difference to text "
      "on the same questions and facts, with a bootstrap interval. KL: of the first answer token, "
      "from text. top-1: "
      "share of questions with text's likeliest first token. TTFT: median.\n\n";
  text += SummaryTable(report.rows).ToMarkdown();
  if (!report.adversarial.empty()) {
    text += "\n## Questions that the history does not answer\n\n" +
            SummaryTable(report.adversarial).ToMarkdown();
  }
  for (const auto& [category, rows] : report.categories) {
    text += "\n## Category " + category + "\n\n" + SummaryTable(rows).ToMarkdown();
  }
  return text;
}

}  // namespace inferscale
