#ifndef INFERSCALE_COMPOSE_COMPOSER_H_
#define INFERSCALE_COMPOSE_COMPOSER_H_

/// \file composer.h
/// Composer: the token list of a prompt, and where each fact stands in it (DESIGN: composition,
/// ledger). Guarantees: the prompt holds the tokens of every fact it lists, so that any of them may
/// be computed; no fact stands in it twice; the facts never take more than the budget; what an
/// earlier turn sent is sent again id for id as long as it is still true. Pure: it reads nothing
/// but its arguments.

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "inferscale/catalog.h"
#include "inferscale/engine.h"

namespace inferscale {

/// A retrieved fact as it may be served.
struct ServableFact {
  std::string id;
  std::int64_t version = 0;
  TokenIds ids;          ///< of its served line
  KvKey key;             ///< valid if has_key
  bool has_key = false;  ///< a block exists or is being made under the current encoding
  bool ready = false;    ///< the block is in the store now
  bool unnamed = false;  ///< its line says nobody's name, see Compose
};

struct ComposeRequest {
  std::vector<ChatMessage> messages;
  std::vector<ServableFact> facts;  ///< best first
  TimeMs today = 0;
  std::int32_t max_fact_tokens = 0;     ///< budget of the facts in the prompt, ledger included
  std::int32_t max_prompt_tokens = 0;   ///< the context less room for the answer
  std::int32_t compute_best = 0;        ///< this many of the best are computed even if ready
  bool inject = true;                   ///< false: text mode, no block spans
  const ToolFormat* tools = nullptr;    ///< null: the prompt names none
  const LedgerEntry* ledger = nullptr;  ///< what was sent for messages[0, ledger->messages)
};

struct PlacedFact {
  std::string id;
  std::int64_t version = 0;
  KvKey key;
  std::int32_t begin = 0, end = 0;
};

struct Composed {
  Composition composition;          ///< salt and scope tag are the caller's to fill
  std::vector<PlacedFact> facts;    ///< ascending
  std::int32_t prefix_tokens = 0;   ///< exact prefix with header; 0: none
  bool continued = false;           ///< built on the ledger entry
  std::vector<Fallback> fallbacks;  ///< "template", "over_budget"
};

/// Makes the key of an exact prefix from its ids.
using PrefixKeyFunction = std::function<Result<KvKey>(std::span<const TokenId>)>;

/// How many of the best facts of a prompt are computed even if their KV is there, as far as they
/// have no name: three, none where there are fewer than five facts. What ties such a fact to a
/// question is often said by another one, which KV of its own has not seen.
std::int32_t UnnamedComputed(std::size_t facts);

/// kInvalidArgument when the messages alone exceed max_prompt_tokens.
Result<Composed> Compose(const Engine& engine, const ComposeRequest& request,
                         const PrefixKeyFunction& prefix_key);

}  // namespace inferscale

#endif  // INFERSCALE_COMPOSE_COMPOSER_H_
