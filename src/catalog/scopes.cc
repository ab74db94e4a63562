#include "base/random.h"
#include "base/utf8.h"
#include "catalog/catalog_rows.h"
#include "catalog/sqlite_catalog.h"
#include "catalog/validation.h"

namespace inferscale::catalog {
namespace {

constexpr std::string_view kScopeQuery =
    "SELECT id, tenant, user, agent, run, app, display_name, epoch, revision, facts, "
    "created_at_ms, "
    "updated_at_ms, tag FROM scopes WHERE ";
constexpr std::size_t kSecretBytes = 32;

ScopeInfo ReadScope(Query& query) {
  ScopeInfo info;
  info.id = query.Integer(0);
  info.scope = {query.Text(1), query.Text(2), query.Text(3), query.Text(4), query.Text(5)};
  info.display_name = query.Text(6);
  info.epoch = static_cast<std::uint64_t>(query.Integer(7));
  info.revision = static_cast<std::uint64_t>(query.Integer(8));
  info.facts = query.Integer(9);
  info.created_at_ms = query.Integer(10);
  info.updated_at_ms = query.Integer(11);
  info.tag = static_cast<std::uint64_t>(query.Integer(12));
  return info;
}

/// Random, so that it says nothing of its scope and is not given twice.
std::uint64_t NewTag() {
  const std::vector<std::uint8_t> bytes = RandomBytes(sizeof(std::uint64_t));
  std::uint64_t tag = 0;
  for (const std::uint8_t byte : bytes) tag = tag << 8 | byte;
  return tag != 0 ? tag : 1;
}

std::optional<ScopeInfo> FindExact(Connection& connection, const Scope& scope) {
  static const std::string kSql =
      std::string(kScopeQuery) + "tenant = ? AND user = ? AND agent = ? AND run = ? AND app = ?";
  Query query(connection, kSql);
  query.Bind(scope.tenant).Bind(scope.user).Bind(scope.agent).Bind(scope.run).Bind(scope.app);
  if (!query.Step()) return std::nullopt;
  return ReadScope(query);
}

Status CheckMetaName(const std::string& name) {
  INFERSCALE_RETURN_IF_ERROR(CheckText("name", name));
  if (name.empty() || name.starts_with("catalog.")) {
    return InvalidArgument("'" + std::string(TruncateUtf8(name, 100)) +
                           "' cannot name a value: names are not empty, and those that begin with "
                           "\"catalog.\" are taken");
  }
  return OkStatus();
}

}  // namespace

Result<std::vector<std::uint8_t>> SqliteCatalog::TenantSecret(const std::string& tenant) {
  INFERSCALE_RETURN_IF_ERROR(CheckText("tenant", tenant));
  using Secret = std::vector<std::uint8_t>;
  const auto find = [&](Connection& connection) -> Result<Secret> {
    Query query(connection, "SELECT secret FROM tenants WHERE tenant = ?");
    return query.Bind(tenant).Step() ? query.Blob(0) : Secret();
  };
  INFERSCALE_ASSIGN_OR_RETURN(const Secret found, Read(find));
  if (!found.empty()) return found;
  return Write([&](Connection& connection) -> Result<Secret> {
    Query(connection, "INSERT OR IGNORE INTO tenants(tenant, secret) VALUES(?, ?)")
        .Bind(tenant)
        .Bind(RandomBytes(kSecretBytes))
        .Run();
    return find(connection);
  });
}

Result<ScopeInfo> SqliteCatalog::EnsureScope(const Scope& scope) {
  INFERSCALE_RETURN_IF_ERROR(CheckScope(scope));
  INFERSCALE_ASSIGN_OR_RETURN(const std::optional<ScopeInfo> found,
                              Read([&](Connection& connection) -> Result<std::optional<ScopeInfo>> {
                                return FindExact(connection, scope);
                              }));
  if (found) return *found;
  const TimeMs now = Now();
  return Write([&](Connection& connection) -> Result<ScopeInfo> {
    Query(connection,
          "INSERT OR IGNORE INTO scopes(tenant, user, agent, run, app, tag, created_at_ms, "
          "updated_at_ms) VALUES(?, ?, ?, ?, ?, ?, ?, ?)")
        .Bind(scope.tenant)
        .Bind(scope.user)
        .Bind(scope.agent)
        .Bind(scope.run)
        .Bind(scope.app)
        .Bind(NewTag())
        .Bind(now)
        .Bind(now)
        .Run();
    const auto made = FindExact(connection, scope);
    if (!made) return Internal("a scope that was just made is missing");
    return *made;
  });
}

Result<ScopeInfo> SqliteCatalog::GetScope(ScopeId id) {
  return Read([&](Connection& connection) -> Result<ScopeInfo> {
    static const std::string kSql = std::string(kScopeQuery) + "id = ?";
    Query query(connection, kSql);
    if (!query.Bind(id).Step()) return UnknownScope(id);
    return ReadScope(query);
  });
}

Result<std::vector<ScopeInfo>> SqliteCatalog::FindScopes(const Scope& query) {
  return Read([&](Connection& connection) -> Result<std::vector<ScopeInfo>> {
    static const std::string kSql =
        std::string(kScopeQuery) +
        "tenant = ?1 AND (?2 = '' OR user = ?2) AND (?3 = '' OR agent = ?3) AND "
        "(?4 = '' OR run = ?4) AND (?5 = '' OR app = ?5) ORDER BY id";
    Query scopes(connection, kSql);
    scopes.Bind(query.tenant).Bind(query.user).Bind(query.agent).Bind(query.run).Bind(query.app);
    std::vector<ScopeInfo> found;
    while (scopes.Step()) found.push_back(ReadScope(scopes));
    return found;
  });
}

Status SqliteCatalog::SetDisplayName(ScopeId id, const std::string& name) {
  INFERSCALE_RETURN_IF_ERROR(CheckText("display name", name));
  const TimeMs now = Now();
  return Write([&](Connection& connection) -> Status {
    Query current(connection, "SELECT display_name FROM scopes WHERE id = ?");
    if (!current.Bind(id).Step()) return UnknownScope(id);
    if (current.Text(0) == name) return OkStatus();

    Query(connection, "UPDATE scopes SET display_name = ? WHERE id = ?").Bind(name).Bind(id).Run();
    Erasure erasure;
    RaiseEpoch(connection, id, 0, now, erasure);
    // Facts with a name of their own are served as before.
    Query renamed(connection,
                  "SELECT id, key FROM kv_records WHERE fact_row IN "
                  "(SELECT row FROM facts WHERE scope_id = ?1 AND name = '') OR id IN "
                  "(SELECT record FROM kv_saw WHERE saw IN "
                  "(SELECT id FROM facts WHERE scope_id = ?1 AND name = ''))");
    renamed.Bind(id);
    TakeKv(connection, renamed, erasure.keys);
    DropLedgerOfScope(connection, id);
    RecordErasure(connection, erasure);
    return OkStatus();
  });
}

Result<std::string> SqliteCatalog::GetMeta(const std::string& name) {
  INFERSCALE_RETURN_IF_ERROR(CheckMetaName(name));
  return Read([&](Connection& connection) -> Result<std::string> {
    Query query(connection, "SELECT value FROM meta WHERE name = ?");
    return query.Bind(name).Step() ? query.Text(0) : std::string();
  });
}

Status SqliteCatalog::SetMeta(const std::string& name, const std::string& value) {
  INFERSCALE_RETURN_IF_ERROR(CheckMetaName(name));
  INFERSCALE_RETURN_IF_ERROR(CheckText("value", value));
  return Write([&](Connection& connection) -> Status {
    Query(connection, "INSERT OR REPLACE INTO meta(name, value) VALUES(?, ?)")
        .Bind(name)
        .Bind(value)
        .Run();
    return OkStatus();
  });
}

}  // namespace inferscale::catalog
