// Encoding facts, and taking them away again.
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstring>
#include <future>
#include <mutex>
#include <set>
#include <thread>
#include <tuple>
#include <vector>

#include <spdlog/sinks/ringbuffer_sink.h>
#include <spdlog/spdlog.h>

#include "support/engine_fixture.h"

namespace inferscale {
namespace {

using testing::EncodeAll;
using testing::FactPrompt;
using testing::Greedy;
using testing::Key;
using testing::MakeRequest;
using testing::Open;
using testing::SomeFacts;
using testing::Stored;
using testing::TestOptions;
using testing::TinyModel;
using testing::WithSalt;

TEST(LlamaEncoding, ForgetsAScopeEverywhere) {
  const auto engine = Open();
  const FactPrompt prompt = Stored(*engine);
  const Composition composition = WithSalt(prompt.composition, "owner");
  ASSERT_GT(GenerateBlocking(*engine, composition, Greedy(4)).injected_tokens, 0);
  std::vector<KvKey> keys;
  for (const BlockSpan& span : composition.blocks) keys.push_back(span.key);
  ASSERT_TRUE(engine->EraseScope(7, 5).ok());
  for (const KvTier tier : engine->Presence(keys)) EXPECT_EQ(tier, KvTier::kNone);
  const auto report = GenerateBlocking(*engine, composition, Greedy(4));
  EXPECT_EQ(report.injected_tokens, 0);
  EXPECT_EQ(report.reused_tokens, 0) << "a cached sequence survived the erasure";
  // An encoding asked for before the erasure cannot bring a block back.
  for (const EncodeOutcome& outcome : EncodeAll(*engine, prompt.requests)) {
    EXPECT_FALSE(outcome.status.ok());
  }
  for (const KvTier tier : engine->Presence(keys)) EXPECT_EQ(tier, KvTier::kNone);
}

TEST(LlamaEncoding, ErasesSingleFactsAlsoWhileTheyAreEncoded) {
  const auto engine = Open();
  std::vector<EncodeRequest> requests;
  std::vector<KvKey> keys;
  for (int i = 0; i < 60; ++i) {
    keys.push_back(Key(static_cast<std::uint8_t>(i), 3));
    requests.push_back(MakeRequest(keys.back(), engine->Tokenize("\n- Fact " + std::to_string(i)),
                                   engine->Tokenize("Behind " + std::to_string(i / 7))));
  }
  std::mutex mutex;
  std::multiset<KvKey> ended;
  std::promise<void> all;
  engine->Encode(requests, [&](const EncodeOutcome& outcome) {
    const std::scoped_lock lock(mutex);
    ended.insert(outcome.key);
    if (ended.size() == keys.size()) all.set_value();
  });
  ASSERT_TRUE(engine->Erase(keys, 7, 2).ok());
  all.get_future().wait();
  for (const KvTier tier : engine->Presence(keys)) EXPECT_EQ(tier, KvTier::kNone);
  EXPECT_EQ(std::set<KvKey>(ended.begin(), ended.end()).size(), keys.size());
}

TEST(LlamaEncoding, EncodesTheSameBlocksInABatchAndAlone) {
  LlamaEngineOptions options = TestOptions(TinyModel("llama_norm"));
  options.f32_cache = true;
  const auto engine = Open(options);
  const TokenIds context = engine->Tokenize("Memories of Anna:");
  std::vector<EncodeRequest> together;
  std::vector<std::vector<std::uint8_t>> alone, batched;
  const auto payload = [&](const KvKey& key) {
    const auto pin = engine->store().Acquire(key);
    EXPECT_TRUE(pin.ok());
    return pin.ok() ? std::vector<std::uint8_t>((*pin)->payload().begin(), (*pin)->payload().end())
                    : std::vector<std::uint8_t>();
  };
  for (std::size_t i = 0; i < SomeFacts().size(); ++i) {
    const TokenIds tokens = engine->Tokenize("\n- " + SomeFacts()[i]);
    const auto index = static_cast<std::uint8_t>(i);
    EncodeAll(*engine, {MakeRequest(Key(index, 1), tokens, context, KvCodec::kF32)});
    alone.push_back(payload(Key(index, 1)));
    together.push_back(MakeRequest(Key(index, 2), tokens, context, KvCodec::kF32));
  }
  EncodeAll(*engine, together);
  for (std::size_t i = 0; i < alone.size(); ++i) {
    const std::vector<std::uint8_t> other = payload(Key(static_cast<std::uint8_t>(i), 2));
    ASSERT_EQ(other.size(), alone[i].size());
    double largest = 0;
    for (std::size_t byte = 0; byte + 4 <= other.size(); byte += 4) {
      float a, b;
      std::memcpy(&a, other.data() + byte, 4);
      std::memcpy(&b, alone[i].data() + byte, 4);
      largest = std::max(largest, std::fabs(static_cast<double>(a) - b));
    }
    EXPECT_LT(largest, 1e-2) << "fact " << i;
  }
}

/// What is logged while it lives.
class Log {
 public:
  Log() { spdlog::set_default_logger(std::make_shared<spdlog::logger>("test", sink_)); }
  ~Log() { spdlog::set_default_logger(before_); }
  std::int64_t LinesWith(const std::string& text) const {
    const std::vector<std::string> lines = sink_->last_formatted();
    return std::count_if(lines.begin(), lines.end(), [&](const std::string& line) {
      return line.find(text) != std::string::npos;
    });
  }

 private:
  std::shared_ptr<spdlog::logger> before_ = spdlog::default_logger();
  std::shared_ptr<spdlog::sinks::ringbuffer_sink_mt> sink_ =
      std::make_shared<spdlog::sinks::ringbuffer_sink_mt>(64);
};

TEST(LlamaEncoding, AnOpeningThatCannotBeStoredIsComputedInVainOnce) {
  LlamaEngineOptions options = TestOptions(TinyModel("llama_norm"));
  options.store.host_budget_bytes = 64 << 10;  // and no files
  const auto engine = Open(options);
  const Log log;
  const auto opening = [&](std::uint8_t number, std::size_t tokens) {
    EncodeRequest request =
        MakeRequest(Key(number, 5), TokenIds(tokens, engine->Tokenize(" the").back()), {});
    request.urgent = true;
    return request;
  };
  // One does not fit the store, one not the encoding context.
  for (const auto& [number, tokens, refused] :
       {std::tuple(1, 1000, StatusCode::kResourceExhausted),
        std::tuple(2, 100'000, StatusCode::kInvalidArgument)}) {
    const EncodeRequest request =
        opening(static_cast<std::uint8_t>(number), static_cast<std::size_t>(tokens));
    EXPECT_EQ(EncodeAll(*engine, {request}).front().status.code(), refused);
    std::vector<StatusCode> again;
    for (int chat = 0; chat < 3; ++chat) {
      engine->Encode({request}, [&, asking = std::this_thread::get_id()](const auto& outcome) {
        EXPECT_EQ(std::this_thread::get_id(), asking) << "it was queued";
        again.push_back(outcome.status.code());
      });
      ASSERT_EQ(again.size(), static_cast<std::size_t>(chat) + 1);
    }
    EXPECT_EQ(again, std::vector(3, refused));
    EXPECT_EQ(log.LinesWith("served as text"), number);
  }
  EXPECT_TRUE(EncodeAll(*engine, {opening(3, 10)}).front().status.ok()) << "another one is stored";
}

TEST(LlamaEncoding, ChatsThatAskForOneOpeningTogetherComputeItInVainOnce) {
  LlamaEngineOptions options = TestOptions(TinyModel("llama_norm"));
  options.store.host_budget_bytes = 64 << 10;  // and no files
  const auto engine = Open(options);
  const TokenIds tokens(1000, engine->Tokenize(" the").back());
  /// \return milliseconds of sixteen chats
  const auto ask = [&](std::uint8_t first, std::uint8_t step) {
    std::vector<EncodeRequest> requests;
    for (std::uint8_t chat = 0; chat < 16; ++chat) {
      requests.push_back(
          MakeRequest(Key(static_cast<std::uint8_t>(first + chat * step), 6), tokens, {}));
      requests.back().urgent = true;
    }
    const auto start = std::chrono::steady_clock::now();
    for (const EncodeOutcome& outcome : EncodeAll(*engine, requests)) {
      EXPECT_EQ(outcome.status.code(), StatusCode::kResourceExhausted);
    }
    return std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - start)
        .count();
  };
  const double others = ask(1, 1), same = ask(100, 0);
  EXPECT_LT(same, others / 2) << "sixteen, or one";
}

TEST(LlamaEncoding, GivesWayButIsNotStarvedByGenerations) {
  const auto engine = Open();
  std::atomic<bool> stop{false};
  std::thread chats([&] {
    Composition prompt;
    prompt.ids = engine->Tokenize("Tell me a long story.");
    for (int i = 0; !stop; ++i) {
      prompt.salt = std::to_string(i);
      GenerateBlocking(*engine, prompt, Greedy(30));
    }
  });
  std::vector<EncodeRequest> requests;
  for (int i = 0; i < 6; ++i) {
    requests.push_back(MakeRequest(Key(static_cast<std::uint8_t>(i), 4),
                                   engine->Tokenize("\n- A fact."), engine->Tokenize("Behind")));
  }
  for (const EncodeOutcome& outcome : EncodeAll(*engine, requests))
    EXPECT_TRUE(outcome.status.ok());
  stop = true;
  chats.join();
}

}  // namespace
}  // namespace inferscale
