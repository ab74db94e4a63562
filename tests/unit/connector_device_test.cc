// The connector's two sides on a device whose streams run as late as they may.

#include <gtest/gtest.h>

#include <chrono>
#include <filesystem>
#include <string>
#include <thread>
#include <vector>

#include "support/connector_device_fixture.h"

namespace inferscale::test {
namespace {

TEST_F(ConnectorDeviceTest, ACapturedFactIsInjectedInTheNextStepWithOneLaunch) {
  Start(1 << 20);
  Run({{kCapture, Prompt().Text(37, 1).Fact(1, 33).Fact(2, 1)},
       {kCapture, Prompt().Text(20, 7).Fact(3, 16)}});
  for (const Request& request : done_) {
    EXPECT_EQ(request.outcome.captured_blocks,
              static_cast<std::int32_t>(request.prompt.blocks.size()));
  }
  const int before = device_->launches();
  const auto failed = Run({{kInject, Prompt().Fact(3, 16).Fact(1, 33).Text(5, 9)},
                           {kInject, Prompt().Fact(2, 1).Fact(3, 16).Text(40, 9)},
                           {kInject, Prompt().Fact(1, 33).Text(1, 9)}});
  EXPECT_TRUE(failed.empty());
  EXPECT_EQ(device_->launches() - before, 1);
  EXPECT_EQ(done_[0].outcome.injected_tokens, 49);
  EXPECT_EQ(done_[1].outcome.injected_tokens, 17);
  EXPECT_EQ(done_[2].outcome.injected_tokens, 33);
  EXPECT_LT(Difference(), 2e-4F);
  EXPECT_EQ(scheduler_->directory().pins(), 0);
}

TEST_F(ConnectorDeviceTest, FactsBeyondTheArenaAreWrittenBehindAndPromotedAgain) {
  for (const std::uint64_t seed : {1, 2, 3, 4}) {
    for (const bool files : {false, true}) {
      Start(100 * kTokenBytes, seed, files);  // the facts have 40 * 25 tokens
      for (std::uint64_t fact = 0; fact < 40; ++fact) {
        Run({{kCapture, Prompt().Text(11, 1).Fact(seed * 100 + fact, 25)}});
        EXPECT_EQ(done_[0].outcome.captured_blocks, 1);
      }
      for (std::uint64_t fact = 0; fact < 40; fact += 2) {
        const auto failed =
            Run({{kInject,
                  Prompt().Fact(seed * 100 + fact, 25).Fact(seed * 100 + fact + 1, 25).Text(3, 9)},
                 {kInject, Prompt().Fact(seed * 100 + (fact + 7) % 40, 25).Text(3, 9)}});
        EXPECT_TRUE(failed.empty());
        EXPECT_EQ(done_[0].outcome.injected_tokens, 50);
        EXPECT_LT(Difference(), 2e-4F);
      }
      EXPECT_GT(worker_->DeviceStats().promotions, 20);
      EXPECT_GT(worker_->DeviceStats().evictions, 20);
      EXPECT_EQ(scheduler_->counters().load_failures, 0);
    }
  }
}

TEST_F(ConnectorDeviceTest, OneStepMayUseMoreThanTheArenaHolds) {
  Start(60 * kTokenBytes);
  for (std::uint64_t fact = 0; fact < 12; ++fact) {
    Run({{kCapture, Prompt().Fact(fact, 20)}, {kCapture, Prompt().Fact(fact + 50, 20)}});
  }
  impatient_ = true;
  std::vector<Request> requests;
  for (std::uint64_t fact = 0; fact < 12; ++fact) {
    requests.push_back({kInject, Prompt().Fact(fact, 20).Fact(fact + 50, 20).Text(3, 9)});
  }
  const int before = device_->launches();
  EXPECT_TRUE(Run(requests).empty());
  EXPECT_GT(device_->launches() - before, 1);
  for (const Request& request : done_) EXPECT_EQ(request.outcome.injected_tokens, 40);
  EXPECT_LT(Difference(), 2e-4F);
  // More captured in one step than the arena holds: each waits for the ones before it.
  requests.clear();
  for (std::uint64_t fact = 200; fact < 212; ++fact) {
    requests.push_back({kCapture, Prompt().Fact(fact, 20)});
  }
  Run(requests);
  for (const Request& request : done_) EXPECT_EQ(request.outcome.captured_blocks, 1);
  for (std::uint64_t fact = 200; fact < 212; ++fact) {
    EXPECT_TRUE(Run({{kInject, Prompt().Fact(fact, 20).Text(2, 9)}}).empty());
    EXPECT_EQ(done_[0].outcome.injected_tokens, 20);
    EXPECT_LT(Difference(), 2e-4F);
  }
}

TEST_F(ConnectorDeviceTest, CapturesFasterThanTheyAreWrittenDoNotDriveOutWhatChatsUse) {
  for (const std::uint64_t seed : {1, 2, 3, 4}) {
    Start(200 * kTokenBytes, seed);
    Run({{kCapture, Prompt().Fact(seed, 40)}});
    for (std::uint64_t fact = 100 * seed; fact < 100 * seed + 50; fact += 2) {
      Run({{kCapture, Prompt().Fact(fact, 20).Fact(fact + 1, 20)}});
      for (const Request& request : done_) EXPECT_EQ(request.outcome.captured_blocks, 2);
      Run({{kInject, Prompt().Fact(seed, 40).Text(3, 9)}});
      EXPECT_EQ(done_[0].outcome.injected_tokens, 40);
      EXPECT_LT(Difference(), 2e-4F);
    }
    EXPECT_GT(worker_->DeviceStats().evictions, 20);
    EXPECT_EQ(worker_->DeviceStats().promotions, 0);
  }
}

TEST_F(ConnectorDeviceTest, ANameThatNoRankWouldReadIsMalformed) {
  Start(1 << 20);
  Run({{kCapture, Prompt().Fact(1, 20)}});
  for (const std::size_t length : {kMaxTextBytes, kMaxTextBytes + 1}) {
    const bool fits = length == kMaxTextBytes;
    const std::string name(length, 'n');
    const Prompt prompt = Prompt().Fact(1, 20).Text(3, 9);
    TransferRequest request;
    request.scope_tag = 7;
    request.epoch = 1;
    request.salt = "salt";
    request.expires_ms = 10;
    request.blocks = prompt.blocks;
    EXPECT_EQ(scheduler_->Add(name, SignTransferRequest(request, prompt.tokens, AsBytes(kSecret)),
                              prompt.tokens, "salt", 5),
              fits);
    EXPECT_EQ(scheduler_->MatchedTokens(name, 0), fits ? 20 : 0);
    scheduler_->Allocated(name, fits ? 20 : 0, {3, 4});
    const StepPlan plan = scheduler_->TakePlan();
    const auto read = ParseStepPlan(SerializeStepPlan(plan));
    ASSERT_TRUE(read.ok());
    ASSERT_TRUE(worker_->Begin(*read).ok());
    ASSERT_TRUE(worker_->LoadOnDevice(kStream).ok());
    Report();
    const TransferOutcome outcome = scheduler_->Finished(name);
    EXPECT_EQ(outcome.injected_tokens, fits ? 20 : 0);
    EXPECT_EQ(outcome.fallbacks.contains("malformed"), !fits);
  }
}

TEST_F(ConnectorDeviceTest, AFactThatNeverFitsIsNotStored) {
  Start(20 * kTokenBytes);
  Run({{kCapture, Prompt().Fact(1, 19)}});
  EXPECT_EQ(done_[0].outcome.captured_blocks, 1);
  Run({{kCapture, Prompt().Fact(2, 30)}});
  EXPECT_EQ(done_[0].outcome.captured_blocks, 0);
  EXPECT_FALSE(scheduler_->Ready(TestKey(2)));
}

TEST_F(ConnectorDeviceTest, ABlockGoneBetweenLookupAndLoadFailsItsRange) {
  Start(1 << 20);
  Run({{kCapture, Prompt().Fact(1, 20).Fact(2, 20).Fact(3, 20)}});
  before_step_ = [&] {
    // A rank loses what the directory has promised.
    StepPlan plan;
    plan.sequence = 1000;
    plan.drop = {TestKey(2)};
    EXPECT_TRUE(worker_->Begin(plan).ok());
  };
  const auto failed = Run({{kInject, Prompt().Fact(1, 20).Fact(2, 20).Fact(3, 20).Text(5, 9)}});
  EXPECT_EQ(done_[0].external, 60);
  EXPECT_EQ(failed,
            (std::vector<std::int32_t>(done_[0].table.begin() + 1, done_[0].table.begin() + 4)));
  EXPECT_FALSE(scheduler_->Ready(TestKey(2)));
  EXPECT_TRUE(scheduler_->Ready(TestKey(1)));
}

TEST_F(ConnectorDeviceTest, ErasedWhileItIsWrittenBehindItStaysErased) {
  for (const std::uint64_t seed : {1, 2, 3, 4, 5, 6}) {
    Start(1 << 20, seed);
    const std::size_t files = Files();
    for (std::uint64_t fact = 0; fact < 20; ++fact) {
      const std::uint64_t number = seed * 1000 + fact;
      Run({{kCapture, Prompt().Fact(number, 20), fact + 1}});
      EXPECT_EQ(done_[0].outcome.captured_blocks, 1);
      if (fact % 2 == 0) {
        const KvKey key = TestKey(number);
        scheduler_->Erase(std::span(&key, 1));
      } else {
        scheduler_->EraseScope(7, fact + 2);
      }
      Run({{kInject, Prompt().Fact(number, 20).Text(3, 9)}});
      EXPECT_EQ(done_[0].outcome.injected_tokens, 0);
    }
    worker_->Flush();
    EXPECT_EQ(Files(), files);
  }
}

TEST_F(ConnectorDeviceTest, WhatIsErasedInTheStepThatCapturesItIsNotKept) {
  Start(1 << 20);
  before_step_ = [&] {
    scheduler_->EraseScope(7, 5);
    const KvKey key = TestKey(3);
    scheduler_->Erase(std::span(&key, 1));
  };
  Run({{kCapture, Prompt().Fact(1, 20), 4}, {kCapture, Prompt().Fact(2, 20), 5}});
  EXPECT_EQ(worker_->DeviceStats().blocks, 0);
  before_step_ = [&] {
    const KvKey key = TestKey(3);
    scheduler_->Erase(std::span(&key, 1));
  };
  Run({{kCapture, Prompt().Fact(3, 20), 5}, {kCapture, Prompt().Fact(4, 20), 5}});
  worker_->Flush();
  EXPECT_EQ(worker_->DeviceStats().blocks, 1);
  EXPECT_EQ(Files(), 1U);
}

TEST_F(ConnectorDeviceTest, AClearedStoreHoldsNothing) {
  Start(1 << 20);
  Run({{kCapture, Prompt().Fact(1, 20).Fact(2, 20)}});
  scheduler_->Clear();
  Run({{kInject, Prompt().Fact(1, 20).Text(3, 9)}});
  EXPECT_EQ(done_[0].outcome.injected_tokens, 0);
  worker_->Flush();
  EXPECT_EQ(Files(), 0U);
  EXPECT_EQ(worker_->DeviceStats().blocks, 0);
  Run({{kCapture, Prompt().Fact(1, 20)}});
  EXPECT_TRUE(Run({{kInject, Prompt().Fact(1, 20).Text(3, 9)}}).empty());
  EXPECT_EQ(done_[0].outcome.injected_tokens, 20);
  EXPECT_LT(Difference(), 2e-4F);
}

TEST_F(ConnectorDeviceTest, FilesServeAfterARestart) {
  Start(1 << 20);
  Run({{kCapture, Prompt().Fact(1, 20).Fact(2, 17)}});
  worker_->Flush();
  Start(1 << 20, 2);
  EXPECT_TRUE(Run({{kInject, Prompt().Fact(2, 17).Fact(1, 20).Text(3, 9)}}).empty());
  EXPECT_EQ(done_[0].outcome.injected_tokens, 37);
  EXPECT_EQ(worker_->DeviceStats().promotions, 2);
  EXPECT_LT(Difference(), 2e-4F);
}

TEST_F(ConnectorDeviceTest, ColdFactsComeUpBeforeTheirRequestIsScheduled) {
  for (const bool files : {false, true}) {
    for (const std::int64_t pinned_bytes : {std::int64_t{0}, 60 * kTokenBytes}) {
      pinned_bytes_ = pinned_bytes;
      Start(100 * kTokenBytes, 3, files);
      for (std::uint64_t fact = 0; fact < 20; ++fact) {
        Run({{kCapture, Prompt().Fact(fact + 20 * pinned_bytes, 25)}});
      }
      std::int64_t promotions = 0;
      before_step_ = [&] { promotions = worker_->DeviceStats().promotions; };
      for (std::uint64_t fact = 0; fact < 20; fact += 2) {
        const auto failed = Run({{kInject, Prompt()
                                               .Fact(fact + 20 * pinned_bytes, 25)
                                               .Fact(fact + 1 + 20 * pinned_bytes, 25)
                                               .Text(3, 9)}});
        EXPECT_TRUE(failed.empty());
        EXPECT_EQ(done_[0].outcome.injected_tokens, 50);
        EXPECT_EQ(worker_->DeviceStats().promotions, promotions);  // none while it was loaded
        EXPECT_LT(Difference(), 2e-4F);
      }
      EXPECT_GE(promotions, 16);
      EXPECT_GE(scheduler_->promotions().counters().waits, 8);
      EXPECT_EQ(scheduler_->promotions().counters().given_up, 0);
      EXPECT_EQ(scheduler_->promotions().kept_bytes(), 0);
      // As much as fits came to pinned memory when it was captured.
      EXPECT_EQ(worker_->PinnedStats().hits > 0, pinned_bytes > 0);
      before_step_ = nullptr;
    }
  }
}

TEST_F(ConnectorDeviceTest, WhatIsKeptForARequestOutlivesWhatIsCapturedMeanwhile) {
  Start(100 * kTokenBytes);
  for (std::uint64_t fact = 0; fact < 8; ++fact) Run({{kCapture, Prompt().Fact(fact, 25)}});
  for (std::uint64_t fact = 0; fact < 4; fact += 2) {
    std::int64_t promotions = 0;
    matched_ = [&] {
      Run({{kCapture, Prompt().Fact(90 + fact, 120)}});  // never fits, so nothing is to go for it
      for (std::uint64_t other = 0; other < 10; ++other) {
        Run({{kCapture, Prompt().Fact(100 * (fact + 1) + other, 20)}});
      }
      promotions = worker_->DeviceStats().promotions;
    };
    EXPECT_TRUE(Run({{kInject, Prompt().Fact(fact, 25).Fact(fact + 1, 25).Text(3, 9)}}).empty());
    EXPECT_EQ(done_[0].outcome.injected_tokens, 50);
    EXPECT_LT(Difference(), 2e-4F);
    EXPECT_GE(promotions, 2);
    EXPECT_EQ(worker_->DeviceStats().promotions, promotions);
  }
}

TEST_F(ConnectorDeviceTest, WhatAStepHasUsedMakesRoomForPromotionsAsItEnds) {
  Start(100 * kTokenBytes);
  for (std::uint64_t fact = 0; fact < 5; ++fact) Run({{kCapture, Prompt().Fact(fact, 25)}});
  worker_->Flush();
  std::int64_t evictions = 0;
  before_step_ = [&] {
    TransferRequest transfer;
    transfer.operation = kInject;
    transfer.salt = "salt";
    transfer.expires_ms = 10;
    const Prompt cold = Prompt().Fact(0, 25).Text(3, 9);
    transfer.blocks = cold.blocks;
    scheduler_->Add("waits", SignTransferRequest(transfer, cold.tokens, AsBytes(kSecret)),
                    cold.tokens, "salt", 5);
    EXPECT_EQ(scheduler_->MatchedTokens("waits", 0), std::nullopt);
    evictions = worker_->DeviceStats().evictions;
  };
  Run({{kInject, Prompt().Fact(1, 25).Fact(2, 25).Fact(3, 25).Fact(4, 25).Text(3, 9)}});
  EXPECT_EQ(worker_->DeviceStats().evictions, evictions + 1);
  EXPECT_LT(Difference(), 2e-4F);
}

TEST_F(ConnectorDeviceTest, WhatIsGivenUpForAStepsOwnBlocksIsReported) {
  Start(100 * kTokenBytes);
  StepPlan keep;
  keep.sequence = 1000;
  for (std::uint64_t fact = 0; fact < 3; ++fact) {
    Run({{kCapture, Prompt().Fact(fact, 25)}});
    keep.promote.push_back({TestKey(fact), 7, 25});
  }
  ASSERT_TRUE(worker_->Begin(keep).ok());
  auto report = ParseWorkerReport(worker_->TakeReport());
  ASSERT_TRUE(report.ok());
  EXPECT_EQ(report->resident.size(), 3U);
  EXPECT_TRUE(report->unpromoted.empty());
  StepPlan store;
  store.sequence = 1001;
  std::vector<std::int32_t> table(60 / kBlockSlots + 1);
  std::iota(table.begin(), table.end(), 1);
  store.captures.push_back({"r", TestKey(9), 5, 7, 1, Numbers(60, 1), {}, table, 0});
  ASSERT_TRUE(worker_->Begin(store).ok());
  ASSERT_TRUE(worker_->CaptureOnDevice(kStream).ok());
  report = ParseWorkerReport(worker_->TakeReport());
  ASSERT_TRUE(report.ok());
  EXPECT_EQ(report->stored.size(), 1U);
  EXPECT_EQ(report->unpromoted.size(), 3U);  // nobody waits for them any longer
}

TEST_F(ConnectorDeviceTest, AFactThatIsLostWhileItIsPromotedIsComputed) {
  Start(60 * kTokenBytes);
  for (std::uint64_t fact = 0; fact < 6; ++fact) Run({{kCapture, Prompt().Fact(fact, 20)}});
  worker_->Flush();
  StepPlan plan;
  plan.sequence = 1000;
  plan.drop = {TestKey(1)};  // behind the scheduler's back
  ASSERT_TRUE(worker_->Begin(plan).ok());
  EXPECT_TRUE(Run({{kInject, Prompt().Fact(0, 20).Fact(1, 20).Text(3, 9)}}).empty());
  EXPECT_EQ(done_[0].outcome.injected_tokens, 20);
  EXPECT_FALSE(scheduler_->Ready(TestKey(1)));
  EXPECT_EQ(scheduler_->counters().load_failures, 1);
  EXPECT_EQ(scheduler_->promotions().counters().given_up, 0);
  EXPECT_EQ(scheduler_->promotions().kept_bytes(), 0);
  EXPECT_EQ(scheduler_->directory().pins(), 0);
  EXPECT_LT(Difference(), 2e-4F);
}

TEST_F(ConnectorDeviceTest, ErasedOrClearedWhileItIsPromotedItDoesNotComeBack) {
  for (const std::uint64_t seed : {1, 2, 3, 4, 5, 6}) {
    Start(60 * kTokenBytes, seed);
    for (std::uint64_t fact = 0; fact < 6; ++fact) {
      Run({{kCapture, Prompt().Fact(10 * seed + fact, 20), 1}});
    }
    worker_->Flush();
    TransferRequest transfer;
    const TokenIds prompt = Prompt().Fact(10 * seed, 20).Text(3, 9).tokens;
    transfer.operation = kInject;
    transfer.scope_tag = 7;
    transfer.epoch = 1;
    transfer.salt = "salt";
    transfer.expires_ms = 10;
    transfer.blocks = {{TestKey(10 * seed), 0, 20, {}}};
    scheduler_->Add("waits", SignTransferRequest(transfer, prompt, AsBytes(kSecret)), prompt,
                    "salt", 5);
    EXPECT_EQ(scheduler_->MatchedTokens("waits", 0), std::nullopt);
    if (seed > 3) device_->HoldEvents(true);
    EmptyStep();
    // On its way: asked for, or already being copied.
    if (seed > 3) std::this_thread::sleep_for(std::chrono::milliseconds(20));
    if (seed % 3 == 0) {
      const KvKey key = TestKey(10 * seed);
      scheduler_->Erase(std::span(&key, 1));
    } else if (seed % 3 == 1) {
      scheduler_->EraseScope(7, 2);
    } else {
      scheduler_->Clear();
    }
    EXPECT_EQ(scheduler_->MatchedTokens("waits", 0), 0);
    if (seed % 3 == 2) device_->HoldEvents(false);  // a store is cleared when its copies have ended
    EmptyStep();
    device_->HoldEvents(false);
    device_->Finish();
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
    EmptyStep();
    scheduler_->Finished("waits");
    EmptyStep();
    EXPECT_EQ(scheduler_->promotions().kept_bytes(), 0);
    StepPlan plan;
    plan.sequence = 1000;
    plan.loads = {{"r", {1, 2}, {{TestKey(10 * seed), 0, 20, 0}}}};
    ASSERT_TRUE(worker_->Begin(plan).ok());
    EXPECT_TRUE(worker_->LoadOnDevice(kStream).ok());
    EXPECT_EQ(worker_->TakeFailedBlocks().size(), 2U);
  }
}

TEST_F(ConnectorDeviceTest, WhatNoOtherTierTookIsReportedWhenItIsEvicted) {
  Start(50 * kTokenBytes);
  // No file can be written from now on, and host memory takes what it can: make that nothing.
  std::filesystem::remove_all(folder_.path() / "kv");
  for (std::uint64_t fact = 0; fact < 6; ++fact) Run({{kCapture, Prompt().Fact(fact, 20)}});
  worker_->Flush();
  for (std::uint64_t fact = 0; fact < 6; ++fact) {
    // Either it is served right, or it is not promised: never a wrong or a missing load.
    Run({{kInject, Prompt().Fact(fact, 20).Text(3, 9)}});
    EXPECT_LT(Difference(), 2e-4F);
  }
}

TEST_F(ConnectorDeviceTest, ALaunchThatFailsForWantOfMemoryFailsTheWholeStep) {
  Start(60 * kTokenBytes);
  Run({{kCapture, Prompt().Fact(1, 40)}});
  Run({{kCapture, Prompt().Fact(2, 40)}});
  worker_->Flush();
  StepPlan plan;
  plan.sequence = 1000;
  plan.loads = {{"r", {1, 2, 3, 4, 5}, {{TestKey(1), 0, 40, 0}, {TestKey(2), 0, 40, 40}}}};
  ASSERT_TRUE(worker_->Begin(plan).ok());
  // The second fact needs the room of the first one, which is launched for it.
  device_->BreakWaitsOf(kStream);
  EXPECT_FALSE(worker_->LoadOnDevice(kStream).ok());
  device_->BreakWaitsOf(0);
  EXPECT_TRUE(Run({{kInject, Prompt().Fact(1, 40).Fact(2, 40).Text(3, 9)}}).empty());
  EXPECT_EQ(done_[0].outcome.injected_tokens, 80);
  EXPECT_LT(Difference(), 2e-4F);
}

TEST_F(ConnectorDeviceTest, AnErasureThatFailsIsTriedAgainBeforeAPlanIsAcknowledged) {
  Start(1 << 20);
  Run({{kCapture, Prompt().Fact(1, 20)}});
  worker_->Flush();
  Report();
  std::filesystem::path file;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(folder_.path() / "kv")) {
    if (entry.path().extension() == ".kvb") file = entry.path();
  }
  ASSERT_FALSE(file.empty());
  std::filesystem::remove(file);
  std::filesystem::create_directories(file / "in the way");
  const auto begin = [&](const StepPlan& plan) { return worker_->Begin(plan).ok(); };
  const auto report = [&] { return *ParseWorkerReport(worker_->TakeReport()); };
  StepPlan plan;
  plan.sequence = 1000;
  plan.drop = {TestKey(1)};
  plan.captures.resize(1);
  plan.captures[0].key = TestKey(2);
  plan.captures[0].serial = 9;
  EXPECT_FALSE(begin(plan));
  const WorkerReport failed = report();
  EXPECT_LT(failed.sequence, 1000U);
  ASSERT_EQ(failed.lost.size(), 1U);  // or the scheduler would wait for it for ever
  EXPECT_EQ(failed.lost[0].serial, 9U);
  StepPlan next;
  next.sequence = 1001;
  EXPECT_TRUE(begin(next));
  EXPECT_LT(report().sequence, 1000U);
  std::filesystem::remove_all(file);
  next.sequence = 1002;
  EXPECT_TRUE(begin(next));
  EXPECT_EQ(report().sequence, 1002U);
}

TEST(MeasuredPositionsTest, GrowWithWhatIsAveragedAndShrinkWithRounding) {
  EXPECT_EQ(MeasuredPositions(std::ldexp(1.0, -9), 256, 1024), 16384);
  EXPECT_EQ(MeasuredPositions(std::ldexp(1.0, -9), 4, 1024), 2048);
  EXPECT_GT(MeasuredPositions(std::ldexp(1.0, -24), 1, 1024), 1'000'000);
}

}  // namespace
}  // namespace inferscale::test
