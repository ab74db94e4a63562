#include "base/clock.h"

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <optional>
#include <string>
#include <utility>

namespace inferscale {
namespace {

constexpr TimeMs kDayMs = 24LL * 3600 * 1000;

// Takes exactly `digits` decimal digits off the front of `text`.
std::optional<int> TakeNumber(std::string_view& text, std::size_t digits) {
  if (text.size() < digits) return std::nullopt;
  int value = 0;
  for (std::size_t i = 0; i < digits; ++i) {
    if (text[i] < '0' || text[i] > '9') return std::nullopt;
    value = value * 10 + (text[i] - '0');
  }
  text.remove_prefix(digits);
  return value;
}

bool TakeChar(std::string_view& text, char c) {
  if (text.empty() || text.front() != c) return false;
  text.remove_prefix(1);
  return true;
}

std::optional<TimeMs> TakeDate(std::string_view& text) {
  const auto year = TakeNumber(text, 4);
  if (!year || !TakeChar(text, '-')) return std::nullopt;
  const auto month = TakeNumber(text, 2);
  if (!month || !TakeChar(text, '-')) return std::nullopt;
  const auto day = TakeNumber(text, 2);
  if (!day || *year < 1) return std::nullopt;
  const std::chrono::year_month_day date{std::chrono::year(*year),
                                         std::chrono::month(static_cast<unsigned>(*month)),
                                         std::chrono::day(static_cast<unsigned>(*day))};
  if (!date.ok()) return std::nullopt;
  return std::chrono::sys_days(date).time_since_epoch().count() * kDayMs;
}

std::optional<TimeMs> TakeTimeOfDay(std::string_view& text) {
  const auto hour = TakeNumber(text, 2);
  if (!hour || !TakeChar(text, ':')) return std::nullopt;
  const auto minute = TakeNumber(text, 2);
  if (!minute || *hour > 23 || *minute > 59) return std::nullopt;
  TimeMs time = (*hour * 60LL + *minute) * 60'000;
  if (!TakeChar(text, ':')) return time;
  const auto second = TakeNumber(text, 2);
  if (!second || *second > 59) return std::nullopt;
  time += *second * 1000LL;
  if (!TakeChar(text, '.')) return time;
  int digits = 0;
  for (TimeMs unit = 100; !text.empty() && text[0] >= '0' && text[0] <= '9'; ++digits, unit /= 10) {
    time += (text[0] - '0') * unit;
    text.remove_prefix(1);
  }
  if (digits == 0) return std::nullopt;
  return time;
}

std::optional<TimeMs> TakeOffset(std::string_view& text) {
  if (text.empty() || TakeChar(text, 'Z') || TakeChar(text, 'z')) return 0;
  const char sign = text.front();
  if (sign != '+' && sign != '-') return std::nullopt;
  text.remove_prefix(1);
  const auto hours = TakeNumber(text, 2);
  if (!hours || *hours > 23) return std::nullopt;
  int minutes = 0;
  if (!text.empty()) {
    TakeChar(text, ':');
    const auto parsed = TakeNumber(text, 2);
    if (!parsed || *parsed > 59) return std::nullopt;
    minutes = *parsed;
  }
  const TimeMs offset = (*hours * 60LL + minutes) * 60'000;
  return sign == '+' ? offset : -offset;
}

Status NotATime(std::string_view text, std::string_view advice) {
  std::string message("\"");
  message.append(text.substr(0, 40)).append(advice);
  return InvalidArgument(std::move(message));
}

struct Fields {
  int year, month, day;
  std::int64_t ms;
};

Fields Split(TimeMs time) {
  constexpr TimeMs kFirst = -62135596800000;  // 0001-01-01
  constexpr TimeMs kLast = 253402300799999;   // 9999-12-31T23:59:59.999
  time = std::clamp(time, kFirst, kLast);
  const auto days = std::chrono::floor<std::chrono::days>(
      std::chrono::sys_time<std::chrono::milliseconds>(std::chrono::milliseconds(time)));
  const std::chrono::year_month_day date(days);
  return {static_cast<int>(date.year()), static_cast<int>(static_cast<unsigned>(date.month())),
          static_cast<int>(static_cast<unsigned>(date.day())),
          time - days.time_since_epoch().count() * kDayMs};
}

}  // namespace

TimeMs NowMs() {
  return std::chrono::duration_cast<std::chrono::milliseconds>(
             std::chrono::system_clock::now().time_since_epoch())
      .count();
}

Clock SystemClock() {
  return [] { return NowMs(); };
}

std::string FormatDate(TimeMs time) {
  const Fields fields = Split(time);
  char text[32];
  std::snprintf(text, sizeof(text), "%04d-%02d-%02d", fields.year, fields.month, fields.day);
  return text;
}

std::string FormatIso8601(TimeMs time) {
  const Fields fields = Split(time);
  const int seconds = static_cast<int>(fields.ms / 1000), ms = static_cast<int>(fields.ms % 1000);
  char text[32];
  std::snprintf(text, sizeof(text), "T%02d:%02d:%02d", seconds / 3600, seconds / 60 % 60,
                seconds % 60);
  std::string result = FormatDate(time) + text;
  if (ms != 0) {
    std::snprintf(text, sizeof(text), ".%03d", ms);
    result += text;
  }
  return result + "+00:00";
}

Result<TimeMs> ParseDate(std::string_view text) {
  std::string_view rest = text;
  const auto date = TakeDate(rest);
  if (!date || !rest.empty()) {
    return NotATime(text, "\" is not a date; write YYYY-MM-DD");
  }
  return *date;
}

Result<TimeMs> ParseIso8601(std::string_view text) {
  const auto wrong = [&] {
    return NotATime(text, "\" is not a time; write YYYY-MM-DDTHH:MM:SS, with Z or an offset");
  };
  std::string_view rest = text;
  const auto date = TakeDate(rest);
  if (!date) return wrong();
  if (rest.empty()) return *date;
  if (!TakeChar(rest, 'T') && !TakeChar(rest, 't') && !TakeChar(rest, ' ')) return wrong();
  const auto time = TakeTimeOfDay(rest);
  if (!time) return wrong();
  const auto offset = TakeOffset(rest);
  if (!offset || !rest.empty()) return wrong();
  return *date + *time - *offset;
}

}  // namespace inferscale
