// inferscale export, import

#include <algorithm>
#include <iostream>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <tuple>
#include <utility>

#include <nlohmann/json.hpp>

#include "base/files.h"
#include "cli/commands.h"
#include "cli/interrupt.h"
#include "cli/output.h"
#include "cli/portable_facts.h"
#include "cli/progress.h"
#include "cli/service_factory.h"
#include "cli/turn_reader.h"

namespace inferscale {
namespace {

using nlohmann::json;

constexpr std::size_t kMaxImportBytes = std::size_t{256} << 20;
constexpr std::int64_t kPage = 500;
constexpr std::size_t kImportBatch = 64;

struct ExportOptions {
  std::string output;
  std::string format = "jsonl";
  bool everybody = false;
};

struct ImportOptions {
  std::string file;
  bool no_wait = false;
};

Result<json> ExportFact(Catalog& catalog, const Fact& fact, const ScopeInfo& scope) {
  json item = FactJson(fact, &scope);
  INFERSCALE_ASSIGN_OR_RETURN(const std::vector<HistoryEntry> history, catalog.History(fact.id));
  item["history"] = json::array();
  for (const HistoryEntry& entry : history) item["history"].push_back(HistoryJson(entry));
  return item;
}

Result<std::vector<json>> ExportScope(Catalog& catalog, const ScopeInfo& scope) {
  std::vector<json> items;
  FactQuery query;
  query.scopes = {scope.id};
  query.show_expired = true;
  query.limit = kPage;
  while (true) {
    INFERSCALE_ASSIGN_OR_RETURN(const std::vector<Fact> facts, catalog.ListFacts(query));
    for (const Fact& fact : facts) {
      INFERSCALE_ASSIGN_OR_RETURN(json item, ExportFact(catalog, fact, scope));
      items.push_back(std::move(item));
    }
    if (static_cast<std::int64_t>(facts.size()) < kPage) break;
    query.offset += kPage;
  }
  std::reverse(items.begin(), items.end());  // oldest first, so that an import keeps the order
  return items;
}

Result<int> Export(const ExportOptions& options, CliContext& context) {
  INFERSCALE_ASSIGN_OR_RETURN(const std::unique_ptr<Catalog> catalog,
                              OpenCatalog(context.config()));
  INFERSCALE_ASSIGN_OR_RETURN(const std::vector<ScopeInfo> scopes,
                              catalog->FindScopes(options.everybody ? Scope() : context.scope()));
  const bool document = options.format == "json" || (context.json && options.output.empty());
  std::string text;
  json results = json::array();
  std::size_t count = 0;
  for (const ScopeInfo& scope : scopes) {
    INFERSCALE_ASSIGN_OR_RETURN(std::vector<json> items, ExportScope(*catalog, scope));
    count += items.size();
    for (json& item : items) {
      if (document) {
        results.push_back(std::move(item));
      } else {
        text += item.dump(-1, ' ', false, json::error_handler_t::replace) + '\n';
      }
    }
  }
  if (document) {
    text =
        json{{"results", std::move(results)}}.dump(-1, ' ', false, json::error_handler_t::replace) +
        '\n';
  }
  if (options.output.empty()) {
    std::cout << text << std::flush;
    return std::cout.good() ? Result<int>(0)
                            : Result<int>(FailedPrecondition("cannot write to standard output"));
  }
  INFERSCALE_RETURN_IF_ERROR(AtomicWriteFile(options.output, text));
  if (context.json) {
    PrintJson({{"exported", count}, {"file", options.output}});
  } else {
    std::cout << count << (count == 1 ? " memory" : " memories") << " exported to "
              << EscapeForTerminal(options.output) << '\n';
  }
  return 0;
}

struct ScopeOrder {
  static auto Key(const Scope& scope) {
    return std::tie(scope.tenant, scope.user, scope.agent, scope.run, scope.app);
  }
  bool operator()(const Scope& a, const Scope& b) const { return Key(a) < Key(b); }
};

struct Imported {
  std::int64_t added = 0, duplicates = 0, known_ids = 0;
  std::size_t done = 0;
};

/// Stores one batch of a scope; facts whose id exists already are left out and counted.
Status ImportBatch(MemoryService& service, const Scope& scope, std::vector<PortableFact> facts,
                   Imported* imported) {
  std::vector<std::string> ids;
  for (const PortableFact& fact : facts) {
    if (!fact.fact.id.empty()) ids.push_back(fact.fact.id);
  }
  INFERSCALE_ASSIGN_OR_RETURN(const std::vector<Fact> known, service.catalog().GetFacts(ids));
  std::set<std::string> taken;
  for (const Fact& fact : known) taken.insert(fact.id);
  std::vector<NewFact> fresh;
  for (PortableFact& fact : facts) {
    if (!fact.fact.id.empty() && !taken.insert(fact.fact.id).second) {
      ++imported->known_ids;
      continue;
    }
    NewFact item;
    item.fact = std::move(fact.fact);
    item.history = std::move(fact.history);
    fresh.push_back(std::move(item));
  }
  if (fresh.empty()) return OkStatus();
  INFERSCALE_ASSIGN_OR_RETURN(const IngestOutcome outcome,
                              service.AddFacts(scope, {}, std::move(fresh)));
  for (const IngestOutcome::Entry& entry : outcome.facts) {
    ++(entry.added ? imported->added : imported->duplicates);
  }
  return OkStatus();
}

Result<int> Import(const ImportOptions& options, CliContext& context) {
  const InterruptScope interrupts(2);
  INFERSCALE_ASSIGN_OR_RETURN(const std::string content, ReadInput(options.file, kMaxImportBytes));
  INFERSCALE_ASSIGN_OR_RETURN(
      std::vector<PortableFact> facts,
      ParsePortableFacts(content, options.file == "-" ? "standard input" : options.file));
  if (facts.empty()) return InvalidArgument(options.file + " holds no facts");
  // --user says whose they become; without it every fact stays its owner's.
  const bool to_user = context.loaded.sources.at("user") == ConfigSource::kFlag;
  std::map<Scope, std::vector<PortableFact>, ScopeOrder> by_scope;
  for (PortableFact& fact : facts) {
    const bool own = !to_user && fact.scope.HasOwner();
    const Scope owner = own ? fact.scope : context.scope();
    by_scope[owner].push_back(std::move(fact));
  }

  INFERSCALE_ASSIGN_OR_RETURN(const OpenedService opened,
                              OpenService(context.config(), !options.no_wait));
  Imported imported;
  std::optional<Progress> progress;
  if (facts.size() > kImportBatch) {
    progress.emplace("imported", "facts", static_cast<std::int64_t>(facts.size()));
  }
  for (auto& [scope, items] : by_scope) {
    for (std::size_t begin = 0; begin < items.size(); begin += kImportBatch) {
      if (InterruptScope::Interrupted()) break;
      if (progress) progress->Update(static_cast<std::int64_t>(imported.done));
      const std::size_t end = std::min(begin + kImportBatch, items.size());
      std::vector<PortableFact> batch(
          std::make_move_iterator(items.begin() + static_cast<std::ptrdiff_t>(begin)),
          std::make_move_iterator(items.begin() + static_cast<std::ptrdiff_t>(end)));
      const Status status = ImportBatch(*opened.service, scope, std::move(batch), &imported);
      if (!status.ok()) {
        return status.WithContext(std::to_string(imported.done) +
                                  " facts are imported; the same command goes on with the rest");
      }
      imported.done += end - begin;
    }
  }
  progress.reset();
  const bool interrupted = imported.done < facts.size();
  PendingWork pending;
  if (!interrupted && !options.no_wait) {
    INFERSCALE_ASSIGN_OR_RETURN(pending, WaitForEncoding(*opened.service));
  } else {
    INFERSCALE_ASSIGN_OR_RETURN(pending, opened.service->Pending());
  }
  const std::int64_t duplicates = imported.duplicates + imported.known_ids;
  if (context.json) {
    PrintJson({{"added", imported.added},
               {"duplicates", duplicates},
               {"facts", facts.size()},
               {"pending_encodings", pending.encodings},
               {"interrupted", interrupted}});
  } else {
    std::cout << imported.added << (imported.added == 1 ? " memory" : " memories") << " imported, "
              << duplicates << " known already\n";
    const std::string note = PendingNote(pending);
    if (!note.empty()) PrintNote(note);
  }
  if (interrupted) {
    PrintNote("interrupted: " + std::to_string(imported.done) + " of " +
              std::to_string(facts.size()) + " facts are imported; the same command goes on");
    return 1;
  }
  return 0;
}

}  // namespace

void AddTransferCommands(CLI::App& app, std::vector<Command>* commands) {
  auto export_options = std::make_shared<ExportOptions>();
  CLI::App* exporter = app.add_subcommand("export", "Write memories with metadata and history");
  exporter->add_option("-o,--output", export_options->output,
                       "File to write; else standard output");
  exporter->add_option("--format", export_options->format, "jsonl (a fact a line) or json")
      ->check(CLI::IsMember({"jsonl", "json"}));
  exporter->add_flag("--everybody", export_options->everybody, "Of all users");
  exporter->footer("Example:\n  inferscale export --output memories.jsonl");
  commands->push_back({exporter, [export_options](CliContext& context) {
                         return Export(*export_options, context);
                       }});

  auto import_options = std::make_shared<ImportOptions>();
  CLI::App* importer =
      app.add_subcommand("import", "Read memories: an export, or the answer of Mem0's get_all");
  importer->add_option("file", import_options->file, "The file; - reads standard input")
      ->required();
  importer->add_flag("--no-wait", import_options->no_wait,
                     "Return once everything is stored; KV is computed by a later command");
  importer->footer(
      "Facts stay their owner's (user_id and so on) unless --user is given.\n"
      "Example:\n  inferscale import memories.jsonl");
  commands->push_back({importer, [import_options](CliContext& context) {
                         return Import(*import_options, context);
                       }});
}

}  // namespace inferscale
