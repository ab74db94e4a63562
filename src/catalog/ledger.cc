#include <cstring>

#include <nlohmann/json.hpp>

#include "base/bytes.h"
#include "base/hash.h"
#include "catalog/catalog_rows.h"
#include "catalog/sqlite_catalog.h"
#include "catalog/validation.h"

namespace inferscale::catalog {
namespace {

constexpr std::size_t kMaxIds = std::size_t{1} << 24;

Status CheckEntry(const LedgerEntry& entry) {
  INFERSCALE_RETURN_IF_ERROR(CheckText("encoding id", entry.encoding_id));
  const std::size_t size = entry.ids.size();
  if (size > kMaxIds) {
    return InvalidArgument("a conversation of " + std::to_string(size) + " tokens is too long");
  }
  if (entry.messages < 0 || entry.prefix_tokens < 0 ||
      static_cast<std::size_t>(entry.prefix_tokens) > size) {
    return InvalidArgument("a ledger entry counts more prefix tokens than it has, or below zero");
  }
  for (const LedgerEntry::Placement& placed : entry.facts) {
    INFERSCALE_RETURN_IF_ERROR(CheckText("fact id", placed.fact_id));
    if (placed.begin < 0 || placed.end < placed.begin ||
        static_cast<std::size_t>(placed.end) > size) {
      return InvalidArgument("a ledger entry places a fact at tokens " +
                             std::to_string(placed.begin) + " to " + std::to_string(placed.end) +
                             " of " + std::to_string(size));
    }
  }
  return OkStatus();
}

std::vector<std::uint8_t> EncodeIds(const TokenIds& ids) {
  ByteWriter writer;
  writer.Reserve(ids.size() * sizeof(TokenId));
  for (const TokenId id : ids) writer.WriteI32(id);
  return writer.Take();
}

TokenIds DecodeIds(const std::vector<std::uint8_t>& bytes) {
  ByteReader reader(bytes);
  TokenIds ids(bytes.size() / sizeof(TokenId));
  for (TokenId& id : ids) id = reader.ReadI32();
  return ids;
}

std::string EncodePlacements(const std::vector<LedgerEntry::Placement>& facts) {
  nlohmann::json list = nlohmann::json::array();
  for (const LedgerEntry::Placement& placed : facts) {
    list.push_back(
        {placed.fact_id, placed.version, HexEncode(placed.key.bytes), placed.begin, placed.end});
  }
  return list.dump();
}

Result<std::vector<LedgerEntry::Placement>> DecodePlacements(const std::string& text) {
  std::vector<LedgerEntry::Placement> facts;
  // A wrong type throws, which the border turns into a status.
  for (const nlohmann::json& item : nlohmann::json::parse(text)) {
    LedgerEntry::Placement placed;
    placed.fact_id = item.at(0).get<std::string>();
    placed.version = item.at(1).get<std::int64_t>();
    INFERSCALE_ASSIGN_OR_RETURN(const std::vector<std::uint8_t> bytes,
                                HexDecode(item.at(2).get<std::string>()));
    const auto key = KeyFromBlob(bytes);
    if (!key) return DataLoss("a KV key of the ledger has another length than 16 bytes");
    placed.key = *key;
    placed.begin = item.at(3).get<std::int32_t>();
    placed.end = item.at(4).get<std::int32_t>();
    facts.push_back(std::move(placed));
  }
  return facts;
}

/// Whether the entry was composed of what is still true. One that was under way while a fact was
/// deleted or forgotten would bring its tokens back.
bool IsCurrent(Connection& connection, ScopeId scope, const LedgerEntry& entry) {
  Query epoch(connection, "SELECT epoch FROM scopes WHERE id = ?");
  if (!epoch.Bind(scope).Step() || static_cast<std::uint64_t>(epoch.Integer(0)) != entry.epoch) {
    return false;
  }
  for (const LedgerEntry::Placement& placed : entry.facts) {
    Query fact(connection, "SELECT 1 FROM facts WHERE id = ? AND version = ?");
    if (!fact.Bind(placed.fact_id).Bind(placed.version).Step()) return false;
  }
  return true;
}

}  // namespace

Status SqliteCatalog::PutLedger(ScopeId scope, const std::string& prefix_hash,
                                const LedgerEntry& entry) {
  INFERSCALE_RETURN_IF_ERROR(CheckText("prefix hash", prefix_hash));
  INFERSCALE_RETURN_IF_ERROR(CheckEntry(entry));
  const std::vector<std::uint8_t> ids = EncodeIds(entry.ids);
  const std::string placements = EncodePlacements(entry.facts);
  const TimeMs now = Now();
  return Write([&](Connection& connection) -> Status {
    INFERSCALE_RETURN_IF_ERROR(CheckScopeExists(connection, scope));
    Query(connection, "DELETE FROM ledger WHERE put_at_ms < ?")
        .Bind(now - options_.ledger_lifetime_ms)
        .Run();
    Query(connection, "DELETE FROM ledger WHERE scope_id = ? AND prefix_hash = ?")
        .Bind(scope)
        .Bind(prefix_hash)
        .Run();
    if (!IsCurrent(connection, scope, entry)) return OkStatus();
    Query(connection,
          "INSERT INTO ledger(scope_id, prefix_hash, ids, placements, messages, prefix_tokens, "
          "epoch, encoding_id, prefix_key, put_at_ms) VALUES(?, ?, ?, ?, ?, ?, ?, ?, ?, ?)")
        .Bind(scope)
        .Bind(prefix_hash)
        .Bind(ids)
        .Bind(placements)
        .Bind(entry.messages)
        .Bind(entry.prefix_tokens)
        .Bind(entry.epoch)
        .Bind(entry.encoding_id)
        .Bind(std::span<const std::uint8_t>(entry.prefix_key.bytes))
        .Bind(now)
        .Run();
    const std::int64_t id = connection.LastInsertRow();
    for (const LedgerEntry::Placement& placed : entry.facts) {
      Query(connection, "INSERT OR IGNORE INTO ledger_facts(fact_id, ledger_id) VALUES(?, ?)")
          .Bind(placed.fact_id)
          .Bind(id)
          .Run();
    }
    return OkStatus();
  });
}

Result<std::optional<LedgerEntry>> SqliteCatalog::GetLedger(ScopeId scope,
                                                            const std::string& prefix_hash) {
  return Read([&](Connection& connection) -> Result<std::optional<LedgerEntry>> {
    Query query(connection,
                "SELECT ids, placements, messages, prefix_tokens, epoch, encoding_id, prefix_key "
                "FROM ledger WHERE scope_id = ? AND prefix_hash = ? AND put_at_ms >= ?");
    query.Bind(scope).Bind(prefix_hash).Bind(Now() - options_.ledger_lifetime_ms);
    if (!query.Step()) return std::optional<LedgerEntry>();
    LedgerEntry entry;
    entry.ids = DecodeIds(query.Blob(0));
    INFERSCALE_ASSIGN_OR_RETURN(entry.facts, DecodePlacements(query.Text(1)));
    entry.messages = static_cast<std::int32_t>(query.Integer(2));
    entry.prefix_tokens = static_cast<std::int32_t>(query.Integer(3));
    entry.epoch = static_cast<std::uint64_t>(query.Integer(4));
    entry.encoding_id = query.Text(5);
    if (const auto key = KeyFromBlob(query.Blob(6))) entry.prefix_key = *key;
    return std::optional<LedgerEntry>(std::move(entry));
  });
}

}  // namespace inferscale::catalog
