#include "eval/accuracy_check.h"

#include <filesystem>
#include <sstream>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/files.h"
#include "base/random.h"
#include "support/fake_embedder.h"
#include "support/fake_engine.h"

namespace inferscale {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

AccuracyFigures Good() { return {20, 24, 0.02, -0.05, 0.09, 0.9, 0.1, 0.6}; }

TEST(JudgeAccuracy, PassesWhatIsWithinTheBounds) {
  const AccuracyVerdict verdict = JudgeAccuracy({Good(), Good()}, 5);
  EXPECT_TRUE(verdict.passed);
  EXPECT_THAT(verdict.reasons, IsEmpty());
  EXPECT_EQ(verdict.time_ms, 5);
  EXPECT_EQ(verdict.figures.size(), 2u);
}

TEST(JudgeAccuracy, FailsWhatIsMateriallyAndSignificantlyWorse) {
  AccuracyFigures worse = Good();
  worse.diff = -0.2;
  worse.diff_low = -0.35;
  worse.diff_high = -0.05;
  const AccuracyVerdict verdict = JudgeAccuracy({Good(), worse}, 0);
  EXPECT_FALSE(verdict.passed);
  EXPECT_THAT(verdict.reasons, ElementsAre(HasSubstr("at k = 20 the right answer is 0.20")));

  AccuracyFigures uncertain = worse;
  uncertain.diff_high = 0.01;
  EXPECT_TRUE(JudgeAccuracy({uncertain}, 0).passed) << "it may be as good as text";
  AccuracyFigures small = worse;
  small.diff = -0.1;
  EXPECT_TRUE(JudgeAccuracy({small}, 0).passed) << "worse, but not by much";
}

TEST(JudgeAccuracy, FailsAnAbsurdFirstToken) {
  AccuracyFigures far = Good();
  far.kl = 1.5;
  EXPECT_THAT(JudgeAccuracy({far}, 0).reasons, ElementsAre(HasSubstr("KL 1.50")));
  far.kl_no_facts = 2;  // this model's answers without facts are farther still
  EXPECT_TRUE(JudgeAccuracy({far}, 0).passed);
  AccuracyFigures other = Good();
  other.top1 = 0.1;
  EXPECT_THAT(JudgeAccuracy({other}, 0).reasons, ElementsAre(HasSubstr("only 10 %")));
}

TEST(JudgeAccuracy, FailsWithoutFigures) { EXPECT_FALSE(JudgeAccuracy({}, 0).passed); }

/// Scores are fixed: text -1 a token, KV less by `kv_loss`, no facts -3.
class ScoringEngine : public testing::FakeEngine {
 public:
  Result<ScoreReport> Score(Composition composition, TokenIds continuation, bool) override {
    bool facts = false;
    for (const BlockSpan& block : composition.blocks) facts = facts || !block.exact;
    const bool kv = composition.inject && facts;
    (kv ? kv_scores : facts ? text_scores : other_scores)++;
    ScoreReport report;
    const float text = -1;
    report.logprobs.assign(continuation.size(), kv ? text - kv_loss : text);
    report.first_logprobs.assign(260, -10.0f);
    report.first_logprobs[3] = -0.01f;
    report.generation.injected_tokens = kv && injects ? 100 : 0;
    return report;
  }

  float kv_loss = 0;
  bool injects = true;
  int kv_scores = 0, text_scores = 0, other_scores = 0;
};

class AccuracyCheckTest : public ::testing::Test {
 protected:
  void SetUp() override {
    folder_ = std::filesystem::temp_directory_path() / ("inferscale-accuracy-" + NewUuid());
    engine_->capabilities_.context_tokens = 8192;
    context_.out = &out_;
    context_.progress = &out_;
    context_.open_service =
        [this](const EvalServiceOptions& options) -> Result<std::unique_ptr<MemoryService>> {
      INFERSCALE_RETURN_IF_ERROR(CreatePrivateFolder(options.folder));
      CatalogOptions catalog_options;
      catalog_options.folder = options.folder;
      INFERSCALE_ASSIGN_OR_RETURN(std::unique_ptr<Catalog> catalog,
                                  OpenSqliteCatalog(catalog_options));
      MemoryServiceOptions service;
      service.background = false;
      return MemoryService::Create(std::move(catalog), std::make_shared<testing::FakeEmbedder>(),
                                   engine_, nullptr, std::move(service));
    };
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }

  std::filesystem::path folder_;
  std::shared_ptr<ScoringEngine> engine_ = std::make_shared<ScoringEngine>();
  EvalContext context_;
  std::ostringstream out_;
};

TEST_F(AccuracyCheckTest, MeasuresTwentyFourQuestionsAtTwoNumbersOfFacts) {
  std::string encoding_id;
  const Result<AccuracyVerdict> verdict = RunAccuracyCheck(context_, folder_, &encoding_id);
  ASSERT_TRUE(verdict.ok()) << verdict.status().ToString();
  EXPECT_TRUE(verdict->passed) << verdict->ToString();
  ASSERT_EQ(verdict->figures.size(), 2u);
  EXPECT_EQ(verdict->figures[0].k, 5);
  EXPECT_EQ(verdict->figures[1].k, 20);
  EXPECT_EQ(verdict->figures[1].questions, 24);
  EXPECT_EQ(verdict->figures[1].top1, 1);
  EXPECT_EQ(engine_->kv_scores, 48);
  EXPECT_FALSE(encoding_id.empty());
  const nlohmann::json json = AccuracyJson(*verdict);
  EXPECT_EQ(json["passed"], true);
  EXPECT_EQ(json["bounds"]["least_diff"], -0.15);
  EXPECT_EQ(json["figures"][0]["questions"], 24);
}

TEST_F(AccuracyCheckTest, FailsAnEngineWhoseKvLosesTheAnswers) {
  engine_->kv_loss = 0.5;
  std::string encoding_id;
  const Result<AccuracyVerdict> verdict = RunAccuracyCheck(context_, folder_, &encoding_id);
  ASSERT_TRUE(verdict.ok()) << verdict.status().ToString();
  EXPECT_FALSE(verdict->passed);
  EXPECT_NEAR(verdict->figures[0].diff, -0.5, 1e-6);
}

TEST_F(AccuracyCheckTest, AsksTextOnceForSeveralEncodings) {
  const Result<EvalConversation> history = BuiltInDemo();
  ASSERT_TRUE(history.ok());
  AccuracyCheck check(*history, {{5}, 3, 40, 1});
  EvalServiceOptions options;
  options.folder = folder_;
  for (int round = 0; round < 2; ++round) {
    Result<EvalSession> session = EvalSession::Open(context_, options);
    ASSERT_TRUE(session.ok()) << session.status().ToString();
    const auto figures = check.Measure(context_, *session);
    ASSERT_TRUE(figures.ok()) << figures.status().ToString();
    EXPECT_EQ(figures->front().questions, 3);
  }
  EXPECT_EQ(engine_->text_scores + engine_->other_scores, 6);
  EXPECT_EQ(engine_->kv_scores, 6);
}

TEST_F(AccuracyCheckTest, IsAnErrorWhenNothingWasInjected) {
  engine_->injects = false;
  std::string encoding_id;
  EXPECT_EQ(RunAccuracyCheck(context_, folder_, &encoding_id).status().code(),
            StatusCode::kInternal);
}

TEST_F(AccuracyCheckTest, IsUnsupportedWithoutInjection) {
  engine_->capabilities_.kv_injection = false;
  engine_->capabilities_.kv_refusal = "no rotation to undo";
  std::string encoding_id;
  const Status status = RunAccuracyCheck(context_, folder_, &encoding_id).status();
  EXPECT_EQ(status.code(), StatusCode::kUnsupported);
  EXPECT_THAT(status.message(), HasSubstr("no rotation to undo"));
}

}  // namespace
}  // namespace inferscale
