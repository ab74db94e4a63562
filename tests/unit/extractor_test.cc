#include "memory/extractor.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "memory/extraction_answer.h"
#include "memory/injected_texts.h"
#include "memory/sentence_splitter.h"
#include "support/http_server.h"

namespace inferscale {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using testing::HttpExchange;
using testing::HttpReply;
using testing::HttpServer;
using ::testing::IsEmpty;
using ::testing::Not;
using ::testing::SizeIs;

Turn MakeTurn(std::string role, std::string content, std::string name = "", TimeMs time_ms = 0) {
  Turn turn;
  turn.role = std::move(role);
  turn.content = std::move(content);
  turn.name = std::move(name);
  turn.time_ms = time_ms;
  return turn;
}

std::vector<std::string> Texts(const std::vector<ExtractedFact>& facts) {
  std::vector<std::string> texts;
  for (const ExtractedFact& fact : facts) texts.push_back(fact.text);
  return texts;
}

std::vector<std::string> Verbatim(const ExtractRequest& request) {
  return Texts(*VerbatimExtractor().Extract(request));
}

std::vector<std::string> Split(std::string_view text, std::size_t most) {
  std::vector<std::string> pieces;
  for (const std::string_view piece : SplitSentences(text, most)) pieces.emplace_back(piece);
  return pieces;
}

TEST(SplitSentences, LeavesShortTextsUntouched) {
  EXPECT_THAT(Split("  One. Two.\n", 100), ElementsAre("  One. Two.\n"));
  EXPECT_THAT(Split("中文字", 3), ElementsAre("中文字"));
}

TEST(SplitSentences, CutsBehindTheLastSentenceThatFits) {
  EXPECT_THAT(Split("One two. Three four! Five six?", 21),
              ElementsAre("One two. Three four!", "Five six?"));
  EXPECT_THAT(Split("He said \"no.\" Then left.", 15),
              ElementsAre("He said \"no.\"", "Then left."));
  EXPECT_THAT(Split("first line\nsecond line", 15), ElementsAre("first line", "second line"));
}

TEST(SplitSentences, DoesNotTakeADecimalPointForAStop) {
  EXPECT_THAT(Split("It costs 3.50 euros a piece", 16),
              ElementsAre("It costs 3.50", "euros a piece"));
}

TEST(SplitSentences, KnowsChinesePunctuation) {
  EXPECT_THAT(Split("我住在北京。我喜欢喝茶！你呢？", 8),
              ElementsAre("我住在北京。", "我喜欢喝茶！", "你呢？"));
  EXPECT_THAT(Split("他说：“好的。”然后走了。", 9), ElementsAre("他说：“好的。”", "然后走了。"));
}

TEST(SplitSentences, CutsEndlessWordsBetweenCharacters) {
  EXPECT_THAT(Split("abcdefgh", 3), ElementsAre("abc", "def", "gh"));
  EXPECT_THAT(Split("中中中中", 3), ElementsAre("中中中", "中"));
  // A letter with its accent, and a family joined of three people, stay whole.
  EXPECT_THAT(Split("abe\u0301cd", 3), ElementsAre("ab", "e\u0301c", "d"));
  EXPECT_THAT(Split("a👩‍👩‍👧b", 5), ElementsAre("a", "👩‍👩‍👧", "b"));
}

TEST(SplitSentences, EveryPieceFitsAndNothingIsLost) {
  std::string text;
  for (int i = 0; i < 3000; ++i) {
    static const char* const kParts[] = {"word", " ",  "中",   "。", ". ",
                                         "é",    "\n", "🙂", "x1", "\xff"};
    text += kParts[(i * i + i / 7) % 10];
  }
  const auto letters = [](std::string_view view) {
    std::string kept;
    for (const char c : view) {
      if (c != ' ' && c != '\n') kept += c;
    }
    return kept;
  };
  std::string joined;
  for (const std::string_view piece : SplitSentences(text, 50)) {
    EXPECT_LE(CountCharacters(piece), 50u);
    EXPECT_FALSE(piece.empty());
    joined += piece;
  }
  EXPECT_EQ(letters(joined), letters(text));
}

TEST(VerbatimExtractor, KeepsTurnsByteForByteWithTheirSource) {
  ExtractRequest request;
  request.turns = {
      MakeTurn("system", "Be nice."),  MakeTurn("user", "  I like tea.\n", "Ana", 1234),
      MakeTurn("assistant", "Noted!"), MakeTurn("tool", "{}"),
      MakeTurn("user", " \n\t\u3000"), MakeTurn("user", "")};
  const std::vector<ExtractedFact> facts = *VerbatimExtractor().Extract(request);
  ASSERT_THAT(facts, SizeIs(2));
  EXPECT_EQ(facts[0].text, "  I like tea.\n");
  EXPECT_EQ(facts[0].name, "Ana");
  EXPECT_EQ(facts[0].event_time_ms, 1234);
  EXPECT_THAT(facts[0].source_turn_indexes, ElementsAre(1));
  EXPECT_EQ(facts[1].text, "Noted!");
  EXPECT_THAT(facts[1].source_turn_indexes, ElementsAre(2));
}

TEST(VerbatimExtractor, SplitsLongTurnsIntoFactsOfOneSource) {
  ExtractRequest request;
  std::string text;
  for (int i = 0; i < 40; ++i) text += "This is sentence number " + std::to_string(i) + ". ";
  request.turns = {MakeTurn("user", "short"), MakeTurn("user", text)};
  const std::vector<ExtractedFact> facts = *VerbatimExtractor().Extract(request);
  ASSERT_GT(facts.size(), 2u);
  for (std::size_t i = 1; i < facts.size(); ++i) {
    EXPECT_LE(CountCharacters(facts[i].text), kMaxFactCharacters);
    EXPECT_EQ(facts[i].text.back(), '.');
    EXPECT_THAT(facts[i].source_turn_indexes, ElementsAre(1));
  }
}

TEST(VerbatimExtractor, SurvivesAMegabyteAndBytesThatAreNoText) {
  ExtractRequest request;
  request.turns = {MakeTurn("user", std::string(1 << 20, 'a')),
                   MakeTurn("user", std::string(700, '\xff')),
                   MakeTurn("user", std::string(700, '\0'))};
  const auto facts = VerbatimExtractor().Extract(request);
  ASSERT_TRUE(facts.ok());
  std::size_t bytes = 0;
  for (const ExtractedFact& fact : *facts) bytes += fact.text.size();
  EXPECT_GE(bytes, (std::size_t{1} << 20) + 700);
}

TEST(VerbatimExtractor, TakesNoInjectedMemoryForNews) {
  ExtractRequest request;
  request.exclude = {"I like tea.", "Tom adopted\na cat"};
  request.turns = {MakeTurn("user", " i like TEA. "),
                   MakeTurn("user", "Memories:\n- (2023-05-07) Ana: I like tea.\nWhat do I like?"),
                   MakeTurn("assistant", "- Tom adopted a cat"),
                   MakeTurn("user", "I like tea. And cake.")};
  EXPECT_THAT(Verbatim(request),
              ElementsAre("Memories:\nWhat do I like?", "I like tea. And cake."));
}

TEST(ParseExtractionAnswer, ReadsTheWholeObject) {
  const std::vector<AnswerFact> facts = ParseExtractionAnswer(
      R"({"facts":[{"text":" Ana likes \"tea\", [hot]. ","name":"Ana","contradicts":[1,"2",-1,1.5,null]},)"
      R"({"text":"Tom has a cat.","name":null}]})");
  ASSERT_THAT(facts, SizeIs(2));
  EXPECT_EQ(facts[0].text, "Ana likes \"tea\", [hot].");
  EXPECT_EQ(facts[0].name, "Ana");
  EXPECT_THAT(facts[0].contradicts, ElementsAre(1, 2));
  EXPECT_EQ(facts[1].text, "Tom has a cat.");
  EXPECT_EQ(facts[1].name, "");
}

TEST(ParseExtractionAnswer, LooksThroughWhatModelsPutAround) {
  const auto text_of = [](const char* answer) {
    const std::vector<AnswerFact> facts = ParseExtractionAnswer(answer);
    return facts.size() == 1 ? facts[0].text : std::string("not one fact");
  };
  EXPECT_EQ(text_of("```json\n{\"facts\": [{\"text\":\"A\"}]}\n```"), "A");
  EXPECT_EQ(text_of("Sure! Here it is: {\"facts\":[{\"text\":\"A\"}]} Anything else [maybe]?"),
            "A");
  EXPECT_EQ(text_of("<think>{\"facts\":[{\"text\":\"B\"}]}</think>{\"facts\":[{\"text\":\"A\"}]}"),
            "A");
  EXPECT_EQ(text_of("[{\"text\":\"A\"}]"), "A");
  EXPECT_EQ(text_of("{\"facts\":[\"A\"]}"), "A");
  EXPECT_EQ(text_of("{\"text\":\"A\"}"), "A");
  EXPECT_EQ(text_of("{\"facts\":[{\"text\":\"A\"},{\"text\":7},{\"text\":\" \"},{},[],null]}"),
            "A");
}

TEST(ParseExtractionAnswer, KeepsCompleteItemsOfACutAnswer) {
  const std::string whole = R"({"facts":[{"text":"A"},{"text":"B } ]"},{"text":"C"}]})";
  for (std::size_t size = 0; size <= whole.size(); ++size) {
    const std::vector<AnswerFact> facts = ParseExtractionAnswer(whole.substr(0, size));
    const std::size_t complete = (size >= 22) + (size >= 39) + (size >= 52);
    ASSERT_EQ(facts.size(), complete) << whole.substr(0, size);
  }
}

TEST(ParseExtractionAnswer, YieldsNothingForNonsense) {
  for (const std::string& answer :
       {std::string(), std::string("no JSON"), std::string("{'facts':[{'text':'A'}]}"),
        std::string("{\"facts\":[]}"), std::string("{\"facts\":{}}"), std::string("]"),
        std::string(100'000, '['), std::string(100'000, '{'),
        std::string("{\"facts\":[{\"text\":\"A")}) {
    EXPECT_THAT(ParseExtractionAnswer(answer), IsEmpty()) << answer.substr(0, 40);
  }
}

/// Answers every turn alike and keeps what it was asked.
struct FakeModel {
  std::string answer;
  std::vector<std::vector<ChatMessage>> asked;

  CompletionFunction Function() {
    return [this](const std::vector<ChatMessage>& messages, const std::string& grammar) {
      EXPECT_EQ(grammar, ExtractionGrammar());
      asked.push_back(messages);
      return Result<std::string>(answer);
    };
  }
};

TEST(LlmExtractor, TheWordsForSomebodyWithoutANameAreNoName) {
  FakeModel model{R"({"facts":[{"text":"The user likes tea.","name":"The User","contradicts":[]},
                               {"text":"The user lives in Rome.","name":"user","contradicts":[]},
                               {"text":"Tom has a cat.","name":"Tom","contradicts":[]}]})",
                  {}};
  const auto names = [&](const char* role, const char* speaker) {
    ExtractRequest request;
    request.turns = {MakeTurn(role, "I like tea, live in Rome, and Tom has a cat.", speaker)};
    const auto facts = LlmExtractor(model.Function()).Extract(request);
    EXPECT_TRUE(facts.ok());
    std::vector<std::string> found;
    for (const ExtractedFact& fact : *facts) found.push_back(fact.name);
    return found;
  };
  EXPECT_THAT(names("user", ""), ElementsAre("", "", "Tom"));
  EXPECT_THAT(names("user", "Ana"), ElementsAre("Ana", "Ana", "Tom"));
  EXPECT_THAT(names("assistant", "Max"), ElementsAre("", "", "Tom"));
}

TEST(LlmExtractor, AsksOncePerSpokenTurn) {
  FakeModel model{R"({"facts":[{"text":"Ana likes tea.","name":"","contradicts":[]}]})", {}};
  ExtractRequest request;
  request.turns = {MakeTurn("system", "secret rules"),
                   MakeTurn("user", "I like tea.", "Ana", 1683417600000),
                   MakeTurn("assistant", "Nice."), MakeTurn("user", "  ")};
  request.existing = {{"id-a", "Ana likes coffee."}, {"id-b", "Ana has\na dog."}};
  const auto facts = LlmExtractor(model.Function()).Extract(request);
  ASSERT_TRUE(facts.ok());
  ASSERT_THAT(model.asked, SizeIs(2));
  const std::string& first = model.asked[0].back().content;
  EXPECT_THAT(first, HasSubstr("0: Ana likes coffee.\n1: Ana has a dog.\n"));
  EXPECT_THAT(first, HasSubstr("2023-05-07 from Ana:\nI like tea."));
  EXPECT_THAT(first, Not(HasSubstr("secret rules")));
  EXPECT_THAT(first, Not(HasSubstr("id-a")));
  EXPECT_THAT(model.asked[1].back().content, HasSubstr("Ana: I like tea.\n"));
  ASSERT_THAT(*facts, SizeIs(2));
  EXPECT_EQ((*facts)[0].name, "Ana");
  EXPECT_EQ((*facts)[0].event_time_ms, 1683417600000);
  EXPECT_THAT((*facts)[0].source_turn_indexes, ElementsAre(1));
  EXPECT_THAT((*facts)[1].source_turn_indexes, ElementsAre(2));
}

TEST(LlmExtractor, BoundsNumberAndLength) {
  nlohmann::json answer;
  for (int i = 0; i < 9; ++i) {
    answer["facts"].push_back(
        {{"text", "Fact " + std::to_string(i) + ". " + std::string(i == 0 ? 5000 : 5, 'x')},
         {"name", std::string(i == 1 ? 500 : 3, 'n')}});
  }
  FakeModel model{answer.dump(), {}};
  ExtractRequest request;
  request.turns = {MakeTurn("user", "Tell you what.", "Ana")};
  const auto facts = LlmExtractor(model.Function()).Extract(request);
  ASSERT_THAT(*facts, SizeIs(kMaxFactsPerTurn));
  for (const ExtractedFact& fact : *facts) {
    EXPECT_LE(CountCharacters(fact.text), kMaxFactCharacters);
  }
  EXPECT_EQ((*facts)[0].name, "nnn");
  EXPECT_EQ((*facts)[1].name, "Ana");
}

TEST(LlmExtractor, MapsNumbersToIdsAndDropsInventedOnes) {
  FakeModel model{
      R"({"facts":[{"text":"Ana moved to Rome.","name":"Ana","contradicts":[1,1,7,"0","id-a",99999999999999999999]}]})",
      {}};
  ExtractRequest request;
  request.turns = {MakeTurn("user", "I moved to Rome.")};
  request.existing = {{"id-a", "Ana lives in Bern."}, {"id-b", "Ana lives in Basel."}};
  const auto facts = LlmExtractor(model.Function()).Extract(request);
  ASSERT_THAT(*facts, SizeIs(1));
  EXPECT_THAT((*facts)[0].supersedes, ElementsAre("id-b", "id-a"));
}

TEST(LlmExtractor, NeverExtractsWhatWasInjectedOrIsKnown) {
  FakeModel model{
      R"({"facts":[{"text":"ana likes TEA."},{"text":"Tom has a cat."},{"text":"New."},{"text":"new."}]})",
      {}};
  ExtractRequest request;
  request.turns = {MakeTurn("user", "Hello"),
                   MakeTurn("user", "- (2023-05-07) Ana: Ana likes tea.")};
  request.exclude = {"Ana likes tea."};
  request.existing = {{"id", "Tom has a cat."}};
  const auto facts = LlmExtractor(model.Function()).Extract(request);
  EXPECT_THAT(model.asked, SizeIs(1));
  EXPECT_THAT(Texts(*facts), ElementsAre("New."));
}

TEST(LlmExtractor, PassesTheCompletionsErrorOn) {
  LlmExtractor extractor(
      [](const auto&, const auto&) -> Result<std::string> { return Unavailable("down"); });
  ExtractRequest request;
  request.turns = {MakeTurn("user", "Hello")};
  EXPECT_EQ(extractor.Extract(request).status().code(), StatusCode::kUnavailable);
}

TEST(EndpointCompletion, AsksAnOpenAiServer) {
  HttpServer server([](const HttpExchange& exchange) {
    const nlohmann::json body = nlohmann::json::parse(exchange.body);
    EXPECT_EQ(exchange.target, "/v1/chat/completions");
    EXPECT_EQ(exchange.authorization, "Bearer sk-hunter2");
    EXPECT_EQ(body["model"], "m");
    EXPECT_EQ(body["temperature"], 0);
    EXPECT_EQ(body["messages"][0]["content"], "hi \xef\xbf\xbd");
    return HttpReply{.body = R"({"choices":[{"message":{"content":"answer"}}]})"};
  });
  const auto complete = MakeEndpointCompletion(server.Url("/v1/"), "m", "sk-hunter2");
  ASSERT_TRUE(complete.ok());
  const Result<std::string> answer = (*complete)({{"user", "hi \xff", ""}}, "root ::= \"x\"");
  ASSERT_TRUE(answer.ok()) << answer.status().ToString();
  EXPECT_EQ(*answer, "answer");
}

TEST(EndpointCompletion, DropsOptionsThatAModelRefuses) {
  HttpServer server([](const HttpExchange& exchange) {
    if (exchange.body.find("temperature") != std::string::npos) return HttpReply{.status = 400};
    return HttpReply{.body = R"({"choices":[{"message":{"content":"answer"}}]})"};
  });
  const auto complete = MakeEndpointCompletion(server.Url("/v1"), "m", "");
  EXPECT_TRUE((*complete)({{"user", "hi", ""}}, "").ok());
}

TEST(EndpointCompletion, TellsRetryableErrorsFromFinalOnes) {
  const auto error_of = [](HttpReply reply) {
    HttpServer server([reply](const HttpExchange&) { return reply; });
    const auto complete = MakeEndpointCompletion(server.Url("/v1"), "m", "sk-hunter2",
                                                 std::chrono::milliseconds(300));
    const Status status = (*complete)({{"user", "hi", ""}}, "").status();
    EXPECT_THAT(status.message(), HasSubstr(server.Url("/v1/chat/completions")));
    EXPECT_THAT(status.message(), Not(HasSubstr("hunter2")));
    return status.code();
  };
  EXPECT_EQ(error_of({.status = 429}), StatusCode::kUnavailable);
  EXPECT_EQ(error_of({.status = 500}), StatusCode::kUnavailable);
  EXPECT_EQ(error_of({.delay = std::chrono::minutes(5)}), StatusCode::kUnavailable);
  EXPECT_EQ(error_of({.hang_up = true}), StatusCode::kUnavailable);
  EXPECT_EQ(error_of({.body = "<html>"}), StatusCode::kUnavailable);
  EXPECT_EQ(error_of({.body = "{}"}), StatusCode::kUnavailable);
  EXPECT_EQ(error_of({.body = R"({"choices":[]})"}), StatusCode::kUnavailable);
  EXPECT_EQ(error_of({.body = R"({"choices":[{"message":{"content":null}}]})"}),
            StatusCode::kUnavailable);
  EXPECT_EQ(error_of({.status = 401}), StatusCode::kInvalidArgument);
  EXPECT_EQ(error_of({.status = 400, .body = "no"}), StatusCode::kInvalidArgument);
  EXPECT_FALSE(MakeEndpointCompletion("nowhere", "m", "").ok());
  EXPECT_FALSE(MakeEndpointCompletion("http://h/v1", "", "").ok());
}

}  // namespace
}  // namespace inferscale
