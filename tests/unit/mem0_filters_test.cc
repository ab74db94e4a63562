#include "server/mem0_filters.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "server/mem0_python_literal.h"
#include "support/catalog_fixture.h"

namespace inferscale::mem0 {
namespace {

using nlohmann::json;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::UnorderedElementsAre;

constexpr ErrorDialect kServer = ErrorDialect::kMem0Server;
constexpr ErrorDialect kPlatform = ErrorDialect::kMem0Platform;

TEST(PythonLiteral, WhatReprWritesIsRead) {
  const auto same = [](const char* python, const json& expected) {
    const Result<json> parsed = ParseLiteral(python);
    ASSERT_TRUE(parsed.ok()) << python << ": " << parsed.status().ToString();
    EXPECT_EQ(*parsed, expected) << python;
  };
  same("{'user_id': 'alice'}", {{"user_id", "alice"}});
  same(R"({"user_id": "alice"})", {{"user_id", "alice"}});
  same(R"({'user_id': "O'Brien"})", {{"user_id", "O'Brien"}});
  same(R"({'user_id': 'both \' and "'})", {{"user_id", "both ' and \""}});
  same(R"({'a': 'Ünïcode 北京 \u200b \x07 \U0001f600 \n\t\\'})",
       {{"a", "Ünïcode 北京 \u200b \x07 \U0001f600 \n\t\\"}});
  same("{'AND': [{'user_id': 'a'}, {'x': {'in': [1, -2.5, 1e-07, True, False, None]}}]}",
       {{"AND", json::array({json{{"user_id", "a"}},
                             json{{"x", {{"in", {1, -2.5, 1e-07, true, false, nullptr}}}}}})}});
  same("{'t': (1, 2), 'one': (1,), 'none': (), 'l': []}",
       {{"t", {1, 2}}, {"one", json::array({1})}, {"none", json::array()}, {"l", json::array()}});
  same("  {}  ", json::object());
}

TEST(PythonLiteral, WhatIsNotWhollyUnderstoodIsRefused) {
  for (const char* text : {"",
                           "{",
                           "{'a': }",
                           "{'a' 'b'}",
                           "{'a': 'b'",
                           "{'a': 'b'} x",
                           "{'a': 'b'}{'c': 'd'}",
                           "{a: 'b'}",
                           "{'a': b}",
                           "{1: 'b'}",
                           "{'a': 'b', 'a': 'c'}",
                           "{'a': datetime.date(2026, 1, 1)}",
                           "{'a': nan}",
                           "{'a': inf}",
                           "{'a': '\\ud800'}",
                           "{'a': '\\q'}",
                           "{'a': 'x}",
                           "[1 2]",
                           "{'a': (1)}",
                           "{'a': {1, 2}}",
                           "{'a': b'x'}",
                           "{'a': 'b' 'c'}",
                           "{'a': 0x10}",
                           "{'a': '\\x4'}",
                           "{'a': '\\U00110000'}",
                           "{'a': 'b'};",
                           "user_id=alice",
                           "\xff"}) {
    EXPECT_EQ(ParseLiteral(text).status().code(), StatusCode::kInvalidArgument) << text;
  }
  EXPECT_FALSE(ParseLiteral(std::string(10000, '[')).ok());
  EXPECT_FALSE(ParseLiteral(std::string(10000, '(')).ok());
  EXPECT_FALSE(ParseLiteral(std::string(10000, '[') + std::string(10000, ']')).ok());
}

class Mem0Filters : public test::CatalogTest {
 protected:
  void SetUp() override {
    CatalogTest::SetUp();
    Put("a", {.user = "alice"}, {{"city", "Rome"}});
    Put("a+x", {.user = "alice", .agent = "x"}, {{"city", "Oslo"}});
    Put("b", {.user = "bob"}, {{"city", "Rome"}});
    Put("r", {.run = "r1"}, {{"city", "Rome"}});
    Put("foreign", {.tenant = "other", .user = "alice"}, {{"city", "Rome"}});
  }
  void Put(const std::string& text, const Scope& scope, const json& metadata) {
    NewFact fact = test::FactOf(text);
    fact.fact.metadata_json = metadata.dump();
    Add(catalog_->EnsureScope(scope)->id, {fact});
  }
  /// Texts chosen, in no order; {"error"} with the message in `error_`.
  std::vector<std::string> Chosen(const json& filters, ErrorDialect grammar = kPlatform) {
    const Result<Selected> selected = Select(*catalog_, principal_, filters, grammar);
    error_ = selected.status().message();
    if (!selected.ok()) return {"error"};
    std::vector<std::string> texts;
    for (const Selection& part : selected->parts) {
      FactQuery query;
      query.scopes = part.scopes;
      query.filter = part.filter.get();
      for (const std::string& text : TextsOf(query)) texts.push_back(text);
    }
    return texts;
  }

  Principal principal_;
  std::string error_;
};

TEST_F(Mem0Filters, OwnersAreChosenExactly) {
  EXPECT_THAT(Chosen({{"user_id", "alice"}}), UnorderedElementsAre("a", "a+x"));
  EXPECT_THAT(Chosen({{"user_id", "alice"}, {"agent_id", "x"}}), ElementsAre("a+x"));
  EXPECT_THAT(Chosen({{"user_id", {{"in", {"alice", "bob"}}}}}),
              UnorderedElementsAre("a", "a+x", "b"));
  EXPECT_THAT(Chosen({{"user_id", {{"ne", "alice"}}}}), UnorderedElementsAre("b", "r"));
  EXPECT_THAT(Chosen({{"user_id", "*"}}), UnorderedElementsAre("a", "a+x", "b"));
  EXPECT_THAT(Chosen({{"run_id", {{"ne", "*"}}}}), UnorderedElementsAre("a", "a+x", "b"));
  EXPECT_THAT(Chosen({{"user_id", "nobody"}}), IsEmpty());
  EXPECT_THAT(Chosen({{"user_id", {{"in", json::array()}}}}), IsEmpty());
  EXPECT_THAT(Chosen({{"AND", {{{"user_id", "alice"}}, {{"user_id", "bob"}}}}}), IsEmpty());
}

TEST_F(Mem0Filters, OwnersAndConditionsJoinAtAnyDepth) {
  const json rome = {{"metadata", {{"city", "Rome"}}}};
  EXPECT_THAT(Chosen({{"AND", {{{"user_id", "alice"}}, rome}}}), ElementsAre("a"));
  EXPECT_THAT(Chosen({{"OR", {{{"user_id", "bob"}}, {{"agent_id", "x"}}}}}),
              UnorderedElementsAre("b", "a+x"));
  EXPECT_THAT(Chosen({{"OR", {{{"AND", {{{"user_id", "alice"}}, rome}}}, {{"run_id", "r1"}}}}}),
              UnorderedElementsAre("a", "r"));
  EXPECT_THAT(Chosen({{"user_id", "*"}, {"NOT", {rome}}}), ElementsAre("a+x"));
  EXPECT_THAT(Chosen({{"user_id", "*"}, {"NOT", {{{"user_id", "alice"}}}}}), ElementsAre("b"));
  // Neither of bob nor about Rome.
  EXPECT_THAT(Chosen({{"NOT", {{{"user_id", "bob"}}, rome}}}), ElementsAre("a+x"));
  EXPECT_THAT(Chosen({{"user_id", "alice"}, {"city", {{"nin", {"Rome"}}}}}, kServer),
              ElementsAre("a+x"));
  EXPECT_THAT(Chosen({{"user_id", {{"nin", {"bob"}}}}, {"city", "Rome"}}, kServer),
              UnorderedElementsAre("a", "r"));
}

TEST_F(Mem0Filters, NothingOfAnotherTenantOrOwnerIsChosen) {
  principal_.tenant = "other";
  EXPECT_THAT(Chosen({{"user_id", "alice"}}), ElementsAre("foreign"));
  EXPECT_THAT(Chosen({{"user_id", "bob"}}), IsEmpty());
  principal_.tenant = "default";
  principal_.bound = Scope{.user = "alice"};
  EXPECT_THAT(Chosen({{"user_id", "*"}}), UnorderedElementsAre("a", "a+x"));
  EXPECT_THAT(Chosen({{"user_id", "bob"}}), IsEmpty());
  EXPECT_THAT(Chosen({{"OR", {{{"user_id", "bob"}}, {{"run_id", "r1"}}}}}), IsEmpty());
  EXPECT_THAT(Chosen(json::object()), UnorderedElementsAre("a", "a+x"));
  EXPECT_THAT(Chosen({{"NOT", {{{"user_id", "nobody"}}}}}), UnorderedElementsAre("a", "a+x"));
}

TEST_F(Mem0Filters, WhatIsNotUnderstoodIsAnErrorAlsoForNobody) {
  for (const json& filters : std::vector<json>{
           json::object(),
           {{"categories", {{"in", {"food"}}}}},  // whose?
           {{"user_id", nullptr}},
           {{"user_id", ""}},
           {{"user_id", "a b"}},
           {{"user_id", true}},
           {{"user_id", json::array({"alice"})}},
           {{"user_id", json::object()}},
           {{"user_id", {{"nin", {"alice"}}}}},
           {{"user_id", {{"contains", "ali"}}}},
           {{"user_id", {{"in", "alice"}}}},
           {{"user_id", "nobody"}, {"city", "Rome"}},
           {{"user_id", "nobody"}, {"and", {{{"user_id", "alice"}}}}},
           {{"user_id", "nobody"}, {"created_at", {{"eq", "2026-01-01"}}}},
           {{"user_id", "nobody"}, {"created_at", {{"gte", "soon"}}}},
           {{"user_id", "nobody"}, {"categories", "food"}},
           {{"user_id", "nobody"}, {"keywords", {{"eq", "x"}}}},
           {{"user_id", "nobody"}, {"memory_ids", {{"nin", {"x"}}}}},
           {{"user_id", "nobody"}, {"metadata", "x"}},
           {{"user_id", "nobody"}, {"OR", json::array()}},
           {{"user_id", "nobody"}, {"AND", {{"user_id", "x"}}}},
           {{"user_id", "nobody"}, {"NOT", json::array({json::object()})}},
           json::array({json{{"user_id", "alice"}}}),
       }) {
    EXPECT_THAT(Chosen(filters), ElementsAre("error")) << filters;
    EXPECT_FALSE(error_.empty());
  }
  EXPECT_THAT(Chosen({{"user_id", "nobody"}, {"x", {{"like", "y"}}}}, kServer),
              ElementsAre("error"));
  EXPECT_THAT(error_, HasSubstr("like"));
  json deep = {{"user_id", "alice"}};
  for (int i = 0; i < 20; ++i) deep = {{"AND", json::array({deep})}};
  EXPECT_THAT(Chosen(deep), ElementsAre("error"));
  json many = json::array();
  for (int i = 0; i < 300; ++i) many.push_back({{"user_id", std::to_string(i)}});
  EXPECT_THAT(Chosen({{"OR", many}}), ElementsAre("error"));
}

TEST_F(Mem0Filters, SqlInEveryStringIsOnlyText) {
  for (const char* evil : {"' OR 1=1 --", "alice' --", "\"; DROP TABLE facts; --", "%", "*'"}) {
    std::string id = evil;
    std::erase(id, ' ');
    EXPECT_THAT(Chosen({{"user_id", id}}), IsEmpty()) << evil;
    EXPECT_THAT(Chosen({{"user_id", "alice"}, {"metadata", {{"city", evil}}}}), IsEmpty());
    EXPECT_THAT(Chosen({{"user_id", "alice"}, {"metadata", {{evil, "Rome"}}}}), IsEmpty());
  }
  EXPECT_THAT(Chosen({{"user_id", "alice"}}), UnorderedElementsAre("a", "a+x"));
}

}  // namespace
}  // namespace inferscale::mem0
