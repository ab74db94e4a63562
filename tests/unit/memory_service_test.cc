#include "inferscale/memory_service.h"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <filesystem>
#include <functional>
#include <mutex>
#include <thread>

#include "base/random.h"
#include "encode/recipe.h"
#include "memory/extractor.h"
#include "support/fake_embedder.h"
#include "support/fake_engine.h"

namespace inferscale {
namespace {

using testing::FakeEmbedder;
using testing::FakeEngine;

class MemoryServiceTest : public ::testing::Test {
 protected:
  void SetUp() override {
    folder_ = std::filesystem::temp_directory_path() / ("inferscale-test-" + NewUuid());
  }
  void TearDown() override {
    service_.reset();
    std::filesystem::remove_all(folder_);
  }

  void Open(bool background = false) {
    service_.reset();
    CatalogOptions catalog_options;
    catalog_options.folder = folder_;
    Result<std::unique_ptr<Catalog>> catalog = OpenSqliteCatalog(catalog_options);
    ASSERT_TRUE(catalog.ok()) << catalog.status().ToString();
    MemoryServiceOptions options;
    options.background = background;
    options.recipe = recipe_;
    options.clock = [this] { return now_; };
    Result<std::unique_ptr<MemoryService>> service =
        MemoryService::Create(std::move(*catalog), embedder_, engine_, nullptr, options);
    ASSERT_TRUE(service.ok()) << service.status().ToString();
    service_ = std::move(*service);
  }

  static Scope User(const std::string& user) {
    Scope scope;
    scope.user = user;
    return scope;
  }

  Fact AddOne(const std::string& user, const std::string& text, const std::string& name = "Ada") {
    AddRequest request;
    request.scope = User(user);
    request.turns = {{0, "user", name, text, 0}};
    const Result<AddOutcome> outcome = service_->Add(request);
    EXPECT_TRUE(outcome.ok()) << outcome.status().ToString();
    EXPECT_EQ(outcome->facts.size(), 1u);
    return outcome->facts.front();
  }

  ChatRequest Ask(const std::string& user, const std::string& question) {
    ChatRequest request;
    request.scope = User(user);
    request.messages = {{"user", question, ""}};
    return request;
  }

  std::string Prompt() { return engine_->Detokenize(engine_->compositions.back().ids); }

  static std::int32_t CountOf(const GenerationReport& report, const std::string& reason) {
    std::int32_t count = 0;
    for (const Fallback& fallback : report.fallbacks)
      count += fallback.reason == reason ? fallback.count : 0;
    return count;
  }

  std::filesystem::path folder_;
  std::string recipe_ = "primer";
  TimeMs now_ = 1'760'000'000'000;
  std::shared_ptr<FakeEmbedder> embedder_ = std::make_shared<FakeEmbedder>();
  std::shared_ptr<FakeEngine> engine_ = std::make_shared<FakeEngine>();
  std::unique_ptr<MemoryService> service_;
};

TEST_F(MemoryServiceTest, AFactIsServedAsTextAtOnceAndAsKvWhenItsBlockIsReady) {
  Open();
  AddOne("ada", "the cat is called Pixel");
  Result<ChatReport> report = service_->ChatBlocking(Ask("ada", "what is the cat called"));
  ASSERT_TRUE(report.ok()) << report.status().ToString();
  EXPECT_NE(Prompt().find("the cat is called Pixel"), std::string::npos);
  const std::int32_t before = report->generation.injected_tokens;

  ASSERT_TRUE(service_->WaitIdle().ok());
  report = service_->ChatBlocking(Ask("ada", "what is the cat called"));
  ASSERT_TRUE(report.ok());
  EXPECT_GT(report->generation.injected_tokens, before + 20);
  ASSERT_EQ(report->memories.size(), 1u);
  EXPECT_EQ(report->memories[0].fact.text, "the cat is called Pixel");
}

TEST_F(MemoryServiceTest, NobodyElseSeesAFact) {
  Open();
  AddOne("ada", "the cat is called Pixel");
  const Result<ChatReport> report = service_->ChatBlocking(Ask("bob", "what is the cat called"));
  ASSERT_TRUE(report.ok());
  EXPECT_EQ(Prompt().find("Pixel"), std::string::npos);
  EXPECT_TRUE(service_->Search(User("bob"), "cat", 10)->empty());
}

TEST_F(MemoryServiceTest, SameFactOfTwoOwnersHasTwoKeys) {
  Open();
  AddOne("ada", "the cat is called Pixel");
  AddOne("bob", "the cat is called Pixel");
  ASSERT_TRUE(service_->WaitIdle().ok());
  ASSERT_EQ(engine_->encoded.size(), 2u);
  EXPECT_EQ(engine_->encoded[0].info.tokens, engine_->encoded[1].info.tokens);
  EXPECT_NE(engine_->encoded[0].info.key, engine_->encoded[1].info.key);
}

TEST_F(MemoryServiceTest, NoOwnerMeansNoMemory) {
  Open();
  AddOne("ada", "the cat is called Pixel");
  ChatRequest request = Ask("", "what is the cat called");
  const Result<ChatReport> report = service_->ChatBlocking(request);
  ASSERT_TRUE(report.ok());
  EXPECT_EQ(CountOf(report->generation, "no_owner"), 1);
  EXPECT_EQ(Prompt().find("Pixel"), std::string::npos);
  AddRequest add;
  add.turns = {{0, "user", "", "text", 0}};
  EXPECT_EQ(service_->Add(add).status().code(), StatusCode::kInvalidArgument);
  EXPECT_FALSE(service_->DeleteAll(Scope{}).ok());
  EXPECT_FALSE(service_->ForgetAll(Scope{}).ok());
}

TEST_F(MemoryServiceTest, UpdateAndDeleteTakeTheBlockWithTheText) {
  Open();
  const Fact fact = AddOne("ada", "the cat is called Pixel");
  ASSERT_TRUE(service_->WaitIdle().ok());
  const KvKey first = engine_->encoded.back().info.key;
  FactUpdate update;
  update.text = "the cat is called Byte";
  ASSERT_TRUE(service_->Update(fact.id, update).ok());
  EXPECT_TRUE(engine_->erased.contains(first));
  ASSERT_TRUE(service_->ChatBlocking(Ask("ada", "what is the cat called")).ok());
  EXPECT_EQ(Prompt().find("Pixel"), std::string::npos);
  EXPECT_NE(Prompt().find("Byte"), std::string::npos);

  ASSERT_TRUE(service_->WaitIdle().ok());
  const KvKey second = engine_->encoded.back().info.key;
  ASSERT_TRUE(service_->Delete(fact.id).ok());
  EXPECT_TRUE(engine_->erased.contains(second));
  ASSERT_TRUE(service_->ChatBlocking(Ask("ada", "what is the cat called")).ok());
  EXPECT_EQ(Prompt().find("Byte"), std::string::npos);
}

TEST_F(MemoryServiceTest, DeleteAllTakesOneOwnersFactsAndNobodyElses) {
  Open();
  for (int i = 0; i < 30; ++i) AddOne("ada", "fact number " + std::to_string(i));
  AddOne("bob", "fact of bob");
  const Result<std::int64_t> deleted = service_->DeleteAll(User("ada"));
  ASSERT_TRUE(deleted.ok()) << deleted.status().ToString();
  EXPECT_EQ(*deleted, 30);
  EXPECT_EQ(*service_->Count(User("ada")), 0);
  EXPECT_EQ(*service_->Count(User("bob")), 1);
  EXPECT_EQ(engine_->erased_scopes.size(), 1u);
}

TEST_F(MemoryServiceTest, AnErasureThatAKillInterruptedIsDoneAtTheNextStart) {
  Open();
  const Fact fact = AddOne("ada", "the cat is called Pixel");
  ASSERT_TRUE(service_->WaitIdle().ok());
  const KvKey key = engine_->encoded.back().info.key;
  // As if the process had died after the catalog's transaction.
  ASSERT_TRUE(service_->catalog().DeleteFact(fact.id).ok());
  Open();
  ASSERT_TRUE(service_->WaitIdle().ok());
  EXPECT_TRUE(engine_->erased.contains(key));
  EXPECT_TRUE(service_->catalog().PendingErasures()->empty());
}

TEST_F(MemoryServiceTest, AnEvictedBlockIsComputedAndEncodedAgain) {
  Open();
  AddOne("ada", "the cat is called Pixel");
  ASSERT_TRUE(service_->WaitIdle().ok());
  const KvKey key = engine_->encoded.back().info.key;
  engine_->Evict(key);
  const std::size_t encoded = engine_->encoded.size();
  ASSERT_TRUE(service_->ChatBlocking(Ask("ada", "what is the cat called")).ok());
  EXPECT_NE(Prompt().find("Pixel"), std::string::npos);
  ASSERT_TRUE(service_->WaitIdle().ok());
  EXPECT_GT(engine_->encoded.size(), encoded);
  EXPECT_EQ(engine_->Presence(std::span(&key, 1))[0], KvTier::kHost);
}

TEST_F(MemoryServiceTest, WhatCannotBeEncodedIsTriedOnceAndServedAsText) {
  Open();
  engine_->encode_status = InvalidArgument("too long");
  AddOne("ada", "the cat is called Pixel");
  ASSERT_TRUE(service_->WaitIdle().ok());
  EXPECT_EQ(engine_->encoded.size(), 1u);
}

/// An engine that can store KV, and knows of which model, only after it has been told so.
class LateEngine final : public FakeEngine {
 public:
  const EngineCapabilities& capabilities() const override {
    return able_ ? capabilities_ : unable_;
  }
  const Fingerprint& fingerprint() const override { return able_ ? model_ : unknown_; }
  void OnChange(std::function<void()> changed) override {
    const std::scoped_lock lock(mutex_);
    changed_ = std::move(changed);
  }
  void BecomeAble() {
    able_ = true;
    const std::scoped_lock lock(mutex_);
    if (changed_) changed_();
  }

 private:
  const EngineCapabilities unable_ = [this] {
    EngineCapabilities unable = capabilities_;
    unable.kv_injection = false;
    unable.kv_refusal = "not yet";
    return unable;
  }();
  const Fingerprint unknown_{7}, model_{8};
  std::atomic<bool> able_{false};
  std::mutex mutex_;
  std::function<void()> changed_;
};

TEST_F(MemoryServiceTest, AnEngineThatCanStoreKvLaterIsGivenWhatWasAddedBefore) {
  const auto late = std::make_shared<LateEngine>();
  late->capabilities_.codec = KvCodec::kInt8;
  engine_ = late;
  Open(/*background=*/true);
  AddOne("ada", "the cat is called Pixel");
  Result<ChatReport> report = service_->ChatBlocking(Ask("ada", "what is the cat called"));
  ASSERT_TRUE(report.ok());
  EXPECT_EQ(report->generation.injected_tokens, 0);
  EXPECT_EQ(CountOf(report->generation, "model_unsupported"), 1);
  EXPECT_EQ(service_->Pending()->encodings, 0);
  const std::string encoding_id = service_->encoding_id();
  EXPECT_EQ(*service_->catalog().GetMeta(kLastEncodingMeta), "");
  late->BecomeAble();
  for (int i = 0; i < 1000 && service_->Pending()->encodings > 0; ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  ASSERT_EQ(service_->Pending()->encodings, 0);
  EXPECT_NE(service_->encoding_id(), encoding_id);
  // Whoever looks at the folder later looks for the KV that was stored, not for that of the start.
  EXPECT_EQ(*service_->catalog().GetMeta(kLastEncodingMeta), service_->encoding_id());
  report = service_->ChatBlocking(Ask("ada", "what is the cat called"));
  ASSERT_TRUE(report.ok());
  EXPECT_GT(report->generation.injected_tokens, 20);
  EXPECT_EQ(CountOf(report->generation, "model_unsupported"), 0);
  EXPECT_EQ(late->encoded.front().info.codec, KvCodec::kInt8);
  service_.reset();
  late->BecomeAble();  // nobody is told any more
}

TEST_F(MemoryServiceTest, AnEngineThatIsAgainWhatItWasIsLookedForAsThat) {
  Open();
  for (const KvCodec codec : {KvCodec::kInt8, KvCodec::kF16, KvCodec::kInt8}) {
    engine_->capabilities_.codec = codec;
    ASSERT_TRUE(service_->Pending().ok());
    EXPECT_EQ(*service_->catalog().GetMeta(kLastEncodingMeta), service_->encoding_id());
  }
}

TEST_F(MemoryServiceTest, ARenamedPersonIsEncodedAndServedUnderTheNewName) {
  Open();
  NewFact fact;
  fact.fact.text = "has a cat";
  ASSERT_TRUE(service_->AddFacts(User("ada"), {}, {fact}).ok());
  ASSERT_TRUE(service_->WaitIdle().ok());
  const KvKey before = engine_->encoded.back().info.key;
  ASSERT_TRUE(service_->SetDisplayName(User("ada"), "Ada").ok());
  EXPECT_TRUE(engine_->erased.contains(before));
  ASSERT_TRUE(service_->WaitIdle().ok());
  EXPECT_NE(engine_->encoded.back().info.key, before);
  ASSERT_TRUE(service_->ChatBlocking(Ask("ada", "has a cat")).ok());
  EXPECT_NE(Prompt().find("- Ada: has a cat"), std::string::npos) << Prompt();
}

TEST_F(MemoryServiceTest, TenTurnsKeepEarlierIdsAndRepeatNoFact) {
  Open();
  for (const char* text :
       {"the cat is called Pixel", "the dog is called Rex", "the bird is called Kiwi"}) {
    AddOne("ada", text);
  }
  ASSERT_TRUE(service_->WaitIdle().ok());
  engine_->answer =
      "an answer that is long enough for going on to be cheaper than starting again from the front";
  std::vector<ChatMessage> messages;
  TokenIds previous;
  for (int turn = 0; turn < 10; ++turn) {
    messages.push_back(
        {"user", turn % 2 == 0 ? "what is the cat called" : "what is the dog called", ""});
    ChatRequest request = Ask("ada", "");
    request.messages = messages;
    request.top_k = 1 + turn % 3;
    now_ += 24LL * 3600 * 1000;  // the clock moves: what was sent does not change
    const Result<ChatReport> report = service_->ChatBlocking(request);
    ASSERT_TRUE(report.ok()) << report.status().ToString();
    const TokenIds& ids = engine_->compositions.back().ids;
    if (turn > 0) {
      ASSERT_GT(ids.size(), previous.size());
      EXPECT_TRUE(std::equal(previous.begin(), previous.end(), ids.begin())) << "turn " << turn;
    }
    const std::string prompt = Prompt();
    EXPECT_EQ(prompt.find("cat is called Pixel"), prompt.rfind("cat is called Pixel"))
        << "turn " << turn;
    previous = ids;
    messages.push_back({"assistant", report->generation.text, ""});
  }
}

TEST_F(MemoryServiceTest, EditedHistoryAndDeletedFactsAreComposedAnew) {
  Open();
  const Fact fact = AddOne("ada", "the cat is called Pixel");
  ASSERT_TRUE(service_->WaitIdle().ok());
  std::vector<ChatMessage> messages = {{"user", "what is the cat called", ""}};
  ChatRequest request = Ask("ada", "");
  request.messages = messages;
  ASSERT_TRUE(service_->ChatBlocking(request).ok());
  request.messages = {
      {"user", "what is the cat called", ""}, {"assistant", "edited", ""}, {"user", "really", ""}};
  ASSERT_TRUE(service_->ChatBlocking(request).ok());
  EXPECT_NE(Prompt().find("edited"), std::string::npos);

  request.messages[1].content = engine_->answer;
  ASSERT_TRUE(service_->Delete(fact.id).ok());
  ASSERT_TRUE(service_->ChatBlocking(request).ok());
  EXPECT_EQ(Prompt().find("Pixel"), std::string::npos);
}

TEST_F(MemoryServiceTest, AFailingEmbedderLosesNothing) {
  Open();
  embedder_->fail = true;
  AddOne("ada", "the cat is called Pixel");
  EXPECT_EQ(*service_->Count(User("ada")), 1);
  embedder_->fail = false;
  ASSERT_TRUE(service_->WaitIdle().ok());
  EXPECT_EQ(service_->Search(User("ada"), "cat", 5)->size(), 1u);
}

TEST_F(MemoryServiceTest, WhileTheEmbedderIsDownKeywordsAloneAreSearchedAndTheAnswerSaysSo) {
  Open();
  AddOne("ada", "the cat is called Pixel");
  Status embedding = Internal("not set");
  ASSERT_TRUE(service_->Search(User("ada"), "cat", 5, nullptr, 0, false, &embedding).ok());
  EXPECT_TRUE(embedding.ok());
  embedder_->fail = true;
  const auto hits = service_->Search(User("ada"), "cat", 5, nullptr, 0, false, &embedding);
  ASSERT_TRUE(hits.ok()) << hits.status().ToString();
  ASSERT_EQ(hits->size(), 1u);
  EXPECT_EQ(embedding.code(), StatusCode::kUnavailable);
  const Result<ChatReport> report = service_->ChatBlocking(Ask("ada", "what is the cat called"));
  ASSERT_TRUE(report.ok()) << report.status().ToString();
  EXPECT_EQ(CountOf(report->generation, "embedder_unavailable"), 1);
  EXPECT_NE(Prompt().find("Pixel"), std::string::npos);
}

TEST_F(MemoryServiceTest, AnOwnersPrimerIsSeenByAllFactsOnceItIsFullAndWhenOneOfItGoes) {
  recipe_ = "owner-primer:3";
  Open();
  std::vector<Fact> facts;
  const auto add = [&](int number) {
    now_ += 1000;
    facts.push_back(AddOne("ada", "fact number " + std::to_string(number)));
    EXPECT_TRUE(service_->WaitIdle().ok());
  };
  // How many facts each fact's block saw.
  const auto seen = [&] {
    std::vector<std::string> ids;
    for (const Fact& fact : facts) ids.push_back(fact.id);
    std::vector<std::size_t> counts;
    const auto records = service_->catalog().GetKvRecords(ids, service_->encoding_id());
    for (const auto& record : *records) counts.push_back(record ? record->saw.size() : 99);
    return counts;
  };
  add(1);
  add(2);
  EXPECT_EQ(seen(), (std::vector<std::size_t>{0, 1}));
  add(3);
  EXPECT_EQ(seen(), (std::vector<std::size_t>{2, 2, 2}));
  add(4);
  add(5);
  EXPECT_EQ(seen(), (std::vector<std::size_t>{2, 2, 2, 3, 3}));
  const std::size_t encoded = engine_->encoded.size();
  EXPECT_FALSE(*service_->RunPending());

  ASSERT_TRUE(service_->Delete(facts[1].id).ok());
  facts.erase(facts.begin() + 1);
  ASSERT_TRUE(service_->WaitIdle().ok());
  EXPECT_EQ(seen(), (std::vector<std::size_t>{2, 2, 2, 3}));
  EXPECT_EQ(engine_->encoded.size(), encoded + 4);
}

TEST_F(MemoryServiceTest, AServiceThatEndsDoesNotWaitForItsEncodings) {
  engine_->hold_outcomes = true;
  Open(/*background=*/true);
  AddOne("ada", "an engine that hangs");
  while (engine_->Held() == 0) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  service_.reset();
  for (const auto& late : engine_->held) late();  // an outcome that comes later does no harm
}

TEST_F(MemoryServiceTest, FactsWithoutNamesAreEncodedBehindTheirOwnersOnceThereAreEnough) {
  recipe_ = "primer:3";
  Open();
  std::vector<std::string> ids;
  const auto add = [&](const std::string& user, const std::string& name) {
    now_ += 1000;
    ids.push_back(AddOne(user, "fact number " + std::to_string(ids.size()), name).id);
    EXPECT_TRUE(service_->WaitIdle().ok());
  };
  const auto seen = [&] {
    std::vector<std::size_t> counts;
    const auto records = service_->catalog().GetKvRecords(ids, service_->encoding_id());
    for (const auto& record : *records) counts.push_back(record ? record->saw.size() : 99);
    return counts;
  };
  add("ada", "");
  add("ada", "Ada");
  add("ada", "");
  add("eve", "");  // somebody else's does not count
  EXPECT_EQ(seen(), (std::vector<std::size_t>{0, 0, 0, 0}));
  add("ada", "");
  EXPECT_EQ(seen(), (std::vector<std::size_t>{2, 0, 2, 0, 2}));
  const std::size_t encoded = engine_->encoded.size();
  add("ada", "");
  add("ada", "Ada");
  EXPECT_EQ(seen(), (std::vector<std::size_t>{2, 0, 2, 0, 2, 3, 0}));
  EXPECT_EQ(engine_->encoded.size(), encoded + 2) << "nothing is encoded twice";

  ASSERT_TRUE(service_->Delete(ids[0]).ok());
  ids.erase(ids.begin());
  ASSERT_TRUE(service_->WaitIdle().ok());
  EXPECT_EQ(seen(), (std::vector<std::size_t>{0, 2, 0, 2, 2, 0}));
}

TEST_F(MemoryServiceTest, AnotherEmbedderIndexesAgainFromText) {
  Open();
  AddOne("ada", "the cat is called Pixel");
  embedder_ = std::make_shared<FakeEmbedder>(32, "another");
  Open();
  EXPECT_EQ(service_->Pending()->embeddings, 1);
  ASSERT_TRUE(service_->WaitIdle().ok());
  const Result<std::vector<SearchHit>> hits =
      service_->Search(User("ada"), "the cat is called Pixel", 5);
  ASSERT_EQ(hits->size(), 1u);
  EXPECT_GT(hits->front().semantic, 0.5);
}

TEST_F(MemoryServiceTest, BackgroundTurnsBecomeFacts) {
  Open(true);
  AddRequest request;
  request.scope = User("ada");
  request.turns = {{0, "user", "Ada", "the cat is called Pixel", 0}, {0, "assistant", "", "", 0}};
  request.background = true;
  const Result<AddOutcome> outcome = service_->Add(request);
  ASSERT_TRUE(outcome.ok()) << outcome.status().ToString();
  EXPECT_TRUE(outcome->job_id.has_value());
  ASSERT_TRUE(service_->WaitIdle().ok());
  const Result<std::vector<Fact>> facts = service_->List(User("ada"), 0, 10);
  ASSERT_TRUE(facts.ok());
  ASSERT_EQ(facts->size(), 1u);
  EXPECT_EQ(facts->front().text, "the cat is called Pixel");
  EXPECT_EQ(facts->front().source_turns.size(), 1u);
}

TEST_F(MemoryServiceTest, RememberedTurnsDoNotRepeatServedFacts) {
  Open(true);
  AddOne("ada", "the cat is called Pixel");
  ASSERT_TRUE(service_->WaitIdle().ok());
  engine_->answer = "the cat is called Pixel";
  ChatRequest request = Ask("ada", "what is the cat called");
  request.remember = true;
  ASSERT_TRUE(service_->ChatBlocking(request).ok());
  ASSERT_TRUE(service_->WaitIdle().ok());
  const Result<std::vector<Fact>> facts = service_->List(User("ada"), 0, 10);
  ASSERT_TRUE(facts.ok());
  EXPECT_EQ(facts->size(), 2u);  // the first one and the question
}

TEST_F(MemoryServiceTest, ConcurrentAddsSearchesChatsAndDeletesAgree) {
  Open(true);
  std::vector<std::thread> threads;
  for (int worker = 0; worker < 4; ++worker) {
    threads.emplace_back([this, worker] {
      const std::string user = "user" + std::to_string(worker % 2);
      for (int i = 0; i < 15; ++i) {
        AddRequest request;
        request.scope = User(user);
        request.turns = {
            {0, "user", "", "worker " + std::to_string(worker) + " fact " + std::to_string(i), 0}};
        const Result<AddOutcome> outcome = service_->Add(request);
        ASSERT_TRUE(outcome.ok()) << outcome.status().ToString();
        ASSERT_TRUE(service_->ChatBlocking(Ask(user, "fact")).ok());
        if (i % 3 != 0) continue;
        ASSERT_TRUE(service_->Delete(outcome->facts.front().id).ok());
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  ASSERT_TRUE(service_->WaitIdle().ok());
  EXPECT_EQ(*service_->Count(User("user0")), 20);
  EXPECT_EQ(*service_->Count(User("user1")), 20);
}

}  // namespace
}  // namespace inferscale
