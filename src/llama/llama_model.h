#ifndef INFERSCALE_LLAMA_LLAMA_MODEL_H_
#define INFERSCALE_LLAMA_LLAMA_MODEL_H_

#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>

#include "inferscale/result.h"
#include "llama/gguf_metadata.h"

struct llama_model;
struct llama_vocab;

namespace inferscale {

struct LlamaModelOptions {
  std::filesystem::path path;
  std::int32_t gpu_layers = 0;  ///< negative: all
  bool mmap = true;
};

/// A loaded GGUF model. Immutable; contexts and tokenizers made from it share it and keep it alive.
class LlamaModel {
 public:
  /// kNotFound, kInvalidArgument or kFailedPrecondition say which file and what to do.
  static Result<std::shared_ptr<const LlamaModel>> Load(const LlamaModelOptions& options);
  ~LlamaModel();
  LlamaModel(const LlamaModel&) = delete;
  LlamaModel& operator=(const LlamaModel&) = delete;

  llama_model* get() const { return model_; }
  const llama_vocab* vocab() const { return vocab_; }
  const GgufMetadata& metadata() const { return metadata_; }
  const std::filesystem::path& path() const { return path_; }
  /// The template stored with the model; empty: none.
  std::string chat_template() const;

 private:
  LlamaModel() = default;
  llama_model* model_ = nullptr;
  const llama_vocab* vocab_ = nullptr;
  GgufMetadata metadata_;
  std::filesystem::path path_;
};

}  // namespace inferscale

#endif  // INFERSCALE_LLAMA_LLAMA_MODEL_H_
