#include <charconv>
#include <chrono>
#include <map>
#include <regex>

#include "base/files.h"
#include "base/utf8.h"
#include "eval/dataset.h"
#include "eval/json_reader.h"

namespace inferscale {
namespace {

constexpr std::size_t kMaxFileBytes = std::size_t{256} << 20;
constexpr std::size_t kMaxSessions = 10'000;
/// Longer times are no times; also keeps the expression's recursion shallow.
constexpr std::size_t kMaxTimeBytes = 64;

std::optional<std::int32_t> SessionNumber(std::string_view name, std::string_view suffix) {
  constexpr std::string_view kPrefix = "session_";
  if (!name.starts_with(kPrefix) || !name.ends_with(suffix) ||
      name.size() <= kPrefix.size() + suffix.size())
    return {};
  name = name.substr(kPrefix.size(), name.size() - kPrefix.size() - suffix.size());
  std::int32_t number = 0;
  const auto [end, error] = std::from_chars(name.data(), name.data() + name.size(), number);
  if (error != std::errc() || end != name.data() + name.size() || number < 0) return {};
  return number;
}

std::string WithoutSubject(const std::string& text, const std::string& speaker) {
  if (text.size() > speaker.size() + 1 && text.starts_with(speaker) &&
      text[speaker.size()] == ' ') {
    return text.substr(speaker.size() + 1);
  }
  return text;
}

/// A string, or a number as its text.
std::optional<std::string> AnswerText(const nlohmann::json& object, const char* name) {
  const auto found = object.find(name);
  if (found == object.end()) return {};
  if (found->is_string()) return found->get<std::string>();
  if (found->is_number()) return found->dump();
  return {};
}

Status ReadTurns(const nlohmann::json& conversation, const std::string& where,
                 EvalConversation* out, std::map<std::int32_t, TimeMs>* session_times) {
  std::map<std::int32_t, const nlohmann::json*> sessions;
  for (const auto& [name, value] : conversation.items()) {
    if (const auto number = SessionNumber(name, "_date_time")) {
      if (!value.is_string()) return InvalidArgument(where + ": \"" + name + "\" must be a string");
      const Result<TimeMs> time = ParseLocomoTime(value.get_ref<const std::string&>());
      if (!time.ok()) return time.status().WithContext(where + ", " + name);
      (*session_times)[*number] = *time;
    } else if (const auto plain = SessionNumber(name, "")) {
      if (!value.is_array()) return InvalidArgument(where + ": \"" + name + "\" must be a list");
      sessions[*plain] = &value;
    }
  }
  if (sessions.size() > kMaxSessions) return InvalidArgument(where + ": more than 10000 sessions");
  for (const auto& [number, turns] : sessions) {
    const auto start = session_times->find(number);
    const std::string session_where = where + ", session_" + std::to_string(number);
    if (start == session_times->end())
      return InvalidArgument(session_where + ": its date_time is missing");
    for (std::size_t t = 0; t < turns->size(); ++t) {
      const nlohmann::json& entry = (*turns)[t];
      const std::string turn_where = session_where + ", turn " + std::to_string(t + 1);
      EvalTurn turn;
      INFERSCALE_ASSIGN_OR_RETURN(turn.id, RequiredString(entry, "dia_id", turn_where));
      INFERSCALE_ASSIGN_OR_RETURN(turn.speaker, RequiredString(entry, "speaker", turn_where));
      INFERSCALE_ASSIGN_OR_RETURN(turn.text, RequiredString(entry, "text", turn_where));
      turn.session = number;
      turn.time_ms = start->second + static_cast<TimeMs>(t) * 20'000;
      out->turns.push_back(std::move(turn));
    }
  }
  return OkStatus();
}

Status ReadObservations(const nlohmann::json& observations, const std::string& where,
                        const std::map<std::int32_t, TimeMs>& session_times,
                        EvalConversation* out) {
  if (!observations.is_object())
    return InvalidArgument(where + ": \"observation\" must be an object");
  std::map<std::int32_t, const nlohmann::json*> sessions;
  for (const auto& [name, value] : observations.items()) {
    if (const auto number = SessionNumber(name, "_observation")) sessions[*number] = &value;
  }
  for (const auto& [number, speakers] : sessions) {
    const std::string session_where =
        where + ", session_" + std::to_string(number) + "_observation";
    const auto time = session_times.find(number);
    if (!speakers->is_object()) return InvalidArgument(session_where + " must be an object");
    if (time == session_times.end())
      return InvalidArgument(session_where + ": the session has no date_time");
    for (const auto& [speaker, entries] : speakers->items()) {
      if (!entries.is_array())
        return InvalidArgument(session_where + ": \"" + speaker + "\" must be a list");
      for (const nlohmann::json& entry : entries) {
        if (!entry.is_array() || entry.empty() || !entry[0].is_string()) {
          return InvalidArgument(session_where + ": an observation must be [text, dia_id]");
        }
        EvalFact fact;
        fact.speaker = speaker;
        fact.sentence = entry[0].get<std::string>();
        fact.text = WithoutSubject(fact.sentence, speaker);
        if (TrimWhitespace(fact.text).empty()) continue;
        fact.time_ms = time->second;
        fact.session = number;
        if (entry.size() > 1 && entry[1].is_string()) fact.sources = {entry[1].get<std::string>()};
        if (entry.size() > 1 && entry[1].is_array()) {
          for (const nlohmann::json& id : entry[1]) {
            if (id.is_string()) fact.sources.push_back(id.get<std::string>());
          }
        }
        out->facts.push_back(std::move(fact));
      }
    }
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
                                RequiredString(entry, "question", question_where));
    const auto category = entry.find("category");
    if (category == entry.end() || !(category->is_number_integer() || category->is_string())) {
      return InvalidArgument(question_where + ": \"category\" must be a number or a string");
    }
    question.category = category->is_string() ? category->get<std::string>() : category->dump();
    question.adversarial = question.category == "5";
    std::optional<std::string> answer = AnswerText(entry, "answer");
    if (!answer) answer = AnswerText(entry, "adversarial_answer");
    if (!answer)
      return InvalidArgument(question_where + ": \"answer\" must be a string or a number");
    question.answer = std::move(*answer);
    question.evidence = OptionalStrings(entry, "evidence");
    // Without a token there is nothing to score.
    if (!TrimWhitespace(question.answer).empty()) out->questions.push_back(std::move(question));
  }
  return OkStatus();
}

}  // namespace

Result<TimeMs> ParseLocomoTime(std::string_view text) {
  static const std::regex kForm(
      R"(\s*(\d{1,2}):(\d{2})\s*([ap])m\s+on\s+(\d{1,2})\s+([a-z]+),?\s+(\d{4})\s*)",
      std::regex::icase);
  constexpr std::string_view kMonths[] = {"jan", "feb", "mar", "apr", "may", "jun",
                                          "jul", "aug", "sep", "oct", "nov", "dec"};
  const std::string copy(text.substr(0, kMaxTimeBytes));
  std::smatch match;
  const Status wrong = InvalidArgument("\"" + ToValidUtf8(copy) +
                                       "\" is no time of the form \"1:56 pm on 8 May, 2023\"");
  if (text.size() > kMaxTimeBytes || !std::regex_match(copy, match, kForm)) return wrong;
  const int hour = std::stoi(match[1]), minute = std::stoi(match[2]);
  if (hour < 1 || hour > 12 || minute > 59) return wrong;
  const bool afternoon = match[3].str() == "p" || match[3].str() == "P";
  const std::string month_name = CaseFold(match[5].str());
  unsigned month = 0;
  for (unsigned i = 0; i < 12; ++i) {
    if (month_name.starts_with(kMonths[i])) month = i + 1;
  }
  const std::chrono::year_month_day date{
      std::chrono::year(std::stoi(match[6])), std::chrono::month(month),
      std::chrono::day(static_cast<unsigned>(std::stoi(match[4])))};
  if (!date.ok()) return wrong;
  const auto time = std::chrono::sys_days(date) +
                    std::chrono::hours(hour % 12 + (afternoon ? 12 : 0)) +
                    std::chrono::minutes(minute);
  return std::chrono::duration_cast<std::chrono::milliseconds>(time.time_since_epoch()).count();
}

Result<EvalDataset> ParseLocomo(std::string_view json) {
  INFERSCALE_ASSIGN_OR_RETURN(const nlohmann::json root, ParseCheckedJson(json, "LoCoMo data"));
  if (!root.is_array()) return InvalidArgument("LoCoMo data: the file must hold a list of samples");
  EvalDataset dataset;
  dataset.name = "locomo";
  for (std::size_t i = 0; i < root.size(); ++i) {
    const nlohmann::json& sample = root[i];
    std::string where = "sample " + std::to_string(i + 1);
    EvalConversation conversation;
    INFERSCALE_ASSIGN_OR_RETURN(conversation.id, RequiredString(sample, "sample_id", where));
    where += " (" + conversation.id + ")";
    const auto talk = sample.find("conversation");
    if (talk == sample.end() || !talk->is_object()) {
      return InvalidArgument(where + ": \"conversation\" must be an object");
    }
    for (const char* name : {"speaker_a", "speaker_b"}) {
      INFERSCALE_ASSIGN_OR_RETURN(std::string speaker, RequiredString(*talk, name, where));
      conversation.speakers.push_back(std::move(speaker));
    }
    std::map<std::int32_t, TimeMs> session_times;
    INFERSCALE_RETURN_IF_ERROR(ReadTurns(*talk, where, &conversation, &session_times));
    if (const auto observation = sample.find("observation"); observation != sample.end()) {
      INFERSCALE_RETURN_IF_ERROR(
          ReadObservations(*observation, where, session_times, &conversation));
    }
    INFERSCALE_ASSIGN_OR_RETURN(const nlohmann::json* questions,
                                RequiredArray(sample, "qa", where));
    INFERSCALE_RETURN_IF_ERROR(ReadQuestions(*questions, where, &conversation));
    for (const EvalConversation& other : dataset.conversations) {
      if (other.id == conversation.id)
        return InvalidArgument(where + ": the sample_id occurs twice");
    }
    dataset.conversations.push_back(std::move(conversation));
  }
  if (dataset.conversations.empty()) return InvalidArgument("LoCoMo data: no sample in the file");
  return dataset;
}

Result<EvalDataset> LoadLocomo(const std::filesystem::path& path) {
  INFERSCALE_ASSIGN_OR_RETURN(const std::string json, ReadTextFile(path, kMaxFileBytes));
  Result<EvalDataset> dataset = ParseLocomo(json);
  if (!dataset.ok()) return dataset.status().WithContext(path.string());
  return dataset;
}

}  // namespace inferscale
