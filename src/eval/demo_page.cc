#include "base/html.h"
#include "eval/demo_result.h"
#include "eval/html_page.h"

namespace inferscale {
namespace {

std::string TtftChart(const DemoResult& result) {
  Chart chart;
  chart.description = "Time to first token against the number of facts";
  chart.x_label = "facts in the prompt (k)";
  chart.y_label = "ms";
  for (const bool kv : {false, true}) {
    ChartSeries series{kv ? "KV" : "text", kv ? "kv" : "text", {}};
    for (const auto& row : result.ttft) {
      if (row.kv == kv)
        series.points.push_back({static_cast<double>(row.k), row.ttft_ms, std::nullopt});
    }
    chart.series.push_back(std::move(series));
  }
  return LineChart(chart);
}

std::string Headline(const DemoResult& result) {
  const DemoResult::Ttft *text = nullptr, *kv = nullptr;
  for (const auto& row : result.ttft) {
    auto& best = row.kv ? kv : text;
    if (best == nullptr || row.k > best->k) best = &row;
  }
  if (text == nullptr) return {};
  if (kv == nullptr) {
    return "<p>This model's facts are served as text: " + EscapeHtml(result.kv_refusal) + ".</p>\n";
  }
  return "<p>With " + std::to_string(kv->k) +
         " facts in the prompt the first token comes after <b>" + Decimal(kv->ttft_ms, 0) +
         " ms</b> when their KV is injected, and after <b>" + Decimal(text->ttft_ms, 0) +
         " ms</b> when the same facts are sent as text: " +
         Decimal(text->ttft_ms / kv->ttft_ms, 1) + " times as long.</p>\n";
}

}  // namespace

std::string DemoPage(const DemoResult& result) {
  std::string html = Headline(result);
  html += "<p class=\"muted\">" + EscapeHtml(result.model) + "; " + std::to_string(result.facts) +
          " facts of an invented history, encoded once in " + Decimal(result.encode_seconds, 0) +
          " s (recipe " + EscapeHtml(result.recipe) + ", codec " + EscapeHtml(result.codec) + ", " +
          Decimal(static_cast<double>(result.store_bytes) / (1 << 20), 1) +
          " MiB). Text and KV were measured in turn in the same run, on the same facts.</p>\n";
  html += "<h2>Time to first token</h2>\n" + TtftChart(result) + DemoTtftTable(result).ToHtml();
  if (!result.accuracy.empty()) {
    html +=
        "<h2>Are the answers the same?</h2>\n<p>How likely the model finds the right answer, a "
        "token (higher is "
        "better), and how often its first word is the one it gives with the facts as text. "
        "<i>none</i>: no facts; <i>kv-bare</i>: facts encoded with nothing in front of "
        "them.</p>\n" +
        DemoAccuracyTable(result).ToHtml();
  }
  if (!result.answers.empty()) html += "<h2>Answers side by side</h2>\n";
  for (const auto& pair : result.answers) {
    html += "<p><b>" + EscapeHtml(pair.question) +
            "</b> <span class=\"muted\">(right: " + EscapeHtml(pair.gold) +
            "; k = " + std::to_string(pair.k) +
            ")</span></p>\n<div class=\"pair\">\n<div class=\"answer text\"><b>text, " +
            Decimal(pair.text_ttft_ms, 0) + " ms</b>" + EscapeHtml(pair.text) +
            "</div>\n<div class=\"answer kv\"><b>KV, " + Decimal(pair.kv_ttft_ms, 0) + " ms</b>" +
            EscapeHtml(pair.kv) + "</div>\n</div>\n";
  }
  if (!result.notes.empty()) {
    html += "<h2>Notes</h2>\n<ul>\n";
    for (const std::string& note : result.notes) html += "<li>" + EscapeHtml(note) + "</li>\n";
    html += "</ul>\n";
  }
  return HtmlPage("InferScale: memories as injected KV", html);
}

}  // namespace inferscale
