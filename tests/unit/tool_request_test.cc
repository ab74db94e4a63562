#include "server/tool_request.h"

#include <gtest/gtest.h>

#include "support/fake_engine.h"

namespace inferscale {
namespace {

using nlohmann::json;

class NoForm : public ToolFormat {
 public:
  explicit NoForm(ToolUse use) : use_(std::move(use)) {}
  const ToolUse& use() const override { return use_; }
  void Constrain(Sampling&) const override {}
  ToolAnswer Parse(const std::string& text, bool) const override { return {text, {}}; }

 private:
  ToolUse use_;
};

class ToolEngine : public testing::FakeEngine {
 public:
  Result<std::shared_ptr<const ToolFormat>> MakeToolFormat(const ToolUse& use) const override {
    return std::shared_ptr<const ToolFormat>(std::make_shared<NoForm>(use));
  }
};

json Tool(const std::string& name, const json& parameters = json::object()) {
  return {{"type", "function"}, {"function", {{"name", name}, {"parameters", parameters}}}};
}

Result<std::shared_ptr<const ToolFormat>> Parse(const json& body,
                                                const std::vector<ChatMessage>& messages = {}) {
  return ToolsOf(body, messages, ToolEngine());
}

/// Whether it is refused with a message that names the field.
::testing::AssertionResult Refuses(const json& body, const std::string& field,
                                   StatusCode code = StatusCode::kInvalidArgument) {
  const auto made = Parse(body);
  if (made.ok()) return ::testing::AssertionFailure() << body.dump() << " is taken";
  if (made.status().code() != code || made.status().message().find("'" + field + "'") != 0)
    return ::testing::AssertionFailure() << made.status().ToString();
  return ::testing::AssertionSuccess();
}

TEST(ToolRequest, ReadsToolsAndChoices) {
  const json weather = Tool("weather", {{"type", "object"}, {"properties", {{"city", {}}}}});
  const auto made = Parse({{"tools", {weather, Tool("now")}}});
  ASSERT_TRUE(made.ok()) << made.status().ToString();
  const ToolUse& use = (*made)->use();
  ASSERT_EQ(use.tools.size(), 2U);
  EXPECT_EQ(use.tools[0].name, "weather");
  EXPECT_EQ(json::parse(use.tools[1].parameters_json)["type"], "object");
  EXPECT_EQ(use.choice, ToolUse::Choice::kAuto);
  EXPECT_TRUE(use.parallel);

  const auto required =
      Parse({{"tools", {weather}}, {"tool_choice", "required"}, {"parallel_tool_calls", false}});
  ASSERT_TRUE(required.ok());
  EXPECT_EQ((*required)->use().choice, ToolUse::Choice::kRequired);
  EXPECT_FALSE((*required)->use().parallel);

  const auto named = Parse({{"tools", {weather, Tool("now")}}, {"tool_choice", Tool("now")}});
  ASSERT_TRUE(named.ok()) << named.status().ToString();
  EXPECT_EQ((*named)->use().only, "now");
  EXPECT_EQ((*named)->use().tools.size(), 2U) << "the prompt names all of them";
}

TEST(ToolRequest, NoneMeansNone) {
  for (const json& body :
       {json::object(), json{{"tools", json::array()}}, json{{"tools", nullptr}},
        json{{"tools", {Tool("f")}}, {"tool_choice", "none"}}, json{{"tool_choice", "none"}}}) {
    const auto made = Parse(body);
    ASSERT_TRUE(made.ok()) << body.dump();
    EXPECT_EQ(*made, nullptr) << body.dump();
  }
  ChatMessage result{"tool", "it rains", ""};
  const auto history = Parse(json::object(), {result});
  ASSERT_TRUE(history.ok());
  ASSERT_NE(*history, nullptr) << "a history with calls needs a form";
  EXPECT_TRUE((*history)->use().tools.empty());
}

TEST(ToolRequest, SaysWhichFieldIsWrong) {
  EXPECT_TRUE(Refuses({{"tools", 5}}, "tools"));
  EXPECT_TRUE(Refuses({{"tools", {5}}}, "tools[0]"));
  EXPECT_TRUE(Refuses({{"tools", {Tool("f"), {{"function", {{"name", "g"}}}}}}}, "tools[1].type"));
  EXPECT_TRUE(
      Refuses({{"tools", {{{"type", "custom"}}}}}, "tools[0].type", StatusCode::kUnsupported));
  EXPECT_TRUE(Refuses({{"tools", {{{"type", "function"}}}}}, "tools[0].function"));
  for (const std::string name :
       {"", "a b", "a.b", "<|im_end|>", "né", "a\"b", "root ::= x", "x\n"}) {
    EXPECT_TRUE(Refuses({{"tools", {Tool(name)}}}, "tools[0].function.name")) << name;
  }
  EXPECT_TRUE(Refuses({{"tools", {Tool(std::string(65, 'a'))}}}, "tools[0].function.name"));
  EXPECT_TRUE(Refuses({{"tools", {Tool("f"), Tool("f")}}}, "tools[1].function.name"));
  EXPECT_TRUE(Refuses({{"tools", {Tool("f", "x")}}}, "tools[0].function.parameters"));
  EXPECT_TRUE(
      Refuses({{"tools", {Tool("f", {{"type", "string"}})}}}, "tools[0].function.parameters.type"));
  EXPECT_TRUE(Refuses({{"tools", {Tool("f", {{"properties", {1}}})}}},
                      "tools[0].function.parameters.properties"));
  json described = Tool("f");
  described["function"]["description"] = 5;
  EXPECT_TRUE(Refuses({{"tools", {described}}}, "tools[0].function.description"));
  described["function"]["description"] = std::string(300'000, 'x');
  EXPECT_TRUE(Refuses({{"tools", {described}}}, "tools"));
  EXPECT_TRUE(Refuses({{"tools", json::array_t(129, Tool("f"))}}, "tools"));
  EXPECT_TRUE(Refuses({{"tool_choice", "auto"}}, "tool_choice"));
  EXPECT_TRUE(Refuses({{"tools", {Tool("f")}}, {"tool_choice", "any"}}, "tool_choice"));
  EXPECT_TRUE(
      Refuses({{"tools", {Tool("f")}}, {"tool_choice", Tool("g")}}, "tool_choice.function.name"));
  EXPECT_TRUE(
      Refuses({{"tools", {Tool("f")}}, {"parallel_tool_calls", "no"}}, "parallel_tool_calls"));
  EXPECT_TRUE(Refuses({{"tools", {Tool("f")}}, {"response_format", {{"type", "json_object"}}}},
                      "response_format", StatusCode::kUnsupported));
  EXPECT_TRUE(Refuses({{"functions", {{{"name", "f"}}}}}, "functions", StatusCode::kUnsupported));
}

TEST(ToolRequest, AnEngineWithoutToolsSaysSo) {
  const testing::FakeEngine engine;
  const auto made = ToolsOf({{"tools", {Tool("f")}}}, {}, engine);
  ASSERT_FALSE(made.ok());
  EXPECT_EQ(made.status().code(), StatusCode::kUnsupported);
}

TEST(ToolRequest, ReadsCallsOfMessages) {
  const auto call = [](const json& arguments) {
    return json{{"tool_calls",
                 {{{"id", "call_1"},
                   {"type", "function"},
                   {"function", {{"name", "weather"}, {"arguments", arguments}}}}}}};
  };
  const auto calls = ToolCallsOf(call("{\"city\": \"Bern\"}"), "messages[1]");
  ASSERT_TRUE(calls.ok()) << calls.status().ToString();
  ASSERT_EQ(calls->size(), 1U);
  EXPECT_EQ(calls->front().id, "call_1");
  EXPECT_EQ(json::parse(calls->front().arguments)["city"], "Bern");
  std::string deep;
  for (int i = 0; i < 10'000; ++i) deep += "{\"a\":";
  for (const json& wrong : {json("{\"city\": "), json("[1]"), json(5), json(deep)}) {
    const auto refused = ToolCallsOf(call(wrong), "messages[1]");
    ASSERT_FALSE(refused.ok());
    EXPECT_NE(refused.status().message().find("messages[1].tool_calls[0].function.arguments"),
              std::string::npos);
  }
  json nameless = call("{}");
  nameless["tool_calls"][0].erase("id");
  EXPECT_FALSE(ToolCallsOf(nameless, "messages[1]").ok());
}

TEST(ToolRequest, ResultsAnswerCalls) {
  ChatMessage user{"user", "Weather?", ""}, asked{"assistant", "", ""}, result{"tool", "rain", ""};
  asked.tool_calls = {{"call_1", "weather", "{}"}, {"call_2", "weather", "{}"}};
  result.tool_call_id = "call_1";
  ChatMessage second = result, stray = result;
  second.tool_call_id = "call_2";
  EXPECT_TRUE(CheckToolResults({{user, asked, result, second}}).ok());
  EXPECT_TRUE(CheckToolResults({{user, asked, second, result}}).ok());
  EXPECT_FALSE(CheckToolResults({{user, result}}).ok());
  EXPECT_FALSE(CheckToolResults({{user, asked, result, result}}).ok());
  EXPECT_FALSE(CheckToolResults({{user, asked, user, result}}).ok());
  stray.tool_call_id = "call_9";
  const Status status = CheckToolResults({{user, asked, stray}});
  EXPECT_NE(status.message().find("messages[2].tool_call_id"), std::string::npos);
}

}  // namespace
}  // namespace inferscale
