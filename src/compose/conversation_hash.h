#ifndef INFERSCALE_COMPOSE_CONVERSATION_HASH_H_
#define INFERSCALE_COMPOSE_CONVERSATION_HASH_H_

#include <span>
#include <string>

#include "inferscale/engine.h"

namespace inferscale {

/// Name of a conversation so far in the ledger: SHA-256 over roles, names and texts, each
/// length-prefixed. Edited or branched history has another hash and misses cleanly.
std::string ConversationHash(std::span<const ChatMessage> messages);

}  // namespace inferscale

#endif  // INFERSCALE_COMPOSE_CONVERSATION_HASH_H_
