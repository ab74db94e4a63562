#ifndef INFERSCALE_ENGINE_LLAMA_LLAMA_ENGINE_H_
#define INFERSCALE_ENGINE_LLAMA_LLAMA_ENGINE_H_

#include <memory>

#include "engine/llama/llama_engine_options.h"
#include "engine/llama/memory_plan.h"
#include "inferscale/engine.h"
#include "inferscale/result.h"

namespace inferscale {

/// llama.cpp in this process. Guarantees what engine.h says; a model whose KV cannot be moved
/// exactly still serves, with facts as text (capabilities().kv_refusal says why).
class LlamaEngine final : public Engine {
 public:
  /// Plans memory, loads the model, measures its rotation and checks relocation. Errors say which
  /// file or limit is at fault and what to do.
  static Result<std::unique_ptr<LlamaEngine>> Create(const LlamaEngineOptions& options);
  ~LlamaEngine() override;

  TokenIds Tokenize(std::string_view text) const override;
  std::string Detokenize(std::span<const TokenId> ids) const override;
  Result<RenderedChat> Render(std::span<const ChatMessage> messages) const override;
  Result<std::shared_ptr<const ToolFormat>> MakeToolFormat(const ToolUse& use) const override;
  Result<RenderedChat> RenderWithTools(std::span<const ChatMessage> messages,
                                       const ToolFormat& tools) const override;
  void Encode(std::vector<EncodeRequest> requests,
              std::function<void(const EncodeOutcome&)> on_outcome) override;
  std::shared_ptr<Generation> Generate(
      Composition composition, Sampling sampling, GenerationCallbacks callbacks,
      std::optional<std::chrono::steady_clock::time_point> deadline) override;
  Result<ScoreReport> Score(Composition composition, TokenIds continuation,
                            bool first_distribution) override;
  std::vector<KvTier> Presence(std::span<const KvKey> keys) const override;
  Status Erase(std::span<const KvKey> keys, std::uint64_t scope_tag, std::uint64_t epoch) override;
  Status EraseScope(std::uint64_t scope_tag, std::uint64_t epoch) override;
  const Fingerprint& fingerprint() const override;
  const EngineCapabilities& capabilities() const override;
  const KvGeometry& geometry() const override;
  KvStoreStats StoreStats() const override;
  std::int64_t StoredBytes(std::span<const std::uint64_t> scope_tags) const override;

  const MemoryPlan& memory_plan() const;
  /// Largest relative error of moved keys at load, and what is tolerated; 0 when KV is refused.
  double relocation_error() const;
  const LlamaEngineOptions& options() const;
  KvStore& store();

 private:
  struct Impl;
  LlamaEngine();
  std::unique_ptr<Impl> impl_;
};

Result<std::shared_ptr<Engine>> MakeLlamaEngine(const LlamaEngineOptions& options);

}  // namespace inferscale

#endif  // INFERSCALE_ENGINE_LLAMA_LLAMA_ENGINE_H_
