#include <filesystem>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/random.h"
#include "inferscale/memory_service.h"
#include "memory/accuracy_verdict.h"
#include "support/fake_embedder.h"
#include "support/fake_engine.h"

namespace inferscale {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;

AccuracyVerdict Verdict(bool passed) {
  AccuracyVerdict verdict;
  verdict.passed = passed;
  verdict.time_ms = 1'760'000'000'000;
  verdict.figures = {{5, 24, -0.3, -0.5, -0.1, 0.75, 0.2, 0.6}};
  if (!passed) verdict.reasons = {"too far from text"};
  return verdict;
}

class AccuracyGateTest : public ::testing::Test {
 protected:
  void SetUp() override {
    folder_ = std::filesystem::temp_directory_path() / ("inferscale-gate-" + NewUuid());
  }
  void TearDown() override {
    service_.reset();
    std::filesystem::remove_all(folder_);
  }

  void Open(MemoryServiceOptions options = {}) {
    service_.reset();
    CatalogOptions catalog_options;
    catalog_options.folder = folder_;
    Result<std::unique_ptr<Catalog>> catalog = OpenSqliteCatalog(catalog_options);
    ASSERT_TRUE(catalog.ok()) << catalog.status().ToString();
    options.background = false;
    Result<std::unique_ptr<MemoryService>> service =
        MemoryService::Create(std::move(*catalog), std::make_shared<testing::FakeEmbedder>(),
                              engine_, nullptr, std::move(options));
    ASSERT_TRUE(service.ok()) << service.status().ToString();
    service_ = std::move(*service);
  }

  void Store(bool passed) {
    const Status stored =
        StoreAccuracyVerdict(service_->catalog(), service_->encoding_id(), Verdict(passed));
    ASSERT_TRUE(stored.ok()) << stored.ToString();
  }

  GenerationReport Chat(MemoryMode mode = MemoryMode::kKv) {
    Scope scope;
    scope.user = "ada";
    AddRequest add;
    add.scope = scope;
    add.turns = {{0, "user", "Ada", "the cat is called Pixel", 0}};
    EXPECT_TRUE(service_->Add(add).ok());
    EXPECT_TRUE(service_->WaitIdle().ok());
    ChatRequest request;
    request.scope = scope;
    request.messages = {{"user", "what is the cat called", ""}};
    request.mode = mode;
    request.use_ledger = false;
    const Result<ChatReport> report = service_->ChatBlocking(request);
    EXPECT_TRUE(report.ok()) << report.status().ToString();
    return report.ok() ? report->generation : GenerationReport();
  }

  static bool Gated(const GenerationReport& report) {
    for (const Fallback& fallback : report.fallbacks) {
      if (fallback.reason == "accuracy_gate") return true;
    }
    return false;
  }

  std::filesystem::path folder_;
  std::shared_ptr<testing::FakeEngine> engine_ = std::make_shared<testing::FakeEngine>();
  std::unique_ptr<MemoryService> service_;
};

TEST_F(AccuracyGateTest, AVerdictIsReadBackAsItWasStored) {
  Open();
  Store(false);
  const auto read = LoadAccuracyVerdict(service_->catalog(), service_->encoding_id());
  ASSERT_TRUE(read.ok() && read->has_value());
  EXPECT_FALSE((*read)->passed);
  EXPECT_EQ((*read)->time_ms, 1'760'000'000'000);
  ASSERT_EQ((*read)->figures.size(), 1u);
  EXPECT_EQ((*read)->figures[0].k, 5);
  EXPECT_EQ((*read)->figures[0].questions, 24);
  EXPECT_EQ((*read)->figures[0].diff_high, -0.1);
  EXPECT_EQ((*read)->figures[0].kl_no_facts, 0.6);
  EXPECT_EQ((*read)->reasons, std::vector<std::string>{"too far from text"});
  const auto other = LoadAccuracyVerdict(service_->catalog(), "another encoding");
  ASSERT_TRUE(other.ok());
  EXPECT_FALSE(other->has_value());
}

TEST_F(AccuracyGateTest, WhatCannotBeReadCountsAsNeverChecked) {
  Open();
  for (const char* text : {"{", "[]", R"({"passed": 1})", R"({"passed": false, "time_ms": 1})",
                           R"({"passed":false,"time_ms":1,"figures":[{"k":"5"}],"reasons":[]})"}) {
    ASSERT_TRUE(
        service_->catalog().SetMeta("accuracy.verdict." + service_->encoding_id(), text).ok());
    const auto read = LoadAccuracyVerdict(service_->catalog(), service_->encoding_id());
    ASSERT_TRUE(read.ok());
    EXPECT_FALSE(read->has_value()) << text;
  }
}

TEST_F(AccuracyGateTest, KvIsServedUnlessTheEncodingFailed) {
  Open();
  EXPECT_GT(Chat().injected_tokens, 0) << "never checked";
  Store(true);
  Open();
  EXPECT_GT(Chat().injected_tokens, 0) << "passed";
  EXPECT_THAT(service_->accuracy_refusal(), IsEmpty());
}

TEST_F(AccuracyGateTest, AFailedEncodingIsServedAsText) {
  Open();
  Store(false);
  Open();
  EXPECT_THAT(service_->accuracy_refusal(), HasSubstr("failed on 2025-10-09: diff to text -0.30"));
  const GenerationReport report = Chat();
  EXPECT_EQ(report.injected_tokens, 0);
  EXPECT_TRUE(Gated(report));
  EXPECT_FALSE(engine_->compositions.back().inject);
  EXPECT_FALSE(Gated(Chat(MemoryMode::kText))) << "text was asked for";
  EXPECT_FALSE(Gated(Chat(MemoryMode::kOff)));
}

TEST_F(AccuracyGateTest, AFailedEncodingIsServedAsKvWhenForced) {
  Open();
  Store(false);
  MemoryServiceOptions forced;
  forced.accuracy_gate = AccuracyGate::kIgnore;
  Open(forced);
  const GenerationReport report = Chat();
  EXPECT_GT(report.injected_tokens, 0);
  EXPECT_FALSE(Gated(report));
}

TEST_F(AccuracyGateTest, AnotherCodecHasAVerdictOfItsOwn) {
  Open();
  Store(false);
  MemoryServiceOptions other;
  other.codec = KvCodec::kF16;
  Open(other);
  EXPECT_FALSE(Gated(Chat()));
}

}  // namespace
}  // namespace inferscale
