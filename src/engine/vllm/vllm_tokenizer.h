#ifndef INFERSCALE_ENGINE_VLLM_VLLM_TOKENIZER_H_
#define INFERSCALE_ENGINE_VLLM_VLLM_TOKENIZER_H_

#include <cstdint>
#include <functional>
#include <list>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include <nlohmann/json.hpp>

#include "engine/skeleton_renderer.h"
#include "inferscale/result.h"

namespace inferscale {

/// The model's tokenizer, asked over vLLM's HTTP API. Remembers the ids of texts: a chat tokenises
/// the same facts again and again. Thread-safe.
class VllmTokenizer {
 public:
  /// Posts a body to a path of any server that answers.
  using Ask = std::function<Result<nlohmann::json>(std::string_view path, const nlohmann::json&)>;

  explicit VllmTokenizer(Ask ask, std::size_t cache_bytes = std::size_t{64} << 20)
      : ask_(std::move(ask)), cache_bytes_(cache_bytes) {}

  /// Ids of plain text. The server's tokenizer knows special tokens by their spelling: a text that
  /// spells one is cut inside the name, so that it stays text.
  Result<TokenIds> Tokenize(std::string_view text) const;
  /// Ids of a template's own text: special tokens are recognised.
  Result<TokenIds> TokenizeSkeleton(std::string_view text) const;
  Result<std::string> Detokenize(std::span<const TokenId> ids) const;
  /// The text of a prompt as the server's chat template renders it.
  Result<std::string> Render(const std::vector<TemplateMessage>& messages) const;

  std::size_t cached_bytes() const;

 private:
  struct Tokens {
    TokenIds ids;
    std::vector<std::string> spellings;  ///< if asked for
  };
  struct CacheEntry {
    std::string text;
    TokenIds ids;
  };
  Result<Tokens> AskTokens(nlohmann::json body, bool spellings) const;
  Result<TokenIds> Guarded(std::string_view text) const;

  const Ask ask_;
  const std::size_t cache_bytes_;
  mutable std::mutex mutex_;
  mutable std::list<CacheEntry> recency_;  ///< newest first
  mutable std::unordered_map<std::string_view, std::list<CacheEntry>::iterator> cache_;
  mutable std::size_t used_ = 0;
};

/// SkeletonRenderer over a vLLM server's chat template. Falls back to plain "User: …" lines when
/// the model has none.
class VllmRenderer final : public SkeletonRenderer {
 public:
  explicit VllmRenderer(std::shared_ptr<const VllmTokenizer> tokenizer)
      : tokenizer_(std::move(tokenizer)) {}
  /// Once, before anything is rendered.
  Status Start();

 protected:
  Result<std::string> RenderTemplate(const std::vector<TemplateMessage>& messages) const override;
  Result<TokenIds> TokenizeSkeleton(std::string_view text) const override;
  Result<TokenIds> TokenizeText(std::string_view text) const override;

 private:
  const std::shared_ptr<const VllmTokenizer> tokenizer_;
  bool plain_ = false;
};

}  // namespace inferscale

#endif  // INFERSCALE_ENGINE_VLLM_VLLM_TOKENIZER_H_
