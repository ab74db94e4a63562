#ifndef INFERSCALE_CLI_COMMANDS_H_
#define INFERSCALE_CLI_COMMANDS_H_

/// \file commands.h
/// The memory commands. Each Add…Command registers subcommands with their options on `app` and puts
/// what they do into `commands`.

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include <CLI/CLI.hpp>

#include "cli/config.h"
#include "inferscale/memory_service.h"
#include "inferscale/result.h"

namespace inferscale {

struct CliContext {
  LoadedConfig loaded;
  bool json = false;

  const Config& config() const { return loaded.config; }
  Scope scope() const {
    Scope scope;
    scope.user = loaded.config.user;
    return scope;
  }
};

struct Command {
  CLI::App* app = nullptr;
  /// \return the exit status; an error is printed by the caller, and the status is then 1.
  std::function<Result<int>(CliContext&)> run;
};

void AddIngestCommands(CLI::App& app, std::vector<Command>* commands);    // add
void AddReadCommands(CLI::App& app, std::vector<Command>* commands);      // search, list, show
void AddEraseCommands(CLI::App& app, std::vector<Command>* commands);     // delete, forget, rename
void AddTransferCommands(CLI::App& app, std::vector<Command>* commands);  // export, import
void AddChatCommand(CLI::App& app, std::vector<Command>* commands);
void AddDoctorCommand(CLI::App& app, std::vector<Command>* commands);
void AddServeCommand(CLI::App& app, std::vector<Command>* commands);
void AddKeysCommand(CLI::App& app, std::vector<Command>* commands);
void AddBackupCommands(CLI::App& app, std::vector<Command>* commands);  // backup, restore
void AddStatusCommands(CLI::App& app, std::vector<Command>* commands);  // status, config

/// A positional argument of any number of texts, each taken as it stands: read with results(),
/// because CLI11's own conversion would take "[a, b]" apart and drop "{}".
CLI::Option* AddTexts(CLI::App& app, const std::string& name, const std::string& description);

/// Waits until facts are embedded and encoded, with progress; Ctrl-C ends the waiting, the rest is
/// done by the next command that loads the model. \return what is left.
Result<PendingWork> WaitForEncoding(MemoryService& service);
/// "12 facts wait for their KV: …", or empty when nothing waits.
std::string PendingNote(const PendingWork& pending);

}  // namespace inferscale

#endif  // INFERSCALE_CLI_COMMANDS_H_
