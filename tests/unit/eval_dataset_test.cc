#include "eval/dataset.h"

#include <set>
#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/clock.h"
#include "eval/embedded_data.h"

namespace inferscale {
namespace {

using testing::HasSubstr;

constexpr const char* kLocomo = R"json([{
  "sample_id": "conv-1",
  "conversation": {
    "speaker_a": "Ada", "speaker_b": "Bo",
    "session_2_date_time": "12:05 am on 1 January, 2024",
    "session_2": [{"speaker": "Bo", "dia_id": "D2:1", "text": "Happy new year!"}],
    "session_1_date_time": "1:56 pm on 8 May, 2023",
    "session_1": [{"speaker": "Ada", "dia_id": "D1:1", "text": "Hello", "img_url": ["x"]},
                  {"speaker": "Bo", "dia_id": "D1:2", "text": "Hi"}],
    "session_3_date_time": "2:00 pm on 2 January, 2024"
  },
  "observation": {"session_1_observation": {
    "Ada": [["Ada keeps bees.", "D1:1"], ["Adam is her son.", ["D1:1", "D1:2"]], ["  ", "D1:1"]]}},
  "qa": [{"question": "What does Ada keep?", "answer": "Bees", "evidence": ["D1:1"], "category": 4},
         {"question": "Which year?", "answer": 2023, "category": 2},
         {"question": "Whose dog?", "adversarial_answer": "Bo's", "category": 5}]
}])json";

/// kLocomo with one piece of text replaced.
std::string Changed(const std::string& from, const std::string& to) {
  std::string text = kLocomo;
  const std::size_t at = text.find(from);
  EXPECT_NE(at, std::string::npos) << from;
  return text.replace(at, from.size(), to);
}

TEST(ParseLocomo, ReadsTurnsObservationsAndQuestions) {
  const Result<EvalDataset> dataset = ParseLocomo(kLocomo);
  ASSERT_TRUE(dataset.ok()) << dataset.status().ToString();
  ASSERT_EQ(dataset->conversations.size(), 1u);
  const EvalConversation& conversation = dataset->conversations.front();
  EXPECT_EQ(conversation.speakers, (std::vector<std::string>{"Ada", "Bo"}));
  ASSERT_EQ(conversation.turns.size(), 3u);
  EXPECT_EQ(conversation.turns[0].id, "D1:1");
  EXPECT_EQ(FormatIso8601(conversation.turns[0].time_ms), "2023-05-08T13:56:00+00:00");
  EXPECT_LT(conversation.turns[0].time_ms, conversation.turns[1].time_ms);
  EXPECT_EQ(conversation.turns[2].text, "Happy new year!");
  ASSERT_EQ(conversation.facts.size(), 2u);
  EXPECT_EQ(conversation.facts[0].text, "keeps bees.");
  EXPECT_EQ(conversation.facts[1].text, "Adam is her son.");
  EXPECT_EQ(conversation.facts[1].sources, (std::vector<std::string>{"D1:1", "D1:2"}));
  ASSERT_EQ(conversation.questions.size(), 3u);
  EXPECT_EQ(conversation.questions[1].answer, "2023");
  EXPECT_FALSE(conversation.questions[1].adversarial);
  EXPECT_EQ(conversation.questions[2].answer, "Bo's");
  EXPECT_TRUE(conversation.questions[2].adversarial);
  EXPECT_NE(conversation.questions[0].id, conversation.questions[1].id);
}

TEST(ParseLocomo, FailsCleanlyWhenCutAnywhere) {
  const std::string whole = kLocomo;
  for (std::size_t size = 0; size < whole.size(); ++size) {
    const Result<EvalDataset> dataset = ParseLocomo(std::string_view(whole).substr(0, size));
    ASSERT_FALSE(dataset.ok()) << size;
    EXPECT_EQ(dataset.status().code(), StatusCode::kInvalidArgument);
  }
}

TEST(ParseLocomo, SaysWhereAFaultIs) {
  const struct {
    const char *from, *to, *message;
  } kCases[] = {
      {"\"sample_id\": \"conv-1\"", "\"sample_id\": 7", "sample 1"},
      {"\"speaker_b\": \"Bo\"", "\"speaker_b\": null", "speaker_b"},
      {"1:56 pm on 8 May, 2023", "yesterday", "session_1_date_time"},
      {"\"session_1_date_time\"", "\"session_9_date_time\"", "session_1"},
      {"\"dia_id\": \"D1:2\"", "\"dia_id\": {}", "turn 2"},
      {"[\"Ada keeps bees.\", \"D1:1\"]", "\"Ada keeps bees.\"", "session_1_observation"},
      {"\"Ada\": [[", "\"Ada\": 3, \"Bo\": [[", "session_1_observation"},
      {"\"answer\": 2023", "\"answer\": [2023]", "question 2"},
      {"\"category\": 4", "\"category\": null", "question 1"},
      {"\"qa\": [", "\"qu\": [", "qa"},
  };
  for (const auto& fault : kCases) {
    const Result<EvalDataset> dataset = ParseLocomo(Changed(fault.from, fault.to));
    ASSERT_FALSE(dataset.ok()) << fault.to;
    EXPECT_THAT(dataset.status().message(), HasSubstr(fault.message));
  }
}

TEST(ParseLocomo, RefusesHostileJson) {
  EXPECT_FALSE(ParseLocomo("").ok());
  EXPECT_FALSE(ParseLocomo("{}").ok());
  EXPECT_FALSE(ParseLocomo("[]").ok());
  EXPECT_FALSE(ParseLocomo("[null]").ok());
  EXPECT_FALSE(ParseLocomo(std::string(2'000'000, '[')).ok());
  EXPECT_FALSE(ParseLocomo(std::string(100'000, '[') + std::string(100'000, ']')).ok());
  EXPECT_FALSE(ParseLocomo(Changed("Hello", "Hel\xFFlo")).ok());
  const std::string twice = kLocomo;
  EXPECT_FALSE(ParseLocomo(twice.substr(0, twice.size() - 1) + "," + twice.substr(1)).ok());
}

TEST(LoadLocomo, NamesTheMissingFile) {
  const Result<EvalDataset> dataset = LoadLocomo("/nonexistent/locomo.json");
  ASSERT_FALSE(dataset.ok());
  EXPECT_THAT(dataset.status().message(), HasSubstr("/nonexistent/locomo.json"));
}

TEST(ParseLocomoTime, TakesMidnightAndNoon) {
  EXPECT_EQ(FormatIso8601(*ParseLocomoTime("12:05 am on 1 January, 2024")),
            "2024-01-01T00:05:00+00:00");
  EXPECT_EQ(FormatIso8601(*ParseLocomoTime("12:00 pm on 29 February, 2024")),
            "2024-02-29T12:00:00+00:00");
}

TEST(ParseLocomoTime, RefusesWhatIsNoTime) {
  for (const char* text :
       {"", "13:00 pm on 1 May, 2023", "0:10 am on 1 May, 2023", "1:60 pm on 1 May, 2023",
        "1:56 pm on 30 February, 2023", "1:56 pm on 8 Mai-Tai, 2023", "1:56 on 8 May, 2023",
        "1:56 pm on 8 Foo, 2023"}) {
    EXPECT_FALSE(ParseLocomoTime(text).ok()) << text;
  }
  EXPECT_FALSE(ParseLocomoTime(std::string(1'000'000, '1')).ok());
}

TEST(BuiltInDemo, HasWhatTheDemoPromises) {
  const Result<EvalConversation> demo = BuiltInDemo();
  ASSERT_TRUE(demo.ok()) << demo.status().ToString();
  EXPECT_GE(demo->facts.size(), 200u);
  EXPECT_EQ(demo->questions.size(), 30u);
  EXPECT_EQ(demo->speakers.size(), 2u);
  std::set<std::string> turns;
  for (const EvalTurn& turn : demo->turns) turns.insert(turn.id);
  EXPECT_EQ(turns.size(), demo->turns.size());
  for (const EvalQuestion& question : demo->questions) {
    EXPECT_FALSE(question.answer.empty());
    for (const std::string& id : question.evidence) EXPECT_TRUE(turns.contains(id)) << id;
  }
}

TEST(ParseDemo, FailsCleanlyWhenCutAnywhere) {
  const std::string_view whole = EmbeddedFile("demo.json");
  const std::size_t end = whole.find_last_not_of(" \n\r\t");
  ASSERT_NE(end, std::string_view::npos);
  for (std::size_t size = 0; size < end; size += 997)
    EXPECT_FALSE(ParseDemo(whole.substr(0, size)).ok()) << size;
}

TEST(ParseDemo, ChecksReferences) {
  const std::string head =
      R"({"speakers": ["A", "B"], "sessions": [{"date": "2025-01-02", "time": "10:00", "turns":
         [{"id": "s1t1", "speaker": "A", "text": "x"}]}], "questions": [], "facts": [)";
  const std::string fact =
      R"({"speaker": "A", "date": "2025-01-02", "text": "y", "source": ["s1t1"])";
  EXPECT_TRUE(ParseDemo(head + fact + "}]}").ok());
  EXPECT_TRUE(ParseDemo(head + fact + "}, " + fact + R"(, "supersedes": 0}]})").ok());
  EXPECT_FALSE(ParseDemo(head + fact + R"(, "supersedes": 0}]})").ok());
  EXPECT_FALSE(ParseDemo(head + fact + R"(, "supersedes": -1}]})").ok());
  EXPECT_FALSE(
      ParseDemo(head +
                R"({"speaker": "A", "date": "2025-01-02", "text": "y", "source": ["s9t9"]}]})")
          .ok());
  EXPECT_FALSE(
      ParseDemo(head + R"({"speaker": "A", "date": "2025-13-02", "text": "y", "source": []}]})")
          .ok());
}

TEST(EvalNames, FactsKeepTheirSubjectInTheirTextAndSpeakersBecomeTheUser) {
  EXPECT_FALSE(ParseEvalNames("nobody").ok());
  const std::string json = Changed("Happy new year!", "So Ada\u0301 and Ada's Adam? Ada. Ada!");
  EvalDataset text = *ParseLocomo(json);
  ApplyNames(*ParseEvalNames("text"), &text);
  EXPECT_EQ(text.conversations[0].facts[0].text, "Ada keeps bees.");
  EXPECT_EQ(text.conversations[0].questions[0].question, "What does Ada keep?");

  EvalDataset user = *ParseLocomo(json);
  ApplyNames(*ParseEvalNames("user"), &user);
  const EvalConversation& conversation = user.conversations[0];
  EXPECT_EQ(conversation.facts[0].text, "The user keeps bees.");
  EXPECT_EQ(conversation.facts[1].text, "Adam is her son.");
  EXPECT_EQ(conversation.turns[2].text, "So Ada\u0301 and the user's Adam? The user. The user!");
  EXPECT_EQ(conversation.questions[0].question, "What does the user keep?");
  EXPECT_EQ(conversation.questions[2].answer, "The user's");

  EvalDataset none = *ParseLocomo(json);
  ApplyNames(*ParseEvalNames("none"), &none);
  EXPECT_EQ(none.conversations[0].facts[0].text, "keeps bees.");
}

}  // namespace
}  // namespace inferscale
