#include "llama/llama_model.h"

#include <exception>

#include "llama.h"
#include "llama/llama_runtime.h"

namespace inferscale {

Result<std::shared_ptr<const LlamaModel>> LlamaModel::Load(const LlamaModelOptions& options) {
  InitLlamaRuntime();
  INFERSCALE_ASSIGN_OR_RETURN(GgufMetadata metadata, ReadGgufMetadata(options.path));
  llama_model_params params = llama_model_default_params();
  params.n_gpu_layers = options.gpu_layers < 0 ? -1 : options.gpu_layers;
  params.load_mode = options.mmap ? LLAMA_LOAD_MODE_MMAP : LLAMA_LOAD_MODE_NONE;
  (void)TakeLlamaErrors();
  llama_model* loaded = nullptr;
  try {
    loaded = llama_model_load_from_file(options.path.c_str(), params);
  } catch (const std::exception& error) {
    return InvalidArgument("model file " + options.path.string() + " cannot be loaded (" +
                           error.what() + "); pass another GGUF file");
  }
  if (loaded == nullptr) {
    return InvalidArgument("model file " + options.path.string() +
                           " cannot be loaded by this build of "
                           "llama.cpp (" +
                           TakeLlamaErrors() + "); pass another GGUF file");
  }
  auto model = std::shared_ptr<LlamaModel>(new LlamaModel());
  model->model_ = loaded;
  model->vocab_ = llama_model_get_vocab(loaded);
  model->metadata_ = std::move(metadata);
  model->path_ = options.path;
  if (llama_vocab_n_tokens(model->vocab_) <= 0 ||
      llama_vocab_type(model->vocab_) == LLAMA_VOCAB_TYPE_NONE) {
    return InvalidArgument("model file " + options.path.string() +
                           " has no tokenizer; pass a complete GGUF file");
  }
  return std::shared_ptr<const LlamaModel>(std::move(model));
}

LlamaModel::~LlamaModel() {
  if (model_ != nullptr) llama_model_free(model_);
}

std::string LlamaModel::chat_template() const {
  const char* text = llama_model_chat_template(model_, nullptr);
  return text == nullptr ? std::string() : std::string(text);
}

}  // namespace inferscale
