#ifndef INFERSCALE_EVAL_HTML_PAGE_H_
#define INFERSCALE_EVAL_HTML_PAGE_H_

/// \file html_page.h
/// Parts of the pages that measurements write: a frame with its style, and charts as inline SVG.
/// Everything is in the page itself, nothing is loaded and no script runs. Texts given here are
/// escaped here, except \p body. Pure functions; thread-safe.

#include <optional>
#include <string>
#include <vector>

#include "eval/statistics.h"

namespace inferscale {

/// A whole page. \param body HTML
std::string HtmlPage(const std::string& title, const std::string& body);

struct ChartSeries {
  struct Point {
    double x = 0, y = 0;
    std::optional<Interval> interval;  ///< drawn as a bar through the point
  };
  std::string label;
  std::string color;          ///< "none", "text", "kv", "other1" … "other5": names of the style
  std::vector<Point> points;  ///< by ascending x
};

struct Chart {
  std::string description;  ///< for those who cannot see it
  std::string x_label, y_label;
  int digits = 0;  ///< after the point, in values that are shown
  std::vector<ChartSeries> series;
};
/// Lines over a common scale that holds 0 and all intervals. Without a point: nothing.
std::string LineChart(const Chart& chart);

struct BarChart {
  std::string description;
  std::string y_label;
  int digits = 0;
  std::vector<std::string> groups;
  std::vector<ChartSeries> series;  ///< x of a point: index of its group
};
std::string BarChartSvg(const BarChart& chart);

}  // namespace inferscale

#endif  // INFERSCALE_EVAL_HTML_PAGE_H_
