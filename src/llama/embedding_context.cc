#include "llama/embedding_context.h"

#include <algorithm>
#include <cmath>
#include <exception>
#include <string_view>

#include "base/utf8.h"
#include "llama.h"

namespace inferscale {
namespace {

constexpr std::int32_t kMaxWindow = 2048;
constexpr std::int32_t kMaxSequences = 32;
/// No token has fewer bytes than one: more text than this cannot matter.
constexpr std::size_t kBytesPerWindowToken = 64;

}  // namespace

Result<std::unique_ptr<EmbeddingContext>> EmbeddingContext::Load(const std::filesystem::path& path,
                                                                 std::int32_t threads,
                                                                 std::int32_t gpu_layers) {
  INFERSCALE_ASSIGN_OR_RETURN(auto model,
                              LlamaModel::Load({.path = path, .gpu_layers = gpu_layers}));
  const bool causal = model->metadata().Integer("attention.causal", 1) != 0;
  if (causal && model->metadata().architecture.find("bert") == std::string::npos &&
      model->metadata().Integer("pooling_type", 0) == 0) {
    return InvalidArgument(
        "model file " + path.string() +
        " is a text generator, not an embedder; pass an embedding model's GGUF file "
        "with --embedder");
  }
  auto embedder = std::unique_ptr<EmbeddingContext>(new EmbeddingContext());
  embedder->model_ = model;
  embedder->window_ = std::clamp(llama_model_n_ctx_train(model->get()), 8, kMaxWindow);
  embedder->dimensions_ = llama_model_n_embd_out(model->get());
  LlamaContextOptions options;
  options.batch_tokens = embedder->window_;
  options.tokens_per_sequence = embedder->window_;
  options.sequences = kMaxSequences;
  options.shared_cache = true;
  options.threads = std::max(1, threads);
  options.embeddings = true;
  options.offload = gpu_layers != 0;
  INFERSCALE_ASSIGN_OR_RETURN(embedder->context_, LlamaContext::Create(model, options));
  // Rounded up to llama.cpp's granularity, the batch may exceed the positions the model has.
  embedder->window_ = std::min(embedder->window_, embedder->context_->batch_tokens());
  if (embedder->dimensions_ < 1) {
    return InvalidArgument("model file " + path.string() + " produces no embeddings");
  }
  return embedder;
}

TokenIds EmbeddingContext::Tokenize(const std::string& text) const {
  const std::string valid =
      ToValidUtf8(TruncateUtf8(text, static_cast<std::size_t>(window_) * kBytesPerWindowToken));
  TokenIds ids(valid.size() + 16);
  std::int32_t count = 0;
  try {
    count = llama_tokenize(model_->vocab(), valid.data(), static_cast<std::int32_t>(valid.size()),
                           ids.data(), static_cast<std::int32_t>(ids.size()), true, false);
  } catch (const std::exception&) {
    count = 0;
  }
  ids.resize(static_cast<std::size_t>(std::max(0, count)));
  if (ids.size() > static_cast<std::size_t>(window_)) {
    // The closing token, which the model was trained to see, stays.
    const TokenId last = ids.back();
    ids.resize(static_cast<std::size_t>(window_));
    if (llama_vocab_is_control(model_->vocab(), last)) ids.back() = last;
  }
  if (ids.empty()) {
    const TokenId bos = llama_vocab_bos(model_->vocab());
    ids.push_back(bos >= 0 ? bos : 0);
  }
  return ids;
}

Result<std::vector<std::vector<float>>> EmbeddingContext::Embed(
    std::span<const std::string> texts) {
  std::vector<TokenIds> ids;
  ids.reserve(texts.size());
  for (const std::string& text : texts) ids.push_back(Tokenize(text));

  std::vector<std::vector<float>> embeddings(texts.size());
  const std::scoped_lock lock(mutex_);
  for (std::size_t next = 0; next < texts.size();) {
    std::vector<BatchToken> batch;
    const std::size_t first = next;
    for (; next < texts.size() && next - first < kMaxSequences &&
           batch.size() + ids[next].size() <= static_cast<std::size_t>(context_->batch_tokens());
         ++next) {
      for (std::size_t i = 0; i < ids[next].size(); ++i) {
        batch.push_back({ids[next][i], static_cast<std::int32_t>(i),
                         static_cast<std::int32_t>(next - first), true});
      }
    }
    context_->ClearAll();
    INFERSCALE_ASSIGN_OR_RETURN(const DecodeOutcome outcome, context_->Decode(batch));
    if (outcome != DecodeOutcome::kOk) return Internal("the embedding was aborted");
    for (std::size_t i = first; i < next; ++i) {
      const float* values = context_->Embedding(static_cast<std::int32_t>(i - first));
      if (values == nullptr) return Internal("the embedding model produced no pooled embedding");
      double norm = 0;
      for (std::int32_t d = 0; d < dimensions_; ++d) norm += double{values[d]} * values[d];
      if (!std::isfinite(norm) || norm <= 0)
        return Internal("the embedding model produced no direction");
      const double scale = 1.0 / std::sqrt(norm);
      embeddings[i].resize(static_cast<std::size_t>(dimensions_));
      for (std::int32_t d = 0; d < dimensions_; ++d) {
        embeddings[i][d] = static_cast<float>(values[d] * scale);
      }
    }
  }
  return embeddings;
}

}  // namespace inferscale
