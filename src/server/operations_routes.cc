// /healthz, /readyz, /metrics, /openapi.json, /docs, /api-keys, /v1/settings

#include <array>
#include <optional>
#include <string>
#include <utility>

#include "base/clock.h"
#include "base/log.h"
#include "base/random.h"
#include "server/openapi.h"
#include "server/server.h"

namespace inferscale {
namespace {

using nlohmann::json;
using nlohmann::ordered_json;
using Context = std::shared_ptr<ApiContext>;

constexpr std::int64_t kMaxRequestsPerMinute = 1'000'000;
constexpr std::int64_t kMostOfALimit = std::int64_t{1} << 53;  // what JSON's numbers hold exactly
constexpr const char* kDefaultTenant = "default";
constexpr ErrorDialect kDialect = ErrorDialect::kMem0Platform;

constexpr const char* kKeySchema = R"({
  "type": "object",
  "properties": {
    "label": {"type": "string", "maxLength": 200},
    "tenant": {"type": "string", "description": "the default tenant's admin alone may name others"},
    "admin": {"type": "boolean"},
    "requests_per_minute": {"type": "integer", "minimum": 0, "maximum": 1000000},
    "max_body_bytes": {"type": "integer", "minimum": 0, "description": "of a request; 0: any"},
    "max_facts": {"type": "integer", "minimum": 0,
                  "description": "it adds no memories beyond these of its tenant; 0: any"},
    "max_kv_bytes": {"type": "integer", "minimum": 0,
                     "description": "it adds none while its tenant's KV takes as much; 0: any"},
    "user_id": {"type": "string", "description": "binds the key to this owner"},
    "agent_id": {"type": "string"}, "app_id": {"type": "string"},
    "run_id": {"type": "string"}}})";
constexpr const char* kSettingsSchema = R"({
  "type": "object", "required": ["memory_mode"],
  "properties": {"memory_mode": {"type": "string", "enum": ["kv", "text", "off"]}}})";

void Respond(ApiCall& call, const Result<ordered_json>& answer, int status = 200) {
  call.exchange->Respond(answer.ok() ? JsonResponse(*answer, status)
                                     : ErrorResponse(call.request(), kDialect, answer.status()));
}

/// Sends 403 unless the caller is an admin.
bool IsAdmin(ApiCall& call) {
  if (call.principal.admin) return true;
  call.exchange->Respond(ErrorResponse(call.request(), kDialect,
                                       InvalidArgument("this needs an admin's API key"), 403,
                                       "admin_needed"));
  return false;
}

/// Sends 403 unless the caller runs the whole server: figures of all tenants together tell one of
/// the others' doings.
bool IsOperator(ApiCall& call) {
  if (!IsAdmin(call)) return false;
  if (call.principal.tenant == kDefaultTenant) return true;
  call.exchange->Respond(ErrorResponse(
      call.request(), kDialect, InvalidArgument("this needs an API key of tenant default's admin"),
      403, "admin_needed"));
  return false;
}

/// Whose keys an admin may see; none: everybody's.
std::optional<std::string> KeysOf(const Principal& principal) {
  if (principal.tenant == kDefaultTenant) return std::nullopt;
  return principal.tenant;
}

Result<ordered_json> CreateKey(const Context& context, const ApiCall& call) {
  INFERSCALE_ASSIGN_OR_RETURN(const json body, JsonBody(call.request(), /*may_be_empty=*/true));
  ApiKey wanted;
  INFERSCALE_ASSIGN_OR_RETURN(const auto label, StringField(body, "label"));
  wanted.label = label.value_or("");
  INFERSCALE_ASSIGN_OR_RETURN(const auto tenant, StringField(body, "tenant"));
  wanted.principal.tenant = tenant.value_or(call.principal.tenant);
  if (wanted.principal.tenant != call.principal.tenant && call.principal.tenant != kDefaultTenant)
    return InvalidArgument("'tenant' must be your own: " + call.principal.tenant);
  INFERSCALE_ASSIGN_OR_RETURN(const auto admin, BooleanField(body, "admin"));
  wanted.principal.admin = admin.value_or(false);
  INFERSCALE_ASSIGN_OR_RETURN(const auto rate,
                              IntegerField(body, "requests_per_minute", 0, kMaxRequestsPerMinute));
  wanted.requests_per_minute = static_cast<std::int32_t>(rate.value_or(0));
  KeyLimits& limits = wanted.principal.limits;
  for (const auto& [name, limit] :
       {std::pair<const char*, std::int64_t*>("max_body_bytes", &limits.max_body_bytes),
        {"max_facts", &limits.max_facts},
        {"max_kv_bytes", &limits.max_kv_bytes}}) {
    INFERSCALE_ASSIGN_OR_RETURN(const auto given, IntegerField(body, name, 0, kMostOfALimit));
    *limit = given.value_or(0);
  }
  Principal unbound;
  unbound.tenant = wanted.principal.tenant;
  INFERSCALE_ASSIGN_OR_RETURN(const Scope scope, ScopeOf(unbound, body));
  if (scope.HasOwner()) wanted.principal.bound = scope;
  INFERSCALE_ASSIGN_OR_RETURN(const NewApiKey made, context->keys->Create(std::move(wanted)));
  LogFields(spdlog::level::info, {{"message", "API key created"},
                                  {"key", made.key.id},
                                  {"by", call.principal.key_id},
                                  {"request_id", call.request().id}});
  ordered_json answer = KeyJson(made.key);
  answer["key"] = made.secret;
  return answer;
}

void AddKeyRoutes(Routes& routes, const Context& context) {
  routes.Add("GET", "/api-keys", kDialect, [context](ApiCall& call) {
    if (!IsAdmin(call)) return;
    ordered_json keys = ordered_json::array();
    for (const ApiKey& key : context->keys->List(KeysOf(call.principal)))
      keys.push_back(KeyJson(key));
    call.exchange->Respond(JsonResponse(keys));
  });
  routes.Describe("GET", "/api-keys", "API keys, without the keys themselves; for admins");
  routes.Add("POST", "/api-keys", kDialect, [context](ApiCall& call) {
    if (IsAdmin(call)) Respond(call, CreateKey(context, call), 201);
  });
  routes.Describe("POST", "/api-keys", "Makes an API key, shown this once; for admins", kKeySchema);
  routes.Add("DELETE", "/api-keys/{key_id}", kDialect, [context](ApiCall& call) {
    if (!IsAdmin(call)) return;
    const std::string& id = call.parameter("key_id");
    const Status status = context->keys->Revoke(id, KeysOf(call.principal));
    if (!status.ok()) {
      Respond(call, status);
      return;
    }
    LogFields(spdlog::level::info, {{"message", "API key revoked"},
                                    {"key", id},
                                    {"by", call.principal.key_id},
                                    {"request_id", call.request().id}});
    Respond(call, ordered_json{{"message", "API key revoked"}});
  });
  routes.Describe("DELETE", "/api-keys/{key_id}", "Revokes an API key; for admins");
}

void AddSettingsRoutes(Routes& routes, const Context& context) {
  const auto current = [context](const ApiCall& call) {
    return ordered_json{
        {"memory_mode", MemoryModeName(context->settings->memory_mode(call.principal.tenant))}};
  };
  routes.Add("GET", "/v1/settings", kDialect,
             [current](ApiCall& call) { Respond(call, current(call)); });
  routes.Describe("GET", "/v1/settings", "What the tenant's chats do that do not say");
  routes.Add("PUT", "/v1/settings", kDialect, [context, current](ApiCall& call) {
    if (!IsAdmin(call)) return;
    const auto set = [&]() -> Result<ordered_json> {
      INFERSCALE_ASSIGN_OR_RETURN(const json body, JsonBody(call.request()));
      INFERSCALE_ASSIGN_OR_RETURN(const auto name, StringField(body, "memory_mode"));
      const auto mode = name ? ParseMemoryMode(*name) : std::nullopt;
      if (!mode) return InvalidArgument("'memory_mode' must be kv, text or off");
      INFERSCALE_RETURN_IF_ERROR(context->settings->SetMemoryMode(call.principal.tenant, *mode));
      return current(call);
    };
    Respond(call, set());
  });
  routes.Describe("PUT", "/v1/settings", "Changes them, for later chats; for admins",
                  kSettingsSchema);
}

std::string GaugesText(const ApiContext& context) {
  std::string text;
  AppendSample(&text, "gauge", "inferscale_build_info", {{"version", INFERSCALE_VERSION}}, 1);
  AppendSample(&text, "gauge", "inferscale_chats", {}, context.chats->load());
  if (context.connections)
    AppendSample(&text, "gauge", "inferscale_connections", {},
                 static_cast<double>(context.connections()));
  if (const Result<PendingWork> pending = context.service->Pending(); pending.ok()) {
    const std::array<std::pair<const char*, std::int64_t>, 4> kinds = {
        {{"embeddings", pending->embeddings},
         {"encodings", pending->encodings},
         {"extractions", pending->extractions},
         {"erasures", pending->erasures}}};
    bool first = true;
    for (const auto& [kind, count] : kinds) {
      AppendSample(&text, "gauge", "inferscale_pending", {{"work", kind}},
                   static_cast<double>(count), std::exchange(first, false));
    }
  }
  const Engine* engine = context.service->engine();
  if (engine == nullptr) return text;
  const KvStoreStats stats = engine->StoreStats();
  struct Row {
    const char* type;
    const char* name;
    const char* tier;
    std::int64_t value;
    bool first;
  };
  const std::array<Row, 10> rows = {{
      {"gauge", "inferscale_kv_blocks", "host", stats.host_blocks, true},
      {"gauge", "inferscale_kv_blocks", "file", stats.file_blocks, false},
      {"gauge", "inferscale_kv_bytes", "host", stats.host_bytes, true},
      {"gauge", "inferscale_kv_bytes", "file", stats.file_bytes, false},
      {"counter", "inferscale_kv_hits_total", "host", stats.hits_host, true},
      {"counter", "inferscale_kv_hits_total", "file", stats.hits_file, false},
      {"counter", "inferscale_kv_evictions_total", "host", stats.evictions_host, true},
      {"counter", "inferscale_kv_evictions_total", "file", stats.evictions_file, false},
      {"counter", "inferscale_kv_misses_total", "", stats.misses, true},
      {"counter", "inferscale_kv_corrupt_total", "", stats.corrupt, true},
  }};
  for (const Row& row : rows) {
    MetricLabels labels;
    if (*row.tier != '\0') labels.emplace_back("tier", row.tier);
    AppendSample(&text, row.type, row.name, labels, static_cast<double>(row.value), row.first);
  }
  return text;
}

}  // namespace

void AddOperationsRoutes(Routes& routes, const Context& context) {
  routes.AddPublic("GET", "/healthz", [](ApiCall& call) {
    call.exchange->Respond(JsonResponse({{"status", "ok"}, {"version", INFERSCALE_VERSION}}));
  });
  routes.Describe("GET", "/healthz", "Whether the process answers");
  routes.AddPublic("GET", "/readyz", [context](ApiCall& call) {
    const Result<std::string> read = context->service->catalog().GetMeta("server.ready");
    call.exchange->Respond(read.ok()
                               ? JsonResponse({{"status", "ready"}})
                               : ErrorResponse(call.request(), kDialect,
                                               Unavailable("the data folder cannot be read")));
  });
  routes.Describe("GET", "/readyz", "Whether requests can be served");
  routes.Add("GET", "/metrics", kDialect, [context](ApiCall& call) {
    if (!IsOperator(call)) return;
    HttpResponse response;
    response.content_type = "text/plain; version=0.0.4; charset=utf-8";
    response.body = context->metrics->Text() + GaugesText(*context);
    call.exchange->Respond(std::move(response));
  });
  RouteDetails metrics;
  metrics.summary = "Figures of all tenants together, for Prometheus; for tenant default's admins";
  metrics.answer_type = "text/plain";
  routes.Describe("GET", "/metrics", std::move(metrics));
  routes.AddPublic("GET", "/openapi.json", [context](ApiCall& call) {
    call.exchange->Respond(JsonResponse(OpenApiDocument(context->routes)));
  });
  routes.Describe("GET", "/openapi.json", "This interface, for machines");
  routes.AddPublic("GET", "/docs", [context](ApiCall& call) {
    HttpResponse response;
    response.content_type = "text/html; charset=utf-8";
    const std::string nonce = NewUuid();
    response.headers = {{"Content-Security-Policy",
                         "default-src 'none'; style-src 'nonce-" + nonce +
                             "'; frame-ancestors 'none'; base-uri 'none'; form-action 'none'"},
                        {"Referrer-Policy", "no-referrer"}};
    response.body = OpenApiPage(context->routes, nonce);
    call.exchange->Respond(std::move(response));
  });
  RouteDetails page;
  page.summary = "This interface, for people";
  page.answer_type = "text/html";
  routes.Describe("GET", "/docs", std::move(page));
  AddKeyRoutes(routes, context);
  AddSettingsRoutes(routes, context);
}

}  // namespace inferscale
