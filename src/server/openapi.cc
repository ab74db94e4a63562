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

ordered_json Operation(const RouteDescription& route) {
  ordered_json operation = ordered_json::object();
  if (!route.summary.empty()) operation["summary"] = route.summary;
  ordered_json parameters = ordered_json::array();
  for (const std::string& name : ParameterNames(route.pattern)) {
    parameters.push_back({{"name", name},
                          {"in", "path"},
                          {"required", true},
                          {"schema", {{"type", "string"}, {"minLength", 1}}}});
  }
  if (!parameters.empty()) operation["parameters"] = std::move(parameters);
  const bool has_body = !route.body_schema_json.empty() || route.method == "POST" ||
                        route.method == "PUT" || route.method == "PATCH";
  if (has_body) {
    ordered_json schema = route.body_schema_json.empty()
                              ? ordered_json{{"type", "object"}}
                              : ordered_json::parse(route.body_schema_json, nullptr, false);
    operation["requestBody"]["content"]["application/json"]["schema"] = std::move(schema);
  }
  operation["responses"] = {{"2XX", {{"description", "done"}}},
                            {"4XX", {{"description", "the request is wrong; says what"}}},
                            {"default", {{"description", "an error"}}}};
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
    if (!route.body_schema_json.empty())
      body = ordered_json::parse(route.body_schema_json, nullptr, false).dump(2);
    page += "<details><summary><code>" + EscapeHtml(route.method + " " + route.pattern) +
            "</code> " + EscapeHtml(route.summary) + (route.needs_key ? "" : " (no key needed)") +
            "</summary><pre>" + EscapeHtml(body) + "</pre></details>\n";
  }
  return page + "</html>\n";
}

}  // namespace inferscale
