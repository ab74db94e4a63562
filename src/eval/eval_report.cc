#include "eval/eval_report.h"

#include <algorithm>
#include <ostream>

#include "base/files.h"
#include "eval/progress.h"

namespace inferscale {
namespace {

/// The settings that a file of results was measured under, for people.
std::vector<std::pair<std::string, std::string>> Settings(const nlohmann::json& header,
                                                          const ReportScope& scope) {
  const auto text = [&](const char* name) {
    const auto found = header.find(name);
    if (found == header.end()) return std::string();
    return found->is_string() ? found->get<std::string>() : found->dump();
  };
  const std::string ingest = text("ingest");
  std::vector<std::pair<std::string, std::string>> settings{
      {"model", text("model")},
      {"facts", ingest == "facts"      ? "given observations"
                : ingest == "verbatim" ? "verbatim turns"
                                       : "extracted from the turns"},
      {"questions", std::to_string(scope.questions.size())},
      {"seed", std::to_string(scope.seed)}};
  if (header.contains("system")) settings.emplace_back("system message", text("system"));
  if (header.contains("names")) settings.emplace_back("names", text("names"));
  if (header.contains("profile")) settings.emplace_back("always served facts", text("profile"));
  return settings;
}

/// What would make the figures mean something else than they seem to.
std::vector<std::string> Warnings(const std::vector<Summary>& rows) {
  std::vector<std::string> warnings;
  for (const Summary& row : rows) {
    const std::string where = "k = " + std::to_string(row.k) + ", " + ServedAs(row);
    if (row.left_out > 0) {
      warnings.push_back(where + ": " + Decimal(row.left_out, 1) +
                         " facts a question had no room in the context");
    }
    if (row.not_injected > 0) {
      warnings.push_back(where + ": " + Decimal(row.not_injected, 1) +
                         " blocks a question were computed because their KV was missing");
    }
  }
  return warnings;
}

}  // namespace

std::string ServedAs(const Summary& row) {
  std::string name = row.mode;
  if (!row.recipe.empty()) name += " " + row.recipe + " " + row.codec;
  if (row.best > 0) name += " best " + std::to_string(row.best);
  return name;
}

Table SummaryTable(const std::vector<Summary>& rows) {
  const bool generated =
      std::any_of(rows.begin(), rows.end(), [](const Summary& row) { return row.generated; });
  const bool judged =
      std::any_of(rows.begin(), rows.end(), [](const Summary& row) { return row.judged > 0; });
  Table table;
  table.header = {"k",    "served as", "n",     "logprob", "diff to text",
                  "95 %", "KL",        "top-1", "TTFT ms"};
  if (generated) {
    for (const char* name : {"F1", "BLEU-1", "EM", "McNemar p"}) table.header.emplace_back(name);
  }
  if (judged) {
    for (const char* name : {"judge", "judge p", "strict", "strict p"})
      table.header.emplace_back(name);
  }
  for (const Summary& row : rows) {
    const bool text = row.mode == "text";
    std::vector<std::string> cells = {std::to_string(row.k),
                                      ServedAs(row),
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
    if (judged) {
      const auto add = [&](std::int64_t pairs, double share, double p) {
        cells.push_back(pairs > 0 ? Decimal(share, 3) : "-");
        cells.push_back(pairs > 0 && !text ? Decimal(p, 3) : "-");
      };
      add(row.judged, row.judge, row.judge_p);
      add(row.judged_strict, row.judge_strict, row.judge_strict_p);
    }
    table.rows.push_back(std::move(cells));
  }
  return table;
}

std::string EvalReportMarkdown(const EvalReport& report) {
  std::string text = "# " + report.title + "\n\n";
  for (const auto& [name, value] : report.settings) text += "- " + name + ": " + value + "\n";
  for (const std::string& warning : report.warnings) text += "- **" + warning + "**\n";
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

nlohmann::ordered_json EvalReportJson(const EvalReport& report) {
  nlohmann::ordered_json json{{"rows", ToJson(report.rows)},
                              {"adversarial", ToJson(report.adversarial)}};
  for (const auto& [category, rows] : report.categories)
    json["categories"][category] = ToJson(rows);
  return json;
}

Status WriteReportFiles(const EvalReport& report, const std::filesystem::path& folder) {
  nlohmann::ordered_json json{{"title", report.title}, {"warnings", report.warnings}};
  for (const auto& [name, value] : report.settings) json["settings"][name] = value;
  json.update(EvalReportJson(report));
  const std::string text =
      json.dump(2, ' ', false, nlohmann::ordered_json::error_handler_t::replace) + "\n";
  INFERSCALE_RETURN_IF_ERROR(AtomicWriteFile(folder / "report.json", text));
  INFERSCALE_RETURN_IF_ERROR(AtomicWriteFile(folder / "report.html", EvalReportHtml(report)));
  return AtomicWriteFile(folder / "report.md", EvalReportMarkdown(report));
}

Status WriteEvalReport(EvalContext& context, const ResultFile& results, const ReportScope& scope,
                       const std::filesystem::path& out) {
  std::set<std::string> categories;
  for (const auto& [key, result] : results.results()) {
    if (!result.adversarial && scope.questions.contains(key.question))
      categories.insert(result.category);
  }
  EvalReport report;
  const auto file = results.header().find("file");
  report.title = "Evaluation on " + (file != results.header().end() && file->is_string()
                                         ? file->get<std::string>()
                                         : "a dataset");
  report.settings = Settings(results.header(), scope);
  report.rows = Summarize(results, scope.ks, {scope.questions, false, ""}, scope.seed);
  report.adversarial = Summarize(results, scope.ks, {scope.questions, true, ""}, scope.seed);
  for (const std::string& category : categories) {
    report.categories.emplace_back(
        category, Summarize(results, scope.ks, {scope.questions, false, category}, scope.seed));
  }
  report.warnings = Warnings(report.rows);
  INFERSCALE_RETURN_IF_ERROR(WriteReportFiles(report, out));
  for (const std::string& warning : report.warnings) Say(context, warning);
  std::ostream& tables = context.json ? *context.progress : *context.out;
  tables << "\n" << SummaryTable(report.rows).ToText();
  if (!report.adversarial.empty()) {
    tables << "\nquestions that the history does not answer (category 5)\n"
           << SummaryTable(report.adversarial).ToText();
  }
  tables << "\nreport: " << std::filesystem::absolute(out / "report.html").string() << std::endl;
  if (!context.json) return OkStatus();
  nlohmann::ordered_json json = EvalReportJson(report);
  json["report"] = std::filesystem::absolute(out / "report.md").string();
  *context.out << json.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace)
               << std::endl;
  return OkStatus();
}

}  // namespace inferscale
