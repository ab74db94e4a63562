#include "base/utf8.h"
#include "catalog/catalog_rows.h"
#include "catalog/sqlite_catalog.h"
#include "catalog/validation.h"

namespace inferscale::catalog {
namespace {

constexpr TimeMs kEventLifetimeMs = 30LL * 24 * 3600 * 1000;
/// Old events removed with each new one: never a long pause, and never more than are made.
constexpr int kPruneAtOnce = 16;

void Insert(Connection& connection, const std::string& id, const std::string& tenant,
            std::optional<ScopeId> scope, const char* kind, std::span<const TurnId> turns,
            std::optional<std::int64_t> job, TimeMs now) {
  Query(connection,
        "DELETE FROM events WHERE id IN (SELECT id FROM events WHERE created_at_ms < ? AND NOT "
        "EXISTS (SELECT 1 FROM jobs WHERE jobs.id = job_id AND failed = 0) LIMIT ?)")
      .Bind(now - kEventLifetimeMs)
      .Bind(kPruneAtOnce)
      .Run();
  Query(connection,
        "INSERT INTO events(id, tenant, scope_id, kind, job_id, first_turn, last_turn, "
        "created_at_ms) VALUES(?, ?, ?, ?, ?, ?, ?, ?)")
      .Bind(id)
      .Bind(tenant)
      .BindOptional(scope)
      .Bind(kind)
      .BindOptional(job)
      .Bind(turns.empty() ? 0 : turns.front())
      .Bind(turns.empty() ? -1 : turns.back())
      .Bind(now)
      .Run();
}

}  // namespace

void AddEvent(Connection& connection, const std::string& id, ScopeId scope,
              std::span<const TurnId> turns, std::optional<std::int64_t> job, TimeMs now) {
  Query tenant(connection, "SELECT tenant FROM scopes WHERE id = ?");
  const std::string owner = tenant.Bind(scope).Step() ? tenant.Text(0) : std::string();
  Insert(connection, id, owner, scope, "ADD", turns, job, now);
}

Status SqliteCatalog::RecordEvent(const std::string& id, const std::string& tenant,
                                  const std::string& kind) {
  INFERSCALE_RETURN_IF_ERROR(CheckText("event id", id));
  INFERSCALE_RETURN_IF_ERROR(CheckText("tenant", tenant));
  INFERSCALE_RETURN_IF_ERROR(CheckText("event kind", kind));
  const TimeMs now = Now();
  return Write([&](Connection& connection) -> Status {
    Insert(connection, id, tenant, std::nullopt, kind.c_str(), {}, std::nullopt, now);
    return OkStatus();
  });
}

Result<EventInfo> SqliteCatalog::GetEvent(const std::string& id) {
  return Read([&](Connection& connection) -> Result<EventInfo> {
    Query query(connection,
                "SELECT events.id, tenant, events.scope_id, events.kind, events.created_at_ms, "
                "first_turn, last_turn, jobs.id, failed, last_error, jobs.id = (SELECT id FROM "
                "jobs WHERE kind = 'extract' AND failed = 0 ORDER BY id LIMIT 1) "
                "FROM events LEFT JOIN jobs ON jobs.id = events.job_id WHERE events.id = ?");
    if (!query.Bind(id).Step()) {
      return NotFound("there is no event with id '" + std::string(TruncateUtf8(id, 100)) + "'");
    }
    EventInfo event;
    event.id = query.Text(0);
    event.tenant = query.Text(1);
    if (!query.IsNull(2)) event.scope_id = query.Integer(2);
    event.kind = query.Text(3);
    event.created_at_ms = query.Integer(4);
    if (!query.IsNull(7)) {
      // Jobs are done in order, one at a time.
      using State = EventInfo::State;
      event.state = query.Integer(8) != 0    ? State::kFailed
                    : query.Integer(10) != 0 ? State::kRunning
                                             : State::kPending;
      event.error = query.Text(9);
    }
    Query facts(connection,
                "SELECT DISTINCT facts.id FROM fact_sources AS source JOIN facts ON facts.id = "
                "source.fact_id WHERE turn_id BETWEEN ?1 AND ?2 AND NOT EXISTS (SELECT 1 FROM "
                "fact_sources AS earlier WHERE earlier.fact_id = source.fact_id AND "
                "earlier.turn_id < ?1) ORDER BY facts.row");
    facts.Bind(query.Integer(5)).Bind(query.Integer(6));
    while (facts.Step()) event.fact_ids.push_back(facts.Text(0));
    return event;
  });
}

}  // namespace inferscale::catalog
