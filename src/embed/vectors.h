#ifndef INFERSCALE_EMBED_VECTORS_H_
#define INFERSCALE_EMBED_VECTORS_H_

#include <span>

namespace inferscale {

/// Scales to length 1; a vector of zeros stays one. \return false, leaving it as it was, when an
/// element is not finite.
bool Normalize(std::span<float> vector);

}  // namespace inferscale

#endif  // INFERSCALE_EMBED_VECTORS_H_
