// Mem0's calls in both dialects, as far as one tenant is concerned.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <future>

#include "base/hash.h"
#include "server/server.h"
#include "support/api_fixture.h"

namespace inferscale {
namespace {

using nlohmann::json;
using testing::ApiTest;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using testing::Reply;
using ::testing::SizeIs;

std::vector<std::string> Texts(const json& items) {
  std::vector<std::string> texts;
  for (const json& item : items) texts.push_back(item["memory"].get<std::string>());
  return texts;
}

class Mem0Routes : public ApiTest {
 protected:
  void SetUp() override {
    ApiTest::SetUp();
    Open();
  }
  /// Adds a text as it is and returns its id.
  std::string Add(const std::string& text, json ids = {{"user_id", "alice"}},
                  json more = json::object(), const std::string& key = "admin") {
    json body = {{"messages", text}, {"infer", false}};
    body.update(ids);
    body.update(more);
    const Reply reply = Call("POST", "/v3/memories/add/", body, key);
    EXPECT_EQ(reply.status, 200) << reply.text;
    return reply.status == 200 ? reply.body["results"][0]["id"].get<std::string>() : "";
  }
  std::vector<std::string> Listed(const json& filters, const std::string& key = "admin") {
    const Reply reply = Call("POST", "/v3/memories/", {{"filters", filters}}, key);
    EXPECT_EQ(reply.status, 200) << reply.text;
    return reply.status == 200 ? Texts(reply.body["results"]) : std::vector<std::string>();
  }
};

TEST_F(Mem0Routes, WithoutInferenceEveryMessageIsAMemoryByteForByte) {
  const std::string text = "  She said: \"Grüß Gott\"\t北京 👩‍🚀\r\n\n<b>&amp; 'x'  ";
  const Reply reply = Call("POST", "/v3/memories/add/",
                           {{"messages",
                             {{{"role", "system"}, {"content", "be brief"}},
                              {{"role", "user"}, {"content", text}, {"name", "Ada"}},
                              {{"role", "assistant"},
                               {"content",
                                {{{"type", "text"}, {"text", "one"}},
                                 {{"type", "image_url"}, {"image_url", "x"}},
                                 {{"type", "text"}, {"text", "two"}}}}}}},
                            {"user_id", "alice"},
                            {"metadata", {{"city", "Wien"}, {"user_id", "bob"}}},
                            {"infer", false},
                            {"unknown", 1}});
  ASSERT_EQ(reply.status, 200) << reply.text;
  EXPECT_EQ(reply.body["status"], "SUCCEEDED");
  ASSERT_THAT(reply.body["results"], SizeIs(2));
  EXPECT_EQ(reply.body["results"][0]["event"], "ADD");
  EXPECT_EQ(reply.body["results"][0]["data"]["memory"], text);
  EXPECT_EQ(reply.body["results"][1]["data"]["memory"], "one\ntwo");
  const std::string id = reply.body["results"][0]["id"];
  const Reply item = Call("GET", "/v1/memories/" + id + "/");
  ASSERT_EQ(item.status, 200);
  EXPECT_EQ(item.body["memory"], text);
  EXPECT_EQ(item.body["hash"], Md5Hex(text));
  EXPECT_EQ(item.body["user_id"], "alice");
  EXPECT_EQ(item.body["agent_id"], nullptr);
  EXPECT_EQ(item.body["metadata"], (json{{"city", "Wien"}}));
  EXPECT_EQ(item.body["created_at"], "2026-09-21T14:13:20+00:00");
  EXPECT_EQ(item.body["updated_at"], item.body["created_at"]);
  const Reply event = Call("GET", "/v1/event/" + reply.body["event_id"].get<std::string>() + "/");
  ASSERT_EQ(event.status, 200) << event.text;
  EXPECT_EQ(event.body["status"], "SUCCEEDED");
  ASSERT_THAT(event.body["results"], SizeIs(2));
  EXPECT_EQ(event.body["results"][0]["id"], id);

  const Reply again = Call("POST", "/v3/memories/add/",
                           {{"messages", text}, {"user_id", "alice"}, {"infer", false}});
  EXPECT_EQ(again.body["results"][0]["event"], "NONE");
  EXPECT_EQ(again.body["results"][0]["id"], id);
}

TEST_F(Mem0Routes, InferenceIsADurableEvent) {
  const Reply reply = Call("POST", "/v3/memories/add/",
                           {{"messages", {{{"role", "user"}, {"content", "I moved to Oslo"}}}},
                            {"filters", {{"user_id", "alice"}}},
                            {"timestamp", 1700000000},
                            {"expiration_date", "2030-01-02"}});
  ASSERT_EQ(reply.status, 200) << reply.text;
  EXPECT_EQ(reply.body["status"], "PENDING");
  const std::string event = "/v1/event/" + reply.body["event_id"].get<std::string>() + "/";
  EXPECT_THAT(Listed({{"user_id", "alice"}}), IsEmpty());
  EXPECT_EQ(Call("GET", event).body["status"], "RUNNING");  // the first of the queue
  const Reply second =
      Call("POST", "/v3/memories/add/", {{"messages", "tea is better"}, {"user_id", "bob"}});
  EXPECT_EQ(
      Call("GET", "/v1/event/" + second.body["event_id"].get<std::string>() + "/").body["status"],
      "PENDING");
  Open();  // as after kill -9: nothing but the catalog is left
  EXPECT_EQ(Call("GET", event).body["status"], "RUNNING");
  RunAll();
  const Reply done = Call("GET", event);
  EXPECT_EQ(done.body["status"], "SUCCEEDED");
  ASSERT_THAT(done.body["results"], SizeIs(1)) << done.text;
  const Reply item =
      Call("GET", "/v1/memories/" + done.body["results"][0]["id"].get<std::string>() + "/");
  EXPECT_EQ(item.body["memory"], "I moved to Oslo");
  EXPECT_EQ(item.body["created_at"], "2023-11-14T22:13:20+00:00");
  EXPECT_EQ(item.body["expiration_date"], "2030-01-02");
  EXPECT_EQ(Call("GET", "/v1/event/nothing/").status, 404);
}

/// An extractor that fails, or waits until it is let go.
class FakeExtractor : public Extractor {
 public:
  Result<std::vector<ExtractedFact>> Extract(const ExtractRequest& request) override {
    if (gate.valid()) gate.wait();
    if (!status.ok()) return status;
    return VerbatimExtractor().Extract(request);
  }
  Status status;
  std::shared_future<void> gate;
};

TEST_F(Mem0Routes, AFailingModelIsAFailedEventOr502AndHalfWritesNothing) {
  const auto extractor = std::make_shared<FakeExtractor>();
  extractor_ = extractor;
  Open();
  extractor->status = Unavailable("the model answers 500");
  const Reply waiting =
      Call("POST", "/memories",
           {{"messages", json::array({json{{"role", "user"}, {"content", "a fact"}}})},
            {"user_id", "alice"}});
  EXPECT_EQ(waiting.status, 502) << waiting.text;
  EXPECT_EQ(waiting.body["code"], "provider_unavailable");
  extractor->status = InvalidArgument("the model refuses");
  const Reply queued =
      Call("POST", "/v3/memories/add/", {{"messages", "a fact"}, {"user_id", "alice"}});
  ASSERT_EQ(queued.status, 200);
  RunAll();
  const Reply event = Call("GET", "/v1/event/" + queued.body["event_id"].get<std::string>() + "/");
  EXPECT_EQ(event.body["status"], "FAILED");
  EXPECT_THAT(event.body["error"].get<std::string>(), HasSubstr("failed_precondition"));
  EXPECT_THAT(event.body["error"].get<std::string>(), Not(HasSubstr("refuses")));
  EXPECT_THAT(event.body["results"], IsEmpty());
  EXPECT_THAT(Listed({{"user_id", "alice"}}), IsEmpty());
}

TEST_F(Mem0Routes, ACallerWhoWaitsForTheModelHoldsNobodyElseUp) {
  const auto extractor = std::make_shared<FakeExtractor>();
  extractor_ = extractor;
  Open();
  std::promise<void> open;
  extractor->gate = open.get_future().share();
  std::vector<std::future<Reply>> waiting;
  for (int i = 0; i < 4; ++i) {
    waiting.push_back(std::async(std::launch::async, [this, i] {
      return Call(
          "POST", "/v1/memories/",
          {{"messages", "fact " + std::to_string(i)}, {"user_id", "alice"}, {"async_mode", false}});
    }));
  }
  EXPECT_EQ(Call("POST", "/search", {{"query", "fact"}, {"user_id", "alice"}}).status, 200);
  open.set_value();
  for (std::future<Reply>& each : waiting) {
    const Reply reply = each.get();
    EXPECT_EQ(reply.status, 200) << reply.text;
    EXPECT_THAT(reply.body["results"], SizeIs(1));
  }
  EXPECT_THAT(Listed({{"user_id", "alice"}}), SizeIs(4));
}

TEST_F(Mem0Routes, TheServersDialectAddsAndAnswersAtOnce) {
  const Reply reply = Call("POST", "/memories",
                           {{"messages", {{{"role", "user"}, {"content", "I like tea"}}}},
                            {"user_id", "alice"},
                            {"run_id", 7}});
  ASSERT_EQ(reply.status, 200) << reply.text;
  ASSERT_THAT(reply.body["results"], SizeIs(1));
  EXPECT_EQ(reply.body["results"][0]["memory"], "I like tea");
  EXPECT_EQ(reply.body["results"][0]["event"], "ADD");
  const std::string id = reply.body["results"][0]["id"];
  const Reply item = Call("GET", "/memories/" + id);
  EXPECT_EQ(item.body["run_id"], "7");
  EXPECT_EQ(item.body["metadata"], nullptr);
  EXPECT_EQ(item.body["role"], "user");
  EXPECT_TRUE(item.body.contains("score"));
  EXPECT_FALSE(item.body.contains("agent_id"));
  const Reply missing = Call("GET", "/memories/nothing");
  EXPECT_EQ(missing.status, 200);
  EXPECT_EQ(missing.text, "null");
  EXPECT_THAT(Texts(Call("GET", "/memories?user_id=alice&top_k=5").body["results"]),
              ElementsAre("I like tea"));
  EXPECT_THAT(Call("GET", "/memories?user_id=alice&top_k=0").body["results"], IsEmpty());
  const Reply all = Call("GET", "/memories");
  ASSERT_THAT(all.body["results"], SizeIs(1));
  EXPECT_TRUE(all.body["results"][0].contains("agent_id"));
  EXPECT_EQ(Call("GET", "/memories", nullptr, "plain").status, 403);
  EXPECT_EQ(Call("GET", "/memories?user_id=alice&top_k=x").status, 400);
}

TEST_F(Mem0Routes, SearchFindsFiltersAndExplains) {
  Add("the cat sleeps", {{"user_id", "alice"}}, {{"metadata", {{"kind", "pet"}}}});
  Add("the cat eats fish", {{"user_id", "alice"}, {"run_id", "r1"}});
  Add("the cat is bob's", {{"user_id", "bob"}});
  RunAll();
  const auto found = [&](json body) {
    body["query"] = "the cat sleeps";
    body["threshold"] = 0;
    const Reply reply = Call("POST", "/v3/memories/search/", body);
    EXPECT_EQ(reply.status, 200) << reply.text;
    return Texts(reply.body["results"]);
  };
  EXPECT_THAT(found({{"filters", {{"user_id", "alice"}}}}),
              ElementsAre("the cat sleeps", "the cat eats fish"));
  EXPECT_THAT(found({{"filters", {{"user_id", "*"}}}, {"top_k", 1}}),
              ElementsAre("the cat sleeps"));
  EXPECT_THAT(found({{"filters", {{"user_id", "*"}, {"NOT", {{{"user_id", "alice"}}}}}}}),
              ElementsAre("the cat is bob's"));
  EXPECT_THAT(found({{"filters", {{"user_id", "alice"}}}, {"metadata", {{"kind", "pet"}}}}),
              ElementsAre("the cat sleeps"));
  // What is in two parts of a filter is found once, the best first.
  EXPECT_THAT(found({{"filters",
                      {{"OR",
                        {{{"AND", {{{"user_id", "alice"}}, {{"metadata", {{"kind", "pet"}}}}}}},
                         {{"user_id", "bob"}}}}}}}),
              ElementsAre("the cat sleeps", "the cat is bob's"));
  const Reply one = Call("POST", "/v2/memories/search",
                         {{"query", "cat sleeps"}, {"user_id", "alice"}, {"fields", {"memory"}}});
  ASSERT_FALSE(one.body["results"].empty()) << one.text;
  EXPECT_THAT(one.body["results"][0], SizeIs(2));
  const Reply explained =
      Call("POST", "/search",
           {{"query", "cat"}, {"filters", {{"user_id", "alice"}}}, {"explain", true}});
  ASSERT_FALSE(explained.body["results"].empty()) << explained.text;
  EXPECT_TRUE(explained.body["results"][0]["score_details"].contains("semantic_score"));
  for (const json& body : std::vector<json>{
           {{"query", "  "}, {"user_id", "alice"}},
           {{"query", 1}, {"user_id", "alice"}},
           {{"user_id", "alice"}},
           {{"query", "cat"}},
           {{"query", "cat"}, {"filters", json::object()}},
           {{"query", "cat"}, {"filters", "user_id"}},
           {{"query", "cat"}, {"user_id", "alice"}, {"top_k", 0}},
           {{"query", "cat"}, {"user_id", "alice"}, {"top_k", true}},
           {{"query", "cat"}, {"user_id", "alice"}, {"threshold", 2}},
       }) {
    EXPECT_EQ(Call("POST", "/v3/memories/search/", body).status, 400) << body;
  }
}

TEST_F(Mem0Routes, ListsComeInPages) {
  for (int i = 0; i < 7; ++i) {
    now_ += 1000;
    Add("fact " + std::to_string(i), {{"user_id", "alice"}, {"run_id", "r"}});
  }
  const json filters = {{"filters", {{"user_id", "alice"}}}};
  const Reply reply = Call("POST", "/v3/memories/?page=2&page_size=3", filters);
  ASSERT_EQ(reply.status, 200) << reply.text;
  EXPECT_EQ(reply.body["count"], 7);
  EXPECT_EQ(reply.body["next"], "http://localhost:8420/v3/memories/?page=3&page_size=3");
  EXPECT_EQ(reply.body["previous"], "http://localhost:8420/v3/memories/?page=1&page_size=3");
  EXPECT_THAT(Texts(reply.body["results"]), ElementsAre("fact 3", "fact 2", "fact 1"));
  EXPECT_EQ(reply.body["results"][0]["session_id"], "r");
  const Reply last = Call("POST", "/v3/memories/?page=3&page_size=3", filters);
  EXPECT_EQ(last.body["next"], nullptr);
  EXPECT_THAT(Texts(last.body["results"]), ElementsAre("fact 0"));
  EXPECT_THAT(Call("POST", "/v3/memories/?page=4&page_size=3", filters).body["results"], IsEmpty());
  json body = filters;
  body["page"] = 1;
  body["page_size"] = 2;
  EXPECT_THAT(Texts(Call("POST", "/v2/memories", body).body["results"]),
              ElementsAre("fact 6", "fact 5"));
  EXPECT_THAT(Texts(Call("GET", "/v1/memories/?user_id=alice&page_size=1").body["results"]),
              ElementsAre("fact 6"));
  EXPECT_EQ(Call("POST", "/v3/memories/?page=0", filters).status, 400);
  EXPECT_EQ(Call("POST", "/v3/memories/?page_size=5000", filters).status, 400);
  EXPECT_EQ(Call("POST", "/v3/memories/?page=1&page=2", filters).status, 400);
  body = filters;
  body["start_date"] = "2026-09-21T14:13:25Z";
  EXPECT_THAT(Texts(Call("POST", "/v3/memories", body).body["results"]),
              ElementsAre("fact 6", "fact 5", "fact 4"));
  // Two parts of one filter are one list, newest first.
  body = {{"filters",
           {{"OR",
             {{{"AND", {{{"run_id", "r"}}, {{"keywords", {{"icontains", "FACT 2"}}}}}}},
              {{"AND", {{{"user_id", "zoe"}}}}}}}}}};
  Add("of zoe", {{"user_id", "zoe"}});
  EXPECT_THAT(Texts(Call("POST", "/v3/memories", body).body["results"]),
              ElementsAre("of zoe", "fact 2"));
}

TEST_F(Mem0Routes, ExpiredMemoriesAreHiddenUnlessAskedFor) {
  const std::string id =
      Add("old news", {{"user_id", "alice"}}, {{"expiration_date", "2026-09-20"}});
  EXPECT_THAT(Listed({{"user_id", "alice"}}), IsEmpty());
  EXPECT_THAT(
      Call("POST", "/v3/memories/", {{"filters", {{"user_id", "alice"}}}, {"show_expired", true}})
          .body["results"],
      SizeIs(1));
  json search = {{"query", "old news"}, {"user_id", "alice"}, {"threshold", 0}};
  EXPECT_THAT(Call("POST", "/search", search).body["results"], IsEmpty());
  search["show_expired"] = true;
  EXPECT_THAT(Call("POST", "/search", search).body["results"], SizeIs(1));
  EXPECT_EQ(Call("GET", "/v1/memories/" + id).status, 200);
  EXPECT_EQ(Call("PUT", "/v1/memories/" + id, {{"expiration_date", nullptr}}).status, 200);
  EXPECT_THAT(Listed({{"user_id", "alice"}}), ElementsAre("old news"));
  EXPECT_EQ(Call("PUT", "/v1/memories/" + id, {{"expiration_date", "soon"}}).status, 400);
  EXPECT_EQ(Call("PUT", "/v1/memories/" + id, {{"expiration_date", 5}}).status, 400);
}

TEST_F(Mem0Routes, UpdateDeleteAndHistory) {
  const std::string id = Add("tea", {{"user_id", "alice"}}, {{"metadata", {{"a", 1}}}});
  now_ += 1000;
  const Reply updated = Call("PUT", "/v1/memories/" + id + "/",
                             {{"text", "coffee"}, {"metadata", {{"b", 2}, {"user_id", "bob"}}}});
  ASSERT_EQ(updated.status, 200) << updated.text;
  EXPECT_EQ(updated.body["memory"], "coffee");
  EXPECT_EQ(updated.body["metadata"], (json{{"b", 2}}));
  EXPECT_EQ(updated.body["user_id"], "alice");
  EXPECT_EQ(Call("PUT", "/memories/" + id, {{"text", "water"}}).body["message"],
            "Memory updated successfully!");
  EXPECT_EQ(Call("PUT", "/memories/" + id, {{"other", 1}}).status, 400);
  EXPECT_EQ(Call("PUT", "/memories/" + id, {{"text", " "}}).status, 400);
  EXPECT_EQ(Call("PUT", "/memories/" + id, {{"text", 1}}).status, 400);
  EXPECT_EQ(Call("PUT", "/memories/nothing", {{"text", "x"}}).status, 404);
  Add("milk");
  EXPECT_EQ(Call("PUT", "/v1/memories/" + id + "/", {{"text", "MILK"}}).status, 409);

  const Reply deleted = Call("DELETE", "/v1/memories/" + id + "/");
  EXPECT_EQ(deleted.status, 200) << deleted.text;
  EXPECT_EQ(Call("DELETE", "/v1/memories/" + id + "/").status, 404);
  EXPECT_EQ(Call("GET", "/v1/memories/" + id + "/").status, 404);
  const Reply history = Call("GET", "/v1/memories/" + id + "/history/");
  ASSERT_EQ(history.status, 200);
  ASSERT_THAT(history.body, SizeIs(4)) << history.text;
  EXPECT_EQ(history.body[0]["event"], "ADD");
  EXPECT_EQ(history.body[0]["new_memory"], "tea");
  EXPECT_EQ(history.body[1]["old_memory"], "tea");
  EXPECT_EQ(history.body[3]["event"], "DELETE");
  EXPECT_EQ(history.body[3]["new_memory"], nullptr);
  EXPECT_EQ(history.body[3]["user_id"], "alice");
  EXPECT_EQ(Call("GET", "/memories/" + id + "/history").body[3]["is_deleted"], true);
  EXPECT_EQ(Call("GET", "/memories/nothing/history").text, "[]");
  EXPECT_EQ(Call("GET", "/v1/memories/nothing/history").status, 404);
}

TEST_F(Mem0Routes, DeletingWithWhatItSupersededTakesTheChain) {
  Scope scope;
  scope.user = "alice";
  const auto add = [&](const std::string& id, const std::string& text,
                       std::vector<std::string> supersedes) {
    NewFact fact;
    fact.fact.id = id;
    fact.fact.text = text;
    fact.supersedes = std::move(supersedes);
    ASSERT_TRUE(service().AddFacts(scope, {}, {fact}).ok());
  };
  add("one", "lives in Rome", {});
  add("two", "lives in Oslo", {"one"});
  add("three", "lives in Bern", {"two"});
  add("else", "likes tea", {});
  EXPECT_THAT(Texts(Call("POST", "/v3/memories/",
                         {{"filters", {{"user_id", "alice"}}}, {"latest_only", true}})
                        .body["results"]),
              ElementsAre("likes tea", "lives in Bern"));
  const Reply reply = Call("DELETE", "/v1/memories/three/?delete_linked=true");
  ASSERT_EQ(reply.status, 200) << reply.text;
  EXPECT_EQ(reply.body["cascade_count"], 2);
  EXPECT_THAT(Listed({{"user_id", "alice"}}), ElementsAre("likes tea"));
}

TEST_F(Mem0Routes, BatchesAreCheckedWholeBeforeAnythingIsDone) {
  const std::string a = Add("a"), b = Add("b"), c = Add("c");
  const auto batch = [&](const char* method, json memories, const char* key = "admin") {
    return Call(method, "/v1/batch/", {{"memories", std::move(memories)}}, key).status;
  };
  EXPECT_EQ(batch("PUT", {{{"memory_id", a}, {"text", "A new"}},
                          {{"memory_id", b}, {"metadata", {{"x", 1}}}}}),
            200);
  EXPECT_THAT(Listed({{"user_id", "alice"}}), ElementsAre("c", "b", "A new"));
  for (const json& bad : std::vector<json>{
           json::array(),
           "x",
           {{{"memory_id", a}, {"text", "1"}}, {{"memory_id", "nothing"}, {"text", "2"}}},
           {{{"memory_id", a}, {"text", "1"}}, {{"memory_id", b}}},
           {{{"memory_id", a}, {"text", "1"}}, {{"memory_id", b}, {"text", 5}}},
           {{{"memory_id", a}, {"text", "1"}}, {{"text", "2"}}},
           {{{"memory_id", a}, {"text", "1"}}, {{"memory_id", a}, {"text", "2"}}},
           {{{"memory_id", a}, {"text", "1"}}, 5},
       }) {
    EXPECT_THAT(batch("PUT", bad), ::testing::AnyOf(400, 404)) << bad;
  }
  EXPECT_EQ(batch("DELETE", {{{"memory_id", a}}, {{"memory_id", "nothing"}}}), 404);
  EXPECT_EQ(batch("DELETE", {{{"memory_id", a}}}, "other"), 404);
  EXPECT_THAT(Listed({{"user_id", "alice"}}), ElementsAre("c", "b", "A new"));
  EXPECT_EQ(batch("DELETE", {{{"memory_id", a}}, {{"memory_id", c}}}), 200);
  EXPECT_THAT(Listed({{"user_id", "alice"}}), ElementsAre("b"));
}

TEST_F(Mem0Routes, AddsWithWrongFieldsAreRefusedByName) {
  const json good = {{"messages", "x"}, {"user_id", "alice"}};
  const auto refused = [&](json change, const std::string& word) {
    json body = good;
    body.update(change);
    const Reply reply = Call("POST", "/v3/memories/add/", body);
    EXPECT_EQ(reply.status, 400) << change << reply.text;
    if (reply.status != 400) return;
    EXPECT_THAT(reply.body["detail"].get<std::string>(), HasSubstr(word)) << change;
    EXPECT_EQ(reply.body["detail"], reply.body["error"]);
  };
  refused({{"user_id", nullptr}}, "user_id");
  refused({{"user_id", ""}}, "user_id");
  refused({{"user_id", "a b"}}, "user_id");
  refused({{"user_id", {"a"}}}, "user_id");
  refused({{"user_id", "*"}}, "*");
  refused({{"messages", nullptr}}, "messages");
  refused({{"messages", json::array()}}, "messages");
  refused({{"messages", 5}}, "messages");
  refused({{"messages", {5}}}, "messages[0]");
  refused({{"messages", {{{"role", "user"}}}}}, "messages[0].content");
  refused({{"messages", {{{"role", "user"}, {"content", 5}}}}}, "messages[0].content");
  refused({{"messages", {{{"role", 5}, {"content", "x"}}}}}, "role");
  refused({{"messages", " \n"}}, "blank");
  refused({{"metadata", "x"}}, "metadata");
  refused({{"infer", "no"}}, "infer");
  refused({{"expiration_date", "tomorrow"}}, "expiration_date");
  refused({{"timestamp", "yesterday"}}, "timestamp");
  refused({{"timestamp", 1e18}}, "timestamp");
  refused({{"filters", {{"city", "Rome"}}}}, "filters");
  refused({{"filters", {{"user_id", "bob"}}}}, "user_id");
  refused({{"memory_type", "semantic"}}, "memory_type");
  EXPECT_EQ(Call("POST", "/v3/memories/add/",
                 {{"messages", "x"}, {"agent_id", "a"}, {"memory_type", "procedural_memory"}})
                .status,
            501);
  EXPECT_EQ(Raw("POST", "/v3/memories/add/", "{").status, 400);
  EXPECT_EQ(Raw("POST", "/v3/memories/add/", "").status, 400);
  EXPECT_EQ(Raw("POST", "/memories", "[]").status, 400);
  EXPECT_THAT(Listed({{"user_id", "*"}}), IsEmpty());
}

TEST_F(Mem0Routes, WhatThereIsNotSaysSoInJson) {
  for (const auto& [method, path] : std::vector<std::pair<const char*, const char*>>{
           {"POST", "/v1/exports/"},
           {"POST", "/v1/exports/get/"},
           {"POST", "/v1/feedback/"},
           {"POST", "/v1/summary/"},
           {"GET", "/v1/stats/"},
           {"POST", "/v2/profiles/jobs/"},
           {"GET", "/v2/entities/user/a/profile/"},
           {"GET", "/api/v1/orgs/organizations/o/projects/p/"},
           {"GET", "/api/v1/webhooks/projects/p/"},
           {"GET", "/configure"},
           {"POST", "/generate-instructions"},
           {"POST", "/auth/login"}}) {
    const Reply reply = Call(method, path, json::object());
    EXPECT_EQ(reply.status, 501) << path;
    EXPECT_TRUE(reply.body.contains("detail")) << path;
  }
  const Reply ping = Call("GET", "/v1/ping/");
  EXPECT_EQ(ping.status, 200);
  EXPECT_EQ(ping.body["status"], "ok");
}

}  // namespace
}  // namespace inferscale
