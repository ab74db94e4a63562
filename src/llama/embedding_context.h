#ifndef INFERSCALE_LLAMA_EMBEDDING_CONTEXT_H_
#define INFERSCALE_LLAMA_EMBEDDING_CONTEXT_H_

#include <cstdint>
#include <filesystem>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <vector>

#include "inferscale/result.h"
#include "llama/llama_context.h"
#include "llama/llama_model.h"

namespace inferscale {

/// A sentence-embedding GGUF (BERT and its like) with mean pooling. Thread-safe: calls take turns.
class EmbeddingContext {
 public:
  static Result<std::unique_ptr<EmbeddingContext>> Load(const std::filesystem::path& model,
                                                        std::int32_t threads,
                                                        std::int32_t gpu_layers = 0);

  std::int32_t dimensions() const { return dimensions_; }
  std::int32_t window_tokens() const { return window_; }
  const std::filesystem::path& path() const { return model_->path(); }

  /// [texts][dimensions], each of length 1. A longer text is cut to the window; an empty or blank
  /// one is embedded as its special tokens.
  Result<std::vector<std::vector<float>>> Embed(std::span<const std::string> texts);
  /// Tokens that Embed() of this text computes.
  std::int64_t CountTokens(const std::string& text) const {
    return static_cast<std::int64_t>(Tokenize(text).size());
  }

 private:
  EmbeddingContext() = default;
  TokenIds Tokenize(const std::string& text) const;

  std::shared_ptr<const LlamaModel> model_;
  std::unique_ptr<LlamaContext> context_;
  std::mutex mutex_;
  std::int32_t dimensions_ = 0;
  std::int32_t window_ = 0;
};

}  // namespace inferscale

#endif  // INFERSCALE_LLAMA_EMBEDDING_CONTEXT_H_
