// What /openapi.json says of Mem0's calls.

#include <array>
#include <string>

#include "server/mem0_routes.h"

namespace inferscale::mem0 {
namespace {

constexpr const char* kAdd = R"({"type":"object","required":["messages"],"properties":{
"messages":{"description":"text, a message or a list of messages","oneOf":[{"type":"string"},
{"type":"object"},{"type":"array","minItems":1,"items":{"type":"object","required":["content"],
"properties":{"role":{"type":"string"},"content":{},"name":{"type":"string"}}}}]},
"user_id":{"type":"string"},"agent_id":{"type":"string"},"app_id":{"type":"string"},
"run_id":{"type":"string"},"filters":{"type":"object"},"metadata":{"type":"object"},
"infer":{"type":"boolean"},"timestamp":{"type":"number"},"expiration_date":{"type":"string","format":"date"},
"async_mode":{"type":"boolean"}}})";
constexpr const char* kSearch = R"({"type":"object","required":["query"],"properties":{
"query":{"type":"string"},"filters":{"type":"object"},"user_id":{"type":"string"},
"agent_id":{"type":"string"},"app_id":{"type":"string"},"run_id":{"type":"string"},
"top_k":{"type":"integer","minimum":0,"maximum":1000},
"threshold":{"type":"number","minimum":0,"maximum":1},"metadata":{"type":"object"},
"categories":{"type":"array","items":{"type":"string"}},
"fields":{"type":"array","items":{"type":"string"}},
"show_expired":{"type":"boolean"},"explain":{"type":"boolean"}}})";
constexpr const char* kList = R"({"type":"object","properties":{"filters":{"type":"object"},
"page":{"type":"integer","minimum":1},"page_size":{"type":"integer","minimum":1,"maximum":1000},
"start_date":{"type":"string","format":"date"},"end_date":{"type":"string","format":"date"},
"categories":{"type":"array","items":{"type":"string"}},
"keywords":{"type":"array","items":{"type":"string"}},
"fields":{"type":"array","items":{"type":"string"}},
"show_expired":{"type":"boolean"},"latest_only":{"type":"boolean"}}})";
constexpr const char* kUpdate = R"({"type":"object","properties":{"text":{"type":"string"},
"metadata":{"type":"object"},"timestamp":{"type":"number"},
"expiration_date":{"type":["string","null"],"format":"date"}}})";
constexpr const char* kBatch = R"({"type":"object","required":["memories"],"properties":{
"memories":{"type":"array","minItems":1,"maxItems":1000,"items":{"type":"object",
"required":["memory_id"],"properties":{"memory_id":{"type":"string"},"text":{"type":"string"},
"metadata":{"type":"object"}}}}}})";

// Query strings.
constexpr const char* kOwnerQuery = R"({"user_id":{"type":"string"},"agent_id":{"type":"string"},
"app_id":{"type":"string"},"run_id":{"type":"string"}})";
constexpr const char* kErasureQuery = R"({"user_id":{"type":"string"},"agent_id":{"type":"string"},
"app_id":{"type":"string"},"run_id":{"type":"string"},
"filters":{"type":"string","description":"JSON, or what Python prints of a dict"}})";
constexpr const char* kServerListQuery = R"({"user_id":{"type":"string"},
"agent_id":{"type":"string"},"app_id":{"type":"string"},"run_id":{"type":"string"},
"top_k":{"type":"integer","minimum":0,"maximum":1000},"show_expired":{"type":"boolean"}})";
constexpr const char* kListQuery = R"({"user_id":{"type":"string"},"agent_id":{"type":"string"},
"app_id":{"type":"string"},"run_id":{"type":"string"},
"filters":{"type":"string","description":"JSON, or what Python prints of a dict"},
"page":{"type":"integer","minimum":1},"page_size":{"type":"integer","minimum":1,"maximum":1000},
"start_date":{"type":"string","format":"date"},"end_date":{"type":"string","format":"date"},"show_expired":{"type":"boolean"},
"latest_only":{"type":"boolean"}})";
constexpr const char* kPageQuery = R"({"page":{"type":"integer","minimum":1},
"page_size":{"type":"integer","minimum":1,"maximum":1000}})";
constexpr const char* kDeleteQuery = R"({"delete_linked":{"type":"boolean",
"description":"also what the memory contradicted"}})";

struct Description {
  const char *method, *pattern, *summary;
  const char* schema = "";
  const char* query = "";
};

constexpr auto kAdds = std::to_array<Description>({
    {"POST", "/v3/memories/add", "Adds memories; without infer=false in the background", kAdd},
    {"POST", "/v1/memories", "The same, answered with a list", kAdd},
    {"POST", "/memories", "Adds memories and answers when they are there", kAdd},
});

/// Of the platform's paths, below each of its versions.
constexpr auto kVersioned = std::to_array<Description>({
    {"POST", "/memories/search", "Searches an owner's memories", kSearch},
    {"GET", "/memories", "Lists an owner's memories by pages", "", kListQuery},
    {"GET", "/memories/{memory_id}", "One memory"},
    {"PUT", "/memories/{memory_id}", "Changes a memory", kUpdate},
    {"DELETE", "/memories/{memory_id}", "Deletes a memory", "", kDeleteQuery},
    {"GET", "/memories/{memory_id}/history", "What became of a memory"},
    {"DELETE", "/memories", "Deletes all memories of the owner in the query string", "",
     kErasureQuery},
    {"GET", "/entities", "Users, agents, apps and runs that have memories", "", kPageQuery},
    {"DELETE", "/entities/{type}/{entity_id}", "Deletes the memories of one of them"},
});

constexpr auto kOthers = std::to_array<Description>({
    {"POST", "/v2/memories", "Lists an owner's memories by pages", kList, kPageQuery},
    {"POST", "/v3/memories", "Lists an owner's memories by pages", kList, kPageQuery},
    {"PUT", "/v1/batch", "Changes up to 1,000 memories", kBatch},
    {"DELETE", "/v1/batch", "Deletes up to 1,000 memories", kBatch},
    {"GET", "/v1/event/{event_id}", "State of an add: PENDING, RUNNING, SUCCEEDED or FAILED"},
    {"GET", "/v1/events/{event_id}", "The same"},
    {"GET", "/v1/ping", "Whom the API key belongs to"},
    {"GET", "/memories", "Lists memories; without an owner for admins", "", kServerListQuery},
    {"GET", "/memories/{memory_id}", "One memory, or null"},
    {"PUT", "/memories/{memory_id}", "Changes a memory", kUpdate},
    {"DELETE", "/memories/{memory_id}", "Deletes a memory", "", kDeleteQuery},
    {"GET", "/memories/{memory_id}/history", "What became of a memory"},
    {"DELETE", "/memories", "Deletes all memories of the owner in the query string", "",
     kOwnerQuery},
    {"POST", "/search", "Searches an owner's memories", kSearch},
    {"GET", "/entities", "Users, agents, apps and runs that have memories"},
    {"DELETE", "/entities/{type}/{entity_id}", "Deletes the memories of one of them"},
    {"POST", "/reset", "Deletes all memories of the tenant; for admins"},
});

RouteDetails DetailsOf(const Description& description) {
  RouteDetails details;
  details.summary = description.summary;
  details.body_schema_json = description.schema;
  details.query_schema_json = description.query;
  return details;
}

}  // namespace

void DescribeRoutes(Routes& routes) {
  for (const Description& each : kAdds) {
    RouteDetails details = DetailsOf(each);
    details.failures = {501, 502};  // procedural memories; a failing extractor
    routes.Describe(each.method, each.pattern, std::move(details));
  }
  for (const char* version : {"/v1", "/v2", "/v3"}) {
    for (const Description& each : kVersioned) {
      routes.Describe(each.method, std::string(version) + each.pattern, DetailsOf(each));
    }
  }
  for (const Description& each : kOthers) {
    routes.Describe(each.method, each.pattern, DetailsOf(each));
  }
}

}  // namespace inferscale::mem0
