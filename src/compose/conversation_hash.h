#ifndef INFERSCALE_COMPOSE_CONVERSATION_HASH_H_
#define INFERSCALE_COMPOSE_CONVERSATION_HASH_H_

#include <span>
#include <string>

#include "inferscale/engine.h"

namespace inferscale {

/// Name of a conversation so far in the ledger: SHA-256 over roles, names, texts, calls and the
/// tools that its prompt names, each length-prefixed. Edited or branched history has another hash
/// and misses cleanly. \param tools null: none
std::string ConversationHash(std::span<const ChatMessage> messages,
                             const ToolFormat* tools = nullptr);

}  // namespace inferscale

#endif  // INFERSCALE_COMPOSE_CONVERSATION_HASH_H_
