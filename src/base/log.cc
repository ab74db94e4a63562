#include "base/log.h"

#include <array>
#include <chrono>
#include <memory>
#include <string>
#include <utility>

#include <spdlog/formatter.h>
#include <spdlog/sinks/stdout_color_sinks.h>
#include <nlohmann/json.hpp>

#include "base/clock.h"

namespace inferscale {
namespace {

constexpr const char* kFieldsLogger = "inferscale.fields";

/// Each message as an object; one of the fields logger is an object already.
class JsonFormatter : public spdlog::formatter {
 public:
  void format(const spdlog::details::log_msg& message, spdlog::memory_buf_t& out) override {
    const auto level = spdlog::level::to_string_view(message.level);
    const auto time =
        std::chrono::duration_cast<std::chrono::milliseconds>(message.time.time_since_epoch());
    std::string line = R"({"time":")" + FormatIso8601(time.count()) + R"(","level":")" +
                       std::string(level.data(), level.size()) + '"';
    const std::string text(message.payload.data(), message.payload.size());
    if (std::string_view(message.logger_name.data(), message.logger_name.size()) == kFieldsLogger) {
      line += ',' + text.substr(1);
    } else {
      line += R"(,"message":)" +
              nlohmann::json(text).dump(-1, ' ', false, nlohmann::json::error_handler_t::replace) +
              '}';
    }
    line += '\n';
    out.append(line.data(), line.data() + line.size());
  }
  std::unique_ptr<spdlog::formatter> clone() const override {
    return std::make_unique<JsonFormatter>();
  }
};

}  // namespace

Status SetUpLogging(std::string_view level, LogFormat format) {
  static constexpr std::array<std::pair<std::string_view, spdlog::level::level_enum>, 6> kLevels = {
      {
          {"trace", spdlog::level::trace},
          {"debug", spdlog::level::debug},
          {"info", spdlog::level::info},
          {"warn", spdlog::level::warn},
          {"error", spdlog::level::err},
          {"off", spdlog::level::off},
      }};
  for (const auto& [name, value] : kLevels) {
    if (name != level) continue;
    const auto sink = std::make_shared<spdlog::sinks::stderr_color_sink_mt>();
    if (format == LogFormat::kJson) {
      sink->set_formatter(std::make_unique<JsonFormatter>());
    } else {
      sink->set_pattern("%Y-%m-%dT%H:%M:%S.%e%z %^%l%$ %v");
    }
    for (const char* logger_name : {"inferscale", kFieldsLogger}) {
      auto logger = std::make_shared<spdlog::logger>(logger_name, sink);
      logger->set_level(value);
      logger->flush_on(spdlog::level::warn);
      if (logger_name == kFieldsLogger) {
        spdlog::drop(kFieldsLogger);
        spdlog::register_logger(std::move(logger));
      } else {
        spdlog::set_default_logger(std::move(logger));
      }
    }
    return OkStatus();
  }
  return InvalidArgument("unknown log level \"" + std::string(level) +
                         "\"; use trace, debug, info, warn, error or off");
}

void LogFields(spdlog::level::level_enum level, const nlohmann::ordered_json& fields) {
  std::shared_ptr<spdlog::logger> logger = spdlog::get(kFieldsLogger);
  if (logger == nullptr) logger = spdlog::default_logger();
  if (!logger->should_log(level)) return;
  logger->log(level, "{}",
              fields.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace));
}

}  // namespace inferscale
