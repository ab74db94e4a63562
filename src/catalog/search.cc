#include <algorithm>
#include <cstring>
#include <limits>
#include <set>

#include "catalog/catalog_rows.h"
#include "catalog/keyword_functions.h"
#include "catalog/sqlite_catalog.h"
#include "catalog/text_segments.h"
#include "catalog/validation.h"

namespace inferscale::catalog {
namespace {

constexpr std::size_t kMaxQueryTerms = 64;

/// The terms as an FTS5 expression: each in quotes, within which nothing is syntax.
std::string MatchAny(const std::vector<std::string>& terms) {
  std::string expression;
  for (const std::string& term : terms) {
    expression += expression.empty() ? "\"" : " OR \"";
    for (const char c : term) {
      if (c == '"') expression.push_back('"');
      expression.push_back(c);
    }
    expression.push_back('"');
  }
  return expression;
}

std::vector<TermCounts> FindHits(Connection& connection, ScopeId scope,
                                 const std::string& any_term) {
  Query query(connection,
              "SELECT rowid, inferscale_hits(keywords) FROM keywords WHERE keywords MATCH ?");
  query.Bind("scope : \"s" + std::to_string(scope) + "\" AND terms : (" + any_term + ")");
  std::vector<TermCounts> rows;
  while (query.Step()) {
    const std::vector<std::uint8_t> blob = query.Blob(1);
    std::vector<std::int32_t> numbers(blob.size() / sizeof(std::int32_t));
    std::memcpy(numbers.data(), blob.data(), numbers.size() * sizeof(std::int32_t));
    if (numbers.size() < 3) continue;  // length, the scope's own term, and at least one more
    TermCounts row;
    row.row = query.Integer(0);
    row.length = numbers[0];
    row.counts.assign(numbers.begin() + 2, numbers.end());
    rows.push_back(std::move(row));
  }
  return rows;
}

}  // namespace

Result<std::vector<KeywordHit>> SqliteCatalog::KeywordSearch(std::span<const ScopeId> scopes,
                                                             std::string_view query,
                                                             std::int32_t limit) {
  INFERSCALE_RETURN_IF_ERROR(CheckText("query", query));
  const std::vector<std::string> terms = QueryTerms(query, kMaxQueryTerms);
  if (terms.empty() || scopes.empty() || limit <= 0) return std::vector<KeywordHit>();
  const std::string any_term = MatchAny(terms);

  return Read([&](Connection& connection) -> Result<std::vector<KeywordHit>> {
    std::vector<TermCounts> rows;
    std::int64_t documents = 0;
    std::vector<ScopeId> distinct(scopes.begin(), scopes.end());
    std::sort(distinct.begin(), distinct.end());
    distinct.erase(std::unique(distinct.begin(), distinct.end()), distinct.end());
    for (const ScopeId scope : distinct) {
      Query count(connection, "SELECT facts FROM scopes WHERE id = ?");
      if (!count.Bind(scope).Step()) continue;
      documents += count.Integer(0);
      std::vector<TermCounts> found = FindHits(connection, scope, any_term);
      std::move(found.begin(), found.end(), std::back_inserter(rows));
    }
    const std::vector<double> scores = Bm25(rows, documents);

    std::vector<std::size_t> order(rows.size());
    for (std::size_t i = 0; i < order.size(); ++i) order[i] = i;
    const std::size_t kept = std::min(order.size(), static_cast<std::size_t>(limit));
    const auto better = [&](std::size_t a, std::size_t b) {
      return scores[a] != scores[b] ? scores[a] > scores[b] : rows[a].row > rows[b].row;
    };
    std::partial_sort(order.begin(), order.begin() + static_cast<std::ptrdiff_t>(kept), order.end(),
                      better);
    std::vector<KeywordHit> hits;
    for (std::size_t i = 0; i < kept; ++i) {
      Query fact(connection, "SELECT id FROM facts WHERE row = ?");
      if (fact.Bind(rows[order[i]].row).Step()) hits.push_back({fact.Text(0), scores[order[i]]});
    }
    return hits;
  });
}

Result<std::vector<std::int64_t>> SqliteCatalog::MatchingRows(const FactQuery& query) {
  if (query.scopes.empty()) return std::vector<std::int64_t>();
  const std::string sql =
      "SELECT facts.load_row FROM facts WHERE " + FactCondition(query) + " ORDER BY facts.load_row";
  return Read([&](Connection& connection) -> Result<std::vector<std::int64_t>> {
    Query matching(connection, sql, Query::Reuse::kOneOff);
    BindFactQuery(query, Now(), matching);
    std::vector<std::int64_t> rows;
    while (matching.Step()) rows.push_back(matching.Integer(0));
    return rows;
  });
}

Result<std::vector<EmbeddingRow>> SqliteCatalog::LoadEmbeddings(ScopeId scope,
                                                                const std::string& embedder_id,
                                                                std::int64_t after_row) {
  return Read([&](Connection& connection) -> Result<std::vector<EmbeddingRow>> {
    std::vector<EmbeddingRow> rows;
    const auto embedder = FindName(connection, embedder_id);
    if (!embedder) return rows;
    Query query(
        connection,
        "SELECT facts.id, facts.load_row, embeddings.vector FROM facts CROSS JOIN embeddings "
        "ON embeddings.fact_row = facts.row WHERE facts.scope_id = ? AND "
        "facts.load_row > ? AND embeddings.embedder = ? ORDER BY facts.load_row");
    query.Bind(scope).Bind(after_row).Bind(*embedder);
    while (query.Step()) {
      EmbeddingRow row;
      row.fact_id = query.Text(0);
      row.row = query.Integer(1);
      const std::vector<std::uint8_t> bytes = query.Blob(2);
      row.vector.resize(bytes.size() / sizeof(std::uint16_t));
      std::memcpy(row.vector.data(), bytes.data(), row.vector.size() * sizeof(std::uint16_t));
      rows.push_back(std::move(row));
    }
    return rows;
  });
}

Result<std::vector<Fact>> SqliteCatalog::FactsWithoutEmbedding(const std::string& embedder_id,
                                                               std::int32_t limit) {
  if (limit <= 0) return std::vector<Fact>();
  static const std::string kSql = "SELECT " + std::string(kFactColumns) +
                                  " FROM facts LEFT JOIN embeddings ON "
                                  "embeddings.fact_row = facts.row WHERE "
                                  "embeddings.embedder IS NOT ? ORDER BY facts.row LIMIT ?";
  return Read([&](Connection& connection) -> Result<std::vector<Fact>> {
    // No row has embedder 0: with an unknown name every fact is without.
    const std::int64_t embedder = FindName(connection, embedder_id).value_or(0);
    Query query(connection, kSql);
    query.Bind(embedder).Bind(limit);
    std::vector<Fact> facts;
    while (query.Step()) facts.push_back(ReadFact(query));
    return facts;
  });
}

Status SqliteCatalog::SetEmbedding(const std::string& fact_id, std::int64_t version,
                                   const std::string& embedder_id, std::span<const float> vector) {
  const FactEmbedding one{fact_id, version, {vector.begin(), vector.end()}};
  return SetEmbeddings(embedder_id, std::span(&one, 1));
}

Status SqliteCatalog::SetEmbeddings(const std::string& embedder_id,
                                    std::span<const FactEmbedding> embeddings) {
  if (embeddings.empty()) return OkStatus();
  INFERSCALE_RETURN_IF_ERROR(CheckText("embedder id", embedder_id));
  std::vector<std::vector<std::uint8_t>> vectors;
  vectors.reserve(embeddings.size());
  for (const FactEmbedding& embedding : embeddings) {
    if (embedding.vector.empty() || embedder_id.empty()) {
      return InvalidArgument("an embedding needs numbers and the name of its embedder");
    }
    INFERSCALE_ASSIGN_OR_RETURN(std::vector<std::uint8_t> bytes, EncodeEmbedding(embedding.vector));
    vectors.push_back(std::move(bytes));
  }
  const TimeMs now = Now();
  return Write([&](Connection& connection) -> Status {
    std::set<ScopeId> scopes;
    for (std::size_t i = 0; i < embeddings.size(); ++i) {
      Query found(connection, "SELECT row, scope_id FROM facts WHERE id = ? AND version = ?");
      if (!found.Bind(embeddings[i].fact_id).Bind(embeddings[i].version).Step()) continue;
      const std::int64_t row = found.Integer(0);
      scopes.insert(found.Integer(1));
      found.Reset();
      StoreEmbedding(connection, row, InternName(connection, embedder_id), vectors[i]);
      // Whoever has loaded up to some row finds the new vector behind it.
      Query(connection, "UPDATE facts SET load_row = ? WHERE row = ?")
          .Bind(NextLoadRow(connection))
          .Bind(row)
          .Run();
    }
    for (const ScopeId scope : scopes) TouchScope(connection, scope, 0, now);
    return OkStatus();
  });
}

}  // namespace inferscale::catalog
