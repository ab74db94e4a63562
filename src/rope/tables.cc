#include <algorithm>
#include <cmath>
#include <string>
#include <utility>

#include "inferscale/rope.h"

namespace inferscale {

Result<std::shared_ptr<const RopeTables>> RopeTables::Create(const RopeSpec& spec,
                                                             std::int32_t positions) {
  // Any key width that the spec's own width fits: the tables do not depend on it.
  INFERSCALE_RETURN_IF_ERROR(
      spec.Validate(static_cast<std::int32_t>(spec.layer_group.size()), std::max(spec.width, 1)));
  if (positions <= 0) {
    return InvalidArgument("RoPE tables need a positive number of positions, not " +
                           std::to_string(positions));
  }
  const std::size_t pairs = static_cast<std::size_t>(spec.width / 2);
  // Counts come from the model's context length; this bounds what a hostile one can allocate.
  constexpr std::size_t kMaxFloats = std::size_t{1} << 30;
  const std::size_t row = spec.groups.size() * pairs * 2;
  if (row > 0 && static_cast<std::size_t>(positions) > kMaxFloats / row) {
    return ResourceExhausted("RoPE tables for " + std::to_string(positions) +
                             " positions are larger than 4 GiB; use a smaller context");
  }
  std::shared_ptr<RopeTables> tables(new RopeTables());
  tables->spec_ = spec;
  tables->positions_ = positions;
  tables->cos_sin_.reserve(row * static_cast<std::size_t>(positions));
  for (const RopeGroup& group : spec.groups) {
    for (std::int32_t position = 0; position < positions; ++position) {
      for (const double frequency : group.inverse_frequency) {
        const double angle = position * frequency;
        tables->cos_sin_.push_back(static_cast<float>(std::cos(angle)));
        tables->cos_sin_.push_back(static_cast<float>(std::sin(angle)));
      }
    }
  }
  return std::shared_ptr<const RopeTables>(std::move(tables));
}

std::size_t RopeTables::MemorySizeBytes() const {
  std::size_t bytes = sizeof(*this) + cos_sin_.capacity() * sizeof(float) +
                      spec_.layer_group.capacity() * sizeof(std::int32_t);
  for (const RopeGroup& group : spec_.groups) {
    bytes += sizeof(group) + group.inverse_frequency.capacity() * sizeof(double);
  }
  return bytes;
}

}  // namespace inferscale
