#include "eval/html_page.h"

#include <algorithm>
#include <cmath>
#include <set>
#include <string_view>

#include "base/html.h"
#include "eval/table.h"

namespace inferscale {
namespace {

constexpr double kWidth = 720, kHeight = 340;
constexpr double kLeft = 70, kRight = 90, kTop = 36, kBottom = 50;
constexpr double kLabelHeight = 15;

constexpr std::string_view kStyle = R"css(
:root { color-scheme: light dark; --surface: #fcfcfb; --ink: #1c1c1a; --muted: #62625c; --line: #dddcd6;
        --text-series: #b4530a; --kv-series: #0b6bbf; --none-series: #82827a; --other1-series: #1a7f4b;
        --other2-series: #8a3fb8; --other3-series: #b3246b; --other4-series: #5b6b00; --other5-series: #00707a; }
@media (prefers-color-scheme: dark) {
  :root { --surface: #161615; --ink: #f0efea; --muted: #a3a29a; --line: #3a3a37; --text-series: #f0a35e;
          --kv-series: #6bb2f2; --none-series: #8d8c84; --other1-series: #64c994; --other2-series: #c79bea;
          --other3-series: #f08bb9; --other4-series: #bccb62; --other5-series: #5ec8d2; } }
body { margin: 0 auto; max-width: 60rem; padding: 2rem 1rem; background: var(--surface); color: var(--ink);
       font: 16px/1.5 system-ui, sans-serif; }
h1 { font-size: 1.6rem; } h2 { font-size: 1.2rem; margin-top: 2.5rem; }
p, li { max-width: 46rem; } .muted { color: var(--muted); }
table { border-collapse: collapse; display: block; overflow-x: auto; font-variant-numeric: tabular-nums; }
th, td { text-align: right; padding: .35rem .8rem; border-bottom: 1px solid var(--line); }
th { font-weight: 600; color: var(--muted); } th:first-child, td:first-child { text-align: left; }
table.wide { font-size: .9rem; } table.wide th, table.wide td { padding: .3rem .5rem; white-space: nowrap; }
.warning { border-left: 3px solid var(--text-series); padding-left: .8rem; }
svg { width: 100%; height: auto; } svg text { fill: var(--muted); font: 13px system-ui, sans-serif; }
.grid { stroke: var(--line); stroke-width: 1; } .axis { stroke: var(--muted); stroke-width: 1; }
svg [class$="-line"] { fill: none; stroke-width: 2.5; } svg [class$="-interval"] { fill: none; stroke-width: 1.2; }
.text-line, .text-interval { stroke: var(--text-series); } .text-dot { fill: var(--text-series); }
.kv-line, .kv-interval { stroke: var(--kv-series); } .kv-dot { fill: var(--kv-series); }
.none-line, .none-interval { stroke: var(--none-series); } .none-dot { fill: var(--none-series); }
.other1-line, .other1-interval { stroke: var(--other1-series); } .other1-dot { fill: var(--other1-series); }
.other2-line, .other2-interval { stroke: var(--other2-series); } .other2-dot { fill: var(--other2-series); }
.other3-line, .other3-interval { stroke: var(--other3-series); } .other3-dot { fill: var(--other3-series); }
.other4-line, .other4-interval { stroke: var(--other4-series); } .other4-dot { fill: var(--other4-series); }
.other5-line, .other5-interval { stroke: var(--other5-series); } .other5-dot { fill: var(--other5-series); }
svg .label { font-weight: 600; fill: var(--ink); } svg .bar-interval { stroke: var(--ink); }
.pair { display: grid; grid-template-columns: 1fr 1fr; gap: 1rem; margin: .3rem 0 1.6rem; }
.answer { border-left: 3px solid var(--line); padding: .1rem .8rem; white-space: pre-wrap; overflow-wrap: anywhere; }
.answer b { display: block; font-size: .85rem; } .answer.text { border-color: var(--text-series); }
.answer.kv { border-color: var(--kv-series); }
@media (max-width: 40rem) { .pair { grid-template-columns: 1fr; } }
)css";

std::string Number(double value) { return Decimal(value, 1); }

/// The smallest of 1, 2, 5 times a power of ten that gives at most six steps.
double TickStep(double range) {
  double step = std::pow(10, std::floor(std::log10(std::max(range, 1e-3))) - 1);
  for (const double factor : {1.0, 2.0, 5.0, 10.0, 20.0}) {
    if (range / (step * factor) <= 6) return step * factor;
  }
  return step * 50;
}

int DigitsOf(double step) { return step < 0.01 ? 3 : step < 0.1 ? 2 : step < 1 ? 1 : 0; }

/// From data to places in the picture; both ends of y are ticks.
struct Scale {
  double low_y = 0, high_y = 0, step = 1;
  double low_x = 0, high_x = 1;
  double right = kRight;

  void SetY(const std::vector<ChartSeries>& series) {
    for (const ChartSeries& each : series) {
      for (const ChartSeries::Point& point : each.points) {
        const Interval shown = point.interval.value_or(Interval{point.y, point.y});
        for (const double y : {point.y, shown.low, shown.high}) {
          if (!std::isfinite(y)) continue;
          low_y = std::min(low_y, y);
          high_y = std::max(high_y, y);
        }
      }
    }
    if (high_y - low_y < 1e-9) high_y = low_y + 1;
    step = TickStep(high_y - low_y);
    low_y = std::floor(low_y / step + 1e-9) * step;
    high_y = std::ceil(high_y / step - 1e-9) * step;
  }
  double X(double x) const {
    return kLeft + (x - low_x) / (high_x - low_x) * (kWidth - kLeft - right);
  }
  double Y(double y) const {
    const double clamped = std::isfinite(y) ? std::clamp(y, low_y, high_y) : low_y;
    return kHeight - kBottom - (clamped - low_y) / (high_y - low_y) * (kHeight - kTop - kBottom);
  }
  double End() const { return kWidth - right; }
};

std::string SvgText(double x, double y, const std::string& text, const std::string& attributes) {
  return "<text " + attributes + " x=\"" + Number(x) + "\" y=\"" + Number(y) + "\">" +
         EscapeHtml(text) + "</text>\n";
}

std::string SvgLine(const std::string& css, double x1, double y1, double x2, double y2) {
  return "<line class=\"" + css + "\" x1=\"" + Number(x1) + "\" x2=\"" + Number(x2) + "\" y1=\"" +
         Number(y1) + "\" y2=\"" + Number(y2) + "\"/>\n";
}

std::string Frame(const std::string& description, const std::string& y_label, const Scale& scale) {
  std::string svg = "<svg viewBox=\"0 0 " + Number(kWidth) + " " + Number(kHeight) +
                    "\" role=\"img\" aria-label=\"" + EscapeHtml(description) + "\">\n";
  const int steps = static_cast<int>(std::lround((scale.high_y - scale.low_y) / scale.step));
  for (int i = 0; i <= steps; ++i) {
    const double value = scale.low_y + i * scale.step;
    const double shown = std::abs(value) < scale.step / 100 ? 0.0 : value;
    svg += SvgLine("grid", kLeft, scale.Y(value), scale.End(), scale.Y(value));
    svg += SvgText(kLeft - 8, scale.Y(value) + 4, Decimal(shown, DigitsOf(scale.step)),
                   "text-anchor=\"end\"");
  }
  svg += SvgLine("axis", kLeft, scale.Y(0), scale.End(), scale.Y(0));
  return svg + SvgText(4, kTop - 22, y_label, "class=\"unit\"");
}

std::string PointTitle(const std::string& place, const ChartSeries::Point& point, int digits) {
  std::string title = place + ": " + Decimal(point.y, digits);
  if (point.interval) {
    title += " [" + Decimal(point.interval->low, digits) + ", " +
             Decimal(point.interval->high, digits) + "]";
  }
  return "<title>" + EscapeHtml(title) + "</title>";
}

std::string Curve(const ChartSeries& series, const Scale& scale, int digits, double shift) {
  std::string points, dots, intervals;
  for (const ChartSeries::Point& point : series.points) {
    const double x = scale.X(point.x) + shift, y = scale.Y(point.y);
    points += Number(x) + "," + Number(y) + " ";
    if (point.interval) {
      intervals += SvgLine(series.color + "-interval", x, scale.Y(point.interval->low), x,
                           scale.Y(point.interval->high));
    }
    dots += "<circle class=\"" + series.color + "-dot\" cx=\"" + Number(x) + "\" cy=\"" +
            Number(y) + "\" r=\"4.5\">" +
            PointTitle(series.label + ", " + Decimal(point.x, 0), point, digits) + "</circle>\n";
  }
  return intervals + "<polyline class=\"" + series.color + "-line\" points=\"" + points + "\"/>\n" +
         dots;
}

/// Room for names beside the last points.
double RightMargin(const std::vector<ChartSeries>& series) {
  std::size_t longest = 0;
  for (const ChartSeries& each : series) longest = std::max(longest, each.label.size());
  return std::clamp(30 + 7.5 * static_cast<double>(longest), kRight, 220.0);
}

/// Names beside the last points, moved apart where they would cover one another.
std::string EndLabels(const std::vector<const ChartSeries*>& series, const Scale& scale) {
  std::vector<std::pair<double, const ChartSeries*>> labels;
  for (const ChartSeries* each : series) labels.emplace_back(scale.Y(each->points.back().y), each);
  std::stable_sort(labels.begin(), labels.end(),
                   [](const auto& a, const auto& b) { return a.first < b.first; });
  std::string svg;
  double least = kTop;
  for (auto& [y, each] : labels) {
    y = std::max(y, least);
    least = y + kLabelHeight;
  }
  const double below = labels.back().first - (kHeight - kLabelHeight);
  for (auto& [y, each] : labels) {
    y -= std::max(below, 0.0);
    svg += "<circle class=\"" + each->color + "-dot\" cx=\"" + Number(scale.End() + 16) +
           "\" cy=\"" + Number(y) + "\" r=\"3.5\"/>\n" +
           SvgText(scale.End() + 24, y + 4, each->label, "class=\"label\"");
  }
  return svg;
}

}  // namespace

std::string HtmlPage(const std::string& title, const std::string& body) {
  return "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n"
         "<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n<title>" +
         EscapeHtml(title) + "</title>\n<style>" + std::string(kStyle) +
         "</style>\n</head>\n<body>\n<h1>" + EscapeHtml(title) + "</h1>\n" + body +
         "</body>\n</html>\n";
}

std::string LineChart(const Chart& chart) {
  std::set<double> xs;
  std::vector<const ChartSeries*> drawn;
  for (const ChartSeries& series : chart.series) {
    for (const ChartSeries::Point& point : series.points) xs.insert(point.x);
    if (!series.points.empty()) drawn.push_back(&series);
  }
  if (xs.empty()) return {};
  Scale scale;
  scale.SetY(chart.series);
  scale.right = RightMargin(chart.series);
  scale.low_x = std::min(0.0, *xs.begin());
  scale.high_x = std::max(*xs.rbegin(), scale.low_x + 1);
  std::string svg = Frame(chart.description, chart.y_label, scale);
  double last = -100;
  for (const double x : xs) {
    if (scale.X(x) - last < 24) continue;  // numbers would run into one another
    last = scale.X(x);
    svg += SvgText(last, kHeight - kBottom + 20, Decimal(x, 0), "text-anchor=\"middle\"");
  }
  svg += SvgText((kLeft + scale.End()) / 2, kHeight - 8, chart.x_label, "text-anchor=\"middle\"");
  // Intervals at the same x stand side by side.
  const bool intervals = std::any_of(drawn.begin(), drawn.end(), [](const ChartSeries* series) {
    return series->points.front().interval.has_value();
  });
  for (std::size_t i = 0; i < drawn.size(); ++i) {
    const double shift =
        intervals ? 5 * (static_cast<double>(i) - static_cast<double>(drawn.size() - 1) / 2) : 0;
    svg += Curve(*drawn[i], scale, chart.digits, shift);
  }
  return svg + EndLabels(drawn, scale) + "</svg>\n";
}

std::string BarChartSvg(const BarChart& chart) {
  std::vector<const ChartSeries*> drawn;
  for (const ChartSeries& series : chart.series) {
    if (!series.points.empty()) drawn.push_back(&series);
  }
  if (drawn.empty() || chart.groups.empty()) return {};
  Scale scale;
  scale.SetY(chart.series);
  scale.right = RightMargin(chart.series);
  scale.high_x = static_cast<double>(chart.groups.size());
  std::string svg = Frame(chart.description, chart.y_label, scale);
  const double group = scale.X(1) - scale.X(0);
  const double width = group * 0.8 / static_cast<double>(drawn.size());
  for (std::size_t i = 0; i < chart.groups.size(); ++i) {
    svg += SvgText(scale.X(static_cast<double>(i) + 0.5), kHeight - kBottom + 20, chart.groups[i],
                   "text-anchor=\"middle\"");
  }
  for (std::size_t s = 0; s < drawn.size(); ++s) {
    for (const ChartSeries::Point& point : drawn[s]->points) {
      const double x = scale.X(point.x) + group * 0.1 + width * static_cast<double>(s);
      const double top = std::min(scale.Y(point.y), scale.Y(0));
      const auto index = static_cast<std::size_t>(std::max(point.x, 0.0));
      const std::string place = drawn[s]->label + ", " +
                                (index < chart.groups.size() ? chart.groups[index] : std::string());
      svg += "<rect class=\"" + drawn[s]->color + "-dot\" x=\"" + Number(x) + "\" y=\"" +
             Number(top) + "\" width=\"" + Number(std::max(width - 2, 1.0)) + "\" height=\"" +
             Number(std::abs(scale.Y(point.y) - scale.Y(0))) + "\">" +
             PointTitle(place, point, chart.digits) + "</rect>\n";
      if (point.interval) {
        svg += SvgLine("bar-interval", x + width / 2 - 1, scale.Y(point.interval->low),
                       x + width / 2 - 1, scale.Y(point.interval->high));
      }
    }
  }
  double y = kTop;
  for (const ChartSeries* series : drawn) {
    svg += "<circle class=\"" + series->color + "-dot\" cx=\"" + Number(scale.End() + 16) +
           "\" cy=\"" + Number(y) + "\" r=\"4.5\"/>\n" +
           SvgText(scale.End() + 24, y + 4, series->label, "class=\"label\"");
    y += kLabelHeight + 3;
  }
  return svg + "</svg>\n";
}

}  // namespace inferscale
