#ifndef INFERSCALE_SERVER_TOOL_REQUEST_H_
#define INFERSCALE_SERVER_TOOL_REQUEST_H_

/// \file tool_request.h
/// The parts of a chat request that are about tools. Wrong ones are kInvalidArgument with the
/// field's name, known ones that cannot be done kUnsupported. Free functions; thread-safe.

#include <memory>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "inferscale/engine.h"

namespace inferscale {

/// `tools`, `tool_choice`, `parallel_tool_calls`. nullptr: the answer may call nothing, and no
/// message has calls.
Result<std::shared_ptr<const ToolFormat>> ToolsOf(const nlohmann::json& body,
                                                  const std::vector<ChatMessage>& messages,
                                                  const Engine& engine);

/// `tool_calls` of an assistant's message.
Result<std::vector<ToolCall>> ToolCallsOf(const nlohmann::json& message, const std::string& where);

/// Every result answers a call of the assistant's message in front of it.
Status CheckToolResults(const std::vector<ChatMessage>& messages);

}  // namespace inferscale

#endif  // INFERSCALE_SERVER_TOOL_REQUEST_H_
