#include "cli/app.h"

#include <algorithm>
#include <exception>
#include <iostream>
#include <map>
#include <memory>
#include <new>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <unistd.h>

#include <CLI/CLI.hpp>

#include "base/log.h"
#include "cli/commands.h"
#include "cli/interrupt.h"
#include "cli/output.h"
#include "cli/service_factory.h"
#include "eval/commands.h"

namespace inferscale {
namespace {

constexpr int kExitError = 1;
constexpr int kExitUsage = 2;

/// What stands on the command line before any command looks at it.
struct GlobalFlags {
  std::map<std::string, std::string> options;  ///< by option name
  std::string config_file;
  bool json = false;
};

void AddGlobalFlags(CLI::App& app, GlobalFlags* flags) {
  for (const ConfigOption& option : ConfigOptions()) {
    app.add_option_function<std::string>(
           option.Flag(),
           [flags, name = std::string(option.name)](const std::string& value) {
             flags->options[name] = value;
           },
           std::string(option.description))
        ->type_name("")
        ->take_last()
        ->group("Options of every command (docs/configuration.md)");
  }
  app.add_option("--config", flags->config_file, "TOML file with options")
      ->type_name("")
      ->group("Options of every command (docs/configuration.md)");
  app.add_flag("--json", flags->json, "Results as JSON on standard output")
      ->group("Options of every command (docs/configuration.md)");
}

/// CLI11 takes values in brackets for lists, wherever they stand. A mark in front hides them from
/// it.
constexpr char kBracketMark = '\x1f';

std::vector<std::string> MarkBrackets(int argc, const char* const* argv) {
  std::vector<std::string> arguments(argv, argv + argc);
  for (std::string& argument : arguments) {
    if (argument.starts_with('[')) argument.insert(argument.begin(), kBracketMark);
  }
  return arguments;
}

void UnmarkBrackets(CLI::App& app) {
  for (CLI::Option* option : app.get_options()) {
    if (option->get_expected_max() == 0) continue;  // a flag
    option->transform([](std::string text) {
      if (text.starts_with(kBracketMark)) text.erase(0, 1);
      return text;
    });
  }
  for (CLI::App* command : app.get_subcommands({})) UnmarkBrackets(*command);
}

Config WithOverrides(Config config, const EvalServiceOptions& options) {
  if (!options.recipe.empty()) config.recipe = options.recipe;
  if (options.codec) config.codec = KvCodecName(*options.codec);
  if (options.threads > 0) config.threads = options.threads;
  if (options.context_tokens > 0) config.context_tokens = options.context_tokens;
  if (options.parallel_sequences > 0) config.parallel_sequences = options.parallel_sequences;
  return config;
}

Result<std::unique_ptr<MemoryService>> OpenForEvaluation(const Config& configured,
                                                         const EvalServiceOptions& options) {
  const Config config = WithOverrides(configured, options);
  MemoryServiceOptions service;
  service.recipe = config.recipe;
  INFERSCALE_ASSIGN_OR_RETURN(service.codec, ParseKvCodec(config.codec));
  service.max_fact_tokens = options.max_fact_tokens;
  service.clock = options.clock;
  service.background = options.background;
  service.accuracy_gate = AccuracyGate::kIgnore;  // what is measured is what was asked for
  INFERSCALE_ASSIGN_OR_RETURN(
      OpenedService opened,
      OpenServiceAt(config, options.folder, std::move(service), options.with_engine));
  return std::move(opened.service);
}

Command Evaluation(const EvalCommand& command) {
  return {command.app, [run = command.run](CliContext& context) -> Result<int> {
            const InterruptScope interrupts(2);
            const Config& config = context.config();
            EvalContext evaluation;
            evaluation.open_service = [&config](const EvalServiceOptions& options) {
              return OpenForEvaluation(config, options);
            };
            evaluation.json = context.json;
            evaluation.out = &std::cout;
            evaluation.progress = &std::cerr;
            evaluation.progress_is_terminal = isatty(STDERR_FILENO) == 1;
            if (context.loaded.sources.at("data-dir") == ConfigSource::kFlag) {
              evaluation.data_dir = config.data_dir;
            }
            evaluation.model =
                UsesVllm(config) ? "vLLM at " + config.vllm_url : config.model.filename().string();
            if (context.loaded.Given("threads")) evaluation.threads = config.threads;
            evaluation.stop = &InterruptScope::Flag();
            INFERSCALE_RETURN_IF_ERROR(run(evaluation));
            return 0;
          }};
}

Result<int> RunCommand(const Command& command, const GlobalFlags& flags) {
  ConfigInputs inputs;
  inputs.flags = flags.options;
  if (!flags.config_file.empty()) inputs.file = flags.config_file;
  inputs.environment = EnvironmentVariable;
  CliContext context;
  context.json = flags.json;
  INFERSCALE_ASSIGN_OR_RETURN(context.loaded, LoadConfig(inputs));
  INFERSCALE_RETURN_IF_ERROR(SetUpLogging(context.config().log_level));
  return command.run(context);
}

int Usage(const CLI::App& app, const CLI::ParseError& error, int argc, const char* const* argv) {
  if (error.get_exit_code() == 0) return app.exit(error);  // --help, --version
  // Flags have no values yet when parsing fails.
  if (std::find(argv, argv + argc, std::string_view("--json")) != argv + argc) {
    PrintError(InvalidArgument(error.what()), true);
  } else {
    std::cerr
        << "inferscale: " << EscapeForTerminal(error.what())
        << ": inferscale --help lists the commands, inferscale COMMAND --help their options\n";
  }
  return kExitUsage;
}

int Run(int argc, const char* const* argv) {
  CLI::App app(
      "Memory for language models, kept as attention KV and put straight into their cache.",
      "inferscale");
  app.set_version_flag("--version", "inferscale " INFERSCALE_VERSION);
  app.require_subcommand(1);
  app.option_defaults()->always_capture_default(false);
  GlobalFlags flags;
  AddGlobalFlags(app, &flags);

  std::vector<Command> commands;
  commands.push_back(Evaluation(AddDemoCommand(app)));
  AddIngestCommands(app, &commands);
  AddReadCommands(app, &commands);
  AddEraseCommands(app, &commands);
  AddTransferCommands(app, &commands);
  AddChatCommand(app, &commands);
  AddServeCommand(app, &commands);
  AddKeysCommand(app, &commands);
  AddBackupCommands(app, &commands);
  commands.push_back(Evaluation(AddBenchCommand(app)));
  commands.push_back(Evaluation(AddEvalCommand(app)));
  AddDoctorCommand(app, &commands);
  AddStatusCommands(app, &commands);
  for (const Command& command : commands) {
    command.app->fallthrough();
    for (CLI::App* nested : command.app->get_subcommands({})) nested->fallthrough();
  }

  UnmarkBrackets(app);

  const std::vector<std::string> arguments = MarkBrackets(argc, argv);
  std::vector<const char*> pointers;
  for (const std::string& argument : arguments) pointers.push_back(argument.c_str());
  try {
    app.parse(argc, pointers.data());
  } catch (const CLI::ParseError& error) {
    return Usage(app, error, argc, argv);
  }
  const auto command = std::find_if(commands.begin(), commands.end(), [](const Command& candidate) {
    return candidate.app->parsed();
  });
  if (command == commands.end()) return kExitUsage;
  const Result<int> status = RunCommand(*command, flags);
  if (status.ok()) return *status;
  PrintError(status.status(), flags.json);
  return kExitError;
}

}  // namespace

CLI::Option* AddTexts(CLI::App& app, const std::string& name, const std::string& description) {
  return app.add_option(name, description)->expected(0, 1 << 20)->allow_extra_args();
}

int RunCli(int argc, const char* const* argv) {
  // Nothing of ours throws; this is for libraries, and for memory that runs out.
  try {
    return Run(argc, argv);
  } catch (const std::bad_alloc&) {
    std::cerr
        << "inferscale: out of memory: free some, or use a smaller model or --context-tokens\n";
  } catch (const std::exception& error) {
    std::cerr << "inferscale: unexpected: " << error.what() << ": please report this\n";
  }
  return kExitError;
}

}  // namespace inferscale
