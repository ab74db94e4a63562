// KV with the default recipe is as good as text, and the check that says so can fail.

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <iostream>
#include <set>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "embed/make_embedder.h"
#include "eval/accuracy_check.h"
#include "support/engine_fixture.h"

namespace inferscale {
namespace {

using testing::CacheFolder;
using testing::ChatModel;
using testing::TestOptions;

constexpr std::int32_t kFacts = 8;        // in a prompt
constexpr std::size_t kStoredFacts = 48;  // of a conversation
constexpr std::size_t kQuestions = 24, kUnnamedQuestions = 16, kLocomoQuestions = 16;

/// Some of a conversation's questions with the facts that answer them, and others from its
/// beginning until there are kStoredFacts.
EvalConversation Reduced(EvalConversation whole, std::size_t questions) {
  std::erase_if(whole.questions, [](const EvalQuestion& question) {
    return question.adversarial || question.evidence.empty();
  });
  const std::size_t stride = std::max<std::size_t>(1, whole.questions.size() / questions);
  EvalConversation reduced = whole;
  reduced.questions.clear();
  reduced.facts.clear();
  std::set<std::string> evidence;
  for (std::size_t i = 0; i < whole.questions.size() && reduced.questions.size() < questions;
       i += stride) {
    const EvalQuestion& question = whole.questions[i];
    reduced.questions.push_back(question);
    evidence.insert(question.evidence.begin(), question.evidence.end());
  }
  std::vector<bool> kept(whole.facts.size());
  std::size_t count = 0;
  for (const bool answers : {true, false}) {
    for (std::size_t i = 0; i < whole.facts.size() && count < kStoredFacts; ++i) {
      const std::vector<std::string>& sources = whole.facts[i].sources;
      const bool is_evidence =
          std::any_of(sources.begin(), sources.end(),
                      [&](const std::string& id) { return evidence.contains(id); });
      if (kept[i] || is_evidence != answers) continue;
      kept[i] = true;
      ++count;
    }
  }
  for (std::size_t i = 0; i < whole.facts.size(); ++i) {
    if (!kept[i]) continue;
    reduced.facts.push_back(whole.facts[i]);
    reduced.facts.back().supersedes.reset();  // an index into the whole list
  }
  return reduced;
}

class AccuracyCheckModelTest : public ::testing::Test {
 protected:
  void SetUp() override {
    const std::filesystem::path embedding = CacheFolder() / "models/all-MiniLM-L6-v2-f16.gguf";
    if (!std::filesystem::exists(ChatModel()) || !std::filesystem::exists(embedding)) {
      GTEST_SKIP() << "the models are not there: run make build";
    }
    EmbedderSpec spec;
    spec.location = embedding.string();
    spec.threads = 1;
    Result<std::unique_ptr<Embedder>> embedder = MakeEmbedder(spec);
    ASSERT_TRUE(embedder.ok()) << embedder.status().ToString();
    embedder_ = std::move(*embedder);
    LlamaEngineOptions options = TestOptions(ChatModel());
    options.context_tokens = 1024;
    options.parallel_sequences = 1;
    options.store.folder = folder_.path() / "kv";
    engine_ = testing::Open(options);
    ASSERT_NE(engine_, nullptr);
    context_.out = &std::cout;
    context_.progress = &std::cerr;
    context_.open_service =
        [this](const EvalServiceOptions& wanted) -> Result<std::unique_ptr<MemoryService>> {
      CatalogOptions catalog_options;
      catalog_options.folder = wanted.folder;
      INFERSCALE_ASSIGN_OR_RETURN(std::unique_ptr<Catalog> catalog,
                                  OpenSqliteCatalog(std::move(catalog_options)));
      MemoryServiceOptions service;
      if (!wanted.recipe.empty()) service.recipe = wanted.recipe;
      service.background = false;
      service.max_fact_tokens = 900;
      return MemoryService::Create(std::move(catalog), embedder_, engine_, nullptr,
                                   std::move(service));
    };
  }

  AccuracyVerdict Judge(AccuracyCheck& check, const std::string& recipe,
                        std::string* encoding_id = nullptr) {
    EvalServiceOptions options;
    options.folder = folder_.path() / "data";
    options.recipe = recipe;
    Result<EvalSession> session = EvalSession::Open(context_, options);
    if (!session.ok()) {
      ADD_FAILURE() << session.status().ToString();
      return {};
    }
    const auto figures = check.Measure(context_, *session);
    EXPECT_TRUE(figures.ok()) << figures.status().ToString();
    if (encoding_id != nullptr) *encoding_id = session->service().encoding_id();
    AccuracyVerdict verdict =
        JudgeAccuracy(figures.ok() ? *figures : std::vector<AccuracyFigures>(), 0);
    std::cout << recipe << ": " << verdict.ToString() << std::endl;
    return verdict;
  }

  testing::TemporaryFolder folder_;
  std::shared_ptr<Embedder> embedder_;
  std::shared_ptr<Engine> engine_;
  EvalContext context_;
};

TEST_F(AccuracyCheckModelTest, TheDefaultRecipeIsAsGoodAsTextAndBareIsNot) {
  Result<EvalConversation> history = BuiltInDemo();
  ASSERT_TRUE(history.ok()) << history.status().ToString();
  AccuracyCheck check(Reduced(*std::move(history), kQuestions), {{kFacts}, 0, 0, 1});
  const AccuracyVerdict primer = Judge(check, MemoryServiceOptions().recipe);
  EXPECT_TRUE(primer.passed) << primer.ToString();
  std::string encoding_id;
  const AccuracyVerdict bare = Judge(check, "bare", &encoding_id);
  EXPECT_FALSE(bare.passed) << bare.ToString();

  // Serving acts on the verdict.
  EvalServiceOptions options;
  options.folder = folder_.path() / "data";
  options.recipe = "bare";
  {
    const auto service = context_.open_service(options);
    ASSERT_TRUE(service.ok()) << service.status().ToString();
    ASSERT_TRUE(StoreAccuracyVerdict((*service)->catalog(), encoding_id, bare).ok());
  }
  const auto service = context_.open_service(options);
  ASSERT_TRUE(service.ok()) << service.status().ToString();
  ChatRequest request;
  request.scope.user = "inferscale-accuracy-demo";
  request.messages = {{"user", "What is the name of Nora's cat?", ""}};
  request.sampling.max_tokens = 1;
  request.top_k = 2;
  const Result<ChatReport> report = (*service)->ChatBlocking(request);
  ASSERT_TRUE(report.ok()) << report.status().ToString();
  EXPECT_EQ(report->generation.injected_tokens, 0);
  EXPECT_EQ(testing::FallbackCount(report->generation, "accuracy_gate"), 1);
  EXPECT_EQ(report->memories.size(), 2u);
}

TEST_F(AccuracyCheckModelTest, TheDefaultRecipeIsAsGoodAsTextWhereFactsHaveNoNames) {
  Result<EvalConversation> history = BuiltInDemo();
  ASSERT_TRUE(history.ok()) << history.status().ToString();
  history->id += "-unnamed";
  for (EvalFact& fact : history->facts) fact.speaker.clear();
  for (EvalTurn& turn : history->turns) turn.speaker.clear();
  AccuracyCheck check(Reduced(*std::move(history), kUnnamedQuestions), {{kFacts}, 0, 0, 1});
  const AccuracyVerdict primer = Judge(check, MemoryServiceOptions().recipe);
  EXPECT_TRUE(primer.passed) << primer.ToString();
}

TEST_F(AccuracyCheckModelTest, TheDefaultRecipeIsAsGoodAsTextOnLocomo) {
  const char* const given = std::getenv("INFERSCALE_LOCOMO");
  const std::filesystem::path file =
      given != nullptr
          ? std::filesystem::path(given)
          : std::filesystem::path(INFERSCALE_SOURCE_DIR) / "../shared/data/locomo/locomo-dev.json";
  if (!std::filesystem::exists(file)) {
    GTEST_SKIP() << "LoCoMo is not there: name its file in INFERSCALE_LOCOMO";
  }
  Result<EvalDataset> dataset = LoadLocomo(file);
  ASSERT_TRUE(dataset.ok()) << dataset.status().ToString();
  ASSERT_FALSE(dataset->conversations.empty());
  AccuracyCheck check(Reduced(dataset->conversations.front(), kLocomoQuestions),
                      {{kFacts}, 0, 0, 1});
  const AccuracyVerdict primer = Judge(check, MemoryServiceOptions().recipe);
  EXPECT_TRUE(primer.passed) << primer.ToString();
}

}  // namespace
}  // namespace inferscale
