#ifndef INFERSCALE_EMBED_MAKE_EMBEDDER_H_
#define INFERSCALE_EMBED_MAKE_EMBEDDER_H_

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>

#include "inferscale/embedder.h"

namespace inferscale {

struct EmbedderSpec {
  /// Path of a GGUF embedding model, or the http(s) URL of an OpenAI-compatible server: ".../v1" or
  /// ".../v1/embeddings".
  std::string location;

  // Of a GGUF model.
  std::int32_t threads = 1;
  std::filesystem::path cache_folder;  ///< remembers the file's hash; empty: hashed at every start

  // Of an endpoint.
  std::string model;
  std::string api_key;
  std::int32_t dimensions = 0;  ///< 0: learnt with one request when the embedder is made
  std::chrono::milliseconds timeout{30'000};
};

/// kInvalidArgument, kNotFound or kUnsupported say what is wrong with the location; kUnavailable:
/// the endpoint does not answer.
Result<std::unique_ptr<Embedder>> MakeEmbedder(const EmbedderSpec& spec);

}  // namespace inferscale

#endif  // INFERSCALE_EMBED_MAKE_EMBEDDER_H_
