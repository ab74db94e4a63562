// The scheduler's and the workers' side together, on an engine whose keys are known by formula.

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <numeric>
#include <string>
#include <vector>

#include "base/bytes.h"
#include "connector/scheduler.h"
#include "connector/worker.h"
#include "support/fake_paged_engine.h"
#include "support/kv_blocks.h"

namespace inferscale::test {
namespace {

const std::string kSecret = "a secret of enough bytes";

KvKey KeyOf(std::uint8_t number) {
  KvKey key;
  key.bytes.fill(number);
  return key;
}

class ConnectorTest : public ::testing::TestWithParam<int> {
 protected:
  void SetUp() override { Start(GetParam(), std::int64_t{1} << 24); }

  void Start(int ranks, std::int64_t budget_bytes) {
    ConnectorSchedulerOptions options;
    options.secret.assign(kSecret.begin(), kSecret.end());
    options.budget_bytes = budget_bytes;
    options.token_bytes = 2 * kLayers * kHeads * kDim * 4 / ranks;
    options.ranks = ranks;
    auto scheduler = ConnectorScheduler::Create(std::move(options));
    ASSERT_TRUE(scheduler.ok());
    scheduler_ = std::move(*scheduler);
    workers_.clear();
    engines_.clear();
    for (int rank = 0; rank < ranks; ++rank) {
      ConnectorWorkerOptions worker;
      worker.geometry = {kLayers, kHeads / ranks, kDim, kDim};
      worker.codec = KvCodec::kF32;
      worker.fingerprint = TestFingerprint(1);
      worker.folder = folder_.path() / std::to_string(rank);
      worker.host_budget_bytes = 1 << 24;
      worker.file_budget_bytes = 1 << 24;
      worker.block_slots = kBlockSlots;
      worker.engine_blocks = kBlocks;
      worker.max_position = 2048;
      worker.rank = rank;
      auto made = ConnectorWorker::Create(std::move(worker));
      ASSERT_TRUE(made.ok()) << made.status().ToString();
      workers_.push_back(std::move(*made));
      engines_.push_back(std::make_unique<FakePagedEngine>(rank * kHeads / ranks, kHeads / ranks));
    }
  }

  /// What workers say at their start.
  void TakeReports() {
    for (auto& worker : workers_) {
      const auto report = worker->TakeReport();
      if (!report.empty()) {
        EXPECT_TRUE(scheduler_->TakeReport(report).ok());
      }
    }
    scheduler_->StartComplete();
  }

  CarriedTransfer Sign(TransferOperation operation, const TokenIds& prompt,
                       std::vector<TransferBlock> blocks, std::uint64_t epoch = 1) {
    TransferRequest request;
    request.operation = operation;
    request.scope_tag = 7;
    request.epoch = epoch;
    request.salt = "salt";
    request.expires_ms = 10;
    request.blocks = std::move(blocks);
    return SignTransferRequest(request, prompt, AsBytes(kSecret));
  }

  std::vector<std::int32_t> Table(std::size_t tokens) {
    std::vector<std::int32_t> table((tokens + kBlockSlots - 1) / kBlockSlots);
    for (std::int32_t& block : table) block = 1 + (next_block_++ * 37) % (kBlocks - 1);
    return table;
  }

  /// A whole request in chunks of `chunk` computed tokens. \return its outcome.
  TransferOutcome Run(const std::string& name, TransferOperation operation, const TokenIds& prompt,
                      const std::vector<TransferBlock>& blocks, std::int32_t local_hit = 0,
                      std::int32_t chunk = 1 << 20, std::uint64_t epoch = 1) {
    const CarriedTransfer transfer = Sign(operation, prompt, blocks, epoch);
    scheduler_->Add(name, transfer, prompt, "salt", 5);
    external_ = *scheduler_->MatchedTokens(name, local_hit);
    EXPECT_EQ(scheduler_->MatchedTokens(name, local_hit), external_);  // idempotent
    table_ = Table(prompt.size());
    for (auto& engine : engines_) engine->Compute(prompt, table_, 0, local_hit);
    scheduler_->Allocated(name, external_, table_);
    std::int32_t computed = local_hit + external_;
    failed_.clear();
    while (computed < static_cast<std::int32_t>(prompt.size())) {
      const std::int32_t end =
          std::min<std::int32_t>(computed + chunk, static_cast<std::int32_t>(prompt.size()));
      scheduler_->Scheduled(name, end, table_, true);
      const auto plan = scheduler_->TakePlan();
      for (std::size_t rank = 0; rank < workers_.size(); ++rank) {
        engines_[rank]->Step(*workers_[rank], plan,
                             [&] { engines_[rank]->Compute(prompt, table_, computed, end); });
        for (const std::int32_t block : workers_[rank]->TakeFailedBlocks())
          failed_.push_back(block);
        const auto report = workers_[rank]->TakeReport();
        if (!report.empty()) {
          EXPECT_TRUE(scheduler_->TakeReport(report).ok());
        }
      }
      computed = end;
    }
    return scheduler_->Finished(name);
  }

  void Probe() {
    Run("probe", TransferOperation::kProbe, TokenIds(1100, 5), {});
    ASSERT_TRUE(scheduler_->rotation_known()) << scheduler_->refusal();
  }

  float Difference(const TokenIds& prompt, std::int32_t begin, std::int32_t end) {
    float most = 0;
    for (auto& engine : engines_) {
      most = std::max(most, engine->Difference(prompt, table_, begin, end));
    }
    return most;
  }

  TemporaryFolder folder_;
  std::unique_ptr<ConnectorScheduler> scheduler_;
  std::vector<std::unique_ptr<ConnectorWorker>> workers_;
  std::vector<std::unique_ptr<FakePagedEngine>> engines_;
  std::vector<std::int32_t> table_, failed_;
  std::int32_t external_ = 0, next_block_ = 0;
};

TokenIds Numbers(std::int32_t count, TokenId first) {
  TokenIds ids(static_cast<std::size_t>(count));
  std::iota(ids.begin(), ids.end(), first);
  return ids;
}

TokenIds Join(std::initializer_list<TokenIds> parts) {
  TokenIds all;
  for (const TokenIds& part : parts) all.insert(all.end(), part.begin(), part.end());
  return all;
}

TEST_P(ConnectorTest, NothingIsCapturedOrMatchedBeforeTheRotationIsKnown) {
  const TokenIds prompt = Numbers(40, 1);
  const TransferOutcome outcome =
      Run("a", TransferOperation::kCapture, prompt, {{KeyOf(1), 0, 20, {}}});
  EXPECT_EQ(outcome.captured_blocks, 0);
  EXPECT_EQ(outcome.fallbacks.at("rotation_unknown"), 1);
}

TEST_P(ConnectorTest, FactsAreMovedToNewPositionsAcrossBlockBorders) {
  Probe();
  for (const std::int32_t length : {1, 15, 16, 17, 31, 33, 100, 188}) {
    const TokenIds prefix = Numbers(9, 1000), first = Numbers(length, 10 * length),
                   second = Numbers(21, 5000 + length), tail = Numbers(6, 900);
    const auto a = static_cast<std::uint8_t>(length), b = static_cast<std::uint8_t>(length + 100);
    // Encoded apart, behind a primer, in chunks.
    const auto captured =
        Run("c", TransferOperation::kCapture, Join({Numbers(37, 1), first, second}),
            {{KeyOf(a), 37, 37 + length, {}}, {KeyOf(b), 37 + length, 58 + length, {}}}, 0, 13);
    EXPECT_EQ(captured.captured_blocks, 2);
    Run("p", TransferOperation::kCapture, prefix, {{KeyOf(250), 0, 9, {}}});
    // Served the other way round, behind the prefix.
    const TokenIds prompt = Join({prefix, second, first, tail});
    const std::int32_t ready = 9 + 21 + length;
    const auto served =
        Run("s", TransferOperation::kInject, prompt,
            {{KeyOf(250), 0, 9, {}}, {KeyOf(b), 9, 30, {}}, {KeyOf(a), 30, ready, {}}});
    EXPECT_EQ(external_, ready);
    EXPECT_EQ(served.injected_tokens, ready);
    EXPECT_TRUE(served.fallbacks.empty());
    EXPECT_LT(Difference(prompt, 0, static_cast<std::int32_t>(prompt.size())), 2e-4F) << length;
    EXPECT_EQ(scheduler_->directory().pins(), 0);
  }
}

TEST_P(ConnectorTest, InjectsBehindALocalHitInTheMiddleOfABlock) {
  Probe();
  const TokenIds prompt = Numbers(90, 1);
  Run("c", TransferOperation::kCapture, prompt, {{KeyOf(1), 0, 40, {}}, {KeyOf(2), 40, 80, {}}});
  const auto served = Run("s", TransferOperation::kInject, prompt,
                          {{KeyOf(1), 0, 40, {}}, {KeyOf(2), 40, 80, {}}}, 48);
  EXPECT_EQ(external_, 32);
  EXPECT_EQ(served.injected_tokens, 32);
  EXPECT_LT(Difference(prompt, 0, 90), 2e-4F);
  // All of it in the engine's own cache already.
  Run("t", TransferOperation::kInject, prompt, {{KeyOf(1), 0, 40, {}}}, 80);
  EXPECT_EQ(external_, 0);
}

TEST_P(ConnectorTest, AWholePromptLeavesItsLastTokenToTheEngine) {
  Probe();
  const TokenIds prompt = Numbers(32, 1);
  Run("c", TransferOperation::kCapture, prompt, {{KeyOf(1), 0, 32, {}}});
  Run("s", TransferOperation::kInject, prompt, {{KeyOf(1), 0, 32, {}}});
  EXPECT_EQ(external_, 31);
  EXPECT_LT(Difference(prompt, 0, 32), 2e-4F);
}

TEST_P(ConnectorTest, ARequestThatEndsBeforeItsPassIsReportedCountsWhatWasWritten) {
  Probe();
  const TokenIds prompt = Numbers(40, 1);
  Run("c", TransferOperation::kCapture, prompt, {{KeyOf(1), 0, 30, {}}});
  const CarriedTransfer transfer =
      Sign(TransferOperation::kInject, prompt, {{KeyOf(1), 0, 30, {}}});
  for (const bool planned : {true, false}) {
    ASSERT_TRUE(scheduler_->Add("r", transfer, prompt, "salt", 5));
    ASSERT_EQ(scheduler_->MatchedTokens("r", 0), 30);
    scheduler_->Allocated("r", 30, Table(40));
    if (planned) {
      EXPECT_FALSE(scheduler_->TakePlan().empty());
    }
    EXPECT_EQ(scheduler_->Finished("r").injected_tokens, planned ? 30 : 0);
  }
}

TEST_P(ConnectorTest, MatchesUpToTheFirstMissingOrForeignBlock) {
  Probe();
  const TokenIds prompt = Numbers(70, 1);
  Run("c", TransferOperation::kCapture, prompt,
      {{KeyOf(1), 0, 20, {}}, {KeyOf(2), 20, 40, {}}, {KeyOf(3), 40, 60, {}}});
  const std::vector<TransferBlock> all = {
      {KeyOf(1), 0, 20, {}}, {KeyOf(9), 20, 40, {}}, {KeyOf(3), 40, 60, {}}};
  const auto outcome = Run("m", TransferOperation::kInject, prompt, all);
  EXPECT_EQ(external_, 20);
  EXPECT_EQ(outcome.fallbacks,
            (std::map<std::string, std::int32_t>{{"not_ready", 1}, {"not_contiguous", 1}}));
  // The same key for other tokens is a miss, as is a hole.
  const auto foreign = Run("k", TransferOperation::kInject, prompt, {{KeyOf(2), 0, 20, {}}});
  EXPECT_EQ(external_, 0);
  EXPECT_EQ(foreign.fallbacks.at("token_mismatch"), 1);
  const auto hole = Run("h", TransferOperation::kInject, prompt, {{KeyOf(2), 20, 40, {}}});
  EXPECT_EQ(external_, 0);
  EXPECT_EQ(hole.fallbacks.at("not_contiguous"), 1);
  EXPECT_EQ(scheduler_->directory().pins(), 0);
}

TEST_P(ConnectorTest, ABlockLostBetweenLookupAndLoadIsReportedAndComputed) {
  Probe();
  const TokenIds prompt = Numbers(70, 1);
  const std::vector<TransferBlock> all = {{KeyOf(1), 0, 20, {}}, {KeyOf(2), 20, 60, {}}};
  Run("c", TransferOperation::kCapture, prompt, all);
  // One rank's copy vanishes behind the directory's back.
  StepPlan loss;
  loss.sequence = 1;
  loss.drop = {KeyOf(2)};
  ASSERT_TRUE(workers_.back()->Begin(loss).ok());
  const auto served = Run("s", TransferOperation::kInject, prompt, all);
  EXPECT_EQ(external_, 60);
  if (GetParam() == 1) {  // of two ranks the first, which counts, has written its heads
    EXPECT_EQ(served.injected_tokens, 20);
    EXPECT_EQ(served.fallbacks.at("evicted"), 1);
  }
  // From the block with token 20 on, whole blocks.
  EXPECT_EQ(failed_, (std::vector<std::int32_t>(table_.begin() + 1, table_.begin() + 4)));
  EXPECT_FALSE(scheduler_->Ready(KeyOf(2)));
  EXPECT_EQ(scheduler_->counters().load_failures, 1);
  Run("t", TransferOperation::kInject, prompt, all);
  EXPECT_EQ(external_, 20);
}

TEST_P(ConnectorTest, AnErasedScopeIsGoneFromEveryRankAndStaysFenced) {
  Probe();
  const TokenIds prompt = Numbers(40, 1);
  const std::vector<TransferBlock> all = {{KeyOf(1), 0, 30, {}}};
  Run("c", TransferOperation::kCapture, prompt, all);
  scheduler_->EraseScope(7, 2);
  EXPECT_FALSE(scheduler_->Ready(KeyOf(1)));
  const auto late = Run("late", TransferOperation::kCapture, prompt, all, 0, 1 << 20, 1);
  EXPECT_EQ(late.fallbacks.at("erased"), 1);
  EXPECT_EQ(scheduler_->AcknowledgedPlan(), scheduler_->last_plan());
  for (const auto& worker : workers_) EXPECT_EQ(worker->StoreStats().file_blocks, 0);
  EXPECT_EQ(Run("new", TransferOperation::kCapture, prompt, all, 0, 1 << 20, 2).captured_blocks, 1);
}

TEST_P(ConnectorTest, ACaptureUnderWayWhenItsKeyIsErasedStoresNothing) {
  Probe();
  const TokenIds prompt = Numbers(60, 1);
  const std::vector<TransferBlock> all = {{KeyOf(1), 0, 30, {}}};
  const CarriedTransfer asked = Sign(TransferOperation::kCapture, prompt, all, 1);
  ASSERT_TRUE(scheduler_->Add("waiting", asked, prompt, "salt", 5));
  scheduler_->Allocated("waiting", 0, Table(60));
  const TokenIds other = Numbers(40, 200);
  Run("kept", TransferOperation::kCapture, other, {{KeyOf(2), 0, 20, {}}});
  scheduler_->Erase(std::vector{KeyOf(1)}, 7, 2);
  scheduler_->Scheduled("waiting", 60, {}, false);
  EXPECT_FALSE(scheduler_->directory().Contains(KeyOf(1)));
  EXPECT_EQ(scheduler_->Finished("waiting").fallbacks.at("erased"), 1);
  // Nor when the same signed request comes again, while what is asked for anew is stored.
  EXPECT_EQ(Run("again", TransferOperation::kCapture, prompt, all).fallbacks.at("erased"), 1);
  EXPECT_EQ(Run("new", TransferOperation::kCapture, prompt, all, 0, 1 << 20, 2).captured_blocks, 1);
  EXPECT_TRUE(scheduler_->Ready(KeyOf(2)));  // other facts of the owner stay
}

TEST_P(ConnectorTest, WhatAnEarlierStartStoredStaysBesideAFence) {
  Probe();
  const TokenIds prompt = Numbers(60, 1);
  Run("c", TransferOperation::kCapture, prompt, {{KeyOf(1), 0, 30, {}}, {KeyOf(2), 30, 50, {}}});
  Start(GetParam(), std::int64_t{1} << 24);
  scheduler_->Erase(std::vector{KeyOf(1)}, 7, 2);  // before the ranks have said what they hold
  TakeReports();
  EXPECT_TRUE(scheduler_->Ready(KeyOf(2)));
}

TEST_P(ConnectorTest, ADiscardedPlanLoadsAndStoresNothingLater) {
  Probe();
  const TokenIds prompt = Numbers(60, 1);
  Run("c", TransferOperation::kCapture, prompt, {{KeyOf(1), 0, 30, {}}});
  const CarriedTransfer inject = Sign(TransferOperation::kInject, prompt, {{KeyOf(1), 0, 30, {}}});
  ASSERT_TRUE(scheduler_->Add("load", inject, prompt, "salt", 5));
  ASSERT_EQ(scheduler_->MatchedTokens("load", 0), 30);
  scheduler_->Allocated("load", 30, Table(60));
  const CarriedTransfer capture =
      Sign(TransferOperation::kCapture, prompt, {{KeyOf(2), 30, 50, {}}});
  ASSERT_TRUE(scheduler_->Add("store", capture, prompt, "salt", 5));
  scheduler_->Allocated("store", 0, Table(60));
  scheduler_->Scheduled("store", 60, {}, false);
  const std::uint64_t erased = scheduler_->Erase(std::vector{KeyOf(3)});
  scheduler_->DiscardPlan();
  EXPECT_FALSE(scheduler_->directory().Contains(KeyOf(2)));
  const StepPlan plan = scheduler_->TakePlan();
  EXPECT_TRUE(plan.loads.empty() && plan.captures.empty() && plan.probes.empty());
  EXPECT_EQ(plan.sequence, erased);
  EXPECT_EQ(plan.drop, std::vector{KeyOf(3)});  // an erasure is not forgotten
  EXPECT_EQ(scheduler_->Finished("load").injected_tokens, 0);
  EXPECT_EQ(scheduler_->Finished("store").captured_blocks, 0);
  EXPECT_EQ(scheduler_->directory().pins(), 0);
}

TEST_P(ConnectorTest, EvictsUnderItsBudgetAndRefusesWhatDoesNotFit) {
  const std::int64_t token = 2 * kLayers * kHeads * kDim * 4 / GetParam();
  Start(GetParam(), 50 * token);
  Probe();
  const TokenIds prompt = Numbers(100, 1);
  Run("a", TransferOperation::kCapture, prompt, {{KeyOf(1), 0, 20, {}}, {KeyOf(2), 20, 40, {}}});
  Run("b", TransferOperation::kCapture, prompt, {{KeyOf(3), 40, 60, {}}});
  EXPECT_EQ(scheduler_->directory().evictions(), 1);
  EXPECT_FALSE(scheduler_->Ready(KeyOf(1)));
  EXPECT_TRUE(scheduler_->Ready(KeyOf(2)));
  const auto large = Run("c", TransferOperation::kCapture, prompt, {{KeyOf(4), 0, 60, {}}});
  EXPECT_EQ(large.fallbacks.at("too_large"), 1);
}

TEST_P(ConnectorTest, AfterARestartFilesServeAndAFactOneRankLacksIsMissingForAll) {
  Probe();
  const TokenIds prompt = Numbers(90, 1);
  const std::vector<TransferBlock> all = {{KeyOf(1), 0, 40, {}}, {KeyOf(2), 40, 80, {}}};
  Run("c", TransferOperation::kCapture, prompt, all);
  Start(GetParam(), std::int64_t{1} << 24);
  TakeReports();
  Probe();
  EXPECT_EQ(Run("s", TransferOperation::kInject, prompt, all).injected_tokens, 80);
  EXPECT_LT(Difference(prompt, 0, 90), 2e-4F);

  // The last rank's file of the second block is gone when the engine starts again.
  StepPlan loss;
  loss.sequence = 1;
  loss.drop = {KeyOf(2)};
  ASSERT_TRUE(workers_.back()->Begin(loss).ok());
  Start(GetParam(), std::int64_t{1} << 24);
  TakeReports();
  Probe();
  EXPECT_EQ(Run("t", TransferOperation::kInject, prompt, all).injected_tokens, 40);
  // It can be captured again.
  EXPECT_EQ(Run("d", TransferOperation::kCapture, prompt, all).captured_blocks, 2);
  EXPECT_EQ(Run("u", TransferOperation::kInject, prompt, all).injected_tokens, 80);
  EXPECT_LT(Difference(prompt, 0, 90), 2e-4F);
}

TEST_P(ConnectorTest, AClearedStoreIsEmptyAfterARestartToo) {
  Probe();
  const TokenIds prompt = Numbers(40, 1);
  const std::vector<TransferBlock> all = {{KeyOf(1), 0, 30, {}}};
  Run("c", TransferOperation::kCapture, prompt, all);
  scheduler_->Clear();
  Run("s", TransferOperation::kInject, prompt, all);
  EXPECT_EQ(external_, 0);
  for (const auto& worker : workers_) EXPECT_EQ(worker->StoreStats().file_blocks, 0);
  Start(GetParam(), std::int64_t{1} << 24);
  TakeReports();
  EXPECT_EQ(scheduler_->directory().blocks(), 0);
}

TEST_P(ConnectorTest, AWorkerThatHasRefusedFailsItsLoadsAndSaysSo) {
  Probe();
  const TokenIds prompt = Numbers(40, 1);
  const std::vector<TransferBlock> all = {{KeyOf(1), 0, 30, {}}};
  Run("c", TransferOperation::kCapture, prompt, all);
  workers_.back()->Refuse("on purpose");
  Run("s", TransferOperation::kInject, prompt, all);
  EXPECT_EQ(external_, 30);
  EXPECT_EQ(failed_, (std::vector<std::int32_t>(table_.begin(), table_.begin() + 2)));
  EXPECT_EQ(scheduler_->refusal(), "on purpose");
  const auto later = Run("t", TransferOperation::kInject, prompt, all);
  EXPECT_EQ(external_, 0);
  EXPECT_EQ(later.fallbacks.at("model_unsupported"), 1);
}

TEST_P(ConnectorTest, ACaptureWhoseStepDidNotEndIsLostAndCanBeAskedForAgain) {
  Probe();
  const TokenIds prompt = Numbers(60, 1);
  const std::vector<TransferBlock> fact = {{KeyOf(1), 0, 30, {}}};
  const CarriedTransfer capture = Sign(TransferOperation::kCapture, prompt, fact);
  ASSERT_TRUE(scheduler_->Add("store", capture, prompt, "salt", 5));
  scheduler_->Scheduled("store", 60, Table(60), true);
  const auto begin = [&](const StepPlan& plan) {
    for (auto& worker : workers_) {
      ASSERT_TRUE(worker->Begin(plan).ok());
      ASSERT_TRUE(scheduler_->TakeReport(worker->TakeReport()).ok());
    }
  };
  begin(scheduler_->TakePlan());
  EXPECT_EQ(scheduler_->Finished("store").captured_blocks, 1);  // as far as anybody knows
  scheduler_->Erase(std::vector{KeyOf(3)});
  begin(scheduler_->TakePlan());
  EXPECT_FALSE(scheduler_->directory().Contains(KeyOf(1)));
  EXPECT_EQ(Run("c", TransferOperation::kCapture, prompt, fact).captured_blocks, 1);
}

TEST_P(ConnectorTest, UnsignedRequestsAreServedAsText) {
  Probe();
  const TokenIds prompt = Numbers(40, 1);
  Run("c", TransferOperation::kCapture, prompt, {{KeyOf(1), 0, 30, {}}});
  const CarriedTransfer transfer =
      Sign(TransferOperation::kInject, prompt, {{KeyOf(1), 0, 30, {}}});
  EXPECT_FALSE(scheduler_->Add("salt", transfer, prompt, "another", 5));
  EXPECT_FALSE(scheduler_->Add("time", transfer, prompt, "salt", 11));
  EXPECT_FALSE(scheduler_->Add("ids", transfer, Numbers(40, 2), "salt", 5));
  EXPECT_FALSE(scheduler_->Add("text", {kTransferSchema, "?", "?"}, prompt, "salt", 5));
  for (const std::string name : {"salt", "time", "ids", "text"}) {
    EXPECT_EQ(scheduler_->MatchedTokens(name, 0), 0);
    EXPECT_EQ(
        scheduler_->Finished(name).fallbacks.at(name == "text" ? "malformed" : "unauthorised"), 1);
  }
}

TEST_P(ConnectorTest, AnAbortedRequestLeavesNoPinNoLoadAndNoReservation) {
  Probe();
  const TokenIds prompt = Numbers(60, 1);
  const std::vector<TransferBlock> all = {{KeyOf(1), 0, 30, {}}};
  Run("c", TransferOperation::kCapture, prompt, all);
  for (int i = 0; i < 50; ++i) {
    const std::string name = "abort " + std::to_string(i);
    ASSERT_TRUE(
        scheduler_->Add(name, Sign(TransferOperation::kInject, prompt, all), prompt, "salt", 5));
    ASSERT_EQ(scheduler_->MatchedTokens(name, 0), 30);
    EXPECT_EQ(scheduler_->directory().pins(), 1);
    if (i % 2 == 0) scheduler_->Allocated(name, 30, Table(60));
    scheduler_->Finished(name);
    EXPECT_EQ(scheduler_->directory().pins(), 0);
    EXPECT_TRUE(scheduler_->TakePlan().empty());
  }
  const CarriedTransfer capture =
      Sign(TransferOperation::kCapture, prompt, {{KeyOf(2), 30, 50, {}}});
  ASSERT_TRUE(scheduler_->Add("x", capture, prompt, "salt", 5));
  scheduler_->Allocated("x", 0, Table(60));
  scheduler_->Scheduled("x", 60, {}, false);
  scheduler_->Finished("x");
  EXPECT_FALSE(scheduler_->directory().Contains(KeyOf(2)));
}

TEST_P(ConnectorTest, AModelWhoseKeysAreNoRotationIsRefused) {
  // Another token at every place: the keys differ by more than a rotation.
  TokenIds prompt = Numbers(1100, 5);
  const CarriedTransfer transfer = Sign(TransferOperation::kProbe, prompt, {});
  ASSERT_TRUE(scheduler_->Add("p", transfer, prompt, "salt", 5));
  const auto table = Table(prompt.size());
  scheduler_->Allocated("p", 0, table);
  scheduler_->Scheduled("p", 1100, {}, false);
  const auto plan = scheduler_->TakePlan();
  engines_[0]->Compute(prompt, table, 0, 1100);
  ASSERT_TRUE(workers_[0]->Begin(plan).ok());
  const auto slots = workers_[0]->ProbeSlots();
  std::vector<float> keys(slots.size() * kLayers * engines_[0]->Row()), values(keys.size());
  for (std::size_t i = 0; i < keys.size(); ++i) keys[i] = std::sin(static_cast<float>(i * i % 977));
  EXPECT_FALSE(workers_[0]
                   ->Probe({kernels::ScalarType::kF32, keys.data(), values.data(),
                            static_cast<std::int64_t>(slots.size())})
                   .ok());
  ASSERT_TRUE(scheduler_->TakeReport(workers_[0]->TakeReport()).ok());
  EXPECT_FALSE(scheduler_->refusal().empty());
  EXPECT_FALSE(scheduler_->rotation_known());
}

INSTANTIATE_TEST_SUITE_P(Ranks, ConnectorTest, ::testing::Values(1, 2));

TEST(ConnectorScheduler, ARequestWaitsUntilEveryRankHasItsBlocksInTheArena) {
  const TokenIds prompt = Numbers(25, 1);
  const auto start = [&](std::int32_t ranks) {
    ConnectorSchedulerOptions options;
    options.secret.assign(kSecret.begin(), kSecret.end());
    options.budget_bytes = 1 << 20;
    options.token_bytes = 10;
    options.ranks = ranks;
    options.steady_ms = [] { return std::int64_t{0}; };
    return *ConnectorScheduler::Create(std::move(options));
  };
  const auto scheduler = start(2);
  const auto report = [&](std::int32_t rank, WorkerReport report) {
    report.rank = rank;
    EXPECT_TRUE(scheduler->TakeReport(SerializeWorkerReport(report)).ok());
  };
  const auto about = [](std::vector<KvKey> WorkerReport::*list) {
    WorkerReport report;
    report.*list = {KeyOf(1)};
    return report;
  };
  for (const std::int32_t rank : {0, 1}) {
    WorkerReport first;
    first.held = {{KeyOf(1), 3, 1, Numbers(20, 1)}};  // of another scope, as a prefix is
    first.arena_bytes = 1000;
    first.rotation_measured = true;
    report(rank, first);
  }
  scheduler->StartComplete();
  TransferRequest transfer;
  transfer.scope_tag = 7;
  transfer.epoch = 1;
  transfer.salt = "salt";
  transfer.expires_ms = 10;
  transfer.blocks = {{KeyOf(1), 0, 20, {}}};
  const auto add = [&](const std::string& name) {
    ASSERT_TRUE(scheduler->Add(name, SignTransferRequest(transfer, prompt, AsBytes(kSecret)),
                               prompt, "salt", 5));
  };
  add("a");
  EXPECT_EQ(scheduler->MatchedTokens("a", 0), std::nullopt);
  const StepPlan plan = scheduler->TakePlan();
  ASSERT_EQ(plan.promote.size(), 1u);
  EXPECT_EQ(plan.promote[0].scope_tag, 3u);
  EXPECT_EQ(plan.promote[0].tokens, 20);
  report(0, about(&WorkerReport::resident));
  EXPECT_EQ(scheduler->MatchedTokens("a", 0), std::nullopt);
  EXPECT_TRUE(scheduler->TakePlan().empty());
  report(1, about(&WorkerReport::resident));
  EXPECT_EQ(scheduler->MatchedTokens("a", 0), 20);
  scheduler->Allocated("a", 20, {1, 2});
  EXPECT_EQ(scheduler->TakePlan().release.size(), 1u);
  scheduler->Finished("a");
  // One rank has lost it again, and cannot promote it.
  report(1, about(&WorkerReport::evicted));
  add("b");
  EXPECT_EQ(scheduler->MatchedTokens("b", 0), std::nullopt);
  report(1, about(&WorkerReport::unpromoted));
  EXPECT_EQ(scheduler->MatchedTokens("b", 0), 20);
  EXPECT_EQ(scheduler->promotions().counters().given_up, 1);
  scheduler->Finished("b");
  // What the local cache covers needs no promotion.
  add("c");
  EXPECT_EQ(scheduler->MatchedTokens("c", 20), 0);
  EXPECT_EQ(scheduler->MatchedTokens("c", 0), std::nullopt);
  scheduler->Finished("c");
  EXPECT_EQ(scheduler->promotions().kept_bytes(), 0);
  EXPECT_EQ(scheduler->directory().pins(), 0);
}

TEST(StepPlan, TruncatedOrChangedBytesAreRefusedAndNeverReadOutside) {
  StepPlan plan;
  plan.sequence = 3;
  plan.drop = {KeyOf(1)};
  plan.loads = {{"r", {1, 2}, {{KeyOf(1), 0, 5, 0}}}};
  plan.captures = {{"c", KeyOf(2), 9, 7, 1, {1, 2, 3}, {"saw"}, {4}, 0}};
  plan.probes = {{"p", {1}, 5}};
  plan.promote = {{KeyOf(3), 7, 5}};
  plan.release = {KeyOf(4)};
  const auto bytes = SerializeStepPlan(plan);
  const auto read = ParseStepPlan(bytes);
  ASSERT_TRUE(read.ok());
  EXPECT_EQ(SerializeStepPlan(*read), bytes);
  for (std::size_t size = 0; size < bytes.size(); ++size) {
    EXPECT_FALSE(ParseStepPlan(std::span(bytes).first(size)).ok()) << size;
  }
  auto longer = bytes;
  longer.push_back(0);
  EXPECT_FALSE(ParseStepPlan(longer).ok());
  for (std::size_t i = 0; i < bytes.size(); ++i) {
    auto changed = bytes;
    changed[i] ^= 0xff;
    (void)ParseStepPlan(changed);  // must not crash
  }
}

}  // namespace
}  // namespace inferscale::test
