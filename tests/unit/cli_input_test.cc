#include <string>

#include <gtest/gtest.h>

#include "base/clock.h"
#include "cli/output.h"
#include "cli/portable_facts.h"
#include "cli/turn_reader.h"

namespace inferscale {
namespace {

Result<ReadTurns> Parse(const std::string& content, TurnFormat format,
                        const TurnDefaults& defaults = {}) {
  return ParseTurns(content, format, "chat", defaults);
}

std::string ErrorOf(const std::string& content, TurnFormat format) {
  const Result<ReadTurns> read = Parse(content, format);
  return read.ok() ? "" : read.status().message();
}

TEST(TurnReader, ReadsMessagesWithEveryKindOfContent) {
  const Result<ReadTurns> read = Parse(
      R"({"model": "x", "messages": [
        {"role": "system", "content": "Be kind."},
        {"role": "user", "name": "Anna", "content": "Hello", "date": "2025-05-07"},
        {"role": "assistant", "content": null, "tool_calls": [{"id": "1"}]},
        {"role": "user", "content": [{"type": "text", "text": "Look"},
          {"type": "image_url", "image_url": {"url": "data:"}}, {"type": "text", "text": "here"}]},
        {"role": "tool", "tool_call_id": "1", "content": "42"}]})",
      TurnFormat::kMessages);
  ASSERT_TRUE(read.ok()) << read.status().ToString();
  ASSERT_EQ(read->turns.size(), 4u);
  EXPECT_EQ(read->turns[1].name, "Anna");
  EXPECT_EQ(FormatDate(read->turns[1].time_ms), "2025-05-07");
  EXPECT_EQ(read->turns[2].content, "Look\nhere");
  EXPECT_EQ(read->turns[3].role, "tool");
}

TEST(TurnReader, ReadsJsonLinesAndNamesTheLineAtFault) {
  const Result<ReadTurns> read = Parse(
      "{\"role\":\"user\",\"content\":\"a\",\"timestamp\":1746576000}\n\n"
      "{\"role\":\"assistant\",\"content\":\"b\"}\r\n",
      TurnFormat::kJsonLines);
  ASSERT_TRUE(read.ok()) << read.status().ToString();
  ASSERT_EQ(read->turns.size(), 2u);
  EXPECT_EQ(FormatDate(read->turns[0].time_ms), "2025-05-07");
  EXPECT_NE(ErrorOf("{\"role\":\"user\"}\n{nonsense\n", TurnFormat::kJsonLines).find("chat:2"),
            std::string::npos);
  EXPECT_NE(ErrorOf("{\"content\":\"x\"}", TurnFormat::kJsonLines).find("role"), std::string::npos);
  EXPECT_NE(ErrorOf("{\"role\":\"king\",\"content\":\"x\"}", TurnFormat::kJsonLines).find("king"),
            std::string::npos);
  EXPECT_NE(ErrorOf("{\"role\":\"user\",\"date\":\"soon\"}", TurnFormat::kJsonLines).find("date"),
            std::string::npos);
}

TEST(TurnReader, BrokenDocumentNamesTheLine) {
  EXPECT_NE(ErrorOf("[\n{\"role\": \"user\",\n nonsense}]", TurnFormat::kMessages).find("chat:3"),
            std::string::npos);
  EXPECT_NE(ErrorOf("{\"a\": 1}", TurnFormat::kMessages).find("no messages"), std::string::npos);
  EXPECT_NE(ErrorOf("[1]", TurnFormat::kMessages).find("message 0"), std::string::npos);
}

TEST(TurnReader, ReadsPlainTextWithNamesRolesAndDates) {
  TurnDefaults defaults;
  defaults.name = "Nora";
  const Result<ReadTurns> read = Parse(
      "# 2025-05-07\nWei: 我搬到里斯本了。\nno name here\n\n[2025-06-01]\nAssistant: Noted.\n"
      "User: and: more\nhttp://example.org is a link\n",
      TurnFormat::kPlainText, defaults);
  ASSERT_TRUE(read.ok()) << read.status().ToString();
  ASSERT_EQ(read->turns.size(), 5u);
  EXPECT_EQ(read->turns[0].name, "Wei");
  EXPECT_EQ(read->turns[0].content, "我搬到里斯本了。");
  EXPECT_EQ(FormatDate(read->turns[0].time_ms), "2025-05-07");
  EXPECT_EQ(read->turns[1].name, "Nora");
  EXPECT_EQ(read->turns[2].role, "assistant");
  EXPECT_EQ(FormatDate(read->turns[2].time_ms), "2025-06-01");
  EXPECT_EQ(read->turns[3].content, "and: more");
  EXPECT_EQ(read->turns[4].content, "http://example.org is a link");
}

TEST(TurnReader, ReplacesWhatIsNotUtf8AndSaysSo) {
  const Result<ReadTurns> read = Parse("Anna: caf\xE9\n", TurnFormat::kPlainText);
  ASSERT_TRUE(read.ok());
  EXPECT_TRUE(read->replaced_bytes);
  EXPECT_EQ(read->turns[0].content, "caf\uFFFD");
}

TEST(TurnReader, BlankInputIsNoTurn) {
  for (const char* blank : {"", "\n \n\t\n", "Anna:  \n", "\xEF\xBB\xBF", "# 2025-05-07\n"}) {
    const Result<ReadTurns> read = Parse(blank, TurnFormat::kPlainText);
    ASSERT_TRUE(read.ok());
    for (const Turn& turn : read->turns)
      EXPECT_NE(turn.content.find_first_not_of(" \t"), std::string::npos);
  }
  EXPECT_TRUE(Parse("[]", TurnFormat::kMessages)->turns.empty());
}

TEST(TurnReader, GuessesTheFormat) {
  EXPECT_EQ(GuessTurnFormat("a.json", "x"), TurnFormat::kMessages);
  EXPECT_EQ(GuessTurnFormat("a.jsonl", "x"), TurnFormat::kJsonLines);
  EXPECT_EQ(GuessTurnFormat("a.txt", "[1]"), TurnFormat::kPlainText);
  EXPECT_EQ(GuessTurnFormat("-", " [{}]"), TurnFormat::kMessages);
  EXPECT_EQ(GuessTurnFormat("-", "{\"role\":\"user\"}\n{}"), TurnFormat::kJsonLines);
  EXPECT_EQ(GuessTurnFormat("-", "{\"messages\": []}"), TurnFormat::kMessages);
  EXPECT_EQ(GuessTurnFormat("-", "{\n\"messages\": []}"), TurnFormat::kMessages);
  EXPECT_EQ(GuessTurnFormat("-", "hello"), TurnFormat::kPlainText);
}

TEST(PortableFacts, ReadsTheAnswerOfMem0) {
  const Result<std::vector<PortableFact>> facts = ParsePortableFacts(
      R"({"results": [{"id": "a-1", "memory": "Likes tea", "hash": "x", "user_id": "anna",
          "metadata": {"city": "Rome", "display_name": "Anna"}, "categories": null,
          "created_at": "2025-05-07T10:00:00.123456-07:00", "updated_at": null}]})",
      "mem0.json");
  ASSERT_TRUE(facts.ok()) << facts.status().ToString();
  ASSERT_EQ(facts->size(), 1u);
  const PortableFact& fact = facts->front();
  EXPECT_EQ(fact.fact.id, "a-1");
  EXPECT_EQ(fact.fact.text, "Likes tea");
  EXPECT_EQ(fact.fact.name, "Anna");
  EXPECT_EQ(fact.scope.user, "anna");
  EXPECT_EQ(FormatIso8601(fact.fact.created_at_ms), "2025-05-07T17:00:00.123+00:00");
  EXPECT_EQ(fact.fact.metadata_json, R"({"city":"Rome","display_name":"Anna"})");
}

TEST(PortableFacts, KeepsWhatMem0HasBesideTheMetadata) {
  const Result<std::vector<PortableFact>> facts = ParsePortableFacts(
      R"({"count": 2, "next": null, "results": [
          {"memory": "a", "agent_id": "x", "app_id": "p", "session_id": "r", "run_id": null,
           "categories": ["food", "旅行"], "metadata": null, "expiration_date": "2030-01-02"},
          {"memory": "b", "run_id": "r2", "categories": ["new"],
           "metadata": {"categories": ["own"]}}]})",
      "mem0.json");
  ASSERT_TRUE(facts.ok()) << facts.status().ToString();
  ASSERT_EQ(facts->size(), 2u);
  EXPECT_EQ(facts->at(0).scope.run, "r");
  EXPECT_EQ(facts->at(0).scope.app, "p");
  EXPECT_EQ(facts->at(0).fact.metadata_json, R"({"categories":["food","旅行"]})");
  EXPECT_EQ(facts->at(0).fact.expiration_date, "2030-01-02");
  EXPECT_EQ(facts->at(1).scope.run, "r2");
  EXPECT_EQ(facts->at(1).fact.metadata_json, R"({"categories":["own"]})");
  EXPECT_FALSE(ParsePortableFacts(R"([{"memory": "a", "categories": "food"}])", "f").ok());
}

TEST(PortableFacts, ReadsAHistory) {
  const Result<std::vector<PortableFact>> facts = ParsePortableFacts(
      R"([{"memory": "b", "history": [{"event": "ADD", "old_memory": null, "new_memory": "a"},
          {"event": "UPDATE", "old_memory": "a", "new_memory": "b", "role": "user",
           "updated_at": "2025-05-07T10:00:00Z"}]}])",
      "f");
  ASSERT_TRUE(facts.ok()) << facts.status().ToString();
  const std::vector<HistoryEntry>& history = facts->front().history;
  ASSERT_EQ(history.size(), 2u);
  EXPECT_FALSE(history[0].old_text.has_value());
  EXPECT_EQ(history[1].old_text, "a");
  EXPECT_EQ(history[1].role, "user");
  EXPECT_EQ(FormatIso8601(history[1].updated_at_ms), "2025-05-07T10:00:00+00:00");
  for (const char* bad : {R"({"memory": "b", "history": {}})", R"({"memory": "b", "history": [1]})",
                          R"({"memory": "b", "history": [{"event": "EAT"}]})"}) {
    EXPECT_EQ(ParsePortableFacts(bad, "f").status().code(), StatusCode::kInvalidArgument) << bad;
  }
}

TEST(PortableFacts, ReadsLinesArraysAndSingleFacts) {
  EXPECT_EQ(ParsePortableFacts("{\"memory\":\"a\"}\n\n{\"text\":\"b\"}\n", "f")->size(), 2u);
  EXPECT_EQ(ParsePortableFacts("[{\"memory\":\"a\"},{\"memory\":\"b\"}]", "f")->size(), 2u);
  EXPECT_EQ(ParsePortableFacts("{\"memory\":\"a\"}", "f")->size(), 1u);
  EXPECT_TRUE(ParsePortableFacts("", "f")->empty());
}

TEST(PortableFacts, NamesWhatIsWrongAndWhere) {
  const auto error = [](const std::string& content) {
    const auto facts = ParsePortableFacts(content, "f");
    return facts.ok() ? std::string() : facts.status().message();
  };
  EXPECT_NE(error("{\"memory\":\"a\"}\n{\"memory\":\"\xE9\"}\n").find("f:2: not UTF-8"),
            std::string::npos);
  EXPECT_NE(error("{\"memory\":\"a\"}\nnonsense\n").find("f:2: not JSON"), std::string::npos);
  EXPECT_NE(error("{\"memory\":\"a\"}\n{\"id\":\"x\"}\n").find("f:2"), std::string::npos);
  EXPECT_NE(error("[{\"memory\":\"a\"},{\"memory\":3}]").find("item 1"), std::string::npos);
  EXPECT_NE(error("[\n{\"memory\":\"a\"\n").find("f:"), std::string::npos);
  EXPECT_NE(error("[{\"memory\":\"a\",\"metadata\":[]}]").find("metadata"), std::string::npos);
  EXPECT_NE(error("[{\"memory\":\"a\",\"created_at\":\"soon\"}]").find("created_at"),
            std::string::npos);
  EXPECT_NE(error("[{\"memory\":\" \"}]").find("no text"), std::string::npos);
  EXPECT_NE(error("{\"facts\": 1, \"results\": 3}").find("no facts"), std::string::npos);
  EXPECT_NE(error(std::string(100000, '[')).find("nested"), std::string::npos);
  EXPECT_NE(error("]]]]]" + std::string(100000, '[')).find("nested"), std::string::npos);
}

TEST(Terminal, ControlsAndReorderingAreEscapedWordsAreNot) {
  EXPECT_EQ(EscapeForTerminal("a\x1B[31mred\x07"), "a\\u{1b}[31mred\\u{7}");
  EXPECT_EQ(EscapeForTerminal("a\nb\tc\r"), "a\\nb\\tc\\r");
  EXPECT_EQ(EscapeForTerminal("a\nb\tc\r", true), "a\nb\tc\\r");
  EXPECT_EQ(EscapeForTerminal(std::string_view("a\0b", 3)), "a\\u{0}b");
  EXPECT_EQ(EscapeForTerminal("\xC2\x9B"), "\\u{9b}");
  EXPECT_EQ(EscapeForTerminal("\u202Eevil\u202C"), "\\u{202e}evil\\u{202c}");
  EXPECT_EQ(EscapeForTerminal("\xFF"), "\uFFFD");
  const std::string words = "ok Ωμέγα 中文 مرحبا 👩‍👩‍👧";
  EXPECT_EQ(EscapeForTerminal(words), words);
}

TEST(Terminal, LongTextsAreCutBetweenCharacters) {
  EXPECT_EQ(ShortForTerminal("abc", 3), "abc");
  EXPECT_EQ(ShortForTerminal("abcd", 3), "abc…");
  EXPECT_EQ(ShortForTerminal("中文字", 2), "中文…");
  EXPECT_EQ(ShortForTerminal(std::string(1000000, '\x01'), 2), "\\u{1}\\u{1}…");
}

}  // namespace
}  // namespace inferscale
