#include "embed/llama_embedder.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <thread>

namespace inferscale {
namespace {

std::filesystem::path CacheFolder() {
  if (const char* folder = std::getenv("INFERSCALE_CACHE_DIR")) return folder;
  const char* home = std::getenv("HOME");
  return std::filesystem::path(home != nullptr ? home : ".") / ".cache/inferscale";
}

double Dot(const std::vector<float>& a, const std::vector<float>& b) {
  double sum = 0;
  for (std::size_t i = 0; i < a.size(); ++i) sum += static_cast<double>(a[i]) * b[i];
  return sum;
}

class LlamaEmbedderTest : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    EmbedderSpec spec;
    spec.location = (CacheFolder() / "models/all-MiniLM-L6-v2-f16.gguf").string();
    if (!std::filesystem::exists(spec.location)) return;
    auto embedder = MakeEmbedder(spec);
    ASSERT_TRUE(embedder.ok()) << embedder.status().ToString();
    embedder_ = embedder->release();
  }
  static void TearDownTestSuite() {
    delete embedder_;
    embedder_ = nullptr;
  }
  void SetUp() override {
    if (embedder_ == nullptr) GTEST_SKIP() << "the MiniLM model is not there: run make build";
  }
  static std::vector<float> One(const std::string& text) {
    auto vectors = embedder_->Embed({&text, 1});
    EXPECT_TRUE(vectors.ok()) << vectors.status().ToString();
    return (*vectors)[0];
  }

  static Embedder* embedder_;
};

Embedder* LlamaEmbedderTest::embedder_ = nullptr;

TEST_F(LlamaEmbedderTest, PutsTextsOfOneMeaningTogether) {
  EXPECT_EQ(embedder_->dimensions(), 384);
  EXPECT_EQ(embedder_->id().size(), 64u);
  const std::vector<float> question = One("What pet does Tom have?");
  const double right = Dot(question, One("Tom adopted a three-legged cat named Biscuit."));
  const double wrong = Dot(question, One("The train to Geneva leaves at seven."));
  EXPECT_GT(right, 0.4);
  EXPECT_LT(wrong, 0.2);
  EXPECT_NEAR(Dot(question, question), 1.0, 1e-5);
}

TEST_F(LlamaEmbedderTest, GivesABatchWhatItGivesOneByOne) {
  std::vector<std::string> texts;
  for (int i = 0; i < 50; ++i) {
    std::string text = "Fact number " + std::to_string(i);
    for (int word = 0; word < i * 7 % 40; ++word) text += " and more";
    texts.push_back(text);
  }
  texts[7] = "";
  texts[9] = " \n";
  const auto batch = embedder_->Embed(texts);
  ASSERT_TRUE(batch.ok()) << batch.status().ToString();
  for (std::size_t i = 0; i < texts.size(); ++i) {
    const std::vector<float> one = One(texts[i]);
    ASSERT_EQ((*batch)[i].size(), one.size());
    for (std::size_t d = 0; d < one.size(); ++d) ASSERT_NEAR((*batch)[i][d], one[d], 1e-3) << i;
  }
  EXPECT_EQ((*batch)[7], std::vector<float>(384, 0.0f));
  EXPECT_EQ((*batch)[9], std::vector<float>(384, 0.0f));
}

TEST_F(LlamaEmbedderTest, TakesEveryText) {
  std::string chinese;
  while (chinese.size() < std::size_t{1} << 20) chinese += "中文 ";
  for (const std::string& text :
       {chinese, std::string(1 << 20, 'a'), std::string("a\0b", 3), std::string("\xff\xfe\x80"),
        std::string("🙂🙂"), std::string("[CLS] [SEP] [PAD]"), std::string("مرحبا")}) {
    const std::vector<float> vector = One(text);
    EXPECT_NEAR(Dot(vector, vector), 1.0, 1e-4) << text.substr(0, 20);
  }
}

TEST_F(LlamaEmbedderTest, TakesTurnsBetweenThreads) {
  const std::vector<float> expected = One("tea with milk");
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([&] {
      for (int round = 0; round < 10; ++round) EXPECT_EQ(One("tea with milk"), expected);
    });
  }
  for (std::thread& thread : threads) thread.join();
}

}  // namespace
}  // namespace inferscale
