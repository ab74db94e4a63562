// inferscale status, config

#include <filesystem>
#include <iostream>
#include <memory>
#include <system_error>
#include <utility>

#include <nlohmann/json.hpp>

#include "cli/commands.h"
#include "cli/output.h"
#include "cli/service_factory.h"

namespace inferscale {
namespace {

using nlohmann::json;

/// Facts and jobs are counted up to here: their rows have to be read to be counted.
constexpr std::int32_t kCountLimit = 100000;

struct FolderSize {
  std::int64_t files = 0, bytes = 0;
};

FolderSize SizeOf(const std::filesystem::path& folder) {
  FolderSize size;
  std::error_code error;
  for (std::filesystem::recursive_directory_iterator it(folder, error), end; !error && it != end;
       it.increment(error)) {
    std::error_code ignored;
    if (!it->is_regular_file(ignored)) continue;
    const std::uintmax_t bytes = it->file_size(ignored);
    if (ignored) continue;  // went away meanwhile
    ++size.files;
    size.bytes += static_cast<std::int64_t>(bytes);
  }
  return size;
}

Result<int> ShowStatus(CliContext& context) {
  const Config& config = context.config();
  INFERSCALE_ASSIGN_OR_RETURN(const std::unique_ptr<Catalog> catalog, OpenCatalog(config));
  INFERSCALE_ASSIGN_OR_RETURN(const std::vector<ScopeInfo> own,
                              catalog->FindScopes(context.scope()));
  INFERSCALE_ASSIGN_OR_RETURN(const std::vector<ScopeInfo> all, catalog->FindScopes(Scope()));
  std::int64_t facts = 0, all_facts = 0;
  std::string display_name;
  for (const ScopeInfo& scope : own) {
    facts += scope.facts;
    if (display_name.empty()) display_name = scope.display_name;
  }
  for (const ScopeInfo& scope : all) all_facts += scope.facts;

  INFERSCALE_ASSIGN_OR_RETURN(const std::string encoding, catalog->GetMeta(kLastEncodingMeta));
  INFERSCALE_ASSIGN_OR_RETURN(const std::string embedder,
                              catalog->GetMeta(meta_names::kEmbedderId));
  std::int64_t encodings = all_facts;
  if (!encoding.empty()) {
    INFERSCALE_ASSIGN_OR_RETURN(encodings, catalog->CountFactsWithoutKv(encoding));
  }
  std::int64_t embeddings = all_facts;
  if (!embedder.empty()) {
    INFERSCALE_ASSIGN_OR_RETURN(const std::vector<Fact> waiting,
                                catalog->FactsWithoutEmbedding(embedder, kCountLimit));
    embeddings = static_cast<std::int64_t>(waiting.size());
  }
  INFERSCALE_ASSIGN_OR_RETURN(const std::vector<Job> jobs,
                              catalog->PendingJobs("extract", kCountLimit));
  INFERSCALE_ASSIGN_OR_RETURN(const std::vector<Erasure> erasures, catalog->PendingErasures());
  const FolderSize kv = SizeOf(config.data_dir / "kv");
  const FolderSize whole = SizeOf(config.data_dir);
  if (context.json) {
    PrintJson({{"data_dir", config.data_dir.string()},
               {"user", config.user},
               {"display_name", display_name},
               {"facts", facts},
               {"all_facts", all_facts},
               {"scopes", all.size()},
               {"pending",
                {{"encodings", encodings},
                 {"embeddings", embeddings},
                 {"extractions", jobs.size()},
                 {"erasures", erasures.size()}}},
               {"kv_blocks", kv.files},
               {"kv_bytes", kv.bytes},
               {"catalog_bytes", whole.bytes - kv.bytes}});
    return 0;
  }
  std::cout << "data folder: " << EscapeForTerminal(config.data_dir.string()) << '\n'
            << "user:        " << EscapeForTerminal(config.user);
  if (!display_name.empty()) std::cout << " (" << EscapeForTerminal(display_name) << ')';
  std::cout << "\nmemories:    " << facts;
  if (all_facts != facts) std::cout << " (" << all_facts << " of all users)";
  std::cout << "\nwaiting:     " << encodings << " for KV, " << embeddings << " for an embedding, "
            << jobs.size() << " conversations for extraction, " << erasures.size()
            << " erasures\ndisk:        " << FormatByteCount(kv.bytes) << " in " << kv.files
            << " KV blocks, " << FormatByteCount(whole.bytes - kv.bytes) << " else\n";
  return 0;
}

std::string ShownValue(const ConfigOption& option, const Config& config) {
  const std::string value = option.get(config);
  return option.secret && !value.empty() ? "(set)" : value;
}

Result<int> ShowConfig(bool markdown, CliContext& context) {
  if (markdown) {
    std::cout << ConfigurationMarkdown();
    return 0;
  }
  const LoadedConfig& loaded = context.loaded;
  json options = json::object();
  for (const ConfigOption& option : ConfigOptions()) {
    const std::string name(option.name);
    const std::string source(ConfigSourceName(loaded.sources.at(name)));
    const std::string value = ShownValue(option, loaded.config);
    if (context.json) {
      options[option.TomlKey()] = {{"value", value}, {"source", source}};
    } else {
      std::cout << option.TomlKey() << " = " << EscapeForTerminal(value) << "  (" << source
                << ")\n";
    }
  }
  if (context.json) {
    PrintJson({{"options", std::move(options)},
               {"file", loaded.file.empty() ? json() : json(loaded.file.string())}});
  } else if (!loaded.file.empty()) {
    std::cout << "file: " << EscapeForTerminal(loaded.file.string()) << '\n';
  }
  return 0;
}

}  // namespace

void AddStatusCommands(CLI::App& app, std::vector<Command>* commands) {
  CLI::App* status = app.add_subcommand("status", "Count memories, pending work and bytes");
  status->footer("Example:\n  inferscale status --user anna");
  commands->push_back({status, ShowStatus});

  auto markdown = std::make_shared<bool>(false);
  CLI::App* config =
      app.add_subcommand("config", "Show the options in force and where they come from");
  config->add_flag("--markdown", *markdown, "Print docs/configuration.md");
  config->footer("Example:\n  INFERSCALE_TOP_K=30 inferscale config");
  commands->push_back(
      {config, [markdown](CliContext& context) { return ShowConfig(*markdown, context); }});
}

}  // namespace inferscale
