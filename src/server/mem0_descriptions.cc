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
"infer":{"type":"boolean"},"timestamp":{"type":"number"},"expiration_date":{"type":"string"},
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
"start_date":{"type":"string"},"end_date":{"type":"string"},
"categories":{"type":"array","items":{"type":"string"}},
"keywords":{"type":"array","items":{"type":"string"}},
"fields":{"type":"array","items":{"type":"string"}},
"show_expired":{"type":"boolean"},"latest_only":{"type":"boolean"}}})";
constexpr const char* kUpdate = R"({"type":"object","properties":{"text":{"type":"string"},
"metadata":{"type":"object"},"timestamp":{"type":"number"},
"expiration_date":{"type":["string","null"]}}})";
constexpr const char* kBatch = R"({"type":"object","required":["memories"],"properties":{
"memories":{"type":"array","minItems":1,"maxItems":1000,"items":{"type":"object",
"required":["memory_id"],"properties":{"memory_id":{"type":"string"},"text":{"type":"string"},
"metadata":{"type":"object"}}}}}})";

struct Description {
  const char *method, *pattern, *summary;
  const char* schema = "";
};

constexpr auto kDescriptions = std::to_array<Description>({
    {"POST", "/v3/memories/add", "Adds memories; without infer=false in the background", kAdd},
    {"POST", "/v3/memories/search", "Searches an owner's memories", kSearch},
    {"POST", "/v3/memories", "Lists an owner's memories by pages", kList},
    {"GET", "/v1/memories/{memory_id}", "One memory"},
    {"PUT", "/v1/memories/{memory_id}", "Changes a memory", kUpdate},
    {"DELETE", "/v1/memories/{memory_id}", "Deletes a memory"},
    {"GET", "/v1/memories/{memory_id}/history", "What became of a memory"},
    {"DELETE", "/v1/memories", "Deletes all memories of the owner in the query string"},
    {"PUT", "/v1/batch", "Changes up to 1,000 memories", kBatch},
    {"DELETE", "/v1/batch", "Deletes up to 1,000 memories", kBatch},
    {"GET", "/v1/entities", "Users, agents, apps and runs that have memories"},
    {"DELETE", "/v2/entities/{type}/{entity_id}", "Deletes the memories of one of them"},
    {"GET", "/v1/event/{event_id}", "State of an add: PENDING, RUNNING, SUCCEEDED or FAILED"},
    {"GET", "/v1/ping", "Whom the API key belongs to"},
    {"POST", "/memories", "Adds memories and answers when they are there", kAdd},
    {"GET", "/memories", "Lists memories; without an owner for admins"},
    {"GET", "/memories/{memory_id}", "One memory, or null"},
    {"PUT", "/memories/{memory_id}", "Changes a memory", kUpdate},
    {"DELETE", "/memories/{memory_id}", "Deletes a memory"},
    {"GET", "/memories/{memory_id}/history", "What became of a memory"},
    {"DELETE", "/memories", "Deletes all memories of the owner in the query string"},
    {"POST", "/search", "Searches an owner's memories", kSearch},
    {"GET", "/entities", "Users, agents, apps and runs that have memories"},
    {"DELETE", "/entities/{type}/{entity_id}", "Deletes the memories of one of them"},
    {"POST", "/reset", "Deletes all memories of the tenant; for admins"},
});

}  // namespace

void DescribeRoutes(Routes& routes) {
  for (const Description& each : kDescriptions) {
    routes.Describe(each.method, each.pattern, each.summary, each.schema);
  }
}

}  // namespace inferscale::mem0
