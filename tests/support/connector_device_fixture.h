#ifndef INFERSCALE_TESTS_SUPPORT_CONNECTOR_DEVICE_FIXTURE_H_
#define INFERSCALE_TESTS_SUPPORT_CONNECTOR_DEVICE_FIXTURE_H_

/// \file connector_device_fixture.h
/// The connector's two sides on a device whose streams run as late as they may.

#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <numeric>
#include <optional>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "base/bytes.h"
#include "connector/scheduler.h"
#include "connector/worker.h"
#include "kv/block_folder.h"
#include "support/fake_paged_engine.h"
#include "support/kv_blocks.h"
#include "support/lazy_device.h"

namespace inferscale::test {

inline constexpr std::uintptr_t kStream = 5;
inline constexpr std::int64_t kTokenBytes = std::int64_t{2} * kLayers * kHeads * kDim * 4;
inline const std::string kSecret = "a secret of enough bytes";

inline TokenIds Numbers(std::int32_t count, TokenId first) {
  TokenIds ids(static_cast<std::size_t>(count));
  std::iota(ids.begin(), ids.end(), first);
  return ids;
}

/// A request of one step: captured facts one after the other, or injected ones and a tail.
struct Prompt {
  TokenIds tokens;
  std::vector<TransferBlock> blocks;

  Prompt& Fact(std::uint64_t number, std::int32_t length) {
    const auto begin = static_cast<std::int32_t>(tokens.size());
    blocks.push_back({TestKey(number), begin, begin + length, {}});
    return Text(length, static_cast<TokenId>(100 * number));
  }
  Prompt& Text(std::int32_t length, TokenId first) {
    const TokenIds more = Numbers(length, first);
    tokens.insert(tokens.end(), more.begin(), more.end());
    return *this;
  }
};

class ConnectorDeviceTest : public ::testing::Test {
 protected:
  void Start(std::int64_t arena_bytes, std::uint64_t seed = 1, bool files = true) {
    worker_ = nullptr;
    ConnectorSchedulerOptions options;
    options.secret.assign(kSecret.begin(), kSecret.end());
    options.budget_bytes = 1 << 26;
    options.token_bytes = kTokenBytes;
    options.steady_ms = [this] { return now_ms_; };
    scheduler_ = *ConnectorScheduler::Create(std::move(options));
    ConnectorWorkerOptions worker;
    worker.geometry = {kLayers, kHeads, kDim, kDim};
    worker.codec = KvCodec::kF32;
    worker.fingerprint = TestFingerprint(1);
    if (files) worker.folder = folder_.path() / "kv";
    worker.host_budget_bytes = host_bytes_;
    worker.file_budget_bytes = file_bytes_;
    worker.block_slots = kBlockSlots;
    worker.engine_blocks = kBlocks;
    worker.max_position = 2048;
    worker.file_again_ms = file_again_ms_;
    worker_ = *ConnectorWorker::Create(std::move(worker));
    engine_ = std::make_unique<FakePagedEngine>(0, kHeads);
    auto device = std::make_unique<LazyDevice>(seed);
    device_ = device.get();
    const Status attached =
        worker_->AttachDevice(std::move(device), engine_->Cache(), arena_bytes, pinned_bytes_);
    ASSERT_TRUE(attached.ok()) << attached.ToString();
    Report();
    scheduler_->StartComplete();
    Prompt probe;
    probe.tokens.assign(1100, 5);
    Run({{TransferOperation::kProbe, probe}});
    ASSERT_TRUE(scheduler_->rotation_known()) << scheduler_->refusal();
  }

  struct Request {
    TransferOperation operation;
    Prompt prompt;
    std::uint64_t epoch = 1;
    // Out:
    std::string name = {};
    std::int32_t external = 0;
    std::vector<std::int32_t> table = {};
    TransferOutcome outcome = {};
  };

  void Report() {
    auto report = worker_->TakeReport();
    if (report.empty()) return;
    const bool broken = std::exchange(break_report_, false);
    if (broken) report.pop_back();
    ASSERT_EQ(scheduler_->TakeReport(report).ok(), !broken);
  }

  /// A step without a pass, as an engine makes it while its requests wait.
  void EmptyStep() {
    const auto plan = scheduler_->TakePlan();
    if (!plan.empty()) {
      EXPECT_TRUE(worker_->Begin(plan).ok());
      EXPECT_TRUE(worker_->LoadOnDevice(kStream).ok());
    }
    Report();
  }

  std::int32_t Match(const std::string& request) {
    for (int step = 0;; ++step) {
      const std::optional<std::int32_t> matched = scheduler_->MatchedTokens(request, 0);
      if (matched) return *matched;
      if (step > 100) std::this_thread::sleep_for(std::chrono::milliseconds(1));
      if (step > 3000) throw std::runtime_error("a request waits for ever");
      if (impatient_) now_ms_ += PromotionPlanner::kStallMs + 1;
      EmptyStep();
    }
  }

  /// All requests in one step. \return the engine blocks that were not loaded.
  std::vector<std::int32_t> Run(std::vector<Request> requests) {
    for (Request& request : requests) {
      request.name = "r" + std::to_string(++requests_);
      TransferRequest transfer;
      transfer.operation = request.operation;
      transfer.scope_tag = 7;
      transfer.epoch = request.epoch;
      transfer.salt = "salt";
      transfer.expires_ms = 10;
      transfer.blocks = request.prompt.blocks;
      scheduler_->Add(request.name,
                      SignTransferRequest(transfer, request.prompt.tokens, AsBytes(kSecret)),
                      request.prompt.tokens, "salt", 5);
      request.external = Match(request.name);
    }
    if (matched_) std::exchange(matched_, nullptr)();
    for (Request& request : requests) {
      request.table.resize((request.prompt.tokens.size() + kBlockSlots - 1) / kBlockSlots);
      for (std::int32_t& block : request.table) block = 1 + (next_block_++ * 37) % (kBlocks - 1);
      scheduler_->Allocated(request.name, request.external, request.table);
      scheduler_->Scheduled(request.name, static_cast<std::int32_t>(request.prompt.tokens.size()),
                            request.table, true);
    }
    if (before_step_) before_step_();
    const auto plan = scheduler_->TakePlan();
    if (!plan.empty()) {
      EXPECT_TRUE(worker_->Begin(plan).ok());
      EXPECT_TRUE(worker_->LoadOnDevice(kStream).ok());
    }
    for (const Request& request : requests) {
      device_->Enqueue(kStream, [this, request] {
        engine_->Compute(request.prompt.tokens, request.table, request.external,
                         static_cast<std::int32_t>(request.prompt.tokens.size()));
      });
    }
    if (!plan.empty()) {
      if (requests.front().operation == TransferOperation::kProbe) device_->Finish();
      engine_->Probe(*worker_);
      EXPECT_TRUE(worker_->CaptureOnDevice(kStream).ok());
    }
    auto failed = worker_->TakeFailedBlocks();
    Report();
    for (Request& request : requests) request.outcome = scheduler_->Finished(request.name);
    done_ = std::move(requests);
    return failed;
  }

  /// Largest difference from a prompt that was computed, in the last step's requests.
  float Difference() {
    device_->Finish();
    float most = 0;
    for (const Request& request : done_) {
      most = std::max(most,
                      engine_->Difference(request.prompt.tokens, request.table, 0,
                                          static_cast<std::int32_t>(request.prompt.tokens.size())));
    }
    return most;
  }

  std::size_t Files() {
    const auto folder = BlockFolder::Open(folder_.path() / "kv");
    return (*folder)->List()->size();
  }

  TemporaryFolder folder_;
  std::unique_ptr<ConnectorScheduler> scheduler_;
  std::unique_ptr<FakePagedEngine> engine_;
  std::unique_ptr<ConnectorWorker> worker_;
  LazyDevice* device_ = nullptr;
  std::int64_t pinned_bytes_ = 1 << 20, host_bytes_ = 1 << 26, file_bytes_ = 1 << 26;
  std::int64_t file_again_ms_ = 30'000;
  std::int64_t now_ms_ = 0;
  bool break_report_ = false;  ///< the next one arrives cut short
  bool impatient_ = false;     ///< no request waits for longer than a step
  std::vector<Request> done_;
  std::function<void()> before_step_, matched_;
  int requests_ = 0;
  std::int32_t next_block_ = 0;
};

inline constexpr TransferOperation kCapture = TransferOperation::kCapture;
inline constexpr TransferOperation kInject = TransferOperation::kInject;

}  // namespace inferscale::test

#endif  // INFERSCALE_TESTS_SUPPORT_CONNECTOR_DEVICE_FIXTURE_H_
