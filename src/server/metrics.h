#ifndef INFERSCALE_SERVER_METRICS_H_
#define INFERSCALE_SERVER_METRICS_H_

/// \file metrics.h
/// Metrics: counters and histograms in Prometheus' text format. Labels never name a tenant, an
/// owner or a key. Written here rather than taken from prometheus-cpp, whose packages bring an HTTP
/// server and curl for what is a page of text. Thread-safe.

#include <array>
#include <cstdint>
#include <map>
#include <mutex>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace inferscale {

using MetricLabels = std::vector<std::pair<std::string_view, std::string_view>>;

class Metrics {
 public:
  /// \param name with its unit, "inferscale_…_total"
  void Count(std::string_view name, const MetricLabels& labels, double amount = 1);
  void ObserveSeconds(std::string_view name, const MetricLabels& labels, double seconds);
  /// Every sample.
  std::string Text() const;

  /// Upper bounds of a histogram's buckets, in seconds.
  static constexpr std::array kBuckets = {0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2,
                                          0.5,   1.0,   2.0,   5.0,  10.0, 30.0, 60.0};

 private:
  struct Histogram {
    std::array<std::int64_t, kBuckets.size()> counts{};
    std::int64_t count = 0;
    double sum = 0;
  };
  mutable std::mutex mutex_;
  // By family, then by labels as they are written.
  std::map<std::string, std::map<std::string, double>, std::less<>> counters_;
  std::map<std::string, std::map<std::string, Histogram>, std::less<>> histograms_;
};

/// One gauge in Prometheus' text format: "# TYPE …" if `first`, then "name{labels} value".
void AppendSample(std::string* text, std::string_view type, std::string_view name,
                  const MetricLabels& labels, double value, bool first = true);

}  // namespace inferscale

#endif  // INFERSCALE_SERVER_METRICS_H_
