#include "embed/llama_embedder.h"

#include <algorithm>
#include <cstdint>
#include <utility>

#include "base/hash.h"
#include "base/utf8.h"
#include "llama/file_fingerprint.h"

namespace inferscale {
namespace {

/// Texts handed over at a time, so that a question waits for one such batch of an ingest at most.
constexpr std::size_t kBatchTexts = 8;

}  // namespace

Result<std::unique_ptr<LlamaEmbedder>> LlamaEmbedder::Load(const EmbedderSpec& spec) {
  std::unique_ptr<LlamaEmbedder> embedder(new LlamaEmbedder());
  INFERSCALE_ASSIGN_OR_RETURN(embedder->context_,
                              EmbeddingContext::Load(spec.location, spec.threads));
  embedder->threads_ = std::max(1, spec.threads);
  INFERSCALE_ASSIGN_OR_RETURN(const Sha256Digest digest,
                              FileFingerprint(spec.location, spec.cache_folder));
  embedder->id_ = HexEncode(Sha256("gguf\n" + HexEncode(digest) + "\n" +
                                   std::to_string(embedder->dimensions()) + "\nmean"));
  return embedder;
}

Result<std::vector<std::vector<float>>> LlamaEmbedder::Embed(std::span<const std::string> texts) {
  std::vector<std::vector<float>> vectors(
      texts.size(), std::vector<float>(static_cast<std::size_t>(dimensions()), 0.0f));
  std::vector<std::size_t> places;
  for (std::size_t i = 0; i < texts.size(); ++i) {
    if (!TrimWhitespace(texts[i]).empty()) places.push_back(i);
  }
  for (std::size_t begin = 0; begin < places.size(); begin += kBatchTexts) {
    const std::size_t end = std::min(begin + kBatchTexts, places.size());
    std::vector<std::string> batch;
    for (std::size_t i = begin; i < end; ++i) batch.push_back(texts[places[i]]);
    INFERSCALE_ASSIGN_OR_RETURN(auto computed, context_->Embed(batch));
    for (std::size_t i = begin; i < end; ++i) vectors[places[i]] = std::move(computed[i - begin]);
  }
  return vectors;
}

std::optional<std::int64_t> LlamaEmbedder::CountTokens(std::span<const std::string> texts) const {
  std::int64_t tokens = 0;
  for (const std::string& text : texts) {
    if (!TrimWhitespace(text).empty()) tokens += context_->CountTokens(text);
  }
  return tokens;
}

}  // namespace inferscale
