#include "encode/recipe.h"

#include <charconv>
#include <chrono>
#include <cstdlib>

namespace inferscale {
namespace {

constexpr std::int32_t kMaxPrimerFacts = 64;
constexpr std::int32_t kMaxWindowTurns = 200;

struct RecipeName {
  RecipeKind kind;
  std::string_view name;
  std::int32_t default_count;  // 0: takes no count
  std::int32_t max_count;
};

constexpr RecipeName kNames[] = {
    {RecipeKind::kBare, "bare", 0, 0},
    {RecipeKind::kHeader, "header", 0, 0},
    {RecipeKind::kPrimer, "primer", 10, kMaxPrimerFacts},
    {RecipeKind::kOwnerPrimer, "owner-primer", 10, kMaxPrimerFacts},
    {RecipeKind::kWindow, "window", 5, kMaxWindowTurns},
    {RecipeKind::kHeaderWindow, "header-window", 5, kMaxWindowTurns},
    {RecipeKind::kWindowPrimer, "window-primer", 5, kMaxWindowTurns},
    {RecipeKind::kTurnPrimer, "turn-primer", 10, kMaxPrimerFacts},
    {RecipeKind::kBothPrimer, "both-primer", 10, kMaxPrimerFacts},
};

/// Their number is a part of what they are, so their names always carry it.
bool CountsTurns(RecipeKind kind) {
  return kind == RecipeKind::kWindow || kind == RecipeKind::kHeaderWindow ||
         kind == RecipeKind::kWindowPrimer;
}

const RecipeName& NameOf(RecipeKind kind) {
  for (const RecipeName& entry : kNames) {
    if (entry.kind == kind) return entry;
  }
  std::abort();
}

/// Line breaks would end the fact's line, other control characters mean nothing to a model.
std::string OneLine(std::string_view text) {
  std::string line;
  line.reserve(text.size());
  for (std::size_t i = 0; i < text.size(); ++i) {
    const auto byte = static_cast<unsigned char>(text[i]);
    // U+0085, U+2028 and U+2029 break lines too.
    const bool next_line =
        byte == 0xC2 && i + 1 < text.size() && static_cast<unsigned char>(text[i + 1]) == 0x85;
    const bool separator = byte == 0xE2 && i + 2 < text.size() &&
                           static_cast<unsigned char>(text[i + 1]) == 0x80 &&
                           (static_cast<unsigned char>(text[i + 2]) & 0xFE) == 0xA8;
    if (next_line) i += 1;
    if (separator) i += 2;
    if (byte < 0x20 || byte == 0x7F || next_line || separator) {
      if (!line.empty() && line.back() != ' ') line.push_back(' ');
    } else {
      line.push_back(text[i]);
    }
  }
  while (!line.empty() && line.back() == ' ') line.pop_back();
  const std::size_t start = line.find_first_not_of(' ');
  return start == std::string::npos ? std::string() : line.substr(start);
}

std::string Line(std::string_view date, std::string_view name, std::string_view text) {
  std::string line = "- ";
  if (!date.empty()) line.append("(").append(date).append(") ");
  if (!name.empty()) line.append(OneLine(name)).append(": ");
  line.append(OneLine(text)).append("\n");
  return line;
}

}  // namespace

Result<Recipe> Recipe::Parse(std::string_view name) {
  const std::size_t colon = name.find(':');
  const std::string_view base = name.substr(0, colon);
  for (const RecipeName& entry : kNames) {
    if (entry.name != base) continue;
    Recipe recipe{entry.kind, entry.default_count};
    if (colon == std::string_view::npos) return recipe;
    const std::string_view digits = name.substr(colon + 1);
    const auto [end, error] =
        std::from_chars(digits.data(), digits.data() + digits.size(), recipe.count);
    if (entry.max_count == 0 || error != std::errc() || end != digits.data() + digits.size() ||
        recipe.count < 0 || recipe.count > entry.max_count) {
      return InvalidArgument("recipe \"" + std::string(name) +
                             "\": the number after the colon must be 0 to " +
                             std::to_string(entry.max_count));
    }
    return recipe;
  }
  return InvalidArgument(
      "unknown recipe \"" + std::string(name) +
      "\"; known: primer[:N], owner-primer[:N], both-primer[:N], turn-primer[:N], header, bare, "
      "window:N, header-window:N, window-primer:N");
}

std::string Recipe::Name() const {
  const RecipeName& entry = NameOf(kind);
  if (entry.max_count == 0 || (count == entry.default_count && !CountsTurns(kind))) {
    return std::string(entry.name);
  }
  return std::string(entry.name) + ":" + std::to_string(count);
}

namespace prompt_text {

std::string_view SystemSentence() { return "You are a helpful assistant."; }

std::string_view Header() { return "\n\nMemories:\n"; }

std::string Footer(TimeMs today) {
  return "\nToday is " + ServedDate(today) + ". Use the memories where they help.";
}

std::string_view LateHeader() { return "More memories:\n"; }

std::string_view LateFooter() { return "\n"; }

}  // namespace prompt_text

std::string ServedName(const Fact& fact, std::string_view scope_name) {
  for (const std::string_view name : {std::string_view(fact.name), scope_name}) {
    const std::string line = OneLine(name);
    if (!line.empty()) return line;
  }
  return {};
}

std::string ServedDate(TimeMs time) {
  constexpr std::string_view kMonths[] = {"January",   "February", "March",    "April",
                                          "May",       "June",     "July",     "August",
                                          "September", "October",  "November", "December"};
  const std::chrono::year_month_day date{std::chrono::floor<std::chrono::days>(
      std::chrono::sys_time<std::chrono::milliseconds>(std::chrono::milliseconds(time)))};
  return std::to_string(static_cast<unsigned>(date.day())) + " " +
         std::string(kMonths[static_cast<unsigned>(date.month()) - 1]) + " " +
         std::to_string(static_cast<int>(date.year()));
}

std::string ServedLine(const Fact& fact, std::string_view scope_name) {
  return Line(fact.event_time_ms == 0 ? std::string() : ServedDate(fact.event_time_ms),
              ServedName(fact, scope_name), fact.text);
}

std::string PrimerLines(std::int32_t count, std::span<const std::string> names,
                        std::span<const PrimerFact> primer) {
  std::string lines;
  for (const PrimerFact& fact : primer) {
    if (count-- <= 0) break;
    const auto name_of = [&](std::int32_t who) {
      return names.empty() ? std::string() : names[static_cast<std::size_t>(who) % names.size()];
    };
    std::string other = names.size() < 2 ? std::string() : name_of(fact.who + 1);
    if (other.empty()) other = "a friend";
    std::string text(fact.text);
    constexpr std::string_view kOther = "{other}";
    for (std::size_t at; (at = text.find(kOther)) != std::string::npos;)
      text.replace(at, kOther.size(), other);
    lines += Line(fact.date, name_of(fact.who), text);
  }
  return lines;
}

}  // namespace inferscale
