#include "compose/composer.h"

#include <algorithm>
#include <set>
#include <utility>

#include "encode/recipe.h"
#include "engine/context_limit.h"

namespace inferscale {
namespace {

void Append(TokenIds& ids, std::span<const TokenId> more) {
  ids.insert(ids.end(), more.begin(), more.end());
}

std::int32_t Size(const TokenIds& ids) { return static_cast<std::int32_t>(ids.size()); }

void Count(std::vector<Fallback>& fallbacks, const std::string& reason, std::int32_t count) {
  if (count > 0) fallbacks.push_back({reason, count});
}

/// The facts that fit the budget, best first; the others are left out.
std::vector<const ServableFact*> WithinBudget(const std::vector<ServableFact>& facts,
                                              const std::set<std::string>& placed,
                                              std::int64_t budget,
                                              std::vector<Fallback>* fallbacks) {
  std::vector<const ServableFact*> chosen;
  std::set<std::string> seen = placed;
  std::int32_t dropped = 0;
  for (const ServableFact& fact : facts) {
    if (fact.ids.empty() || !seen.insert(fact.id).second) continue;
    if (static_cast<std::int64_t>(fact.ids.size()) > budget) {
      ++dropped;
      continue;
    }
    budget -= static_cast<std::int64_t>(fact.ids.size());
    chosen.push_back(&fact);
  }
  Count(*fallbacks, "over_budget", dropped);
  return chosen;
}

/// The facts that are computed even if their KV is there. `facts` best first.
std::set<const ServableFact*> Chosen(const std::vector<const ServableFact*>& facts,
                                     std::int32_t compute_best) {
  const std::int32_t unnamed = UnnamedComputed(facts.size());
  std::set<const ServableFact*> chosen;
  for (std::size_t i = 0; i < facts.size(); ++i) {
    const auto rank = static_cast<std::int32_t>(i);
    if (rank < compute_best || (rank < unnamed && facts[i]->unnamed)) chosen.insert(facts[i]);
  }
  return chosen;
}

/// Ready ones first, computed ones after them, best last within each: one contiguous range is
/// injected and the best stand nearest the question.
void Order(std::vector<const ServableFact*>& facts, const std::set<const ServableFact*>& chosen) {
  std::vector<const ServableFact*> injected, computed;
  for (const ServableFact* fact : facts) {
    (fact->ready && !chosen.contains(fact) ? injected : computed).push_back(fact);
  }
  std::reverse(injected.begin(), injected.end());
  std::reverse(computed.begin(), computed.end());
  facts = std::move(injected);
  facts.insert(facts.end(), computed.begin(), computed.end());
}

void Place(const std::vector<const ServableFact*>& facts, bool inject,
           const std::set<const ServableFact*>& chosen, Composed& composed) {
  for (const ServableFact* fact : facts) {
    PlacedFact placed{fact->id, fact->version, fact->key, Size(composed.composition.ids), 0};
    Append(composed.composition.ids, fact->ids);
    placed.end = Size(composed.composition.ids);
    // What is computed on purpose is no block of this prompt.
    if (inject && fact->has_key && !chosen.contains(fact)) {
      composed.composition.blocks.push_back({fact->key, placed.begin, placed.end, false});
    }
    composed.facts.push_back(std::move(placed));
  }
}

Status CheckFits(std::int64_t tokens, const ComposeRequest& request) {
  if (tokens <= request.max_prompt_tokens) return OkStatus();
  return ContextExceeded(tokens, request.max_prompt_tokens);
}

std::int64_t Budget(const ComposeRequest& request, std::int64_t used_by_facts,
                    std::int64_t other_tokens) {
  return std::max<std::int64_t>(0,
                                std::min<std::int64_t>(request.max_fact_tokens - used_by_facts,
                                                       request.max_prompt_tokens - other_tokens));
}

Result<Composed> ComposeFresh(const Engine& engine, const ComposeRequest& request,
                              const RenderedChat& rendered, const PrefixKeyFunction& prefix_key) {
  Composed composed;
  composed.composition.inject = request.inject;
  INFERSCALE_RETURN_IF_ERROR(CheckFits(Size(rendered.ids), request));
  const bool has_place = rendered.facts_place >= 0;
  const std::int32_t place =
      has_place ? rendered.facts_place : std::max(rendered.question_place, 0);
  const TokenIds header =
      engine.Tokenize(has_place ? prompt_text::Header() : prompt_text::LateHeader());
  const TokenIds footer = engine.Tokenize(has_place ? prompt_text::Footer(request.today)
                                                    : std::string(prompt_text::LateFooter()));
  std::vector<const ServableFact*> facts = WithinBudget(
      request.facts, {},
      Budget(request, 0, std::int64_t{Size(rendered.ids)} + Size(header) + Size(footer)),
      &composed.fallbacks);
  TokenIds& ids = composed.composition.ids;
  if (facts.empty()) {
    ids = rendered.ids;
    return composed;
  }
  const bool inject = request.inject && has_place;
  if (!has_place) Count(composed.fallbacks, "template", static_cast<std::int32_t>(facts.size()));
  const std::set<const ServableFact*> chosen =
      inject ? Chosen(facts, request.compute_best) : std::set<const ServableFact*>();
  Order(facts, chosen);
  ids.assign(rendered.ids.begin(), rendered.ids.begin() + place);
  Append(ids, header);
  if (has_place) composed.prefix_tokens = Size(ids);
  if (inject) {
    INFERSCALE_ASSIGN_OR_RETURN(const KvKey key, prefix_key(ids));
    composed.composition.blocks.push_back({key, 0, Size(ids), true});
  }
  Place(facts, inject, chosen, composed);
  Append(ids, footer);
  Append(ids, std::span(rendered.ids).subspan(static_cast<std::size_t>(place)));
  return composed;
}

/// Whether everything the ledger's prompt says of facts is still what the catalog says is the
/// caller's to check (entries with deleted facts are dropped); here only shapes are.
bool Continues(const LedgerEntry& ledger, const ComposeRequest& request,
               const RenderedChat& rendered) {
  return ledger.messages > 0 &&
         static_cast<std::size_t>(ledger.messages) < request.messages.size() &&
         static_cast<std::size_t>(ledger.messages) <= rendered.contents.size() &&
         request.messages[static_cast<std::size_t>(ledger.messages) - 1].role == "assistant" &&
         rendered.question_place >=
             rendered.contents[static_cast<std::size_t>(ledger.messages) - 1].end;
}

Result<std::optional<Composed>> ComposeContinued(const Engine& engine,
                                                 const ComposeRequest& request,
                                                 const RenderedChat& rendered,
                                                 const PrefixKeyFunction& prefix_key) {
  const LedgerEntry& ledger = *request.ledger;
  const std::int32_t answered =
      rendered.contents[static_cast<std::size_t>(ledger.messages) - 1].end;
  const auto tail = std::span(rendered.ids).subspan(static_cast<std::size_t>(answered));
  Composed composed;
  composed.continued = true;
  composed.composition.inject = request.inject;
  composed.prefix_tokens = ledger.prefix_tokens;
  std::set<std::string> placed;
  std::int64_t placed_tokens = 0;
  for (const LedgerEntry::Placement& fact : ledger.facts) {
    placed.insert(fact.fact_id);
    placed_tokens += fact.end - fact.begin;
    composed.facts.push_back({fact.fact_id, fact.version, fact.key, fact.begin, fact.end});
  }
  const TokenIds header = engine.Tokenize(prompt_text::LateHeader());
  const TokenIds footer = engine.Tokenize(prompt_text::LateFooter());
  const std::int64_t fixed =
      static_cast<std::int64_t>(ledger.ids.size() + tail.size()) + Size(header) + Size(footer);
  if (fixed > request.max_prompt_tokens) return std::optional<Composed>();
  std::vector<const ServableFact*> fresh = WithinBudget(
      request.facts, placed, Budget(request, placed_tokens, fixed), &composed.fallbacks);

  // Going on computes the new facts and the tail; starting again computes the history and the tail.
  std::int64_t fresh_tokens = 0, fresh_ready_tokens = 0;
  for (const ServableFact* fact : fresh) {
    fresh_tokens += Size(fact->ids);
    if (fact->ready) fresh_ready_tokens += Size(fact->ids);
  }
  const std::int64_t history =
      static_cast<std::int64_t>(ledger.ids.size()) - ledger.prefix_tokens - placed_tokens;
  if (request.inject && fresh_tokens > history + (fresh_tokens - fresh_ready_tokens))
    return std::optional<Composed>();

  TokenIds& ids = composed.composition.ids;
  ids = ledger.ids;
  if (request.inject && ledger.prefix_tokens > 0) {
    INFERSCALE_ASSIGN_OR_RETURN(
        const KvKey key,
        prefix_key(std::span(ids).subspan(0, static_cast<std::size_t>(ledger.prefix_tokens))));
    composed.composition.blocks.push_back({key, 0, ledger.prefix_tokens, true});
    for (const PlacedFact& fact : composed.facts) {
      composed.composition.blocks.push_back({fact.key, fact.begin, fact.end, false});
    }
  }
  const std::int32_t before_question = rendered.question_place - answered;
  Append(ids, tail.subspan(0, static_cast<std::size_t>(before_question)));
  if (!fresh.empty()) {
    Append(ids, header);
    Order(fresh, {});
    Place(fresh, request.inject && ledger.prefix_tokens > 0, {}, composed);
    Append(ids, footer);
  }
  Append(ids, tail.subspan(static_cast<std::size_t>(before_question)));
  return std::optional<Composed>(std::move(composed));
}

}  // namespace

std::int32_t UnnamedComputed(std::size_t facts) {
  return facts < 5 ? 0 : 3;  // measured at 5, 20 and 50 facts, docs/accuracy.md
}

Result<Composed> Compose(const Engine& engine, const ComposeRequest& request,
                         const PrefixKeyFunction& prefix_key) {
  INFERSCALE_ASSIGN_OR_RETURN(const RenderedChat rendered,
                              request.tools == nullptr
                                  ? engine.Render(request.messages)
                                  : engine.RenderWithTools(request.messages, *request.tools));
  if (request.ledger != nullptr && Continues(*request.ledger, request, rendered)) {
    INFERSCALE_ASSIGN_OR_RETURN(std::optional<Composed> continued,
                                ComposeContinued(engine, request, rendered, prefix_key));
    if (continued.has_value()) return *std::move(continued);
  }
  return ComposeFresh(engine, request, rendered, prefix_key);
}

}  // namespace inferscale
