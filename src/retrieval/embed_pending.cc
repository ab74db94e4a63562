#include "retrieval/embed_pending.h"

#include <algorithm>
#include <utility>
#include <vector>

namespace inferscale {
namespace {

constexpr std::int32_t kBatchFacts = 64;

}  // namespace

std::string EmbeddingText(const Fact& fact) {
  return fact.name.empty() ? fact.text : fact.name + ": " + fact.text;
}

Result<std::int32_t> EmbedPending(Catalog& catalog, Embedder& embedder, std::int32_t limit) {
  std::int32_t done = 0;
  while (done < limit) {
    INFERSCALE_ASSIGN_OR_RETURN(
        const std::vector<Fact> facts,
        catalog.FactsWithoutEmbedding(embedder.id(), std::min(kBatchFacts, limit - done)));
    if (facts.empty()) break;
    std::vector<std::string> texts;
    texts.reserve(facts.size());
    for (const Fact& fact : facts) texts.push_back(EmbeddingText(fact));
    INFERSCALE_ASSIGN_OR_RETURN(auto vectors, embedder.Embed(texts));
    if (vectors.size() != facts.size()) {
      return Internal("the embedder gave " + std::to_string(vectors.size()) + " vectors for " +
                      std::to_string(facts.size()) + " texts");
    }
    std::vector<FactEmbedding> embeddings;
    embeddings.reserve(facts.size());
    for (std::size_t i = 0; i < facts.size(); ++i) {
      embeddings.push_back({facts[i].id, facts[i].version, std::move(vectors[i])});
    }
    INFERSCALE_RETURN_IF_ERROR(catalog.SetEmbeddings(embedder.id(), embeddings));
    done += static_cast<std::int32_t>(facts.size());
  }
  return done;
}

}  // namespace inferscale
