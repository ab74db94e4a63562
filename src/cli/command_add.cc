// inferscale add

#include <algorithm>
#include <filesystem>
#include <iostream>
#include <memory>
#include <optional>
#include <utility>

#include <nlohmann/json.hpp>

#include "base/clock.h"
#include "base/utf8.h"
#include "cli/commands.h"
#include "cli/interrupt.h"
#include "cli/output.h"
#include "cli/progress.h"
#include "cli/service_factory.h"
#include "cli/turn_reader.h"

namespace inferscale {
namespace {

using nlohmann::json;

constexpr std::size_t kMaxInputBytes = std::size_t{256} << 20;
/// Turns stored by one transaction: what Ctrl-C may have to wait for. A model takes seconds a turn.
constexpr std::size_t kVerbatimBatch = 32;
constexpr std::size_t kLlmBatch = 1;
constexpr std::size_t kShownFacts = 10;

struct AddOptions {
  std::vector<std::string> texts;
  std::string file, date, name, metadata = "{}", expires;
  std::size_t skip = 0;
  bool verbatim = false, llm = false, no_wait = false;
};

bool LooksLikeTurnFile(const std::string& text) {
  std::error_code error;
  const std::string ending = std::filesystem::path(text).extension().string();
  return (ending == ".json" || ending == ".jsonl" || ending == ".ndjson" || ending == ".txt") &&
         std::filesystem::is_regular_file(text, error);
}

Result<ReadTurns> Collect(const AddOptions& options) {
  TurnDefaults defaults;
  defaults.name = options.name;
  if (!options.date.empty()) {
    Result<TimeMs> time = ParseIso8601(options.date);
    if (!time.ok()) return time.status().WithContext("--date");
    defaults.time_ms = *time;
  }
  const bool standard_input = options.texts == std::vector<std::string>{"-"};
  if (!options.file.empty() || standard_input) {
    if (!options.file.empty() && !options.texts.empty()) {
      return InvalidArgument("both texts and --file are given: add them one after the other");
    }
    const std::string source = standard_input ? "-" : options.file;
    INFERSCALE_ASSIGN_OR_RETURN(const std::string content, ReadInput(source, kMaxInputBytes));
    return ParseTurns(content, GuessTurnFormat(source, content),
                      source == "-" ? "standard input" : source, defaults);
  }
  ReadTurns read;
  for (const std::string& text : options.texts) {
    if (LooksLikeTurnFile(text)) {
      return InvalidArgument(text + " is a file: say --file " + text + " to add what it holds");
    }
    Turn turn;
    turn.role = "user";
    turn.name = options.name;
    turn.time_ms = defaults.time_ms;
    turn.content = text;
    if (!IsValidUtf8(text)) {
      turn.content = ToValidUtf8(text);
      read.replaced_bytes = true;
    }
    if (!TrimWhitespace(turn.content).empty()) read.turns.push_back(std::move(turn));
  }
  return read;
}

struct Ingested {
  std::vector<Fact> facts;
  std::int64_t duplicates = 0;
  std::size_t turns = 0;
  Status error;
};

Ingested Ingest(MemoryService& service, const AddRequest& request, const std::vector<Turn>& turns) {
  Ingested done;
  const ExtractionMode mode = request.mode.value_or(service.options().extraction);
  const std::size_t batch = mode == ExtractionMode::kLlm ? kLlmBatch : kVerbatimBatch;
  std::optional<Progress> progress;
  if (turns.size() > batch)
    progress.emplace("stored", "turns", static_cast<std::int64_t>(turns.size()));
  while (done.turns < turns.size() && !InterruptScope::Interrupted()) {
    if (progress) progress->Update(static_cast<std::int64_t>(done.turns));
    const std::size_t end = std::min(done.turns + batch, turns.size());
    AddRequest part = request;
    part.turns.assign(turns.begin() + static_cast<std::ptrdiff_t>(done.turns),
                      turns.begin() + static_cast<std::ptrdiff_t>(end));
    Result<AddOutcome> outcome = service.Add(part);
    if (!outcome.ok()) {
      done.error = outcome.status();
      return done;
    }
    done.facts.insert(done.facts.end(), std::make_move_iterator(outcome->facts.begin()),
                      std::make_move_iterator(outcome->facts.end()));
    done.duplicates += outcome->duplicates;
    done.turns = end;
  }
  if (progress) progress->Update(static_cast<std::int64_t>(done.turns));
  return done;
}

std::string Remaining(const AddOptions& options, std::size_t stored, std::size_t total) {
  return std::to_string(stored) + " of " + std::to_string(total) +
         " turns are stored; to go on, repeat the command with --skip " +
         std::to_string(options.skip + stored);
}

void PrintSummary(const Ingested& done, const std::string& extraction) {
  std::cout << done.facts.size() << (done.facts.size() == 1 ? " memory" : " memories") << " added";
  if (done.duplicates > 0) std::cout << ", " << done.duplicates << " known already";
  std::cout << " (" << extraction << ")\n";
  for (std::size_t i = 0; i < std::min(done.facts.size(), kShownFacts); ++i) {
    std::cout << "  " << done.facts[i].id << "  " << ShortForTerminal(done.facts[i].text, 100)
              << '\n';
  }
  if (done.facts.size() > kShownFacts) {
    std::cout << "  … and " << done.facts.size() - kShownFacts << " more: inferscale list\n";
  }
}

Result<int> Add(const AddOptions& options, CliContext& context) {
  const InterruptScope interrupts(2);
  INFERSCALE_ASSIGN_OR_RETURN(ReadTurns read, Collect(options));
  if (read.turns.empty()) {
    return InvalidArgument("nothing to add: give some text, --file FILE, or - for standard input");
  }
  if (read.replaced_bytes) PrintNote("some bytes are not UTF-8 and were replaced by U+FFFD");
  if (options.skip >= read.turns.size()) {
    return InvalidArgument("--skip " + std::to_string(options.skip) +
                           " leaves nothing: there are " + std::to_string(read.turns.size()) +
                           " turns");
  }
  read.turns.erase(read.turns.begin(),
                   read.turns.begin() + static_cast<std::ptrdiff_t>(options.skip));

  Config config = context.config();
  if (options.verbatim) config.extraction = "verbatim";
  if (options.llm) config.extraction = "llm";
  const bool with_engine = !options.no_wait || ExtractionNeedsEngine(config);
  INFERSCALE_ASSIGN_OR_RETURN(OpenedService opened, OpenService(config, with_engine));
  MemoryService& service = *opened.service;

  AddRequest request;
  request.scope = context.scope();
  request.metadata_json = options.metadata;
  request.expiration_date = options.expires;
  Ingested done = Ingest(service, request, read.turns);
  const std::size_t total = read.turns.size();
  if (!done.error.ok()) {
    return done.turns == 0 ? done.error
                           : done.error.WithContext(Remaining(options, done.turns, total));
  }
  const bool interrupted = done.turns < total;
  PendingWork pending;
  if (!interrupted && !options.no_wait) {
    INFERSCALE_ASSIGN_OR_RETURN(pending, WaitForEncoding(service));
  } else {
    INFERSCALE_ASSIGN_OR_RETURN(pending, service.Pending());
  }

  if (context.json) {
    json facts = json::array();
    for (const Fact& fact : done.facts) facts.push_back(FactJson(fact, nullptr));
    PrintJson({{"facts", std::move(facts)},
               {"added", done.facts.size()},
               {"duplicates", done.duplicates},
               {"turns", done.turns},
               {"extraction", opened.extraction_reason},
               {"pending_encodings", pending.encodings},
               {"pending_embeddings", pending.embeddings},
               {"replaced_invalid_utf8", read.replaced_bytes},
               {"interrupted", interrupted}});
  } else {
    PrintSummary(done, opened.extraction_reason);
    const std::string note = with_engine ? PendingNote(pending) : "";
    if (!note.empty()) PrintNote(note);
    if (!with_engine) PrintNote("the next command that loads the model computes the KV");
  }
  if (interrupted) {
    PrintNote("interrupted: " + Remaining(options, done.turns, total));
    return 1;
  }
  return 0;
}

}  // namespace

Result<PendingWork> WaitForEncoding(MemoryService& service) {
  INFERSCALE_ASSIGN_OR_RETURN(const PendingWork start, service.Pending());
  const auto sum = [](const PendingWork& work) {
    return work.embeddings + work.encodings + work.extractions;
  };
  std::optional<Progress> progress;
  std::int64_t total = sum(start);
  if (total > 0) progress.emplace("encoded", "memories", total);
  const Status status = service.WaitIdle([&](const PendingWork& pending) {
    if (progress) progress->Update(std::max<std::int64_t>(total - sum(pending), 0));
    return !InterruptScope::Interrupted();
  });
  if (!status.ok() && status.code() != StatusCode::kCancelled) return status;
  return service.Pending();
}

std::string PendingNote(const PendingWork& pending) {
  const std::int64_t left = pending.embeddings + pending.encodings + pending.extractions;
  if (left == 0) return "";
  return std::to_string(left) +
         " pieces of work are left: nothing is lost, the next command that loads the model goes on "
         "with them";
}

void AddIngestCommands(CLI::App& app, std::vector<Command>* commands) {
  auto options = std::make_shared<AddOptions>();
  CLI::App* add = app.add_subcommand("add", "Remember texts or a conversation");
  CLI::Option* texts = AddTexts(*add, "text", "What to remember; - reads standard input");
  add->add_option("-f,--file", options->file,
                  "A conversation: .json (OpenAI messages), .jsonl (a message a line), else text "
                  "(\"Name: text\" a line; a line with a date alone dates what follows)");
  add->add_option("--date", options->date, "When it was said, for turns without a date (ISO 8601)");
  add->add_option("--name", options->name, "Who says it, for turns without a name");
  CLI::Option* verbatim = add->add_flag("--verbatim", options->verbatim, "Keep turns as they are");
  add->add_flag("--llm", options->llm, "Let a model extract facts from the turns")
      ->excludes(verbatim);
  add->add_option("--metadata", options->metadata, "A JSON object kept with each memory");
  add->add_option("--expires", options->expires, "Last day on which it is served (YYYY-MM-DD)");
  add->add_option("--skip", options->skip, "Leave out this many turns, stored before");
  add->add_flag("--no-wait", options->no_wait,
                "Return once everything is stored; KV is computed by a later command");
  add->footer(
      "Examples:\n"
      "  inferscale add \"Anna moved to Lisbon in May.\" --date 2025-05-07\n"
      "  inferscale add --file conversation.json --user anna\n"
      "  git log --format=%s | inferscale add - --name me");
  commands->push_back({add, [options, texts](CliContext& context) {
                         options->texts = texts->results();
                         return Add(*options, context);
                       }});
}

}  // namespace inferscale
