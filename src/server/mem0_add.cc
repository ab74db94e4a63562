// add and events. What needs a language model is a durable job of the catalog; a caller who wants
// to wait for it waits on a thread of SlowCalls.

#include <algorithm>
#include <map>
#include <utility>

#include <spdlog/spdlog.h>

#include "base/clock.h"
#include "base/random.h"
#include "base/utf8.h"
#include "catalog/validation.h"
#include "server/key_limits.h"
#include "server/mem0_filters.h"
#include "server/mem0_routes.h"
#include "server/mem0_slow_calls.h"

namespace inferscale::mem0 {
namespace {

using nlohmann::json;

constexpr std::size_t kSlowThreads = 2;
constexpr std::size_t kMostSlowWaiting = 64;
constexpr std::size_t kMaxRoleBytes = 64;

struct AddCall {
  Scope scope;
  std::vector<Turn> turns;  ///< without those of the system, which are no memories
  std::string metadata = "{}", expiration_date;
  TimeMs created_at_ms = 0;
  bool infer = true;
  bool wait = false;  ///< answer when the facts are there
};

/// The text of a message: a string, or its text parts joined by a line break; media is left out.
Result<std::string> ContentOf(const json& content, const std::string& where) {
  if (content.is_string()) return content.get<std::string>();
  if (content.is_object()) return ContentOf(json::array({content}), where);
  if (!content.is_array()) {
    return InvalidArgument("'" + where + "' must be text or a list of parts");
  }
  std::string text;
  for (const json& part : content) {
    std::string piece;
    if (part.is_string()) {
      piece = part.get<std::string>();
    } else if (part.is_object()) {
      const auto found = part.find("text");
      if (found == part.end()) continue;
      if (!found->is_string()) return InvalidArgument("'" + where + "' has a text that is no text");
      piece = found->get<std::string>();
    } else {
      return InvalidArgument("'" + where + "' must be text or a list of parts");
    }
    if (!text.empty()) text += '\n';
    text += piece;
  }
  return text;
}

Result<Turn> ParseMessage(const json& message, const std::string& where, TimeMs time_ms) {
  if (!message.is_object()) return InvalidArgument("'" + where + "' must be an object");
  Turn turn;
  turn.time_ms = time_ms;
  const auto text = [&](const char* name) -> Result<std::string> {
    Result<std::optional<std::string>> value = StringField(message, name);
    if (!value.ok()) return value.status().WithContext(where);
    return (*value).value_or("");
  };
  INFERSCALE_ASSIGN_OR_RETURN(turn.role, text("role"));
  INFERSCALE_ASSIGN_OR_RETURN(turn.name, text("name"));
  if (turn.role.empty()) turn.role = "user";
  if (turn.role.size() > kMaxRoleBytes) {
    return InvalidArgument("'" + where + ".role' is too long");
  }
  const auto content = message.find("content");
  if (content == message.end() || content->is_null()) {
    return InvalidArgument("'" + where + ".content' is missing");
  }
  INFERSCALE_ASSIGN_OR_RETURN(turn.content, ContentOf(*content, where + ".content"));
  return turn;
}

Result<std::vector<Turn>> ParseMessages(const json& body, TimeMs time_ms) {
  const auto found = body.find("messages");
  json messages = found == body.end() ? json() : *found;
  if (messages.is_string()) {
    messages = json::array({{{"role", "user"}, {"content", std::move(messages)}}});
  } else if (messages.is_object()) {
    messages = json::array({std::move(messages)});
  }
  if (!messages.is_array() || messages.empty()) {
    return InvalidArgument("'messages' must be text, a message or a list of at least one message");
  }
  std::vector<Turn> turns;
  for (std::size_t i = 0; i < messages.size(); ++i) {
    const std::string where = "messages[" + std::to_string(i) + "]";
    INFERSCALE_ASSIGN_OR_RETURN(Turn turn, ParseMessage(messages[i], where, time_ms));
    if (turn.role == "system") continue;
    if (TrimWhitespace(turn.content).empty()) {
      return InvalidArgument("'" + where + ".content' is blank");
    }
    const Status storable = catalog::CheckText(where + ".content", turn.content);
    if (!storable.ok()) return storable;
    turns.push_back(std::move(turn));
  }
  return turns;
}

/// The owner that a body names, at its top or in `filters`, which may hold nothing else.
Result<Scope> OwnerOf(const Principal& principal, const json& body) {
  json ids = OwnersIn(body);
  if (const auto filters = body.find("filters"); filters != body.end() && !filters->is_null()) {
    const json named = filters->is_object() ? OwnersIn(*filters) : json::object();
    if (!filters->is_object() || named.size() != filters->size()) {
      return InvalidArgument(
          "'filters' of an add may hold user_id, agent_id, app_id and run_id only");
    }
    for (const auto& [name, id] : named.items()) {
      if (ids.contains(name) && ids[name] != id) {
        return InvalidArgument("'" + name + "' and 'filters." + name + "' differ");
      }
      ids[name] = id;
    }
  }
  INFERSCALE_ASSIGN_OR_RETURN(Scope scope, ScopeOf(principal, ids));
  if (!scope.HasOwner()) {
    return InvalidArgument("whose memory? Give at least one of user_id, agent_id, app_id, run_id");
  }
  for (const std::string* id : {&scope.user, &scope.agent, &scope.app, &scope.run}) {
    if (*id == "*") return InvalidArgument("\"*\" means any id in filters; it cannot be one");
  }
  return scope;
}

Result<AddCall> ParseAdd(const ApiCall& call, ErrorDialect dialect) {
  INFERSCALE_ASSIGN_OR_RETURN(const json body, JsonBody(call.request()));
  AddCall add;
  INFERSCALE_ASSIGN_OR_RETURN(add.scope, OwnerOf(call.principal, body));
  INFERSCALE_ASSIGN_OR_RETURN(const std::optional<TimeMs> time, TimeField(body, "timestamp"));
  add.created_at_ms = time.value_or(0);
  INFERSCALE_ASSIGN_OR_RETURN(add.turns, ParseMessages(body, add.created_at_ms));
  INFERSCALE_ASSIGN_OR_RETURN(const std::optional<std::string> metadata, MetadataField(body));
  add.metadata = metadata.value_or("{}");
  INFERSCALE_ASSIGN_OR_RETURN(const std::optional<std::string> expires, ExpirationField(body));
  add.expiration_date = expires.value_or("");
  INFERSCALE_ASSIGN_OR_RETURN(const std::optional<bool> infer, BooleanField(body, "infer"));
  add.infer = infer.value_or(true);
  INFERSCALE_ASSIGN_OR_RETURN(const std::optional<bool> async, BooleanField(body, "async_mode"));
  add.wait = dialect == kServer || !async.value_or(true);
  INFERSCALE_ASSIGN_OR_RETURN(const std::optional<std::string> type,
                              StringField(body, "memory_type"));
  if (type == "procedural_memory") {
    return Unsupported("procedural memories are not supported: leave memory_type out");
  }
  if (type) return InvalidArgument("'memory_type' may be \"procedural_memory\" only");
  return add;
}

Item AddedRow(const Fact& fact, const char* event, ErrorDialect dialect, bool verbatim) {
  Item row;
  row["id"] = fact.id;
  row["memory"] = fact.text;
  if (dialect == kPlatform) row["data"] = {{"memory", fact.text}};
  row["event"] = event;
  if (dialect == kServer && verbatim) {
    row["actor_id"] = fact.actor_id.empty() ? Item() : Item(fact.actor_id);
    row["role"] = fact.role;
  }
  return row;
}

/// infer=false: every message is a memory, byte for byte. A message that the owner's memories hold
/// already is told with the id it has there, and event NONE.
Result<Item> AddVerbatim(MemoryService& service, const AddCall& add, const std::string& event_id,
                         ErrorDialect dialect) {
  const auto& clock = service.options().clock;
  const TimeMs now = clock ? clock() : NowMs();
  std::vector<NewFact> facts;
  for (std::size_t i = 0; i < add.turns.size(); ++i) {
    const Turn& turn = add.turns[i];
    NewFact item;
    item.fact.text = turn.content;
    item.fact.name = turn.name;
    item.fact.role = turn.role;
    item.fact.actor_id = turn.name;
    item.fact.metadata_json = add.metadata;
    item.fact.expiration_date = add.expiration_date;
    item.fact.event_time_ms = turn.time_ms != 0 ? turn.time_ms : now;
    item.fact.created_at_ms = add.created_at_ms;
    item.source_turn_indexes = {static_cast<std::int32_t>(i)};
    facts.push_back(std::move(item));
  }
  INFERSCALE_ASSIGN_OR_RETURN(const IngestOutcome outcome,
                              service.AddFacts(add.scope, add.turns, std::move(facts), event_id));
  std::vector<std::string> ids;
  for (const IngestOutcome::Entry& entry : outcome.facts) ids.push_back(entry.fact_id);
  INFERSCALE_ASSIGN_OR_RETURN(const std::vector<Fact> stored, service.catalog().GetFacts(ids));
  std::map<std::string, const Fact*> by_id;
  for (const Fact& fact : stored) by_id.emplace(fact.id, &fact);
  Item rows = Item::array();
  for (const IngestOutcome::Entry& entry : outcome.facts) {
    const auto found = by_id.find(entry.fact_id);
    if (found == by_id.end()) continue;  // deleted since
    rows.push_back(AddedRow(*found->second, entry.added ? "ADD" : "NONE", dialect, true));
  }
  return rows;
}

AddRequest RequestOf(const AddCall& add, const std::string& event_id) {
  AddRequest request;
  request.scope = add.scope;
  request.turns = add.turns;
  request.metadata_json = add.metadata;
  request.expiration_date = add.expiration_date;
  request.created_at_ms = add.created_at_ms;
  request.event_id = event_id;
  return request;
}

Result<Item> AddInferred(MemoryService& service, const AddCall& add, const std::string& event_id,
                         ErrorDialect dialect) {
  INFERSCALE_ASSIGN_OR_RETURN(const AddOutcome outcome, service.Add(RequestOf(add, event_id)));
  Item rows = Item::array();
  for (const Fact& fact : outcome.facts) rows.push_back(AddedRow(fact, "ADD", dialect, false));
  return rows;
}

HttpResponse Added(Item rows, const std::string& event_id, ErrorDialect dialect) {
  Item body;
  if (dialect == kPlatform) {
    body["message"] = "Memories added";
    body["status"] = "SUCCEEDED";
    body["event_id"] = event_id;
  }
  body["results"] = std::move(rows);
  return JsonResponse(body);
}

/// A failing model is the provider's fault in Mem0's words: 502, and nothing was stored.
HttpResponse ModelFailed(const HttpRequest& request, ErrorDialect dialect, const Status& status) {
  const char* code = status.code() == StatusCode::kUnavailable          ? "provider_unavailable"
                     : status.code() == StatusCode::kDeadlineExceeded   ? "provider_timeout"
                     : status.code() == StatusCode::kFailedPrecondition ? "provider_refused"
                                                                        : nullptr;
  if (code == nullptr) return ErrorResponse(request, dialect, status);
  // The address of the model's server and its words are for the operator.
  spdlog::warn("request {}: extraction failed: {}", request.id, status.ToString());
  return ErrorResponse(request, dialect,
                       Status(status.code(),
                              "the model that extracts memories failed; nothing was "
                              "stored"),
                       502, code);
}

class Adder {
 public:
  explicit Adder(std::shared_ptr<ApiContext> context)
      : context_(std::move(context)), slow_(kSlowThreads, kMostSlowWaiting) {}

  void Handle(const ApiCall& call, ErrorDialect dialect, bool as_list) {
    Result<AddCall> add = ParseAdd(call, dialect);
    if (add.ok()) {
      const Status room = CheckRoom(*context_->service, call.principal,
                                    static_cast<std::int64_t>(add->turns.size()));
      if (!room.ok()) {
        call.exchange->Respond(LimitReached(call.request(), dialect, room));
        return;
      }
    }
    PerhapsLater answer =
        add.ok() ? Start(call, *std::move(add), dialect, as_list) : PerhapsLater(add.status());
    if (!answer.ok()) {
      call.exchange->Respond(ErrorResponse(call.request(), dialect, answer.status()));
    } else if (answer->has_value()) {
      call.exchange->Respond(**std::move(answer));
    }
  }

 private:
  /// Nothing: another thread answers.
  using PerhapsLater = Result<std::optional<HttpResponse>>;

  PerhapsLater Start(const ApiCall& call, AddCall add, ErrorDialect dialect, bool as_list) {
    MemoryService& service = *context_->service;
    const std::string event_id = NewUuid();
    if (add.turns.empty()) {  // nothing but system messages
      INFERSCALE_RETURN_IF_ERROR(
          service.catalog().RecordEvent(event_id, call.principal.tenant, "ADD"));
      return std::optional(Added(Item::array(), event_id, dialect));
    }
    if (!add.infer) {
      INFERSCALE_ASSIGN_OR_RETURN(Item rows, AddVerbatim(service, add, event_id, dialect));
      return std::optional(Added(std::move(rows), event_id, dialect));
    }
    if (!add.wait) return Queue(service, add, event_id, as_list);
    if (service.options().extraction == ExtractionMode::kVerbatim) {
      INFERSCALE_ASSIGN_OR_RETURN(Item rows, AddInferred(service, add, event_id, dialect));
      return std::optional(Added(std::move(rows), event_id, dialect));
    }
    const bool posted = slow_.Post(
        [context = context_, exchange = call.exchange, add = std::move(add), event_id, dialect] {
          Result<Item> rows = AddInferred(*context->service, add, event_id, dialect);
          exchange->Respond(rows.ok() ? Added(*std::move(rows), event_id, dialect)
                                      : ModelFailed(exchange->request(), dialect, rows.status()));
        });
    if (!posted) return Unavailable("too many adds wait for the model; try again");
    return std::optional<HttpResponse>();
  }

  static PerhapsLater Queue(MemoryService& service, const AddCall& add, const std::string& event_id,
                            bool as_list) {
    AddRequest request = RequestOf(add, event_id);
    request.background = true;
    INFERSCALE_RETURN_IF_ERROR(service.Add(request).status());
    Item body;
    body["message"] = "Memory processing has been queued for background execution";
    body["status"] = "PENDING";
    body["event_id"] = event_id;
    if (as_list) body = Item{{"results", Item::array({body})}};
    return std::optional(JsonResponse(body));
  }

  const std::shared_ptr<ApiContext> context_;
  SlowCalls slow_;
};

Answer GetEvent(MemoryService& service, const ApiCall& call) {
  const Status unknown = NotFound("Event not found");
  Result<EventInfo> event = service.catalog().GetEvent(call.parameter("event_id"));
  if (!event.ok()) {
    return event.status().code() == StatusCode::kNotFound ? unknown : event.status();
  }
  if (event->tenant != call.principal.tenant) return unknown;
  if (event->scope_id) {
    const Result<ScopeInfo> scope = service.catalog().GetScope(*event->scope_id);
    if (!scope.ok() || !MaySee(call.principal, scope->scope)) return unknown;
  }
  INFERSCALE_ASSIGN_OR_RETURN(const std::vector<Fact> facts,
                              service.catalog().GetFacts(event->fact_ids));
  return JsonResponse(EventItem(*event, facts));
}

}  // namespace

void AddAddingRoutes(Registrar& registrar) {
  const auto adder = std::make_shared<Adder>(registrar.context());
  const auto add = [&](const char* pattern, ErrorDialect dialect, bool as_list) {
    registrar.routes().Add("POST", pattern, dialect, [adder, dialect, as_list](ApiCall& call) {
      adder->Handle(call, dialect, as_list);
    });
  };
  add("/memories", kServer, false);
  add("/v3/memories/add", kPlatform, false);
  add("/v1/memories", kPlatform, true);
  for (const char* pattern : {"/v1/event/{event_id}", "/v1/events/{event_id}"}) {
    registrar.Add("GET", pattern, kPlatform, GetEvent);
  }
}

}  // namespace inferscale::mem0
