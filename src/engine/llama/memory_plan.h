#ifndef INFERSCALE_ENGINE_LLAMA_MEMORY_PLAN_H_
#define INFERSCALE_ENGINE_LLAMA_MEMORY_PLAN_H_

#include <cstdint>
#include <string>

#include "engine/llama/llama_engine_options.h"
#include "inferscale/result.h"
#include "llama/gguf_metadata.h"

namespace inferscale {

/// What an engine will take, decided from the model's metadata before anything is allocated.
struct MemoryPlan {
  std::int64_t weights_bytes = 0;
  std::int64_t serving_kv_bytes = 0;
  std::int64_t encoding_kv_bytes = 0;
  std::int64_t compute_bytes = 0;
  std::int64_t host_tier_bytes = 0;

  std::int32_t context_tokens = 0;  ///< of each sequence
  std::int32_t parallel_sequences = 0;
  std::int32_t encoding_tokens = 0;  ///< cells of the encoding context
  std::int32_t encode_sequences = 0;
  std::int32_t batch_tokens = 0;
  std::string note;  ///< what was reduced, in words; empty: nothing

  std::int64_t TotalBytes() const {
    return weights_bytes + serving_kv_bytes + encoding_kv_bytes + compute_bytes + host_tier_bytes;
  }
  std::string ToString() const;
};

/// Bytes of one token's keys and values over all layers.
std::int64_t KvTokenBytes(const GgufMetadata& metadata, std::int32_t element_bytes);

/// Reduces sequences first, then the context. kResourceExhausted, in words, when even one sequence
/// of 512 tokens does not fit; kInvalidArgument for options out of range. \param available_bytes
/// free memory; 0: unknown, nothing is reduced.
Result<MemoryPlan> PlanMemory(const GgufMetadata& metadata, const LlamaEngineOptions& options,
                              std::int64_t available_bytes);

}  // namespace inferscale

#endif  // INFERSCALE_ENGINE_LLAMA_MEMORY_PLAN_H_
