#include <charconv>
#include <map>

#include "catalog/catalog_rows.h"
#include "catalog/sqlite_catalog.h"
#include "catalog/validation.h"

namespace inferscale::catalog {
namespace {

constexpr std::string_view kTurnPrefix = "turn:";
// The encode queue. Superseded facts are never injected, so they need no KV.
constexpr std::string_view kWithoutKv =
    " FROM facts WHERE superseded_by = '' AND NOT EXISTS (SELECT 1 FROM kv_records WHERE "
    "kv_records.fact_row = facts.row AND kv_records.encoding = ? AND kv_records.ready)";

bool StillThere(Connection& connection, std::string_view saw) {
  if (!saw.starts_with(kTurnPrefix)) {
    Query query(connection, "SELECT 1 FROM facts WHERE id = ?");
    return query.Bind(saw).Step();
  }
  const std::string_view digits = saw.substr(kTurnPrefix.size());
  TurnId id = 0;
  const auto parsed = std::from_chars(digits.data(), digits.data() + digits.size(), id);
  if (parsed.ec != std::errc() || parsed.ptr != digits.data() + digits.size()) return false;
  Query query(connection, "SELECT 1 FROM turns WHERE id = ?");
  return query.Bind(id).Step();
}

bool AllStillThere(Connection& connection, const std::vector<std::string>& saw) {
  for (const std::string& item : saw) {
    if (!StillThere(connection, item)) return false;
  }
  return true;
}

Status CheckRecord(const KvRecord& record) {
  INFERSCALE_RETURN_IF_ERROR(CheckText("encoding id", record.encoding_id));
  if (record.encoding_id.empty()) return InvalidArgument("a KV record names no encoding");
  for (const std::string& saw : record.saw) INFERSCALE_RETURN_IF_ERROR(CheckText("saw", saw));
  return CheckText("fact id", record.fact_id);
}

std::vector<std::string> ReadSaw(Connection& connection, std::int64_t record) {
  Query query(connection, "SELECT saw FROM kv_saw WHERE record = ? ORDER BY saw");
  query.Bind(record);
  std::vector<std::string> saw;
  while (query.Step()) saw.push_back(query.Text(0));
  return saw;
}

}  // namespace

Result<std::vector<Fact>> SqliteCatalog::FactsWithoutKv(const std::string& encoding_id,
                                                        std::int32_t limit) {
  if (limit <= 0) return std::vector<Fact>();
  static const std::string kSql = "SELECT " + std::string(kFactColumns) + std::string(kWithoutKv) +
                                  " ORDER BY facts.row LIMIT ?";
  return Read([&](Connection& connection) -> Result<std::vector<Fact>> {
    Query query(connection, kSql);
    query.Bind(FindName(connection, encoding_id).value_or(0)).Bind(limit);
    std::vector<Fact> facts;
    while (query.Step()) facts.push_back(ReadFact(query));
    return facts;
  });
}

Result<std::int64_t> SqliteCatalog::CountFactsWithoutKv(const std::string& encoding_id) {
  static const std::string kSql = "SELECT count(*)" + std::string(kWithoutKv);
  return Read([&](Connection& connection) -> Result<std::int64_t> {
    Query query(connection, kSql);
    query.Bind(FindName(connection, encoding_id).value_or(0)).Step();
    return query.Integer(0);
  });
}

Result<std::vector<KvRecord>> SqliteCatalog::RecordKv(std::span<const KvRecord> records) {
  for (const KvRecord& record : records) INFERSCALE_RETURN_IF_ERROR(CheckRecord(record));
  return Write([&](Connection& connection) -> Result<std::vector<KvRecord>> {
    std::vector<KvRecord> kept;
    std::map<ScopeId, Erasure> replaced;
    for (const KvRecord& record : records) {
      Query fact(connection,
                 "SELECT facts.row, scopes.id, scopes.tag, scopes.epoch FROM facts JOIN scopes ON "
                 "scopes.id = facts.scope_id WHERE facts.id = ? AND version = ?");
      if (!fact.Bind(record.fact_id).Bind(record.fact_version).Step()) continue;
      if (!AllStillThere(connection, record.saw)) continue;
      const std::int64_t row = fact.Integer(0);
      const std::int64_t encoding = InternName(connection, record.encoding_id);

      // A block encoded anew behind something else leaves the old one to be erased.
      Query other(
          connection,
          "SELECT id, key FROM kv_records WHERE fact_row = ? AND encoding = ? AND key <> ?");
      other.Bind(row).Bind(encoding).Bind(std::span<const std::uint8_t>(record.key.bytes));
      std::vector<KvKey> old_keys;
      TakeKv(connection, other, old_keys);
      if (!old_keys.empty()) {
        Erasure& erasure = replaced[fact.Integer(1)];
        erasure.scope_tag = static_cast<std::uint64_t>(fact.Integer(2));
        erasure.epoch = static_cast<std::uint64_t>(fact.Integer(3));
        erasure.keys.insert(erasure.keys.end(), old_keys.begin(), old_keys.end());
      }

      Query(connection, "DELETE FROM kv_records WHERE fact_row = ? AND encoding = ?")
          .Bind(row)
          .Bind(encoding)
          .Run();
      Query(connection,
            "INSERT INTO kv_records(fact_row, encoding, fact_version, key) VALUES(?, ?, ?, ?)")
          .Bind(row)
          .Bind(encoding)
          .Bind(record.fact_version)
          .Bind(std::span<const std::uint8_t>(record.key.bytes))
          .Run();
      const std::int64_t id = connection.LastInsertRow();
      for (const std::string& saw : record.saw) {
        Query(connection, "INSERT OR IGNORE INTO kv_saw(saw, record) VALUES(?, ?)")
            .Bind(saw)
            .Bind(id)
            .Run();
      }
      kept.push_back(record);
    }
    for (auto& [scope, erasure] : replaced) RecordErasure(connection, erasure);
    return kept;
  });
}

Result<std::vector<std::optional<KvRecord>>> SqliteCatalog::GetKvRecords(
    std::span<const std::string> fact_ids, const std::string& encoding_id) {
  return Read([&](Connection& connection) -> Result<std::vector<std::optional<KvRecord>>> {
    std::vector<std::optional<KvRecord>> records(fact_ids.size());
    const auto encoding = FindName(connection, encoding_id);
    if (!encoding) return records;
    for (std::size_t i = 0; i < fact_ids.size(); ++i) {
      Query query(connection,
                  "SELECT kv_records.id, kv_records.key, kv_records.fact_version FROM facts JOIN "
                  "kv_records ON kv_records.fact_row = facts.row WHERE facts.id = ? AND "
                  "kv_records.encoding = ? AND kv_records.ready");
      if (!query.Bind(fact_ids[i]).Bind(*encoding).Step()) continue;
      const auto key = KeyFromBlob(query.Blob(1));
      if (!key) continue;
      KvRecord record;
      record.key = *key;
      record.fact_id = fact_ids[i];
      record.fact_version = query.Integer(2);
      record.encoding_id = encoding_id;
      record.saw = ReadSaw(connection, query.Integer(0));
      records[i] = std::move(record);
    }
    return records;
  });
}

Status SqliteCatalog::SetKvReady(std::span<const KvKey> keys, bool ready) {
  if (keys.empty()) return OkStatus();
  return Write([&](Connection& connection) -> Status {
    for (const KvKey& key : keys) {
      Query(connection, "UPDATE kv_records SET ready = ? WHERE key = ?")
          .Bind(ready ? 1 : 0)
          .Bind(std::span<const std::uint8_t>(key.bytes))
          .Run();
    }
    return OkStatus();
  });
}

Status SqliteCatalog::MarkKvReady(std::span<const KvKey> keys) { return SetKvReady(keys, true); }

Status SqliteCatalog::DropKvRecords(std::span<const KvKey> keys) {
  // The record itself stays: a block of this key that is being made meanwhile must be found by an
  // erasure all the same.
  return SetKvReady(keys, false);
}

Status SqliteCatalog::DropKvThatSawFewer(ScopeId scope, const std::string& encoding_id,
                                         std::int32_t fewest, WhichFacts which) {
  constexpr std::string_view kThin =
      "kv_records.encoding = ? AND kv_records.ready AND fact_row IN "
      "(SELECT row FROM facts WHERE scope_id = ? AND superseded_by = '' AND "
      "(name = '' OR NOT ?)) AND "
      "(SELECT count(*) FROM kv_saw WHERE record = kv_records.id) < ?";
  static const std::string kAny = "SELECT 1 FROM kv_records WHERE " + std::string(kThin);
  static const std::string kDrop = "UPDATE kv_records SET ready = 0 WHERE " + std::string(kThin);
  const std::int32_t nameless = which == WhichFacts::kNameless ? 1 : 0;
  // Usually there is none, and nothing to be written.
  INFERSCALE_ASSIGN_OR_RETURN(const std::int64_t encoding,
                              Read([&](Connection& connection) -> Result<std::int64_t> {
                                const auto known = FindName(connection, encoding_id);
                                if (!known) return std::int64_t{0};
                                Query any(connection, kAny);
                                any.Bind(*known).Bind(scope).Bind(nameless).Bind(fewest);
                                return any.Step() ? *known : std::int64_t{0};
                              }));
  if (encoding == 0) return OkStatus();
  return Write([&](Connection& connection) -> Status {
    Query(connection, kDrop).Bind(encoding).Bind(scope).Bind(nameless).Bind(fewest).Run();
    return OkStatus();
  });
}

}  // namespace inferscale::catalog
