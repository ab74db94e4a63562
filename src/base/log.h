#ifndef INFERSCALE_BASE_LOG_H_
#define INFERSCALE_BASE_LOG_H_

/// \file log.h
/// The one place where logging is set up. Code logs with spdlog::info() and its like. Rule: texts
/// of users, facts and prompts are never logged above debug level.

#include <string_view>

#include <spdlog/spdlog.h>

#include "inferscale/result.h"

namespace inferscale {

/// Sends the default logger to stderr. \param level "trace", "debug", "info", "warn", "error" or
/// "off". kInvalidArgument for another word, changing nothing. Thread-safe.
Status SetUpLogging(std::string_view level);

}  // namespace inferscale

#endif  // INFERSCALE_BASE_LOG_H_
