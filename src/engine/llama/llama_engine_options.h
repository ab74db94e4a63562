#ifndef INFERSCALE_ENGINE_LLAMA_LLAMA_ENGINE_OPTIONS_H_
#define INFERSCALE_ENGINE_LLAMA_LLAMA_ENGINE_OPTIONS_H_

#include <cstdint>
#include <filesystem>
#include <optional>

#include "inferscale/kv_store.h"
#include "llama/llama_context.h"

namespace inferscale {

struct LlamaEngineOptions {
  std::filesystem::path model_path;
  std::int32_t context_tokens =
      0;  ///< prompt plus answer; 0: at most 8,192, the model's, and what fits
  std::int32_t parallel_sequences = 4;  ///< 1 … 256 conversations at once
  std::int32_t encode_sequences = 32;   ///< facts encoded in one batch, 1 … 255
  std::int32_t threads = 0;             ///< 0: one per physical core
  std::int32_t gpu_layers = 0;          ///< negative: all
  std::optional<bool> flash_attention;  ///< unset: with a GPU only, because it is slower on a CPU
  bool force_text = false;              ///< never encode or inject
  bool f32_cache = false;               ///< twice the memory; for tests of exactness
  LlamaRopeOverrides rope;
  KvStoreOptions store;  ///< its fingerprint is filled in
  std::filesystem::path
      cache_folder;  ///< remembers the weights' digest; empty: hashed at each start
};

}  // namespace inferscale

#endif  // INFERSCALE_ENGINE_LLAMA_LLAMA_ENGINE_OPTIONS_H_
