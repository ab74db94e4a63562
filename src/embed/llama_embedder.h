#ifndef INFERSCALE_EMBED_LLAMA_EMBEDDER_H_
#define INFERSCALE_EMBED_LLAMA_EMBEDDER_H_

#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "embed/make_embedder.h"
#include "inferscale/embedder.h"
#include "llama/embedding_context.h"

namespace inferscale {

/// Vectors of a GGUF embedding model, computed in this process. Thread-safe: calls take turns.
class LlamaEmbedder : public Embedder {
 public:
  /// \param spec location, threads and cache_folder are used.
  static Result<std::unique_ptr<LlamaEmbedder>> Load(const EmbedderSpec& spec);

  Result<std::vector<std::vector<float>>> Embed(std::span<const std::string> texts) override;
  std::optional<std::int64_t> CountTokens(std::span<const std::string> texts) const override;
  std::int32_t dimensions() const override { return context_->dimensions(); }
  std::int32_t busy_threads() const override { return threads_; }
  const std::string& id() const override { return id_; }

 private:
  LlamaEmbedder() = default;

  std::unique_ptr<EmbeddingContext> context_;
  std::int32_t threads_ = 1;
  std::string id_;
};

}  // namespace inferscale

#endif  // INFERSCALE_EMBED_LLAMA_EMBEDDER_H_
