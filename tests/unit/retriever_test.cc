#include "inferscale/retriever.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <filesystem>
#include <set>
#include <thread>

#include "catalog/filter.h"
#include "kernels/kernels.h"
#include "retrieval/embed_pending.h"
#include "retrieval/fusion.h"
#include "support/fake_embedder.h"

namespace inferscale {
namespace {

using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::Not;
using ::testing::UnorderedElementsAre;

class RetrieverTest : public ::testing::Test {
 protected:
  void SetUp() override {
    folder_ = std::filesystem::path(::testing::TempDir()) /
              ("retriever_" +
               std::string(::testing::UnitTest::GetInstance()->current_test_info()->name()));
    std::filesystem::remove_all(folder_);
    CatalogOptions options;
    options.folder = folder_;
    options.clock = [this] { return now_.load(); };
    auto catalog = OpenSqliteCatalog(options);
    ASSERT_TRUE(catalog.ok()) << catalog.status().ToString();
    catalog_ = std::move(*catalog);
    scope_ = MakeScope("ana");
    retriever_ = MakeRetriever(embedder_);
  }

  void TearDown() override {
    retriever_.reset();
    catalog_.reset();
    std::filesystem::remove_all(folder_);
  }

  std::unique_ptr<Retriever> MakeRetriever(Embedder& embedder,
                                           std::size_t budget_bytes = std::size_t{1} << 30) {
    RetrieverOptions options;
    options.budget_bytes = budget_bytes;
    options.clock = [this] { return now_.load(); };
    return std::make_unique<Retriever>(*catalog_, embedder, options);
  }

  ScopeId MakeScope(const std::string& user) {
    Scope scope;
    scope.user = user;
    return catalog_->EnsureScope(scope)->id;
  }

  NewFact MakeFact(const std::string& text, bool embedded = true) {
    NewFact fact;
    fact.fact.text = text;
    if (embedded) fact.embedding = embedder_.EmbedOne(text);
    return fact;
  }

  /// \return the ids of the facts.
  std::vector<std::string> Add(ScopeId scope, std::vector<NewFact> facts) {
    IngestBatch batch;
    batch.scope_id = scope;
    batch.facts = std::move(facts);
    batch.embedder_id = embedder_.id();
    const auto outcome = catalog_->Ingest(batch);
    EXPECT_TRUE(outcome.ok()) << outcome.status().ToString();
    std::vector<std::string> ids;
    for (const auto& entry : outcome->facts) ids.push_back(entry.fact_id);
    return ids;
  }

  std::string Add(const std::string& text) { return Add(scope_, {MakeFact(text)})[0]; }

  SearchRequest Request(const std::string& query, std::int32_t top_k = 20) {
    SearchRequest request;
    request.scopes = {scope_};
    request.query = query;
    request.top_k = top_k;
    request.threshold = -1;
    return request;
  }

  std::vector<std::string> Search(const SearchRequest& request) {
    const auto hits = retriever_->Search(request);
    EXPECT_TRUE(hits.ok()) << hits.status().ToString();
    std::vector<std::string> texts;
    if (hits.ok()) {
      for (const SearchHit& hit : *hits) texts.push_back(hit.fact.text);
    }
    return texts;
  }

  std::atomic<TimeMs> now_{1'700'000'000'000};
  std::filesystem::path folder_;
  testing::FakeEmbedder embedder_;
  std::unique_ptr<Catalog> catalog_;
  std::unique_ptr<Retriever> retriever_;
  ScopeId scope_ = 0;
};

std::vector<std::string> RandomTexts(int count) {
  static const char* const kWords[] = {"tea",    "cat",    "Bern",  "piano", "river",
                                       "bread",  "train",  "blue",  "seven", "winter",
                                       "garden", "doctor", "paper", "song"};
  std::vector<std::string> texts;
  std::uint32_t state = 1;
  for (int i = 0; i < count; ++i) {
    std::string text = "fact" + std::to_string(i);
    for (int word = 0; word < 5; ++word) {
      state = state * 1664525 + 1013904223;
      text += std::string(" ") + kWords[(state >> 16) % std::size(kWords)];
    }
    texts.push_back(text);
  }
  return texts;
}

/// Takes all cores, or none, as it says.
class BusyEmbedder : public testing::FakeEmbedder {
 public:
  std::int32_t busy_threads() const override { return busy; }
  std::int32_t busy = 0;
};

TEST_F(RetrieverTest, FindsTheSameWhetherKeywordsAreSearchedBesideOrAfterEmbedding) {
  for (const std::string& text : RandomTexts(300)) Add(text);
  BusyEmbedder busy;
  const auto retriever = MakeRetriever(busy);
  for (const std::string query : {"piano in winter", "fact77 bread", "zzz"}) {
    busy.busy = 0;
    const auto beside = retriever->Search(Request(query));
    busy.busy = 1 << 20;
    const auto after = retriever->Search(Request(query));
    ASSERT_TRUE(beside.ok() && after.ok());
    ASSERT_EQ(beside->size(), after->size());
    for (std::size_t i = 0; i < beside->size(); ++i) {
      EXPECT_EQ((*beside)[i].fact.id, (*after)[i].fact.id);
      EXPECT_DOUBLE_EQ((*beside)[i].score, (*after)[i].score);
    }
  }
}

TEST_F(RetrieverTest, FallsBackToKeywordsWhileTheEmbedderIsDown) {
  Add("Ana likes tea");
  Add("Ana has a cat");
  embedder_.fail = true;
  Status embedding;
  const auto hits = retriever_->Search(Request("tea"), &embedding);
  ASSERT_TRUE(hits.ok()) << hits.status().ToString();
  ASSERT_EQ(hits->size(), 1u);
  EXPECT_EQ(hits->front().fact.text, "Ana likes tea");
  EXPECT_GT(hits->front().score, 0.0);
  EXPECT_EQ(embedding.code(), StatusCode::kUnavailable);
  SearchRequest vectors_only = Request("tea");
  vectors_only.keyword = false;
  EXPECT_EQ(retriever_->Search(vectors_only).status().code(), StatusCode::kUnavailable);
}

TEST_F(RetrieverTest, PendingEmbeddingsAreStoredBatchByBatch) {
  std::vector<NewFact> facts;
  for (const std::string& text : RandomTexts(100)) facts.push_back(MakeFact(text, false));
  Add(scope_, facts);
  const std::uint64_t before = catalog_->GetScope(scope_)->revision;
  EXPECT_EQ(*EmbedPending(*catalog_, embedder_, 1000), 100);
  EXPECT_EQ(catalog_->GetScope(scope_)->revision, before + 2);
  EXPECT_TRUE(catalog_->FactsWithoutEmbedding(embedder_.id(), 1)->empty());
}

TEST_F(RetrieverTest, ABatchOfEmbeddingsIsStoredWholeOrNotAtAll) {
  const std::vector<std::string> ids =
      Add(scope_, {MakeFact("one", false), MakeFact("two", false)});
  const std::vector<float> good = embedder_.EmbedOne("one");
  const FactEmbedding batch[] = {{ids[0], 1, good},
                                 {ids[1], 1, std::vector<float>(good.size(), std::nanf(""))}};
  EXPECT_EQ(catalog_->SetEmbeddings(embedder_.id(), batch).code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(catalog_->FactsWithoutEmbedding(embedder_.id(), 5)->size(), 2u);
}

TEST_F(RetrieverTest, RanksAsABruteForceOverEveryFactDoes) {
  std::vector<NewFact> facts;
  for (const std::string& text : RandomTexts(500)) facts.push_back(MakeFact(text));
  const std::vector<std::string> ids = Add(scope_, facts);

  for (const std::string query : {"piano in winter", "who likes tea", "zzz", "fact77 bread"}) {
    SearchRequest request = Request(query, 12);
    const auto hits = retriever_->Search(request);
    ASSERT_TRUE(hits.ok());

    const std::vector<float> vector = embedder_.EmbedOne(query);
    std::vector<double> cosine(ids.size(), 0.0);
    for (std::size_t i = 0; i < ids.size(); ++i) {
      std::vector<std::uint16_t> half(vector.size());
      std::vector<float> stored(vector.size());
      kernels::FloatToHalf(facts[i].embedding.data(), half.data(), half.size());
      kernels::HalfToFloat(half.data(), stored.data(), half.size());
      for (std::size_t d = 0; d < vector.size(); ++d) {
        cosine[i] += static_cast<double>(vector[d]) * stored[d];
      }
    }
    std::vector<std::size_t> nearest(ids.size());
    for (std::size_t i = 0; i < nearest.size(); ++i) nearest[i] = i;
    std::sort(nearest.begin(), nearest.end(),
              [&](std::size_t a, std::size_t b) { return cosine[a] > cosine[b]; });
    std::set<std::size_t> pool(nearest.begin(), nearest.begin() + CandidatePool(12));
    std::vector<double> keyword(ids.size(), 0.0);
    const auto found = catalog_->KeywordSearch(request.scopes, query, CandidatePool(12));
    ASSERT_TRUE(found.ok());
    for (const KeywordHit& hit : *found) {
      const auto place = std::find(ids.begin(), ids.end(), hit.fact_id) - ids.begin();
      keyword[static_cast<std::size_t>(place)] = KeywordScore(hit.bm25, CountQueryTerms(query));
      pool.insert(static_cast<std::size_t>(place));
    }
    std::vector<std::pair<double, std::size_t>> ranked;
    for (const std::size_t i : pool) {
      ranked.push_back({FusedScore(cosine[i], keyword[i], found->empty() ? 1 : 2), i});
    }
    std::sort(ranked.rbegin(), ranked.rend());
    ASSERT_EQ(hits->size(), 12u);
    for (std::size_t i = 0; i < hits->size(); ++i) {
      EXPECT_NEAR((*hits)[i].score, ranked[i].first, 1e-5) << query << " at " << i;
      const auto place = std::find(ids.begin(), ids.end(), (*hits)[i].fact.id) - ids.begin();
      EXPECT_NEAR((*hits)[i].semantic, cosine[static_cast<std::size_t>(place)], 1e-5);
      EXPECT_NEAR((*hits)[i].keyword, keyword[static_cast<std::size_t>(place)], 1e-9);
    }
  }
}

TEST_F(RetrieverTest, NeverLeaksAnotherScope) {
  const ScopeId other = MakeScope("tom");
  Add(scope_, {MakeFact("Ana likes tea"), MakeFact("Ana has a cat")});
  Add(other, {MakeFact("Tom likes tea"), MakeFact("Tom likes tea a lot")});
  EXPECT_THAT(Search(Request("likes tea")), UnorderedElementsAre("Ana likes tea", "Ana has a cat"));

  SearchRequest both = Request("likes tea");
  both.scopes = {scope_, other, scope_};
  EXPECT_THAT(Search(both), UnorderedElementsAre("Ana likes tea", "Ana has a cat", "Tom likes tea",
                                                 "Tom likes tea a lot"));
  SearchRequest none = Request("likes tea");
  none.scopes = {};
  EXPECT_THAT(Search(none), IsEmpty());
  none.scopes = {987654};
  EXPECT_THAT(Search(none), IsEmpty());
}

TEST_F(RetrieverTest, MergesScopesByScore) {
  const ScopeId other = MakeScope("tom");
  Add(scope_, {MakeFact("green tea daily"), MakeFact("unrelated words here")});
  Add(other, {MakeFact("green tea"), MakeFact("something else again")});
  SearchRequest both = Request("green tea", 2);
  both.scopes = {scope_, other};
  both.keyword = false;
  EXPECT_THAT(Search(both), ElementsAre("green tea", "green tea daily"));
}

TEST_F(RetrieverTest, FindsWhatWasAddedSinceTheLastSearch) {
  Add("Ana likes tea");
  EXPECT_THAT(Search(Request("cat")), ElementsAre("Ana likes tea"));
  Add("Ana has a cat");
  EXPECT_THAT(Search(Request("cat", 1)), ElementsAre("Ana has a cat"));
}

TEST_F(RetrieverTest, NeverReturnsADeletedFact) {
  const std::string tea = Add("Ana likes tea");
  Add("Ana has a cat");
  EXPECT_THAT(Search(Request("tea")), Contains("Ana likes tea"));
  ASSERT_TRUE(catalog_->DeleteFact(tea).ok());
  EXPECT_THAT(Search(Request("tea")), ElementsAre("Ana has a cat"));
}

TEST_F(RetrieverTest, NeverReturnsTheTextBeforeAnUpdate) {
  const std::string id = Add("Ana likes tea");
  Add("Ana has a cat");
  EXPECT_THAT(Search(Request("tea", 1)), ElementsAre("Ana likes tea"));
  FactUpdate update;
  update.text = "Ana prefers coffee";
  update.embedding = embedder_.EmbedOne(*update.text);
  update.embedder_id = embedder_.id();
  ASSERT_TRUE(catalog_->UpdateFact(id, update).ok());
  EXPECT_THAT(Search(Request("tea")), Not(Contains("Ana likes tea")));
  EXPECT_THAT(Search(Request("prefers coffee", 1)), ElementsAre("Ana prefers coffee"));
}

TEST_F(RetrieverTest, LeavesSupersededFactsOut) {
  const std::string old_id = Add("Ana lives in Bern");
  EXPECT_THAT(Search(Request("lives")), ElementsAre("Ana lives in Bern"));
  NewFact newer = MakeFact("Ana lives in Rome");
  newer.supersedes = {old_id};
  Add(scope_, {newer});
  EXPECT_THAT(Search(Request("Ana lives in Bern")), ElementsAre("Ana lives in Rome"));
}

TEST_F(RetrieverTest, FindsFactsWithoutAVectorByKeyword) {
  Add("Ana has a cat");
  Add(scope_, {MakeFact("the password is swordfish", /*embedded=*/false)});
  EXPECT_THAT(Search(Request("swordfish", 1)), ElementsAre("the password is swordfish"));
  EXPECT_THAT(Search(Request("dog")), Not(Contains("the password is swordfish")));

  ASSERT_EQ(*EmbedPending(*catalog_, embedder_, 100), 1);
  EXPECT_THAT(Search(Request("dog")), Contains("the password is swordfish"));
}

TEST_F(RetrieverTest, LeavesOutUnembeddedFactsThatMustNotBeServed) {
  NewFact expired = MakeFact("swordfish expired", false);
  expired.fact.expiration_date = "2020-01-01";
  const std::string old_id = Add(scope_, {MakeFact("swordfish old", false), expired})[0];
  NewFact newer = MakeFact("swordfish new", false);
  newer.supersedes = {old_id};
  Add(scope_, {newer});
  EXPECT_THAT(Search(Request("swordfish")), ElementsAre("swordfish new"));
}

TEST_F(RetrieverTest, FindsATwoCharacterChineseWordAtALowCosine) {
  std::vector<NewFact> facts;
  for (const std::string& text : RandomTexts(300)) facts.push_back(MakeFact(text));
  facts.push_back(MakeFact("我去年搬到北京工作了"));
  Add(scope_, facts);
  SearchRequest request = Request("北京", 5);
  EXPECT_THAT(Search(request), Contains("我去年搬到北京工作了"));
  request.threshold = 0.99;
  EXPECT_THAT(Search(request), ElementsAre("我去年搬到北京工作了"));
  request.keyword = false;
  EXPECT_THAT(Search(request), IsEmpty());
}

TEST_F(RetrieverTest, AppliesMetadataFilters) {
  NewFact work = MakeFact("meeting on Monday tea");
  work.fact.metadata_json = R"({"topic":"work"})";
  NewFact home = MakeFact("tea at home");
  home.fact.metadata_json = R"({"topic":"home"})";
  NewFact pending = MakeFact("swordfish tea", false);
  pending.fact.metadata_json = R"({"topic":"home"})";
  NewFact pending_work = MakeFact("swordfish office tea", false);
  pending_work.fact.metadata_json = R"({"topic":"work"})";
  Add(scope_, {work, home, pending, pending_work});
  const auto filter = Filter::Parse(R"({"topic":"home"})");
  ASSERT_TRUE(filter.ok()) << filter.status().ToString();
  SearchRequest request = Request("tea");
  request.filter = filter->get();
  EXPECT_THAT(Search(request), UnorderedElementsAre("tea at home", "swordfish tea"));
  request.keyword = false;
  EXPECT_THAT(Search(request), ElementsAre("tea at home"));
}

TEST_F(RetrieverTest, HidesExpiredFactsFromTheDayAfter) {
  NewFact ticket = MakeFact("train ticket");
  ticket.fact.expiration_date = "2023-11-15";
  Add(scope_, {ticket, MakeFact("train of thought")});
  EXPECT_THAT(Search(Request("train")), UnorderedElementsAre("train ticket", "train of thought"));
  now_ += 2LL * 24 * 3600 * 1000;
  EXPECT_THAT(Search(Request("train")), ElementsAre("train of thought"));
  SearchRequest all = Request("train");
  all.show_expired = true;
  EXPECT_THAT(Search(all), UnorderedElementsAre("train ticket", "train of thought"));
}

TEST_F(RetrieverTest, BreaksTiesByAgeNewestFirst) {
  std::vector<std::string> texts;
  for (int i = 0; i < 5; ++i) {
    NewFact fact = MakeFact("same " + std::to_string(i));
    fact.embedding = embedder_.EmbedOne("same");
    Add(scope_, {fact});
    now_ += 1000;
  }
  SearchRequest request = Request("same", 3);
  request.keyword = false;
  EXPECT_THAT(Search(request), ElementsAre("same 4", "same 3", "same 2"));
}

TEST_F(RetrieverTest, ReindexesFromTextForAnotherEmbedder) {
  std::vector<NewFact> facts;
  for (const std::string& text : RandomTexts(70)) facts.push_back(MakeFact(text));
  Add(scope_, facts);
  testing::FakeEmbedder other(16, "other");
  const std::unique_ptr<Retriever> retriever = MakeRetriever(other);
  SearchRequest request = Request("fact7 piano", 3);
  request.keyword = false;
  EXPECT_THAT(*retriever->Search(request), IsEmpty());
  // In two pieces, as after an interruption.
  ASSERT_EQ(*EmbedPending(*catalog_, other, 40), 40);
  EXPECT_EQ(retriever->Search(request)->size(), 3u);
  ASSERT_EQ(*EmbedPending(*catalog_, other, 1000), 30);
  ASSERT_EQ(*EmbedPending(*catalog_, other, 1000), 0);
  request.top_k = 100;
  EXPECT_EQ(retriever->Search(request)->size(), 70u);
}

TEST_F(RetrieverTest, DropsTheLeastUsedScopeOverItsBudget) {
  std::vector<ScopeId> scopes;
  for (int i = 0; i < 4; ++i) {
    scopes.push_back(MakeScope("user" + std::to_string(i)));
    std::vector<NewFact> facts;
    for (const std::string& text : RandomTexts(200)) facts.push_back(MakeFact(text));
    Add(scopes.back(), facts);
  }
  const auto search = [&](Retriever& retriever, ScopeId scope) {
    SearchRequest request = Request("piano", 5);
    request.scopes = {scope};
    return retriever.Search(request)->size();
  };
  const std::unique_ptr<Retriever> unbounded = MakeRetriever(embedder_);
  EXPECT_EQ(search(*unbounded, scopes[0]), 5u);
  const std::size_t one = unbounded->MemorySizeBytes();
  EXPECT_GE(one, 200u * 32 * sizeof(std::uint16_t));
  const std::unique_ptr<Retriever> bounded = MakeRetriever(embedder_, one * 5 / 2);
  for (int round = 0; round < 2; ++round) {
    for (const ScopeId scope : scopes) {
      EXPECT_EQ(search(*bounded, scope), 5u);
      EXPECT_LE(bounded->MemorySizeBytes(), one * 5 / 2);
    }
  }
}

TEST_F(RetrieverTest, TakesOddQueries) {
  Add("Ana likes tea");
  for (const std::string& query : {std::string(""), std::string(" \n\t"), std::string("\u3000")}) {
    EXPECT_THAT(Search(Request(query)), IsEmpty());
  }
  for (const std::string& query :
       {std::string(1 << 20, 'x'), std::string("tea\0tea", 7), std::string("tea \xff\xfe"),
        std::string("\" OR * AND NEAR("), std::string("🫖 ☕"), std::string("مرحبا")}) {
    EXPECT_TRUE(retriever_->Search(Request(query)).ok()) << query.substr(0, 20);
  }
  EXPECT_THAT(Search(Request("tea", 0)), IsEmpty());
  EXPECT_EQ(retriever_->Search(Request("tea", -1)).status().code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(retriever_->Search(Request("tea", 10'001)).status().code(),
            StatusCode::kInvalidArgument);
  SearchRequest request = Request("tea");
  request.threshold = std::nan("");
  EXPECT_EQ(retriever_->Search(request).status().code(), StatusCode::kInvalidArgument);
}

TEST_F(RetrieverTest, SearchesWhileFactsComeAndGo) {
  std::vector<std::string> texts = RandomTexts(120);
  Add(scope_, {MakeFact("anchor tea")});
  std::atomic<bool> done{false};
  std::vector<std::thread> readers;
  for (int i = 0; i < 3; ++i) {
    readers.emplace_back([&] {
      while (!done) {
        const auto hits = retriever_->Search(Request("anchor tea", 200));
        ASSERT_TRUE(hits.ok()) << hits.status().ToString();
        std::set<std::string> ids;
        bool anchor = false;
        for (const SearchHit& hit : *hits) {
          EXPECT_TRUE(ids.insert(hit.fact.id).second);
          anchor |= hit.fact.text == "anchor tea";
        }
        EXPECT_TRUE(anchor);
      }
    });
  }
  for (std::size_t i = 0; i < texts.size(); ++i) {
    const std::string id = Add(texts[i]);
    if (i % 3 == 0) {
      ASSERT_TRUE(catalog_->DeleteFact(id).ok());
      EXPECT_THAT(Search(Request(texts[i], 200)), Not(Contains(texts[i])));
    }
  }
  done = true;
  for (std::thread& reader : readers) reader.join();
  EXPECT_EQ(Search(Request("tea", 200)).size(), 1 + texts.size() - texts.size() / 3);
}

}  // namespace
}  // namespace inferscale
