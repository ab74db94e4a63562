#ifndef INFERSCALE_EMBEDDER_H_
#define INFERSCALE_EMBEDDER_H_

/// \file embedder.h
/// Embedder: text to unit vectors. Implementations are thread-safe; vectors of different embedders
/// are never compared (id() tells them apart).

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "inferscale/result.h"

namespace inferscale {

class Embedder {
 public:
  virtual ~Embedder() = default;
  /// \return one vector per text, [dimensions()], of length 1 (a text without any token: all
  /// zeros). Texts longer than the model's window are cut. kUnavailable when a remote endpoint
  /// fails.
  virtual Result<std::vector<std::vector<float>>> Embed(std::span<const std::string> texts) = 0;
  /// Tokens that Embed() of these texts computes; none: this embedder cannot tell.
  virtual std::optional<std::int64_t> CountTokens(std::span<const std::string> /*texts*/) const {
    return std::nullopt;
  }
  virtual std::int32_t dimensions() const = 0;
  /// Threads of this process that one Embed() keeps busy; 0: somebody else computes.
  virtual std::int32_t busy_threads() const { return 0; }
  /// Hash of what decides the vectors (model file or endpoint and model name), as hexadecimal text.
  virtual const std::string& id() const = 0;
};

}  // namespace inferscale

#endif  // INFERSCALE_EMBEDDER_H_
