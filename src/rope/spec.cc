#include <algorithm>
#include <cmath>
#include <limits>
#include <string>

#include "inferscale/rope.h"

namespace inferscale {

Status RopeSpec::Validate(std::int32_t layers, std::int32_t key_dim) const {
  if (layers <= 0 || key_dim <= 0)
    return InvalidArgument("RoPE: a model has layers and head elements");
  if (pairing != RopePairing::kInterleaved && pairing != RopePairing::kHalf) {
    return InvalidArgument("RoPE: unknown pairing");
  }
  if (width < 0 || width % 2 != 0 || width > key_dim) {
    return InvalidArgument("RoPE: a width of " + std::to_string(width) +
                           " is not an even number of at most " + std::to_string(key_dim));
  }
  if (layer_group.size() != static_cast<std::size_t>(layers)) {
    return InvalidArgument("RoPE: " + std::to_string(layer_group.size()) + " layer groups for " +
                           std::to_string(layers) + " layers");
  }
  for (const RopeGroup& group : groups) {
    if (group.inverse_frequency.size() != static_cast<std::size_t>(width / 2)) {
      return InvalidArgument("RoPE: a group has " + std::to_string(group.inverse_frequency.size()) +
                             " frequencies for a width of " + std::to_string(width));
    }
    if (!std::all_of(group.inverse_frequency.begin(), group.inverse_frequency.end(),
                     [](double frequency) { return std::isfinite(frequency); })) {
      return InvalidArgument("RoPE: a frequency is not finite");
    }
  }
  for (std::size_t layer = 0; layer < layer_group.size(); ++layer) {
    if (layer_group[layer] < -1 || layer_group[layer] >= static_cast<std::int64_t>(groups.size())) {
      return InvalidArgument("RoPE: layer " + std::to_string(layer) + " names group " +
                             std::to_string(layer_group[layer]) + " of " +
                             std::to_string(groups.size()));
    }
  }
  if (width == 0 && !groups.empty()) return InvalidArgument("RoPE: groups without a width");
  return OkStatus();
}

RopeGroup MakeRopeGroup(double base, std::int32_t width, std::span<const double> scaling) {
  RopeGroup group;
  for (std::int32_t i = 0; i < width / 2; ++i) {
    const double factor =
        static_cast<std::size_t>(i) < scaling.size() ? scaling[static_cast<std::size_t>(i)] : 1.0;
    group.inverse_frequency.push_back(std::pow(base, -2.0 * i / width) / factor);
  }
  return group;
}

double RelocationError(const RopeSpec& spec, std::span<const float> keys, std::int32_t from,
                       std::span<const float> expected, std::int32_t to, std::int32_t layers,
                       std::int32_t kv_heads, std::int32_t key_dim) {
  const double failed = std::numeric_limits<double>::infinity();
  if (kv_heads <= 0 || !spec.Validate(layers, key_dim).ok()) return failed;
  const std::size_t layer_size =
      static_cast<std::size_t>(kv_heads) * static_cast<std::size_t>(key_dim);
  if (keys.size() != layer_size * static_cast<std::size_t>(layers) ||
      expected.size() != keys.size()) {
    return failed;
  }
  const double distance = static_cast<double>(to) - static_cast<double>(from);
  const bool interleaved = spec.pairing == RopePairing::kInterleaved;
  const std::size_t pairs = static_cast<std::size_t>(spec.width / 2);
  double worst = 0;
  std::vector<double> head(static_cast<std::size_t>(key_dim));
  for (std::size_t layer = 0; layer < static_cast<std::size_t>(layers); ++layer) {
    const std::int32_t group = spec.layer_group[layer];
    double difference = 0, norm = 0;
    for (std::size_t h = 0; h < static_cast<std::size_t>(kv_heads); ++h) {
      const std::size_t start = layer * layer_size + h * head.size();
      std::copy_n(keys.begin() + static_cast<std::ptrdiff_t>(start), head.size(), head.begin());
      for (std::size_t i = 0; group >= 0 && i < pairs; ++i) {
        const double angle =
            distance * spec.groups[static_cast<std::size_t>(group)].inverse_frequency[i];
        double& x = head[interleaved ? 2 * i : i];
        double& y = head[interleaved ? 2 * i + 1 : i + pairs];
        const double turned = x * std::cos(angle) - y * std::sin(angle);
        y = y * std::cos(angle) + x * std::sin(angle);
        x = turned;
      }
      for (std::size_t d = 0; d < head.size(); ++d) {
        const double wanted = expected[start + d];
        difference += (head[d] - wanted) * (head[d] - wanted);
        norm += wanted * wanted;
      }
    }
    const double error = norm > 0 ? std::sqrt(difference / norm) : std::sqrt(difference);
    // A NaN is a failure too, which max() would lose.
    worst = std::isfinite(error) ? std::max(worst, error) : failed;
    if (worst == failed) break;
  }
  return worst;
}

}  // namespace inferscale
