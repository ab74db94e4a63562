// inferscale delete, forget, rename. None of them loads a model.

#include <iostream>
#include <memory>
#include <utility>

#include <unistd.h>

#include <nlohmann/json.hpp>

#include "base/utf8.h"
#include "cli/commands.h"
#include "cli/output.h"
#include "cli/service_factory.h"

namespace inferscale {
namespace {

using nlohmann::json;

struct EraseOptions {
  std::vector<std::string> ids;
  bool all = false, yes = false;
};

/// How the two commands differ.
struct Verb {
  const char* name;
  const char* done;
  Result<Erasure> (Catalog::*one)(const std::string&);
  Result<std::vector<Erasure>> (Catalog::*whole)(std::span<const ScopeId>);
};

constexpr Verb kDelete = {"delete", "deleted", &Catalog::DeleteFact, &Catalog::DeleteScopes};
constexpr Verb kForget = {"forget", "forgotten", &Catalog::ForgetFact, &Catalog::ForgetScopes};

Status Confirm(const Verb& verb, std::int64_t facts, const std::string& user) {
  const std::string what =
      std::string(verb.name) + " all " + std::to_string(facts) + " memories of " + user;
  if (isatty(STDIN_FILENO) != 1) {
    return InvalidArgument("to " + what + " without being asked, say --yes");
  }
  std::cerr << "Really " << EscapeForTerminal(what) << "? [y/N] " << std::flush;
  std::string answer;
  std::getline(std::cin, answer);
  if (answer == "y" || answer == "Y" || answer == "yes") return OkStatus();
  return Cancelled("nothing was " + std::string(verb.done));
}

Result<std::int64_t> EraseAll(const Verb& verb, const EraseOptions& options, CliContext& context,
                              Catalog& catalog) {
  INFERSCALE_ASSIGN_OR_RETURN(const std::vector<ScopeInfo> scopes,
                              catalog.FindScopes(context.scope()));
  std::vector<ScopeId> ids;
  std::int64_t facts = 0;
  for (const ScopeInfo& scope : scopes) {
    ids.push_back(scope.id);
    facts += scope.facts;
  }
  if (ids.empty()) return std::int64_t{0};
  if (!options.yes) {
    INFERSCALE_RETURN_IF_ERROR(Confirm(verb, facts, context.config().user));
  }
  INFERSCALE_RETURN_IF_ERROR((catalog.*verb.whole)(ids).status());
  return facts;
}

Result<int> Erase(const Verb& verb, const EraseOptions& options, CliContext& context) {
  if (options.all != options.ids.empty()) {
    return InvalidArgument(std::string("say what to ") + verb.name +
                           ": either ids, or --all for everything of a user");
  }
  INFERSCALE_ASSIGN_OR_RETURN(const std::unique_ptr<Catalog> catalog,
                              OpenCatalog(context.config()));
  std::int64_t erased = 0;
  Status failed;
  if (options.all) {
    INFERSCALE_ASSIGN_OR_RETURN(erased, EraseAll(verb, options, context, *catalog));
  }
  for (const std::string& id : options.ids) {
    const Result<Erasure> erasure = ((*catalog).*verb.one)(id);
    if (erasure.ok()) {
      ++erased;
    } else if (failed.ok()) {
      failed = erasure.status().code() == StatusCode::kNotFound
                   ? NotFound("no memory has the id " + id + ": inferscale list shows the ids")
                   : erasure.status();
    }
  }
  // Also when one id failed: what the others took out of the catalog must leave the KV files too.
  INFERSCALE_RETURN_IF_ERROR(CompleteErasures(context.config(), *catalog));
  if (!failed.ok()) {
    return erased == 0 ? failed
                       : failed.WithContext(std::to_string(erased) + " " + verb.done + ", but");
  }
  if (context.json) {
    PrintJson({{verb.done, erased}});
  } else {
    std::cout << erased << (erased == 1 ? " memory " : " memories ") << verb.done << '\n';
  }
  return 0;
}

CLI::App* AddErase(CLI::App& app, const Verb& verb, const char* description,
                   std::vector<Command>* commands) {
  auto options = std::make_shared<EraseOptions>();
  CLI::App* erase = app.add_subcommand(verb.name, description);
  CLI::Option* ids = AddTexts(*erase, "id", "Ids of memories");
  erase->add_flag("--all", options->all, "Everything of the user");
  erase->add_flag("-y,--yes", options->yes, "Do not ask");
  commands->push_back({erase, [options, ids, &verb](CliContext& context) {
                         options->ids = ids->results();
                         return Erase(verb, *options, context);
                       }});
  return erase;
}

Result<int> Rename(const std::string& given, CliContext& context) {
  const std::string name(TrimWhitespace(ToValidUtf8(given)));
  INFERSCALE_ASSIGN_OR_RETURN(const std::unique_ptr<Catalog> catalog,
                              OpenCatalog(context.config()));
  INFERSCALE_ASSIGN_OR_RETURN(const ScopeInfo scope, catalog->EnsureScope(context.scope()));
  INFERSCALE_RETURN_IF_ERROR(catalog->SetDisplayName(scope.id, name));
  INFERSCALE_RETURN_IF_ERROR(CompleteErasures(context.config(), *catalog));
  if (context.json) {
    PrintJson({{"user", context.config().user}, {"display_name", name}});
  } else {
    std::cout << "memories of " << EscapeForTerminal(context.config().user) << " now name "
              << (name.empty() ? "nobody" : EscapeForTerminal(name))
              << "; their KV is computed again by the next command that loads the model\n";
  }
  return 0;
}

}  // namespace

void AddEraseCommands(CLI::App& app, std::vector<Command>* commands) {
  AddErase(app, kDelete, "Delete memories; their history keeps the text", commands)
      ->footer(
          "Examples:\n"
          "  inferscale delete 0b0f3a52-6c1e-4d0c-8a53-0f0c7a1d9a11\n"
          "  inferscale delete --all --user anna");
  AddErase(app, kForget, "Erase memories without a trace: text, history, sources and KV", commands)
      ->footer(
          "Examples:\n"
          "  inferscale forget 0b0f3a52-6c1e-4d0c-8a53-0f0c7a1d9a11\n"
          "  inferscale forget --all --yes");

  auto name = std::make_shared<std::string>();
  CLI::App* rename =
      app.add_subcommand("rename", "Set the name under which a user's memories are told");
  rename->add_option("name", *name, "The name; empty: none, memories have no subject")->required();
  rename->footer("Example:\n  inferscale rename Anna --user me");
  commands->push_back({rename, [name](CliContext& context) { return Rename(*name, context); }});
}

}  // namespace inferscale
