// /mcp: messages, revisions, and tools that do what Mem0's calls do.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "server/server.h"
#include "support/api_fixture.h"

namespace inferscale {
namespace {

using nlohmann::json;
using testing::ApiTest;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using testing::Reply;
using ::testing::SizeIs;

constexpr const char* kStateless = "2026-07-28";

class McpRoutes : public ApiTest {
 protected:
  void SetUp() override {
    ApiTest::SetUp();
    Open();
  }
  Reply Post(const json& message, const std::string& key = "admin",
             const NameValues& headers = {}) {
    return Raw("POST", "/mcp", message.dump(), key, headers);
  }
  static json Request(const std::string& method, const json& params = json::object()) {
    return {{"jsonrpc", "2.0"}, {"id", 7}, {"method", method}, {"params", params}};
  }
  /// The result of a tool.
  json Tool(const std::string& name, const json& arguments, const std::string& key = "admin",
            const NameValues& headers = {}) {
    const Reply reply =
        Post(Request("tools/call", {{"name", name}, {"arguments", arguments}}), key, headers);
    EXPECT_EQ(reply.status, 200) << reply.text;
    EXPECT_EQ(reply.body["id"], 7) << reply.text;
    return reply.body.contains("result") ? reply.body["result"] : json::object();
  }
  /// The structured content of a tool that must succeed.
  json Done(const std::string& name, const json& arguments, const std::string& key = "admin",
            const NameValues& headers = {}) {
    const json result = Tool(name, arguments, key, headers);
    EXPECT_EQ(result["isError"], false) << result.dump();
    json content = result.value("structuredContent", json::object());
    EXPECT_EQ(json::parse(result["content"][0]["text"].get<std::string>()), content);
    return content;
  }
  std::string Refused(const std::string& name, const json& arguments,
                      const std::string& key = "admin") {
    const json result = Tool(name, arguments, key);
    EXPECT_EQ(result["isError"], true) << result.dump();
    EXPECT_FALSE(result.contains("structuredContent"));
    return result["content"][0]["text"];
  }
  std::string Add(const std::string& text, const std::string& user,
                  const std::string& key = "admin") {
    const json added =
        Done("add_memory", {{"text", text}, {"user_id", user}, {"infer", false}}, key);
    return added["results"][0]["id"];
  }
  std::vector<std::string> Texts(const json& listed) {
    std::vector<std::string> texts;
    for (const json& item : listed["results"]) texts.push_back(item["memory"]);
    return texts;
  }
  std::vector<std::string> Of(const std::string& user, const std::string& key = "admin") {
    return Texts(Done("get_memories", {{"filters", {{"user_id", user}}}}, key));
  }
};

TEST_F(McpRoutes, InitializeAgreesOnARevision) {
  for (const char* revision : {"2025-03-26", "2025-06-18", "2025-11-25"}) {
    const Reply reply = Post(Request("initialize", {{"protocolVersion", revision}}));
    ASSERT_EQ(reply.status, 200);
    EXPECT_EQ(reply.body["result"]["protocolVersion"], revision);
    EXPECT_TRUE(reply.body["result"]["capabilities"].contains("tools"));
    EXPECT_EQ(reply.body["result"]["serverInfo"]["name"], "inferscale");
  }
  for (const char* revision : {"2024-11-05", "2026-07-28", "2099-01-01", ""}) {
    const Reply reply = Post(Request("initialize", {{"protocolVersion", revision}}));
    EXPECT_EQ(reply.body["result"]["protocolVersion"], "2025-11-25");
  }
  const Reply unknown = Post(Request("ping"), "admin", {{"mcp-protocol-version", "1999-01-01"}});
  EXPECT_EQ(unknown.status, 400);
  EXPECT_EQ(unknown.body["error"]["code"], -32022);
  EXPECT_THAT(unknown.body["error"]["data"]["supported"], SizeIs(4));
}

TEST_F(McpRoutes, ToolsAreListedWithSchemas) {
  const Reply reply = Post(Request("tools/list"));
  std::vector<std::string> names;
  for (const json& tool : reply.body["result"]["tools"]) {
    names.push_back(tool["name"]);
    EXPECT_EQ(tool["inputSchema"]["type"], "object") << tool["name"];
    EXPECT_EQ(tool["outputSchema"]["type"], "object") << tool["name"];
    const bool deletes = tool["name"].get<std::string>().starts_with("delete");
    if (deletes) {
      EXPECT_EQ(tool["annotations"]["destructiveHint"], true) << tool["name"];
    }
  }
  EXPECT_THAT(names, ElementsAre("add_memory", "search_memories", "get_memories", "get_memory",
                                 "update_memory", "delete_memory", "delete_all_memories",
                                 "list_entities", "delete_entities"));
}

TEST_F(McpRoutes, ToolsDoWhatMem0sCallsDo) {
  const std::string id = Add("  the cat sleeps on the sofa\n", "alice");
  Add("the train leaves at nine", "alice");
  Add("the cat is Bob's", "bob");
  EXPECT_EQ(Call("GET", "/v1/memories/" + id + "/").body["memory"],
            "  the cat sleeps on the sofa\n");
  const json found = Done("search_memories", {{"query", "where does the cat sleep"},
                                              {"filters", {{"AND", {{{"user_id", "alice"}}}}}},
                                              {"limit", 1}});
  ASSERT_THAT(found["results"], SizeIs(1));
  EXPECT_EQ(found["results"][0]["id"], id);
  EXPECT_EQ(Done("get_memory", {{"memory_id", id}})["user_id"], "alice");
  EXPECT_EQ(Done("update_memory", {{"memory_id", id}, {"text", "the dog sleeps"}})["memory"],
            "the dog sleeps");
  const json page =
      Done("get_memories", {{"filters", {{"user_id", "alice"}}}, {"page", 2}, {"page_size", 1}});
  EXPECT_EQ(page["count"], 2);
  EXPECT_THAT(Texts(page), ElementsAre("the dog sleeps"));
  EXPECT_FALSE(page.contains("next"));
  Done("delete_memory", {{"memory_id", id}});
  EXPECT_THAT(Refused("get_memory", {{"memory_id", id}}), HasSubstr("not found"));
  EXPECT_THAT(Done("list_entities", json::object())["results"], SizeIs(2));
  Done("delete_all_memories", {{"user_id", "alice"}});
  EXPECT_THAT(Of("alice"), IsEmpty());
  EXPECT_THAT(Of("bob"), SizeIs(1));
  Done("delete_entities", {{"user_id", "bob"}});
  EXPECT_THAT(Of("bob"), IsEmpty());
}

TEST_F(McpRoutes, AConversationIsAddedWholeAndAnsweredWhenItIsThere) {
  const json added = Done("add_memory", {{"text", "ignored"},
                                         {"messages",
                                          {{{"role", "user"}, {"content", "I moved to Oslo"}},
                                           {{"role", "user"}, {"content", "I like fog"}}}},
                                         {"user_id", "alice"},
                                         {"metadata", {{"a", 1}}}});
  EXPECT_THAT(added["results"], SizeIs(2));
  EXPECT_EQ(added["status"], "SUCCEEDED");
  EXPECT_THAT(Of("alice"), ::testing::UnorderedElementsAre("I moved to Oslo", "I like fog"));
}

TEST_F(McpRoutes, TheConnectionsOwnerIsTakenWhereNoneIsNamed) {
  const NameValues carol = {{"x-inferscale-user", "carol"}};
  Done("add_memory", {{"text", "tea"}}, "admin", carol);
  Add("coffee", "dave");
  EXPECT_THAT(Of("carol"), ElementsAre("tea"));
  EXPECT_THAT(Texts(Done("get_memories", json::object(), "admin", carol)), ElementsAre("tea"));
  EXPECT_THAT(
      Texts(Done("get_memories", {{"filters", {{"OR", {{{"user_id", "dave"}}}}}}}, "admin", carol)),
      ElementsAre("coffee"));
  Done("delete_all_memories", json::object(), "admin", carol);
  EXPECT_THAT(Of("carol"), IsEmpty());
  EXPECT_THAT(Of("dave"), SizeIs(1));
  // A key that is bound to an owner says it as well.
  Done("add_memory", {{"text", "juice"}}, "alice");
  EXPECT_THAT(Of("alice", "alice"), ElementsAre("juice"));
  Done("delete_all_memories", json::object(), "alice");
  EXPECT_THAT(Of("alice"), IsEmpty());
  // What no owner can be called is told.
  for (const char* name : {"\xff\xfe", "two words", ""}) {
    const json refused =
        Tool("add_memory", {{"text", "x"}}, "admin", {{"x-inferscale-user", name}});
    EXPECT_EQ(refused["isError"], true) << refused.dump();
  }
  // Nobody is named: nothing happens.
  EXPECT_THAT(Refused("add_memory", {{"text", "x"}}), HasSubstr("whose memory"));
  EXPECT_THAT(Refused("delete_all_memories", json::object()), HasSubstr("whose memories"));
  EXPECT_FALSE(Refused("get_memories", json::object()).empty());
  EXPECT_FALSE(Refused("search_memories", {{"query", "x"}}).empty());
  EXPECT_THAT(Of("dave"), SizeIs(1));
}

TEST_F(McpRoutes, KeysOpenNothingOfOthers) {
  const std::string theirs = Add("theirs", "alice", "other");
  const std::string bobs = Add("bob's", "bob");
  for (const auto& [id, key] : {std::pair{theirs, "admin"}, std::pair{bobs, "alice"}}) {
    for (const char* tool : {"get_memory", "delete_memory"}) {
      EXPECT_EQ(Refused(tool, {{"memory_id", id}}, key),
                Refused(tool, {{"memory_id", "nothing"}}, key));
    }
    EXPECT_EQ(Refused("update_memory", {{"memory_id", id}, {"text", "stolen"}}, key),
              Refused("update_memory", {{"memory_id", "nothing"}, {"text", "stolen"}}, key));
  }
  EXPECT_THAT(Of("alice"), IsEmpty());
  Refused("add_memory", {{"text", "x"}, {"user_id", "bob"}}, "alice");
  Refused("delete_entities", {{"user_id", "bob"}}, "alice");
  const Reply all = Post(
      Request("tools/call", {{"name", "delete_all_memories"}, {"arguments", {{"user_id", "bob"}}}}),
      "alice");
  EXPECT_EQ(all.status, 200) << all.text;
  EXPECT_THAT(Of("bob"), ElementsAre("bob's"));
  EXPECT_THAT(Of("alice", "other"), ElementsAre("theirs"));
  EXPECT_EQ(Post(Request("tools/list"), "no such key").status, 401);
}

TEST_F(McpRoutes, WrongArgumentsAreErrorsThatAModelCanRead) {
  Add("kept", "alice");
  EXPECT_THAT(Refused("get_memory", json::object()), HasSubstr("memory_id"));
  EXPECT_THAT(Refused("get_memory", {{"memory_id", 5}}), HasSubstr("memory_id"));
  EXPECT_THAT(Refused("update_memory", {{"memory_id", "x"}}), HasSubstr("text"));
  EXPECT_THAT(Refused("add_memory", {{"user_id", "alice"}}), HasSubstr("text"));
  EXPECT_THAT(Refused("search_memories", {{"filters", {{"user_id", "alice"}}}}),
              HasSubstr("query"));
  EXPECT_THAT(Refused("search_memories", {{"query", "x"}, {"filters", "user_id"}}),
              HasSubstr("filters"));
  EXPECT_THAT(Refused("search_memories",
                      {{"query", "x"}, {"filters", {{"user_id", "alice"}, {"colour", "red"}}}}),
              HasSubstr("colour"));
  EXPECT_THAT(Refused("delete_all_memories", {{"user_id", "alice"}, {"filters", {{"a", 1}}}}),
              HasSubstr("nothing was deleted"));
  EXPECT_THAT(Refused("delete_all_memories", {{"user_id", ""}}), HasSubstr("empty"));
  EXPECT_THAT(Refused("delete_entities", {{"user_id", "alice"}, {"run_id", "r"}}),
              HasSubstr("exactly one"));
  EXPECT_THAT(Of("alice"), ElementsAre("kept"));
  for (const json& params : std::vector<json>{json::object(),
                                              {{"name", 5}},
                                              {{"name", "rm"}},
                                              {{"name", "get_memory"}, {"arguments", "x"}}}) {
    const Reply reply = Post(Request("tools/call", params));
    EXPECT_EQ(reply.status, 200);
    EXPECT_EQ(reply.body["error"]["code"], -32602) << params;
  }
}

TEST_F(McpRoutes, MessagesAreChecked) {
  const auto code = [&](const std::string& body) {
    const Reply reply = Raw("POST", "/mcp", body);
    EXPECT_EQ(reply.body["jsonrpc"], "2.0") << reply.text;
    EXPECT_EQ(reply.status, 400) << body;
    return reply.body["error"]["code"].get<int>();
  };
  EXPECT_EQ(code("{"), -32700);
  EXPECT_EQ(code(""), -32700);
  EXPECT_EQ(code(std::string(100, '[') + std::string(100, ']')), -32700);
  EXPECT_EQ(code("5"), -32600);
  EXPECT_EQ(code("[]"), -32600);
  EXPECT_EQ(code(R"({"id":1,"method":"ping"})"), -32600);
  EXPECT_EQ(code(R"({"jsonrpc":"2.0","id":1})"), -32600);
  EXPECT_EQ(code(R"({"jsonrpc":"2.0","id":null,"method":"ping"})"), -32600);
  EXPECT_EQ(code(R"({"jsonrpc":"2.0","id":{},"method":"ping"})"), -32600);
  EXPECT_EQ(code(R"({"jsonrpc":"2.0","id":1,"method":5})"), -32600);
  for (const char* method : {"nonsense", "resources/list", "server/discover"}) {
    const Reply reply = Post(Request(method));
    EXPECT_EQ(reply.status, 200);
    EXPECT_EQ(reply.body["error"]["code"], -32601);
  }
  const Reply params =
      Raw("POST", "/mcp", R"({"jsonrpc":"2.0","id":"a","method":"ping","params":[]})");
  EXPECT_EQ(params.body["error"]["code"], -32602);
  EXPECT_EQ(params.body["id"], "a");
  EXPECT_EQ(Post(Request("ping")).body["result"], json::object());
  for (const char* silent : {R"({"jsonrpc":"2.0","method":"notifications/initialized"})",
                             R"({"jsonrpc":"2.0","method":"notifications/nonsense"})",
                             R"({"jsonrpc":"2.0","id":3,"result":{}})"}) {
    const Reply reply = Raw("POST", "/mcp", silent);
    EXPECT_EQ(reply.status, 202) << silent;
    EXPECT_EQ(reply.text, "");
  }
  EXPECT_EQ(Call("GET", "/mcp").status, 405);
  EXPECT_EQ(Call("DELETE", "/mcp").status, 405);
  EXPECT_EQ(Post(Request("ping"), "admin", {{"accept", "text/event-stream"}}).status, 406);
  EXPECT_EQ(
      Post(Request("ping"), "admin", {{"accept", "application/json, text/event-stream"}}).status,
      200);
}

TEST_F(McpRoutes, BatchesAreOfOneRevisionOnly) {
  json ping = Request("ping"), wrong = Request("nonsense"), call;
  wrong["id"] = "second";
  call = Request("tools/call", {{"name", "list_entities"}});
  call["id"] = 9;
  const json note = {{"jsonrpc", "2.0"}, {"method", "notifications/initialized"}};
  const Reply reply = Post(json::array({ping, note, wrong, call, 5}));
  ASSERT_EQ(reply.status, 200) << reply.text;
  ASSERT_THAT(reply.body, SizeIs(4));
  EXPECT_EQ(reply.body[0]["id"], 7);
  EXPECT_EQ(reply.body[1]["error"]["code"], -32601);
  EXPECT_EQ(reply.body[2]["result"]["isError"], false);
  EXPECT_EQ(reply.body[3]["error"]["code"], -32600);
  EXPECT_EQ(Post(json::array({note, note})).status, 202);
  const Reply first = Post(json::array({Request("initialize")}));
  EXPECT_EQ(first.body[0]["error"]["code"], -32601);
  const Reply many = Post(json(std::vector<json>(65, ping)));
  EXPECT_EQ(many.status, 400);
  for (const char* revision : {"2025-06-18", "2025-11-25", kStateless}) {
    const Reply refused = Post(json::array({ping}), "admin", {{"mcp-protocol-version", revision}});
    EXPECT_EQ(refused.status, 400);
    EXPECT_EQ(refused.body["error"]["code"], -32600);
  }
}

TEST_F(McpRoutes, TheStatelessRevisionTellsAllInEachRequest) {
  const json meta = {{"io.modelcontextprotocol/protocolVersion", kStateless},
                     {"io.modelcontextprotocol/clientCapabilities", json::object()}};
  const auto post = [&](const std::string& method, json params, NameValues headers) {
    if (!params.contains("_meta")) params["_meta"] = meta;
    headers.emplace_back("mcp-protocol-version", kStateless);
    return Post(Request(method, params), "admin", headers);
  };
  const Reply discovered =
      post("server/discover", json::object(), {{"mcp-method", "server/discover"}});
  ASSERT_EQ(discovered.status, 200) << discovered.text;
  EXPECT_EQ(discovered.body["result"]["resultType"], "complete");
  EXPECT_EQ(discovered.body["result"]["supportedVersions"][0], kStateless);
  const Reply listed = post("tools/list", json::object(), {{"mcp-method", "tools/list"}});
  EXPECT_THAT(listed.body["result"]["tools"], SizeIs(9));
  EXPECT_TRUE(listed.body["result"].contains("ttlMs"));
  const json call = {{"name", "list_entities"}, {"arguments", json::object()}};
  const Reply called =
      post("tools/call", call, {{"mcp-method", "tools/call"}, {"mcp-name", "list_entities"}});
  EXPECT_EQ(called.body["result"]["isError"], false) << called.text;
  EXPECT_EQ(called.body["result"]["resultType"], "complete");
  EXPECT_EQ(post("initialize", json::object(), {{"mcp-method", "initialize"}}).status, 404);
  for (const NameValues& headers :
       std::vector<NameValues>{{},
                               {{"mcp-method", "tools/list"}},
                               {{"mcp-method", "tools/call"}},
                               {{"mcp-method", "tools/call"}, {"mcp-name", "delete_entities"}}}) {
    const Reply refused = post("tools/call", call, headers);
    EXPECT_EQ(refused.status, 400);
    EXPECT_EQ(refused.body["error"]["code"], -32020);
  }
  const Reply bare =
      post("tools/list", {{"_meta", json::object()}}, {{"mcp-method", "tools/list"}});
  EXPECT_EQ(bare.status, 400);
  EXPECT_EQ(bare.body["error"]["code"], -32602);
}

}  // namespace
}  // namespace inferscale
