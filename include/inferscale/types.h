#ifndef INFERSCALE_TYPES_H_
#define INFERSCALE_TYPES_H_

/// \file types.h
/// The data model of memory: scopes, turns, facts. Plain values without behaviour; thread-safety is
/// that of their members. All strings are UTF-8. All times are milliseconds since the Unix epoch,
/// UTC.

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

namespace inferscale {

using TokenId = std::int32_t;
using TokenIds = std::vector<TokenId>;
using TimeMs = std::int64_t;

/// Who owns a fact. A scope with no id at all is invalid: there is no shared default.
struct Scope {
  std::string tenant = "default";
  std::string user;  ///< Mem0's user_id; empty: not part of this scope. The same for the others.
  std::string agent;
  std::string run;
  std::string app;

  bool HasOwner() const { return !(user.empty() && agent.empty() && run.empty() && app.empty()); }
  bool operator==(const Scope&) const = default;
};

/// Row id of a scope in the catalog; stable for the life of a data folder, never reused.
using ScopeId = std::int64_t;
/// Row id of a turn in the catalog.
using TurnId = std::int64_t;

/// One message of a conversation, as given.
struct Turn {
  TurnId id = 0;
  std::string role;     ///< "user", "assistant", "system", "tool"
  std::string name;     ///< who speaks; may be empty
  std::string content;  ///< text parts joined by a line break; media is left out
  TimeMs time_ms = 0;   ///< when it was said
};

/// One memory. `text` is kept byte for byte.
struct Fact {
  std::string id;  ///< UUID, the one id of text, embedding, keyword row and KV
  ScopeId scope_id = 0;
  std::string text;
  std::string name;                  ///< whom it is about, as served; empty: the scope's name
  std::string role;                  ///< role of the source message; may be empty
  std::string actor_id;              ///< `name` field of the source message (Mem0's actor_id)
  std::string metadata_json = "{}";  ///< a JSON object
  TimeMs event_time_ms = 0;          ///< the date it is served with; 0: none
  TimeMs created_at_ms = 0;
  TimeMs updated_at_ms = 0;
  std::string expiration_date;  ///< "YYYY-MM-DD" or empty
  std::string superseded_by;    ///< id of the newer fact that contradicts this one, or empty
  std::int64_t version = 1;     ///< raised by each update
  std::vector<TurnId> source_turns;
};

/// Identity of one KV block: the first 128 bits of an HMAC-SHA-256 (see kv_store.h).
struct KvKey {
  std::array<std::uint8_t, 16> bytes{};

  bool operator==(const KvKey&) const = default;
  auto operator<=>(const KvKey&) const = default;
};

}  // namespace inferscale

template <>
struct std::hash<inferscale::KvKey> {
  std::size_t operator()(const inferscale::KvKey& key) const noexcept {
    // The bytes are already uniformly distributed: the first eight are a hash.
    std::size_t value = 0;
    for (std::size_t i = 0; i < sizeof(value); ++i) value = value << 8 | key.bytes[i];
    return value;
  }
};

#endif  // INFERSCALE_TYPES_H_
