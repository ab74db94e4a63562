#include <map>
#include <set>

#include "base/clock.h"
#include "base/files.h"
#include "base/utf8.h"
#include "eval/dataset.h"
#include "eval/json_reader.h"

namespace inferscale {
namespace {

constexpr std::size_t kMaxFileBytes = std::size_t{1} << 30;

Result<TimeMs> RequiredTime(const nlohmann::json& object, const std::string& where) {
  INFERSCALE_ASSIGN_OR_RETURN(const std::string text, RequiredString(object, "time", where));
  const Result<TimeMs> time = ParseIso8601(text);
  if (!time.ok()) return time.status().WithContext(where + ": \"time\"");
  return time;
}

Result<std::string> RequiredContent(const nlohmann::json& object, const char* name,
                                    const std::string& where) {
  INFERSCALE_ASSIGN_OR_RETURN(std::string text, RequiredString(object, name, where));
  if (TrimWhitespace(text).empty())
    return InvalidArgument(where + ": \"" + name + "\" must not be empty");
  return text;
}

/// Absent is empty; another type is an error.
Result<std::string> OptionalString(const nlohmann::json& object, const char* name,
                                   const std::string& where) {
  if (object.is_object() && !object.contains(name)) return std::string();
  return RequiredString(object, name, where);
}

Status ReadTurns(const nlohmann::json& turns, const std::string& where,
                 std::map<std::string, std::int32_t>* sessions, EvalConversation* out) {
  std::string day;
  std::int32_t session = -1;
  for (std::size_t t = 0; t < turns.size(); ++t) {
    const std::string turn_where = where + ", turn " + std::to_string(t + 1);
    EvalTurn turn;
    INFERSCALE_ASSIGN_OR_RETURN(turn.speaker, RequiredString(turns[t], "speaker", turn_where));
    INFERSCALE_ASSIGN_OR_RETURN(turn.text, RequiredContent(turns[t], "text", turn_where));
    INFERSCALE_ASSIGN_OR_RETURN(turn.time_ms, RequiredTime(turns[t], turn_where));
    INFERSCALE_ASSIGN_OR_RETURN(turn.id, OptionalString(turns[t], "id", turn_where));
    if (turn.id.empty()) turn.id = std::to_string(t + 1);
    // A day is a session: stored as one, and gone on with at its end after a kill.
    const std::string date = FormatDate(turn.time_ms);
    if (date != day) ++session;
    day = date;
    turn.session = session;
    if (!sessions->emplace(turn.id, session).second)
      return InvalidArgument(turn_where + ": the \"id\" \"" + turn.id + "\" occurs twice");
    out->turns.push_back(std::move(turn));
  }
  return OkStatus();
}

Status ReadFacts(const nlohmann::json& facts, const std::string& where,
                 const std::map<std::string, std::int32_t>& sessions, EvalConversation* out) {
  for (std::size_t f = 0; f < facts.size(); ++f) {
    const std::string fact_where = where + ", fact " + std::to_string(f + 1);
    EvalFact fact;
    INFERSCALE_ASSIGN_OR_RETURN(fact.speaker, OptionalString(facts[f], "speaker", fact_where));
    INFERSCALE_ASSIGN_OR_RETURN(fact.text, RequiredContent(facts[f], "text", fact_where));
    if (facts[f].contains("time")) {
      INFERSCALE_ASSIGN_OR_RETURN(fact.time_ms, RequiredTime(facts[f], fact_where));
    }
    if (facts[f].contains("sources")) {
      INFERSCALE_ASSIGN_OR_RETURN(const nlohmann::json* sources,
                                  RequiredArray(facts[f], "sources", fact_where));
      for (const nlohmann::json& source : *sources) {
        if (!source.is_string())
          return InvalidArgument(fact_where + ": \"sources\" must be a list of strings");
        const auto found = sessions.find(source.get_ref<const std::string&>());
        if (found == sessions.end()) {
          return InvalidArgument(fact_where + ": \"sources\": no turn has the id \"" +
                                 source.get<std::string>() + "\"");
        }
        if (fact.sources.empty()) fact.session = found->second;
        fact.sources.push_back(source.get<std::string>());
      }
    }
    if (fact.sources.empty() && !out->turns.empty()) fact.session = out->turns.back().session;
    out->facts.push_back(std::move(fact));
  }
  return OkStatus();
}

Status ReadQuestions(const nlohmann::json& questions, const std::string& where,
                     EvalConversation* out) {
  for (std::size_t q = 0; q < questions.size(); ++q) {
    const std::string question_where = where + ", question " + std::to_string(q + 1);
    const nlohmann::json& entry = questions[q];
    EvalQuestion question;
    question.id = out->id + "/" + std::to_string(q);
    INFERSCALE_ASSIGN_OR_RETURN(question.question,
                                RequiredContent(entry, "question", question_where));
    INFERSCALE_ASSIGN_OR_RETURN(question.answer, RequiredText(entry, "answer", question_where));
    INFERSCALE_ASSIGN_OR_RETURN(question.category,
                                OptionalString(entry, "category", question_where));
    if (entry.contains("time")) {
      INFERSCALE_ASSIGN_OR_RETURN(question.time_ms, RequiredTime(entry, question_where));
    }
    if (const auto found = entry.find("adversarial"); found != entry.end()) {
      if (!found->is_boolean())
        return InvalidArgument(question_where + ": \"adversarial\" must be true or false");
      question.adversarial = found->get<bool>();
    }
    out->questions.push_back(std::move(question));
  }
  return OkStatus();
}

Result<EvalConversation> ReadHistory(const nlohmann::json& line, std::string where) {
  EvalConversation conversation;
  INFERSCALE_ASSIGN_OR_RETURN(conversation.id, RequiredContent(line, "id", where));
  where += " (" + conversation.id + ")";
  INFERSCALE_ASSIGN_OR_RETURN(const nlohmann::json* speakers,
                              RequiredArray(line, "speakers", where));
  for (const nlohmann::json& speaker : *speakers) {
    if (!speaker.is_string())
      return InvalidArgument(where + ": \"speakers\" must be a list of strings");
    conversation.speakers.push_back(speaker.get<std::string>());
  }
  std::map<std::string, std::int32_t> sessions;
  INFERSCALE_ASSIGN_OR_RETURN(const nlohmann::json* turns, RequiredArray(line, "turns", where));
  INFERSCALE_RETURN_IF_ERROR(ReadTurns(*turns, where, &sessions, &conversation));
  if (line.contains("facts")) {
    INFERSCALE_ASSIGN_OR_RETURN(const nlohmann::json* facts, RequiredArray(line, "facts", where));
    INFERSCALE_RETURN_IF_ERROR(ReadFacts(*facts, where, sessions, &conversation));
  }
  INFERSCALE_ASSIGN_OR_RETURN(const nlohmann::json* questions,
                              RequiredArray(line, "questions", where));
  INFERSCALE_RETURN_IF_ERROR(ReadQuestions(*questions, where, &conversation));
  return conversation;
}

}  // namespace

Result<EvalDataset> ParseHistoryLines(std::string_view text) {
  EvalDataset dataset;
  dataset.name = "jsonl";
  std::set<std::string> known;
  std::size_t number = 0;
  while (!text.empty()) {
    const std::string_view line = text.substr(0, text.find('\n'));
    text.remove_prefix(std::min(text.size(), line.size() + 1));
    const std::string where = "line " + std::to_string(++number);
    if (TrimWhitespace(line).empty()) continue;
    INFERSCALE_ASSIGN_OR_RETURN(const nlohmann::json json, ParseCheckedJson(line, where));
    INFERSCALE_ASSIGN_OR_RETURN(EvalConversation conversation, ReadHistory(json, where));
    if (!known.insert(conversation.id).second) {
      return InvalidArgument(where + ": the \"id\" \"" + conversation.id + "\" occurs twice");
    }
    dataset.conversations.push_back(std::move(conversation));
  }
  if (dataset.conversations.empty()) return InvalidArgument("no history in the file");
  return dataset;
}

Result<EvalDataset> LoadHistoryLines(const std::filesystem::path& path) {
  INFERSCALE_ASSIGN_OR_RETURN(const std::string text, ReadTextFile(path, kMaxFileBytes));
  Result<EvalDataset> dataset = ParseHistoryLines(text);
  if (!dataset.ok()) return dataset.status().WithContext(path.string());
  return dataset;
}

}  // namespace inferscale
