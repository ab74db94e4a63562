#include "compose/conversation_hash.h"

#include "base/hash.h"

namespace inferscale {

std::string ConversationHash(std::span<const ChatMessage> messages) {
  std::string text;
  for (const ChatMessage& message : messages) {
    for (const std::string* part : {&message.role, &message.name, &message.content}) {
      text += std::to_string(part->size());
      text += ':';
      text += *part;
    }
  }
  return HexEncode(Sha256(text));
}

}  // namespace inferscale
