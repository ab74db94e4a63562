#include "engine/vllm/vllm_engine.h"

#include <algorithm>
#include <atomic>
#include <limits>
#include <set>
#include <system_error>
#include <thread>
#include <utility>

#include <spdlog/spdlog.h>

#include "base/hash.h"
#include "engine/llama/composition_match.h"
#include "engine/vllm/vllm_cluster.h"
#include "engine/vllm/vllm_encoder.h"
#include "engine/vllm/vllm_generation.h"
#include "engine/vllm/vllm_tokenizer.h"

namespace inferscale {
namespace {

using nlohmann::json;

/// Answers that may be under way at once; vLLM queues what it cannot run yet.
constexpr std::int32_t kMostGenerations = 1024;
constexpr TokenId kUnknownId = -1;
/// Keys of one control request: some 4 MB, of the 16 MiB that a line may have.
constexpr std::size_t kKeysALine = 100'000;

bool Unknown(std::span<const TokenId> ids) {
  return std::any_of(ids.begin(), ids.end(), [](TokenId id) { return id < 0; });
}

Status UnknownIds() {
  return Unavailable(
      "vLLM could not be asked for token ids; check that it runs and that --vllm-url is right");
}

std::string HexScope(std::uint64_t scope_tag) {
  std::array<std::uint8_t, 8> bytes{};
  for (std::size_t i = 0; i < bytes.size(); ++i) {
    bytes[i] = static_cast<std::uint8_t>(scope_tag >> (56 - 8 * i));
  }
  return HexEncode(bytes);
}

/// Of a control request: captures of the scope below the epoch are refused from then on.
json ScopeFence(std::uint64_t scope_tag, std::uint64_t epoch) {
  // Exact prefixes belong to no owner: their epoch counts from each start of a gateway, so that a
  // connector, which lives on, must not hold them to an earlier one's.
  const std::uint64_t fence = scope_tag == kPrefixScopeTag ? 0 : epoch;
  return {{"scope", HexScope(scope_tag)}, {"epoch", fence}};
}

}  // namespace

struct VllmEngine::Impl {
  std::unique_ptr<VllmCluster> cluster;
  std::shared_ptr<const VllmTokenizer> tokenizer;
  std::unique_ptr<VllmRenderer> renderer;
  struct Nature {
    EngineCapabilities capabilities;
    VllmIdentity identity;
  };
  // Of the start, and of when KV had become usable. Each is written once, before `nature` names it.
  Nature at_start, later;
  std::atomic<const Nature*> nature{&at_start};
  std::unique_ptr<VllmEncoder> encoder;  // null: KV is never usable
  std::mutex change_mutex;
  std::function<void()> changed;

  std::mutex mutex;
  std::condition_variable ended;
  std::set<std::shared_ptr<VllmGeneration>> generations;

  void Run(const std::shared_ptr<VllmGeneration>& generation, VllmPrompt prompt,
           GenerationCallbacks callbacks);
  void BecameUsable(const VllmIdentity& identity);
};

void VllmEngine::Impl::BecameUsable(const VllmIdentity& identity) {
  later = {at_start.capabilities, identity};
  later.capabilities.kv_injection = true;
  later.capabilities.kv_refusal.clear();
  later.capabilities.codec = identity.codec;
  nature = &later;
  const std::scoped_lock lock(change_mutex);
  if (changed) changed();
}

VllmEngine::VllmEngine() : impl_(std::make_shared<Impl>()) {}

VllmEngine::~VllmEngine() {
  std::unique_lock lock(impl_->mutex);
  for (const auto& generation : impl_->generations) generation->Cancel();
  if (impl_->cluster != nullptr) impl_->cluster->Stop();
  impl_->ended.wait(lock, [&] { return impl_->generations.empty(); });
  lock.unlock();
  impl_->encoder.reset();
  impl_->cluster.reset();
}

Result<std::unique_ptr<VllmEngine>> VllmEngine::Create(const VllmEngineOptions& options) {
  std::unique_ptr<VllmEngine> engine(new VllmEngine());
  Impl& impl = *engine->impl_;
  INFERSCALE_ASSIGN_OR_RETURN(impl.cluster, VllmCluster::Open(options));
  const VllmCluster* cluster = impl.cluster.get();
  impl.tokenizer = std::make_shared<const VllmTokenizer>(
      [cluster](std::string_view path, const nlohmann::json& body) {
        nlohmann::json named = body;
        named["model"] = cluster->model();
        return cluster->Ask(path, named);
      });
  impl.renderer = std::make_unique<VllmRenderer>(impl.tokenizer);
  INFERSCALE_RETURN_IF_ERROR(impl.renderer->Start());
  impl.at_start.identity = cluster->identity();
  EngineCapabilities& able = impl.at_start.capabilities;
  able.kv_refusal = cluster->kv_refusal();
  able.kv_injection = able.kv_refusal.empty();
  if (cluster->identity_known()) able.codec = cluster->identity().codec;
  able.context_tokens = cluster->context_tokens();
  able.parallel_sequences = kMostGenerations;
  able.scoring = true;
  able.system_role = impl.renderer->system_role();
  if (cluster->may_become_usable()) impl.encoder = std::make_unique<VllmEncoder>(*cluster);
  if (!able.kv_injection && !options.force_text) {
    spdlog::warn("facts are served as text{}: {}",
                 impl.encoder != nullptr ? " until that has changed" : "", able.kv_refusal);
  }
  impl.cluster->StartMaintenance(
      [raw = &impl, cluster] { raw->BecameUsable(cluster->identity()); });
  return engine;
}

TokenIds VllmEngine::Tokenize(std::string_view text) const {
  Result<TokenIds> ids = impl_->tokenizer->Tokenize(text);
  if (ids.ok()) return *std::move(ids);
  spdlog::warn("vLLM /tokenize: {}", ids.status().ToString());
  return {kUnknownId};
}

std::string VllmEngine::Detokenize(std::span<const TokenId> ids) const {
  if (Unknown(ids)) return {};
  Result<std::string> text = impl_->tokenizer->Detokenize(ids);
  if (text.ok()) return *std::move(text);
  spdlog::warn("vLLM /detokenize: {}", text.status().ToString());
  return {};
}

Result<RenderedChat> VllmEngine::Render(std::span<const ChatMessage> messages) const {
  return impl_->renderer->Render(messages);
}

void VllmEngine::Encode(std::vector<EncodeRequest> requests,
                        std::function<void(const EncodeOutcome&)> on_outcome) {
  const EngineCapabilities& able = capabilities();
  if (able.kv_injection) {
    impl_->encoder->Encode(std::move(requests), std::move(on_outcome));
    return;
  }
  for (const EncodeRequest& request : requests) {
    if (on_outcome) on_outcome({request.info.key, Unsupported(able.kv_refusal)});
  }
}

void VllmEngine::Impl::Run(const std::shared_ptr<VllmGeneration>& generation, VllmPrompt prompt,
                           GenerationCallbacks callbacks) {
  GenerationReport report = CarryOut(*cluster, encoder.get(), prompt, generation->cancellation());
  if (callbacks.on_done) callbacks.on_done(std::move(report));
  callbacks = {};
  prompt = {};
  generation->MarkDone();
  const std::scoped_lock lock(mutex);
  generations.erase(generation);
  ended.notify_all();
}

std::shared_ptr<Generation> VllmEngine::Generate(
    Composition composition, Sampling sampling, GenerationCallbacks callbacks,
    std::optional<std::chrono::steady_clock::time_point> deadline) {
  auto generation = std::make_shared<VllmGeneration>();
  const EngineCapabilities& able = capabilities();
  Status status = Unknown(composition.ids)
                      ? UnknownIds()
                      : ValidateComposition(composition, std::numeric_limits<std::int32_t>::max(),
                                            able.context_tokens);
  if (!able.kv_injection) composition.inject = false;
  const auto prompt_tokens = static_cast<std::int32_t>(composition.ids.size());
  VllmPrompt prompt{std::move(composition), std::move(sampling), callbacks.on_token, deadline,
                    std::chrono::steady_clock::now()};
  if (status.ok()) {
    const std::scoped_lock lock(impl_->mutex);
    if (impl_->generations.size() >= static_cast<std::size_t>(kMostGenerations)) {
      status = ResourceExhausted("more than " + std::to_string(kMostGenerations) +
                                 " answers are under way; try again later");
    } else {
      impl_->generations.insert(generation);
    }
  }
  if (status.ok()) {
    try {
      std::thread([impl = impl_, generation, prompt = std::move(prompt), callbacks]() mutable {
        impl->Run(generation, std::move(prompt), std::move(callbacks));
      }).detach();
      return generation;
    } catch (const std::system_error& error) {
      const std::scoped_lock lock(impl_->mutex);
      impl_->generations.erase(generation);
      status = ResourceExhausted(std::string("no thread for an answer: ") + error.what());
    }
  }
  GenerationReport report;
  report.status = std::move(status);
  report.finish = FinishReason::kError;
  report.prompt_tokens = report.computed_tokens = prompt_tokens;
  if (callbacks.on_done) callbacks.on_done(std::move(report));
  generation->MarkDone();
  return generation;
}

Result<ScoreReport> VllmEngine::Score(Composition composition, TokenIds continuation,
                                      bool first_distribution) {
  if (continuation.empty()) return InvalidArgument("there is no continuation to score");
  if (Unknown(composition.ids) || Unknown(continuation)) return UnknownIds();
  const std::int32_t context = capabilities().context_tokens;
  INFERSCALE_RETURN_IF_ERROR(
      ValidateComposition(composition, std::numeric_limits<std::int32_t>::max(), context));
  if (composition.ids.size() + continuation.size() > static_cast<std::size_t>(context)) {
    return InvalidArgument("prompt and continuation together exceed the context of " +
                           std::to_string(context) + " tokens");
  }
  if (!capabilities().kv_injection) composition.inject = false;
  return ScoreContinuation(*impl_->cluster, impl_->encoder.get(), composition, continuation,
                           first_distribution);
}

std::vector<KvTier> VllmEngine::Presence(std::span<const KvKey> keys) const {
  return impl_->cluster->Presence(keys);
}

Status VllmEngine::Erase(std::span<const KvKey> keys, std::uint64_t scope_tag,
                         std::uint64_t epoch) {
  // First the fence: a block finished after the removal would bring the text back.
  if (impl_->encoder != nullptr) {
    INFERSCALE_RETURN_IF_ERROR(impl_->encoder->Fence(scope_tag, epoch));
  }
  for (std::size_t at = 0; at < keys.size(); at += kKeysALine) {
    const std::size_t count = std::min(kKeysALine, keys.size() - at);
    json fields = ScopeFence(scope_tag, epoch);
    fields.update(KeyList(keys.subspan(at, count)));
    INFERSCALE_RETURN_IF_ERROR(impl_->cluster->Erase("erase", fields));
  }
  return OkStatus();
}

Status VllmEngine::EraseScope(std::uint64_t scope_tag, std::uint64_t epoch) {
  if (impl_->encoder != nullptr) {
    INFERSCALE_RETURN_IF_ERROR(impl_->encoder->Fence(scope_tag, epoch));
  }
  return impl_->cluster->Erase("erase_scope", ScopeFence(scope_tag, epoch));
}

const Fingerprint& VllmEngine::fingerprint() const {
  return impl_->nature.load()->identity.fingerprint;
}
const EngineCapabilities& VllmEngine::capabilities() const {
  return impl_->nature.load()->capabilities;
}
void VllmEngine::OnChange(std::function<void()> changed) {
  const std::scoped_lock lock(impl_->change_mutex);
  impl_->changed = std::move(changed);
}
const KvGeometry& VllmEngine::geometry() const { return impl_->nature.load()->identity.geometry; }
KvStoreStats VllmEngine::StoreStats() const { return impl_->cluster->Stats(); }
const std::string& VllmEngine::model() const { return impl_->cluster->model(); }

}  // namespace inferscale
