#include "cli/turn_reader.h"

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <utility>

#include <unistd.h>

#include <nlohmann/json.hpp>

#include "base/clock.h"
#include "base/files.h"
#include "base/utf8.h"
#include "cli/interrupt.h"

namespace inferscale {
namespace {

using nlohmann::json;

/// Longest "Name" before a colon: what is longer is a sentence with a colon in it.
constexpr std::size_t kMaxNameBytes = 64;

std::string TextOf(const json& content) {
  if (content.is_string()) return content.get<std::string>();
  if (!content.is_array()) return "";
  std::string text;
  for (const json& part : content) {
    const json* piece = nullptr;
    if (part.is_string()) {
      piece = &part;
    } else if (part.is_object() && part.contains("text") && part["text"].is_string()) {
      piece = &part["text"];
    }
    if (piece == nullptr) continue;
    if (!text.empty()) text += '\n';
    text += piece->get<std::string>();
  }
  return text;
}

Result<TimeMs> TimeOf(const json& message) {
  for (const char* key : {"date", "timestamp", "time", "created_at"}) {
    const auto found = message.find(key);
    if (found == message.end() || found->is_null()) continue;
    if (found->is_string()) {
      const Result<TimeMs> time = ParseIso8601(found->get<std::string>());
      if (!time.ok()) return time.status().WithContext(std::string("\"") + key + "\"");
      return *time;
    }
    const double seconds = found->is_number() ? found->get<double>() : -1;
    if (!(seconds >= 0 && seconds < 253402300800.0)) {  // the year 10000
      return InvalidArgument(std::string("\"") + key +
                             "\" is neither an ISO 8601 date nor Unix seconds");
    }
    return static_cast<TimeMs>(std::llround(seconds * 1000));
  }
  return TimeMs{0};
}

Result<Turn> TurnOf(const json& message, const TurnDefaults& defaults) {
  if (!message.is_object()) return InvalidArgument("a message must be a JSON object");
  Turn turn;
  const auto role = message.find("role");
  if (role == message.end() || !role->is_string()) {
    return InvalidArgument("a message needs a \"role\": user, assistant, system or tool");
  }
  turn.role = role->get<std::string>();
  if (turn.role == "developer") turn.role = "system";
  if (turn.role != "user" && turn.role != "assistant" && turn.role != "system" &&
      turn.role != "tool" && turn.role != "function") {
    return InvalidArgument("the role \"" + turn.role.substr(0, 50) +
                           "\" is unknown: use user, assistant, system or tool");
  }
  const auto name = message.find("name");
  if (name != message.end() && name->is_string()) turn.name = name->get<std::string>();
  if (turn.name.empty() && turn.role == "user") turn.name = defaults.name;
  const auto content = message.find("content");
  if (content != message.end()) turn.content = TextOf(*content);
  INFERSCALE_ASSIGN_OR_RETURN(turn.time_ms, TimeOf(message));
  if (turn.time_ms == 0) turn.time_ms = defaults.time_ms;
  return turn;
}

/// Calls `visit(line, number)` for each line, without its line break.
template <typename Visit>
Status ForEachLine(std::string_view content, Visit visit) {
  std::size_t number = 1;
  for (std::size_t begin = 0; begin < content.size(); ++number) {
    const std::size_t end = std::min(content.find('\n', begin), content.size());
    std::string_view line = content.substr(begin, end - begin);
    if (line.ends_with('\r')) line.remove_suffix(1);
    INFERSCALE_RETURN_IF_ERROR(visit(line, number));
    begin = end + 1;
  }
  return OkStatus();
}

std::string At(const std::string& name, std::size_t line) {
  return name + ":" + std::to_string(line);
}

Status ParseMessages(std::string_view content, const std::string& name,
                     const TurnDefaults& defaults, std::vector<Turn>* turns) {
  json document;
  try {
    document = json::parse(content);
  } catch (const json::parse_error& error) {
    const auto end =
        content.begin() + static_cast<std::ptrdiff_t>(std::min(error.byte, content.size()));
    const auto line = static_cast<std::size_t>(std::count(content.begin(), end, '\n')) + 1;
    return InvalidArgument(At(name, line) + ": not JSON: give an array of messages");
  }
  const json* messages = &document;
  if (document.is_object() && document.contains("messages")) messages = &document["messages"];
  if (!messages->is_array()) {
    return InvalidArgument(name +
                           ": no messages: give an array of {\"role\", \"content\"}, or an "
                           "object that holds it as \"messages\"");
  }
  std::size_t index = 0;
  for (const json& message : *messages) {
    Result<Turn> turn = TurnOf(message, defaults);
    if (!turn.ok()) {
      return turn.status().WithContext(name + ": message " + std::to_string(index));
    }
    turns->push_back(*std::move(turn));
    ++index;
  }
  return OkStatus();
}

Status ParseJsonLines(std::string_view content, const std::string& name,
                      const TurnDefaults& defaults, std::vector<Turn>* turns) {
  return ForEachLine(content, [&](std::string_view line, std::size_t number) -> Status {
    if (TrimWhitespace(line).empty()) return OkStatus();
    const json message = json::parse(line, nullptr, false);
    if (message.is_discarded()) return InvalidArgument(At(name, number) + ": not JSON");
    Result<Turn> turn = TurnOf(message, defaults);
    if (!turn.ok()) return turn.status().WithContext(At(name, number));
    turns->push_back(*std::move(turn));
    return OkStatus();
  });
}

/// The date of a line that is nothing else; 0 for other lines.
TimeMs DateLine(std::string_view line) {
  line = TrimWhitespace(line);
  if (line.starts_with('#')) line = TrimWhitespace(line.substr(1));
  if (line.size() > 2 && line.front() == '[' && line.back() == ']') {
    line = TrimWhitespace(line.substr(1, line.size() - 2));
  }
  if (line.empty() || line[0] < '0' || line[0] > '9') return 0;
  const Result<TimeMs> time = ParseIso8601(line);
  return time.ok() ? *time : 0;
}

Status ParsePlainText(std::string_view content, const TurnDefaults& defaults,
                      std::vector<Turn>* turns) {
  TimeMs time = defaults.time_ms;
  return ForEachLine(content, [&](std::string_view line, std::size_t) -> Status {
    if (TrimWhitespace(line).empty()) return OkStatus();
    if (const TimeMs date = DateLine(line); date != 0) {
      time = date;
      return OkStatus();
    }
    Turn turn;
    turn.role = "user";
    turn.name = defaults.name;
    turn.time_ms = time;
    const std::size_t colon = line.find(": ");
    const std::string_view name = TrimWhitespace(line.substr(0, colon == line.npos ? 0 : colon));
    if (!name.empty() && name.size() <= kMaxNameBytes) {
      const std::string folded = CaseFold(name);
      if (folded == "assistant") {
        turn.role = "assistant";
        turn.name.clear();
      } else if (folded != "user") {
        turn.name = name;
      }
      line = TrimWhitespace(line.substr(colon + 2));
    }
    turn.content = line;
    turns->push_back(std::move(turn));
    return OkStatus();
  });
}

}  // namespace

TurnFormat GuessTurnFormat(const std::string& name, std::string_view content) {
  if (name.ends_with(".json")) return TurnFormat::kMessages;
  if (name.ends_with(".jsonl") || name.ends_with(".ndjson")) return TurnFormat::kJsonLines;
  if (name != "-") return TurnFormat::kPlainText;
  const std::string_view trimmed = TrimWhitespace(content);
  if (trimmed.starts_with('[')) return TurnFormat::kMessages;
  if (!trimmed.starts_with('{')) return TurnFormat::kPlainText;
  // One object over several lines is a document; an object a line is JSON Lines.
  const std::string_view first = trimmed.substr(0, trimmed.find('\n'));
  const json line = json::parse(first, nullptr, false);
  return line.is_object() && !line.contains("messages") ? TurnFormat::kJsonLines
                                                        : TurnFormat::kMessages;
}

Result<ReadTurns> ParseTurns(std::string_view content, TurnFormat format, const std::string& name,
                             const TurnDefaults& defaults) {
  ReadTurns read;
  std::string replaced;
  if (!IsValidUtf8(content)) {
    replaced = ToValidUtf8(content);
    content = replaced;
    read.replaced_bytes = true;
  }
  constexpr std::string_view kByteOrderMark = "\xEF\xBB\xBF";
  if (content.starts_with(kByteOrderMark)) content.remove_prefix(kByteOrderMark.size());
  switch (format) {
    case TurnFormat::kMessages:
      INFERSCALE_RETURN_IF_ERROR(ParseMessages(content, name, defaults, &read.turns));
      break;
    case TurnFormat::kJsonLines:
      INFERSCALE_RETURN_IF_ERROR(ParseJsonLines(content, name, defaults, &read.turns));
      break;
    case TurnFormat::kPlainText:
      INFERSCALE_RETURN_IF_ERROR(ParsePlainText(content, defaults, &read.turns));
      break;
  }
  std::erase_if(read.turns, [](const Turn& turn) { return TrimWhitespace(turn.content).empty(); });
  return read;
}

Result<std::string> ReadInput(const std::string& path, std::size_t max_bytes) {
  if (path != "-") return ReadTextFile(path, max_bytes);
  std::string content;
  char buffer[65536];
  while (true) {
    const ssize_t count = read(STDIN_FILENO, buffer, sizeof(buffer));
    if (count == 0) return content;
    if (count < 0) {
      if (errno == EINTR && !InterruptScope::Interrupted()) continue;
      if (errno == EINTR)
        return Cancelled("interrupted while reading standard input; nothing was stored");
      return StatusFromErrno("cannot read", "standard input", errno);
    }
    content.append(buffer, static_cast<std::size_t>(count));
    if (content.size() > max_bytes) {
      return ResourceExhausted("standard input is larger than " + std::to_string(max_bytes) +
                               " bytes: give it in pieces");
    }
  }
}

}  // namespace inferscale
