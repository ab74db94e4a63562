// ping, and the calls of Mem0 that have no counterpart here: a clear 501 in JSON.

#include <utility>

#include "server/mem0_routes.h"

namespace inferscale::mem0 {
namespace {

Answer Ping(MemoryService&, const ApiCall& call) {
  Item answer;
  answer["status"] = "ok";
  answer["org_id"] = "inferscale";
  answer["project_id"] = call.principal.tenant;
  answer["user_email"] = nullptr;
  return JsonResponse(answer);
}

}  // namespace

void AddRefusedRoutes(Registrar& registrar) {
  registrar.Add("GET", "/v1/ping", kPlatform, Ping);

  const auto refuse = [&](const char* method, const char* pattern, ErrorDialect dialect,
                          const char* what) {
    registrar.Add(method, pattern, dialect, [what](MemoryService&, const ApiCall&) -> Answer {
      return Unsupported(std::string(what) + ": not part of this server");
    });
    RouteDetails details;
    details.summary = "Not part of this server: " + std::string(what);
    details.failures = {501};
    registrar.routes().Describe(method, pattern, std::move(details));
  };
  for (const char* path : {"/auth/setup-status", "/auth/me"}) {
    refuse("GET", path, kServer, "accounts");
  }
  for (const char* path : {"/auth/register", "/auth/login", "/auth/refresh",
                           "/auth/change-password", "/auth/onboarding-complete"}) {
    refuse("POST", path, kServer, "accounts");
  }
  refuse("GET", "/configure", kServer, "configuration over HTTP");
  refuse("POST", "/configure", kServer, "configuration over HTTP");
  refuse("GET", "/configure/providers", kServer, "configuration over HTTP");
  refuse("POST", "/generate-instructions", kServer, "custom instructions");
  refuse("GET", "/requests", kServer, "the list of requests");

  refuse("POST", "/v1/exports", kPlatform, "memory exports");
  refuse("POST", "/v1/exports/get", kPlatform, "memory exports");
  refuse("POST", "/v1/feedback", kPlatform, "feedback");
  refuse("POST", "/v1/summary", kPlatform, "summaries");
  refuse("GET", "/v1/stats", kPlatform, "statistics");
  refuse("GET", "/v2/entities/{type}/{entity_id}/profile", kPlatform, "profiles");
  refuse("POST", "/v2/profiles/jobs", kPlatform, "profiles");
  refuse("GET", "/v2/profiles/jobs/{job_id}", kPlatform, "profiles");
  for (const char* method : {"GET", "POST", "PUT", "PATCH"}) {
    refuse(method, "/v2/profiles/settings", kPlatform, "profiles");
  }
  constexpr const char* kProject = "/api/v1/orgs/organizations/{org_id}/projects/{project_id}";
  for (const char* method : {"GET", "PATCH", "PUT", "DELETE"}) {
    refuse(method, kProject, kPlatform, "projects");
  }
  constexpr const char* kProjects = "/api/v1/orgs/organizations/{org_id}/projects";
  refuse("GET", kProjects, kPlatform, "projects");
  refuse("POST", kProjects, kPlatform, "projects");
  constexpr const char* kMembers =
      "/api/v1/orgs/organizations/{org_id}/projects/{project_id}/members";
  for (const char* method : {"GET", "POST", "PUT", "DELETE"}) {
    refuse(method, kMembers, kPlatform, "projects");
  }
  for (const char* pattern :
       {"/api/v1/webhooks", "/api/v1/webhooks/{id}", "/api/v1/webhooks/projects/{id}"}) {
    for (const char* method : {"GET", "POST", "PUT", "DELETE"}) {
      refuse(method, pattern, kPlatform, "webhooks");
    }
  }
}

}  // namespace inferscale::mem0
