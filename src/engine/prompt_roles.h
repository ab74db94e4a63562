#ifndef INFERSCALE_ENGINE_PROMPT_ROLES_H_
#define INFERSCALE_ENGINE_PROMPT_ROLES_H_

/// \file prompt_roles.h
/// What the renderers share.

#include <cstdio>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "inferscale/engine.h"

namespace inferscale {

inline constexpr std::size_t kMaxMessages = 9999;
inline constexpr std::size_t kMaxCachedSkeletons = 256;

inline constexpr std::string_view kSentinelHead = "QzTextOfMessage";
inline constexpr std::size_t kSentinelDigits = 4;

/// What stands for a message's text in a rendering. Letters and digits only: no template trims,
/// escapes or recognises it.
inline std::string Sentinel(std::size_t index) {
  char text[64];
  std::snprintf(text, sizeof(text), "%s%04zuzQ", kSentinelHead.data(), index);
  return text;
}

inline std::string NormalizedRole(const std::string& role) {
  return role == "developer" ? "system" : role;
}

/// The messages' roles, checked.
inline Result<std::vector<std::string>> RolesOf(std::span<const ChatMessage> messages) {
  if (messages.empty()) return InvalidArgument("a conversation needs at least one message");
  if (messages.size() > kMaxMessages) {
    return InvalidArgument("a conversation may have at most " + std::to_string(kMaxMessages) +
                           " messages");
  }
  std::vector<std::string> roles;
  for (const ChatMessage& message : messages) {
    if (message.role.empty() || message.role.size() > 64) {
      return InvalidArgument("a message has no role, or one longer than 64 bytes");
    }
    roles.push_back(NormalizedRole(message.role));
  }
  return roles;
}

}  // namespace inferscale

#endif  // INFERSCALE_ENGINE_PROMPT_ROLES_H_
