#include "eval/commands.h"

#include <algorithm>
#include <atomic>
#include <filesystem>
#include <fstream>
#include <map>
#include <sstream>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "base/files.h"
#include "base/random.h"
#include "support/fake_embedder.h"
#include "support/fake_engine.h"

namespace inferscale {
namespace {

using ::testing::HasSubstr;

/// The likeliest first token is the same whenever a fact was in the prompt.
class ScoringEngine : public testing::FakeEngine {
 public:
  explicit ScoringEngine(int* scores, std::int32_t reused) : scores_(scores), reused_(reused) {
    capabilities_.scoring = true;
  }

  Result<ScoreReport> Score(Composition composition, TokenIds continuation, bool first) override {
    ++*scores_;
    ScoreReport report;
    report.logprobs.assign(continuation.size(),
                           composition.inject && !composition.blocks.empty() ? -1.5f : -1.0f);
    if (first) {
      report.first_logprobs.assign(260, -10.0f);
      report.first_logprobs[composition.ids.size() > 600 ? 7 : 3] = -0.01f;
    }
    report.generation.ttft_ms = 5;
    return report;
  }

  std::shared_ptr<Generation> Generate(
      Composition composition, Sampling sampling, GenerationCallbacks callbacks,
      std::optional<std::chrono::steady_clock::time_point> deadline) override {
    if (reused_ > 0) {
      auto on_done = std::move(callbacks.on_done);
      callbacks.on_done = [on_done, reused = reused_](GenerationReport report) {
        report.reused_tokens = reused;
        on_done(std::move(report));
      };
    }
    return FakeEngine::Generate(std::move(composition), std::move(sampling), std::move(callbacks),
                                deadline);
  }

 private:
  int* scores_;
  std::int32_t reused_;
};

class EvalCommandsTest : public ::testing::Test {
 protected:
  void SetUp() override {
    folder_ = std::filesystem::temp_directory_path() / ("inferscale-eval-" + NewUuid());
    std::filesystem::create_directory(folder_);
    context_.open_service = [this](const EvalServiceOptions& options) { return Open(options); };
    context_.json = true;
    context_.out = &out_;
    context_.progress = &progress_;
    context_.model = "fake.gguf";
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }

  Result<std::unique_ptr<MemoryService>> Open(const EvalServiceOptions& options) {
    INFERSCALE_RETURN_IF_ERROR(CreatePrivateFolder(options.folder));
    CatalogOptions catalog_options;
    catalog_options.folder = options.folder;
    INFERSCALE_ASSIGN_OR_RETURN(std::unique_ptr<Catalog> catalog,
                                OpenSqliteCatalog(catalog_options));
    auto engine = std::make_shared<ScoringEngine>(&scores_, reused_tokens_);
    engine->capabilities_.kv_injection = kv_;
    if (!kv_) engine->capabilities_.kv_refusal = "no rotation to undo";
    MemoryServiceOptions service;
    if (!options.recipe.empty()) service.recipe = options.recipe;
    if (options.codec) service.codec = *options.codec;
    service.max_fact_tokens = 100'000;
    service.clock = options.clock;
    service.background = options.background;
    recipes_.push_back(service.recipe);
    return MemoryService::Create(std::move(catalog), std::make_shared<testing::FakeEmbedder>(),
                                 engine, nullptr, std::move(service));
  }

  Status Run(std::vector<std::string> arguments) {
    CLI::App app;
    const EvalCommand commands[] = {AddDemoCommand(app), AddBenchCommand(app), AddEvalCommand(app)};
    std::reverse(arguments.begin(), arguments.end());
    app.parse(arguments);
    for (const EvalCommand& command : commands) {
      if (command.app->parsed()) return command.run(context_);
    }
    return Internal("no command");
  }

  nlohmann::json Json() const { return nlohmann::json::parse(out_.str()); }

  std::string Locomo() const {
    nlohmann::json turns = nlohmann::json::array(), facts = nlohmann::json::array();
    for (int i = 0; i < 8; ++i) {
      const std::string id = "D1:" + std::to_string(i + 1);
      turns.push_back({{"speaker", "Ada"},
                       {"dia_id", id},
                       {"text", "I keep hive number " + std::to_string(i)}});
      facts.push_back({"Ada keeps hive number " + std::to_string(i), id});
    }
    const nlohmann::json sample{
        {"sample_id", "s"},
        {"conversation",
         {{"speaker_a", "Ada"},
          {"speaker_b", "Bo"},
          {"session_1_date_time", "1:00 pm on 1 May, 2023"},
          {"session_1", turns}}},
        {"observation", {{"session_1_observation", {{"Ada", facts}}}}},
        {"qa",
         {{{"question", "Which hive?"}, {"answer", "3"}, {"category", 4}},
          {{"question", "How many?"}, {"answer", 8}, {"category", 2}},
          {{"question", "Whose cat?"}, {"adversarial_answer", "Bo's"}, {"category", 5}}}}};
    const std::filesystem::path path = folder_ / "locomo.json";
    std::ofstream(path) << nlohmann::json::array({sample}).dump();
    return path.string();
  }

  std::filesystem::path folder_;
  EvalContext context_;
  std::ostringstream out_, progress_;
  std::vector<std::string> recipes_;
  int scores_ = 0;
  std::int32_t reused_tokens_ = 0;
  bool kv_ = true;
};

TEST_F(EvalCommandsTest, DemoPrintsTheAgreedObjectAndWritesThePage) {
  const std::filesystem::path page = folder_ / "demo.html";
  const Status status = Run({"demo", "--quick", "--page", page.string()});
  ASSERT_TRUE(status.ok()) << status.ToString() << progress_.str();
  const nlohmann::json json = Json();
  ASSERT_EQ(json["ttft"].size(), 6u);
  for (const nlohmann::json& row : json["ttft"]) {
    if (row["k"] == 0) continue;
    EXPECT_EQ(row["mode"] == "kv", row["injected_tokens"] > 0) << row;
    EXPECT_GT(row["computed_tokens"], 0);
  }
  std::map<std::string, double> logprobs;
  for (const nlohmann::json& row : json["accuracy"]) {
    if (row["k"] == 10) logprobs[row["mode"]] = row["logprob"];
    if (row["mode"] == "text") {
      EXPECT_EQ(row["top1"], 1);
    }
  }
  EXPECT_EQ(logprobs, (std::map<std::string, double>{
                          {"none", -1.0}, {"text", -1.0}, {"kv", -1.5}, {"kv-bare", -1.5}}));
  EXPECT_EQ(recipes_, (std::vector<std::string>{"primer", "bare"}));
  std::ifstream file(page);
  std::ostringstream html;
  html << file.rdbuf();
  EXPECT_THAT(html.str(), HasSubstr("</svg>"));
}

TEST_F(EvalCommandsTest, DemoWithoutKvSaysWhyAndMeasuresText) {
  kv_ = false;
  const Status status = Run({"demo", "--quick", "--page", (folder_ / "demo.html").string()});
  ASSERT_TRUE(status.ok()) << status.ToString();
  const nlohmann::json json = Json();
  EXPECT_EQ(json["kv_refused"], "no rotation to undo");
  EXPECT_EQ(json["ttft"].size(), 3u);
  EXPECT_EQ(recipes_, (std::vector<std::string>{"primer"}));
}

TEST_F(EvalCommandsTest, AMeasurementThatReusedTokensIsAnError) {
  reused_tokens_ = 1;
  const Status status = Run({"demo", "--quick", "--page", (folder_ / "demo.html").string()});
  EXPECT_EQ(status.code(), StatusCode::kInternal);
  EXPECT_THAT(status.message(), HasSubstr("reused"));
  EXPECT_TRUE(out_.str().empty());
}

TEST_F(EvalCommandsTest, InterruptEndsTheDemo) {
  const std::atomic<bool> stop = true;
  context_.stop = &stop;
  EXPECT_EQ(Run({"demo", "--quick", "--page", (folder_ / "demo.html").string()}).code(),
            StatusCode::kCancelled);
  EXPECT_FALSE(std::filesystem::exists(folder_ / "demo.html"));
}

TEST_F(EvalCommandsTest, LocomoMeasuresEveryModeOnceAndGoesOnWhereItStopped) {
  const std::vector<std::string> arguments = {"eval",
                                              "locomo",
                                              Locomo(),
                                              "--k",
                                              "2,4",
                                              "--recipes",
                                              "primer,bare",
                                              "--codecs",
                                              "int4",
                                              "--out",
                                              (folder_ / "out").string()};
  const Status status = Run(arguments);
  ASSERT_TRUE(status.ok()) << status.ToString();
  // Three questions × (two with text, one without facts, two a recipe).
  EXPECT_EQ(scores_, 3 * (2 + 1 + 2 * 2));
  const nlohmann::json json = Json();
  ASSERT_EQ(json["rows"].size(), 8u);
  for (const nlohmann::json& row : json["rows"]) {
    EXPECT_EQ(row["n"], 2) << row;  // without category 5
    EXPECT_EQ(row["diff"], row["mode"] == "kv" ? -0.5 : 0.0) << row;
    EXPECT_LE(row["diff_low"], row["diff"]);
    EXPECT_GE(row["diff_high"], row["diff"]);
    for (const char* name :
         {"k", "mode", "recipe", "codec", "logprob", "f1", "kl", "top1", "ttft_ms"}) {
      EXPECT_TRUE(row.contains(name)) << name;
    }
  }
  EXPECT_EQ(json["adversarial"][0]["n"], 1);
  EXPECT_TRUE(std::filesystem::exists(folder_ / "out" / "report.md"));

  recipes_.clear();
  out_.str("");
  ASSERT_TRUE(Run(arguments).ok());
  EXPECT_EQ(scores_, 3 * (2 + 1 + 2 * 2));
  EXPECT_TRUE(recipes_.empty());
  EXPECT_EQ(Json()["rows"], json["rows"]);

  out_.str("");
  std::vector<std::string> wider = arguments;
  wider[4] = "2,4,6";
  ASSERT_TRUE(Run(wider).ok());
  EXPECT_EQ(scores_, 3 * (2 + 1 + 2 * 2) + 3 * (1 + 2));
}

TEST_F(EvalCommandsTest, LocomoDrawsTheSameQuestionsForASeed) {
  const std::string file = Locomo();
  const auto drawn = [&](const char* seed, const char* out) {
    out_.str("");
    const Status status = Run({"eval", "locomo", file, "--k", "2", "--modes", "text", "--questions",
                               "2", "--seed", seed, "--out", (folder_ / out).string()});
    EXPECT_TRUE(status.ok()) << status.ToString();
    std::ifstream results(folder_ / out / "results.jsonl");
    std::vector<std::string> questions;
    for (std::string line; std::getline(results, line);) {
      const nlohmann::json json = nlohmann::json::parse(line);
      if (json.contains("mode")) questions.push_back(json["question"]);
    }
    return questions;
  };
  const std::vector<std::string> one = drawn("1", "a");
  EXPECT_EQ(one.size(), 2u);
  EXPECT_EQ(one, drawn("1", "b"));
}

}  // namespace
}  // namespace inferscale
