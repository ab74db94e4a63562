#include <algorithm>

#include "base/utf8.h"
#include "catalog/catalog_rows.h"
#include "catalog/sqlite_catalog.h"
#include "catalog/validation.h"

namespace inferscale::catalog {
namespace {

constexpr std::size_t kMaxErrorBytes = 4096;

Turn ReadTurn(Query& query) {
  Turn turn;
  turn.id = query.Integer(0);
  turn.role = query.Text(1);
  turn.name = query.Text(2);
  turn.content = query.Text(3);
  turn.time_ms = query.Integer(4);
  return turn;
}

}  // namespace

Result<std::vector<Turn>> SqliteCatalog::GetTurns(std::span<const TurnId> ids) {
  return Read([&](Connection& connection) -> Result<std::vector<Turn>> {
    std::vector<Turn> turns;
    turns.reserve(ids.size());
    for (const TurnId id : ids) {
      Query query(connection, "SELECT id, role, name, content, time_ms FROM turns WHERE id = ?");
      if (query.Bind(id).Step()) turns.push_back(ReadTurn(query));
    }
    return turns;
  });
}

Result<std::vector<Turn>> SqliteCatalog::TurnsBefore(ScopeId scope, TurnId before,
                                                     std::int32_t count) {
  if (count <= 0) return std::vector<Turn>();
  return Read([&](Connection& connection) -> Result<std::vector<Turn>> {
    Query query(connection,
                "SELECT id, role, name, content, time_ms FROM turns WHERE scope_id = ? AND id < ? "
                "ORDER BY id DESC LIMIT ?");
    query.Bind(scope).Bind(before).Bind(count);
    std::vector<Turn> turns;
    while (query.Step()) turns.push_back(ReadTurn(query));
    std::reverse(turns.begin(), turns.end());
    return turns;
  });
}

Result<std::vector<Job>> SqliteCatalog::PendingJobs(const std::string& kind, std::int32_t limit) {
  if (limit <= 0) return std::vector<Job>();
  return Read([&](Connection& connection) -> Result<std::vector<Job>> {
    Query query(connection,
                "SELECT id, kind, scope_id, payload, attempts FROM jobs WHERE kind = ? AND "
                "failed = 0 ORDER BY id LIMIT ?");
    query.Bind(kind).Bind(limit);
    std::vector<Job> jobs;
    while (query.Step()) {
      Job job;
      job.id = query.Integer(0);
      job.kind = query.Text(1);
      job.scope_id = query.Integer(2);
      job.payload_json = query.Text(3);
      job.attempts = static_cast<std::int32_t>(query.Integer(4));
      // A turn whose fact was deleted meanwhile is not read again.
      Query turns(connection,
                  "SELECT turns.id FROM job_turns JOIN turns ON turns.id = job_turns.turn_id "
                  "WHERE job_id = ? AND NOT consumed ORDER BY turns.id");
      turns.Bind(job.id);
      while (turns.Step()) job.turns.push_back(turns.Integer(0));
      jobs.push_back(std::move(job));
    }
    return jobs;
  });
}

Status SqliteCatalog::FailJob(std::int64_t job_id, const std::string& error, bool final) {
  const std::string message = ToValidUtf8(TruncateUtf8(error, kMaxErrorBytes));
  return Write([&](Connection& connection) -> Status {
    Query(connection,
          "UPDATE jobs SET attempts = attempts + 1, failed = ?, last_error = ? WHERE id = ?")
        .Bind(final ? 1 : 0)
        .Bind(message)
        .Bind(job_id)
        .Run();
    return OkStatus();
  });
}

Status SqliteCatalog::CompleteJob(std::int64_t job_id) {
  return Write([&](Connection& connection) -> Status {
    Query(connection, "DELETE FROM jobs WHERE id = ?").Bind(job_id).Run();
    return OkStatus();
  });
}

}  // namespace inferscale::catalog
