#include <algorithm>
#include <numeric>
#include <regex>
#include <set>

#include "base/clock.h"
#include "base/files.h"
#include "base/utf8.h"
#include "eval/dataset.h"
#include "eval/json_reader.h"

namespace inferscale {
namespace {

constexpr std::size_t kMaxFileBytes = std::size_t{1} << 30;
/// Longer times are no times; also keeps the expression's recursion shallow.
constexpr std::size_t kMaxTimeBytes = 64;
constexpr TimeMs kTurnMs = 20'000;
/// The user has no name in this data, and is served without one.
constexpr const char* kAssistantName = "The assistant";

Status ReadSession(const nlohmann::json& turns, const std::string& where, const std::string& id,
                   std::int32_t session, TimeMs start, EvalConversation* out) {
  if (!turns.is_array()) return InvalidArgument(where + " must be a list of turns");
  for (std::size_t t = 0; t < turns.size(); ++t) {
    const std::string turn_where = where + ", turn " + std::to_string(t + 1);
    INFERSCALE_ASSIGN_OR_RETURN(const std::string role,
                                RequiredString(turns[t], "role", turn_where));
    if (role != "user" && role != "assistant") {
      return InvalidArgument(turn_where + ": \"role\" must be \"user\" or \"assistant\"");
    }
    EvalTurn turn;
    INFERSCALE_ASSIGN_OR_RETURN(turn.text, RequiredString(turns[t], "content", turn_where));
    if (TrimWhitespace(turn.text).empty()) continue;
    turn.id = id + "/" + std::to_string(t);
    turn.speaker = role == "user" ? "" : kAssistantName;
    turn.session = session;
    turn.time_ms = start + static_cast<TimeMs>(t) * kTurnMs;
    out->turns.push_back(std::move(turn));
  }
  return OkStatus();
}

Status ReadHaystack(const nlohmann::json& sample, const std::string& where, EvalConversation* out) {
  INFERSCALE_ASSIGN_OR_RETURN(const nlohmann::json* ids,
                              RequiredArray(sample, "haystack_session_ids", where));
  INFERSCALE_ASSIGN_OR_RETURN(const nlohmann::json* dates,
                              RequiredArray(sample, "haystack_dates", where));
  INFERSCALE_ASSIGN_OR_RETURN(const nlohmann::json* sessions,
                              RequiredArray(sample, "haystack_sessions", where));
  if (ids->size() != sessions->size() || dates->size() != sessions->size()) {
    return InvalidArgument(where + ": \"haystack_sessions\" has " +
                           std::to_string(sessions->size()) +
                           " entries, \"haystack_session_ids\" " + std::to_string(ids->size()) +
                           " and \"haystack_dates\" " + std::to_string(dates->size()));
  }
  std::vector<TimeMs> times;
  for (std::size_t s = 0; s < sessions->size(); ++s) {
    const std::string place = "[" + std::to_string(s) + "]";
    if (!(*ids)[s].is_string())
      return InvalidArgument(where + ": \"haystack_session_ids\"" + place + " must be a string");
    if (!(*dates)[s].is_string())
      return InvalidArgument(where + ": \"haystack_dates\"" + place + " must be a string");
    const Result<TimeMs> time = ParseLongMemEvalTime((*dates)[s].get_ref<const std::string&>());
    if (!time.ok()) return time.status().WithContext(where + ", \"haystack_dates\"" + place);
    times.push_back(*time);
  }
  // Some files have them in no order, but a history is told in the order of time.
  std::vector<std::size_t> order(sessions->size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::stable_sort(order.begin(), order.end(),
                   [&](std::size_t a, std::size_t b) { return times[a] < times[b]; });
  for (std::size_t i = 0; i < order.size(); ++i) {
    const std::size_t s = order[i];
    INFERSCALE_RETURN_IF_ERROR(ReadSession(
        (*sessions)[s], where + ", \"haystack_sessions\"[" + std::to_string(s) + "]",
        (*ids)[s].get_ref<const std::string&>(), static_cast<std::int32_t>(i), times[s], out));
  }
  return OkStatus();
}

}  // namespace

Result<TimeMs> ParseLongMemEvalTime(std::string_view text) {
  static const std::regex kForm(
      R"(\s*(\d{4})/(\d{2})/(\d{2})\s*(?:\([A-Za-z]+\))?\s*(?:(\d{2}:\d{2}))?\s*)");
  const std::string copy(text.substr(0, kMaxTimeBytes));
  std::smatch match;
  const Status wrong = InvalidArgument("\"" + ToValidUtf8(copy) +
                                       "\" is no time of the form \"2023/05/20 (Sat) 02:21\"");
  if (text.size() > kMaxTimeBytes || !std::regex_match(copy, match, kForm)) return wrong;
  const Result<TimeMs> time =
      ParseIso8601(match[1].str() + "-" + match[2].str() + "-" + match[3].str() +
                   (match[4].matched ? "T" + match[4].str() : std::string()));
  return time.ok() ? time : Result<TimeMs>(wrong);
}

Result<EvalDataset> ParseLongMemEval(std::string_view json) {
  INFERSCALE_ASSIGN_OR_RETURN(const nlohmann::json root,
                              ParseCheckedJson(json, "LongMemEval data"));
  if (!root.is_array())
    return InvalidArgument("LongMemEval data: the file must hold a list of samples");
  EvalDataset dataset;
  dataset.name = "longmemeval";
  std::set<std::string> known;
  for (std::size_t i = 0; i < root.size(); ++i) {
    const nlohmann::json& sample = root[i];
    std::string where = "sample " + std::to_string(i + 1);
    EvalQuestion question;
    INFERSCALE_ASSIGN_OR_RETURN(question.id, RequiredString(sample, "question_id", where));
    where += " (" + question.id + ")";
    if (!known.insert(question.id).second)
      return InvalidArgument(where + ": the \"question_id\" occurs twice");
    INFERSCALE_ASSIGN_OR_RETURN(question.category, RequiredString(sample, "question_type", where));
    INFERSCALE_ASSIGN_OR_RETURN(question.question, RequiredString(sample, "question", where));
    INFERSCALE_ASSIGN_OR_RETURN(question.answer, RequiredText(sample, "answer", where));
    INFERSCALE_ASSIGN_OR_RETURN(const std::string date,
                                RequiredString(sample, "question_date", where));
    const Result<TimeMs> time = ParseLongMemEvalTime(date);
    if (!time.ok()) return time.status().WithContext(where + ", \"question_date\"");
    question.time_ms = *time;
    question.adversarial = question.id.ends_with("_abs");
    question.evidence = OptionalStrings(sample, "answer_session_ids");
    EvalConversation conversation;
    conversation.id = question.id;
    conversation.speakers = {"", kAssistantName};
    INFERSCALE_RETURN_IF_ERROR(ReadHaystack(sample, where, &conversation));
    conversation.questions.push_back(std::move(question));
    dataset.conversations.push_back(std::move(conversation));
  }
  if (dataset.conversations.empty())
    return InvalidArgument("LongMemEval data: no sample in the file");
  return dataset;
}

Result<EvalDataset> LoadLongMemEval(const std::filesystem::path& path) {
  INFERSCALE_ASSIGN_OR_RETURN(const std::string json, ReadTextFile(path, kMaxFileBytes));
  Result<EvalDataset> dataset = ParseLongMemEval(json);
  if (!dataset.ok()) return dataset.status().WithContext(path.string());
  return dataset;
}

}  // namespace inferscale
