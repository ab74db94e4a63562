#include <fstream>
#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/clock.h"
#include "base/random.h"
#include "eval/dataset.h"

namespace inferscale {
namespace {

using testing::HasSubstr;

struct Fault {
  const char *from, *to;
  std::vector<const char*> messages;
};

std::string Changed(const std::string& text, const std::string& from, const std::string& to) {
  const std::size_t at = text.find(from);
  EXPECT_NE(at, std::string::npos) << from;
  std::string changed = text;
  return changed.replace(at, from.size(), to);
}

constexpr const char* kLongMemEval = R"json([
 {"question_id": "q1", "question_type": "multi-session", "question": "What does my cat eat?",
  "answer": "Fish", "question_date": "2023/06/01 (Thu) 10:00",
  "haystack_session_ids": ["later", "first"],
  "haystack_dates": ["2023/05/21 (Sun) 08:00", "2023/05/20 (Sat) 02:21"],
  "haystack_sessions": [
   [{"role": "user", "content": "My cat eats fish.", "has_answer": true},
    {"role": "assistant", "content": "Lovely!"}],
   [{"role": "user", "content": "I have a cat."}, {"role": "assistant", "content": " "}]],
  "answer_session_ids": ["later"]},
 {"question_id": "q2_abs", "question_type": "temporal-reasoning", "question": "And my dog?",
  "answer": 7, "question_date": "2023/06/02 (Fri) 11:30", "haystack_session_ids": [],
  "haystack_dates": [], "haystack_sessions": []}
])json";

TEST(ParseLongMemEval, ReadsAHistoryAQuestionInTheOrderOfTime) {
  const Result<EvalDataset> dataset = ParseLongMemEval(kLongMemEval);
  ASSERT_TRUE(dataset.ok()) << dataset.status().ToString();
  ASSERT_EQ(dataset->conversations.size(), 2u);
  const EvalConversation& first = dataset->conversations[0];
  EXPECT_EQ(first.id, "q1");
  EXPECT_TRUE(first.facts.empty());
  ASSERT_EQ(first.turns.size(), 3u);  // without the blank one
  EXPECT_EQ(first.turns[0].text, "I have a cat.");
  EXPECT_EQ(first.turns[0].id, "first/0");
  EXPECT_EQ(first.turns[0].speaker, first.speakers.front());
  EXPECT_EQ(FormatIso8601(first.turns[0].time_ms), "2023-05-20T02:21:00+00:00");
  EXPECT_EQ(first.turns[1].text, "My cat eats fish.");
  EXPECT_LT(first.turns[0].session, first.turns[1].session);
  EXPECT_EQ(first.turns[2].speaker, first.speakers.back());
  ASSERT_EQ(first.questions.size(), 1u);
  EXPECT_EQ(first.questions[0].category, "multi-session");
  EXPECT_EQ(first.questions[0].evidence, (std::vector<std::string>{"later"}));
  EXPECT_EQ(FormatIso8601(first.questions[0].time_ms), "2023-06-01T10:00:00+00:00");
  EXPECT_FALSE(first.questions[0].adversarial);
  const EvalQuestion& second = dataset->conversations[1].questions.at(0);
  EXPECT_TRUE(second.adversarial);
  EXPECT_EQ(second.answer, "7");
}

TEST(ParseLongMemEval, FailsCleanlyWhenCutAnywhere) {
  const std::string whole = kLongMemEval;
  for (std::size_t size = 0; size < whole.size(); ++size) {
    const Result<EvalDataset> dataset = ParseLongMemEval(std::string_view(whole).substr(0, size));
    ASSERT_FALSE(dataset.ok()) << size;
    EXPECT_EQ(dataset.status().code(), StatusCode::kInvalidArgument);
  }
}

TEST(ParseLongMemEval, SaysWhereAFaultIs) {
  const Fault faults[] = {
      {"\"question_id\": \"q1\"", "\"question_id\": 1", {"sample 1", "question_id"}},
      {"\"question_id\": \"q1\"", "\"question_id\": \"q2_abs\"", {"sample 2", "twice"}},
      {"\"question_type\": \"multi-session\"", "\"question_type\": []", {"q1", "question_type"}},
      {"\"question\": \"What does my cat eat?\"", "\"quest\": 1", {"q1", "\"question\""}},
      {"\"answer\": \"Fish\"", "\"answer\": [\"Fish\"]", {"q1", "answer"}},
      {"\"answer\": \"Fish\"", "\"answer\": \" \"", {"q1", "answer"}},
      {"2023/06/01 (Thu) 10:00", "June", {"q1", "question_date"}},
      {"2023/05/20 (Sat) 02:21", "2023/02/30 (Sat) 02:21", {"q1", "haystack_dates\"[1]"}},
      {"\"2023/05/20 (Sat) 02:21\"", "3", {"q1", "haystack_dates\"[1]"}},
      {"[\"later\", \"first\"]", "[\"later\"]", {"q1", "haystack_session_ids"}},
      {"[\"later\", \"first\"]", "[\"later\", 2]", {"q1", "haystack_session_ids\"[1]"}},
      {"\"haystack_sessions\": [", "\"haystack_sessions\": 3, \"x\": [", {"haystack_sessions"}},
      {"[{\"role\": \"user\", \"content\": \"I have a cat.\"}",
       "[7",
       {"haystack_sessions\"[1]", "turn 1", "role"}},
      {"\"role\": \"assistant\", \"content\": \"Lovely!\"",
       "\"role\": \"system\"",
       {"haystack_sessions\"[0]", "turn 2", "role"}},
      {"\"content\": \"Lovely!\"", "\"content\": null", {"turn 2", "content"}},
  };
  for (const Fault& fault : faults) {
    const Result<EvalDataset> dataset =
        ParseLongMemEval(Changed(kLongMemEval, fault.from, fault.to));
    ASSERT_FALSE(dataset.ok()) << fault.to;
    for (const char* message : fault.messages)
      EXPECT_THAT(dataset.status().message(), HasSubstr(message)) << fault.to;
  }
}

TEST(ParseLongMemEval, RefusesHostileJson) {
  for (const char* text : {"", "{}", "[]", "[null]", "[[]]", "\"x\"", "3"})
    EXPECT_FALSE(ParseLongMemEval(text).ok()) << text;
  EXPECT_FALSE(ParseLongMemEval(std::string(2'000'000, '[')).ok());
  EXPECT_FALSE(ParseLongMemEval(Changed(kLongMemEval, "Lovely", "Love\xFFly")).ok());
}

TEST(ParseLongMemEvalTime, TakesDatesWithAndWithoutTheRest) {
  EXPECT_EQ(FormatIso8601(*ParseLongMemEvalTime("2024/02/29 (Thu) 23:59")),
            "2024-02-29T23:59:00+00:00");
  EXPECT_EQ(FormatIso8601(*ParseLongMemEvalTime("2024/02/29")), "2024-02-29T00:00:00+00:00");
  for (const char* text : {"", "2023/02/29 (Wed) 10:00", "2023/13/01", "2023/01/01 (Sun) 24:30",
                           "2023-01-01", "2023/1/1", "2023/01/01 (Sun) 10:00 x"}) {
    EXPECT_FALSE(ParseLongMemEvalTime(text).ok()) << text;
  }
  EXPECT_FALSE(ParseLongMemEvalTime(std::string(1'000'000, '1')).ok());
}

const std::string kLines =
    R"json({"id": "a", "speakers": ["Ada", "Bo"], "turns": [{"id": "t1", "speaker": "Ada", "text": "I keep bees.", "time": "2023-05-08T13:56:00Z"}, {"speaker": "Bo", "text": "Nice", "time": "2023-05-09"}], "facts": [{"speaker": "Ada", "text": "keeps bees", "time": "2023-05-08", "sources": ["t1"]}, {"text": "is free"}], "questions": [{"question": "What does Ada keep?", "answer": "Bees", "category": "one"}, {"question": "Whose dog?", "answer": 3, "adversarial": true, "time": "2024-01-01"}]})json"
    "\n\n"
    R"json({"id": "b", "speakers": [], "turns": [], "questions": []})json"
    "\n";

TEST(ParseHistoryLines, ReadsTurnsFactsAndQuestions) {
  const Result<EvalDataset> dataset = ParseHistoryLines(kLines);
  ASSERT_TRUE(dataset.ok()) << dataset.status().ToString();
  ASSERT_EQ(dataset->conversations.size(), 2u);
  const EvalConversation& a = dataset->conversations[0];
  EXPECT_EQ(a.speakers, (std::vector<std::string>{"Ada", "Bo"}));
  ASSERT_EQ(a.turns.size(), 2u);
  EXPECT_EQ(a.turns[0].id, "t1");
  EXPECT_EQ(a.turns[1].id, "2");
  EXPECT_EQ(FormatIso8601(a.turns[0].time_ms), "2023-05-08T13:56:00+00:00");
  EXPECT_NE(a.turns[0].session, a.turns[1].session);  // another day
  ASSERT_EQ(a.facts.size(), 2u);
  EXPECT_EQ(a.facts[0].sources, (std::vector<std::string>{"t1"}));
  EXPECT_EQ(a.facts[0].session, a.turns[0].session);
  EXPECT_EQ(a.facts[1].speaker, "");
  EXPECT_EQ(a.facts[1].time_ms, 0);
  ASSERT_EQ(a.questions.size(), 2u);
  EXPECT_EQ(a.questions[0].category, "one");
  EXPECT_FALSE(a.questions[0].adversarial);
  EXPECT_EQ(a.questions[1].answer, "3");
  EXPECT_TRUE(a.questions[1].adversarial);
  EXPECT_EQ(FormatDate(a.questions[1].time_ms), "2024-01-01");
}

TEST(ParseHistoryLines, FailsCleanlyWhenALineIsCut) {
  const std::string line = kLines.substr(0, kLines.find('\n'));
  for (std::size_t size = 0; size < line.size(); ++size) {
    const Result<EvalDataset> dataset = ParseHistoryLines(std::string_view(line).substr(0, size));
    ASSERT_FALSE(dataset.ok()) << size;
    EXPECT_EQ(dataset.status().code(), StatusCode::kInvalidArgument);
  }
}

TEST(ParseHistoryLines, SaysWhereAFaultIs) {
  const Fault faults[] = {
      {"\"id\": \"a\"", "\"id\": 3", {"line 1", "\"id\""}},
      {"\"id\": \"b\"", "\"id\": \"a\"", {"line 3", "twice"}},
      {"\"id\": \"b\"", "\"id\" \"b\"", {"line 3", "JSON"}},
      {"[\"Ada\", \"Bo\"]", "[\"Ada\", 2]", {"line 1 (a)", "speakers"}},
      {"\"turns\": []", "\"turns\": {}", {"line 3 (b)", "turns"}},
      {"\"speaker\": \"Bo\"", "\"speaker\": 1", {"turn 2", "speaker"}},
      {"\"text\": \"Nice\"", "\"text\": \"\"", {"turn 2", "text"}},
      {"\"time\": \"2023-05-09\"", "\"time\": \"soon\"", {"turn 2", "time"}},
      {"\"time\": \"2023-05-09\"", "\"time\": 5", {"turn 2", "time"}},
      {"{\"speaker\": \"Bo\"", "{\"id\": \"t1\", \"speaker\": \"Bo\"", {"turn 2", "twice"}},
      {"\"facts\": [{", "\"facts\": [3, {", {"fact 1", "speaker"}},
      {"\"text\": \"keeps bees\"", "\"text\": null", {"fact 1", "text"}},
      {"[\"t1\"]", "[\"t9\"]", {"fact 1", "sources", "t9"}},
      {"[\"t1\"]", "\"t1\"", {"fact 1", "sources"}},
      {"[\"t1\"]", "[1]", {"fact 1", "sources"}},
      {"\"questions\": []", "\"questions\": null", {"line 3 (b)", "questions"}},
      {"\"question\": \"Whose dog?\"", "\"question\": {}", {"question 2", "\"question\""}},
      {"\"answer\": 3", "\"answer\": true", {"question 2", "answer"}},
      {"\"category\": \"one\"", "\"category\": 1", {"question 1", "category"}},
      {"\"adversarial\": true", "\"adversarial\": 1", {"question 2", "adversarial"}},
      {"\"time\": \"2024-01-01\"", "\"time\": \"2024-02-31\"", {"question 2", "time"}},
  };
  for (const Fault& fault : faults) {
    const Result<EvalDataset> dataset = ParseHistoryLines(Changed(kLines, fault.from, fault.to));
    ASSERT_FALSE(dataset.ok()) << fault.to;
    for (const char* message : fault.messages)
      EXPECT_THAT(dataset.status().message(), HasSubstr(message)) << fault.to;
  }
}

TEST(ParseHistoryLines, RefusesHostileText) {
  for (const char* text : {"", "\n\n", "null", "[]", "{}", "3\n{}"})
    EXPECT_FALSE(ParseHistoryLines(text).ok()) << text;
  EXPECT_FALSE(ParseHistoryLines(std::string(2'000'000, '{')).ok());
  EXPECT_FALSE(ParseHistoryLines(Changed(kLines, "bees",
                                         "be\xFF"
                                         "es"))
                   .ok());
}

TEST(LoadEvalFiles, NameTheFileOfAFault) {
  const std::filesystem::path path =
      std::filesystem::temp_directory_path() / ("inferscale-loaders-" + NewUuid());
  std::ofstream(path) << "{\"id\": 1}\n";
  for (const auto load : {LoadHistoryLines, LoadLongMemEval}) {
    const Result<EvalDataset> dataset = load(path);
    ASSERT_FALSE(dataset.ok());
    EXPECT_THAT(dataset.status().message(), HasSubstr(path.string()));
    EXPECT_THAT(load("/nonexistent/file").status().message(), HasSubstr("/nonexistent/file"));
  }
  std::filesystem::remove(path);
}

}  // namespace
}  // namespace inferscale
