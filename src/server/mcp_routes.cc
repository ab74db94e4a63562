// /mcp: the Model Context Protocol over streamable HTTP, without sessions. Every message is a POST
// that is answered with JSON; the server has nothing to say of its own accord, so a GET is a 405.

#include <algorithm>
#include <array>
#include <map>
#include <mutex>
#include <optional>
#include <utility>

#include <spdlog/spdlog.h>

#include "server/mcp_tools.h"
#include "server/server.h"

namespace inferscale {
namespace mcp {
namespace {

using nlohmann::json;
using nlohmann::ordered_json;

// Revisions whose clients begin with `initialize`, the oldest first.
constexpr auto kHandshakeRevisions =
    std::to_array<std::string_view>({"2025-03-26", "2025-06-18", "2025-11-25"});
// Whose requests each say everything in params._meta.
constexpr std::string_view kStatelessRevision = "2026-07-28";
constexpr std::string_view kBatchRevision = "2025-03-26";  // the only one that has batches
constexpr std::size_t kMaxBatch = 64;
constexpr std::int64_t kListTtlMs = 60'000;

constexpr int kParseError = -32700, kInvalidRequest = -32600, kMethodNotFound = -32601,
              kInvalidParams = -32602, kHeaderMismatch = -32020, kUnsupportedRevision = -32022;

constexpr const char* kInstructions =
    "Long-term memory of the user. Search it before answering what may depend on earlier "
    "conversations, and add what is worth knowing later: facts, preferences, decisions. Memories "
    "belong to an owner (user_id, agent_id, app_id, run_id); where none is named it is the user of "
    "this connection.";
constexpr const char* kMessageSchema = R"({"type":"object","required":["jsonrpc","method"],
"properties":{"jsonrpc":{"type":"string","enum":["2.0"]},
"id":{"oneOf":[{"type":"string"},{"type":"integer"}]},
"method":{"type":"string","enum":["initialize","server/discover","ping","tools/list","tools/call",
"notifications/initialized"]},"params":{"type":"object"}}})";

ordered_json ErrorMessage(const json& id, int code, const std::string& message,
                          ordered_json data = nullptr) {
  ordered_json error = {{"code", code}, {"message", message}};
  if (!data.is_null()) error["data"] = std::move(data);
  return {{"jsonrpc", "2.0"}, {"id", id}, {"error", std::move(error)}};
}

/// What a batch or one message is answered with; sends it when the last part is there. Thread-safe.
class Reply {
 public:
  Reply(ExchangePtr exchange, std::size_t parts, bool batch, bool stateless)
      : exchange_(std::move(exchange)),
        parts_(parts),
        left_(parts),
        batch_(batch),
        stateless_(stateless) {}

  /// \param message nothing for what is not answered: notifications and responses
  void Set(std::size_t part, std::optional<ordered_json> message) {
    {
      const std::scoped_lock lock(mutex_);
      parts_[part] = std::move(message);
      if (--left_ > 0) return;
    }
    Send();
  }

 private:
  void Send() {
    ordered_json all = ordered_json::array();
    for (std::optional<ordered_json>& part : parts_) {
      if (part) all.push_back(*std::move(part));
    }
    if (all.empty()) {
      HttpResponse accepted;
      accepted.status = 202;
      accepted.content_type.clear();
      exchange_->Respond(std::move(accepted));
    } else if (batch_) {
      exchange_->Respond(JsonResponse(all));
    } else {
      exchange_->Respond(JsonResponse(all.front(), StatusOf(all.front())));
    }
  }

  int StatusOf(const ordered_json& message) const {
    const auto error = message.find("error");
    if (error == message.end()) return 200;
    const int code = (*error)["code"].get<int>();
    if (code == kParseError || code == kInvalidRequest || code == kUnsupportedRevision ||
        code == kHeaderMismatch) {
      return 400;
    }
    if (!stateless_) return 200;
    return code == kMethodNotFound ? 404 : 400;
  }

  const ExchangePtr exchange_;
  std::mutex mutex_;
  std::vector<std::optional<ordered_json>> parts_;
  std::size_t left_;
  const bool batch_, stateless_;
};

ordered_json SupportedRevisions() {
  ordered_json revisions = ordered_json::array({kStatelessRevision});
  for (auto each = kHandshakeRevisions.rbegin(); each != kHandshakeRevisions.rend(); ++each) {
    revisions.push_back(*each);
  }
  return revisions;
}

ordered_json ServerInfo() {
  return {{"name", "inferscale"}, {"title", "InferScale"}, {"version", INFERSCALE_VERSION}};
}

ordered_json Capabilities() { return {{"tools", {{"listChanged", false}}}}; }

bool IsHandshakeRevision(std::string_view revision) {
  return std::find(kHandshakeRevisions.begin(), kHandshakeRevisions.end(), revision) !=
         kHandshakeRevisions.end();
}

/// JSON is what answers are: refused by a client that takes only something else.
bool TakesJson(const HttpRequest& request) {
  const std::string* accept = request.Header("accept");
  return accept == nullptr || accept->find("application/json") != std::string::npos ||
         accept->find("*/*") != std::string::npos ||
         accept->find("application/*") != std::string::npos;
}

/// Whose memories, where a tool's arguments do not say: what the connection's headers name, else
/// what the key is bound to.
json DefaultOwner(const ApiCall& call) {
  json owner = OwnerHeaders(call.request());
  if (!owner.empty() || !call.principal.bound) return owner;
  const Scope& bound = *call.principal.bound;
  for (const auto& [name, id] :
       {std::pair{"user_id", &bound.user}, std::pair{"agent_id", &bound.agent},
        std::pair{"app_id", &bound.app}, std::pair{"run_id", &bound.run}}) {
    if (!id->empty()) owner[name] = *id;
  }
  return owner;
}

class Endpoint {
 public:
  explicit Endpoint(const Routes& routes) {
    for (const ordered_json& tool : ToolList()) {
      const auto name = tool["name"].get<std::string>();
      const Tool* found = FindTool(name);
      handlers_[name] = *routes.Handler(found->method, found->pattern);
    }
  }

  void Handle(const ApiCall& call) const {
    const HttpRequest& request = call.request();
    if (!TakesJson(request)) {
      call.exchange->Respond(ErrorResponse(
          request, ErrorDialect::kMem0Platform,
          InvalidArgument("answers are JSON: send Accept: application/json, text/event-stream"),
          406, "not_acceptable"));
      return;
    }
    const auto refuse = [&](const json& id, int code, const std::string& message,
                            ordered_json data = nullptr) {
      call.exchange->Respond(JsonResponse(ErrorMessage(id, code, message, std::move(data)), 400));
    };
    const Result<json> body = JsonValue(request);
    if (!body.ok()) return refuse(nullptr, kParseError, body.status().message());
    const std::string* given = request.Header("mcp-protocol-version");
    const std::string revision(given == nullptr ? kBatchRevision : std::string_view(*given));
    const bool stateless = revision == kStatelessRevision;
    if (!stateless && !IsHandshakeRevision(revision)) {
      const bool has_id = body->is_object() && body->contains("id");
      return refuse(has_id ? (*body)["id"] : json(), kUnsupportedRevision,
                    "Unsupported protocol version",
                    {{"supported", SupportedRevisions()}, {"requested", revision}});
    }
    if (!body->is_array()) {
      const auto reply = std::make_shared<Reply>(call.exchange, 1, false, stateless);
      Answer(call, *body, stateless, false, reply, 0);
      return;
    }
    if (revision != kBatchRevision) {
      return refuse(nullptr, kInvalidRequest, "revision " + revision + " has no batches");
    }
    if (body->empty() || body->size() > kMaxBatch) {
      return refuse(nullptr, kInvalidRequest,
                    "a batch has 1 to " + std::to_string(kMaxBatch) + " messages");
    }
    const auto reply = std::make_shared<Reply>(call.exchange, body->size(), true, false);
    for (std::size_t i = 0; i < body->size(); ++i) {
      Answer(call, (*body)[i], false, true, reply, i);
    }
  }

 private:
  using ReplyPtr = std::shared_ptr<Reply>;

  void Answer(const ApiCall& call, const json& message, bool stateless, bool in_batch,
              const ReplyPtr& reply, std::size_t part) const {
    const auto fail = [&](const json& id, int code, const std::string& text) {
      reply->Set(part, ErrorMessage(id, code, text));
    };
    if (!message.is_object()) return fail(nullptr, kInvalidRequest, "a message must be an object");
    const auto id = message.find("id");
    const bool has_id = id != message.end();
    if (has_id && !id->is_string() && !id->is_number_integer()) {
      return fail(nullptr, kInvalidRequest, "'id' must be a string or an integer");
    }
    const json id_or_null = has_id ? *id : json();
    const auto version = message.find("jsonrpc");
    if (version == message.end() || *version != "2.0") {
      return fail(id_or_null, kInvalidRequest, "'jsonrpc' must be \"2.0\"");
    }
    const auto method = message.find("method");
    if (method == message.end() && has_id && !stateless &&
        (message.contains("result") || message.contains("error"))) {
      return reply->Set(part, std::nullopt);  // an answer to nothing that was asked
    }
    if (method == message.end() || !method->is_string()) {
      return fail(id_or_null, kInvalidRequest, "'method' must be a string");
    }
    if (!has_id) return reply->Set(part, std::nullopt);
    json params = json::object();
    if (const auto found = message.find("params"); found != message.end()) params = *found;
    if (!params.is_object()) return fail(*id, kInvalidParams, "'params' must be an object");
    const std::string name = method->get<std::string>();
    if (stateless) {
      if (std::optional<ordered_json> wrong = CheckEnvelope(call.request(), *id, name, params)) {
        return reply->Set(part, std::move(wrong));
      }
    }
    if (name == "tools/call") return CallTool(call, *id, params, stateless, reply, part);
    std::optional<ordered_json> result = ResultOf(name, params, stateless, in_batch);
    if (!result) return fail(*id, kMethodNotFound, "Method not found: " + name);
    reply->Set(part, ResultMessage(*id, *std::move(result), stateless));
  }

  static ordered_json ResultMessage(const json& id, ordered_json result, bool stateless) {
    if (stateless) result["resultType"] = "complete";
    return {{"jsonrpc", "2.0"}, {"id", id}, {"result", std::move(result)}};
  }

  /// The headers by which intermediaries route must say what the body says.
  static std::optional<ordered_json> CheckEnvelope(const HttpRequest& request, const json& id,
                                                   const std::string& method, const json& params) {
    constexpr const char* kRevisionKey = "io.modelcontextprotocol/protocolVersion";
    constexpr const char* kCapabilitiesKey = "io.modelcontextprotocol/clientCapabilities";
    const auto meta = params.find("_meta");
    if (meta == params.end() || !meta->is_object() || !meta->contains(kRevisionKey) ||
        !meta->contains(kCapabilitiesKey)) {
      return ErrorMessage(
          id, kInvalidParams,
          "'params._meta' must have " + std::string(kRevisionKey) + " and " + kCapabilitiesKey);
    }
    if ((*meta)[kRevisionKey] != std::string(kStatelessRevision)) {
      return ErrorMessage(id, kHeaderMismatch,
                          "the header MCP-Protocol-Version and 'params._meta' differ");
    }
    const std::string* named_method = request.Header("mcp-method");
    if (named_method == nullptr || *named_method != method) {
      return ErrorMessage(id, kHeaderMismatch, "the header Mcp-Method and 'method' differ");
    }
    if (method != "tools/call") return std::nullopt;
    const std::string* named_tool = request.Header("mcp-name");
    const auto tool = params.find("name");
    if (tool != params.end() && (named_tool == nullptr || *tool != *named_tool)) {
      return ErrorMessage(id, kHeaderMismatch, "the header Mcp-Name and 'params.name' differ");
    }
    return std::nullopt;
  }

  /// Nothing: there is no such method.
  static std::optional<ordered_json> ResultOf(const std::string& method, const json& params,
                                              bool stateless, bool in_batch) {
    ordered_json result = ordered_json::object();
    if (method == "ping") return result;
    if (method == "tools/list") {
      result["tools"] = ToolList();
      if (stateless) PutCaching(&result);
      return result;
    }
    if (method == "initialize" && !stateless && !in_batch) {
      const auto wanted = params.find("protocolVersion");
      const std::string revision =
          wanted != params.end() && wanted->is_string() ? wanted->get<std::string>() : "";
      result["protocolVersion"] =
          IsHandshakeRevision(revision) ? revision : std::string(kHandshakeRevisions.back());
      result["capabilities"] = Capabilities();
      result["serverInfo"] = ServerInfo();
      result["instructions"] = kInstructions;
      return result;
    }
    if (method == "server/discover" && stateless) {
      result["supportedVersions"] = SupportedRevisions();
      result["capabilities"] = Capabilities();
      result["instructions"] = kInstructions;
      result["_meta"] = {{"io.modelcontextprotocol/serverInfo", ServerInfo()}};
      PutCaching(&result);
      return result;
    }
    return std::nullopt;
  }

  static void PutCaching(ordered_json* result) {
    (*result)["ttlMs"] = kListTtlMs;
    (*result)["cacheScope"] = "private";
  }

  static Result<Mem0Call> Translate(const Tool& tool, const json& arguments, const ApiCall& call) {
    const json owner = DefaultOwner(call);
    // Headers may hold anything, also what is no JSON text.
    INFERSCALE_RETURN_IF_ERROR(ScopeOf(call.principal, owner).status());
    return tool.translate(arguments, owner);
  }

  void CallTool(const ApiCall& call, const json& id, const json& params, bool stateless,
                const ReplyPtr& reply, std::size_t part) const {
    const auto name = params.find("name");
    const Tool* tool = name != params.end() && name->is_string()
                           ? FindTool(name->get_ref<const std::string&>())
                           : nullptr;
    if (tool == nullptr) {
      return reply->Set(part, ErrorMessage(id, kInvalidParams,
                                           name != params.end() && name->is_string()
                                               ? "Unknown tool: " + name->get<std::string>()
                                               : "'params.name' must be a tool's name"));
    }
    json arguments = json::object();
    if (const auto given = params.find("arguments"); given != params.end() && !given->is_null()) {
      arguments = *given;
    }
    if (!arguments.is_object()) {
      return reply->Set(part,
                        ErrorMessage(id, kInvalidParams, "'params.arguments' must be an object"));
    }
    Result<Mem0Call> translated = Translate(*tool, arguments, call);
    if (!translated.ok()) {
      return reply->Set(part,
                        ResultMessage(id, ToolError(translated.status().message()), stateless));
    }
    HttpRequest request;
    request.method = tool->method;
    request.target = tool->pattern;
    request.query = std::move(translated->query);
    request.headers = {{"content-type", "application/json"}};
    if (!translated->body.is_null()) request.body = translated->body.dump();
    request.remote = call.request().remote;
    request.remote_loopback = call.request().remote_loopback;
    request.id = call.request().id;
    // The answer may come later and from another thread; its exchange lives until then.
    const auto held = std::make_shared<std::weak_ptr<Exchange>>();
    const auto inner =
        std::make_shared<Exchange>(std::move(request), [held, reply, part, id, stateless] {
          if (const auto exchange = held->lock()) {
            reply->Set(part, ResultMessage(id, ToolResult(exchange->Take().head), stateless));
          }
        });
    *held = inner;
    ApiCall inner_call{Guarded(inner), std::move(translated->parameters), call.principal};
    handlers_.find(tool->name)->second(inner_call);
  }

  std::map<std::string, ApiHandler> handlers_;  // by the tool's name
};

}  // namespace
}  // namespace mcp

void AddMcpRoutes(Routes& routes, const std::shared_ptr<ApiContext>&) {
  if (const std::string missing = mcp::MissingRoute(routes); !missing.empty()) {
    spdlog::error("/mcp is not served: there is no route {}", missing);
    return;
  }
  const auto endpoint = std::make_shared<const mcp::Endpoint>(routes);
  routes.Add("POST", "/mcp", ErrorDialect::kMem0Platform,
             [endpoint](ApiCall& call) { endpoint->Handle(call); });
  routes.Describe("POST", "/mcp", "The memory tools of the Model Context Protocol",
                  mcp::kMessageSchema);
}

}  // namespace inferscale
