#include "server/mem0_routes.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <utility>

#include <spdlog/spdlog.h>

#include "base/clock.h"
#include "base/log.h"
#include "base/utf8.h"
#include "server/mem0_filters.h"
#include "server/mem0_python_literal.h"

namespace inferscale {

void AddMem0Routes(Routes& routes, const std::shared_ptr<ApiContext>& context) {
  mem0::Registrar registrar(routes, context);
  mem0::AddAddingRoutes(registrar);
  mem0::AddReadingRoutes(registrar);
  mem0::AddChangingRoutes(registrar);
  mem0::AddErasingRoutes(registrar);
  mem0::AddRefusedRoutes(registrar);
  mem0::DescribeRoutes(routes);
}

namespace mem0 {
namespace {

using nlohmann::json;

constexpr double kLatestSecond = 253402300799.0;  // of the year 9999
constexpr double kEarliestSecond = -62135596800.0;

/// nullptr: missing or null.
const json* Field(const json& body, std::string_view name) {
  const auto found = body.find(name);
  return found == body.end() || found->is_null() ? nullptr : &*found;
}

Status WrongType(std::string_view name, std::string_view expected) {
  return InvalidArgument("'" + std::string(name) + "' must be " + std::string(expected));
}

bool MayBeLiteral(std::string_view name) {
  constexpr auto kLiterals =
      std::to_array<std::string_view>({"filters", "metadata", "categories", "fields"});
  return std::find(kLiterals.begin(), kLiterals.end(), name) != kLiterals.end();
}

}  // namespace

Handler In(ErrorDialect dialect, Answer (*handler)(MemoryService&, const ApiCall&, ErrorDialect)) {
  return [dialect, handler](MemoryService& service, const ApiCall& call) {
    return handler(service, call, dialect);
  };
}

void Registrar::Add(std::string_view method, std::string_view pattern, ErrorDialect dialect,
                    Handler handler) {
  routes_.Add(method, pattern, dialect,
              [context = context_, dialect, handler = std::move(handler)](ApiCall& call) {
                Answer answer = handler(*context->service, call);
                call.exchange->Respond(
                    answer.ok() ? *std::move(answer)
                                : ErrorResponse(call.request(), dialect, answer.status()));
              });
}

Result<OwnedFact> FindVisible(MemoryService& service, const Principal& principal,
                              const std::string& id) {
  const auto unknown = [] { return NotFound("Memory not found"); };
  OwnedFact owned;
  Result<Fact> fact = service.Get(id);
  if (!fact.ok()) {
    return fact.status().code() == StatusCode::kNotFound ? unknown() : fact.status();
  }
  const Result<ScopeInfo> scope = service.catalog().GetScope(fact->scope_id);
  if (!scope.ok()) {
    return scope.status().code() == StatusCode::kNotFound ? unknown() : scope.status();
  }
  if (!MaySee(principal, scope->scope)) return unknown();
  return OwnedFact{*std::move(fact), scope->scope};
}

Result<json> QueryAsBody(const HttpRequest& request) {
  json body = json::object();
  for (const auto& [name, value] : request.query) {
    if (!IsValidUtf8(name) || !IsValidUtf8(value)) {
      return InvalidArgument("the query string is not UTF-8");
    }
    if (body.contains(name)) {
      return InvalidArgument("'" + name + "' stands twice in the query string");
    }
    if (!MayBeLiteral(name)) {
      body[name] = value;
      continue;
    }
    Result<json> literal = ParseLiteral(value);
    if (!literal.ok()) return literal.status().WithContext("'" + name + "'");
    body[name] = *std::move(literal);
  }
  return body;
}

Result<std::optional<TimeMs>> TimeField(const json& body, std::string_view name) {
  const json* value = Field(body, name);
  if (value == nullptr) return std::optional<TimeMs>();
  double seconds = 0;
  if (value->is_number()) {
    seconds = value->get<double>();
  } else if (value->is_string()) {
    const auto& text = value->get_ref<const std::string&>();
    if (const Result<TimeMs> time = ParseIso8601(text); time.ok()) return std::optional(*time);
    const auto parsed = std::from_chars(text.data(), text.data() + text.size(), seconds);
    if (parsed.ec != std::errc() || parsed.ptr != text.data() + text.size()) {
      seconds = std::nan("");
    }
  } else {
    seconds = std::nan("");
  }
  if (!(seconds >= kEarliestSecond && seconds <= kLatestSecond)) {
    return WrongType(name, "seconds since 1970 or a time such as \"2026-11-29T08:00:00Z\"");
  }
  return std::optional(static_cast<TimeMs>(std::llround(seconds * 1000)));
}

Result<std::optional<std::string>> ExpirationField(const json& body) {
  const auto found = body.find("expiration_date");
  if (found == body.end()) return std::optional<std::string>();
  if (found->is_null()) return std::optional(std::string());
  const Result<TimeMs> time = found->is_string()
                                  ? ParseIso8601(found->get_ref<const std::string&>())
                                  : InvalidArgument("no text");
  if (!time.ok()) return WrongType("expiration_date", "a date such as \"2026-12-31\", or null");
  return std::optional(FormatDate(*time));
}

Result<std::optional<std::string>> MetadataField(const json& body) {
  const json* value = Field(body, "metadata");
  if (value == nullptr) return std::optional<std::string>();
  if (!value->is_object()) return WrongType("metadata", "an object");
  json metadata = *value;
  for (const char* owner : {"user_id", "agent_id", "app_id", "run_id"}) metadata.erase(owner);
  return std::optional(metadata.dump());
}

Result<bool> FlagField(const json& body, std::string_view name, bool otherwise) {
  const json* value = Field(body, name);
  if (value == nullptr) return otherwise;
  if (value->is_boolean()) return value->get<bool>();
  const std::string text = value->is_string() ? value->get<std::string>() : std::string();
  if (text == "true" || text == "True" || text == "1") return true;
  if (text == "false" || text == "False" || text == "0") return false;
  return WrongType(name, "true or false");
}

Result<std::int64_t> CountField(const json& body, std::string_view name, std::int64_t least,
                                std::int64_t most, std::int64_t otherwise) {
  const json* value = Field(body, name);
  if (value == nullptr) return otherwise;
  json number = *value;
  if (value->is_string()) {
    const auto& text = value->get_ref<const std::string&>();
    std::int64_t parsed_number = 0;
    const auto parsed = std::from_chars(text.data(), text.data() + text.size(), parsed_number);
    if (parsed.ec == std::errc() && parsed.ptr == text.data() + text.size()) number = parsed_number;
  }
  INFERSCALE_ASSIGN_OR_RETURN(
      const std::optional<std::int64_t> count,
      IntegerField(json{{std::string(name), std::move(number)}}, name, least, most));
  return count.value_or(otherwise);
}

Status DeleteMemory(MemoryService& service, const std::string& id, Status* pending) {
  Status status = service.Delete(id);
  if (status.ok() || status.code() == StatusCode::kNotFound) return status;
  if (service.Get(id).status().code() != StatusCode::kNotFound) return status;
  if (pending->ok()) *pending = std::move(status);
  return OkStatus();
}

void AuditErase(const ApiCall& call, std::string_view what, std::int64_t memories) {
  LogFields(spdlog::level::info, {{"message", "memories erased"},
                                  {"call", std::string(what)},
                                  {"memories", memories},
                                  {"tenant", call.principal.tenant},
                                  {"key", call.principal.key_id},
                                  {"request_id", call.request().id}});
}

}  // namespace mem0
}  // namespace inferscale
