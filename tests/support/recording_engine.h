#ifndef INFERSCALE_TESTS_SUPPORT_RECORDING_ENGINE_H_
#define INFERSCALE_TESTS_SUPPORT_RECORDING_ENGINE_H_

#include <functional>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "inferscale/engine.h"

namespace inferscale::testing {

/// Passes everything on to a real engine, keeps the prompts it was given, and lets a test act
/// between the moment a service asks for encodings or erasures and the moment the engine hears of
/// them.
class RecordingEngine : public Engine {
 public:
  explicit RecordingEngine(std::shared_ptr<Engine> inner) : inner_(std::move(inner)) {}

  /// Called once before the next Encode() of facts reaches the engine.
  void BeforeNextEncode(std::function<void()> action) {
    const std::scoped_lock lock(mutex_);
    before_encode_ = std::move(action);
  }
  /// Called once before the service hears of the next encoding of a fact.
  void BeforeNextOutcome(std::function<void()> action) {
    const std::scoped_lock lock(mutex_);
    before_outcome_ = std::move(action);
  }
  /// Called once before the next Erase() reaches the engine.
  void BeforeNextErase(std::function<void()> action) {
    const std::scoped_lock lock(mutex_);
    before_erase_ = std::move(action);
  }
  Composition LastPrompt() const {
    const std::scoped_lock lock(mutex_);
    return prompts_.empty() ? Composition() : prompts_.back();
  }
  std::size_t encodings() const {
    const std::scoped_lock lock(mutex_);
    return encodings_;
  }

  TokenIds Tokenize(std::string_view text) const override { return inner_->Tokenize(text); }
  std::string Detokenize(std::span<const TokenId> ids) const override {
    return inner_->Detokenize(ids);
  }
  Result<RenderedChat> Render(std::span<const ChatMessage> messages) const override {
    return inner_->Render(messages);
  }
  void Encode(std::vector<EncodeRequest> requests,
              std::function<void(const EncodeOutcome&)> on_outcome) override {
    std::function<void()> action, before_outcome;
    {
      const std::scoped_lock lock(mutex_);
      for (const EncodeRequest& request : requests) encodings_ += request.urgent ? 0 : 1;
      if (!requests.empty() && !requests.front().urgent) {
        action = std::exchange(before_encode_, {});
        before_outcome = std::exchange(before_outcome_, {});
      }
    }
    if (action) action();
    if (before_outcome) {
      on_outcome = [before_outcome, on_outcome](const EncodeOutcome& outcome) mutable {
        if (const auto once = std::exchange(before_outcome, {})) once();
        on_outcome(outcome);
      };
    }
    inner_->Encode(std::move(requests), std::move(on_outcome));
  }
  std::shared_ptr<Generation> Generate(
      Composition composition, Sampling sampling, GenerationCallbacks callbacks,
      std::optional<std::chrono::steady_clock::time_point> deadline) override {
    {
      const std::scoped_lock lock(mutex_);
      prompts_.push_back(composition);
    }
    return inner_->Generate(std::move(composition), std::move(sampling), std::move(callbacks),
                            deadline);
  }
  Result<ScoreReport> Score(Composition composition, TokenIds continuation,
                            bool first_distribution) override {
    return inner_->Score(std::move(composition), std::move(continuation), first_distribution);
  }
  std::vector<KvTier> Presence(std::span<const KvKey> keys) const override {
    return inner_->Presence(keys);
  }
  Status Erase(std::span<const KvKey> keys, std::uint64_t scope_tag, std::uint64_t epoch) override {
    std::function<void()> action;
    {
      const std::scoped_lock lock(mutex_);
      action = std::exchange(before_erase_, {});
    }
    if (action) action();
    return inner_->Erase(keys, scope_tag, epoch);
  }
  Status EraseScope(std::uint64_t scope_tag, std::uint64_t epoch) override {
    return inner_->EraseScope(scope_tag, epoch);
  }
  const Fingerprint& fingerprint() const override { return inner_->fingerprint(); }
  const EngineCapabilities& capabilities() const override { return inner_->capabilities(); }
  void OnChange(std::function<void()> changed) override { inner_->OnChange(std::move(changed)); }
  const KvGeometry& geometry() const override { return inner_->geometry(); }
  KvStoreStats StoreStats() const override { return inner_->StoreStats(); }

 private:
  const std::shared_ptr<Engine> inner_;
  mutable std::mutex mutex_;
  std::vector<Composition> prompts_;
  std::function<void()> before_encode_, before_outcome_, before_erase_;
  std::size_t encodings_ = 0;
};

}  // namespace inferscale::testing

#endif  // INFERSCALE_TESTS_SUPPORT_RECORDING_ENGINE_H_
