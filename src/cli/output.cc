#include "cli/output.h"

#include <cstdint>
#include <cstdio>
#include <iostream>

#include <nlohmann/json.hpp>

#include "base/clock.h"
#include "base/utf8.h"

namespace inferscale {
namespace {

using nlohmann::json;

/// Reads one character of valid UTF-8 and moves on.
char32_t NextCharacter(std::string_view text, std::size_t* position) {
  const auto byte = [&](std::size_t i) { return static_cast<unsigned char>(text[i]); };
  const unsigned char first = byte(*position);
  const std::size_t length = first < 0x80 ? 1 : first < 0xE0 ? 2 : first < 0xF0 ? 3 : 4;
  char32_t value = length == 1 ? first : first & (0x7Fu >> length);
  for (std::size_t i = 1; i < length && *position + i < text.size(); ++i) {
    value = value << 6 | (byte(*position + i) & 0x3Fu);
  }
  *position += length;
  return value;
}

bool NeedsEscape(char32_t c) {
  return c < 0x20 || (c >= 0x7F && c < 0xA0) || c == 0x2028 || c == 0x2029 || c == 0x061C ||
         c == 0x200E || c == 0x200F || (c >= 0x202A && c <= 0x202E) || (c >= 0x2066 && c <= 0x2069);
}

json OrNull(const std::string& text) { return text.empty() ? json() : json(text); }

json TimeOrNull(TimeMs time) { return time == 0 ? json() : json(FormatIso8601(time)); }

json MetadataOf(const Fact& fact) {
  json metadata = json::parse(fact.metadata_json, nullptr, false);
  return metadata.is_object() ? metadata : json::object();
}

}  // namespace

std::string EscapeForTerminal(std::string_view text, bool keep_lines) {
  const std::string valid = IsValidUtf8(text) ? std::string(text) : ToValidUtf8(text);
  std::string escaped;
  escaped.reserve(valid.size());
  for (std::size_t position = 0; position < valid.size();) {
    const std::size_t begin = position;
    const char32_t c = NextCharacter(valid, &position);
    if (!NeedsEscape(c) || (keep_lines && (c == '\n' || c == '\t'))) {
      escaped.append(valid, begin, position - begin);
    } else if (c == '\n') {
      escaped += "\\n";
    } else if (c == '\t') {
      escaped += "\\t";
    } else if (c == '\r') {
      escaped += "\\r";
    } else {
      char buffer[16];
      std::snprintf(buffer, sizeof(buffer), "\\u{%x}", static_cast<unsigned>(c));
      escaped += buffer;
    }
  }
  return escaped;
}

std::string ShortForTerminal(std::string_view text, std::size_t characters) {
  // Bytes bound the work on a huge text; four are enough for any character.
  const std::string_view head = TruncateUtf8(text, characters * 4);
  const std::string valid = IsValidUtf8(head) ? std::string(head) : ToValidUtf8(head);
  std::size_t position = 0;
  std::size_t count = 0;
  while (position < valid.size() && count < characters) {
    NextCharacter(valid, &position);
    ++count;
  }
  const bool cut = position < valid.size() || head.size() < text.size();
  return EscapeForTerminal(std::string_view(valid).substr(0, position)) + (cut ? "…" : "");
}

void PrintJson(const json& value) {
  std::cout << value.dump(-1, ' ', false, json::error_handler_t::replace) << '\n' << std::flush;
}

void PrintError(const Status& status, bool as_json) {
  if (as_json) {
    PrintJson(
        {{"error",
          {{"code", std::string(StatusCodeName(status.code()))}, {"message", status.message()}}}});
  } else {
    std::cout << std::flush;
    std::cerr << "inferscale: " << EscapeForTerminal(status.message()) << '\n';
  }
}

void PrintNote(const std::string& message) {
  std::cout << std::flush;
  std::cerr << "inferscale: " << EscapeForTerminal(message) << '\n';
}

json FactJson(const Fact& fact, const ScopeInfo* scope) {
  json value = {{"id", fact.id},
                {"memory", fact.text},
                {"name", OrNull(fact.name)},
                {"role", OrNull(fact.role)},
                {"actor_id", OrNull(fact.actor_id)},
                {"metadata", MetadataOf(fact)},
                {"event_time", TimeOrNull(fact.event_time_ms)},
                {"created_at", TimeOrNull(fact.created_at_ms)},
                {"updated_at", TimeOrNull(fact.updated_at_ms)},
                {"expiration_date", OrNull(fact.expiration_date)},
                {"superseded_by", OrNull(fact.superseded_by)},
                {"version", fact.version}};
  if (scope != nullptr) {
    value["user_id"] = OrNull(scope->scope.user);
    value["agent_id"] = OrNull(scope->scope.agent);
    value["run_id"] = OrNull(scope->scope.run);
    value["app_id"] = OrNull(scope->scope.app);
  }
  return value;
}

json HistoryJson(const HistoryEntry& entry) {
  const auto optional = [](const std::optional<std::string>& text) {
    return text ? json(*text) : json();
  };
  return {{"id", entry.id},
          {"event", entry.event},
          {"old_memory", optional(entry.old_text)},
          {"new_memory", optional(entry.new_text)},
          {"actor_id", OrNull(entry.actor_id)},
          {"role", OrNull(entry.role)},
          {"created_at", TimeOrNull(entry.created_at_ms)},
          {"updated_at", TimeOrNull(entry.updated_at_ms)},
          {"is_deleted", entry.is_deleted}};
}

json TurnJson(const Turn& turn) {
  return {{"id", turn.id},
          {"role", turn.role},
          {"name", OrNull(turn.name)},
          {"content", turn.content},
          {"time", TimeOrNull(turn.time_ms)}};
}

}  // namespace inferscale
