#include <gmock/gmock.h>

#include "support/catalog_fixture.h"

namespace inferscale::test {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;
using testing::SizeIs;
using testing::UnorderedElementsAre;

using CatalogSearch = CatalogTest;

TEST_F(CatalogSearch, FindsStemsAndRanksTheRarerWord) {
  const ScopeId scope = ScopeOf("anna");
  const std::string running = AddText(scope, "Anna was running in the park");
  const std::string park = AddText(scope, "The park is large");
  AddText(scope, "Nothing of that kind");
  EXPECT_THAT(SearchIds(scope, "run"), ElementsAre(running));
  EXPECT_THAT(SearchIds(scope, "Parks running"), ElementsAre(running, park));
  const auto hits = *catalog_->KeywordSearch(std::span(&scope, 1), "park run", 10);
  ASSERT_THAT(hits, SizeIs(2));
  EXPECT_GT(hits[0].bm25, hits[1].bm25);
  EXPECT_GT(hits[1].bm25, 0.0);
}

TEST_F(CatalogSearch, AWordThatEveryFactHasStillScoresAboveZero) {
  const ScopeId scope = ScopeOf("anna");
  AddText(scope, "tea one");
  AddText(scope, "tea two");
  const auto hits = *catalog_->KeywordSearch(std::span(&scope, 1), "tea", 10);
  ASSERT_THAT(hits, SizeIs(2));
  EXPECT_GT(hits[1].bm25, 0.0);
}

TEST_F(CatalogSearch, FindsShortChineseJapaneseAndKoreanWords) {
  const ScopeId scope = ScopeOf("anna");
  const std::string beijing = AddText(scope, "她去年搬到北京工作");
  const std::string cat = AddText(scope, "他养了一只猫");
  const std::string tower = AddText(scope, "東京タワーが好き");
  const std::string seoul = AddText(scope, "그녀는 서울에 산다");
  // What shares a single character comes after what has the word.
  EXPECT_THAT(SearchIds(scope, "北京"), ElementsAre(beijing, tower));
  EXPECT_THAT(SearchIds(scope, "猫"), ElementsAre(cat));
  EXPECT_THAT(SearchIds(scope, "タワー"), ElementsAre(tower));
  EXPECT_THAT(SearchIds(scope, "ﾀﾜｰ"), ElementsAre(tower));
  EXPECT_THAT(SearchIds(scope, "서울"), ElementsAre(seoul));
  EXPECT_EQ(SearchIds(scope, "东京北京").front(), beijing);
}

TEST_F(CatalogSearch, OnlyTheOwnersFactsAreFound) {
  const ScopeId anna = ScopeOf("anna"), ben = ScopeOf("ben"), other = ScopeOf("anna", "other");
  const std::string a = AddText(anna, "likes tea"), b = AddText(ben, "likes tea");
  AddText(other, "likes tea");
  EXPECT_THAT(SearchIds(anna, "tea"), ElementsAre(a));
  const std::vector<ScopeId> both = {anna, ben, anna};
  const auto hits = *catalog_->KeywordSearch(both, "tea", 10);
  ASSERT_THAT(hits, SizeIs(2));
  EXPECT_THAT((std::vector{hits[0].fact_id, hits[1].fact_id}), UnorderedElementsAre(a, b));
  EXPECT_THAT(*catalog_->KeywordSearch({}, "tea", 10), IsEmpty());
  // The scope's own column is no text.
  EXPECT_THAT(SearchIds(anna, "s" + std::to_string(anna)), IsEmpty());
  EXPECT_THAT(SearchIds(anna, "s" + std::to_string(ben) + " scope"), IsEmpty());
}

TEST_F(CatalogSearch, QuerySyntaxIsOnlyText) {
  const ScopeId scope = ScopeOf("anna");
  const std::string id = AddText(scope, "likes tea");
  for (const char* query :
       {"tea\"", "\"tea", "tea*", "^tea", "tea AND NOT tea", "(tea", "tea)", "scope:tea", "{tea}",
        "tea NEAR(x", "-tea", "tea + x", "tea' OR 1 --", "tea; DROP TABLE facts", "NOT tea",
        "scope : s1 OR tea", "tea\"\"\" OR \"", "%tea%", "tea?"}) {
    EXPECT_THAT(SearchIds(scope, query), ElementsAre(id)) << query;
  }
  for (const char* query : {"", " ", "\"", "*", "()", "🎉", "AND", "NOT NOT"}) {
    EXPECT_THAT(SearchIds(scope, query), IsEmpty()) << query;
  }
  EXPECT_THAT(SearchIds(scope, std::string_view("\0tea\0", 5)), ElementsAre(id));
  EXPECT_FALSE(catalog_->KeywordSearch(std::span(&scope, 1), "\xff", 5).ok());
  EXPECT_THAT(*catalog_->KeywordSearch(std::span(&scope, 1), "tea", 0), IsEmpty());
}

TEST_F(CatalogSearch, LettersThatTheIndexDoesNotKnowDoNotDisturbTheOthers) {
  const ScopeId scope = ScopeOf("anna");
  // A letter of Unicode 14, which is newer than the index's tables.
  const std::string id = AddText(scope, "\U00010570 zebra \U00010571");
  EXPECT_THAT(SearchIds(scope, "\U00010570 zebra"), ElementsAre(id));
  AddText(scope, "quagga");
  EXPECT_THAT(SearchIds(scope, "\U00010572 zebra"), ElementsAre(id));
}

TEST_F(CatalogSearch, AHugeQueryIsCutAndStillFinds) {
  const ScopeId scope = ScopeOf("anna");
  const std::string id = AddText(scope, "likes tea");
  std::string query = "tea ";
  while (query.size() < (1 << 20)) query += "word" + std::to_string(query.size()) + " ";
  EXPECT_THAT(SearchIds(scope, query), ElementsAre(id));
  EXPECT_THAT(SearchIds(scope, std::string(1 << 20, 'a')), IsEmpty());
}

TEST_F(CatalogSearch, EmbeddingsLoadInOrderAndLateOnesComeLast) {
  const ScopeId scope = ScopeOf("anna");
  NewFact a = FactOf("a"), b = FactOf("b"), c = FactOf("c");
  a.embedding = {1.0F, -2.0F};
  c.embedding = {0.5F, 0.0F};
  const auto ids = Add(scope, {a, b, c});
  auto rows = *catalog_->LoadEmbeddings(scope, "embedder", 0);
  ASSERT_THAT(rows, SizeIs(2));
  EXPECT_EQ(rows[0].fact_id, ids[0]);
  EXPECT_THAT(rows[0].vector, ElementsAre(0x3C00, 0xC000));
  EXPECT_EQ(rows[1].fact_id, ids[2]);
  EXPECT_LT(rows[0].row, rows[1].row);

  const auto missing = *catalog_->FactsWithoutEmbedding("embedder", 10);
  ASSERT_THAT(missing, SizeIs(1));
  EXPECT_EQ(missing[0].id, ids[1]);
  const std::uint64_t revision = InfoOf(scope).revision, epoch = InfoOf(scope).epoch;
  const std::vector<float> vector = {3.0F, 4.0F};
  ASSERT_TRUE(catalog_->SetEmbedding(ids[1], 1, "embedder", vector).ok());
  EXPECT_GT(InfoOf(scope).revision, revision);
  EXPECT_EQ(InfoOf(scope).epoch, epoch);
  const auto late = *catalog_->LoadEmbeddings(scope, "embedder", rows[1].row);
  ASSERT_THAT(late, SizeIs(1)) << "whoever loaded the others finds it behind them";
  EXPECT_EQ(late[0].fact_id, ids[1]);

  std::vector<std::int64_t> all;
  const auto listed = *catalog_->LoadEmbeddings(scope, "embedder", 0);
  for (const auto& row : listed) all.push_back(row.row);
  EXPECT_EQ(*catalog_->MatchingRows(QueryOf(scope)), all);
}

TEST_F(CatalogSearch, AnotherEmbedderStartsOver) {
  const ScopeId scope = ScopeOf("anna");
  NewFact a = FactOf("a");
  a.embedding = {1.0F};
  const std::string id = Add(scope, {a})[0];
  EXPECT_THAT(*catalog_->LoadEmbeddings(scope, "new", 0), IsEmpty());
  EXPECT_THAT(*catalog_->FactsWithoutEmbedding("new", 10), SizeIs(1));
  const std::vector<float> vector = {3.0F, 4.0F};
  ASSERT_TRUE(catalog_->SetEmbedding(id, 1, "new", vector).ok());
  EXPECT_THAT(*catalog_->FactsWithoutEmbedding("new", 10), IsEmpty());
  EXPECT_THAT(*catalog_->LoadEmbeddings(scope, "new", 0), SizeIs(1));
  EXPECT_THAT(*catalog_->FactsWithoutEmbedding("embedder", 10), SizeIs(1));
}

TEST_F(CatalogSearch, AnEmbeddingOfAnOldTextIsIgnored) {
  const ScopeId scope = ScopeOf("anna");
  const std::string id = AddText(scope, "old");
  FactUpdate update;
  update.text = "new";
  ASSERT_TRUE(catalog_->UpdateFact(id, update).ok());
  const std::vector<float> vector = {1.0F};
  EXPECT_TRUE(catalog_->SetEmbedding(id, 1, "embedder", vector).ok());
  EXPECT_TRUE(catalog_->SetEmbedding("gone", 1, "embedder", vector).ok());
  EXPECT_THAT(*catalog_->LoadEmbeddings(scope, "embedder", 0), IsEmpty());
  const std::vector<float> huge = {1e30F}, nan = {std::nanf("")};
  EXPECT_EQ(catalog_->SetEmbedding(id, 2, "embedder", huge).code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(catalog_->SetEmbedding(id, 2, "embedder", nan).code(), StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace inferscale::test
