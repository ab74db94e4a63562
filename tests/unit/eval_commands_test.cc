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
  ScoringEngine(int* scores, std::vector<Composition>* prompts, std::int32_t reused,
                std::int32_t lost)
      : scores_(scores), prompts_(prompts), reused_(reused), lost_(lost) {
    capabilities_.scoring = true;
  }

  Result<ScoreReport> Score(Composition composition, TokenIds continuation, bool first) override {
    ++*scores_;
    prompts_->push_back(composition);
    ScoreReport report;
    report.logprobs.assign(continuation.size(),
                           composition.inject && !composition.blocks.empty() ? -1.5f : -1.0f);
    if (first) {
      report.first_logprobs.assign(260, -10.0f);
      report.first_logprobs[composition.ids.size() > 600 ? 7 : 3] = -0.01f;
    }
    report.generation.ttft_ms = 5;
    if (composition.inject) {
      report.generation.injected_blocks =
          static_cast<std::int32_t>(composition.blocks.size()) - lost_;
    }
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
  std::vector<Composition>* prompts_;
  std::int32_t reused_, lost_;
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
    auto engine =
        std::make_shared<ScoringEngine>(&scores_, &prompts_, reused_tokens_, lost_blocks_);
    engine->capabilities_.kv_injection = kv_;
    if (!kv_) engine->capabilities_.kv_refusal = "no rotation to undo";
    MemoryServiceOptions service;
    if (!options.recipe.empty()) service.recipe = options.recipe;
    if (options.codec) service.codec = *options.codec;
    service.max_fact_tokens = 100'000;
    if (context_tokens_ > 0) engine->capabilities_.context_tokens = context_tokens_;
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

  /// Runs `eval locomo` on the small file with --k 4 --modes text,kv --out `out`.
  Status RunLocomo(const std::string& out, const std::vector<std::string>& more) {
    prompts_.clear();
    out_.str("");
    std::vector<std::string> arguments{"eval", "locomo", Locomo(), "--out",
                                       (folder_ / out).string()};
    arguments.insert(arguments.end(), more.begin(), more.end());
    if (std::find(more.begin(), more.end(), "--k") == more.end())
      arguments.insert(arguments.end(), {"--k", "4"});
    if (std::find(more.begin(), more.end(), "--modes") == more.end())
      arguments.insert(arguments.end(), {"--modes", "text,kv"});
    return Run(arguments);
  }

  static std::string Text(const Composition& prompt) {
    return testing::FakeEngine().Detokenize(prompt.ids);
  }
  static std::size_t Count(const std::string& text, const std::string& piece) {
    std::size_t count = 0;
    for (std::size_t at = 0; (at = text.find(piece, at)) != std::string::npos; ++at) ++count;
    return count;
  }

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
         {{{"question", "Ada keeps which hive number"}, {"answer", "3"}, {"category", 4}},
          {{"question", "How many hive number keeps Ada"}, {"answer", 8}, {"category", 2}},
          {{"question", "Whose cat keeps hive number"},
           {"adversarial_answer", "Bo's"},
           {"category", 5}}}}};
    const std::filesystem::path path = folder_ / "locomo.json";
    nlohmann::json samples = nlohmann::json::array({sample});
    for (int i = 1; i < conversations_; ++i) {
      samples.push_back(sample);
      samples.back()["sample_id"] = "s" + std::to_string(i);
    }
    std::ofstream(path) << samples.dump();
    return path.string();
  }

  std::filesystem::path folder_;
  EvalContext context_;
  std::ostringstream out_, progress_;
  std::vector<std::string> recipes_;
  std::vector<Composition> prompts_;  ///< that were scored
  int scores_ = 0;
  std::int32_t reused_tokens_ = 0;
  std::int32_t lost_blocks_ = 0;  ///< of each prompt, computed instead of injected
  int conversations_ = 1;
  std::int32_t context_tokens_ = 0;
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
  std::ifstream results(folder_ / "out" / "results.jsonl");
  int measured = 0;
  for (std::string line; std::getline(results, line);)
    measured += nlohmann::json::parse(line).contains("mode");
  EXPECT_EQ(measured, 3 * (2 + 1 + 2 * 2) + 3 * (1 + 2));
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

TEST_F(EvalCommandsTest, TheBestFactsAreComputedAndTextIsMeasuredOnce) {
  Status status = RunLocomo("out", {"--best", "0,2,4,5"});
  ASSERT_TRUE(status.ok()) << status.ToString();
  // Text, and KV with none, two and four computed; five of four cannot be.
  EXPECT_EQ(scores_, 3 * (1 + 3));
  std::map<int, std::size_t> blocks;
  const nlohmann::json json = Json();
  for (const nlohmann::json& row : json["rows"]) {
    if (row["mode"] == "kv") {
      EXPECT_EQ(row["not_injected"], 0) << row;
      blocks[row["best"]] = 0;
    } else {
      EXPECT_EQ(row["best"], 0);
    }
  }
  EXPECT_EQ(blocks.size(), 3u);
  std::map<std::size_t, int> prompts;  // by facts that are blocks
  for (const Composition& prompt : prompts_) {
    EXPECT_EQ(Count(Text(prompt), ": keeps hive"), 4u);
    if (prompt.inject) ++prompts[prompt.blocks.size() - 1];
  }
  EXPECT_EQ(prompts, (std::map<std::size_t, int>{{4, 3}, {2, 3}, {0, 3}}));
  status = RunLocomo("out", {"--codecs", "int8", "--best", "2"});
  ASSERT_TRUE(status.ok()) << status.ToString();
  EXPECT_EQ(prompts_.size(), 3u);
  for (const Composition& prompt : prompts_) EXPECT_TRUE(prompt.inject);
}

TEST_F(EvalCommandsTest, ASystemMessageStandsInFrontOfEveryPrompt) {
  const Status status = RunLocomo("out", {"--modes", "none,text,kv", "--system", "tokens:900"});
  ASSERT_TRUE(status.ok()) << status.ToString();
  ASSERT_EQ(prompts_.size(), 9u);
  for (const Composition& prompt : prompts_) {
    const std::string text = Text(prompt);
    const std::size_t start = text.find("You are Marlow");
    ASSERT_NE(start, std::string::npos);
    const std::size_t end = text.find("\n\nMemories", start);
    if (end != std::string::npos) {
      EXPECT_EQ(end - start, 900u);
    }
    EXPECT_EQ(text.find("You are a helpful assistant."), std::string::npos);
  }
  // A folder of results has one system message.
  EXPECT_EQ(RunLocomo("out", {}).code(), StatusCode::kFailedPrecondition);
  EXPECT_EQ(RunLocomo("out", {"--system", "tokens:901"}).code(), StatusCode::kFailedPrecondition);
  const std::string file = (folder_ / "system.txt").string();
  std::ofstream(file) << "Speak like a pirate.";
  ASSERT_TRUE(RunLocomo("pirate", {"--system", file}).ok());
  EXPECT_THAT(Text(prompts_.front()), HasSubstr("Speak like a pirate.\n\nMemories"));
}

TEST_F(EvalCommandsTest, ASystemMessageThatIsNoneIsRefused) {
  std::ofstream(folder_ / "empty.txt") << " \n";
  std::ofstream(folder_ / "binary.txt") << "\xff\xfe";
  for (const std::string& argument :
       {std::string("tokens:"), std::string("tokens:-1"), std::string("tokens:5x"),
        std::string("tokens:999999999999"), (folder_ / "missing.txt").string(),
        (folder_ / "empty.txt").string(), (folder_ / "binary.txt").string()}) {
    const Status status = RunLocomo("out", {"--system", argument});
    EXPECT_EQ(status.code(), StatusCode::kInvalidArgument) << argument;
    EXPECT_THAT(status.message(), HasSubstr("--system"));
  }
  EXPECT_EQ(scores_, 0);
}

TEST_F(EvalCommandsTest, WithoutNamesFactsHaveNoSubject) {
  ASSERT_TRUE(RunLocomo("given", {}).ok());
  EXPECT_THAT(Text(prompts_.front()), HasSubstr(") Ada: keeps hive"));
  // In the same data folder: nothing of the other's.
  context_.data_dir = folder_ / "given" / "data";
  const Status status = RunLocomo("none", {"--names", "none"});
  ASSERT_TRUE(status.ok()) << status.ToString();
  for (const Composition& prompt : prompts_) {
    EXPECT_EQ(Count(Text(prompt), ") keeps hive"), 4u);
    EXPECT_EQ(Count(Text(prompt), "Ada:"), 0u);
  }
}

TEST_F(EvalCommandsTest, TheBestOfFactsWithoutNamesAreComputed) {
  const Status status = RunLocomo("out", {"--names", "none", "--k", "6", "--best", "0,4"});
  ASSERT_TRUE(status.ok()) << status.ToString();
  std::map<std::size_t, int> prompts;  // by facts that are blocks
  for (const Composition& prompt : prompts_) {
    if (prompt.inject) ++prompts[prompt.blocks.size() - 1];
  }
  EXPECT_EQ(prompts, (std::map<std::size_t, int>{{2, 3}, {3, 3}}));
  const nlohmann::json json = Json();
  for (const nlohmann::json& row : json["rows"]) EXPECT_EQ(row["not_injected"], 0) << row;
}

TEST_F(EvalCommandsTest, TheProfileStandsInFrontAndIsServedOnce) {
  const Status status = RunLocomo("out", {"--profile", "3"});
  ASSERT_TRUE(status.ok()) << status.ToString();
  for (const Composition& prompt : prompts_) {
    const std::string text = Text(prompt);
    EXPECT_THAT(text, HasSubstr("Memories:\n- (1 May 2023) Ada: keeps hive number 0\n"
                                "- (1 May 2023) Ada: keeps hive number 1\n"
                                "- (1 May 2023) Ada: keeps hive number 2\n"));
    for (int i = 0; i < 8; ++i)
      EXPECT_LE(Count(text, "hive number " + std::to_string(i) + "\n"), 1u);
    EXPECT_LE(Count(text, ": keeps hive"), 7u);
  }
}

TEST_F(EvalCommandsTest, FactsWithoutRoomAreLeftOutOfBothAndCounted) {
  context_tokens_ = 560;
  const Status status = RunLocomo("out", {"--k", "8"});
  ASSERT_TRUE(status.ok()) << status.ToString();
  std::vector<double> left_out;
  const nlohmann::json json = Json();
  for (const nlohmann::json& row : json["rows"]) left_out.push_back(row["left_out"]);
  ASSERT_EQ(left_out.size(), 2u);
  EXPECT_GT(left_out[0], 0);
  EXPECT_LT(left_out[0], 8);
  EXPECT_EQ(left_out[0], left_out[1]);
  EXPECT_THAT(progress_.str(), HasSubstr("no room in the context"));
}

TEST_F(EvalCommandsTest, MissingKvIsMeasuredAgainAndThenCounted) {
  lost_blocks_ = 1;
  const Status status = RunLocomo("out", {});
  ASSERT_TRUE(status.ok()) << status.ToString();
  EXPECT_EQ(scores_, 3 + 2 * 3);
  const nlohmann::json json = Json();
  for (const nlohmann::json& row : json["rows"])
    EXPECT_EQ(row["not_injected"], row["mode"] == "kv" ? 1 : 0);
  EXPECT_THAT(progress_.str(), HasSubstr("their KV was missing"));
}

TEST_F(EvalCommandsTest, ShardsAskWhatOneRunAsksAndMergeIntoItsReport) {
  conversations_ = 3;
  const auto folder = [&](const char* name) { return (folder_ / name).string(); };
  const std::vector<std::string> draw{"--questions", "5", "--seed", "7"};
  ASSERT_TRUE(RunLocomo("whole", draw).ok());
  const nlohmann::json whole = Json();
  std::size_t prompts = 0;
  for (const char* id : {"s", "s1,s2"}) {
    std::vector<std::string> shard = draw;
    shard.insert(shard.end(), {"--conversations", id});
    const Status status = RunLocomo(std::string("shard-") + id, shard);
    ASSERT_TRUE(status.ok()) << status.ToString();
    prompts += prompts_.size();
  }
  EXPECT_EQ(prompts, 10u);
  out_.str("");
  const Status merged = Run({"eval", "merge", folder("shard-s"), folder("shard-s1,s2"), "--out",
                             folder("merged"), "--seed", "7"});
  ASSERT_TRUE(merged.ok()) << merged.ToString();
  EXPECT_EQ(Json()["rows"], whole["rows"]);
  EXPECT_TRUE(std::filesystem::exists(folder_ / "merged" / "report.md"));
  // What is merged is gone on with as one run's.
  scores_ = 0;
  context_.data_dir = folder_ / "whole" / "data";
  ASSERT_TRUE(RunLocomo("merged", draw).ok());
  EXPECT_EQ(scores_, 0);
}

TEST_F(EvalCommandsTest, MergeRefusesOtherSettingsAndFoldersWithoutResults) {
  ASSERT_TRUE(RunLocomo("one", {}).ok());
  ASSERT_TRUE(RunLocomo("two", {"--system", "tokens:5"}).ok());
  const auto merge = [&](const std::string& other) {
    return Run({"eval", "merge", (folder_ / "one").string(), other, "--out",
                (folder_ / "merged").string()});
  };
  const Status status = merge((folder_ / "two").string());
  EXPECT_EQ(status.code(), StatusCode::kFailedPrecondition);
  EXPECT_THAT(status.message(), HasSubstr("two"));
  EXPECT_FALSE(merge(folder_.string()).ok());
  EXPECT_FALSE(std::filesystem::exists(folder_ / "merged" / "results.jsonl"));
}

TEST_F(EvalCommandsTest, UnknownConversationsAreNamed) {
  const Status status = RunLocomo("out", {"--conversations", "s,t"});
  EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
  EXPECT_THAT(status.message(), HasSubstr("\"t\""));
}

TEST_F(EvalCommandsTest, HistoriesWithoutFactsAreServedTurnByTurnOnTheDayOfTheQuestion) {
  const std::filesystem::path file = folder_ / "longmemeval.json";
  std::ofstream(file) << R"json([{"question_id": "q_abs", "question_type": "t",
    "question": "My hive number is", "answer": "3", "question_date": "2031/06/01 (Sun) 10:00",
    "haystack_session_ids": ["s"], "haystack_dates": ["2023/05/21 (Sun) 08:00"],
    "haystack_sessions": [[{"role": "user", "content": "My hive number is 3"},
                           {"role": "assistant", "content": "Your hive number is 3 then"}]]}])json";
  const Status status =
      Run({"eval", "longmemeval", file.string(), "--k", "2", "--out", (folder_ / "out").string()});
  ASSERT_TRUE(status.ok()) << status.ToString();
  ASSERT_EQ(prompts_.size(), 3u);
  std::size_t with_memories = 0;
  for (const Composition& prompt : prompts_) {
    const std::string text = Text(prompt);
    if (Count(text, "Memories:") == 0) continue;
    ++with_memories;
    EXPECT_THAT(text, HasSubstr("- (21 May 2023) My hive number is 3\n"));
    EXPECT_THAT(text, HasSubstr("- (21 May 2023) The assistant: Your hive number is 3 then\n"));
    EXPECT_THAT(text, HasSubstr("Today is 1 June 2031."));
  }
  EXPECT_EQ(with_memories, 2u);
  const nlohmann::json json = Json();
  EXPECT_TRUE(json["rows"].empty());
  EXPECT_EQ(json["adversarial"].size(), 3u);
}

TEST_F(EvalCommandsTest, HistoriesOfOnesOwnAreMeasured) {
  const std::filesystem::path file = folder_ / "own.jsonl";
  std::ofstream(file)
      << R"json({"id": "a", "speakers": ["Ada"], "turns": [], "facts": [{"speaker": "Ada", "text": "keeps hive number 1"}, {"speaker": "Ada", "text": "keeps hive number 2"}], "questions": [{"question": "Ada keeps hive number", "answer": "2"}]})json"
      << "\n";
  const Status status = Run({"eval", "jsonl", file.string(), "--k", "2", "--best", "1", "--out",
                             (folder_ / "out").string()});
  ASSERT_TRUE(status.ok()) << status.ToString();
  const nlohmann::json json = Json();
  ASSERT_EQ(json["rows"].size(), 3u);
  EXPECT_EQ(json["rows"][2]["best"], 1);
  EXPECT_THAT(Text(prompts_.front()), HasSubstr("- Ada: keeps hive number 1\n"));
}

}  // namespace
}  // namespace inferscale
