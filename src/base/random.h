#ifndef INFERSCALE_BASE_RANDOM_H_
#define INFERSCALE_BASE_RANDOM_H_

/// \file random.h
/// Randomness fit for secrets and identifiers. Thread-safe.

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace inferscale {

std::vector<std::uint8_t> RandomBytes(std::size_t count);
/// A random (version 4) UUID in its usual lower-case form.
std::string NewUuid();

}  // namespace inferscale

#endif  // INFERSCALE_BASE_RANDOM_H_
