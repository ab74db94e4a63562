#include "engine/llama/memory_plan.h"

#include <algorithm>
#include <cstdio>

namespace inferscale {
namespace {

constexpr std::int32_t kDefaultContextTokens = 8192;
constexpr std::int32_t kSmallestContextTokens = 512;
constexpr std::int32_t kEncodingTokens = 4096;
constexpr std::int32_t kBatchTokens = 512;
/// llama.cpp rounds contexts up to this.
constexpr std::int32_t kContextGranularity = 256;
constexpr std::int64_t kSpareForSystem = std::int64_t{256} << 20;

std::int32_t RoundUp(std::int32_t value) {
  return (value + kContextGranularity - 1) / kContextGranularity * kContextGranularity;
}

std::string Mib(std::int64_t bytes) {
  return std::to_string((bytes + (std::int64_t{1} << 20) - 1) >> 20) + " MiB";
}

}  // namespace

std::string MemoryPlan::ToString() const {
  return "weights " + Mib(weights_bytes) + ", serving KV " + Mib(serving_kv_bytes) + " (" +
         std::to_string(parallel_sequences) + " × " + std::to_string(context_tokens) +
         " tokens), encoding KV " + Mib(encoding_kv_bytes) + ", computation " + Mib(compute_bytes) +
         ", block cache " + Mib(host_tier_bytes) + ", together " + Mib(TotalBytes());
}

std::int64_t KvTokenBytes(const GgufMetadata& metadata, std::int32_t element_bytes) {
  const std::int64_t layers = metadata.Integer("block_count", 1);
  const std::int64_t heads = std::max<std::int64_t>(1, metadata.Integer("attention.head_count", 1));
  std::int64_t kv_heads = metadata.Integer("attention.head_count_kv", heads);
  if (const auto per_layer =
          metadata.arrays.find(metadata.architecture + ".attention.head_count_kv");
      per_layer != metadata.arrays.end()) {
    kv_heads = *std::max_element(per_layer->second.begin(), per_layer->second.end());
  }
  const std::int64_t head_dim = metadata.Integer("embedding_length", 0) / heads;
  const std::int64_t key_dim = metadata.Integer("attention.key_length", head_dim);
  const std::int64_t value_dim = metadata.Integer("attention.value_length", head_dim);
  return std::max<std::int64_t>(1, layers * kv_heads * (key_dim + value_dim) * element_bytes);
}

Result<MemoryPlan> PlanMemory(const GgufMetadata& metadata, const LlamaEngineOptions& options,
                              std::int64_t available_bytes) {
  if (options.parallel_sequences < 1 || options.parallel_sequences > 256) {
    return InvalidArgument("parallel sequences must be 1 to 256, not " +
                           std::to_string(options.parallel_sequences));
  }
  if (options.encode_sequences < 1 || options.encode_sequences > 255) {
    return InvalidArgument("encode sequences must be 1 to 255, not " +
                           std::to_string(options.encode_sequences));
  }
  if (options.context_tokens < 0 || options.threads < 0 || options.threads > 1024) {
    return InvalidArgument("context tokens and threads cannot be negative");
  }
  const auto trained = static_cast<std::int32_t>(std::clamp<std::int64_t>(
      metadata.Integer("context_length", kDefaultContextTokens), 64, 1 << 26));
  MemoryPlan plan;
  plan.context_tokens = options.context_tokens > 0 ? std::min(options.context_tokens, trained)
                                                   : std::min(kDefaultContextTokens, trained);
  if (options.context_tokens > trained) {
    plan.note = "the model was trained for " + std::to_string(trained) + " tokens, not " +
                std::to_string(options.context_tokens);
  }
  plan.parallel_sequences = options.parallel_sequences;
  plan.encode_sequences = options.encode_sequences;
  // Shared context, plus a few dozen tokens for each fact of a batch.
  plan.encoding_tokens = std::min(std::max(kEncodingTokens, 1024 + 64 * options.encode_sequences),
                                  std::max(1024, trained));
  plan.batch_tokens = kBatchTokens;

  const std::int64_t token_bytes = KvTokenBytes(metadata, options.f32_cache ? 4 : 2);
  const std::int64_t heads = metadata.Integer("attention.head_count", 16);
  const std::int64_t embedding = metadata.Integer("embedding_length", 1024);
  const std::int64_t feed_forward = metadata.Integer("feed_forward_length", 4 * embedding);
  const auto fill = [&] {
    plan.weights_bytes = metadata.file_bytes;
    plan.serving_kv_bytes = token_bytes * RoundUp(plan.context_tokens) * plan.parallel_sequences;
    plan.encoding_kv_bytes = token_bytes * RoundUp(plan.encoding_tokens);
    const std::int64_t batch = plan.batch_tokens;
    // Attention scores and mask, activations, and logits of every sequence, in f32, two contexts.
    plan.compute_bytes =
        batch * (RoundUp(plan.context_tokens) + RoundUp(plan.encoding_tokens)) * (heads + 1) * 4 +
        2 * batch * (4 * embedding + 2 * feed_forward) * 4 +
        (plan.parallel_sequences + 33) * metadata.vocabulary * 8;
  };
  plan.host_tier_bytes = std::max<std::int64_t>(0, options.store.host_budget_bytes);
  fill();
  if (available_bytes <= 0) return plan;

  const std::int64_t budget = std::max<std::int64_t>(0, available_bytes - kSpareForSystem);
  const auto reduced = [&](const std::string& what) {
    plan.note += (plan.note.empty() ? "" : "; ") + what;
  };
  if (plan.TotalBytes() > budget && plan.host_tier_bytes > budget / 4) {
    plan.host_tier_bytes = budget / 4;
    reduced("block cache reduced to " + Mib(plan.host_tier_bytes));
  }
  const std::int32_t wanted_sequences = plan.parallel_sequences;
  while (plan.TotalBytes() > budget && plan.parallel_sequences > 1) {
    plan.parallel_sequences = (plan.parallel_sequences + 1) / 2;
    fill();
  }
  if (plan.parallel_sequences != wanted_sequences) {
    reduced("parallel sequences reduced from " + std::to_string(wanted_sequences) + " to " +
            std::to_string(plan.parallel_sequences));
  }
  const std::int32_t wanted_context = plan.context_tokens;
  while (plan.TotalBytes() > budget && plan.context_tokens > kSmallestContextTokens) {
    plan.context_tokens = std::max(kSmallestContextTokens, plan.context_tokens / 2);
    plan.encoding_tokens = std::min(plan.encoding_tokens, std::max(1024, plan.context_tokens));
    plan.batch_tokens = 256;
    fill();
  }
  if (plan.context_tokens != wanted_context) {
    reduced("context reduced from " + std::to_string(wanted_context) + " to " +
            std::to_string(plan.context_tokens) + " tokens");
  }
  if (plan.TotalBytes() > budget) {
    return ResourceExhausted("the model needs " + Mib(plan.TotalBytes()) + " (" + plan.ToString() +
                             ") and only " + Mib(budget) +
                             " of memory are free; close other programs or use a smaller model");
  }
  return plan;
}

}  // namespace inferscale
