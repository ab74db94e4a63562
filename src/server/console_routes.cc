// The web console: one page, its style and its scripts, all from this server. The page holds no
// data: what it shows it asks for with the key that its user typed.

#include <array>
#include <string>
#include <utility>

#include "server/console_files.h"
#include "server/server.h"

namespace inferscale {
namespace {

// Nothing inline, nothing from elsewhere, no frame of another page.
constexpr const char* kPolicy =
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'; require-trusted-types-for "
    "'script'; trusted-types 'none'";

struct Asset {
  const char *path, *file, *content_type;
};

constexpr auto kAssets = std::to_array<Asset>({
    {"/", "index.html", "text/html; charset=utf-8"},
    {"/console/console.css", "console.css", "text/css; charset=utf-8"},
    {"/console/icon.svg", "icon.svg", "image/svg+xml"},
    {"/console/main.js", "main.js", "text/javascript; charset=utf-8"},
    {"/console/api.js", "api.js", "text/javascript; charset=utf-8"},
    {"/console/chat.js", "chat.js", "text/javascript; charset=utf-8"},
    {"/console/elements.js", "elements.js", "text/javascript; charset=utf-8"},
    {"/console/memories.js", "memories.js", "text/javascript; charset=utf-8"},
});

}  // namespace

void AddConsoleRoutes(Routes& routes, const std::shared_ptr<ApiContext>&) {
  for (const Asset& asset : kAssets) {
    routes.AddPublic("GET", asset.path, [asset](ApiCall& call) {
      HttpResponse response;
      response.content_type = asset.content_type;
      response.headers = {{"Content-Security-Policy", kPolicy},
                          {"Referrer-Policy", "no-referrer"},
                          {"Cross-Origin-Opener-Policy", "same-origin"},
                          {"Cross-Origin-Resource-Policy", "same-origin"},
                          {"Cache-Control", "no-cache"}};
      response.body = ConsoleFile(asset.file);
      call.exchange->Respond(std::move(response));
    });
    RouteDetails details;
    details.summary = "The web console";
    details.answer_type = asset.content_type;
    details.answer_type = details.answer_type.substr(0, details.answer_type.find(';'));
    routes.Describe("GET", asset.path, std::move(details));
  }
}

}  // namespace inferscale
