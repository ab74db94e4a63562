#include <algorithm>
#include <functional>
#include <optional>
#include <set>

#include "base/html.h"
#include "eval/eval_report.h"
#include "eval/html_page.h"

namespace inferscale {
namespace {

using Value = std::function<std::optional<ChartSeries::Point>(const Summary&)>;

ChartSeries::Point At(const Summary& row, double value) {
  return {static_cast<double>(row.k), value, std::nullopt};
}

bool Reported(const std::vector<ChartSeries>& series) {
  return std::any_of(series.begin(), series.end(),
                     [](const ChartSeries& each) { return !each.points.empty(); });
}

/// A colour for each way of serving, the same in every chart.
class Colors {
 public:
  explicit Colors(const std::vector<Summary>& rows) {
    for (const Summary& row : rows) {
      const std::string name = ServedAs(row);
      if (std::find(names_.begin(), names_.end(), name) != names_.end()) continue;
      names_.push_back(name);
      if (row.mode != "kv") {
        colors_.push_back(row.mode == "text" ? "text" : "none");
      } else {
        colors_.push_back(kv_ == 0 ? "kv" : "other" + std::to_string((kv_ - 1) % 5 + 1));
        ++kv_;
      }
    }
  }

  /// One series for each way of serving that has the value.
  std::vector<ChartSeries> Series(const std::vector<Summary>& rows, const Value& value) const {
    std::vector<ChartSeries> series;
    for (std::size_t i = 0; i < names_.size(); ++i) {
      ChartSeries one{names_[i], colors_[i], {}};
      for (const Summary& row : rows) {
        if (ServedAs(row) != names_[i]) continue;
        if (const auto point = value(row)) one.points.push_back(*point);
      }
      series.push_back(std::move(one));
    }
    return series;
  }

 private:
  std::vector<std::string> names_, colors_;
  std::size_t kv_ = 0;
};

std::string Lines(const std::vector<Summary>& rows, const Colors& colors, const std::string& title,
                  const std::string& explanation, const std::string& y_label, int digits,
                  const Value& value) {
  Chart chart;
  chart.description = title + " against the number of facts";
  chart.x_label = "facts in the prompt (k)";
  chart.y_label = y_label;
  chart.digits = digits;
  chart.series = colors.Series(rows, value);
  if (!Reported(chart.series)) return {};
  return "<h2>" + EscapeHtml(title) + "</h2>\n<p class=\"muted\">" + EscapeHtml(explanation) +
         "</p>\n" + LineChart(chart);
}

std::optional<ChartSeries::Point> Difference(const Summary& row) {
  if (row.mode != "kv") return std::nullopt;
  ChartSeries::Point point = At(row, row.diff);
  point.interval = row.diff_interval;
  return point;
}

/// The difference to text by category, at the largest k.
std::string CategoryBars(const EvalReport& report, const Colors& colors) {
  std::int32_t k = 0;
  for (const Summary& row : report.rows) k = std::max(k, row.k);
  BarChart chart;
  chart.description = "Difference to text by category of question, k = " + std::to_string(k);
  chart.y_label = "log-probability a token, KV − text";
  chart.digits = 3;
  std::vector<Summary> rows;
  for (const auto& [category, summaries] : report.categories) {
    for (Summary row : summaries) {
      if (row.k != k) continue;
      row.k = static_cast<std::int32_t>(chart.groups.size());  // a bar's place
      rows.push_back(std::move(row));
    }
    chart.groups.push_back(category);
  }
  chart.series = colors.Series(rows, Difference);
  if (!Reported(chart.series)) return {};
  return "<h2>By category</h2>\n<p class=\"muted\">" + EscapeHtml(chart.description) +
         ". Bars at 0 are as good as text.</p>\n" + BarChartSvg(chart);
}

std::string WideTable(const std::vector<Summary>& rows) {
  std::string html = SummaryTable(rows).ToHtml();
  return html.insert(html.find("<table") + 6, " class=\"wide\"");
}

}  // namespace

std::string EvalReportHtml(const EvalReport& report) {
  const Colors colors(report.rows);
  std::string html = "<ul>\n";
  for (const auto& [name, value] : report.settings) {
    html += "<li>" + EscapeHtml(name) + ": " + EscapeHtml(value) + "</li>\n";
  }
  html += "</ul>\n";
  for (const std::string& warning : report.warnings) {
    html += "<p class=\"warning\">" + EscapeHtml(warning) + "</p>\n";
  }
  html += Lines(report.rows, colors, "Difference to text",
                "The right answer's log-probability a token, facts as KV minus the same facts as "
                "text, with 95 % intervals. 0: as good as text; higher is better.",
                "KV − text", 3, Difference);
  html += Lines(report.rows, colors, "Token F1",
                "Words that the generated answer shares with the right one; higher is better.",
                "F1", 3, [](const Summary& row) -> std::optional<ChartSeries::Point> {
                  if (!row.generated) return std::nullopt;
                  return At(row, row.f1);
                });
  html += Lines(report.rows, colors, "Right answers, by a judge",
                "Share of generated answers that a language model calls right; higher is better.",
                "share", 3, [](const Summary& row) -> std::optional<ChartSeries::Point> {
                  if (row.judged == 0) return std::nullopt;
                  return At(row, row.judge);
                });
  html += Lines(
      report.rows, colors, "Time to first token", "Median over questions.", "ms", 0,
      [](const Summary& row) -> std::optional<ChartSeries::Point> { return At(row, row.ttft_ms); });
  html += CategoryBars(report, colors);
  html += "<h2>All figures</h2>\n" + WideTable(report.rows);
  if (!report.adversarial.empty()) {
    html += "<h2>Questions that the history does not answer</h2>\n" + WideTable(report.adversarial);
  }
  for (const auto& [category, rows] : report.categories) {
    html += "<h2>Category " + EscapeHtml(category) + "</h2>\n" + WideTable(rows);
  }
  html +=
      "<p class=\"muted\">logprob: mean over questions of the right answer's log-probability a "
      "token. diff: paired difference to text on the same questions and facts. KL: of the first "
      "answer token, from text. top-1: share of questions with text's likeliest first token. TTFT: "
      "median. judge, strict: share of answers that a language model calls right, generously and "
      "strictly; p: McNemar's exact test against text.</p>\n";
  return HtmlPage(report.title, html);
}

}  // namespace inferscale
