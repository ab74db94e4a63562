#include "engine/llama/llama_engine.h"

#include <algorithm>
#include <future>
#include <utility>

#include <spdlog/spdlog.h>

#include "base/hash.h"
#include "engine/llama/fact_batch_encoder.h"
#include "engine/llama/foreground_gate.h"
#include "engine/llama/kv_transfer.h"
#include "engine/llama/model_probe.h"
#include "engine/llama/prompt_renderer.h"
#include "engine/llama/serving_loop.h"
#include "llama.h"
#include "llama/file_fingerprint.h"
#include "llama/llama_context.h"
#include "llama/llama_model.h"
#include "llama/llama_runtime.h"
#include "llama/tokenizer.h"

namespace inferscale {
namespace {

/// The llama.cpp that computes the blocks.
const std::string kLlamaBuild = INFERSCALE_LLAMA_COMMIT;

/// Logits of one computation when scoring; more only means more steps.
constexpr std::int32_t kScoringOutputs = 64;

/// The hash over everything that decides a block's bytes, each part with its name and length.
class FingerprintBuilder {
 public:
  void Add(std::string_view name, std::string_view value) {
    for (const std::string_view part : {name, value}) {
      stream_.Update(std::to_string(part.size()) + ":");
      stream_.Update(part);
    }
  }
  Fingerprint Finish() { return stream_.Finish(); }

 private:
  Sha256Stream stream_;
};

Status CheckServable(const LlamaModel& model) {
  const std::string name = "model file " + model.path().string();
  if (llama_model_has_encoder(model.get()) && !llama_model_has_decoder(model.get())) {
    return Unsupported(
        name + " is an encoder, not a chat model; pass a causal language model's GGUF file");
  }
  if (llama_model_has_encoder(model.get())) {
    return Unsupported(name +
                       " is an encoder-decoder model; pass a causal language model's GGUF file");
  }
  if (llama_model_is_diffusion(model.get()) ||
      (model.metadata().Integer("attention.causal", 1) == 0 &&
       model.metadata().architecture.find("bert") != std::string::npos)) {
    return Unsupported(name +
                       " does not generate text token by token; pass a causal language model's "
                       "GGUF file");
  }
  return OkStatus();
}

TokenId ProbeToken(const LlamaTokenizer& tokenizer) {
  const TokenIds ids = tokenizer.Tokenize(" the");
  return ids.empty() ? 0 : ids.back();
}

}  // namespace

struct LlamaEngine::Impl {
  LlamaEngineOptions options;
  MemoryPlan plan;
  std::shared_ptr<const LlamaModel> model;
  std::shared_ptr<const LlamaTokenizer> tokenizer;
  std::unique_ptr<PromptRenderer> renderer;
  Fingerprint fingerprint{};
  EngineCapabilities capabilities;
  KvGeometry geometry;
  double relocation_error = 0;
  std::unique_ptr<KvStore> store;
  std::shared_ptr<ForegroundGate> gate = std::make_shared<ForegroundGate>();
  // Threads last, so that they end before what they use; serving first, because it may ask the
  // encoder.
  std::unique_ptr<FactBatchEncoder> encoder;
  std::unique_ptr<ServingLoop> serving;

  Status Start();
  Status ComputeFingerprint();
  LlamaContextOptions ContextOptions(bool encoding) const;
};

LlamaContextOptions LlamaEngine::Impl::ContextOptions(bool encoding) const {
  LlamaContextOptions context;
  context.batch_tokens = plan.batch_tokens;
  context.threads = options.threads;
  context.offload = options.gpu_layers != 0 && llama_supports_gpu_offload();
  context.flash_attention = options.flash_attention.value_or(context.offload);
  context.f32_cache = options.f32_cache;
  context.rope = options.rope;
  if (encoding) {
    context.shared_cache = true;
    context.sequences = plan.encode_sequences + 1;
    context.tokens_per_sequence = plan.encoding_tokens;
  } else {
    context.sequences = plan.parallel_sequences;
    context.tokens_per_sequence = plan.context_tokens;
    context.outputs = std::max(plan.parallel_sequences, kScoringOutputs);
  }
  return context;
}

Status LlamaEngine::Impl::ComputeFingerprint() {
  INFERSCALE_ASSIGN_OR_RETURN(const Sha256Digest weights,
                              FileFingerprint(model->path(), options.cache_folder));
  const LlamaContextOptions context = ContextOptions(false);
  const LlamaRopeOverrides& rope = options.rope;
  FingerprintBuilder builder;
  builder.Add("weights", HexEncode(weights));
  builder.Add("llama.cpp", kLlamaBuild);
  builder.Add("template", renderer->template_identity());
  builder.Add("cache", context.f32_cache ? "f32" : "f16");
  builder.Add("flash attention", context.flash_attention ? "on" : "off");
  builder.Add("rope", std::to_string(rope.base) + " " + std::to_string(rope.frequency_scale) + " " +
                          std::to_string(rope.yarn_extrapolation) + " " +
                          std::to_string(rope.yarn_attention) + " " +
                          std::to_string(rope.yarn_beta_fast) + " " +
                          std::to_string(rope.yarn_beta_slow) + " " +
                          std::to_string(rope.yarn_original_context));
  builder.Add("geometry",
              std::to_string(geometry.layers) + " " + std::to_string(geometry.kv_heads) + " " +
                  std::to_string(geometry.key_dim) + " " + std::to_string(geometry.value_dim));
  fingerprint = builder.Finish();
  return OkStatus();
}

Status LlamaEngine::Impl::Start() {
  INFERSCALE_ASSIGN_OR_RETURN(const GgufMetadata metadata, ReadGgufMetadata(options.model_path));
  if (options.threads == 0) options.threads = PhysicalCores();
  INFERSCALE_ASSIGN_OR_RETURN(
      plan, PlanMemory(metadata, options, options.gpu_layers == 0 ? AvailableMemoryBytes() : 0));
  if (!plan.note.empty()) spdlog::warn("{}", plan.note);
  spdlog::info("memory: {}", plan.ToString());

  INFERSCALE_ASSIGN_OR_RETURN(
      model, LlamaModel::Load({.path = options.model_path, .gpu_layers = options.gpu_layers}));
  INFERSCALE_RETURN_IF_ERROR(CheckServable(*model));
  tokenizer = std::make_shared<const LlamaTokenizer>(model);
  renderer = std::make_unique<PromptRenderer>(model, tokenizer);
  INFERSCALE_ASSIGN_OR_RETURN(std::unique_ptr<LlamaContext> serving_context,
                              LlamaContext::Create(model, ContextOptions(false)));

  std::unique_ptr<LlamaContext> encoding_context;
  std::shared_ptr<const KvTransfer> transfer;
  KvProbe probe;
  Result<KvProbe> probed = options.force_text
                               ? Result<KvProbe>(Unsupported("facts are served as text by request"))
                               : ProbeModel(*serving_context, ProbeToken(*tokenizer));
  Status usable = probed.status();
  if (probed.ok()) {
    probe = std::move(*probed);
    INFERSCALE_ASSIGN_OR_RETURN(encoding_context,
                                LlamaContext::Create(model, ContextOptions(true)));
    const TokenId token = ProbeToken(*tokenizer);
    const Result<StateShape> shape =
        CheckStateFormat(*encoding_context, probe.sections, {token, token, token});
    usable = shape.status();
    if (shape.ok()) {
      StateShape expected = probe.shape;
      expected.streams = shape->streams;
      if (*shape != expected) usable = Unsupported("the engine's two contexts keep KV differently");
    }
  }
  if (usable.ok()) {
    geometry = probe.geometry;
    relocation_error = probe.relocation.WorstKeys();
    const std::int32_t positions =
        std::max(serving_context->tokens_per_sequence(), encoding_context->tokens_per_sequence());
    INFERSCALE_ASSIGN_OR_RETURN(const auto tables, RopeTables::Create(probe.rope, positions));
    transfer = std::make_shared<const KvTransfer>(geometry, tables);
  } else {
    encoding_context.reset();
    plan.encoding_kv_bytes = 0;
    if (!options.force_text) {
      spdlog::warn("facts are served as text: {}", usable.message());
    }
  }
  capabilities.kv_injection = usable.ok();
  capabilities.kv_refusal = usable.ok() ? "" : usable.message();
  capabilities.context_tokens = serving_context->tokens_per_sequence();
  capabilities.parallel_sequences = plan.parallel_sequences;
  capabilities.grammar = true;
  capabilities.scoring = true;
  capabilities.system_role = renderer->system_role();

  INFERSCALE_RETURN_IF_ERROR(ComputeFingerprint());
  options.store.fingerprint = fingerprint;
  options.store.host_budget_bytes = plan.host_tier_bytes;
  INFERSCALE_ASSIGN_OR_RETURN(store, KvStore::Open(options.store));

  const std::int32_t window = probe.sections == 2 ? llama_model_n_swa(model->get()) : 0;
  if (transfer) {
    FactBatchEncoder::Options encoding;
    encoding.context = std::move(encoding_context);
    encoding.transfer = transfer;
    encoding.store = store.get();
    encoding.gate = gate;
    encoding.fingerprint = fingerprint;
    encoding.sections = probe.sections;
    encoding.window = window;
    encoding.can_abort = options.gpu_layers == 0;
    encoder = std::make_unique<FactBatchEncoder>(std::move(encoding));
  }
  ServingLoop::Options loop;
  loop.context = std::move(serving_context);
  loop.tokenizer = tokenizer;
  loop.gate = gate;
  loop.removable = !llama_model_is_recurrent(model->get()) && !llama_model_is_hybrid(model->get());
  loop.window = std::max(0, llama_model_n_swa(model->get()));
  loop.injection.store = transfer ? store.get() : nullptr;
  loop.injection.transfer = transfer;
  loop.injection.shape = probe.shape;
  loop.injection.window = window;
  loop.injection.was_stored = [this](const KvKey& key) {
    return encoder && encoder->WasStored(key);
  };
  serving = std::make_unique<ServingLoop>(std::move(loop));
  return OkStatus();
}

LlamaEngine::LlamaEngine() : impl_(std::make_unique<Impl>()) {}
LlamaEngine::~LlamaEngine() = default;

Result<std::unique_ptr<LlamaEngine>> LlamaEngine::Create(const LlamaEngineOptions& options) {
  InitLlamaRuntime();
  auto engine = std::unique_ptr<LlamaEngine>(new LlamaEngine());
  engine->impl_->options = options;
  INFERSCALE_RETURN_IF_ERROR(engine->impl_->Start());
  return engine;
}

Result<std::shared_ptr<Engine>> MakeLlamaEngine(const LlamaEngineOptions& options) {
  INFERSCALE_ASSIGN_OR_RETURN(std::unique_ptr<LlamaEngine> engine, LlamaEngine::Create(options));
  return std::shared_ptr<Engine>(std::move(engine));
}

TokenIds LlamaEngine::Tokenize(std::string_view text) const {
  return impl_->tokenizer->Tokenize(text);
}

std::string LlamaEngine::Detokenize(std::span<const TokenId> ids) const {
  return impl_->tokenizer->Detokenize(ids);
}

Result<RenderedChat> LlamaEngine::Render(std::span<const ChatMessage> messages) const {
  return impl_->renderer->Render(messages);
}

Result<std::shared_ptr<const ToolFormat>> LlamaEngine::MakeToolFormat(const ToolUse& use) const {
  INFERSCALE_ASSIGN_OR_RETURN(std::shared_ptr<const LlamaToolFormat> format,
                              impl_->renderer->tool_formats().Make(use));
  return std::shared_ptr<const ToolFormat>(std::move(format));
}

Result<RenderedChat> LlamaEngine::RenderWithTools(std::span<const ChatMessage> messages,
                                                  const ToolFormat& tools) const {
  const auto* format = dynamic_cast<const LlamaToolFormat*>(&tools);
  if (format == nullptr) return InvalidArgument("these tools were made for another engine");
  return impl_->renderer->RenderWithTools(messages, *format);
}

void LlamaEngine::Encode(std::vector<EncodeRequest> requests,
                         std::function<void(const EncodeOutcome&)> on_outcome) {
  if (impl_->encoder) {
    impl_->encoder->Encode(std::move(requests), std::move(on_outcome));
    return;
  }
  for (const EncodeRequest& request : requests) {
    if (on_outcome) on_outcome({request.info.key, Unsupported(impl_->capabilities.kv_refusal)});
  }
}

std::shared_ptr<Generation> LlamaEngine::Generate(
    Composition composition, Sampling sampling, GenerationCallbacks callbacks,
    std::optional<std::chrono::steady_clock::time_point> deadline) {
  auto job = std::make_unique<ServingJob>();
  job->submitted = SteadyClock::now();
  Status status = ValidateComposition(composition, impl_->tokenizer->vocabulary(),
                                      impl_->capabilities.context_tokens);
  if (status.ok()) {
    Result<std::unique_ptr<TokenSampler>> sampler =
        TokenSampler::Create(impl_->model->vocab(), impl_->tokenizer->vocabulary(), sampling);
    status = sampler.status();
    if (status.ok()) job->sampler = std::move(*sampler);
  }
  job->stream = std::make_unique<TextStream>(sampling.stop);
  job->composition = std::move(composition);
  job->sampling = std::move(sampling);
  job->callbacks = std::move(callbacks);
  job->deadline = deadline;
  job->rejected = std::move(status);
  return impl_->serving->Submit(std::move(job));
}

Result<ScoreReport> LlamaEngine::Score(Composition composition, TokenIds continuation,
                                       bool first_distribution) {
  if (continuation.empty()) return InvalidArgument("there is no continuation to score");
  const std::int32_t context = impl_->capabilities.context_tokens;
  INFERSCALE_RETURN_IF_ERROR(
      ValidateComposition(composition, impl_->tokenizer->vocabulary(), context));
  if (composition.ids.size() + continuation.size() > static_cast<std::size_t>(context)) {
    return InvalidArgument("prompt and continuation together exceed the context of " +
                           std::to_string(context) + " tokens");
  }
  for (const TokenId id : continuation) {
    if (id < 0 || id >= impl_->tokenizer->vocabulary()) {
      return InvalidArgument("the continuation has a token id that is not in the vocabulary");
    }
  }
  const auto promise = std::make_shared<std::promise<ScoreReport>>();
  std::future<ScoreReport> future = promise->get_future();
  auto job = std::make_unique<ServingJob>();
  job->submitted = SteadyClock::now();
  job->composition = std::move(composition);
  job->continuation = std::move(continuation);
  job->first_distribution = first_distribution;
  job->on_score = [promise](ScoreReport report) { promise->set_value(std::move(report)); };
  const std::shared_ptr<Generation> generation = impl_->serving->Submit(std::move(job));
  ScoreReport report = future.get();
  if (!report.generation.status.ok()) return report.generation.status;
  return report;
}

std::vector<KvTier> LlamaEngine::Presence(std::span<const KvKey> keys) const {
  return impl_->store->Presence(keys);
}

Status LlamaEngine::Erase(std::span<const KvKey> keys, std::uint64_t scope_tag,
                          std::uint64_t epoch) {
  // First the fence: a block finished after the removal would bring the text back.
  impl_->store->FenceScope(scope_tag, epoch);
  if (impl_->encoder) impl_->encoder->Cancel(keys);
  const Status erased = impl_->store->Erase(keys);
  impl_->serving->DropScope(scope_tag);
  return erased;
}

Status LlamaEngine::EraseScope(std::uint64_t scope_tag, std::uint64_t epoch) {
  const Status erased = impl_->store->EraseScope(scope_tag, epoch);
  impl_->serving->DropScope(scope_tag);
  return erased;
}

const Fingerprint& LlamaEngine::fingerprint() const { return impl_->fingerprint; }
const EngineCapabilities& LlamaEngine::capabilities() const { return impl_->capabilities; }
const KvGeometry& LlamaEngine::geometry() const { return impl_->geometry; }
KvStoreStats LlamaEngine::StoreStats() const { return impl_->store->Stats(); }
std::int64_t LlamaEngine::StoredBytes(std::span<const std::uint64_t> scope_tags) const {
  return impl_->store->BytesOf(scope_tags);
}
const MemoryPlan& LlamaEngine::memory_plan() const { return impl_->plan; }
double LlamaEngine::relocation_error() const { return impl_->relocation_error; }
const LlamaEngineOptions& LlamaEngine::options() const { return impl_->options; }
KvStore& LlamaEngine::store() { return *impl_->store; }

}  // namespace inferscale
