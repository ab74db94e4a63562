#include "server/metrics.h"

#include <array>
#include <charconv>
#include <cmath>

namespace inferscale {
namespace {

std::string Number(double value) {
  std::array<char, 32> text;
  const auto [end, error] = std::to_chars(text.data(), text.data() + text.size(), value);
  return {text.data(), end};
}

/// a="1",b="2"
std::string LabelText(const MetricLabels& labels) {
  std::string text;
  for (const auto& [name, value] : labels) {
    if (!text.empty()) text += ',';
    text.append(name).append("=\"");
    for (const char c : value) {
      if (c == '\n') {
        text += "\\n";
        continue;
      }
      if (c == '"' || c == '\\') text += '\\';
      text += c;
    }
    text += '"';
  }
  return text;
}

void AppendLine(std::string* text, std::string_view name, std::string_view labels, double value) {
  text->append(name);
  if (!labels.empty()) text->append("{").append(labels).append("}");
  text->append(" ").append(Number(value)).append("\n");
}

}  // namespace

void Metrics::Count(std::string_view name, const MetricLabels& labels, double amount) {
  std::string key = LabelText(labels);
  const std::scoped_lock lock(mutex_);
  counters_[std::string(name)][std::move(key)] += amount;
}

void Metrics::ObserveSeconds(std::string_view name, const MetricLabels& labels, double seconds) {
  std::string key = LabelText(labels);
  const std::scoped_lock lock(mutex_);
  Histogram& histogram = histograms_[std::string(name)][std::move(key)];
  ++histogram.count;
  histogram.sum += seconds;
  for (std::size_t i = 0; i < kBuckets.size(); ++i) {
    if (seconds <= kBuckets[i]) ++histogram.counts[i];
  }
}

std::string Metrics::Text() const {
  std::string text;
  const std::scoped_lock lock(mutex_);
  for (const auto& [name, samples] : counters_) {
    text.append("# TYPE ").append(name).append(" counter\n");
    for (const auto& [labels, value] : samples) AppendLine(&text, name, labels, value);
  }
  for (const auto& [name, samples] : histograms_) {
    text.append("# TYPE ").append(name).append(" histogram\n");
    for (const auto& [labels, histogram] : samples) {
      const std::string comma = labels.empty() ? "" : labels + ",";
      for (std::size_t i = 0; i < kBuckets.size(); ++i) {
        AppendLine(&text, name + "_bucket", comma + "le=\"" + Number(kBuckets[i]) + "\"",
                   static_cast<double>(histogram.counts[i]));
      }
      AppendLine(&text, name + "_bucket", comma + "le=\"+Inf\"",
                 static_cast<double>(histogram.count));
      AppendLine(&text, name + "_sum", labels, histogram.sum);
      AppendLine(&text, name + "_count", labels, static_cast<double>(histogram.count));
    }
  }
  return text;
}

void AppendSample(std::string* text, std::string_view type, std::string_view name,
                  const MetricLabels& labels, double value, bool first) {
  if (first) text->append("# TYPE ").append(name).append(" ").append(type).append("\n");
  AppendLine(text, name, LabelText(labels), value);
}

}  // namespace inferscale
