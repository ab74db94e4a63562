#include "eval/results.h"

#include <filesystem>
#include <fstream>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include "base/random.h"

namespace inferscale {
namespace {

class ResultFileTest : public testing::Test {
 protected:
  void SetUp() override {
    folder_ = std::filesystem::temp_directory_path() / ("inferscale-results-" + NewUuid());
    std::filesystem::create_directory(folder_);
    path_ = folder_ / "results.jsonl";
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }

  static QuestionResult Row(const std::string& question, std::int32_t k, const std::string& mode,
                            double logprob, TokenId top = 1) {
    QuestionResult row;
    const bool kv = mode == "kv";
    row.key = {question, k, mode, kv ? "primer" : "", kv ? "int4" : ""};
    row.category = "4";
    row.logprob = logprob;
    row.top = top;
    row.ttft_ms = kv ? 100 : 1000;
    if (mode == "text") row.first.logprobs = {{1, -0.1f}, {5, -3.0f}};
    return row;
  }

  std::filesystem::path folder_, path_;
  const nlohmann::json header_{{"model", "m"}};
};

TEST_F(ResultFileTest, KeepsResultsAcrossRuns) {
  {
    Result<ResultFile> file = ResultFile::Open(path_, header_);
    ASSERT_TRUE(file.ok()) << file.status().ToString();
    QuestionResult row = Row("q1", 5, "text", -1.25);
    row.answer = "a \"quoted\" answer\n";
    row.f1 = 0.5;
    row.exact = true;
    ASSERT_TRUE(file->Add(row).ok());
    ASSERT_TRUE(file->AddRetrieved("q1", {"f1", "f2"}).ok());
  }
  Result<ResultFile> file = ResultFile::Open(path_, header_);
  ASSERT_TRUE(file.ok()) << file.status().ToString();
  const QuestionResult* row = file->Find({"q1", 5, "text", "", ""});
  ASSERT_NE(row, nullptr);
  EXPECT_EQ(row->logprob, -1.25);
  EXPECT_EQ(row->answer, "a \"quoted\" answer\n");
  EXPECT_EQ(row->f1, 0.5);
  EXPECT_TRUE(row->exact);
  EXPECT_EQ(row->first.top(), 1);
  ASSERT_NE(file->FindRetrieved("q1"), nullptr);
  EXPECT_EQ(*file->FindRetrieved("q1"), (std::vector<std::string>{"f1", "f2"}));
  EXPECT_EQ(file->Find({"q1", 20, "text", "", ""}), nullptr);
}

TEST_F(ResultFileTest, DropsTheLineThatAKilledRunLeftUnfinished) {
  {
    Result<ResultFile> file = ResultFile::Open(path_, header_);
    ASSERT_TRUE(file.ok());
    ASSERT_TRUE(file->Add(Row("q1", 5, "text", -1)).ok());
    ASSERT_TRUE(file->Add(Row("q2", 5, "text", -2)).ok());
  }
  std::filesystem::resize_file(path_, std::filesystem::file_size(path_) - 10);
  Result<ResultFile> file = ResultFile::Open(path_, header_);
  ASSERT_TRUE(file.ok()) << file.status().ToString();
  EXPECT_NE(file->Find({"q1", 5, "text", "", ""}), nullptr);
  EXPECT_EQ(file->Find({"q2", 5, "text", "", ""}), nullptr);
  ASSERT_TRUE(file->Add(Row("q2", 5, "text", -2)).ok());
  EXPECT_TRUE(ResultFile::Open(path_, header_).ok());
}

TEST_F(ResultFileTest, RefusesResultsOfOtherSettings) {
  { ASSERT_TRUE(ResultFile::Open(path_, header_).ok()); }
  const Result<ResultFile> other = ResultFile::Open(path_, {{"model", "n"}});
  ASSERT_FALSE(other.ok());
  EXPECT_EQ(other.status().code(), StatusCode::kFailedPrecondition);
  EXPECT_THAT(other.status().message(), testing::HasSubstr("--out"));
}

TEST_F(ResultFileTest, RefusesBrokenLines) {
  for (const char* line :
       {"nonsense", "[]", "7", "{\"question\": 3}", "{\"question\":\"q\",\"mode\":\"kv\"}",
        "{\"question\":\"q\",\"mode\":\"text\",\"recipe\":\"\",\"codec\":\"\",\"category\":\"1\","
        "\"k\":5,"
        "\"logprob\":-1,\"top\":1,\"kl\":0,\"ttft_ms\":1,\"first\":[[1]]}"}) {
    std::filesystem::remove(path_);
    { ASSERT_TRUE(ResultFile::Open(path_, header_).ok()); }
    std::ofstream(path_, std::ios::app) << line << "\n";
    EXPECT_FALSE(ResultFile::Open(path_, header_).ok()) << line;
  }
}

TEST_F(ResultFileTest, ReadsWhatWasWrittenBeforeBestFactsWereADimension) {
  { ASSERT_TRUE(ResultFile::Open(path_, header_).ok()); }
  std::ofstream(path_, std::ios::app)
      << R"({"question":"q","mode":"kv","recipe":"primer","codec":"int4","category":"1","k":5,)"
      << R"("logprob":-1,"top":1,"kl":0,"ttft_ms":1})"
      << "\n";
  const Result<ResultFile> file = ResultFile::Read(path_);
  ASSERT_TRUE(file.ok()) << file.status().ToString();
  EXPECT_EQ(file->header(), header_);
  EXPECT_NE(file->Find({"q", 5, "kv", "primer", "int4", 0}), nullptr);
  EXPECT_EQ(file->Find({"q", 5, "kv", "primer", "int4", 2}), nullptr);
}

TEST_F(ResultFileTest, ReadingNeedsAHeader) {
  EXPECT_FALSE(ResultFile::Read(path_).ok());
  for (const char* text : {"", "{\"header\": {", "{}\n", "[1]\n"}) {
    std::ofstream(path_) << text;
    EXPECT_FALSE(ResultFile::Read(path_).ok()) << text;
  }
}

TEST_F(ResultFileTest, SummarizesPairedDifferences) {
  Result<ResultFile> file = ResultFile::Open(path_, header_);
  ASSERT_TRUE(file.ok());
  ASSERT_TRUE(file->Add(Row("q1", 5, "text", -1.0, 1)).ok());
  ASSERT_TRUE(file->Add(Row("q2", 5, "text", -2.0, 2)).ok());
  ASSERT_TRUE(file->Add(Row("q1", 5, "kv", -0.5, 1)).ok());
  ASSERT_TRUE(file->Add(Row("q2", 5, "kv", -2.25, 3)).ok());
  ASSERT_TRUE(file->Add(Row("q1", 0, "none", -3.0, 9)).ok());
  // Without its text it can be compared with nothing.
  ASSERT_TRUE(file->Add(Row("q3", 5, "kv", -50.0)).ok());
  const std::vector<Summary> rows = Summarize(*file, {5}, {{"q1", "q2", "q3"}, false, ""}, 1);
  ASSERT_EQ(rows.size(), 3u);
  EXPECT_EQ(rows[0].mode, "none");
  EXPECT_EQ(rows[0].n, 1);
  EXPECT_EQ(rows[0].diff, -2.0);
  EXPECT_EQ(rows[1].mode, "text");
  EXPECT_EQ(rows[1].diff, 0);
  EXPECT_EQ(rows[1].top1, 1);
  EXPECT_EQ(rows[2].mode, "kv");
  EXPECT_EQ(rows[2].recipe, "primer");
  EXPECT_EQ(rows[2].n, 2);
  EXPECT_DOUBLE_EQ(rows[2].logprob, -1.375);
  EXPECT_DOUBLE_EQ(rows[2].diff, 0.125);
  EXPECT_EQ(rows[2].top1, 0.5);
  EXPECT_EQ(rows[2].ttft_ms, 100);
  EXPECT_FALSE(rows[2].generated);
  EXPECT_TRUE(Summarize(*file, {5}, {{"q1"}, true, ""}, 1).empty());
  EXPECT_TRUE(Summarize(*file, {20}, {{"q1"}, false, ""}, 1).empty());
}

}  // namespace
}  // namespace inferscale
