#ifndef INFERSCALE_ENGINE_VLLM_VLLM_ENGINE_H_
#define INFERSCALE_ENGINE_VLLM_VLLM_ENGINE_H_

#include <memory>
#include <optional>
#include <string>

#include "engine/vllm/vllm_engine_options.h"
#include "inferscale/engine.h"

namespace inferscale {

/// The data-centre engine: vLLM servers with InferScale's connector (docs/vllm.md). Guarantees what
/// Engine does; beyond that: an answer is served as text while a server's KV is not usable, by
/// another server while one is away, and fails with the server's name otherwise. KV that could not
/// be used at the start is used from when it can: capabilities(), fingerprint() and geometry()
/// change then, once. Texts whose ids cannot be asked for get the id -1, which no request with it
/// survives: they fail as kUnavailable.
class VllmEngine final : public Engine {
 public:
  /// kUnavailable: no server answers.
  static Result<std::unique_ptr<VllmEngine>> Create(const VllmEngineOptions& options);
  ~VllmEngine() override;

  TokenIds Tokenize(std::string_view text) const override;
  std::string Detokenize(std::span<const TokenId> ids) const override;
  Result<RenderedChat> Render(std::span<const ChatMessage> messages) const override;
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
  void OnChange(std::function<void()> changed) override;
  const KvGeometry& geometry() const override;
  KvStoreStats StoreStats() const override;

  const std::string& model() const;  ///< as the server calls it

 private:
  struct Impl;
  VllmEngine();
  std::shared_ptr<Impl> impl_;
};

}  // namespace inferscale

#endif  // INFERSCALE_ENGINE_VLLM_VLLM_ENGINE_H_
