#ifndef INFERSCALE_CONNECTOR_SCHEDULER_H_
#define INFERSCALE_CONNECTOR_SCHEDULER_H_

/// \file scheduler.h
/// ConnectorScheduler: the scheduler's side of the vLLM connector, without any of vLLM's objects.
/// It decides which tokens of a request come from stored KV, which runs are captured, what is
/// evicted. Guarantees: asking for a match again and again changes nothing but pins; every pin goes
/// with its request; a request that is malformed, unsigned, expired or under another salt gets no
/// tokens and one reason. Not thread-safe: one engine core calls it.

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "connector/growth.h"
#include "connector/promotion_planner.h"
#include "connector/step.h"
#include "connector/transfer_request.h"
#include "inferscale/kv_block.h"
#include "inferscale/result.h"
#include "kv/block_directory.h"

namespace inferscale {

struct ConnectorSchedulerOptions {
  std::vector<std::uint8_t> secret;  ///< shared with the gateway, at least 16 bytes
  std::int64_t budget_bytes = 0;     ///< of one rank
  std::int64_t token_bytes = 0;      ///< of one rank, in the store's codec, rounded up
  std::int32_t ranks = 1;
  /// Tokens that a next one sees, if every layer has a window: an engine then frees its blocks
  /// behind it, and its tables begin with null blocks (number 0). 0: no table does.
  std::int32_t window = 0;
  std::int32_t block_slots = 0;  ///< tokens an engine block; needed with a window
  /// Whether the engine frees what a step does not look at any more before it hears how the one in
  /// front of it went: a load that failed is then found by its blocks only if that step sees one.
  bool frees_ahead = false;
  std::function<std::int64_t()> steady_ms = {};  ///< tests put their own in
};

/// What became of one request.
struct TransferOutcome {
  std::string request;
  std::int32_t injected_tokens = 0;
  std::int32_t captured_blocks = 0;
  std::map<std::string, std::int32_t> fallbacks;  ///< reason -> blocks
};

struct ConnectorCounters {
  std::int64_t requests = 0, injected_tokens = 0, captured_blocks = 0, load_failures = 0;
  std::map<std::string, std::int64_t> fallbacks;
};

class ConnectorScheduler {
 public:
  static Result<std::unique_ptr<ConnectorScheduler>> Create(ConnectorSchedulerOptions options);

  /// A request has arrived. \return whether it is accepted; the reason, if not, is in its outcome.
  bool Add(const std::string& request, const CarriedTransfer& transfer, TokenIds prompt,
           std::string_view cache_salt, TimeMs now);
  bool Knows(const std::string& request) const { return requests_.contains(request); }

  /// Tokens after the first `computed` ones that stored KV covers without a gap, at most all but
  /// the last of the prompt. Pins what it names. 0 for requests it does not know. No answer: ask
  /// again in the next step, the ranks are copying its blocks up (PromotionPlanner says how long).
  /// \param tokens of the request, what it was answered before a preemption included; 0: its
  /// prompt's.
  std::optional<std::int32_t> MatchedTokens(const std::string& request, std::int32_t computed,
                                            std::int32_t tokens = 0);
  /// The engine has given the request its blocks and takes `external` tokens of the last match.
  /// Those whose blocks are null are not loaded: nothing looks at them any more.
  void Allocated(const std::string& request, std::int32_t external,
                 std::vector<std::int32_t> block_table);
  /// Whether the request has to do with what its passes compute: Scheduled is to be told of them.
  bool Follows(const std::string& request) const;
  /// A pass of this step computes the request's tokens from `begin` up to `computed`. \param
  /// new_blocks engine blocks to append, or the whole table if `replace`. Blocks that the engine
  /// has freed before this pass, behind a window, are another request's by now: runs in them are
  /// not captured.
  void Scheduled(const std::string& request, std::int32_t computed,
                 std::span<const std::int32_t> new_blocks, bool replace, std::int32_t begin = 0);
  /// The step's plan; empty when there is nothing to do.
  StepPlan TakePlan();
  /// What the ranks did. Nothing is taken from a malformed report, which is an error; blocks that
  /// not every rank has told of are taken back then, as it may have told of them.
  Status TakeReport(std::span<const std::uint8_t> report);
  /// Every rank has given its first report: what one of them lacks is missing for all. Call it
  /// before the first step.
  void StartComplete() { Drop(directory_.DropIncomplete()); }
  /// Finished, aborted, or preempted for good: its pins go.
  TransferOutcome Finished(const std::string& request);

  /// This step's plan could not be handed over: its loads and captures are dropped, what was to be
  /// removed goes into the next one.
  void DiscardPlan();
  /// Not served from now on, and captures of the scope that were asked for below `epoch` end
  /// without a block, whenever their pass comes. \return the plan after which the bytes are gone
  /// from every rank.
  std::uint64_t Erase(std::span<const KvKey> keys, std::uint64_t scope_tag = 0,
                      std::uint64_t epoch = 0);
  std::uint64_t EraseScope(std::uint64_t scope_tag, std::uint64_t epoch);
  /// Every block goes: another model, a reset, a sleep.
  void Clear();
  bool Ready(const KvKey& key) const { return directory_.Ready(key); }
  /// The last plan that every rank has carried out.
  std::uint64_t AcknowledgedPlan() const;
  std::uint64_t last_plan() const { return plan_.sequence - 1; }

  /// Whether every rank knows its model's rotation; until then nothing is captured or matched.
  bool rotation_known() const;
  const std::string& refusal() const { return refusal_; }
  const ConnectorCounters& counters() const { return counters_; }
  /// For metrics; fallbacks as "fallback:" and the reason.
  Growth TakeGrowth();
  const BlockDirectory& directory() const { return directory_; }
  const PromotionPlanner& promotions() const { return promotions_; }

 private:
  struct Pinned {
    KvKey key;
    std::uint64_t serial = 0;
  };
  struct Active {
    TransferRequest transfer;
    TokenIds prompt;
    std::vector<Pinned> pins;  ///< [blocks]; serial 0: not pinned
    std::vector<std::int32_t> block_table;
    std::int32_t matched_from = 0;  ///< `computed` of the last match
    std::int32_t external = 0;      ///< tokens that the engine has taken from matches
    std::int32_t promised = 0;      ///< tokens to load that no report has told of yet
    std::int32_t unseen = 0;        ///< of those, tokens behind the window: not to be written
    std::map<std::string, std::int32_t> unmatched;  ///< of the last match: reason -> blocks
    std::size_t next_capture = 0;
    bool probed = false;
    TransferOutcome outcome;
  };

  explicit ConnectorScheduler(ConnectorSchedulerOptions options);
  void Fall(Active& active, const std::string& reason, std::int32_t blocks);
  void Capture(const std::string& request, Active& active, std::int32_t begin,
               std::int32_t computed);
  /// Tokens in front of the first block of a table that is not null.
  std::int32_t NullTokens(std::span<const std::int32_t> block_table) const;
  /// Tokens in engine blocks that lie whole behind the window of a pass which begins at `begin`:
  /// the engine frees those before it, and nothing looks at them any more.
  std::int32_t FreedTokens(std::int32_t begin) const;
  /// Whether none of the blocks that hold a match up to `end` is sure to be in the engine's table
  /// when it hears of a load that failed.
  bool FailsUnseen(std::int32_t end, std::int32_t tokens) const;
  /// Whether every block of tokens [first, last) is there in a pass that begins at `begin`.
  bool IsWhole(const Active& active, std::int32_t first, std::int32_t last,
               std::int32_t begin) const;
  void Drop(std::span<const KvKey> keys);
  /// Whether the request waits until what it loads of [begin, end) has come up to the arenas.
  bool MustWait(const std::string& request, const Active& active, std::int32_t begin,
                std::int32_t end);
  Result<WorkerReport> ReadReport(std::span<const std::uint8_t> bytes) const;
  void TakeArenas(const WorkerReport& report);
  void Unpin(Active& active);

  const ConnectorSchedulerOptions options_;
  BlockDirectory directory_;
  std::unordered_map<std::string, Active> requests_;
  StepPlan plan_;  ///< the next one
  PromotionPlanner promotions_;
  std::uint64_t every_arena_ = 0;  ///< bit r for every rank
  std::vector<std::uint64_t> acknowledged_;
  std::vector<bool> rotation_measured_;
  std::string refusal_;
  ConnectorCounters counters_;
  CounterGrowth growth_;
};

}  // namespace inferscale

#endif  // INFERSCALE_CONNECTOR_SCHEDULER_H_
