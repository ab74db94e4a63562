// What the scheduler does about reports of its ranks that it cannot read.

#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include "support/connector_device_fixture.h"

namespace inferscale::test {
namespace {

constexpr std::int32_t kLength = 20;

using Bytes = std::vector<std::uint8_t>;

Bytes CutShort(Bytes report) {
  report.pop_back();
  return report;
}

class ConnectorReportTest : public ConnectorDeviceTest {
 protected:
  // Whose reports the test writes itself.
  void StartRanks(std::int32_t ranks) {
    ConnectorSchedulerOptions options;
    options.secret.assign(kSecret.begin(), kSecret.end());
    options.budget_bytes = 2 * kLength * kTokenBytes;  // of two facts
    options.token_bytes = kTokenBytes;
    options.ranks = ranks;
    scheduler_ = *ConnectorScheduler::Create(std::move(options));
    for (std::int32_t rank = 0; rank < ranks; ++rank) {
      WorkerReport first;
      first.rank = rank;
      first.rotation_measured = true;
      ASSERT_TRUE(scheduler_->TakeReport(SerializeWorkerReport(first)).ok());
    }
    scheduler_->StartComplete();
  }
  /// \return the plan that has the ranks capture it.
  StepPlan Capture(std::uint64_t fact) {
    Schedule(fact);
    return scheduler_->TakePlan();
  }
  std::string Schedule(std::uint64_t fact) {
    const Prompt prompt = Prompt().Fact(fact, kLength);
    TransferRequest transfer;
    transfer.operation = kCapture;
    transfer.scope_tag = 7;
    transfer.epoch = 1;
    transfer.salt = "salt";
    transfer.expires_ms = 10;
    transfer.blocks = prompt.blocks;
    const std::string name = "r" + std::to_string(++requests_);
    EXPECT_TRUE(scheduler_->Add(name,
                                SignTransferRequest(transfer, prompt.tokens, AsBytes(kSecret)),
                                prompt.tokens, "salt", 5));
    scheduler_->Scheduled(name, kLength, std::vector<std::int32_t>{1, 2}, true);
    return name;
  }
  static Bytes Told(std::int32_t rank, const StepPlan& plan) {
    WorkerReport report;
    report.rank = rank;
    report.sequence = plan.sequence;
    report.rotation_measured = true;
    for (const CaptureItem& item : plan.captures) report.stored.push_back({item.key, item.serial});
    return SerializeWorkerReport(report);
  }
};

TEST_F(ConnectorReportTest, NothingOfOneThatCannotBeReadIsTaken) {
  StartRanks(1);
  const StepPlan plan = Capture(1);
  ASSERT_EQ(plan.captures.size(), 1U);
  const Bytes report = Told(0, plan);
  for (std::size_t bytes = 0; bytes < report.size(); ++bytes) {
    const Status status = scheduler_->TakeReport(std::span(report).first(bytes));
    EXPECT_EQ(status.code(), StatusCode::kDataLoss) << bytes;
  }
  EXPECT_EQ(scheduler_->TakeReport(Told(1, plan)).code(), StatusCode::kDataLoss) << "no such rank";
  EXPECT_EQ(scheduler_->AcknowledgedPlan(), 0U);
  EXPECT_EQ(scheduler_->counters().captured_blocks, 0);
  EXPECT_FALSE(scheduler_->Ready(TestKey(1)));
}

TEST_F(ConnectorReportTest, BlocksThatItMayHaveToldOfAreTakenBackAndCanBeCapturedAgain) {
  for (const std::int32_t ranks : {1, 2}) {
    StartRanks(ranks);
    StepPlan plan = Capture(1);
    if (ranks == 2) {
      ASSERT_TRUE(scheduler_->TakeReport(Told(1, plan)).ok());
    }
    EXPECT_FALSE(scheduler_->TakeReport(CutShort(Told(0, plan))).ok());
    EXPECT_FALSE(scheduler_->directory().Contains(TestKey(1)));
    EXPECT_EQ(scheduler_->directory().bytes(), 0);
    EXPECT_EQ(scheduler_->AcknowledgedPlan(), 0U);

    // In the next plan the ranks drop what they have of it, and store it anew behind that.
    plan = Capture(1);
    EXPECT_EQ(plan.drop, std::vector{TestKey(1)});
    ASSERT_EQ(plan.captures.size(), 1U);
    for (std::int32_t rank = 0; rank < ranks; ++rank) {
      EXPECT_FALSE(scheduler_->Ready(TestKey(1)));
      EXPECT_TRUE(scheduler_->TakeReport(Told(rank, plan)).ok());
    }
    EXPECT_TRUE(scheduler_->Ready(TestKey(1)));
    EXPECT_EQ(scheduler_->AcknowledgedPlan(), plan.sequence);
  }
}

TEST_F(ConnectorReportTest, WhatEveryRankHasToldOfBeforeStays) {
  StartRanks(1);
  ASSERT_TRUE(scheduler_->TakeReport(Told(0, Capture(1))).ok());
  EXPECT_FALSE(scheduler_->TakeReport(CutShort(Told(0, Capture(2)))).ok());
  EXPECT_TRUE(scheduler_->Ready(TestKey(1)));
  EXPECT_FALSE(scheduler_->directory().Contains(TestKey(2)));
}

TEST_F(ConnectorReportTest, TheyTakeNoPlaceOfTheBudgetForEver) {
  StartRanks(1);
  for (std::uint64_t fact = 1; fact <= 6; ++fact) {
    const StepPlan plan = Capture(fact);
    ASSERT_EQ(plan.captures.size(), 1U) << fact;
    EXPECT_FALSE(scheduler_->TakeReport(CutShort(Told(0, plan))).ok());
  }
  EXPECT_EQ(scheduler_->directory().blocks(), 0);
  EXPECT_FALSE(scheduler_->counters().fallbacks.contains("over_budget"));
}

TEST_F(ConnectorReportTest, ACaptureThatIsStillToBeHandedOverGoesWithThem) {
  StartRanks(1);
  const StepPlan before = Capture(1);
  const std::string name = Schedule(2);
  EXPECT_FALSE(scheduler_->TakeReport(CutShort(Told(0, before))).ok());
  // Its rank would store it after it was told to drop it.
  EXPECT_TRUE(scheduler_->TakePlan().captures.empty());
  EXPECT_EQ(scheduler_->Finished(name).captured_blocks, 0);
  ASSERT_TRUE(scheduler_->TakeReport(Told(0, Capture(2))).ok());
  EXPECT_TRUE(scheduler_->Ready(TestKey(2)));
}

TEST_F(ConnectorReportTest, ALateAccountOfWhatWasTakenBackChangesNothing) {
  StartRanks(1);
  const StepPlan first = Capture(1), second = Capture(2);
  EXPECT_FALSE(scheduler_->TakeReport(CutShort(Told(0, first))).ok());
  ASSERT_TRUE(scheduler_->TakeReport(Told(0, second)).ok());
  EXPECT_FALSE(scheduler_->directory().Contains(TestKey(2)));
  EXPECT_EQ(scheduler_->TakePlan().drop.size(), 2U);
}

TEST_F(ConnectorReportTest, OnADeviceTheFactIsCapturedAgainAndServed) {
  Start(50 * kTokenBytes);
  const auto capture = [&] { Run({{kCapture, Prompt().Fact(1, kLength)}}); };
  const auto inject = [&] {
    EXPECT_TRUE(Run({{kInject, Prompt().Fact(1, kLength).Text(3, 9)}}).empty());
    EXPECT_LT(Difference(), 2e-4F);
    return done_[0].outcome.injected_tokens;
  };
  break_report_ = true;
  capture();
  EXPECT_EQ(inject(), 0);
  capture();
  EXPECT_EQ(inject(), kLength);
  worker_->Flush();
  EmptyStep();
  EXPECT_EQ(inject(), kLength);
  EXPECT_EQ(Files(), 1U);
}

TEST_F(ConnectorReportTest, ALongReasonIsCutAndReachesTheScheduler) {
  Start(50 * kTokenBytes);
  std::string reason = "x";
  while (reason.size() <= 2 * kMaxTextBytes) reason += "\u00e9";
  worker_->Refuse(reason);
  Report();
  const std::string& refusal = scheduler_->refusal();
  EXPECT_EQ(refusal, reason.substr(0, refusal.size()));
  EXPECT_EQ(refusal.size(), kMaxTextBytes - 1);  // no character is cut in two
}

}  // namespace
}  // namespace inferscale::test
