#include <map>

#include "base/clock.h"
#include "eval/dataset.h"
#include "eval/embedded_data.h"
#include "eval/json_reader.h"

namespace inferscale {

Result<EvalConversation> ParseDemo(std::string_view json) {
  INFERSCALE_ASSIGN_OR_RETURN(const nlohmann::json root, ParseCheckedJson(json, "demo data"));
  EvalConversation conversation;
  conversation.id = "demo";
  conversation.speakers = OptionalStrings(root, "speakers");

  std::map<std::string, std::int32_t> session_of_turn;
  INFERSCALE_ASSIGN_OR_RETURN(const nlohmann::json* sessions,
                              RequiredArray(root, "sessions", "demo data"));
  for (std::size_t s = 0; s < sessions->size(); ++s) {
    const std::string where = "session " + std::to_string(s + 1);
    const nlohmann::json& session = (*sessions)[s];
    INFERSCALE_ASSIGN_OR_RETURN(const std::string date, RequiredString(session, "date", where));
    INFERSCALE_ASSIGN_OR_RETURN(const std::string time, RequiredString(session, "time", where));
    const Result<TimeMs> start = ParseIso8601(date + "T" + time);
    if (!start.ok()) return start.status().WithContext(where);
    INFERSCALE_ASSIGN_OR_RETURN(const nlohmann::json* turns,
                                RequiredArray(session, "turns", where));
    for (std::size_t t = 0; t < turns->size(); ++t) {
      const std::string turn_where = where + ", turn " + std::to_string(t + 1);
      EvalTurn turn;
      INFERSCALE_ASSIGN_OR_RETURN(turn.id, RequiredString((*turns)[t], "id", turn_where));
      INFERSCALE_ASSIGN_OR_RETURN(turn.speaker, RequiredString((*turns)[t], "speaker", turn_where));
      INFERSCALE_ASSIGN_OR_RETURN(turn.text, RequiredString((*turns)[t], "text", turn_where));
      turn.session = static_cast<std::int32_t>(s);
      // Turns of a session keep their order in time.
      turn.time_ms = *start + static_cast<TimeMs>(t) * 20'000;
      session_of_turn[turn.id] = turn.session;
      conversation.turns.push_back(std::move(turn));
    }
  }

  INFERSCALE_ASSIGN_OR_RETURN(const nlohmann::json* facts,
                              RequiredArray(root, "facts", "demo data"));
  for (std::size_t f = 0; f < facts->size(); ++f) {
    const std::string where = "fact " + std::to_string(f);
    const nlohmann::json& entry = (*facts)[f];
    EvalFact fact;
    INFERSCALE_ASSIGN_OR_RETURN(fact.speaker, RequiredString(entry, "speaker", where));
    INFERSCALE_ASSIGN_OR_RETURN(fact.text, RequiredString(entry, "text", where));
    INFERSCALE_ASSIGN_OR_RETURN(const std::string date, RequiredString(entry, "date", where));
    const Result<TimeMs> time = ParseDate(date);
    if (!time.ok()) return time.status().WithContext(where);
    fact.time_ms = *time;
    fact.sources = OptionalStrings(entry, "source");
    for (const std::string& source : fact.sources) {
      const auto found = session_of_turn.find(source);
      if (found == session_of_turn.end())
        return InvalidArgument(where + ": no turn has the id \"" + source + "\"");
      fact.session = found->second;
    }
    if (entry.contains("supersedes")) {
      const nlohmann::json& older = entry["supersedes"];
      if (!older.is_number_unsigned() || older.get<std::uint64_t>() >= f) {
        return InvalidArgument(where + ": \"supersedes\" must be the index of an earlier fact");
      }
      fact.supersedes = older.get<std::size_t>();
    }
    conversation.facts.push_back(std::move(fact));
  }

  INFERSCALE_ASSIGN_OR_RETURN(const nlohmann::json* questions,
                              RequiredArray(root, "questions", "demo data"));
  for (std::size_t q = 0; q < questions->size(); ++q) {
    const std::string where = "question " + std::to_string(q + 1);
    EvalQuestion question;
    question.id = "q" + std::to_string(q + 1);
    INFERSCALE_ASSIGN_OR_RETURN(question.question,
                                RequiredString((*questions)[q], "question", where));
    INFERSCALE_ASSIGN_OR_RETURN(question.answer, RequiredString((*questions)[q], "answer", where));
    INFERSCALE_ASSIGN_OR_RETURN(question.category,
                                RequiredString((*questions)[q], "category", where));
    question.evidence = OptionalStrings((*questions)[q], "evidence");
    conversation.questions.push_back(std::move(question));
  }
  return conversation;
}

Result<EvalConversation> BuiltInDemo() {
  const std::string_view json = EmbeddedFile("demo.json");
  if (json.empty()) return Internal("this program was built without demo.json");
  return ParseDemo(json);
}

}  // namespace inferscale
