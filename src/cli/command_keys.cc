// inferscale keys create, list, revoke

#include <iostream>
#include <memory>
#include <string>
#include <utility>

#include <nlohmann/json.hpp>

#include "base/clock.h"
#include "cli/commands.h"
#include "cli/output.h"
#include "cli/service_factory.h"
#include "server/api_keys.h"

namespace inferscale {
namespace {

using nlohmann::json;

struct KeyOptions {
  std::string label, tenant = "default", id;
  Scope bound;
  bool admin = false;
  std::int32_t requests_per_minute = 0;
  KeyLimits limits;
};

Result<int> CreateKey(const KeyOptions& options, CliContext& context) {
  INFERSCALE_ASSIGN_OR_RETURN(const std::unique_ptr<Catalog> catalog,
                              OpenCatalog(context.config()));
  INFERSCALE_ASSIGN_OR_RETURN(const std::unique_ptr<ApiKeys> keys, ApiKeys::Load(*catalog));
  ApiKey wanted;
  wanted.label = options.label;
  wanted.principal.tenant = options.tenant;
  wanted.principal.admin = options.admin;
  wanted.requests_per_minute = options.requests_per_minute;
  wanted.principal.limits = options.limits;
  if (options.bound.HasOwner()) wanted.principal.bound = options.bound;
  INFERSCALE_ASSIGN_OR_RETURN(const NewApiKey made, keys->Create(std::move(wanted)));
  if (context.json) {
    nlohmann::ordered_json item = KeyJson(made.key);
    item["key"] = made.secret;
    PrintJson(item);
  } else {
    std::cout << made.secret << '\n';
    PrintNote("this key is not stored and not shown again; its id is " + made.key.id);
  }
  return 0;
}

Result<int> ListKeys(CliContext& context) {
  INFERSCALE_ASSIGN_OR_RETURN(const std::unique_ptr<Catalog> catalog,
                              OpenCatalog(context.config()));
  INFERSCALE_ASSIGN_OR_RETURN(const std::unique_ptr<ApiKeys> keys, ApiKeys::Load(*catalog));
  nlohmann::ordered_json items = nlohmann::ordered_json::array();
  for (const ApiKey& key : keys->List(std::nullopt)) {
    items.push_back(KeyJson(key));
    if (context.json) continue;
    std::cout << key.id << "  " << key.prefix << "…  " << EscapeForTerminal(key.principal.tenant)
              << (key.principal.admin ? " (admin)" : "")
              << (key.principal.bound ? " (one owner)" : "") << "  "
              << FormatDate(key.created_at_ms) << "  " << EscapeForTerminal(key.label) << '\n';
  }
  if (context.json) PrintJson({{"keys", std::move(items)}});
  return 0;
}

Result<int> RevokeKey(const KeyOptions& options, CliContext& context) {
  INFERSCALE_ASSIGN_OR_RETURN(const std::unique_ptr<Catalog> catalog,
                              OpenCatalog(context.config()));
  INFERSCALE_ASSIGN_OR_RETURN(const std::unique_ptr<ApiKeys> keys, ApiKeys::Load(*catalog));
  const Status status = keys->Revoke(options.id, std::nullopt);
  if (!status.ok()) {
    return NotFound("there is no API key with id " + EscapeForTerminal(options.id) +
                    ": inferscale keys list shows them");
  }
  if (context.json) {
    PrintJson({{"revoked", options.id}});
  } else {
    std::cout << "revoked " << options.id << '\n';
  }
  return 0;
}

}  // namespace

void AddKeysCommand(CLI::App& app, std::vector<Command>* commands) {
  auto options = std::make_shared<KeyOptions>();
  CLI::App* keys = app.add_subcommand("keys", "API keys of serve, while it does not run");
  keys->require_subcommand(1);
  CLI::App* create = keys->add_subcommand("create", "Make a key and show it this once");
  create->add_option("--label", options->label, "What the key is for");
  create->add_option("--tenant", options->tenant, "Whose memories it opens (default)");
  create->add_flag("--admin", options->admin, "It may make and revoke keys of its tenant");
  create->add_option("--for-user", options->bound.user, "It opens this user's memories only");
  create->add_option("--for-agent", options->bound.agent, "… this agent's");
  create->add_option("--for-app", options->bound.app, "… this app's");
  create->add_option("--for-run", options->bound.run, "… this run's");
  create->add_option("--requests-per-minute", options->requests_per_minute, "0 (default): any")
      ->check(CLI::Range(0, 1'000'000));
  create->add_option("--max-body-bytes", options->limits.max_body_bytes, "Of a request; 0: any")
      ->check(CLI::NonNegativeNumber);
  create
      ->add_option("--max-facts", options->limits.max_facts,
                   "It adds no memories beyond these of its tenant; 0: any")
      ->check(CLI::NonNegativeNumber);
  create
      ->add_option("--max-kv-bytes", options->limits.max_kv_bytes,
                   "It adds none while its tenant's KV takes as much; 0: any")
      ->check(CLI::NonNegativeNumber);
  CLI::App* list = keys->add_subcommand("list", "List keys, without the keys themselves");
  CLI::App* revoke = keys->add_subcommand("revoke", "Make a key useless");
  revoke->add_option("id", options->id, "The key's id, as listed")->required();
  keys->footer("While serve runs: GET, POST /api-keys and DELETE /api-keys/ID.");
  commands->push_back({keys, [options, create, list](CliContext& context) {
                         if (create->parsed()) return CreateKey(*options, context);
                         if (list->parsed()) return ListKeys(context);
                         return RevokeKey(*options, context);
                       }});
}

}  // namespace inferscale
