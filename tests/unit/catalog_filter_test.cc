#include <gmock/gmock.h>

#include "catalog/filter.h"
#include "support/catalog_fixture.h"

namespace inferscale::test {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;
using testing::SizeIs;
using testing::UnorderedElementsAre;

class CatalogFilter : public CatalogTest {
 protected:
  void SetUp() override {
    CatalogTest::SetUp();
    scope_ = ScopeOf("anna");
    // 2026-09-21T14:13:20Z
    NewFact rome = FactOf("Anna moved to Rome");
    rome.fact.metadata_json =
        R"({"city":"Rome","n":5,"ok":true,"tags":["a","B",3,true],"we\"ird\\":"x","a.b":"dot",)"
        R"("categories":["travel","home"],"none":null,"deep":{"k":1}})";
    rome.fact.name = "Anna";
    rome.fact.role = "user";
    rome.fact.expiration_date = "2027-01-15";
    NewFact tea = FactOf("STRASSE and Tea");
    tea.fact.metadata_json = R"({"city":"rome","n":5.5,"ok":1,"tags":"abc","categories":"food"})";
    tea.fact.role = "assistant";
    NewFact bare = FactOf("plain");
    const auto ids = Add(scope_, {rome, tea, bare});
    rome_ = ids[0];
    tea_ = ids[1];
    bare_ = ids[2];
  }

  std::vector<std::string> Matches(const std::string& json) {
    const auto filter = Filter::Parse(json);
    EXPECT_TRUE(filter.ok()) << json << ": " << filter.status().ToString();
    if (!filter.ok()) return {};
    FactQuery query = QueryOf(scope_);
    query.filter = filter->get();
    const auto facts = catalog_->ListFacts(query);
    EXPECT_TRUE(facts.ok()) << json << ": " << facts.status().ToString() << "\n"
                            << (*filter)->sql().condition;
    if (!facts.ok()) return {};
    EXPECT_EQ(*catalog_->CountFacts(query), static_cast<std::int64_t>(facts->size()));
    EXPECT_THAT(*catalog_->MatchingRows(query), SizeIs(facts->size()));
    std::vector<std::string> names;
    for (const Fact& fact : *facts) {
      names.push_back(fact.id == rome_ ? "rome" : fact.id == tea_ ? "tea" : "bare");
    }
    return names;
  }
  static std::string Refusal(const std::string& json) {
    const auto filter = Filter::Parse(json);
    EXPECT_FALSE(filter.ok()) << json;
    if (filter.ok()) return "";
    EXPECT_EQ(filter.status().code(), StatusCode::kInvalidArgument) << json;
    return filter.status().message();
  }

  ScopeId scope_ = 0;
  std::string rome_, tea_, bare_;
};

TEST_F(CatalogFilter, EmptyObjectFiltersNothing) { EXPECT_THAT(Matches("{}"), SizeIs(3)); }

TEST_F(CatalogFilter, EqualComparesTypeAndValue) {
  EXPECT_THAT(Matches(R"({"city":"Rome"})"), ElementsAre("rome"));
  EXPECT_THAT(Matches(R"({"city":{"eq":"Rome"}})"), ElementsAre("rome"));
  EXPECT_THAT(Matches(R"({"n":5})"), ElementsAre("rome"));
  EXPECT_THAT(Matches(R"({"n":5.0})"), ElementsAre("rome"));
  EXPECT_THAT(Matches(R"({"n":"5"})"), IsEmpty());
  EXPECT_THAT(Matches(R"({"ok":true})"), ElementsAre("rome"));
  EXPECT_THAT(Matches(R"({"ok":1})"), ElementsAre("tea"));
  EXPECT_THAT(Matches(R"({"tags":"[\"a\",\"B\",3,true]"})"), IsEmpty());
  EXPECT_THAT(Matches(R"({"a.b":"dot"})"), ElementsAre("rome"));
  EXPECT_THAT(Matches(R"({"name":"Anna"})"), ElementsAre("rome"));
  EXPECT_THAT(Matches(R"({"text":"plain"})"), ElementsAre("bare"));
}

TEST_F(CatalogFilter, NegationHoldsForWhatIsMissing) {
  EXPECT_THAT(Matches(R"({"city":{"ne":"Rome"}})"), UnorderedElementsAre("tea", "bare"));
  EXPECT_THAT(Matches(R"({"city":{"nin":["Rome","rome"]}})"), ElementsAre("bare"));
  EXPECT_THAT(Matches(R"({"name":{"ne":"Anna"}})"), UnorderedElementsAre("tea", "bare"));
  EXPECT_THAT(Matches(R"({"expiration_date":{"ne":"2027-01-15"}})"),
              UnorderedElementsAre("tea", "bare"));
}

TEST_F(CatalogFilter, InTakesListsAndAnEmptyOneMatchesNothing) {
  EXPECT_THAT(Matches(R"({"city":{"in":["Rome",7]}})"), ElementsAre("rome"));
  EXPECT_THAT(Matches(R"({"city":{"in":[]}})"), IsEmpty());
  EXPECT_THAT(Matches(R"({"city":{"nin":[]}})"), SizeIs(3));
  EXPECT_THAT(Matches(R"({"memory_ids":{"in":[]}})"), IsEmpty());
  EXPECT_THAT(Matches(R"({"memory_ids":[")" + rome_ + R"(","x"]})"), ElementsAre("rome"));
  EXPECT_THAT(Matches(R"({"memory_ids":{"nin":[")" + rome_ + R"("]}})"), SizeIs(2));
  Refusal(R"({"city":{"in":"Rome"}})");
  Refusal(R"({"city":["Rome"]})");
}

TEST_F(CatalogFilter, OrderComparesNumbersWithNumbersAndTextWithText) {
  EXPECT_THAT(Matches(R"({"n":{"gt":5}})"), ElementsAre("tea"));
  EXPECT_THAT(Matches(R"({"n":{"gte":5,"lt":5.5}})"), ElementsAre("rome"));
  EXPECT_THAT(Matches(R"({"n":{"gt":"0"}})"), IsEmpty());
  EXPECT_THAT(Matches(R"({"ok":{"gte":1}})"), ElementsAre("tea")) << "true is no number";
  EXPECT_THAT(Matches(R"({"city":{"lte":"a"}})"), ElementsAre("rome"));
  EXPECT_THAT(Matches(R"({"n":{"lt":18446744073709551615}})"), SizeIs(2));
  Refusal(R"({"n":{"gt":true}})");
  Refusal(R"({"n":{"gt":null}})");
}

TEST_F(CatalogFilter, ContainsLooksIntoListsAndTexts) {
  EXPECT_THAT(Matches(R"({"tags":{"contains":"a"}})"), UnorderedElementsAre("rome", "tea"));
  EXPECT_THAT(Matches(R"({"tags":{"contains":"bc"}})"), ElementsAre("tea"));
  EXPECT_THAT(Matches(R"({"tags":{"contains":3}})"), ElementsAre("rome"));
  EXPECT_THAT(Matches(R"({"tags":{"contains":1}})"), IsEmpty()) << "true is not 1";
  EXPECT_THAT(Matches(R"({"tags":{"contains":true}})"), ElementsAre("rome"));
  EXPECT_THAT(Matches(R"({"tags":{"icontains":"b"}})"), UnorderedElementsAre("rome", "tea"));
  EXPECT_THAT(Matches(R"({"n":{"contains":5}})"), IsEmpty());
  EXPECT_THAT(Matches(R"({"text":{"contains":"Tea"}})"), ElementsAre("tea"));
  EXPECT_THAT(Matches(R"({"text":{"contains":"tea"}})"), IsEmpty());
  EXPECT_THAT(Matches(R"({"text":{"icontains":"tEA"}})"), ElementsAre("tea"));
  EXPECT_THAT(Matches(R"({"text":{"icontains":"straße"}})"), ElementsAre("tea"));
  EXPECT_THAT(Matches(R"({"keywords":"ROME"})"), ElementsAre("rome"));
  EXPECT_THAT(Matches(R"({"text":{"contains":"%"}})"), IsEmpty());
  Refusal(R"({"text":{"contains":""}})");
  Refusal(R"({"keywords":{"eq":"x"}})");
}

TEST_F(CatalogFilter, CategoriesMatchAnyOfThem) {
  EXPECT_THAT(Matches(R"({"categories":{"contains":"home"}})"), ElementsAre("rome"));
  EXPECT_THAT(Matches(R"({"categories":{"in":["food","home"]}})"),
              UnorderedElementsAre("rome", "tea"));
  EXPECT_THAT(Matches(R"({"categories":["food"]})"), ElementsAre("tea"));
  EXPECT_THAT(Matches(R"({"categories":{"nin":["food"]}})"), UnorderedElementsAre("rome", "bare"));
  Refusal(R"({"categories":{"gt":"a"}})");
  Refusal(R"({"categories":[1]})");
}

TEST_F(CatalogFilter, StarIsAnyValueButNull) {
  EXPECT_THAT(Matches(R"({"city":"*"})"), UnorderedElementsAre("rome", "tea"));
  EXPECT_THAT(Matches(R"({"none":"*"})"), IsEmpty());
  EXPECT_THAT(Matches(R"({"city":{"ne":"*"}})"), ElementsAre("bare"));
  EXPECT_THAT(Matches(R"({"expiration_date":"*"})"), ElementsAre("rome"));
  EXPECT_THAT(Matches(R"({"name":"*"})"), ElementsAre("rome"));
  EXPECT_THAT(Matches(R"({"none":null})"), SizeIs(3));
  EXPECT_THAT(Matches(R"({"city":null})"), ElementsAre("bare"));
}

TEST_F(CatalogFilter, TimesCompareAsTimes) {
  EXPECT_THAT(Matches(R"({"created_at":{"gte":"2026-09-21"}})"), SizeIs(3));
  EXPECT_THAT(Matches(R"({"created_at":{"gt":"2026-09-21"}})"), IsEmpty());
  EXPECT_THAT(Matches(R"({"created_at":{"lte":"2026-09-21"}})"), SizeIs(3)) << "the whole day";
  EXPECT_THAT(Matches(R"({"created_at":{"lt":"2026-09-21"}})"), IsEmpty());
  EXPECT_THAT(Matches(R"({"created_at":"2026-09-21"})"), SizeIs(3));
  EXPECT_THAT(Matches(R"({"created_at":"2026-09-21T14:13:20Z"})"), SizeIs(3));
  EXPECT_THAT(Matches(R"({"created_at":{"eq":"2026-09-21T16:13:20+02:00"}})"), SizeIs(3));
  EXPECT_THAT(Matches(R"({"created_at":{"gt":"2026-09-21T14:13:20+00:00"}})"), IsEmpty());
  EXPECT_THAT(Matches(R"({"timestamp":{"gte":1790000000,"lte":1790000000}})"), SizeIs(3));
  EXPECT_THAT(Matches(R"({"updated_at":{"in":["2026-09-20","2026-09-21"]}})"), SizeIs(3));
  EXPECT_THAT(Matches(R"({"expiration_date":{"lt":"2027-01-16"}})"), ElementsAre("rome"));
  EXPECT_THAT(Matches(R"({"expiration_date":{"gt":"2027-01-15"}})"), IsEmpty());
  Refusal(R"({"created_at":{"gt":"yesterday"}})");
  Refusal(R"({"created_at":{"gt":1e300}})");
  Refusal(R"({"created_at":{"contains":"2026"}})");
  Refusal(R"({"created_at":true})");
}

TEST_F(CatalogFilter, LogicNests) {
  EXPECT_THAT(Matches(R"({"city":"Rome","n":5})"), ElementsAre("rome"));
  EXPECT_THAT(Matches(R"({"AND":[{"city":"Rome"},{"n":6}]})"), IsEmpty());
  EXPECT_THAT(Matches(R"({"OR":[{"city":"Rome"},{"n":5.5}]})"),
              UnorderedElementsAre("rome", "tea"));
  EXPECT_THAT(Matches(R"({"NOT":[{"city":"Rome"},{"n":5.5}]})"), ElementsAre("bare"));
  EXPECT_THAT(Matches(R"({"NOT":{"city":"Rome"}})"), UnorderedElementsAre("tea", "bare"));
  EXPECT_THAT(Matches(R"({"OR":[{"NOT":[{"city":"*"}]},{"AND":[{"city":"Rome"},{"ok":true}]}]})"),
              UnorderedElementsAre("rome", "bare"));
  EXPECT_THAT(Matches(R"({"metadata":{"city":"Rome","n":{"lt":6}}})"), ElementsAre("rome"));
  EXPECT_THAT(Matches(R"({"metadata":{"ne":{"city":"Rome"}}})"),
              UnorderedElementsAre("tea", "bare"));
}

TEST_F(CatalogFilter, WhatIsNotUnderstoodIsAnErrorAndNeverEverything) {
  EXPECT_NE(Refusal(R"({"city":{"like":"%"}})").find("'like'"), std::string::npos);
  EXPECT_NE(Refusal(R"({"user_id":"ben"})").find("user_id"), std::string::npos);
  for (const char* json : {"",
                           "null",
                           "[]",
                           "\"x\"",
                           "{",
                           "{'user_id': 'alice'}",
                           R"({"a":{}})",
                           R"({"OR":[]})",
                           R"({"NOT":[]})",
                           R"({"AND":[]})",
                           R"({"AND":{}})",
                           R"({"OR":[{}]})",
                           R"({"NOT":{}})",
                           R"({"OR":["x"]})",
                           R"({"OR":{"a":1}})",
                           R"({"$or":[{"a":1}]})",
                           R"({"or":[{"a":1}]})",
                           R"({"a":1,"a":2})",
                           R"({"metadata":{}})",
                           R"({"metadata":"x"})",
                           R"({"metadata":[]})",
                           R"({"agent_id":"*"})",
                           R"({"run_id":{"ne":"x"}})",
                           R"({"app_id":null})",
                           R"({"a":{"EQ":1}})",
                           R"({"a":{"b":{"c":1}}})",
                           R"({"text":5})",
                           R"({"text":{"in":[5]}})",
                           R"({"memory_ids":{"gt":"a"}})",
                           R"({"a\u0000b":1})",
                           R"({"a":{"eq":[1]}})",
                           R"({"OR":[{"a":1},{"b":{"zz":1}}]})",
                           R"({"a":{"contains":null}})"}) {
    Refusal(json);
  }
  Refusal("{\"a\":\"\xff\"}");
}

TEST_F(CatalogFilter, SizeAndDepthAreLimited) {
  std::string deep = R"({"city":"Rome"})";
  for (int i = 0; i < 15; ++i) deep = R"({"AND":[)" + deep + "]}";
  EXPECT_THAT(Matches(deep), ElementsAre("rome"));
  EXPECT_NE(Refusal(R"({"AND":[)" + deep + "]}").find("deeper"), std::string::npos);
  Refusal(std::string(100000, '['));
  std::string nested = R"({"a":)";
  for (int i = 0; i < 100000; ++i) nested += R"({"b":)";
  Refusal(nested);

  std::string wide = R"({"OR":[{"city":"Rome"})", too_wide;
  for (int i = 1; i < 256; ++i) wide += R"(,{"x":{"contains":"y"}})";
  too_wide = wide + R"(,{"x":1}]})";
  wide += "]}";
  EXPECT_THAT(Matches(wide), ElementsAre("rome"));
  Refusal(too_wide);
  Refusal("{\"a\":\"" + std::string(2 << 20, 'x') + "\"}");
  std::string ids = R"({"memory_ids":{"in":[")" + rome_ + "\"";
  for (int i = 0; i < 9000; ++i) ids += ",\"x\"";
  EXPECT_THAT(Matches(ids + "]}}"), ElementsAre("rome"));
}

TEST_F(CatalogFilter, WideAndDeepTogetherStillRun) {
  std::string list;
  for (int i = 0; i < 256; ++i) list += (i ? "," : "") + std::to_string(i + 10);
  std::string many = R"({"n":{"in":[)" + list + "]}}";
  for (int i = 0; i < 15; ++i) many = R"({"OR":[{"q":1},)" + many + R"(,{"city":"Rome"}]})";
  EXPECT_THAT(Matches(many), ElementsAre("rome"));
}

TEST_F(CatalogFilter, HostileKeysAndValuesAreOnlyData) {
  EXPECT_THAT(Matches(R"({"we\"ird\\":"x"})"), ElementsAre("rome"));
  EXPECT_THAT(Matches(R"({"we\"ird\\":{"contains":"x"}})"), ElementsAre("rome"));
  for (const char* json :
       {R"({"x') OR 1 --":"y"})", R"({"\" OR 1 --":"y"})", R"({"$.city":"Rome"})",
        R"({"city":"Rome' OR '1'='1"})", R"({"city":{"in":["x'); DROP TABLE facts; --"]}})",
        R"({"":"x"})", R"({"text":"' OR 1 --"})", R"({"#":"x"})", R"({"[0]":"x"})",
        R"({"a\nb":"x"})"}) {
    if (std::string_view(json).starts_with("{\"$")) {
      Refusal(json);
    } else {
      EXPECT_THAT(Matches(json), IsEmpty()) << json;
    }
  }
  EXPECT_THAT(Matches("{}"), SizeIs(3));
}

}  // namespace
}  // namespace inferscale::test
