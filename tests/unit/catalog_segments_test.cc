#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "catalog/text_segments.h"

namespace inferscale::catalog {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

TEST(CatalogSegments, WordsStayWhole) {
  EXPECT_THAT(SegmentText("Anna's dog, Rex-2!"), ElementsAre("anna", "s", "dog", "rex", "2"));
  EXPECT_THAT(SegmentText("na\u00efve Stra\u00dfe"), ElementsAre("na\u00efve", "strasse"));
}

TEST(CatalogSegments, RunsOfCjkBecomeCharactersAndPairs) {
  EXPECT_THAT(SegmentText("北京大学"), ElementsAre("北", "京", "北京", "大", "京大", "学", "大学"));
  EXPECT_THAT(SegmentText("猫"), ElementsAre("猫"));
  EXPECT_THAT(SegmentText("東京タワー"),
              ElementsAre("東", "京", "東京", "タ", "京タ", "ワ", "タワ", "ー", "ワー"));
  EXPECT_THAT(SegmentText("서울"), ElementsAre("서", "울", "서울"));
}

TEST(CatalogSegments, PunctuationAndWordsEndARun) {
  EXPECT_THAT(SegmentText("我爱,你"), ElementsAre("我", "爱", "我爱", "你"));
  EXPECT_THAT(SegmentText("用iPhone手机"), ElementsAre("用", "iphone", "手", "机", "手机"));
}

TEST(CatalogSegments, CompatibilityFormsAreOne) {
  EXPECT_EQ(SegmentText("ＡＢＣ１２"), SegmentText("abc12"));
  EXPECT_EQ(SegmentText("ﾜｰ"), SegmentText("ワー"));
  // Decomposed Hangul is composed first.
  EXPECT_EQ(SegmentText("\u1109\u1165"), SegmentText("서"));
}

TEST(CatalogSegments, NothingToFindGivesNothing) {
  EXPECT_THAT(SegmentText(""), IsEmpty());
  EXPECT_THAT(SegmentText(" \t\n…!? 🎉"), IsEmpty());
  EXPECT_EQ(IndexedText("🎉"), "");
}

TEST(CatalogSegments, NulAndBrokenBytesOnlySeparate) {
  EXPECT_THAT(SegmentText(std::string_view("a\0b", 3)), ElementsAre("a", "b"));
  EXPECT_THAT(SegmentText("red\xff\xfe blue\x80"), ElementsAre("red", "blue"));
}

TEST(CatalogSegments, MarksBelongToTheirWord) {
  EXPECT_THAT(SegmentText("हिन्दी"), ElementsAre("हिन्दी"));
  EXPECT_THAT(SegmentText("עברית العربية"), ElementsAre("עברית", "العربية"));
}

TEST(CatalogSegments, QueryDropsStopWordsUnlessNothingElseIsLeft) {
  EXPECT_THAT(QueryTerms("Where does the dog sleep?", 64), ElementsAre("dog", "sleep"));
  EXPECT_THAT(QueryTerms("who are you", 64), ElementsAre("who", "are", "you"));
}

TEST(CatalogSegments, QueryTermsAreDistinctAndBounded) {
  EXPECT_THAT(QueryTerms("dog DOG dog cat", 64), ElementsAre("dog", "cat"));
  std::string many;
  for (int i = 0; i < 10000; ++i) many += "w" + std::to_string(i) + " ";
  EXPECT_EQ(QueryTerms(many, 64).size(), 64u);
}

}  // namespace
}  // namespace inferscale::catalog
