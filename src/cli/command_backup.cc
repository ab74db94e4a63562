// inferscale backup, restore

#include <iostream>
#include <memory>
#include <string>

#include <nlohmann/json.hpp>

#include "cli/backup.h"
#include "cli/commands.h"
#include "cli/output.h"

namespace inferscale {

void AddBackupCommands(CLI::App& app, std::vector<Command>* commands) {
  struct BackupFlags {
    std::string file;
    bool with_kv = false;
  };
  auto backup_flags = std::make_shared<BackupFlags>();
  CLI::App* backup =
      app.add_subcommand("backup", "Copy all memories to a file, while nothing runs");
  backup->add_option("file", backup_flags->file, "The file to write; it must not exist")
      ->required();
  backup->add_flag("--with-kv", backup_flags->with_kv,
                   "KV too, which restore else leaves to be computed again");
  backup->footer(
      "A backup holds every memory as text: keep it as safe as the data folder.\n"
      "Example:\n  inferscale backup /backups/memories-$(date +%F).tar");
  commands->push_back({backup, [backup_flags](CliContext& context) -> Result<int> {
                         INFERSCALE_ASSIGN_OR_RETURN(
                             const BackupReport report,
                             BackUp(context.config(), backup_flags->file, backup_flags->with_kv));
                         if (context.json) {
                           PrintJson({{"file", backup_flags->file},
                                      {"bytes", report.bytes},
                                      {"kv_blocks", report.kv_blocks}});
                         } else {
                           std::cout << "written: " << EscapeForTerminal(backup_flags->file) << ", "
                                     << report.bytes << " bytes\n";
                         }
                         return 0;
                       }});

  auto options = std::make_shared<RestoreOptions>();
  CLI::App* restore = app.add_subcommand("restore", "Bring a backup back, while nothing runs");
  restore->add_option("file", options->file, "The backup")->required();
  restore->add_flag("--replace", options->replace,
                    "Give up what the data folder holds; what was erased in it stays erased");
  restore->add_option("--erasures", options->erasure_logs,
                      "A copy of a data folder's erasures.log: what it says is erased again");
  restore->footer("Example:\n  inferscale restore /backups/memories-2026-11-30.tar --replace");
  commands->push_back({restore, [options](CliContext& context) -> Result<int> {
                         INFERSCALE_ASSIGN_OR_RETURN(const RestoreReport report,
                                                     Restore(context.config(), *options));
                         if (context.json) {
                           PrintJson({{"data_dir", context.config().data_dir.string()},
                                      {"kv_blocks", report.kv_blocks},
                                      {"erasures_reapplied", report.erasures}});
                         } else {
                           std::cout << "restored to "
                                     << EscapeForTerminal(context.config().data_dir.string());
                           if (report.erasures > 0) {
                             std::cout << "; " << report.erasures
                                       << (report.erasures == 1 ? " erasure" : " erasures")
                                       << " since the backup done again";
                           }
                           std::cout << '\n';
                         }
                         return 0;
                       }});
}

}  // namespace inferscale
