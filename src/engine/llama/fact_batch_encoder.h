#ifndef INFERSCALE_ENGINE_LLAMA_FACT_BATCH_ENCODER_H_
#define INFERSCALE_ENGINE_LLAMA_FACT_BATCH_ENCODER_H_

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <span>
#include <thread>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "engine/llama/foreground_gate.h"
#include "engine/llama/kv_transfer.h"
#include "inferscale/engine.h"
#include "inferscale/kv_store.h"
#include "llama/llama_context.h"

namespace inferscale {

/// Owns the encoding context and its thread. Facts with equal context share one computation of it
/// and are computed side by side, each in a sequence of its own. Gives way to generations: beside
/// them it works in short slices for half of the time, and keeps what it has. What was too large
/// for its context or the store's budgets is not tried again. Thread-safe; outcomes are reported on
/// its thread, those of what is not tried by Encode itself, under no lock. Destroying it ends what
/// is left with kCancelled.
class FactBatchEncoder {
 public:
  struct Options {
    std::unique_ptr<LlamaContext> context;
    std::shared_ptr<const KvTransfer> transfer;
    KvStore* store = nullptr;
    std::shared_ptr<ForegroundGate> gate;
    Fingerprint fingerprint{};
    std::int32_t sections = 1;
    std::int32_t window = 0;
    bool can_abort = true;  ///< a running computation can be stopped (CPU)
  };
  explicit FactBatchEncoder(Options options);
  ~FactBatchEncoder();

  using OnOutcome = std::function<void(const EncodeOutcome&)>;
  void Encode(std::vector<EncodeRequest> requests, OnOutcome on_outcome);
  /// Ends these encodings, running ones included, with kCancelled: none of them is stored any more.
  void Cancel(std::span<const KvKey> keys);
  /// Whether this process has stored the key.
  bool WasStored(const KvKey& key) const;

 private:
  struct Item {
    EncodeRequest request;
    std::shared_ptr<const OnOutcome> on_outcome;
  };

  void Run();
  std::vector<Item> TakeBatch();
  /// Waits until a piece of work may be computed. False: what is running must be put back, because
  /// something urgent waits or the end has come.
  /// \param beside_generations set if generations run, so that the piece must be a short slice
  bool AwaitTurn(bool urgent, bool& beside_generations);
  Status Check(const EncodeRequest& request) const;
  void Process(std::vector<Item> batch);
  /// Brings the context's KV into sequence 0. False: interrupted; what is there is kept.
  Result<bool> ComputeContext(const TokenIds& context, bool urgent);
  /// Computes piece by piece, giving way in between. \return how many tokens, fewer if interrupted
  /// \param on_computed may be empty; called after each piece with their number so far
  Result<std::size_t> Compute(std::span<const BatchToken> tokens, bool urgent,
                              const std::function<void(std::size_t)>& on_computed);
  Status Store(Item& item, std::int32_t sequence, std::int32_t context_tokens);
  /// A chat asks for its exact prefix each time: it is computed in vain once. Under the lock.
  void RememberImpossible(const EncodeRequest& request, const Status& status);
  void Report(const Item& item, Status status);
  void Requeue(std::span<Item> batch);
  std::deque<Item>::iterator FirstOrdinary();  ///< of the queue, under the lock

  std::unique_ptr<LlamaContext> context_;
  std::shared_ptr<const KvTransfer> transfer_;
  KvStore* store_;
  std::shared_ptr<ForegroundGate> gate_;
  Fingerprint fingerprint_;
  std::int32_t sections_;
  std::int32_t window_;
  bool can_abort_;

  mutable std::mutex mutex_;
  std::condition_variable changed_;
  bool stop_ = false;
  std::deque<Item> queue_;
  std::unordered_set<KvKey> running_, cancelled_;
  std::unordered_set<KvKey> stored_;
  std::unordered_map<KvKey, Status> impossible_;  ///< why

  // The encoding thread's own.
  TokenIds shared_;  ///< tokens whose KV sequence 0 holds
  std::vector<std::uint8_t> blob_;
  double rate_ = 200, slice_rate_ = 100;  ///< tokens a second
  std::atomic<bool> giving_way_{false}, stopping_{false};
  std::chrono::steady_clock::time_point pause_until_;

  std::thread thread_;
};

}  // namespace inferscale

#endif  // INFERSCALE_ENGINE_LLAMA_FACT_BATCH_ENCODER_H_
