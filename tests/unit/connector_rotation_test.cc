// Rotations that an engine names: each layer's own is found by the probe, where a measurement on a
// coarse cache would not do.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <utility>
#include <vector>

#include "connector/step.h"
#include "connector/worker.h"
#include "support/fake_paged_engine.h"
#include "support/kv_blocks.h"

namespace inferscale::test {
namespace {

using ::testing::HasSubstr;

class ConnectorRotationTest : public ::testing::Test {
 protected:
  void SetUp() override {
    ConnectorWorkerOptions options;
    options.geometry = {kLayers, kHeads, kDim, kDim};
    options.codec = KvCodec::kF32;
    options.fingerprint = TestFingerprint(1);
    options.host_budget_bytes = 1 << 24;
    options.block_slots = kBlockSlots;
    options.engine_blocks = kBlocks;
    options.max_position = 1 << 15;  // farther than a measurement on such a cache serves
    worker_ = *ConnectorWorker::Create(std::move(options));
    engine_.RoundKeys();
  }

  Status Expect(const std::vector<double>& bases) {
    RopeSpec spec;
    spec.pairing = RopePairing::kHalf;
    spec.width = kDim;
    for (const double base : bases) spec.groups.push_back(MakeRopeGroup(base, kDim));
    spec.layer_group.assign(kLayers, -1);
    return worker_->ExpectRotation(std::move(spec));
  }

  /// The refusal of a probe; empty: the rotation is known.
  std::string Probe() {
    const TokenIds prompt(1100, 5);
    StepPlan plan;
    plan.sequence = 1;
    plan.probes.push_back({"probe", Table(1100), 1100});
    EXPECT_TRUE(worker_->Begin(plan).ok());
    engine_.Compute(prompt, plan.probes[0].block_table, 0, 1100);
    const auto slots = worker_->ProbeSlots();
    std::vector<float> keys(kLayers * slots.size() * engine_.Row()), values(keys.size());
    engine_.Read(slots, keys, values);
    const Status status = worker_->Probe({kernels::ScalarType::kF32, keys.data(), values.data(),
                                          static_cast<std::int64_t>(slots.size())});
    EXPECT_EQ(status.ok(), worker_->rotation_known());
    return std::string(status.message());
  }

  static std::vector<std::int32_t> Table(std::int32_t tokens) {
    std::vector<std::int32_t> table;
    for (std::int32_t block = 0; block * kBlockSlots < tokens; ++block) table.push_back(1 + block);
    return table;
  }

  FakePagedEngine engine_{0, kHeads};
  std::unique_ptr<ConnectorWorker> worker_;
};

TEST_F(ConnectorRotationTest, EachLayerGetsTheFrequenciesThatMoveItsKeys) {
  engine_.SetBase(0, 1e4);
  engine_.SetBase(1, 1e6);
  engine_.SetBase(2, 0);  // is not rotated
  ASSERT_TRUE(Expect({1e6, 5e5, 1e4}).ok());
  ASSERT_EQ(Probe(), "");

  // A fact of tokens 300 to 340, moved far behind the probe.
  TokenIds prompt;
  for (TokenId id = 0; id < 1000; ++id) prompt.push_back(id);
  StepPlan plan;
  plan.sequence = 2;
  CaptureItem item;
  item.key = TestKey(1);
  item.serial = 1;
  item.tokens.assign(prompt.begin() + 300, prompt.begin() + 340);
  item.block_table = Table(1000);
  item.position = 300;
  plan.captures = {item};
  engine_.Step(*worker_, plan, [&] { engine_.Compute(prompt, item.block_table, 0, 1000); });
  constexpr std::int32_t kFar = 30'000;
  std::vector<std::int32_t> table(kFar / kBlockSlots + 4, 1);
  std::vector<TokenId> far(kFar + 40, 0);
  for (std::size_t block = kFar / kBlockSlots; block < table.size(); ++block) {
    table[block] = static_cast<std::int32_t>(150 + block - kFar / kBlockSlots);
  }
  std::copy(item.tokens.begin(), item.tokens.end(), far.begin() + kFar);
  StepPlan load;
  load.sequence = 3;
  load.loads = {{"chat", table, {{TestKey(1), 0, 40, kFar}}}};
  engine_.Step(*worker_, load, [] {});
  // Two roundings of bf16 apart.
  EXPECT_LT(engine_.Difference(far, table, kFar, kFar + 40), 0.02F);
}

TEST_F(ConnectorRotationTest, ALayerThatAgreesWithNothingIsMeasured) {
  engine_.SetBase(2, 3e4);
  ASSERT_TRUE(Expect({1e4, 1e6}).ok());
  EXPECT_THAT(Probe(), HasSubstr("--max-model-len"));  // as without the engine's words
}

TEST_F(ConnectorRotationTest, GroupsOfAnotherWidthAreNoRotation) {
  RopeSpec spec;
  spec.pairing = RopePairing::kHalf;
  spec.width = kDim;
  spec.groups = {MakeRopeGroup(1e4, kDim), MakeRopeGroup(1e4, kDim / 2)};
  spec.layer_group.assign(kLayers, -1);
  EXPECT_FALSE(worker_->ExpectRotation(std::move(spec)).ok());
}

}  // namespace
}  // namespace inferscale::test
