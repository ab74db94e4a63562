// What the connector does when its files cannot be written: blocks are stored as long as they are
// in host memory, and the scheduler learns once of those that are nowhere.

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <memory>
#include <vector>

#include "support/connector_device_fixture.h"

namespace inferscale::test {
namespace {

constexpr std::int32_t kLength = 20;
constexpr std::uint64_t kFacts = 8;
constexpr std::int64_t kFactBytes = kLength * kTokenBytes;

class ConnectorDiskTest : public ConnectorDeviceTest {
 protected:
  /// From now on no file can be written.
  void BreakFolder() {
    std::filesystem::remove(folder_.path() / "kv" / "tmp");
    std::ofstream(folder_.path() / "kv" / "tmp").put('\n');  // a file where a folder is needed
  }
  void MendFolder() {
    std::filesystem::remove(folder_.path() / "kv" / "tmp");
    std::filesystem::create_directory(folder_.path() / "kv" / "tmp");
  }
  // Opens no folder: that would empty its tmp.
  std::int64_t FiledBlocks() { return worker_->StoreStats().file_blocks; }
  void CaptureFacts() {
    for (std::uint64_t fact = 0; fact < kFacts; ++fact) {
      Run({{kCapture, Prompt().Fact(fact, kLength)}});
      worker_->Flush();
      EmptyStep();
    }
  }
  std::int64_t Ready() {
    std::int64_t ready = 0;
    for (std::uint64_t fact = 0; fact < kFacts; ++fact) ready += scheduler_->Ready(TestKey(fact));
    return ready;
  }
  std::int64_t Lost() { return scheduler_->counters().load_failures; }
  void ExpectAllServed() {
    EXPECT_EQ(Ready(), static_cast<std::int64_t>(kFacts));
    for (int round = 0; round < 2; ++round) {
      for (std::uint64_t fact = 0; fact < kFacts; ++fact) {
        EXPECT_TRUE(Run({{kInject, Prompt().Fact(fact, kLength).Text(3, 9)}}).empty());
        EXPECT_EQ(done_[0].outcome.injected_tokens, kLength) << fact;
        EXPECT_LT(Difference(), 2e-4F);
      }
    }
    EXPECT_EQ(Lost(), 0);
    EXPECT_EQ(Files(), 0U);
  }
};

TEST_F(ConnectorDiskTest, WhatIsInHostMemoryOutlivesItsEvictionFromTheArena) {
  for (const std::int64_t pinned_bytes : {0, 1 << 20}) {
    pinned_bytes_ = pinned_bytes;
    Start(50 * kTokenBytes);
    BreakFolder();
    CaptureFacts();
    EXPECT_GT(worker_->DeviceStats().evictions, 4);
    ExpectAllServed();
  }
}

TEST_F(ConnectorDiskTest, SoItDoesUnderATinyBudgetOfFiles) {
  file_bytes_ = 100;
  Start(50 * kTokenBytes);
  CaptureFacts();
  ExpectAllServed();
}

TEST_F(ConnectorDiskTest, OfWhatIsNowhereTheSchedulerLearnsOnce) {
  host_bytes_ = 3 * kFactBytes;  // the blocks' accounts leave room for two
  Start(50 * kTokenBytes);
  BreakFolder();
  CaptureFacts();
  for (int step = 0; step < 20; ++step) EmptyStep();
  const std::int64_t ready = Ready();
  EXPECT_GE(ready, 2);  // those in the arena
  EXPECT_LT(ready, static_cast<std::int64_t>(kFacts));
  EXPECT_EQ(Lost(), static_cast<std::int64_t>(kFacts) - ready);
  for (std::uint64_t fact = 0; fact < kFacts; ++fact) {
    const bool is_ready = scheduler_->Ready(TestKey(fact));
    EXPECT_TRUE(Run({{kInject, Prompt().Fact(fact, kLength).Text(3, 9)}}).empty());
    EXPECT_EQ(done_[0].outcome.injected_tokens, is_ready ? kLength : 0) << fact;
    EXPECT_LT(Difference(), 2e-4F);
  }
  // Captured again they are stored again, and what goes for them is told of once again.
  CaptureFacts();
  for (int step = 0; step < 20; ++step) EmptyStep();
  EXPECT_TRUE(scheduler_->Ready(TestKey(kFacts - 1)));
  const std::int64_t lost = Lost();
  for (int step = 0; step < 20; ++step) EmptyStep();
  EXPECT_EQ(Lost(), lost);
}

TEST_F(ConnectorDiskTest, WhatIsErasedIsNotReportedAsLost) {
  Start(50 * kTokenBytes);
  BreakFolder();
  CaptureFacts();
  const std::vector<KvKey> keys = {TestKey(0), TestKey(5)};
  scheduler_->Erase(keys);
  EmptyStep();
  scheduler_->EraseScope(7, 2);
  EmptyStep();
  for (int step = 0; step < 20; ++step) EmptyStep();
  EXPECT_EQ(Lost(), 0);
  EXPECT_EQ(Ready(), 0);
  EXPECT_EQ(worker_->StoreStats().host_blocks, 0);
  scheduler_->Clear();
  EmptyStep();
  EXPECT_EQ(Lost(), 0);
}

TEST_F(ConnectorDiskTest, WithRoomAgainTheyAreFiledAndServedAfterARestart) {
  file_again_ms_ = 5;
  Start(50 * kTokenBytes);
  BreakFolder();
  CaptureFacts();
  EXPECT_EQ(FiledBlocks(), 0);
  MendFolder();
  for (int i = 0; i < 1000 && FiledBlocks() < static_cast<std::int64_t>(kFacts); ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  EXPECT_EQ(Files(), kFacts);
  Start(50 * kTokenBytes);
  EXPECT_EQ(Ready(), static_cast<std::int64_t>(kFacts));
  for (std::uint64_t fact = 0; fact < kFacts; ++fact) {
    EXPECT_TRUE(Run({{kInject, Prompt().Fact(fact, kLength).Text(3, 9)}}).empty());
    EXPECT_EQ(done_[0].outcome.injected_tokens, kLength) << fact;
    EXPECT_LT(Difference(), 2e-4F);
  }
}

TEST_F(ConnectorDiskTest, WhatIsClearedIsNotFiledLater) {
  file_again_ms_ = 1;
  for (int round = 0; round < 10; ++round) {
    Start(50 * kTokenBytes);
    BreakFolder();
    CaptureFacts();
    MendFolder();
    std::this_thread::sleep_for(std::chrono::microseconds(300 * round));
    scheduler_->Clear();
    EmptyStep();
    EXPECT_EQ(FiledBlocks(), 0);
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
    EXPECT_EQ(Files(), 0U);
  }
}

TEST_F(ConnectorDiskTest, WithoutADeviceHostMemoryIsEnoughToo) {
  ConnectorWorkerOptions options;
  options.geometry = {kLayers, kHeads, kDim, kDim};
  options.codec = KvCodec::kF32;
  options.fingerprint = TestFingerprint(1);
  options.folder = folder_.path() / "kv";
  options.host_budget_bytes = 3 * kFactBytes;
  options.file_budget_bytes = 1 << 26;
  options.block_slots = kBlockSlots;
  options.engine_blocks = kBlocks;
  options.max_position = 2048;
  worker_ = *ConnectorWorker::Create(std::move(options));
  BreakFolder();
  FakePagedEngine engine(0, kHeads);
  std::uint64_t sequence = 0;
  const auto step = [&](StepPlan plan, const TokenIds& prompt,
                        const std::vector<std::int32_t>& table) {
    plan.sequence = ++sequence;
    engine.Step(*worker_, plan, [&] {
      engine.Compute(prompt, table, 0, static_cast<std::int32_t>(prompt.size()));
    });
    const auto report = ParseWorkerReport(worker_->TakeReport());
    EXPECT_TRUE(report.ok());
    return *report;
  };
  std::vector<std::int32_t> table(1100 / kBlockSlots + 1);
  std::iota(table.begin(), table.end(), 1);
  StepPlan probe;
  probe.probes = {{"probe", table, 1100}};
  EXPECT_TRUE(step(probe, TokenIds(1100, 5), table).rotation_measured);
  std::vector<KvKey> lost;
  for (std::uint64_t fact = 0; fact < kFacts; ++fact) {
    const Prompt prompt = Prompt().Fact(fact, kLength);
    StepPlan plan;
    plan.captures = {{"capture", TestKey(fact), fact + 1, 7, 1, prompt.tokens, {}, table, 0}};
    const WorkerReport report = step(plan, prompt.tokens, table);
    ASSERT_EQ(report.stored.size(), 1U);
    EXPECT_EQ(report.stored[0].key, TestKey(fact));
    for (const StoredBlock& block : report.lost) lost.push_back(block.key);
  }
  // The oldest went first, and each was told of when it went.
  ASSERT_GE(lost.size(), 5U);
  for (std::size_t i = 0; i < lost.size(); ++i) EXPECT_EQ(lost[i], TestKey(i));
  EXPECT_EQ(worker_->StoreStats().host_blocks, static_cast<std::int64_t>(kFacts - lost.size()));
}

}  // namespace
}  // namespace inferscale::test
