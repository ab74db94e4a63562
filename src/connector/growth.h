#ifndef INFERSCALE_CONNECTOR_GROWTH_H_
#define INFERSCALE_CONNECTOR_GROWTH_H_

/// \file growth.h
/// CounterGrowth: by how much counters that only rise have risen since it was last asked. Asked
/// after every engine step, of which most count nothing. Not thread-safe.

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <string_view>

namespace inferscale {

/// What has been counted since the last call: metric -> number above 0.
using Growth = std::map<std::string, std::int64_t>;

class CounterGrowth {
 public:
  /// Adds what `counter`, known by its name, has risen by.
  void Add(std::string_view name, std::int64_t counter, Growth& out) {
    auto before = before_.find(name);
    if (before == before_.end()) before = before_.emplace(name, 0).first;
    if (counter > before->second) out.emplace(name, counter - before->second);
    before->second = counter;
  }

 private:
  std::map<std::string, std::int64_t, std::less<>> before_;
};

}  // namespace inferscale

#endif  // INFERSCALE_CONNECTOR_GROWTH_H_
