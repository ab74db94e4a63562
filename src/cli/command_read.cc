// inferscale search, list, show

#include <cstdio>
#include <filesystem>
#include <iostream>
#include <map>
#include <memory>
#include <system_error>
#include <utility>

#include <nlohmann/json.hpp>

#include "base/clock.h"
#include "base/hash.h"
#include "base/utf8.h"
#include "catalog/filter.h"
#include "cli/commands.h"
#include "cli/output.h"
#include "cli/service_factory.h"

namespace inferscale {
namespace {

using nlohmann::json;

constexpr std::size_t kLineCharacters = 160;

struct ReadOptions {
  std::string query, filter, id;
  std::vector<std::string> words;
  double threshold = 0;
  std::int64_t limit = 100, offset = 0;
  bool expired = false;
};

Result<std::unique_ptr<const Filter>> ParseFilter(const std::string& text) {
  if (text.empty()) return std::unique_ptr<const Filter>();
  Result<std::unique_ptr<const Filter>> filter = Filter::Parse(text);
  if (!filter.ok()) return filter.status().WithContext("--filter");
  return filter;
}

std::string FactLine(const Fact& fact) {
  std::string line = fact.id + "  ";
  if (fact.event_time_ms != 0) line += "(" + FormatDate(fact.event_time_ms) + ") ";
  if (!fact.name.empty()) line += ShortForTerminal(fact.name, 40) + ": ";
  line += ShortForTerminal(fact.text, kLineCharacters);
  if (!fact.superseded_by.empty()) line += "  [superseded]";
  return line;
}

Result<std::map<ScopeId, ScopeInfo>> ScopesById(Catalog& catalog, const Scope& scope) {
  INFERSCALE_ASSIGN_OR_RETURN(std::vector<ScopeInfo> scopes, catalog.FindScopes(scope));
  std::map<ScopeId, ScopeInfo> by_id;
  for (ScopeInfo& info : scopes) by_id.emplace(info.id, std::move(info));
  return by_id;
}

const ScopeInfo* Find(const std::map<ScopeId, ScopeInfo>& scopes, ScopeId id) {
  const auto found = scopes.find(id);
  return found == scopes.end() ? nullptr : &found->second;
}

Result<int> Search(const ReadOptions& options, CliContext& context) {
  std::string query;
  for (const std::string& word : options.words) query += (query.empty() ? "" : " ") + word;
  query = ToValidUtf8(query);
  if (TrimWhitespace(query).empty())
    return InvalidArgument("nothing to search for: give some words");
  INFERSCALE_ASSIGN_OR_RETURN(const auto filter, ParseFilter(options.filter));
  INFERSCALE_ASSIGN_OR_RETURN(const OpenedService opened, OpenService(context.config(), false));
  MemoryService& service = *opened.service;
  Status embedding;
  INFERSCALE_ASSIGN_OR_RETURN(
      const std::vector<SearchHit> hits,
      service.Search(context.scope(), query, context.config().top_k, filter.get(),
                     options.threshold, options.expired, &embedding));
  INFERSCALE_ASSIGN_OR_RETURN(const auto scopes, ScopesById(service.catalog(), context.scope()));
  if (context.json) {
    json results = json::array();
    for (const SearchHit& hit : hits) {
      json item = FactJson(hit.fact, Find(scopes, hit.fact.scope_id));
      item["score"] = hit.score;
      results.push_back(std::move(item));
    }
    json answer = {{"results", std::move(results)}};
    if (!embedding.ok()) answer["fallback"] = "embedder_unavailable";
    PrintJson(answer);
    return 0;
  }
  if (!embedding.ok()) {
    PrintNote("searched by keywords alone, the question could not be embedded: " +
              embedding.message());
  }
  for (const SearchHit& hit : hits) {
    char score[16];
    std::snprintf(score, sizeof(score), "%.2f  ", hit.score);
    std::cout << score << FactLine(hit.fact) << '\n';
  }
  if (hits.empty()) {
    PrintNote("nothing found for user " + context.config().user +
              ": inferscale list shows everything");
  }
  return 0;
}

Result<int> List(const ReadOptions& options, CliContext& context) {
  INFERSCALE_ASSIGN_OR_RETURN(const auto filter, ParseFilter(options.filter));
  INFERSCALE_ASSIGN_OR_RETURN(const std::unique_ptr<Catalog> catalog,
                              OpenCatalog(context.config()));
  INFERSCALE_ASSIGN_OR_RETURN(const auto scopes, ScopesById(*catalog, context.scope()));
  FactQuery query;
  for (const auto& [id, info] : scopes) query.scopes.push_back(id);
  query.filter = filter.get();
  query.show_expired = options.expired;
  query.offset = options.offset;
  query.limit = options.limit;
  std::vector<Fact> facts;
  std::int64_t total = 0;
  if (!query.scopes.empty()) {
    INFERSCALE_ASSIGN_OR_RETURN(facts, catalog->ListFacts(query));
    INFERSCALE_ASSIGN_OR_RETURN(total, catalog->CountFacts(query));
  }
  if (context.json) {
    json results = json::array();
    for (const Fact& fact : facts) results.push_back(FactJson(fact, Find(scopes, fact.scope_id)));
    PrintJson({{"results", std::move(results)}, {"total", total}, {"offset", options.offset}});
    return 0;
  }
  for (const Fact& fact : facts) std::cout << FactLine(fact) << '\n';
  const auto shown = static_cast<std::int64_t>(facts.size());
  if (total == 0) {
    PrintNote("user " + context.config().user + " has no memories: inferscale add \"…\" makes one");
  } else if (shown < total) {
    PrintNote(std::to_string(shown) + " of " + std::to_string(total) + " memories: --offset " +
              std::to_string(options.offset + shown) + " shows more");
  }
  return 0;
}

struct KvState {
  std::string state;  ///< "ready", "waiting", "no model yet"
  std::int64_t bytes = 0;
};

/// From the catalog and the names of files: no model is loaded.
Result<KvState> KvStateOf(const Config& config, Catalog& catalog, const Fact& fact,
                          const ScopeInfo& scope) {
  INFERSCALE_ASSIGN_OR_RETURN(const std::string encoding, catalog.GetMeta(kLastEncodingMeta));
  if (encoding.empty())
    return KvState{"waiting: no model that stores KV has been used with this folder yet", 0};
  INFERSCALE_ASSIGN_OR_RETURN(const auto records,
                              catalog.GetKvRecords(std::span(&fact.id, 1), encoding));
  KvState state{"waiting: computed by the next command that loads the model", 0};
  if (!records[0].has_value() || records[0]->fact_version != fact.version) return state;
  char tag[17];
  std::snprintf(tag, sizeof(tag), "%016llx", static_cast<unsigned long long>(scope.tag));
  const std::string name = HexEncode(records[0]->key.bytes) + ".kvb";
  std::error_code error;
  for (const auto& folder : std::filesystem::directory_iterator(config.data_dir / "kv", error)) {
    const std::uintmax_t bytes = std::filesystem::file_size(folder.path() / tag / name, error);
    if (!error) state = {"ready", static_cast<std::int64_t>(bytes)};
  }
  return state;
}

void PrintHistory(const std::vector<HistoryEntry>& history) {
  if (!history.empty()) std::cout << "history:\n";
  for (const HistoryEntry& entry : history) {
    std::cout << "  " << FormatIso8601(entry.created_at_ms) << "  " << entry.event;
    if (entry.old_text)
      std::cout << "  \"" << ShortForTerminal(*entry.old_text, kLineCharacters) << '"';
    if (entry.old_text && entry.new_text) std::cout << "  →";
    if (entry.new_text)
      std::cout << "  \"" << ShortForTerminal(*entry.new_text, kLineCharacters) << '"';
    std::cout << '\n';
  }
}

void PrintFact(const Fact& fact, const ScopeInfo& scope, const KvState& kv) {
  const auto row = [](const char* label, const std::string& text) {
    if (!text.empty()) std::cout << label << EscapeForTerminal(text) << '\n';
  };
  row("memory:      ", fact.text);
  row("id:          ", fact.id);
  row("user:        ", scope.scope.user);
  row("about:       ", fact.name.empty() ? scope.display_name : fact.name);
  if (fact.event_time_ms != 0) row("date:        ", FormatDate(fact.event_time_ms));
  row("created:     ", FormatIso8601(fact.created_at_ms));
  if (fact.updated_at_ms != fact.created_at_ms) {
    row("updated:     ", FormatIso8601(fact.updated_at_ms));
  }
  row("expires:     ", fact.expiration_date);
  row("superseded:  ", fact.superseded_by);
  if (fact.metadata_json != "{}") row("metadata:    ", fact.metadata_json);
  row("KV:          ", kv.state + (kv.bytes > 0 ? ", " + FormatByteCount(kv.bytes) : ""));
}

Result<int> Show(const ReadOptions& options, CliContext& context) {
  INFERSCALE_ASSIGN_OR_RETURN(const std::unique_ptr<Catalog> catalog,
                              OpenCatalog(context.config()));
  const Result<Fact> fact = catalog->GetFact(options.id);
  if (!fact.ok() && fact.status().code() != StatusCode::kNotFound) return fact.status();
  INFERSCALE_ASSIGN_OR_RETURN(const std::vector<HistoryEntry> history,
                              catalog->History(options.id));
  if (!fact.ok() && history.empty()) {
    return NotFound("no memory has the id " + options.id + ": inferscale list shows the ids");
  }
  json history_json = json::array();
  for (const HistoryEntry& entry : history) history_json.push_back(HistoryJson(entry));
  if (!fact.ok()) {
    if (context.json) {
      PrintJson({{"id", options.id}, {"deleted", true}, {"history", std::move(history_json)}});
    } else {
      std::cout << options.id << " was deleted\n";
      PrintHistory(history);
    }
    return 0;
  }
  INFERSCALE_ASSIGN_OR_RETURN(const ScopeInfo scope, catalog->GetScope(fact->scope_id));
  INFERSCALE_ASSIGN_OR_RETURN(const std::vector<Turn> turns, catalog->GetTurns(fact->source_turns));
  INFERSCALE_ASSIGN_OR_RETURN(const KvState kv,
                              KvStateOf(context.config(), *catalog, *fact, scope));
  if (context.json) {
    json shown = FactJson(*fact, &scope);
    shown["deleted"] = false;
    shown["history"] = std::move(history_json);
    shown["source_turns"] = json::array();
    for (const Turn& turn : turns) shown["source_turns"].push_back(TurnJson(turn));
    shown["kv"] = {{"ready", kv.bytes > 0}, {"state", kv.state}, {"bytes", kv.bytes}};
    PrintJson(shown);
    return 0;
  }
  PrintFact(*fact, scope, kv);
  if (!turns.empty()) std::cout << "from:\n";
  for (const Turn& turn : turns) {
    std::cout << "  " << (turn.time_ms == 0 ? "" : FormatDate(turn.time_ms) + " ")
              << EscapeForTerminal(turn.name.empty() ? turn.role : turn.name) << ": "
              << ShortForTerminal(turn.content, kLineCharacters) << '\n';
  }
  PrintHistory(history);
  return 0;
}

}  // namespace

void AddReadCommands(CLI::App& app, std::vector<Command>* commands) {
  auto search_options = std::make_shared<ReadOptions>();
  CLI::App* search = app.add_subcommand("search", "Find memories by meaning and words");
  CLI::Option* words = AddTexts(*search, "query", "What to look for")->required();
  search->add_option("--threshold", search_options->threshold, "Least similarity, 0 to 1")
      ->check(CLI::Range(0.0, 1.0));
  search->add_option("--filter", search_options->filter, "Metadata filter in Mem0's JSON form");
  search->add_flag("--expired", search_options->expired,
                   "Also memories past their expiration date");
  search->footer("Example:\n  inferscale search \"where does Anna live\" --top-k 5");
  commands->push_back({search, [search_options, words](CliContext& context) {
                         search_options->words = words->results();
                         return Search(*search_options, context);
                       }});

  auto list_options = std::make_shared<ReadOptions>();
  CLI::App* list = app.add_subcommand("list", "List memories, newest first");
  list->add_option("--limit", list_options->limit, "At most this many (100)")
      ->check(CLI::Range(1, 1000000));
  list->add_option("--offset", list_options->offset, "Leave out this many")
      ->check(CLI::NonNegativeNumber);
  list->add_option("--filter", list_options->filter, "Metadata filter in Mem0's JSON form");
  list->add_flag("--expired", list_options->expired, "Also memories past their expiration date");
  list->footer("Example:\n  inferscale list --limit 20 --filter '{\"city\": \"Rome\"}'");
  commands->push_back(
      {list, [list_options](CliContext& context) { return List(*list_options, context); }});

  auto show_options = std::make_shared<ReadOptions>();
  CLI::App* show = app.add_subcommand("show", "Show one memory with its history, sources and KV");
  show->add_option("id", show_options->id, "Id of a memory")->required();
  show->footer("Example:\n  inferscale show 0b0f3a52-6c1e-4d0c-8a53-0f0c7a1d9a11");
  commands->push_back(
      {show, [show_options](CliContext& context) { return Show(*show_options, context); }});
}

}  // namespace inferscale
