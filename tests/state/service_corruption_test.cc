#include <functional>

#include <gmock/gmock.h>

#include "support/service_fixture.h"

namespace inferscale::testing {
namespace {

constexpr const char* kQuestion = "the kettle the piano the cellar the roof the garden";

class ServiceCorruption : public ServiceTest {
 protected:
  void SetUp() override {
    host_budget_bytes_ = 0;  // every use reads the file
    Open();
    for (const char* text : {"the kettle is made of copper", "the piano stands in the hall",
                             "the cellar is full of apples", "the roof was repaired in May",
                             "the garden has three plum trees"}) {
      facts_.push_back(Add(User("ada"), text));
    }
    Add(User("bob"), "the bicycle is painted yellow");
    WaitIdle();
  }

  /// Answers without anything of an earlier answer in the engine's only sequence.
  ChatReport Answer(MemoryMode mode = MemoryMode::kKv) {
    Chat(User("bob"), "which colour has the bicycle");
    ChatRequest request = Ask(User("ada"), kQuestion);
    request.mode = mode;
    request.use_ledger = false;
    request.sampling.max_tokens = 16;
    return Chat(request);
  }

  static std::int32_t Fallbacks(const ChatReport& report) {
    std::int32_t count = 0;
    for (const Fallback& fallback : report.generation.fallbacks) count += fallback.count;
    return count;
  }

  /// Damages the block of one fact, asks, and checks the answer, the file and the healing.
  void Damage(std::size_t fact, const std::string& reason,
              const std::function<void(const std::filesystem::path&)>& how) {
    SCOPED_TRACE(reason);
    const ChatReport whole = Answer();
    EXPECT_EQ(Fallbacks(whole), 0);
    ASSERT_TRUE(PromptHas(facts_[fact].text));
    const TokenIds prompt = engine_->LastPrompt().ids;
    const std::string name = BlockName(facts_[fact].id);
    const std::filesystem::path path = BlockPath(name);
    ASSERT_FALSE(path.empty());
    const auto bytes = std::filesystem::file_size(path);
    how(path);

    const ChatReport damaged = Answer();
    EXPECT_EQ(engine_->LastPrompt().ids.size(), prompt.size());
    EXPECT_LT(damaged.generation.injected_tokens, whole.generation.injected_tokens);
    EXPECT_GE(Fallbacks(damaged), 1);
    EXPECT_GE(FallbackCount(damaged.generation, reason), 1);
    ASSERT_NO_FATAL_FAILURE(WaitIdle());
    // Encoded again without being asked for once more.
    ASSERT_FALSE(BlockPath(name).empty()) << "the fact has no block again";
    // Its last bits depend on what it was encoded beside.
    EXPECT_EQ(std::filesystem::file_size(BlockPath(name)), bytes);
    const ChatReport healed = Answer();
    EXPECT_EQ(Fallbacks(healed), 0);
    EXPECT_EQ(healed.generation.injected_tokens, whole.generation.injected_tokens);
    EXPECT_EQ(engine_->LastPrompt().ids, prompt);
  }

  std::vector<Fact> facts_;
};

TEST_F(ServiceCorruption, ATruncatedBlockIsComputedAndMadeAgain) {
  for (const double part : {0.0, 0.01, 0.5, 0.999}) {
    Damage(1, "corrupt", [&](const auto& path) {
      std::filesystem::resize_file(
          path, static_cast<std::uintmax_t>(part * static_cast<double>(file_size(path))));
    });
  }
}

TEST_F(ServiceCorruption, AFlippedBitIsComputedAndMadeAgain) {
  for (const double place : {0.0, 0.02, 0.3, 0.7, 0.999}) {
    Damage(2, "corrupt", [&](const auto& path) {
      std::string bytes = ReadBytes(path);
      bytes[static_cast<std::size_t>(place * static_cast<double>(bytes.size()))] ^= 4;
      WriteBytes(path, bytes);
    });
  }
}

TEST_F(ServiceCorruption, ADeletedBlockIsComputedAndMadeAgain) {
  Damage(3, "evicted", [](const auto& path) { std::filesystem::remove(path); });
}

TEST_F(ServiceCorruption, AnotherFactsBlockIsNotUsed) {
  const std::string other = ReadBytes(BlockPath(BlockName(facts_[0].id)));
  Damage(4, "corrupt", [&](const auto& path) { WriteBytes(path, other); });
}

TEST_F(ServiceCorruption, AFolderOrALinkInTheBlocksPlaceIsNotUsed) {
  const std::filesystem::path other = BlockPath(BlockName(facts_[0].id));
  Damage(1, "corrupt", [&](const auto& path) {
    std::filesystem::remove(path);
    std::filesystem::create_symlink(other, path);
  });
}

TEST_F(ServiceCorruption, ABlockOfAnotherModelIsNotUsed) {
  model_ = "llama_linear";
  Open();
  WaitIdle();
  const std::string foreign = ReadBytes(BlockPath(BlockName(facts_[2].id)));
  model_ = "llama_norm";
  Open();
  WaitIdle();
  Damage(2, "corrupt", [&](const auto& path) { WriteBytes(path, foreign); });
}

TEST_F(ServiceCorruption, AStoreThatCannotBeWrittenIsSaidNotWaitedForAndAnswersGoOn) {
  const std::filesystem::path of_model = BlockFiles(data()).front().parent_path().parent_path();
  Close();
  std::filesystem::remove_all(of_model);
  WriteBytes(of_model, "a file in the folder's place");
  Open();
  Chat(User("ada"), kQuestion);  // finds the blocks gone
  const auto start = std::chrono::steady_clock::now();
  const Status idle = service_->WaitIdle([&](const PendingWork&) {
    return std::chrono::steady_clock::now() - start < std::chrono::seconds(30);
  });
  EXPECT_FALSE(idle.ok());
  EXPECT_NE(idle.code(), StatusCode::kCancelled) << "waited without a word: " << idle.ToString();
  Chat(User("ada"), kQuestion);
  EXPECT_TRUE(PromptHas(facts_[0].text));

  Close();
  std::filesystem::remove(of_model);
  Open();
  ASSERT_NO_FATAL_FAILURE(WaitIdle());
  Chat(User("ada"), kQuestion);
  ASSERT_NO_FATAL_FAILURE(WaitIdle());
  EXPECT_FALSE(BlockPath(BlockName(facts_[0].id)).empty());
}

TEST_F(ServiceCorruption, WithEveryBlockCorruptTheAnswerIsThatOfTheText) {
  const ChatReport text = Answer(MemoryMode::kText);
  const TokenIds prompt = engine_->LastPrompt().ids;
  const ChatReport whole = Answer();
  EXPECT_EQ(engine_->LastPrompt().ids, prompt);
  EXPECT_GT(whole.generation.injected_tokens, 0);
  for (const auto& path : BlockFiles(data())) std::filesystem::resize_file(path, 100);
  // The service believes that all blocks are there: Answer() would ask another owner first.
  Chat(User("carol"), "hello");
  ChatRequest request = Ask(User("ada"), kQuestion);
  request.use_ledger = false;
  request.sampling.max_tokens = 16;
  const ChatReport corrupt = Chat(request);
  EXPECT_EQ(corrupt.generation.injected_tokens, 0);
  EXPECT_GE(FallbackCount(corrupt.generation, "corrupt"), 1);
  EXPECT_EQ(engine_->LastPrompt().ids, prompt);
  EXPECT_EQ(corrupt.generation.text, text.generation.text);
}

}  // namespace
}  // namespace inferscale::testing
