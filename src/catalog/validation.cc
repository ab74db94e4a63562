#include "catalog/validation.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>

#include <nlohmann/json.hpp>

#include "base/clock.h"
#include "base/utf8.h"
#include "kernels/kernels.h"

namespace inferscale::catalog {
namespace {

constexpr int kMaxJsonDepth = 64;
constexpr std::size_t kMaxEmbeddingSize = 65536;
constexpr float kMaxHalf = 65504.0F;

Status CheckTurn(const Turn& turn) {
  INFERSCALE_RETURN_IF_ERROR(CheckText("turn role", turn.role));
  INFERSCALE_RETURN_IF_ERROR(CheckText("turn name", turn.name));
  return CheckText("turn content", turn.content);
}

Status CheckHistoryEntry(const HistoryEntry& entry) {
  constexpr auto kEvents =
      std::to_array<std::string_view>({"ADD", "UPDATE", "DELETE", "SUPERSEDE"});
  if (std::find(kEvents.begin(), kEvents.end(), entry.event) == kEvents.end()) {
    return InvalidArgument("a history entry's event must be ADD, UPDATE, DELETE or SUPERSEDE");
  }
  INFERSCALE_RETURN_IF_ERROR(CheckText("history actor_id", entry.actor_id));
  INFERSCALE_RETURN_IF_ERROR(CheckText("history role", entry.role));
  INFERSCALE_RETURN_IF_ERROR(CheckText("history old text", entry.old_text.value_or("")));
  return CheckText("history new text", entry.new_text.value_or(""));
}

Status CheckFact(const NewFact& item, std::size_t turns) {
  const Fact& fact = item.fact;
  INFERSCALE_RETURN_IF_ERROR(CheckFactText(fact.text));
  INFERSCALE_RETURN_IF_ERROR(CheckText("fact id", fact.id));
  INFERSCALE_RETURN_IF_ERROR(CheckText("fact name", fact.name));
  INFERSCALE_RETURN_IF_ERROR(CheckText("fact role", fact.role));
  INFERSCALE_RETURN_IF_ERROR(CheckText("fact actor_id", fact.actor_id));
  INFERSCALE_RETURN_IF_ERROR(CheckText("fact superseded_by", fact.superseded_by));
  INFERSCALE_RETURN_IF_ERROR(CheckExpirationDate(fact.expiration_date));
  for (const HistoryEntry& entry : item.history) {
    INFERSCALE_RETURN_IF_ERROR(CheckHistoryEntry(entry));
  }
  for (const std::string& id : item.supersedes) {
    INFERSCALE_RETURN_IF_ERROR(CheckText("superseded fact id", id));
  }
  for (const std::int32_t index : item.source_turn_indexes) {
    if (index < 0 || static_cast<std::size_t>(index) >= turns) {
      return InvalidArgument("source turn index " + std::to_string(index) +
                             " is outside the batch, which has " + std::to_string(turns) +
                             " turns");
    }
  }
  return OkStatus();
}

}  // namespace

Status CheckText(std::string_view field, std::string_view text) {
  if (text.size() > kMaxTextBytes) {
    return InvalidArgument(std::string(field) + " has " + std::to_string(text.size()) +
                           " bytes; at most " + std::to_string(kMaxTextBytes) + " are stored");
  }
  if (!IsValidUtf8(text)) {
    return InvalidArgument(std::string(field) + " is not valid UTF-8: convert it first");
  }
  return OkStatus();
}

Status CheckFactText(std::string_view text) {
  INFERSCALE_RETURN_IF_ERROR(CheckText("fact text", text));
  if (TrimWhitespace(text).empty()) {
    return InvalidArgument("fact text is blank: give it some words");
  }
  return OkStatus();
}

Status CheckExpirationDate(std::string_view date) {
  if (date.empty()) return OkStatus();
  const Result<TimeMs> parsed = ParseDate(date);
  return parsed.ok() ? OkStatus() : parsed.status().WithContext("expiration_date");
}

Result<std::string> NormalizeJsonObject(std::string_view field, std::string_view json) {
  INFERSCALE_RETURN_IF_ERROR(CheckText(field, json));
  bool too_deep = false;
  const nlohmann::json::parser_callback_t limit_depth =
      [&](int depth, nlohmann::json::parse_event_t, nlohmann::json&) {
        if (depth > kMaxJsonDepth) too_deep = true;
        return !too_deep;
      };
  const nlohmann::json parsed = nlohmann::json::parse(json, limit_depth, false);
  if (too_deep) {
    return InvalidArgument(std::string(field) + " is nested deeper than " +
                           std::to_string(kMaxJsonDepth) + " levels");
  }
  if (!parsed.is_object()) {
    return InvalidArgument(std::string(field) +
                           " must be a JSON object, such as {\"city\": \"Rome\"}");
  }
  return parsed.dump();
}

Status CheckScope(const Scope& scope) {
  if (!scope.HasOwner()) {
    return InvalidArgument("a scope needs a user, agent, run or app id: there is no shared memory");
  }
  INFERSCALE_RETURN_IF_ERROR(CheckText("tenant", scope.tenant));
  INFERSCALE_RETURN_IF_ERROR(CheckText("user id", scope.user));
  INFERSCALE_RETURN_IF_ERROR(CheckText("agent id", scope.agent));
  INFERSCALE_RETURN_IF_ERROR(CheckText("run id", scope.run));
  return CheckText("app id", scope.app);
}

Status CheckBatch(const IngestBatch& batch) {
  INFERSCALE_RETURN_IF_ERROR(CheckText("embedder id", batch.embedder_id));
  INFERSCALE_RETURN_IF_ERROR(CheckText("event id", batch.event_id));
  for (std::size_t i = 0; i < batch.turns.size(); ++i) {
    const Status status = CheckTurn(batch.turns[i]);
    if (!status.ok()) return status.WithContext("turn " + std::to_string(i));
  }
  for (std::size_t i = 0; i < batch.facts.size(); ++i) {
    const Status status = CheckFact(batch.facts[i], batch.turns.size());
    if (!status.ok()) return status.WithContext("fact " + std::to_string(i));
    if (!batch.facts[i].embedding.empty() && batch.embedder_id.empty()) {
      return InvalidArgument("fact " + std::to_string(i) +
                             " has an embedding, but the batch names no embedder");
    }
  }
  if (batch.extract_later && batch.turns.empty()) {
    return InvalidArgument("there are no turns to extract facts from later");
  }
  return OkStatus();
}

Result<std::vector<std::uint8_t>> EncodeEmbedding(std::span<const float> vector) {
  if (vector.size() > kMaxEmbeddingSize) {
    return InvalidArgument("an embedding of " + std::to_string(vector.size()) +
                           " numbers is too long; at most " + std::to_string(kMaxEmbeddingSize));
  }
  for (std::size_t i = 0; i < vector.size(); ++i) {
    if (!(std::fabs(vector[i]) <= kMaxHalf)) {
      return InvalidArgument("embedding value " + std::to_string(i) + " (" +
                             std::to_string(vector[i]) +
                             ") does not fit 16 bits: normalise the embedding");
    }
  }
  std::vector<std::uint16_t> halves(vector.size());
  kernels::FloatToHalf(vector.data(), halves.data(), halves.size());
  std::vector<std::uint8_t> bytes(halves.size() * sizeof(std::uint16_t));
  if (!bytes.empty()) std::memcpy(bytes.data(), halves.data(), bytes.size());
  return bytes;
}

}  // namespace inferscale::catalog
