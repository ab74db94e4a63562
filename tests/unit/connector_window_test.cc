// A model whose layers all have a sliding window: the engine frees blocks behind it and gives them
// to other requests, and tables begin with null blocks. On the staging path and on a device's.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <deque>
#include <map>
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

using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::Not;
using ::testing::Pair;

constexpr std::int32_t kWindow = 48;
const std::string kSecret = "a secret of enough bytes";
constexpr TransferOperation kCapture = TransferOperation::kCapture;
constexpr TransferOperation kInject = TransferOperation::kInject;

class ConnectorWindowTest : public ::testing::TestWithParam<bool> {
 protected:
  void SetUp() override { Start(kBlocks - 1); }

  /// An engine with `blocks` to give away.
  void Start(std::int32_t blocks) {
    ConnectorSchedulerOptions options;
    options.secret.assign(kSecret.begin(), kSecret.end());
    options.budget_bytes = 1 << 24;
    options.token_bytes = 2 * kLayers * kHeads * kDim * 4;
    options.window = kWindow;
    options.block_slots = kBlockSlots;
    options.frees_ahead = frees_ahead_;
    scheduler_ = *ConnectorScheduler::Create(std::move(options));
    ConnectorWorkerOptions worker;
    worker.geometry = {kLayers, kHeads, kDim, kDim};
    worker.codec = KvCodec::kF32;
    worker.fingerprint = TestFingerprint(1);
    worker.folder = folder_.path() / "kv";
    worker.host_budget_bytes = worker.file_budget_bytes = 1 << 24;
    worker.block_slots = kBlockSlots;
    worker.engine_blocks = kBlocks;
    worker.max_position = 2048;
    worker_ = nullptr;
    worker_ = *ConnectorWorker::Create(std::move(worker));
    engine_ = std::make_unique<FakePagedEngine>(0, kHeads);
    if (GetParam()) {
      ASSERT_TRUE(
          worker_->AttachDevice(*kernels::MakeHostDevice(), engine_->Cache(), 1 << 22, 1 << 20)
              .ok());
    }
    Report();
    scheduler_->StartComplete();
    free_.resize(static_cast<std::size_t>(blocks));
    std::iota(free_.begin(), free_.end(), 1);
    for (std::int32_t slot = 0; slot < kBlockSlots; ++slot) engine_->KeyAt(0, slot) = kUntouched;
  }

  void TearDown() override {
    for (std::int32_t slot = 0; slot < kBlockSlots; ++slot) {
      EXPECT_EQ(engine_->KeyAt(0, slot), kUntouched) << "the null block was written";
    }
  }

  struct Request {
    TokenIds prompt;
    std::vector<std::int32_t> table;  ///< the engine's
    std::int32_t computed = 0;
  };

  static TokenIds Numbers(std::int32_t count, TokenId first) {
    TokenIds ids(static_cast<std::size_t>(count));
    std::iota(ids.begin(), ids.end(), first);
    return ids;
  }

  void Add(const std::string& name, TransferOperation operation, TokenIds prompt,
           std::vector<TransferBlock> blocks) {
    TransferRequest transfer;
    transfer.operation = operation;
    transfer.scope_tag = 7;
    transfer.epoch = 1;
    transfer.salt = "salt";
    transfer.expires_ms = 10;
    transfer.blocks = std::move(blocks);
    ASSERT_TRUE(scheduler_->Add(name, SignTransferRequest(transfer, prompt, AsBytes(kSecret)),
                                prompt, "salt", 5));
    requests_[name].prompt = std::move(prompt);
  }

  /// The engine's blocks behind the window of the next token become null, and are free.
  void FreeBehindWindow(Request& request) {
    const std::int32_t skipped = std::max(0, request.computed - kWindow + 1) / kBlockSlots;
    for (std::int32_t i = 0; i < skipped; ++i) {
      if (i == static_cast<std::int32_t>(request.table.size())) request.table.push_back(0);
      std::int32_t& block = request.table[static_cast<std::size_t>(i)];
      if (block != 0) free_.push_front(std::exchange(block, 0));  // for who asks next
    }
  }

  /// One step, which computes up to `chunk` tokens of each of these.
  void Step(const std::vector<std::string>& names, std::int32_t chunk = 1 << 20) {
    std::map<std::string, std::pair<std::int32_t, std::int32_t>> ranges;
    for (const std::string& name : names) {
      Request& request = requests_.at(name);
      const bool is_new = request.table.empty();
      std::int32_t external = 0;
      if (is_new) {
        external = *scheduler_->MatchedTokens(name, request.computed);
        request.computed += external;
      }
      FreeBehindWindow(request);
      const auto end =
          std::min(request.computed + chunk, static_cast<std::int32_t>(request.prompt.size()));
      std::vector<std::int32_t> fresh;
      while (static_cast<std::int32_t>(request.table.size()) * kBlockSlots < end) {
        ASSERT_FALSE(free_.empty());
        given_.push_back(free_.front());
        fresh.push_back(free_.front());
        request.table.push_back(free_.front());
        free_.pop_front();
      }
      if (is_new) scheduler_->Allocated(name, external, request.table);
      scheduler_->Scheduled(name, end, is_new ? request.table : fresh, is_new, request.computed);
      ranges[name] = {std::exchange(request.computed, end), end};
    }
    const auto plan = scheduler_->TakePlan();
    const auto compute = [&] {
      for (const auto& [name, range] : ranges) {
        const Request& request = requests_.at(name);
        engine_->Compute(request.prompt, request.table, range.first, range.second);
      }
    };
    if (!GetParam()) {
      engine_->Step(*worker_, plan, compute);
    } else {
      if (!plan.empty()) {
        EXPECT_TRUE(worker_->Begin(plan).ok());
        EXPECT_TRUE(worker_->LoadOnDevice(0).ok());
      }
      compute();
      if (!plan.empty()) {
        engine_->Probe(*worker_);
        EXPECT_TRUE(worker_->CaptureOnDevice(0).ok());
      }
    }
    failed_ = worker_->TakeFailedBlocks();
    Report();
  }

  void Report() {
    const auto report = worker_->TakeReport();
    if (!report.empty()) {
      ASSERT_TRUE(scheduler_->TakeReport(report).ok());
    }
  }

  TransferOutcome Finish(const std::string& name) {
    for (const std::int32_t block : requests_.at(name).table) {
      if (block != 0) free_.push_front(block);
    }
    requests_.erase(name);
    return scheduler_->Finished(name);
  }

  void Probe() {
    Add("probe", TransferOperation::kProbe, TokenIds(1100, 5), {});
    Step({"probe"});
    Finish("probe");
    ASSERT_TRUE(scheduler_->rotation_known()) << scheduler_->refusal();
  }

  /// A fact of 40 tokens of its own, stored under TestKey(number).
  static TokenIds Fact(int number) { return Numbers(40, 1000 * number); }
  void Store(int number) {
    Add("store", kCapture, Fact(number),
        {{TestKey(static_cast<std::uint64_t>(number)), 0, 40, {}}});
    Step({"store"});
    ASSERT_EQ(Finish("store").captured_blocks, 1);
  }

  /// Facts in a row and some tokens behind them.
  void AddFacts(const std::string& name, const std::vector<int>& numbers,
                std::int32_t tokens = 20) {
    TokenIds prompt;
    std::vector<TransferBlock> blocks;
    for (const int number : numbers) {
      const TokenIds fact = Fact(number);
      const auto begin = static_cast<std::int32_t>(prompt.size());
      blocks.push_back({TestKey(static_cast<std::uint64_t>(number)), begin, begin + 40, {}});
      prompt.insert(prompt.end(), fact.begin(), fact.end());
    }
    const TokenIds tail = Numbers(tokens, 77);
    prompt.insert(prompt.end(), tail.begin(), tail.end());
    Add(name, kInject, std::move(prompt), std::move(blocks));
  }

  float Difference(const std::string& name, std::int32_t begin, std::int32_t end) {
    const Request& request = requests_.at(name);
    return engine_->Difference(request.prompt, request.table, begin, end);
  }

  static constexpr float kUntouched = 12345;
  bool frees_ahead_ = false;
  TemporaryFolder folder_;
  std::unique_ptr<ConnectorScheduler> scheduler_;
  std::unique_ptr<FakePagedEngine> engine_;
  std::unique_ptr<ConnectorWorker> worker_;
  std::deque<std::int32_t> free_;
  std::vector<std::int32_t> given_;  ///< blocks in the order in which requests got them
  std::map<std::string, Request> requests_;
  std::vector<std::int32_t> failed_;
};

TEST_P(ConnectorWindowTest, OnlyWhatTheWindowStillSeesIsWritten) {
  Probe();
  for (int number = 1; number <= 6; ++number) Store(number);
  AddFacts("chat", {4, 2, 6, 1, 5, 3});
  Step({"chat"});
  EXPECT_THAT(failed_, IsEmpty());
  // 240 tokens from stored KV; token 240 sees those from 193 on, whose block begins at 192.
  EXPECT_EQ(requests_.at("chat").table[11], 0);
  EXPECT_LT(Difference("chat", 192, 260), 1e-5F);
  const TransferOutcome outcome = Finish("chat");
  EXPECT_EQ(outcome.injected_tokens, 240);
  EXPECT_THAT(outcome.fallbacks, IsEmpty());
  EXPECT_EQ(scheduler_->counters().injected_tokens, 240);
  EXPECT_EQ(scheduler_->directory().pins(), 0);
}

TEST_P(ConnectorWindowTest, APromptWithinTheWindowIsWrittenWhole) {
  Probe();
  Store(1);
  AddFacts("chat", {1});
  Step({"chat"});
  EXPECT_LT(Difference("chat", 0, 60), 1e-5F);
  EXPECT_EQ(Finish("chat").injected_tokens, 40);
}

TEST_P(ConnectorWindowTest, BehindAPrefixHitTheRestIsWritten) {
  Probe();
  for (int number = 1; number <= 6; ++number) Store(number);
  AddFacts("chat", {1, 2, 3, 4, 5, 6});
  Request& chat = requests_.at("chat");
  chat.computed = 224;  // token 240, the first to be computed, sees blocks 12 and 13 of them
  const auto external = *scheduler_->MatchedTokens("chat", 224);
  EXPECT_EQ(external, 16);
  chat.table.assign(15, 0);
  for (std::size_t block = 12; block < 15; ++block) {
    chat.table[block] = free_.front();
    free_.pop_front();
  }
  engine_->Compute(chat.prompt, chat.table, 192, 224);
  scheduler_->Allocated("chat", external, chat.table);
  chat.computed += external;
  Step({"chat"});
  EXPECT_LT(Difference("chat", 192, 260), 1e-5F);
  EXPECT_EQ(Finish("chat").injected_tokens, 16);
}

TEST_P(ConnectorWindowTest, AFailedLoadNamesNoNullBlock) {
  Probe();
  for (int number = 1; number <= 6; ++number) Store(number);
  for (const int gone : {6, 2}) {
    SCOPED_TRACE(gone);
    AddFacts("chat", {1, 2, 3, 4, 5, 6});
    EXPECT_EQ(*scheduler_->MatchedTokens("chat", 0), 240);
    StepPlan plan;  // between lookup and load a rank loses it
    plan.sequence = 1000;
    plan.drop = {TestKey(static_cast<std::uint64_t>(gone))};
    ASSERT_TRUE(worker_->Begin(plan).ok());
    Step({"chat"});
    EXPECT_THAT(failed_, Not(Contains(0)));
    EXPECT_EQ(failed_.empty(), gone == 2);  // nobody looks at what is behind the window
    Finish("chat");
    if (gone == 6) Store(6);
  }
}

TEST_P(ConnectorWindowTest, NothingIsLoadedWhoseFailureTheEngineWouldNotFind) {
  frees_ahead_ = true;
  Start(kBlocks - 1);
  Probe();
  for (int number = 1; number <= 3; ++number) Store(number);
  // The 120 tokens of KV end in block 7. A pass that begins at 175 does not look at it any more.
  AddFacts("found", {1, 2, 3}, 54);
  EXPECT_EQ(scheduler_->MatchedTokens("found", 0), 120);
  // Answered, preempted, and computed again with what it was answered.
  EXPECT_EQ(scheduler_->MatchedTokens("found", 0, 175), 0);
  AddFacts("lost", {1, 2, 3}, 55);
  EXPECT_EQ(scheduler_->MatchedTokens("lost", 0), 0);
  Step({"lost"});
  EXPECT_LT(Difference("lost", 128, 175), 1e-5F);
  EXPECT_THAT(Finish("lost").fallbacks, ElementsAre(Pair("outside_window", 3)));
  Finish("found");
  EXPECT_EQ(scheduler_->directory().pins(), 0);
}

TEST_P(ConnectorWindowTest, WhatHasLeftTheWindowIsNotCapturedFromAnothersBlocks) {
  Start(14);  // two requests of 200 tokens would need 26
  // No prompt of 1100 tokens fits either: the rotation comes from the engine.
  RopeSpec spec;
  spec.pairing = RopePairing::kHalf;
  spec.width = kDim;
  spec.groups = {MakeRopeGroup(1e4, kDim)};
  spec.layer_group.assign(kLayers, 0);
  ASSERT_TRUE(worker_->ExpectRotation(std::move(spec)).ok());
  Add("probe", TransferOperation::kProbe, TokenIds(200, 5), {});
  Step({"probe"});
  Finish("probe");
  ASSERT_TRUE(scheduler_->rotation_known()) << scheduler_->refusal();

  given_.clear();
  const TokenIds first = Numbers(200, 1), second = Numbers(200, 5000);
  Add("a", kCapture, first,
      {{TestKey(1), 0, 40, {}}, {TestKey(2), 40, 140, {}}, {TestKey(3), 160, 200, {}}});
  Add("b", kCapture, second, {{TestKey(4), 10, 110, {}}, {TestKey(5), 115, 163, {}}});
  for (int step = 0; step < 7; ++step) Step({"a", "b"}, 32);
  auto reused = given_;
  std::sort(reused.begin(), reused.end());
  EXPECT_NE(std::adjacent_find(reused.begin(), reused.end()), reused.end());
  const TransferOutcome a = Finish("a"), b = Finish("b");
  EXPECT_EQ(a.captured_blocks, 2);
  EXPECT_THAT(a.fallbacks, Contains(Pair("outside_window", 1)));
  EXPECT_EQ(b.captured_blocks, 1);
  EXPECT_THAT(b.fallbacks, Contains(Pair("outside_window", 1)));
  EXPECT_FALSE(scheduler_->Ready(TestKey(2)));
  EXPECT_FALSE(scheduler_->Ready(TestKey(4)));

  // What was captured is the requests' own.
  TokenIds prompt(first.begin(), first.begin() + 40);
  prompt.insert(prompt.end(), second.begin() + 115, second.begin() + 163);
  prompt.insert(prompt.end(), 9);
  Add("chat", kInject, prompt, {{TestKey(1), 0, 40, {}}, {TestKey(5), 40, 88, {}}});
  Step({"chat"});
  EXPECT_LT(Difference("chat", 32, 89), 1e-5F);
  EXPECT_EQ(Finish("chat").injected_tokens, 88);
}

TEST_P(ConnectorWindowTest, InOnePassAlsoALongerRunIsWhole) {
  Probe();
  Add("long", kCapture, Numbers(200, 1), {{TestKey(9), 0, 195, {}}});
  Step({"long"});
  EXPECT_EQ(Finish("long").captured_blocks, 1);
  Add("chat", kInject, Numbers(200, 1), {{TestKey(9), 0, 195, {}}});
  Step({"chat"});
  EXPECT_LT(Difference("chat", 144, 200), 1e-5F);
  EXPECT_EQ(Finish("chat").injected_tokens, 195);
}

TEST_P(ConnectorWindowTest, ARequestThatIsResumedBehindNullBlocksCapturesOnlyWhatIsThere) {
  Probe();
  Add("again", kCapture, Numbers(200, 1),
      {{TestKey(3), 80, 96, {}}, {TestKey(1), 100, 140, {}}, {TestKey(2), 160, 199, {}}});
  Step({"again"}, 90);
  // Preempted, and resumed with a hit up to token 144 that another request has left.
  Request& request = requests_.at("again");
  for (const std::int32_t block : request.table) {
    if (block != 0) free_.push_front(block);
  }
  request.table.assign(6, 0);
  for (std::size_t block = 6; block < 9; ++block) {
    request.table.push_back(free_.front());
    free_.pop_front();
  }
  engine_->Compute(request.prompt, request.table, 96, 144);
  request.computed = 144;
  scheduler_->Allocated("again", 0, request.table);
  scheduler_->Scheduled("again", 144, request.table, true, 144);
  Step({"again"});
  const TransferOutcome outcome = Finish("again");
  EXPECT_EQ(outcome.captured_blocks, 2);  // token 144 sees from 97 on
  EXPECT_THAT(outcome.fallbacks, Contains(Pair("outside_window", 1)));
  EXPECT_FALSE(scheduler_->Ready(TestKey(3)));
}

TEST_P(ConnectorWindowTest, ANullBlockIsNotReadWhateverTheWindowWouldShow) {
  Probe();
  Add("gap", kCapture, Numbers(48, 1), {{TestKey(1), 0, 20, {}}, {TestKey(2), 32, 48, {}}});
  EXPECT_EQ(*scheduler_->MatchedTokens("gap", 0), 0);
  requests_.at("gap").table = {7, 0, 9};
  requests_.at("gap").computed = 40;
  scheduler_->Allocated("gap", 0, requests_.at("gap").table);
  Step({"gap"});
  const TransferOutcome outcome = Finish("gap");
  EXPECT_EQ(outcome.captured_blocks, 1);
  EXPECT_THAT(outcome.fallbacks, Contains(Pair("outside_window", 1)));
}

TEST_P(ConnectorWindowTest, AProbeOfSeveralPassesMeasuresNothingAndTheNextOneMay) {
  Add("several", TransferOperation::kProbe, TokenIds(1100, 5), {});
  for (int step = 0; step < 5; ++step) Step({"several"}, 256);
  EXPECT_THAT(Finish("several").fallbacks, ElementsAre(Pair("outside_window", 1)));
  EXPECT_FALSE(scheduler_->rotation_known());
  EXPECT_EQ(scheduler_->refusal(), "");
  Probe();
}

INSTANTIATE_TEST_SUITE_P(Paths, ConnectorWindowTest, ::testing::Bool(), [](const auto& info) {
  return info.param ? std::string("Device") : std::string("Staging");
});

TEST(ConnectorWindowPromotionTest, WhatLiesBehindTheWindowNeitherComesUpNorIsWaitedFor) {
  ConnectorSchedulerOptions options;
  options.secret.assign(kSecret.begin(), kSecret.end());
  options.budget_bytes = 1 << 20;
  options.token_bytes = 10;
  options.window = kWindow;
  options.block_slots = kBlockSlots;
  options.steady_ms = [] { return std::int64_t{0}; };
  const auto scheduler = *ConnectorScheduler::Create(std::move(options));
  const auto report = [&](const WorkerReport& report) {
    ASSERT_TRUE(scheduler->TakeReport(SerializeWorkerReport(report)).ok());
  };
  // Six facts of 40 tokens, none of them in the arena; 90 tokens of them may be kept there.
  TransferRequest transfer;
  transfer.scope_tag = 7;
  transfer.epoch = 1;
  transfer.salt = "salt";
  transfer.expires_ms = 10;
  TokenIds prompt;
  WorkerReport first;
  for (std::int32_t fact = 0; fact < 6; ++fact) {
    TokenIds own(40);
    std::iota(own.begin(), own.end(), 1000 * fact);
    const KvKey key = TestKey(static_cast<std::uint64_t>(fact));
    transfer.blocks.push_back({key, 40 * fact, 40 * fact + 40, {}});
    prompt.insert(prompt.end(), own.begin(), own.end());
    first.held.push_back({key, 7, 1, std::move(own)});
  }
  prompt.insert(prompt.end(), 20, 77);
  first.arena_bytes = 1200;
  first.rotation_measured = true;
  report(first);
  scheduler->StartComplete();
  const auto add = [&](const std::string& name) {
    ASSERT_TRUE(scheduler->Add(name, SignTransferRequest(transfer, prompt, AsBytes(kSecret)),
                               prompt, "salt", 5));
  };
  // Token 240, the first to be computed, sees from 193 on, whose block begins at 192.
  add("chat");
  EXPECT_EQ(scheduler->MatchedTokens("chat", 0), std::nullopt);
  const StepPlan plan = scheduler->TakePlan();
  ASSERT_EQ(plan.promote.size(), 2U);
  EXPECT_EQ(plan.promote[0].key, TestKey(4));
  EXPECT_EQ(plan.promote[1].key, TestKey(5));
  WorkerReport up;
  up.resident = {TestKey(4), TestKey(5)};
  report(up);
  EXPECT_EQ(scheduler->MatchedTokens("chat", 0), 240);
  std::vector<std::int32_t> table(17);
  std::iota(table.begin() + 12, table.end(), 1);
  scheduler->Allocated("chat", 240, table);
  const StepPlan loading = scheduler->TakePlan();
  ASSERT_EQ(loading.loads.size(), 1U);
  EXPECT_EQ(loading.loads[0].pieces.size(), 2U);
  scheduler->Finished("chat");
  EXPECT_EQ(scheduler->promotions().counters().given_up, 0);
  // What is seen of them is there: nobody waits for the others.
  add("next");
  EXPECT_EQ(scheduler->MatchedTokens("next", 0), 240);
  scheduler->Finished("next");
  EXPECT_EQ(scheduler->promotions().counters().waits, 1);
  EXPECT_EQ(scheduler->promotions().kept_bytes(), 0);
  EXPECT_EQ(scheduler->directory().pins(), 0);
}

TEST(ConnectorWindowOptionsTest, AWindowNeedsABlockSize) {
  ConnectorSchedulerOptions options;
  options.secret.assign(kSecret.begin(), kSecret.end());
  options.token_bytes = 1;
  options.window = 48;
  EXPECT_FALSE(ConnectorScheduler::Create(options).ok());
  options.block_slots = 16;
  EXPECT_TRUE(ConnectorScheduler::Create(options).ok());
  options.window = -1;
  EXPECT_FALSE(ConnectorScheduler::Create(options).ok());
}

}  // namespace
}  // namespace inferscale::test
