#ifndef INFERSCALE_TESTS_SUPPORT_FAKE_ENGINE_H_
#define INFERSCALE_TESTS_SUPPORT_FAKE_ENGINE_H_

#include <functional>
#include <map>
#include <mutex>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "inferscale/engine.h"

namespace inferscale::testing {

/// An engine without a model: tokens are bytes, special tokens are ids from 256 on, encodings are
/// done at once, answers are fixed. It keeps what it was asked.
class FakeEngine : public Engine {
 public:
  static constexpr TokenId kBegin = 256, kEnd = 257;

  FakeEngine() {
    fingerprint_[0] = 1;
    capabilities_.kv_injection = true;
    capabilities_.context_tokens = 4096;
    capabilities_.parallel_sequences = 4;
    geometry_ = {2, 1, 4, 4};
  }

  TokenIds Tokenize(std::string_view text) const override {
    TokenIds ids;
    for (const char c : text) ids.push_back(static_cast<unsigned char>(c));
    return ids;
  }
  std::string Detokenize(std::span<const TokenId> ids) const override {
    std::string text;
    for (const TokenId id : ids) {
      if (id < 256) {
        text.push_back(static_cast<char>(id));
      } else {
        text += id == kBegin ? "<" : ">";
      }
    }
    return text;
  }
  /// <role\n text> for each message, then <assistant\n.
  Result<RenderedChat> Render(std::span<const ChatMessage> messages) const override {
    RenderedChat rendered;
    const auto append = [&](std::string_view text) {
      const TokenIds ids = Tokenize(text);
      rendered.ids.insert(rendered.ids.end(), ids.begin(), ids.end());
    };
    for (const ChatMessage& message : messages) {
      rendered.ids.push_back(kBegin);
      append(message.role + "\n");
      const auto begin = static_cast<std::int32_t>(rendered.ids.size());
      append(message.content);
      rendered.contents.push_back({begin, static_cast<std::int32_t>(rendered.ids.size())});
      if (message.role == "system" && rendered.facts_place < 0 && !no_place) {
        rendered.facts_place = rendered.contents.back().end;
      }
      if (message.role == "user") rendered.question_place = begin;
      rendered.ids.push_back(kEnd);
      append("\n");
    }
    rendered.ids.push_back(kBegin);
    append("assistant\n");
    return rendered;
  }

  void Encode(std::vector<EncodeRequest> requests,
              std::function<void(const EncodeOutcome&)> on_outcome) override {
    for (const EncodeRequest& request : requests) {
      EncodeOutcome outcome{request.info.key, encode_status};
      {
        std::lock_guard lock(mutex_);
        encoded.push_back(request);
        if (hold_outcomes) {
          held.push_back([on_outcome, outcome] { on_outcome(outcome); });
          continue;
        }
        if (encode_status.ok()) stored_.insert(request.info.key);
      }
      on_outcome(outcome);
    }
  }

  std::shared_ptr<Generation> Generate(
      Composition composition, Sampling, GenerationCallbacks callbacks,
      std::optional<std::chrono::steady_clock::time_point>) override {
    class Done : public Generation {
      void Cancel() override {}
      void Wait() override {}
    };
    GenerationReport report;
    report.text = answer;
    report.generated = Tokenize(answer);
    report.prompt_tokens = static_cast<std::int32_t>(composition.ids.size());
    std::int32_t covered = 0;
    {
      std::lock_guard lock(mutex_);
      for (const BlockSpan& block : composition.blocks) {
        if (!composition.inject || block.begin != covered || !stored_.contains(block.key)) break;
        covered = block.end;
      }
      compositions.push_back(composition);
    }
    report.injected_tokens = covered;
    report.computed_tokens = report.prompt_tokens - covered;
    if (callbacks.on_token) callbacks.on_token({report.generated.front(), answer, 0, {}});
    callbacks.on_done(report);
    return std::make_shared<Done>();
  }

  Result<ScoreReport> Score(Composition, TokenIds, bool) override {
    return Unsupported("no scores");
  }

  std::vector<KvTier> Presence(std::span<const KvKey> keys) const override {
    std::lock_guard lock(mutex_);
    std::vector<KvTier> tiers;
    for (const KvKey& key : keys)
      tiers.push_back(stored_.contains(key) ? KvTier::kHost : KvTier::kNone);
    return tiers;
  }
  Status Erase(std::span<const KvKey> keys, std::uint64_t, std::uint64_t) override {
    std::lock_guard lock(mutex_);
    for (const KvKey& key : keys) {
      stored_.erase(key);
      erased.insert(key);
    }
    return OkStatus();
  }
  Status EraseScope(std::uint64_t scope_tag, std::uint64_t epoch) override {
    std::lock_guard lock(mutex_);
    erased_scopes[scope_tag] = epoch;
    return OkStatus();
  }
  const Fingerprint& fingerprint() const override { return fingerprint_; }
  const EngineCapabilities& capabilities() const override { return capabilities_; }
  const KvGeometry& geometry() const override { return geometry_; }
  KvStoreStats StoreStats() const override { return {}; }

  /// Makes a stored block vanish, as eviction does.
  void Evict(const KvKey& key) {
    std::lock_guard lock(mutex_);
    stored_.erase(key);
  }

  std::size_t Held() const {
    std::lock_guard lock(mutex_);
    return held.size();
  }

  std::string answer = "fine";
  Status encode_status;
  bool hold_outcomes = false;  ///< of encodings, which then wait in `held`
  std::vector<std::function<void()>> held;
  bool no_place = false;  ///< a template without a system message
  std::vector<EncodeRequest> encoded;
  std::vector<Composition> compositions;
  std::set<KvKey> erased;
  std::map<std::uint64_t, std::uint64_t> erased_scopes;
  EngineCapabilities capabilities_;

 private:
  mutable std::mutex mutex_;
  std::set<KvKey> stored_;
  Fingerprint fingerprint_{};
  KvGeometry geometry_;
};

}  // namespace inferscale::testing

#endif  // INFERSCALE_TESTS_SUPPORT_FAKE_ENGINE_H_
