#ifndef INFERSCALE_EVAL_COMMANDS_H_
#define INFERSCALE_EVAL_COMMANDS_H_

/// \file commands.h
/// The measuring commands of the program: demo, bench, eval. Each Add…Command registers a
/// subcommand with its own options on `parent`; the caller parses, fills an EvalContext from its
/// global options
/// (--data-dir, --model, --embedder, --threads, --json belong to the caller) and calls run() of the
/// subcommand that was parsed. Not thread-safe.

#include <atomic>
#include <filesystem>
#include <functional>
#include <iosfwd>
#include <memory>
#include <optional>
#include <string>

#include <CLI/CLI.hpp>

#include "inferscale/memory_service.h"

namespace inferscale {

/// What a command needs of a service. Zero and empty mean "as configured".
struct EvalServiceOptions {
  std::filesystem::path folder;  ///< data folder; never the user's own unless --data-dir said so
  std::string recipe;            ///< see encode/recipe.h
  std::optional<KvCodec> codec;
  std::int32_t max_fact_tokens = 0;
  std::function<TimeMs()> clock;
  bool background = true;  ///< false: work is done by RunPending() alone
  std::int32_t threads = 0;
  std::int32_t context_tokens = 0;  ///< per sequence; the engine may give less
  std::int32_t parallel_sequences = 0;
  bool with_engine = true;  ///< false: no language model is loaded
};

struct EvalContext {
  /// Opens a service; the previous one has been destroyed unless its folder differs.
  std::function<Result<std::unique_ptr<MemoryService>>(const EvalServiceOptions&)> open_service;
  bool json = false;                 ///< end with one JSON object on `out`, tables go to `progress`
  std::ostream* out = nullptr;       ///< never null when run() is called
  std::ostream* progress = nullptr;  ///< standard error; never null
  bool progress_is_terminal = false;
  std::filesystem::path data_dir;  ///< given explicitly, else empty: a temporary folder serves
  std::string model;               ///< name of the model for headings
  std::int32_t threads = 0;        ///< given explicitly, else 0
  const std::atomic<bool>* stop = nullptr;  ///< becomes true on Ctrl-C; may be null
};

struct EvalCommand {
  CLI::App* app = nullptr;  ///< app->parsed() says whether to call run()
  std::function<Status(EvalContext&)> run;
};

EvalCommand AddDemoCommand(CLI::App& parent);
EvalCommand AddBenchCommand(CLI::App& parent);  ///< bench ttft|ingest|retrieval|codec|decode|start
EvalCommand AddEvalCommand(CLI::App& parent);   ///< eval locomo FILE

}  // namespace inferscale

#endif  // INFERSCALE_EVAL_COMMANDS_H_
