#include <algorithm>
#include <map>
#include <random>
#include <set>

#include <gmock/gmock.h>

#include "support/service_fixture.h"

namespace inferscale::testing {
namespace {

class ServiceReuse : public ServiceTest {
 protected:
  std::map<std::string, std::string> Blocks() {
    std::map<std::string, std::string> blocks;
    for (const auto& path : BlockFiles(data())) blocks[path.stem()] = ReadBytes(path);
    return blocks;
  }
  std::vector<Fact> AddSome(int count) {
    const char* things[] = {"kettle",  "piano", "cellar", "garden",
                            "bicycle", "clock", "mirror", "lamp"};
    const char* places[] = {"hall", "kitchen", "attic", "yard"};
    std::vector<Fact> facts;
    for (int i = 0; i < count; ++i) {
      facts.push_back(Add(User("ada"), std::string("the ") + things[i % 8] + " stands in the " +
                                           places[i / 8 % 4]));
    }
    return facts;
  }
};

TEST_F(ServiceReuse, FiveHundredCombinationsOfFewFactsNeedNoMoreStore) {
  Open();
  const std::vector<Fact> facts = AddSome(12);
  ASSERT_NO_FATAL_FAILURE(WaitIdle());
  const std::vector<ChatMessage> messages = {{"user", "where is it", ""}};
  std::mt19937 random(3);
  std::vector<Fact> order = facts;
  std::map<std::string, std::string> blocks;
  std::set<std::vector<std::string>> combinations;
  Sampling sampling;
  sampling.max_tokens = 1;
  for (int i = 0; combinations.size() < 500 && i < 2000; ++i) {
    std::shuffle(order.begin(), order.end(), random);
    const std::size_t count = 1 + random() % 6;
    std::vector<std::string> ids;
    for (std::size_t f = 0; f < count; ++f) ids.push_back(order[f].id);
    if (!combinations.insert(ids).second) continue;
    const Result<Composition> composition =
        service_->ComposeFor(User("ada"), messages, std::span(order).first(count), MemoryMode::kKv);
    ASSERT_TRUE(composition.ok()) << composition.status().ToString();
    ASSERT_EQ(composition->blocks.size(), count + 1);
    const GenerationReport report = GenerateBlocking(*engine_, *composition, sampling);
    ASSERT_TRUE(report.status.ok()) << report.status.ToString();
    ASSERT_TRUE(report.fallbacks.empty()) << report.fallbacks.front().reason;
    ASSERT_GE(report.injected_tokens + report.reused_tokens, composition->blocks.back().end);
    if (blocks.empty()) blocks = Blocks();
  }
  EXPECT_EQ(combinations.size(), 500u);
  EXPECT_EQ(blocks.size(), 13u);  // one of each fact, and the exact prefix
  EXPECT_EQ(Blocks(), blocks);
  EXPECT_EQ(engine_->encodings(), 12u);
  EXPECT_EQ(engine_->StoreStats().pinned_blocks, 0);
}

TEST_F(ServiceReuse, AHundredUsesLeaveBlocksAndAnswersAsTheyWere) {
  for (const std::int64_t host_budget : {std::int64_t{0}, std::int64_t{64} << 20}) {
    host_budget_bytes_ = host_budget;
    Open();
    if (host_budget == 0) AddSome(5);
    ASSERT_NO_FATAL_FAILURE(WaitIdle());
    const auto ask = [&] {
      ChatRequest request = Ask(User("ada"), "where is the piano");
      request.use_ledger = false;
      return Chat(request);
    };
    const ChatReport first = ask();
    const auto blocks = Blocks();
    for (int i = 0; i < 50; ++i) {
      Chat(User("bob"), "another prompt takes the engine's place");
      const ChatReport again = ask();
      ASSERT_EQ(again.generation.text, first.generation.text) << i;
      ASSERT_EQ(again.generation.injected_tokens, first.generation.injected_tokens) << i;
    }
    EXPECT_EQ(Blocks(), blocks);
  }
}

}  // namespace
}  // namespace inferscale::testing
