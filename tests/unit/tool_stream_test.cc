#include "server/tool_stream.h"

#include <gtest/gtest.h>

namespace inferscale {
namespace {

/// Content up to "<", then calls "name(arguments)" behind each "<"; "!" is no form.
class AngleFormat : public ToolFormat {
 public:
  const ToolUse& use() const override { return use_; }
  void Constrain(Sampling&) const override {}
  ToolAnswer Parse(const std::string& text, bool partial) const override {
    ++reads;
    ToolAnswer answer;
    if (text.find('!') != std::string::npos) {
      if (!partial) answer.content = text;
      return answer;
    }
    std::size_t at = text.find('<');
    answer.content = text.substr(0, at);
    while (at != std::string::npos) {
      const std::size_t next = text.find('<', at + 1);
      const std::string call = text.substr(at + 1, next - at - 1);
      const std::size_t open = call.find('(');
      answer.calls.push_back(
          {"", call.substr(0, open), open == std::string::npos ? "" : call.substr(open + 1)});
      at = next;
    }
    return answer;
  }
  mutable int reads = 0;

 private:
  ToolUse use_;
};

struct Said {
  std::string content;
  std::vector<ToolCall> calls;
};

void Add(const std::vector<ToolStream::Delta>& deltas, Said& said) {
  for (const ToolStream::Delta& delta : deltas) {
    if (delta.call < 0) {
      EXPECT_FALSE(delta.content.empty());
      said.content += delta.content;
      continue;
    }
    const auto index = static_cast<std::size_t>(delta.call);
    if (index == said.calls.size()) {
      EXPECT_FALSE(delta.id.empty());
      EXPECT_FALSE(delta.name.empty());
      said.calls.push_back({delta.id, delta.name, ""});
    } else {
      EXPECT_TRUE(delta.id.empty() && delta.name.empty()) << "a call has its name once";
      EXPECT_FALSE(delta.arguments.empty());
    }
    ASSERT_LT(index, said.calls.size());
    said.calls[index].arguments += delta.arguments;
  }
}

Said Stream(const std::string& text, std::size_t step, bool cut = false) {
  ToolStream stream(std::make_shared<AngleFormat>());
  Said said;
  for (std::size_t at = 0; at < text.size(); at += step)
    Add(stream.Push(text.substr(at, step)), said);
  Add(stream.Finish(cut), said);
  EXPECT_EQ(stream.calls(), said.calls.size());
  return said;
}

TEST(ToolStream, DeltasAddUpToTheAnswer) {
  const std::string text = "Let me see.\n<weather({\"city\": \"Bern\"}<now({}";
  for (const std::size_t step : {1, 2, 7, 100}) {
    const Said said = Stream(text, step);
    EXPECT_EQ(said.content, "Let me see.") << "space before a call belongs to neither";
    ASSERT_EQ(said.calls.size(), 2U) << step;
    EXPECT_EQ(said.calls[0].name, "weather");
    EXPECT_EQ(said.calls[0].arguments, "{\"city\": \"Bern\"}");
    EXPECT_EQ(said.calls[1].name, "now");
    EXPECT_EQ(said.calls[1].arguments, "{}");
    EXPECT_NE(said.calls[0].id, said.calls[1].id);
    EXPECT_TRUE(said.calls[0].id.starts_with("call_"));
  }
}

TEST(ToolStream, TextWithoutCallsIsAllSaid) {
  EXPECT_EQ(Stream("Two lines\nand a blank \n", 1).content, "Two lines\nand a blank \n");
  EXPECT_EQ(Stream("", 1).content, "");
}

TEST(ToolStream, WhatHasNoFormIsContentAtItsEnd) {
  const Said whole = Stream("what! ever", 1);
  EXPECT_EQ(whole.content, "what! ever");
  EXPECT_TRUE(whole.calls.empty());
  EXPECT_EQ(Stream("<!", 1, /*cut=*/true).content, "<!");
}

TEST(ToolStream, ACallCutOffKeepsWhatThereIs) {
  const Said said = Stream("<weather({\"ci", 1, /*cut=*/true);
  ASSERT_EQ(said.calls.size(), 1U);
  EXPECT_EQ(said.calls[0].arguments, "{\"ci");
}

TEST(ToolStream, ALongAnswerIsNotReadForEachToken) {
  auto format = std::make_shared<AngleFormat>();
  ToolStream stream(format);
  std::string content;
  for (int i = 0; i < 20'000; ++i) {
    for (const auto& delta : stream.Push("ab")) content += delta.content;
  }
  for (const auto& delta : stream.Finish(false)) content += delta.content;
  EXPECT_EQ(content.size(), 40'000U);
  EXPECT_LT(format->reads, 1000);
}

}  // namespace
}  // namespace inferscale
