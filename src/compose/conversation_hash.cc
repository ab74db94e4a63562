#include "compose/conversation_hash.h"

#include "base/hash.h"

namespace inferscale {

std::string ConversationHash(std::span<const ChatMessage> messages, const ToolFormat* tools) {
  std::string text;
  const auto add = [&](const std::string& part) {
    text += std::to_string(part.size());
    text += ':';
    text += part;
  };
  for (const ChatMessage& message : messages) {
    add(message.role);
    add(message.name);
    add(message.content);
    if (!message.tool_call_id.empty()) add("answers " + message.tool_call_id);
    for (const ToolCall& call : message.tool_calls) {
      text += "call";
      add(call.id);
      add(call.name);
      add(call.arguments);
    }
  }
  if (tools != nullptr) {
    for (const ToolUse::Tool& tool : tools->use().tools) {
      text += "tool";
      add(tool.name);
      add(tool.description);
      add(tool.parameters_json);
    }
  }
  return HexEncode(Sha256(text));
}

}  // namespace inferscale
