#ifndef INFERSCALE_BASE_CLOCK_H_
#define INFERSCALE_BASE_CLOCK_H_

/// \file clock.h
/// Wall-clock time and its text forms, all UTC. Thread-safe.

#include <functional>
#include <string>
#include <string_view>

#include "inferscale/result.h"
#include "inferscale/types.h"

namespace inferscale {

/// Source of the current time; tests put their own in.
using Clock = std::function<TimeMs()>;

TimeMs NowMs();
/// A clock that calls NowMs().
Clock SystemClock();

/// "2026-11-29"; times outside the years 1 to 9999 are clamped. The same for FormatIso8601.
std::string FormatDate(TimeMs time);
/// "2026-11-29T19:41:17.123+00:00" (milliseconds left out when zero).
std::string FormatIso8601(TimeMs time);

/// Midnight UTC of a date written exactly "YYYY-MM-DD". kInvalidArgument otherwise.
Result<TimeMs> ParseDate(std::string_view text);
/// A date, or a date, 'T' or a blank, "HH:MM" or "HH:MM:SS", optionally a fraction, optionally "Z",
/// "±HH:MM", "±HHMM" or "±HH" (none: UTC). kInvalidArgument otherwise.
Result<TimeMs> ParseIso8601(std::string_view text);

}  // namespace inferscale

#endif  // INFERSCALE_BASE_CLOCK_H_
