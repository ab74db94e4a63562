// A scheduler and its ranks with small arenas through long random use: captures, injections that
// wait for promotions, aborts, erasures; reports come late, as under asynchronous scheduling.

#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <deque>
#include <memory>
#include <numeric>
#include <optional>
#include <random>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "base/bytes.h"
#include "connector/scheduler.h"
#include "connector/worker.h"
#include "support/fake_paged_engine.h"
#include "support/kv_blocks.h"
#include "support/lazy_device.h"

namespace inferscale::test {
namespace {

constexpr std::uintptr_t kStream = 5;
constexpr std::int32_t kFacts = 60, kFactTokens = 25, kScopes = 3;
const std::string kSecret = "a secret of enough bytes";

class Churn {
 public:
  Churn(std::uint64_t seed, int ranks) : random_(seed) {
    ConnectorSchedulerOptions options;
    options.secret.assign(kSecret.begin(), kSecret.end());
    options.budget_bytes = 1 << 26;
    options.token_bytes = std::int64_t{2} * kLayers * kHeads / ranks * kDim * 4;
    options.ranks = ranks;
    options.steady_ms = [this] { return now_ms_; };
    const std::int64_t token_bytes = options.token_bytes;
    scheduler_ = *ConnectorScheduler::Create(std::move(options));
    for (int rank = 0; rank < ranks; ++rank) {
      ConnectorWorkerOptions worker;
      worker.geometry = {kLayers, kHeads / ranks, kDim, kDim};
      worker.codec = KvCodec::kF32;
      worker.fingerprint = TestFingerprint(1);
      // With some, blocks vanish behind the scheduler's back.
      worker.host_budget_bytes = seed % 4 == 3 ? 900 * token_bytes : 1 << 26;
      worker.block_slots = kBlockSlots;
      worker.engine_blocks = kBlocks;
      worker.max_position = 2048;
      worker.rank = rank;
      Rank& made = ranks_.emplace_back();
      made.worker = *ConnectorWorker::Create(std::move(worker));
      made.engine = std::make_unique<FakePagedEngine>(rank * kHeads / ranks, kHeads / ranks);
      auto device = std::make_unique<LazyDevice>(seed + static_cast<std::uint64_t>(rank));
      made.device = device.get();
      // The ranks' arenas differ, and evict differently.
      const Status attached = made.worker->AttachDevice(std::move(device), made.engine->Cache(),
                                                        (300 + 90 * rank) * token_bytes,
                                                        seed % 2 == 0 ? 200 * token_bytes : 0);
      EXPECT_TRUE(attached.ok()) << attached.ToString();
    }
    free_blocks_.resize(kBlocks - 1);
    std::iota(free_blocks_.begin(), free_blocks_.end(), 1);
    Add(TransferOperation::kProbe, TokenIds(1100, 5), {}, 1);
    for (int step = 0; step < 20 && !scheduler_->rotation_known(); ++step) Step();
    EXPECT_TRUE(scheduler_->rotation_known()) << scheduler_->refusal();
  }

  void Run(int steps) {
    for (int step = 0; step < steps; ++step) {
      if (waiting_.size() < 10 && OneIn(2)) Ask();
      if (OneIn(2)) Capture();
      if (OneIn(15) && !waiting_.empty()) {
        const std::size_t chosen = random_() % waiting_.size();
        scheduler_->Finished(waiting_[chosen].name);
        waiting_.erase(waiting_.begin() + static_cast<std::ptrdiff_t>(chosen));
      }
      if (OneIn(40)) {
        const KvKey key = TestKey(random_() % kFacts);
        scheduler_->Erase(std::span(&key, 1));
      }
      if (OneIn(200)) {
        const std::uint64_t scope = 1 + random_() % kScopes;
        scheduler_->EraseScope(scope, ++epochs_[scope - 1]);
      }
      if (OneIn(500)) scheduler_->Clear();
      now_ms_ += OneIn(50) ? PromotionPlanner::kStallMs : static_cast<std::int64_t>(random_() % 20);
      Step();
    }
    for (int step = 0; !waiting_.empty(); ++step) {
      ASSERT_LT(step, 1000) << waiting_.size() << " requests are stuck";
      now_ms_ += 20;
      Step();
    }
    Step();
    Step();
    Check();
    EXPECT_EQ(scheduler_->directory().pins(), 0);
    EXPECT_EQ(scheduler_->promotions().kept_bytes(), 0);
    EXPECT_EQ(scheduler_->promotions().waiting(), 0);
  }

  const ConnectorScheduler& scheduler() const { return *scheduler_; }
  std::int64_t injected() const { return injected_; }
  std::int64_t promotions(std::size_t rank) const {
    return ranks_[rank].worker->DeviceStats().promotions;
  }

 private:
  struct Rank {
    std::unique_ptr<FakePagedEngine> engine;
    std::unique_ptr<ConnectorWorker> worker;
    LazyDevice* device = nullptr;
  };
  struct Request {
    std::string name;
    TokenIds prompt;
    std::int32_t external = 0;
    std::vector<std::int32_t> table = {};
  };

  bool OneIn(std::uint64_t count) { return random_() % count == 0; }

  static TokenIds Fact(std::uint64_t number) {
    TokenIds ids(kFactTokens);
    std::iota(ids.begin(), ids.end(), static_cast<TokenId>(100 * number));
    return ids;
  }

  void Add(TransferOperation operation, TokenIds prompt, std::vector<TransferBlock> blocks,
           std::uint64_t scope) {
    TransferRequest transfer;
    transfer.operation = operation;
    transfer.scope_tag = scope;
    transfer.epoch = epochs_[scope - 1];
    transfer.salt = "salt";
    transfer.expires_ms = 10;
    transfer.blocks = std::move(blocks);
    const std::string name = "r" + std::to_string(++names_);
    ASSERT_TRUE(scheduler_->Add(name, SignTransferRequest(transfer, prompt, AsBytes(kSecret)),
                                prompt, "salt", 5));
    waiting_.push_back({name, std::move(prompt)});
  }

  void Ask() {
    const std::uint64_t scope = 1 + random_() % kScopes;
    TokenIds prompt;
    std::vector<TransferBlock> blocks;
    for (std::uint64_t count = 1 + random_() % 5; count > 0; --count) {
      const std::uint64_t fact = random_() % (kFacts / kScopes) * kScopes + scope - 1;
      const auto begin = static_cast<std::int32_t>(prompt.size());
      if (std::any_of(blocks.begin(), blocks.end(),
                      [&](const auto& block) { return block.key == TestKey(fact); })) {
        continue;
      }
      const TokenIds ids = Fact(fact);
      prompt.insert(prompt.end(), ids.begin(), ids.end());
      blocks.push_back({TestKey(fact), begin, begin + kFactTokens, {}});
    }
    prompt.push_back(7);
    Add(TransferOperation::kInject, std::move(prompt), std::move(blocks), scope);
  }

  void Capture() {
    const std::uint64_t fact = random_() % kFacts;
    TokenIds prompt = Fact(fact);
    prompt.push_back(7);
    Add(TransferOperation::kCapture, std::move(prompt), {{TestKey(fact), 0, kFactTokens, {}}},
        1 + fact % kScopes);
  }

  /// Every request that is not to wait, up to four, is computed whole and ends.
  void Step() {
    std::vector<Request> running;
    std::deque<Request> later;
    for (Request& request : waiting_) {
      const std::optional<std::int32_t> matched =
          running.size() < 4 ? scheduler_->MatchedTokens(request.name, 0) : std::nullopt;
      if (!matched) {
        later.push_back(std::move(request));
        continue;
      }
      request.external = *matched;
      for (std::size_t i = 0; i * kBlockSlots < request.prompt.size(); ++i) {
        request.table.push_back(free_blocks_.front());
        free_blocks_.pop_front();
      }
      scheduler_->Allocated(request.name, request.external, request.table);
      scheduler_->Scheduled(request.name, static_cast<std::int32_t>(request.prompt.size()),
                            request.table, true);
      running.push_back(std::move(request));
    }
    waiting_ = std::move(later);
    if (running.empty() && !waiting_.empty()) {
      std::this_thread::sleep_for(std::chrono::microseconds(200));  // the threads' turn
    }
    const auto plan = scheduler_->TakePlan();
    std::vector<std::int32_t> failed;
    for (Rank& rank : ranks_) {
      if (!plan.empty()) {
        ASSERT_TRUE(rank.worker->Begin(plan).ok());
        ASSERT_TRUE(rank.worker->LoadOnDevice(kStream).ok());
      }
      for (const Request& request : running) {
        rank.device->Enqueue(kStream, [&rank, request] {
          rank.engine->Compute(request.prompt, request.table, request.external,
                               static_cast<std::int32_t>(request.prompt.size()));
        });
      }
      if (!plan.empty()) {
        if (names_ == 1) rank.device->Finish();
        rank.engine->Probe(*rank.worker);
        ASSERT_TRUE(rank.worker->CaptureOnDevice(kStream).ok());
      }
      for (const std::int32_t block : rank.worker->TakeFailedBlocks()) failed.push_back(block);
      const auto report = rank.worker->TakeReport();
      if (!report.empty()) reports_.push_back(report);
    }
    Note(running, failed);
    if (OneIn(8) || free_blocks_.size() < kBlocks / 3) Check();
    // Now or in the next step, in order.
    while (!reports_.empty() && !(OneIn(3) && reports_.size() <= ranks_.size())) {
      ASSERT_TRUE(scheduler_->TakeReport(reports_.front()).ok());
      reports_.pop_front();
    }
    for (const Request& request : running) {
      injected_ += scheduler_->Finished(request.name).injected_tokens;
    }
  }

  /// To be checked when the devices have done their work, which is late.
  void Note(const std::vector<Request>& running, const std::vector<std::int32_t>& failed) {
    for (const Request& request : running) {
      auto end = static_cast<std::int32_t>(request.prompt.size());
      for (std::size_t i = 0; i < request.table.size(); ++i) {
        if (std::find(failed.begin(), failed.end(), request.table[i]) == failed.end()) continue;
        end = static_cast<std::int32_t>(i) * kBlockSlots;  // the engine computes from here
        break;
      }
      unchecked_.emplace_back(request, end);
    }
  }

  void Check() {
    for (Rank& rank : ranks_) rank.device->Finish();
    for (const auto& [request, end] : unchecked_) {
      for (Rank& rank : ranks_) {
        EXPECT_LT(rank.engine->Difference(request.prompt, request.table, 0, end), 2e-4F);
      }
      free_blocks_.insert(free_blocks_.end(), request.table.begin(), request.table.end());
    }
    unchecked_.clear();
  }

  std::mt19937_64 random_;
  std::int64_t now_ms_ = 0;
  std::unique_ptr<ConnectorScheduler> scheduler_;
  std::deque<Rank> ranks_;
  std::deque<std::int32_t> free_blocks_;
  std::deque<Request> waiting_;
  std::vector<std::pair<Request, std::int32_t>> unchecked_;  ///< positions that must be right
  std::deque<std::vector<std::uint8_t>> reports_;
  std::uint64_t epochs_[kScopes] = {1, 1, 1};
  std::int64_t injected_ = 0;
  int names_ = 0;
};

TEST(ConnectorChurnTest, EveryAnswerIsRightAndNothingIsLeftBehind) {
  std::int64_t given_up = 0, lost = 0;
  for (const int ranks : {1, 2}) {
    for (std::uint64_t seed = 0; seed < 8; ++seed) {
      SCOPED_TRACE(std::to_string(ranks) + " ranks, seed " + std::to_string(seed));
      Churn churn(seed, ranks);
      churn.Run(500);
      EXPECT_GT(churn.injected(), 500);
      EXPECT_GT(churn.promotions(0), 20);
      EXPECT_GT(churn.scheduler().promotions().counters().waits, 20);
      given_up += churn.scheduler().promotions().counters().given_up;
      lost += churn.scheduler().counters().load_failures;
      if (seed % 4 != 3) {
        EXPECT_EQ(churn.scheduler().counters().load_failures, 0);
      }
    }
  }
  EXPECT_GT(given_up, 0);
  EXPECT_GT(lost, 0);
}

}  // namespace
}  // namespace inferscale::test
