#ifndef INFERSCALE_RETRIEVAL_EMBED_PENDING_H_
#define INFERSCALE_RETRIEVAL_EMBED_PENDING_H_

#include <cstdint>
#include <string>

#include "inferscale/catalog.h"
#include "inferscale/embedder.h"

namespace inferscale {

/// What is embedded for a fact: its text, behind the name it is about if it has one of its own, so
/// that "Who adopted a cat?" finds what a person said of themselves. Every vector of a fact is made
/// of this.
std::string EmbeddingText(const Fact& fact);

/// Embeds up to `limit` facts that have no vector of this embedder yet (new ones, or all of them
/// after a change of embedder), in batches, each stored before the next is begun: a stop or an
/// error loses one batch at most. \return facts embedded; fewer than `limit`: none are left.
Result<std::int32_t> EmbedPending(Catalog& catalog, Embedder& embedder, std::int32_t limit);

}  // namespace inferscale

#endif  // INFERSCALE_RETRIEVAL_EMBED_PENDING_H_
