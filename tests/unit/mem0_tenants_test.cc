// Mem0's calls between tenants and keys, and those that erase by owner.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "server/server.h"
#include "support/api_fixture.h"

namespace inferscale {
namespace {

using nlohmann::json;
using testing::ApiTest;
using ::testing::ElementsAre;
using ::testing::IsEmpty;
using testing::Reply;
using ::testing::SizeIs;
using ::testing::UnorderedElementsAre;

class Mem0Tenants : public ApiTest {
 protected:
  void SetUp() override {
    ApiTest::SetUp();
    Open();
  }
  std::string Add(const std::string& text, const json& ids, const std::string& key = "admin",
                  const json& metadata = json::object()) {
    json body = {{"messages", text}, {"infer", false}, {"metadata", metadata}};
    body.update(ids);
    const Reply reply = Call("POST", "/v3/memories/add/", body, key);
    EXPECT_EQ(reply.status, 200) << reply.text;
    return reply.status == 200 ? reply.body["results"][0]["id"].get<std::string>() : "";
  }
  std::vector<std::string> Everything(const std::string& key = "admin") {
    std::vector<std::string> texts;
    const Reply reply = Call("GET", "/memories?show_expired=true&top_k=1000", nullptr, key);
    EXPECT_EQ(reply.status, 200) << reply.text;
    if (reply.status != 200) return texts;
    for (const json& item : reply.body["results"]) texts.push_back(item["memory"]);
    return texts;
  }
};

TEST_F(Mem0Tenants, AKeyAddsNoMoreThanItsLimitOfTheTenantsMemories) {
  Principal limited;
  limited.limits.max_facts = 3;
  keys_["limited"] = limited;
  Add("one", {{"user_id", "alice"}});  // by a key without limits, of the same tenant
  Add("elsewhere", {{"user_id", "alice"}}, "other");
  Add("two", {{"user_id", "ben"}}, "limited");
  const json two_more = {
      {"user_id", "carla"},
      {"infer", false},
      {"messages",
       {{{"role", "user"}, {"content", "three"}}, {{"role", "user"}, {"content", "four"}}}}};
  for (const std::string path : {"/v3/memories/add/", "/v1/memories/", "/memories"}) {
    const Reply refused = Call("POST", path, two_more, "limited");
    EXPECT_EQ(refused.status, 403) << refused.text;
    EXPECT_NE(refused.text.find("max_facts"), std::string::npos) << refused.text;
  }
  EXPECT_THAT(Everything(), SizeIs(2)) << "nothing of a refused add is stored";
  const std::string three = Add("three", {{"user_id", "carla"}}, "limited");
  EXPECT_EQ(Call("POST", "/memories", {{"user_id", "dora"}, {"infer", false}, {"messages", "four"}},
                 "limited")
                .status,
            403);
  EXPECT_EQ(Call("DELETE", "/v1/memories/" + three + "/", nullptr, "limited").status, 200);
  Add("four", {{"user_id", "dora"}}, "limited");
  Add("five", {{"user_id", "dora"}});
}

TEST_F(Mem0Tenants, AKeySendsNoLargerBodiesThanItMay) {
  Principal limited;
  limited.limits.max_body_bytes = 100;
  keys_["limited"] = limited;
  const Reply refused = Call(
      "POST", "/memories", {{"user_id", "alice"}, {"messages", std::string(100, 'x')}}, "limited");
  EXPECT_EQ(refused.status, 413) << refused.text;
  EXPECT_NE(refused.text.find("max_body_bytes"), std::string::npos);
  Add("short", {{"user_id", "a"}}, "limited");
}

TEST_F(Mem0Tenants, TheSameIdsOfTwoTenantsAreTwoOwners) {
  const std::string mine = Add("mine", {{"user_id", "alice"}});
  const std::string theirs = Add("theirs", {{"user_id", "alice"}}, "other");
  EXPECT_THAT(Everything(), ElementsAre("mine"));
  EXPECT_THAT(Everything("other"), ElementsAre("theirs"));
  // Another tenant's id and one that nobody has get the same answer to everything.
  struct Probe {
    const char* method;
    std::string before, after;
    json body;
  };
  for (const Probe& probe : std::vector<Probe>{
           {"GET", "/v1/memories/", "/", nullptr},
           {"GET", "/memories/", "", nullptr},
           {"GET", "/v1/memories/", "/history/", nullptr},
           {"GET", "/memories/", "/history", nullptr},
           {"PUT", "/v1/memories/", "/", {{"text", "stolen"}}},
           {"PUT", "/memories/", "", {{"text", "stolen"}}},
           {"DELETE", "/v1/memories/", "/", nullptr},
           {"DELETE", "/v1/memories/", "/?delete_linked=true", nullptr},
           {"DELETE", "/memories/", "", nullptr},
       }) {
    const Reply foreign =
        Call(probe.method, probe.before + mine + probe.after, probe.body, "other");
    const Reply nothing =
        Call(probe.method, probe.before + "nothing" + probe.after, probe.body, "other");
    EXPECT_EQ(foreign.status, nothing.status) << probe.method << probe.before << probe.after;
    EXPECT_EQ(foreign.text, nothing.text) << probe.method << probe.before << probe.after;
  }
  const json spoofed = {{"query", "mine"},
                        {"threshold", 0},
                        {"tenant", "default"},
                        {"org_id", "default"},
                        {"project_id", "default"},
                        {"filters", {{"OR", {{{"user_id", "alice"}}, {{"user_id", "*"}}}}}}};
  const Reply found = Call("POST", "/v3/memories/search/", spoofed, "other");
  for (const json& item : found.body["results"]) {
    EXPECT_EQ(item["id"], theirs);
  }
  EXPECT_EQ(Call("DELETE", "/v1/memories/?user_id=alice", nullptr, "other").status, 200);
  EXPECT_EQ(Call("POST", "/reset", nullptr, "other").status, 200);
  EXPECT_EQ(Call("DELETE", "/v2/entities/user/alice/", nullptr, "other").status, 200);
  EXPECT_THAT(Everything(), ElementsAre("mine"));
  EXPECT_THAT(Everything("other"), IsEmpty());
}

TEST_F(Mem0Tenants, AnEventIsItsOwnersAlone) {
  const Reply reply =
      Call("POST", "/v3/memories/add/", {{"messages", "x"}, {"user_id", "bob"}}, "admin");
  const std::string path = "/v1/event/" + reply.body["event_id"].get<std::string>() + "/";
  EXPECT_EQ(Call("GET", path).status, 200);
  EXPECT_EQ(Call("GET", path, nullptr, "other").status, 404);
  EXPECT_EQ(Call("GET", path, nullptr, "alice").status, 404);
  EXPECT_EQ(Call("GET", path, nullptr, "alice").text,
            Call("GET", "/v1/event/nothing/", nullptr, "alice").text);
}

TEST_F(Mem0Tenants, ABoundKeyReachesItsOwnerAlone) {
  const std::string hers = Add("hers", {{"agent_id", "x"}}, "alice");
  const std::string his = Add("his", {{"user_id", "bob"}});
  EXPECT_EQ(Call("GET", "/v1/memories/" + hers).body["user_id"], "alice");
  EXPECT_EQ(Call("GET", "/v1/memories/" + his, nullptr, "alice").status, 404);
  EXPECT_EQ(Call("POST", "/v3/memories/add/",
                 {{"messages", "y"}, {"user_id", "bob"}, {"infer", false}}, "alice")
                .status,
            404);
  EXPECT_THAT(Everything("alice"), ElementsAre("hers"));
  EXPECT_THAT(
      Call("POST", "/v3/memories/", {{"filters", {{"user_id", "bob"}}}}, "alice").body["results"],
      IsEmpty());
  EXPECT_THAT(Call("GET", "/v1/entities/", nullptr, "alice").body["results"], SizeIs(2));
  EXPECT_EQ(Call("DELETE", "/v1/memories/?user_id=bob", nullptr, "alice").status, 200);
  EXPECT_EQ(Call("DELETE", "/v2/entities/user/bob/", nullptr, "alice").status, 404);
  EXPECT_EQ(Call("POST", "/reset", nullptr, "alice").status, 403);
  EXPECT_THAT(Everything(), UnorderedElementsAre("hers", "his"));
}

TEST_F(Mem0Tenants, DeleteAllTakesWhatItNamesAndNothingElse) {
  const auto fill = [&] {
    ASSERT_EQ(Call("POST", "/reset").status, 200);
    Add("a", {{"user_id", "alice"}}, "admin", {{"kind", "x"}});
    Add("a+g", {{"user_id", "alice"}, {"agent_id", "g"}});
    Add("b", {{"user_id", "bob"}}, "admin", {{"kind", "x"}});
    Add("odd", {{"user_id", "a/b%c"}});
    Add("o'b", {{"user_id", "o'b"}});
    Add("uni", {{"user_id", "北京"}});
  };
  const std::vector<std::string> all = {"a", "a+g", "b", "odd", "o'b", "uni"};
  const auto left = [&](const std::string& query, const std::vector<std::string>& gone) {
    fill();
    const Reply reply = Call("DELETE", "/v1/memories/?" + query);
    EXPECT_EQ(reply.status, 200) << query << reply.text;
    std::vector<std::string> kept;
    for (const std::string& text : all) {
      if (std::find(gone.begin(), gone.end(), text) == gone.end()) kept.push_back(text);
    }
    EXPECT_THAT(Everything(), ::testing::UnorderedElementsAreArray(kept)) << query;
    if (reply.status != 200) return;
    const Reply event = Call("GET", "/v1/event/" + reply.body["event_id"].get<std::string>() + "/");
    EXPECT_EQ(event.body["status"], "SUCCEEDED");
  };
  left("user_id=alice", {"a", "a+g"});
  left("user_id=alice&agent_id=g&org_id=o&project_id=p", {"a+g"});
  left("user_id=nobody", {});
  left("user_id=a%2Fb%25c", {"odd"});
  left("user_id=%E5%8C%97%E4%BA%AC", {"uni"});
  left("user_id=o%27b", {"o'b"});
  left("filters=%7B%27user_id%27%3A+%27alice%27%7D", {"a", "a+g"});
  left("filters=%7B%27user_id%27%3A+%22o%27b%22%7D", {"o'b"});
  left("filters=%7B%27user_id%27%3A+%27%E5%8C%97%E4%BA%AC%27%7D", {"uni"});
  left("filters=%7B%22user_id%22%3A%22bob%22%7D", {"b"});
  left("filters=%7B%27user_id%27%3A+%27%2A%27%2C+%27metadata%27%3A+%7B%27kind%27%3A+%27x%27%7D%7D",
       {"a", "b"});
  left("user_id=alice&filters=%7B%27agent_id%27%3A+%7B%27ne%27%3A+%27g%27%7D%7D", {"a"});
  fill();
  for (const char* query :
       {"", "user_id=", "user_id=a+b", "filters=%7B%7D", "filters=", "filters=user_id",
        "filters=%7B%27user_id%27%3A+None%7D", "filters=%7B%27user%27%3A+%27alice%27%7D",
        "filters=%7B%27user_id%27%3A+alice%7D", "filters=%5B%5D", "filters=True",
        "filters=%7B%27user_id%27%3A+%27alice%27", "user_id=alice&filters=nonsense",
        "user_id=alice&filter=x", "user_id=alice&metadata=%7B%7D", "user_id=alice&user_id=bob",
        "filters=%7B%27categories%27%3A+%7B%27in%27%3A+%5B%27x%27%5D%7D%7D",
        "filters=%7B%27user_id%27%3A+%7B%27like%27%3A+%27a%27%7D%7D", "org_id=o"}) {
    const Reply reply = Call("DELETE", std::string("/v1/memories/?") + query);
    EXPECT_EQ(reply.status, 400) << query << reply.text;
  }
  EXPECT_EQ(Call("DELETE", "/v1/memories/?user_id=alice", {{"agent_id", "g"}}).status, 400);
  EXPECT_EQ(Call("DELETE", "/memories").status, 400);
  EXPECT_EQ(Call("DELETE", "/memories?user_id=*").status, 400);
  EXPECT_EQ(Call("DELETE", "/memories?filters=%7B%7D&user_id=alice").status, 400);
  EXPECT_THAT(Everything(), SizeIs(all.size()));
  EXPECT_EQ(Call("DELETE", "/memories?user_id=alice&agent_id=g").body["message"],
            "All relevant memories deleted");
  EXPECT_THAT(Everything(), SizeIs(all.size() - 1));
}

TEST_F(Mem0Tenants, DeleteAllTakesThousandsAndPendingAdds) {
  json messages = json::array();
  for (int i = 0; i < 3000; ++i) {
    messages.push_back({{"role", "user"}, {"content", "fact " + std::to_string(i)}});
  }
  ASSERT_EQ(Call("POST", "/v3/memories/add/",
                 {{"messages", messages}, {"user_id", "alice"}, {"infer", false}})
                .status,
            200);
  Add("b", {{"user_id", "bob"}});
  const Reply pending =
      Call("POST", "/v3/memories/add/", {{"messages", "too late"}, {"user_id", "alice"}});
  EXPECT_EQ(Call("DELETE", "/v1/memories/?user_id=alice").status, 200);
  RunAll();
  EXPECT_THAT(Everything(), ElementsAre("b"));
  EXPECT_EQ(
      Call("GET", "/v1/event/" + pending.body["event_id"].get<std::string>() + "/").body["results"],
      json::array());
}

TEST_F(Mem0Tenants, EntitiesAreListedAndDeleted) {
  Add("a", {{"user_id", "al/ice"}});
  Add("b", {{"user_id", "al/ice"}, {"agent_id", "g"}});
  Add("c", {{"app_id", "p"}, {"run_id", "r"}});
  const Reply users = Call("GET", "/v1/entities/?org_id=o&project_id=p");
  ASSERT_EQ(users.status, 200) << users.text;
  EXPECT_EQ(users.body["count"], 4);
  EXPECT_EQ(users.body["total_users"], 1);
  EXPECT_EQ(users.body["results"][0]["name"], "al/ice");
  EXPECT_EQ(users.body["results"][0]["type"], "user");
  EXPECT_EQ(users.body["results"][0]["total_memories"], 2);
  EXPECT_THAT(Call("GET", "/v1/entities/?page=2&page_size=3").body["results"], SizeIs(1));
  EXPECT_THAT(Call("GET", "/entities").body, SizeIs(4));
  EXPECT_EQ(Call("DELETE", "/v2/entities/user/nobody/").status, 404);
  EXPECT_EQ(Call("DELETE", "/v2/entities/tenant/default/").status, 400);
  EXPECT_EQ(Call("DELETE", "/v2/entities/user/al%2Fice/").status, 200);
  EXPECT_THAT(Everything(), ElementsAre("c"));
  EXPECT_EQ(Call("DELETE", "/entities/run/r").status, 200);
  EXPECT_THAT(Everything(), IsEmpty());
  EXPECT_EQ(Call("GET", "/v1/entities/").body["count"], 0);
}

}  // namespace
}  // namespace inferscale
