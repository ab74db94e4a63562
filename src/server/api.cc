#include "server/api.h"

#include <cmath>
#include <utility>

#include <spdlog/spdlog.h>

#include "base/utf8.h"

namespace inferscale {
namespace {

using nlohmann::json;

constexpr int kMaxDepth = 64;
constexpr std::size_t kMaxEntityBytes = 256;

std::string_view OpenAiType(int http_status) {
  switch (http_status) {
    case 401:
      return "authentication_error";
    case 403:
      return "permission_error";
    case 404:
      return "not_found_error";
    case 429:
      return "rate_limit_error";
    default:
      return http_status >= 500 ? "server_error" : "invalid_request_error";
  }
}

/// nullptr: missing or null.
const json* Field(const json& body, std::string_view name) {
  const auto found = body.find(name);
  return found == body.end() || found->is_null() ? nullptr : &*found;
}

Status WrongType(std::string_view name, std::string_view expected) {
  return InvalidArgument("'" + std::string(name) + "' must be " + std::string(expected));
}

bool IsJsonType(const std::string* content_type) {
  if (content_type == nullptr) return false;
  std::string type = content_type->substr(0, content_type->find(';'));
  while (!type.empty() && type.back() == ' ') type.pop_back();
  for (char& c : type) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  return type == "application/json" ||
         (type.starts_with("application/") && type.ends_with("+json"));
}

}  // namespace

int HttpStatusOf(const Status& status) {
  switch (status.code()) {
    case StatusCode::kOk:
      return 200;
    case StatusCode::kInvalidArgument:
      return 400;
    case StatusCode::kNotFound:
      return 404;
    case StatusCode::kAlreadyExists:
      return 409;
    case StatusCode::kResourceExhausted:
      return 507;
    case StatusCode::kUnsupported:
      return 501;
    case StatusCode::kUnavailable:
      return 503;
    case StatusCode::kDeadlineExceeded:
      return 504;
    case StatusCode::kCancelled:
      return 503;
    case StatusCode::kFailedPrecondition:
    case StatusCode::kDataLoss:
    case StatusCode::kInternal:
      break;
  }
  return 500;
}

HttpResponse ErrorResponse(const HttpRequest& request, ErrorDialect dialect, const Status& status,
                           int http_status, std::string_view code) {
  if (http_status == 0) http_status = HttpStatusOf(status);
  std::string message = status.message();
  if (http_status == 500) {
    spdlog::error("request {}: {}", request.id, status.ToString());
    message = "internal error; the server's log has it under request id " + request.id;
  }
  if (code.empty()) code = StatusCodeName(status.code());
  nlohmann::ordered_json body;
  if (dialect == ErrorDialect::kOpenAi) {
    body["error"] = {{"message", message},
                     {"type", OpenAiType(http_status)},
                     {"param", nullptr},
                     {"code", code}};
  } else {
    body["detail"] = message;
    if (dialect == ErrorDialect::kMem0Platform) body["error"] = message;
    body["code"] = code;
    body["request_id"] = request.id;
  }
  HttpResponse response = JsonResponse(body, http_status);
  if (http_status == 503 || http_status == 429) response.headers.emplace_back("Retry-After", "1");
  if (http_status == 401) response.headers.emplace_back("WWW-Authenticate", "Bearer");
  return response;
}

HttpResponse JsonResponse(const nlohmann::ordered_json& body, int status) {
  HttpResponse response;
  response.status = status;
  response.body = body.dump(-1, ' ', false, json::error_handler_t::replace);
  return response;
}

Result<json> JsonBody(const HttpRequest& request, bool may_be_empty) {
  if (request.body.empty() && may_be_empty) return json::object();
  INFERSCALE_ASSIGN_OR_RETURN(json body, JsonValue(request));
  if (!body.is_object()) return InvalidArgument("the body must be a JSON object");
  return body;
}

Result<json> JsonValue(const HttpRequest& request) {
  // A form that another site makes a browser send cannot have this type.
  if (!IsJsonType(request.Header("content-type")))
    return InvalidArgument("the body must be JSON, sent with Content-Type: application/json");
  if (request.body.starts_with("\xEF\xBB\xBF"))
    return InvalidArgument("the body begins with a byte order mark; send plain UTF-8");
  bool too_deep = false;
  const json::parser_callback_t limit = [&](int depth, json::parse_event_t, json&) {
    too_deep = too_deep || depth > kMaxDepth;
    return !too_deep;
  };
  json body = json::parse(request.body, limit, /*allow_exceptions=*/false);
  if (too_deep)
    return InvalidArgument("the body is nested more than " + std::to_string(kMaxDepth) +
                           " levels deep");
  if (body.is_discarded()) return InvalidArgument("the body is not valid JSON in UTF-8");
  return body;
}

Result<std::optional<std::string>> StringField(const json& body, std::string_view name) {
  const json* value = Field(body, name);
  if (value == nullptr) return std::optional<std::string>();
  if (!value->is_string()) return WrongType(name, "a string");
  return std::optional<std::string>(value->get<std::string>());
}

Result<std::optional<std::int64_t>> IntegerField(const json& body, std::string_view name,
                                                 std::int64_t least, std::int64_t most) {
  const std::string expected =
      "an integer from " + std::to_string(least) + " to " + std::to_string(most);
  const json* value = Field(body, name);
  if (value == nullptr) return std::optional<std::int64_t>();
  if (!value->is_number()) return WrongType(name, expected);
  const auto number = value->get<double>();
  if (number != std::floor(number) || number < static_cast<double>(least) ||
      number > static_cast<double>(most)) {
    return WrongType(name, expected);
  }
  return std::optional<std::int64_t>(value->is_number_float() ? static_cast<std::int64_t>(number)
                                                              : value->get<std::int64_t>());
}

Result<std::optional<double>> NumberField(const json& body, std::string_view name, double least,
                                          double most) {
  const json* value = Field(body, name);
  if (value == nullptr) return std::optional<double>();
  const double number = value->is_number() ? value->get<double>() : std::nan("");
  if (!(number >= least && number <= most)) {
    return WrongType(name, "a number from " + json(least).dump() + " to " + json(most).dump());
  }
  return std::optional<double>(number);
}

Result<std::optional<bool>> BooleanField(const json& body, std::string_view name) {
  const json* value = Field(body, name);
  if (value == nullptr) return std::optional<bool>();
  if (!value->is_boolean()) return WrongType(name, "true or false");
  return std::optional<bool>(value->get<bool>());
}

Result<std::string> EntityId(const json& value, std::string_view name) {
  std::string id;
  if (value.is_string()) {
    id = value.get<std::string>();
  } else if (value.is_number()) {
    id = value.dump();
  } else {
    return WrongType(name, "a string");
  }
  constexpr std::string_view kSpace = " \t\r\n\v\f";
  const std::size_t start = id.find_first_not_of(kSpace);
  if (start == std::string::npos) return InvalidArgument("'" + std::string(name) + "' is empty");
  id = id.substr(start, id.find_last_not_of(kSpace) - start + 1);
  if (id.find_first_of(kSpace) != std::string::npos || id.find('\0') != std::string::npos)
    return InvalidArgument("'" + std::string(name) + "' must not hold whitespace");
  if (id.size() > kMaxEntityBytes || !IsValidUtf8(id)) {
    return InvalidArgument("'" + std::string(name) + "' must be valid UTF-8 of at most " +
                           std::to_string(kMaxEntityBytes) + " bytes");
  }
  return id;
}

Result<Scope> ScopeOf(const Principal& principal, const json& ids) {
  Scope scope;
  if (principal.bound) scope = *principal.bound;
  scope.tenant = principal.tenant;
  const std::pair<const char*, std::string Scope::*> fields[] = {{"user_id", &Scope::user},
                                                                 {"agent_id", &Scope::agent},
                                                                 {"app_id", &Scope::app},
                                                                 {"run_id", &Scope::run}};
  for (const auto& [name, member] : fields) {
    const json* value = Field(ids, name);
    if (value == nullptr) continue;
    INFERSCALE_ASSIGN_OR_RETURN(std::string id, EntityId(*value, name));
    if (principal.bound && !((*principal.bound).*member).empty() &&
        (*principal.bound).*member != id)
      return NotFound("no such owner under this API key");
    scope.*member = std::move(id);
  }
  return scope;
}

json OwnerHeaders(const HttpRequest& request) {
  json ids = json::object();
  for (const auto& [header, name] :
       {std::pair{"x-inferscale-user", "user_id"}, std::pair{"x-inferscale-agent", "agent_id"},
        std::pair{"x-inferscale-app", "app_id"}, std::pair{"x-inferscale-run", "run_id"}}) {
    if (const std::string* value = request.Header(header)) ids[name] = *value;
  }
  return ids;
}

bool MaySee(const Principal& principal, const Scope& scope) {
  if (scope.tenant != principal.tenant) return false;
  if (!principal.bound) return true;
  const Scope& bound = *principal.bound;
  const auto agrees = [](const std::string& wanted, const std::string& has) {
    return wanted.empty() || wanted == has;
  };
  return agrees(bound.user, scope.user) && agrees(bound.agent, scope.agent) &&
         agrees(bound.app, scope.app) && agrees(bound.run, scope.run);
}

}  // namespace inferscale
