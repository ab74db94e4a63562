#ifndef INFERSCALE_MEMORY_SERVICE_IMPL_H_
#define INFERSCALE_MEMORY_SERVICE_IMPL_H_

#include <atomic>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <unordered_set>
#include <vector>

#include "base/clock.h"
#include "compose/composer.h"
#include "encode/fact_encoder.h"
#include "inferscale/memory_service.h"
#include "memory/background_worker.h"
#include "memory/extractor.h"

namespace inferscale {

/// Keys whose blocks erasures have taken from the engine while a slice of encodings was under way.
/// The same tokens behind the same context have the same key: a fact added while its equal was
/// deleted would be marked as ready, and the block be gone.
class ErasedMeanwhile {
 public:
  void Start() {
    const std::lock_guard lock(mutex_);
    keys_.emplace();
  }
  /// Nothing happens unless a slice is under way.
  void Note(std::span<const KvKey> keys) {
    const std::lock_guard lock(mutex_);
    if (keys_) keys_->insert(keys.begin(), keys.end());
  }
  std::vector<KvKey> Among(std::span<const KvKey> keys) const {
    const std::lock_guard lock(mutex_);
    std::vector<KvKey> erased;
    for (const KvKey& key : keys) {
      if (keys_ && keys_->contains(key)) erased.push_back(key);
    }
    return erased;
  }
  void End() {
    const std::lock_guard lock(mutex_);
    keys_.reset();
  }

 private:
  mutable std::mutex mutex_;
  std::optional<std::unordered_set<KvKey>> keys_;
};

/// The parts of a MemoryService and what several of its files share.
struct MemoryService::Impl {
  std::unique_ptr<Catalog> catalog;
  std::shared_ptr<Embedder> embedder;
  std::shared_ptr<Engine> engine;        // may be null
  std::shared_ptr<Extractor> extractor;  // may be null: verbatim only
  MemoryServiceOptions options;
  Recipe recipe;
  /// How facts are encoded and found, for one nature of the engine (Engine::OnChange).
  struct Encoding {
    FactEncoder encoder;
    bool kv = false;               // whether the engine can store and inject it
    std::string accuracy_refusal;  // why KV is served as text; empty: it is not
    const std::string& id() const { return encoder.encoding_id(); }
  };
  std::mutex encodings_mutex;
  std::vector<std::unique_ptr<Encoding>> encodings;  // all are kept: somebody may still use one
  std::atomic<Encoding*> encoding{nullptr};          // null without an engine
  std::unique_ptr<Retriever> retriever;
  std::atomic<std::uint64_t> prefix_epoch{
      1};  // raised when exact prefixes are erased: fences those under way
  ErasedMeanwhile erased_meanwhile;
  std::mutex chats_mutex;
  std::set<std::shared_ptr<Generation>> chats;  // in flight: ended before anything they use goes
  std::atomic<bool> stopping{false};            // background work ends where it can
  std::unique_ptr<BackgroundWorker> worker;     // declared last: stops before its parts go

  TimeMs Now() const { return options.clock ? options.clock() : NowMs(); }

  /// The encoding for what the engine is now. Needs an engine.
  Result<Encoding*> CurrentEncoding();
  /// Reads and logs what was found about the accuracy of an encoding.
  Status ApplyAccuracyGate(Encoding& of);
  /// Keeps its id in the catalog, if it stores KV: also of one that came after the start. Nobody is
  /// refused an answer because that fails.
  void RememberEncoding(const Encoding& of);

  /// Scopes a request may read; empty when it names no owner.
  Result<std::vector<ScopeInfo>> ReadableScopes(const Scope& scope);

  /// Removes from the engine what an erasure took out of the catalog, then marks it done.
  Status Apply(const Erasure& erasure);
  /// Applies each, then wakes the worker: what an erasure cut short must be encoded again.
  Status TryApply(const std::vector<Erasure>& erasures);
  /// The same for a caller who is told no paths: kUnavailable if something is left to be removed.
  Status Apply(const std::vector<Erasure>& erasures);

  /// Turns to facts, by the given mode. Does not store anything.
  Result<std::vector<NewFact>> Extract(ScopeId scope, const std::vector<Turn>& turns,
                                       ExtractionMode mode, const std::string& metadata_json,
                                       const std::string& expiration_date,
                                       const std::vector<std::string>& exclude);
  /// Fills in embeddings; on a failing embedder they stay pending.
  void Embed(std::vector<NewFact>* facts);

  /// The facts as they may be served, in the order given. Missing blocks are queued again.
  Result<std::vector<ServableFact>> Servable(Encoding& by, std::span<const Fact> facts,
                                             std::span<const ScopeInfo> scopes, MemoryMode mode);
  /// Queues again what a generation found evicted or corrupt.
  void EncodeLost(const Composition& composition, const GenerationReport& generation);
  /// \param tenant under whose secret the exact prefix is stored, also when there is no scope
  Result<Composed> ComposePrompt(Encoding& by, const std::string& tenant,
                                 std::span<const ScopeInfo> scopes,
                                 std::span<const ChatMessage> messages, std::span<const Fact> facts,
                                 MemoryMode mode, std::int32_t compute_best,
                                 std::int32_t answer_tokens, const LedgerEntry* ledger,
                                 const ToolFormat* tools);
  /// Makes sure that the exact prefix of a composition is in the store, then calls `then`, perhaps
  /// on another thread. A prefix that cannot be stored is simply computed.
  void WithPrefix(const Composition& composition, std::function<void()> then);
  Result<std::string> Salt(const Encoding& by, const Scope& scope,
                           std::span<const ScopeInfo> scopes, MemoryMode mode);
};

}  // namespace inferscale

#endif  // INFERSCALE_MEMORY_SERVICE_IMPL_H_
