#include <algorithm>
#include <cmath>

#include "eval/demo_result.h"

namespace inferscale {
namespace {

constexpr double kWidth = 720, kHeight = 340;
constexpr double kLeft = 70, kRight = 90, kTop = 20, kBottom = 50;

constexpr std::string_view kStyle = R"css(
:root { color-scheme: light dark; --surface: #fcfcfb; --ink: #1c1c1a; --muted: #62625c; --line: #dddcd6;
        --text-series: #b4530a; --kv-series: #0b6bbf; }
@media (prefers-color-scheme: dark) {
  :root { --surface: #161615; --ink: #f0efea; --muted: #a3a29a; --line: #3a3a37; --text-series: #f0a35e;
          --kv-series: #6bb2f2; } }
body { margin: 0 auto; max-width: 60rem; padding: 2rem 1rem; background: var(--surface); color: var(--ink);
       font: 16px/1.5 system-ui, sans-serif; }
h1 { font-size: 1.6rem; } h2 { font-size: 1.2rem; margin-top: 2.5rem; }
p, li { max-width: 46rem; } .muted { color: var(--muted); }
table { border-collapse: collapse; display: block; overflow-x: auto; font-variant-numeric: tabular-nums; }
th, td { text-align: right; padding: .35rem .8rem; border-bottom: 1px solid var(--line); }
th { font-weight: 600; color: var(--muted); } th:first-child, td:first-child { text-align: left; }
svg { width: 100%; height: auto; } svg text { fill: var(--muted); font: 13px system-ui, sans-serif; }
.grid { stroke: var(--line); stroke-width: 1; } .axis { stroke: var(--muted); stroke-width: 1; }
.text-line { stroke: var(--text-series); } .kv-line { stroke: var(--kv-series); }
.text-line, .kv-line { fill: none; stroke-width: 2.5; }
.text-dot { fill: var(--text-series); } .kv-dot { fill: var(--kv-series); }
svg .label { font-weight: 600; fill: var(--ink); }
.pair { display: grid; grid-template-columns: 1fr 1fr; gap: 1rem; margin: .3rem 0 1.6rem; }
.answer { border-left: 3px solid var(--line); padding: .1rem .8rem; white-space: pre-wrap; overflow-wrap: anywhere; }
.answer b { display: block; font-size: .85rem; } .answer.text { border-color: var(--text-series); }
.answer.kv { border-color: var(--kv-series); }
@media (max-width: 40rem) { .pair { grid-template-columns: 1fr; } }
)css";

std::string Number(double value) { return Decimal(value, 1); }

/// The smallest of 1, 2, 5 times a power of ten that gives at most six steps.
double TickStep(double highest) {
  double step = std::pow(10, std::floor(std::log10(std::max(highest, 1e-3))) - 1);
  for (const double factor : {1.0, 2.0, 5.0, 10.0, 20.0}) {
    if (highest / (step * factor) <= 6) return step * factor;
  }
  return step * 50;
}

struct Scale {
  double highest_k = 1, highest_ms = 1;
  double X(double k) const { return kLeft + k / highest_k * (kWidth - kLeft - kRight); }
  double Y(double ms) const {
    return kHeight - kBottom - ms / highest_ms * (kHeight - kTop - kBottom);
  }
};

std::string Curve(const DemoResult& result, bool kv, const Scale& scale) {
  const std::string name = kv ? "kv" : "text";
  std::string points, dots;
  const DemoResult::Ttft* last = nullptr;
  for (const auto& row : result.ttft) {
    if (row.kv != kv) continue;
    const std::string x = Number(scale.X(row.k)), y = Number(scale.Y(row.ttft_ms));
    points += x + "," + y + " ";
    dots += "<circle class=\"" + name + "-dot\" cx=\"" + x + "\" cy=\"" + y +
            "\" r=\"4.5\"><title>k = " + std::to_string(row.k) + ": " + Decimal(row.ttft_ms, 0) +
            " ms</title></circle>\n";
    last = &row;
  }
  if (last == nullptr) return {};
  return "<polyline class=\"" + name + "-line\" points=\"" + points + "\"/>\n" + dots +
         "<text class=\"label\" x=\"" + Number(scale.X(last->k) + 12) + "\" y=\"" +
         Number(scale.Y(last->ttft_ms) + 4) + "\">" + (kv ? "KV" : "text") + "</text>\n";
}

std::string Chart(const DemoResult& result) {
  Scale scale;
  for (const auto& row : result.ttft) {
    scale.highest_k = std::max(scale.highest_k, static_cast<double>(row.k));
    scale.highest_ms = std::max(scale.highest_ms, row.ttft_ms);
  }
  const double step = TickStep(scale.highest_ms);
  scale.highest_ms = std::ceil(scale.highest_ms / step) * step;
  std::string svg =
      "<svg viewBox=\"0 0 " + Number(kWidth) + " " + Number(kHeight) +
      "\" role=\"img\" aria-label=\"Time to first token against the number of facts\">\n";
  for (double ms = 0; ms <= scale.highest_ms + step / 2; ms += step) {
    const std::string y = Number(scale.Y(ms));
    svg += "<line class=\"grid\" x1=\"" + Number(kLeft) + "\" x2=\"" + Number(kWidth - kRight) +
           "\" y1=\"" + y + "\" y2=\"" + y + "\"/><text text-anchor=\"end\" x=\"" +
           Number(kLeft - 8) + "\" y=\"" + Number(scale.Y(ms) + 4) + "\">" +
           Decimal(ms, step < 1 ? 1 : 0) + "</text>\n";
  }
  for (const auto& row : result.ttft) {
    if (row.kv) continue;
    svg += "<text text-anchor=\"middle\" x=\"" + Number(scale.X(row.k)) + "\" y=\"" +
           Number(kHeight - kBottom + 20) + "\">" + std::to_string(row.k) + "</text>\n";
  }
  svg += "<line class=\"axis\" x1=\"" + Number(kLeft) + "\" x2=\"" + Number(kWidth - kRight) +
         "\" y1=\"" + Number(kHeight - kBottom) + "\" y2=\"" + Number(kHeight - kBottom) + "\"/>\n";
  svg += "<text text-anchor=\"middle\" x=\"" + Number((kLeft + kWidth - kRight) / 2) + "\" y=\"" +
         Number(kHeight - 8) + "\">facts in the prompt (k)</text>\n";
  svg += "<text x=\"4\" y=\"" + Number(kTop - 6) + "\">ms</text>\n";
  return svg + Curve(result, false, scale) + Curve(result, true, scale) + "</svg>\n";
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
  std::string html =
      "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n"
      "<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n"
      "<title>InferScale: memories as injected KV</title>\n<style>";
  html += kStyle;
  html += "</style>\n</head>\n<body>\n<h1>InferScale: memories as injected KV</h1>\n";
  html += Headline(result);
  html += "<p class=\"muted\">" + EscapeHtml(result.model) + "; " + std::to_string(result.facts) +
          " facts of an invented history, encoded once in " + Decimal(result.encode_seconds, 0) +
          " s (recipe " + EscapeHtml(result.recipe) + ", codec " + EscapeHtml(result.codec) + ", " +
          Decimal(static_cast<double>(result.store_bytes) / (1 << 20), 1) +
          " MiB). Text and KV were measured in turn in the same run, on the same facts.</p>\n";
  html += "<h2>Time to first token</h2>\n" + Chart(result) + DemoTtftTable(result).ToHtml();
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
  return html + "</body>\n</html>\n";
}

}  // namespace inferscale
