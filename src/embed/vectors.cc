#include "embed/vectors.h"

#include <cmath>

namespace inferscale {

bool Normalize(std::span<float> vector) {
  double squares = 0;
  for (const float x : vector) squares += static_cast<double>(x) * x;
  if (!std::isfinite(squares)) return false;
  if (squares == 0) return true;
  const double scale = 1.0 / std::sqrt(squares);
  for (float& x : vector) x = static_cast<float>(x * scale);
  return true;
}

}  // namespace inferscale
