#include "base/log.h"

#include <spdlog/sinks/stdout_color_sinks.h>

#include <array>
#include <memory>
#include <string>
#include <utility>

namespace inferscale {

Status SetUpLogging(std::string_view level) {
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
    auto logger = std::make_shared<spdlog::logger>(
        "inferscale", std::make_shared<spdlog::sinks::stderr_color_sink_mt>());
    logger->set_pattern("%Y-%m-%dT%H:%M:%S.%e%z %^%l%$ %v");
    logger->set_level(value);
    logger->flush_on(spdlog::level::warn);
    spdlog::set_default_logger(std::move(logger));
    return OkStatus();
  }
  return InvalidArgument("unknown log level \"" + std::string(level) +
                         "\"; use trace, debug, info, warn, error or off");
}

}  // namespace inferscale
