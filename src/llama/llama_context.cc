#include "llama/llama_context.h"

#include <algorithm>
#include <exception>
#include <string>
#include <utility>

#include "llama.h"
#include "llama/llama_runtime.h"

namespace inferscale {

struct LlamaContext::Batch {
  explicit Batch(std::int32_t tokens) : batch(llama_batch_init(tokens, 0, 1)) {}
  ~Batch() { llama_batch_free(batch); }
  Batch(const Batch&) = delete;
  Batch& operator=(const Batch&) = delete;
  llama_batch batch;
};

Result<std::unique_ptr<LlamaContext>> LlamaContext::Create(std::shared_ptr<const LlamaModel> model,
                                                           const LlamaContextOptions& options) {
  if (options.sequences < 1 ||
      options.sequences > static_cast<std::int32_t>(llama_max_parallel_sequences())) {
    return InvalidArgument("parallel sequences must be 1 to " +
                           std::to_string(llama_max_parallel_sequences()) + ", not " +
                           std::to_string(options.sequences));
  }
  if (options.tokens_per_sequence < 1 || options.batch_tokens < 1 || options.threads < 1) {
    return InvalidArgument("context tokens, batch tokens and threads must be at least 1");
  }
  const std::int64_t cells = options.shared_cache
                                 ? options.tokens_per_sequence
                                 : std::int64_t{options.tokens_per_sequence} * options.sequences;
  if (cells > std::int64_t{1} << 28) {
    return ResourceExhausted("a context of " + std::to_string(cells) +
                             " tokens is too large; lower context tokens or parallel sequences");
  }
  llama_context_params params = llama_context_default_params();
  params.n_ctx = static_cast<std::uint32_t>(cells);
  params.n_batch = static_cast<std::uint32_t>(options.batch_tokens);
  params.n_ubatch = params.n_batch;
  params.n_seq_max = static_cast<std::uint32_t>(options.sequences);
  params.n_threads = params.n_threads_batch = options.threads;
  params.flash_attn_type =
      options.flash_attention ? LLAMA_FLASH_ATTN_TYPE_ENABLED : LLAMA_FLASH_ATTN_TYPE_DISABLED;
  params.type_k = params.type_v = options.f32_cache ? GGML_TYPE_F32 : GGML_TYPE_F16;
  params.offload_kqv = options.offload;
  params.op_offload = options.offload;
  params.kv_unified = options.shared_cache;
  params.swa_full = false;
  params.rope_freq_base = options.rope.base;
  params.rope_freq_scale = options.rope.frequency_scale;
  params.yarn_ext_factor = options.rope.yarn_extrapolation;
  params.yarn_attn_factor = options.rope.yarn_attention;
  params.yarn_beta_fast = options.rope.yarn_beta_fast;
  params.yarn_beta_slow = options.rope.yarn_beta_slow;
  params.yarn_orig_ctx = options.rope.yarn_original_context;
  if (options.embeddings) {
    params.embeddings = true;
    params.pooling_type = LLAMA_POOLING_TYPE_MEAN;
  } else {
    params.n_outputs_max = static_cast<std::uint32_t>(std::clamp(
        options.outputs, options.sequences, std::max(options.sequences, options.batch_tokens)));
  }

  auto context = std::unique_ptr<LlamaContext>(new LlamaContext());
  context->model_ = std::move(model);
  context->options_ = options;
  params.abort_callback = [](void* data) {
    const auto* self = static_cast<const LlamaContext*>(data);
    return self->should_abort_ && self->should_abort_();
  };
  params.abort_callback_data = context.get();
  (void)TakeLlamaErrors();
  try {
    context->context_ = llama_init_from_model(context->model_->get(), params);
  } catch (const std::exception& error) {
    return ResourceExhausted(std::string("llama.cpp could not make a context: ") + error.what());
  }
  if (context->context_ == nullptr) {
    return ResourceExhausted("llama.cpp could not make a context of " + std::to_string(cells) +
                             " tokens (" + TakeLlamaErrors() +
                             "); lower context tokens or parallel sequences");
  }
  // llama.cpp rounds up; positions beyond what was asked for may not exist in the model.
  context->tokens_per_sequence_ = std::min(
      options.tokens_per_sequence, static_cast<std::int32_t>(llama_n_ctx_seq(context->context_)));
  context->batch_tokens_ = static_cast<std::int32_t>(
      std::min(llama_n_batch(context->context_), llama_n_ubatch(context->context_)));
  context->vocabulary_ = llama_vocab_n_tokens(context->model_->vocab());
  context->batch_ = std::make_unique<Batch>(context->batch_tokens_);
  return context;
}

LlamaContext::~LlamaContext() {
  if (context_ != nullptr) llama_free(context_);
}

Result<DecodeOutcome> LlamaContext::Decode(std::span<const BatchToken> tokens) {
  if (tokens.empty() || tokens.size() > static_cast<std::size_t>(batch_tokens_)) {
    return InvalidArgument("a batch must have 1 to " + std::to_string(batch_tokens_) +
                           " tokens, not " + std::to_string(tokens.size()));
  }
  llama_batch& batch = batch_->batch;
  batch.n_tokens = static_cast<std::int32_t>(tokens.size());
  outputs_.assign(tokens.size(), false);
  std::int32_t outputs = 0;
  for (std::size_t i = 0; i < tokens.size(); ++i) {
    const BatchToken& token = tokens[i];
    if (token.id < 0 || token.id >= vocabulary_) {
      return InvalidArgument("token id " + std::to_string(token.id) +
                             " is not in the model's vocabulary of " + std::to_string(vocabulary_));
    }
    if (!ValidSequence(token.sequence) || token.position < 0) {
      return InvalidArgument("a batch names sequence " + std::to_string(token.sequence) +
                             ", position " + std::to_string(token.position) +
                             ", which this context does not have");
    }
    batch.token[i] = token.id;
    batch.pos[i] = token.position;
    batch.n_seq_id[i] = 1;
    batch.seq_id[i][0] = token.sequence;
    batch.logits[i] = token.output || options_.embeddings ? 1 : 0;
    outputs_[i] = batch.logits[i] != 0;
    outputs += outputs_[i] ? 1 : 0;
  }
  if (!options_.embeddings && outputs > std::max(options_.outputs, options_.sequences)) {
    return InvalidArgument("a batch asks for " + std::to_string(outputs) +
                           " logits, more than the " + std::to_string(options_.outputs) +
                           " planned");
  }
  (void)TakeLlamaErrors();
  int code = 0;
  try {
    code = llama_decode(context_, batch);
  } catch (const std::exception& error) {
    return Internal(std::string("llama.cpp failed while computing: ") + error.what());
  }
  if (code == 0) return DecodeOutcome::kOk;
  if (code == 2) return DecodeOutcome::kAborted;
  if (code == 1)
    return ResourceExhausted("the context has no room for " + std::to_string(tokens.size()) +
                             " more tokens");
  return Internal("llama.cpp failed while computing (code " + std::to_string(code) + ": " +
                  TakeLlamaErrors() + ")");
}

const float* LlamaContext::Logits(std::int32_t index) const {
  if (index < 0 || index >= static_cast<std::int32_t>(outputs_.size()) || !outputs_[index]) {
    return nullptr;
  }
  return llama_get_logits_ith(context_, index);
}

const float* LlamaContext::Embedding(std::int32_t sequence) const {
  if (!ValidSequence(sequence)) return nullptr;
  return llama_get_embeddings_seq(context_, sequence);
}

void LlamaContext::ClearAll() {
  if (llama_memory_t memory = llama_get_memory(context_)) llama_memory_clear(memory, false);
}

bool LlamaContext::Remove(std::int32_t sequence, std::int32_t begin, std::int32_t end) {
  llama_memory_t memory = llama_get_memory(context_);
  if (!ValidSequence(sequence) || memory == nullptr) return false;
  return llama_memory_seq_rm(memory, sequence, begin, end);
}

void LlamaContext::CopySequence(std::int32_t from, std::int32_t to, std::int32_t begin,
                                std::int32_t end) {
  llama_memory_t memory = llama_get_memory(context_);
  if (!ValidSequence(from) || !ValidSequence(to) || memory == nullptr) return;
  llama_memory_seq_cp(memory, from, to, begin, end);
}

std::int32_t LlamaContext::FirstPosition(std::int32_t sequence) const {
  llama_memory_t memory = llama_get_memory(context_);
  return ValidSequence(sequence) && memory != nullptr ? llama_memory_seq_pos_min(memory, sequence)
                                                      : -1;
}

std::int32_t LlamaContext::LastPosition(std::int32_t sequence) const {
  llama_memory_t memory = llama_get_memory(context_);
  return ValidSequence(sequence) && memory != nullptr ? llama_memory_seq_pos_max(memory, sequence)
                                                      : -1;
}

Status LlamaContext::GetState(std::int32_t sequence, std::vector<std::uint8_t>& bytes) const {
  if (!ValidSequence(sequence)) return InvalidArgument("no such sequence");
  const std::size_t size = llama_state_seq_get_size(context_, sequence);
  if (size == 0)
    return Internal("llama.cpp cannot save a sequence of this model: " + TakeLlamaErrors());
  bytes.resize(size);
  const std::size_t written =
      llama_state_seq_get_data(context_, bytes.data(), bytes.size(), sequence);
  if (written == 0 || written > size) {
    return Internal("llama.cpp failed to save a sequence: " + TakeLlamaErrors());
  }
  bytes.resize(written);
  return OkStatus();
}

Status LlamaContext::SetState(std::int32_t sequence, std::span<const std::uint8_t> bytes) {
  if (!ValidSequence(sequence)) return InvalidArgument("no such sequence");
  (void)TakeLlamaErrors();
  std::size_t read = 0;
  try {
    read = llama_state_seq_set_data(context_, bytes.data(), bytes.size(), sequence);
  } catch (const std::exception&) {
    read = 0;
  }
  if (read != bytes.size()) {
    Remove(sequence, 0, -1);
    return Internal("llama.cpp refused a sequence state of " + std::to_string(bytes.size()) +
                    " bytes (" + TakeLlamaErrors() + ")");
  }
  return OkStatus();
}

}  // namespace inferscale
