// inferscale serve

#include <chrono>
#include <csignal>
#include <iostream>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <sys/resource.h>

#include "base/log.h"
#include "base/utf8.h"
#include "cli/commands.h"
#include "cli/interrupt.h"
#include "cli/output.h"
#include "cli/service_factory.h"
#include "server/serve.h"

namespace inferscale {
namespace {

constexpr std::chrono::milliseconds kSignalCheck{50};
constexpr std::chrono::seconds kPatience{10};  // for answers under way when asked to end
constexpr rlim_t kWantedDescriptors = 8192;

std::vector<std::string> Listed(const std::string& text) {
  std::vector<std::string> items;
  for (std::size_t at = 0; at <= text.size();) {
    const std::size_t end = std::min(text.find(',', at), text.size());
    const std::string_view item = TrimWhitespace(std::string_view(text).substr(at, end - at));
    if (!item.empty()) items.emplace_back(item);
    at = end + 1;
  }
  return items;
}

/// Every connection is a descriptor, and the usual limit is 1024.
void RaiseDescriptorLimit() {
  rlimit limit{};
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0 || limit.rlim_cur >= kWantedDescriptors) return;
  limit.rlim_cur = std::min(limit.rlim_max, kWantedDescriptors);
  if (setrlimit(RLIMIT_NOFILE, &limit) != 0) spdlog::warn("few file descriptors are allowed");
}

ServerOptions OptionsOf(const Config& config, const ListenAddress& listen, const Engine* engine) {
  ServerOptions options;
  options.http.address = listen.address;
  options.http.port = listen.port;
  options.http.max_body_bytes = static_cast<std::uint64_t>(config.max_body_bytes);
  options.allowed_hosts = Listed(config.allowed_hosts);
  options.allowed_origins = Listed(config.allowed_origins);
  options.require_key = config.require_key == "always" || !listen.loopback;
  options.model_name = ModelName(config, engine);
  options.embedder_name = config.embedder_model.empty()
                              ? std::filesystem::path(config.embedder).stem().string()
                              : config.embedder_model;
  options.top_k = config.top_k;
  return options;
}

Result<int> Serve(CliContext& context) {
  const Config& config = context.config();
  const std::string level = context.loaded.Given("log-level") ? config.log_level : "info";
  INFERSCALE_RETURN_IF_ERROR(SetUpLogging(level, LogFormat::kJson));
  INFERSCALE_ASSIGN_OR_RETURN(const ListenAddress listen, ParseListenAddress(config.listen));
  // A reader of the log or of standard output that goes away must not end the service.
  std::signal(SIGPIPE, SIG_IGN);
  RaiseDescriptorLimit();
  INFERSCALE_ASSIGN_OR_RETURN(OpenedService opened, OpenService(config, /*with_engine=*/true));
  spdlog::info("facts are made {}", opened.extraction_reason);
  const InterruptScope interrupts(2);
  ServerOptions options = OptionsOf(config, listen, opened.service->engine());
  INFERSCALE_ASSIGN_OR_RETURN(const std::unique_ptr<Service> service,
                              Service::Start(std::move(opened.service), std::move(options)));
  const bool v6 = listen.address.find(':') != std::string::npos;
  const std::string url = "http://" + (v6 ? "[" + listen.address + "]" : listen.address) + ":" +
                          std::to_string(service->port());
  if (context.json) {
    nlohmann::json line = {{"listening", url}, {"port", service->port()}};
    if (service->first_key()) line["first_key"] = *service->first_key();
    PrintJson(line);
  } else {
    if (service->first_key()) {
      std::cout << "API key, shown this once: " << *service->first_key() << '\n';
    }
    std::cout << "listening on " << url << std::endl;
  }
  while (!InterruptScope::Interrupted()) std::this_thread::sleep_for(kSignalCheck);
  spdlog::info("stopping; answers under way have {} s", kPatience.count());
  service->Stop(kPatience);
  return 0;
}

}  // namespace

void AddServeCommand(CLI::App& app, std::vector<Command>* commands) {
  CLI::App* serve =
      app.add_subcommand("serve", "Answer HTTP: OpenAI's chat with memory, and a memory API");
  serve->footer(
      "Examples:\n  inferscale serve\n  inferscale serve --listen 0.0.0.0:8420\n"
      "SIGTERM or Ctrl-C ends it when the answers under way have ended, a second one at once.");
  commands->push_back({serve, Serve});
}

}  // namespace inferscale
