#ifndef INFERSCALE_BASE_LOG_H_
#define INFERSCALE_BASE_LOG_H_

/// \file log.h
/// The one place where logging is set up. Code logs with spdlog::info() and its like. Rule: texts
/// of users, facts and prompts are never logged above debug level.

#include <string_view>

#include <spdlog/spdlog.h>
#include <nlohmann/json_fwd.hpp>

#include "inferscale/result.h"

namespace inferscale {

enum class LogFormat {
  kText,
  kJson,  ///< one object a line: time, level, message, or the fields of LogFields()
};

/// Sends the default logger to stderr. \param level "trace", "debug", "info", "warn", "error" or
/// "off". kInvalidArgument for another word, changing nothing. Thread-safe.
Status SetUpLogging(std::string_view level, LogFormat format = LogFormat::kText);

/// Logs an object's fields, for machines to read. \param fields an object. Thread-safe.
void LogFields(spdlog::level::level_enum level, const nlohmann::ordered_json& fields);

}  // namespace inferscale

#endif  // INFERSCALE_BASE_LOG_H_
