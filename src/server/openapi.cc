#include "server/openapi.h"
#include "base/html.h"

#include <cctype>
#include <utility>

namespace inferscale {
namespace {

using nlohmann::ordered_json;

std::string Lower(std::string text) {
  for (char& c : text) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  return text;
}

std::vector<std::string> ParameterNames(const std::string& pattern) {
  std::vector<std::string> names;
  for (std::size_t at = pattern.find('{'); at != std::string::npos; at = pattern.find('{', at)) {
    const std::size_t end = pattern.find('}', at);
    if (end == std::string::npos) break;
    names.push_back(pattern.substr(at + 1, end - at - 1));
    at = end;
  }
  return names;
}

ordered_json Parsed(const std::string& schema_json) {
  return ordered_json::parse(schema_json, nullptr, /*allow_exceptions=*/false);
}

ordered_json Parameters(const RouteDescription& route) {
  ordered_json parameters = ordered_json::array();
  for (const std::string& name : ParameterNames(route.pattern)) {
    parameters.push_back({{"name", name},
                          {"in", "path"},
                          {"required", true},
                          {"schema", {{"type", "string"}, {"minLength", 1}}}});
  }
  if (route.details.query_schema_json.empty()) return parameters;
  const ordered_json query = Parsed(route.details.query_schema_json);
  for (const auto& [name, schema] : query.items()) {
    parameters.push_back({{"name", name}, {"in", "query"}, {"schema", schema}});
  }
  return parameters;
}

ordered_json AnswerOf(const std::string& description, const std::string& type) {
  return {{"description", description}, {"content", {{type, ordered_json::object()}}}};
}

ordered_json Answers(const RouteDetails& details) {
  ordered_json answers;
  // What only refuses never succeeds.
  const bool refuses = details.failures == std::vector<int>{501};
  if (!refuses) {
    answers["2XX"] = AnswerOf("done", details.answer_type);
    if (details.may_stream) answers["2XX"]["content"]["text/event-stream"] = ordered_json::object();
  }
  answers["4XX"] = AnswerOf("the request is wrong; says what", "application/json");
  for (const int status : details.failures) {
    answers[std::to_string(status)] =
        AnswerOf(status == 501   ? "not part of this server"
                 : status == 502 ? "the extractor's model failed; nothing was stored"
                                 : "an error",
                 "application/json");
  }
  answers["503"] = AnswerOf("overloaded; Retry-After says when", "application/json");
  return answers;
}

ordered_json Operation(const RouteDescription& route) {
  ordered_json operation = ordered_json::object();
  const RouteDetails& details = route.details;
  if (!details.summary.empty()) operation["summary"] = details.summary;
  ordered_json parameters = Parameters(route);
  if (!parameters.empty()) operation["parameters"] = std::move(parameters);
  const bool has_body = !details.body_schema_json.empty() || route.method == "POST" ||
                        route.method == "PUT" || route.method == "PATCH";
  if (has_body) {
    operation["requestBody"]["content"]["application/json"]["schema"] =
        details.body_schema_json.empty() ? ordered_json{{"type", "object"}}
                                         : Parsed(details.body_schema_json);
  }
  operation["responses"] = Answers(details);
  if (!route.needs_key) operation["security"] = ordered_json::array();
  return operation;
}

}  // namespace

ordered_json OpenApiDocument(const std::vector<RouteDescription>& routes) {
  ordered_json document = {
      {"openapi", "3.1.0"},
      {"info", {{"title", "InferScale"}, {"version", INFERSCALE_VERSION}}},
      {"paths", ordered_json::object()},
      {"components",
       {{"securitySchemes",
         {{"bearer", {{"type", "http"}, {"scheme", "bearer"}}},
          {"header", {{"type", "apiKey"}, {"in", "header"}, {"name", "X-API-Key"}}}}}}},
      {"security", ordered_json::array({{{"bearer", ordered_json::array()}},
                                        {{"header", ordered_json::array()}}})}};
  for (const RouteDescription& route : routes) {
    document["paths"][route.pattern][Lower(route.method)] = Operation(route);
  }
  return document;
}

std::string OpenApiPage(const std::vector<RouteDescription>& routes, const std::string& nonce) {
  std::string page =
      "<!doctype html>\n<html lang=\"en\">\n<meta charset=\"utf-8\">\n"
      "<meta name=\"viewport\" content=\"width=device-width\">\n<title>InferScale API</title>\n"
      "<style nonce=\"" +
      nonce +
      "\">\n:root { color-scheme: light dark; font-family: system-ui, sans-serif; }\n"
      "body { max-width: 60rem; margin: auto; padding: 1rem; }\n"
      "pre { overflow-x: auto; }\nsummary { padding: .3rem 0; }\n"
      "</style>\n<h1>InferScale API</h1>\n"
      "<p>For machines: <a href=\"/openapi.json\">/openapi.json</a>. Fields that are not named "
      "here "
      "are ignored.</p>\n";
  for (const RouteDescription& route : routes) {
    std::string body = "No fields are described.";
    if (!route.details.body_schema_json.empty())
      body = Parsed(route.details.body_schema_json).dump(2);
    page += "<details><summary><code>" + EscapeHtml(route.method + " " + route.pattern) +
            "</code> " + EscapeHtml(route.details.summary) +
            (route.needs_key ? "" : " (no key needed)") + "</summary><pre>" + EscapeHtml(body) +
            "</pre></details>\n";
  }
  return page + "</html>\n";
}

}  // namespace inferscale
