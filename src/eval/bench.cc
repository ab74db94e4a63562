#include "eval/bench.h"

#include <algorithm>
#include <cmath>
#include <ostream>
#include <random>

#include "eval/progress.h"
#include "eval/table.h"

namespace inferscale {
namespace {

using BenchFunction = Result<BenchReport> (*)(EvalContext&, const BenchOptions&);

Status Print(EvalContext& context, const std::string& name, const Result<BenchReport>& report) {
  if (!report.ok()) return report.status().WithContext("bench " + name);
  std::ostream& tables = context.json ? *context.progress : *context.out;
  tables << "\n" << TableOf(report->rows).ToText();
  for (const Claim& claim : report->claims) {
    tables << (claim.Holds() ? "holds:  " : "FAILS:  ") << claim.text << ": "
           << Decimal(claim.value, 2) << " (must be " << (claim.at_most ? "at most " : "at least ")
           << Decimal(claim.bound, 2) << ")\n";
  }
  for (const std::string& note : report->notes) tables << "note:   " << note << "\n";
  tables.flush();
  if (!context.json) return OkStatus();
  nlohmann::ordered_json json{{"bench", name}, {"model", context.model}, {"rows", report->rows}};
  json["claims"] = nlohmann::ordered_json::array();
  for (const Claim& claim : report->claims) {
    json["claims"].push_back({{"claim", claim.text},
                              {"value", claim.value},
                              {"bound", claim.bound},
                              {"must_be", claim.at_most ? "at most" : "at least"},
                              {"holds", claim.Holds()}});
  }
  json["notes"] = report->notes;
  *context.out << json.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace)
               << std::endl;
  return OkStatus();
}

}  // namespace

Result<std::vector<NewFact>> SampleFacts(std::size_t count) {
  INFERSCALE_ASSIGN_OR_RETURN(const EvalConversation demo, BuiltInDemo());
  if (demo.facts.empty()) return Internal("the demo history has no facts");
  std::vector<NewFact> facts;
  facts.reserve(count);
  for (std::size_t i = 0; i < count; ++i) {
    const EvalFact& source = demo.facts[i % demo.facts.size()];
    const std::size_t round = i / demo.facts.size();
    NewFact fact;
    fact.fact.text = source.text;
    if (round > 0) fact.fact.text += ", as noted " + std::to_string(round + 1) + " times";
    fact.fact.name = source.speaker;
    fact.fact.event_time_ms = source.time_ms;
    facts.push_back(std::move(fact));
  }
  return facts;
}

Status EmbedSampleFacts(Embedder& embedder, std::vector<NewFact>* facts) {
  INFERSCALE_ASSIGN_OR_RETURN(const EvalConversation demo, BuiltInDemo());
  std::vector<std::string> texts;
  for (const EvalFact& fact : demo.facts) texts.push_back(fact.speaker + ": " + fact.text);
  INFERSCALE_ASSIGN_OR_RETURN(const std::vector<std::vector<float>> embeddings,
                              embedder.Embed(texts));
  std::mt19937 random(1);
  for (std::size_t i = 0; i < facts->size(); ++i) {
    std::vector<float> vector = embeddings[i % embeddings.size()];
    double squares = 0;
    for (float& element : vector) {
      // About a tenth of an element's usual size: neighbours, not copies.
      element +=
          (static_cast<float>(random()) / static_cast<float>(std::mt19937::max()) - 0.5f) * 0.02f;
      squares += static_cast<double>(element) * element;
    }
    const auto norm = static_cast<float>(std::sqrt(squares));
    for (float& element : vector) element /= norm;
    (*facts)[i].embedding = std::move(vector);
  }
  return OkStatus();
}

Status AddSampleFacts(EvalContext& context, MemoryService& service, const Scope& scope,
                      std::vector<NewFact> facts) {
  constexpr std::size_t kBatch = 500;
  INFERSCALE_ASSIGN_OR_RETURN(const ScopeInfo owner, service.catalog().EnsureScope(scope));
  EvalProgress progress(context, "storing facts", static_cast<std::int64_t>(facts.size()));
  for (std::size_t begin = 0; begin < facts.size(); begin += kBatch) {
    INFERSCALE_RETURN_IF_ERROR(CheckStop(context));
    const std::size_t end = std::min(begin + kBatch, facts.size());
    // Straight into the catalog: the embeddings are given, and nothing has to be encoded for them.
    IngestBatch batch;
    batch.scope_id = owner.id;
    batch.embedder_id = service.embedder().id();
    batch.facts.assign(std::make_move_iterator(facts.begin() + static_cast<std::ptrdiff_t>(begin)),
                       std::make_move_iterator(facts.begin() + static_cast<std::ptrdiff_t>(end)));
    INFERSCALE_ASSIGN_OR_RETURN([[maybe_unused]] const IngestOutcome outcome,
                                service.catalog().Ingest(batch));
    progress.Set(static_cast<std::int64_t>(end));
  }
  return OkStatus();
}

double MillisecondsSince(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - start)
      .count();
}

EvalCommand AddBenchCommand(CLI::App& parent) {
  struct Entry {
    const char* name;
    const char* help;
    BenchFunction function;
  };
  static constexpr Entry kEntries[] = {
      {"ttft", "Time to first token with facts as text and as KV, one thread", BenchTtft},
      {"ingest", "Encoding rate, and chats while 1,000 facts are ingested", BenchIngest},
      {"retrieval", "Embedding, searching and composing with 10,000 facts; exact top-50 of 100,000",
       BenchRetrieval},
      {"codec", "Bytes a fact and log-probability by codec", BenchCodec},
      {"decode", "Tokens a second with many sequences, and what an injection costs them",
       BenchDecode},
      {"start", "Time from start to the first search with 10,000 facts stored", BenchStart},
  };
  auto options = std::make_shared<BenchOptions>();
  CLI::App* app = parent.add_subcommand(
      "bench", "Measure one claim and print whether it holds on this machine");
  app->require_subcommand(1)->fallthrough();
  app->footer("Example: inferscale bench ttft --combinations 500");
  std::vector<std::pair<CLI::App*, Entry>> commands;
  for (const Entry& entry : kEntries) {
    CLI::App* command = app->add_subcommand(entry.name, entry.help);
    command->fallthrough();
    command->add_option("--facts", options->facts, "Facts stored; 0: this benchmark's own number")
        ->check(CLI::Range(0, 1'000'000));
    command
        ->add_option("--questions", options->questions,
                     "Questions asked; 0: this benchmark's own number")
        ->check(CLI::Range(0, 1000));
    if (entry.function == BenchTtft) {
      command
          ->add_option("--combinations", options->combinations,
                       "Also ask with this many random sets of five facts")
          ->check(CLI::Range(0, 100'000));
    }
    if (entry.function == BenchCodec) {
      command->add_option("--codecs", options->codecs, "Codecs to compare")
          ->delimiter(',')
          ->check(CLI::IsMember({"f32", "f16", "bf16", "int8", "int4"}))
          ->capture_default_str();
    }
    if (entry.function == BenchDecode) {
      command->add_option("--sequences", options->sequences, "Numbers of parallel sequences")
          ->delimiter(',')
          ->check(CLI::Range(1, 255))
          ->capture_default_str();
    }
    if (entry.function == BenchStart) {
      command->add_flag("--encode", options->encode, "Encode every fact first (many minutes)");
    }
    command->footer(std::string("Example: inferscale bench ") + entry.name + " --json");
    commands.emplace_back(command, entry);
  }
  return {app, [options, commands](EvalContext& context) -> Status {
            for (const auto& [command, entry] : commands) {
              if (command->parsed())
                return Print(context, entry.name, entry.function(context, *options));
            }
            return InvalidArgument("bench needs the name of a benchmark");
          }};
}

}  // namespace inferscale
