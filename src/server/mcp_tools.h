#ifndef INFERSCALE_SERVER_MCP_TOOLS_H_
#define INFERSCALE_SERVER_MCP_TOOLS_H_

/// \file mcp_tools.h
/// The tools that /mcp offers, by the names and arguments of Mem0's own MCP server. Each is a call
/// of Mem0's API in other words and does nothing by itself. Thread-safe.

#include <string>
#include <string_view>

#include <nlohmann/json.hpp>

#include "server/server.h"

namespace inferscale::mcp {

/// The call of Mem0's API that a tool's arguments mean.
struct Mem0Call {
  nlohmann::json body;  ///< null: none
  NameValues query;
  PathParameters parameters;
};

struct Tool {
  const char *name, *title, *description;
  const char *input_schema, *output_schema;  ///< JSON
  const char *method, *pattern;              ///< the route that does it
  bool read_only = false, destructive = false, idempotent = false;
  /// \param owner whose memories, where the arguments name nobody: ids as in a body; may be empty
  Result<Mem0Call> (*translate)(const nlohmann::json& arguments, const nlohmann::json& owner);
};

/// nullptr: there is none of that name.
const Tool* FindTool(std::string_view name);
/// As tools/list answers: always in the same order.
nlohmann::ordered_json ToolList();

/// A CallToolResult of the answer to a tool's Mem0Call; errors are results that say so, for the
/// model to read.
nlohmann::ordered_json ToolResult(const HttpResponse& response);
nlohmann::ordered_json ToolError(const std::string& message);

/// "METHOD pattern" of a route that a tool needs and that is not there; empty: none.
std::string MissingRoute(const Routes& routes);

}  // namespace inferscale::mcp

#endif  // INFERSCALE_SERVER_MCP_TOOLS_H_
