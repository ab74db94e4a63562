#include "encode/fact_encoder.h"

#include <algorithm>
#include <cstdlib>
#include <utility>

#include "base/bytes.h"
#include "base/hash.h"

namespace inferscale {
namespace {

/// Distinct primer texts kept as ids: one per pair of names, so few owners share many.
constexpr std::size_t kMaxPrimerContexts = 1024;

/// Memory for remembered served lines: some 200,000 facts.
constexpr std::size_t kMaxServedBytes = std::size_t{64} << 20;

/// Example facts in front of a window: the length of the generic primer's own default.
constexpr std::int32_t kWindowPrimerFacts = 10;

/// Turns before and after a fact's own among which its subject's partner is looked for.
constexpr std::int32_t kPartnerDistance = 16;

/// Ids that an engine could not find out (see VllmEngine): not to be remembered.
bool Unknown(std::span<const TokenId> ids) {
  return std::any_of(ids.begin(), ids.end(), [](TokenId id) { return id < 0; });
}

Status UnknownIds() {
  return Unavailable("the engine could not be asked for token ids; see its message in the log");
}

std::string TurnRef(TurnId id) { return "turn:" + std::to_string(id); }

}  // namespace

std::string ScopeText(const Scope& scope) {
  std::string text;
  // Length-prefixed: ("ab", "") and ("a", "b") differ.
  for (const std::string* part :
       {&scope.tenant, &scope.user, &scope.agent, &scope.run, &scope.app}) {
    text += std::to_string(part->size());
    text += ':';
    text += *part;
  }
  return text;
}

FactEncoder::FactEncoder(Engine& engine, Catalog& catalog, Recipe recipe, KvCodec codec)
    : engine_(engine),
      catalog_(catalog),
      recipe_(recipe),
      codec_(codec),
      fingerprint_(engine.fingerprint()) {
  std::string identity(reinterpret_cast<const char*>(fingerprint_.data()), fingerprint_.size());
  const std::string recipe_name = recipe_.Name();
  for (std::string_view part : {std::string_view(recipe_name), KvCodecName(codec),
                                prompt_text::SystemSentence(), prompt_text::Header()}) {
    identity += std::to_string(part.size()) + ":";
    identity += part;
  }
  if (recipe_.kind == RecipeKind::kPrimer) identity += "without a name: the owner's own;";
  // The wording with and without names: facts of both forms are encoded under this identity.
  const std::string names[] = {"A", "B"};
  using Names = std::span<const std::string>;
  for (const Names subjects : {Names(names), Names()}) {
    identity += PrimerLines(
        recipe_.kind == RecipeKind::kWindowPrimer ? kWindowPrimerFacts : recipe_.count, subjects,
        recipe_.kind == RecipeKind::kTurnPrimer ? GenericTurnPrimer() : GenericPrimer());
  }
  encoding_id_ = HexEncode(Sha256(identity)).substr(0, 32);
}

Result<std::vector<std::uint8_t>> FactEncoder::Secret(const std::string& tenant) {
  {
    std::lock_guard lock(mutex_);
    const auto found = secrets_.find(tenant);
    if (found != secrets_.end()) return found->second;
  }
  INFERSCALE_ASSIGN_OR_RETURN(std::vector<std::uint8_t> secret, catalog_.TenantSecret(tenant));
  std::lock_guard lock(mutex_);
  secrets_.emplace(tenant, secret);
  return secret;
}

Result<KvKey> FactEncoder::PrefixKey(const std::string& tenant, std::span<const TokenId> ids) {
  INFERSCALE_ASSIGN_OR_RETURN(const std::vector<std::uint8_t> secret, Secret(tenant));
  return MakeKvKey(secret, fingerprint_, codec_, "prefix of tenant " + tenant, {}, ids);
}

TokenIds FactEncoder::ServedIds(const Fact& fact, const ScopeInfo& scope) {
  const std::string line = ServedLine(fact, scope.display_name);
  {
    std::lock_guard lock(mutex_);
    const auto found = served_.find(line);
    if (found != served_.end()) return found->second;
  }
  TokenIds ids = engine_.Tokenize(line);
  if (Unknown(ids)) return ids;
  std::lock_guard lock(mutex_);
  const std::size_t bytes = line.size() + ids.size() * sizeof(TokenId);
  if (served_bytes_ + bytes > kMaxServedBytes) {
    served_.clear();
    served_bytes_ = 0;
  }
  if (served_.emplace(line, ids).second) served_bytes_ += bytes;
  return ids;
}

Result<std::shared_ptr<const TokenIds>> FactEncoder::Opening() {
  {
    std::lock_guard lock(mutex_);
    if (opening_ != nullptr) return opening_;
  }
  const ChatMessage messages[] = {{"system", std::string(prompt_text::SystemSentence()), ""},
                                  {"user", "?", ""}};
  INFERSCALE_ASSIGN_OR_RETURN(const RenderedChat rendered, engine_.Render(messages));
  // A template without a place for facts serves them as text; encoding still needs some opening.
  const std::int32_t place = std::max(rendered.facts_place, 0);
  auto opening = std::make_shared<TokenIds>(rendered.ids.begin(), rendered.ids.begin() + place);
  const TokenIds header = engine_.Tokenize(prompt_text::Header());
  opening->insert(opening->end(), header.begin(), header.end());
  if (Unknown(*opening)) return UnknownIds();
  std::lock_guard lock(mutex_);
  opening_ = std::move(opening);
  return opening_;
}

std::shared_ptr<const TokenIds> FactEncoder::PrimerContext(const TokenIds& opening,
                                                           const std::string& lines) {
  {
    std::lock_guard lock(mutex_);
    const auto found = primer_contexts_.find(lines);
    if (found != primer_contexts_.end()) return found->second;
  }
  auto context = std::make_shared<TokenIds>(opening);
  // Line by line, as served facts are: the ids must not depend on what stands beside a line.
  for (std::size_t begin = 0; begin < lines.size();) {
    const std::size_t end = lines.find('\n', begin) + 1;
    const TokenIds ids = engine_.Tokenize(std::string_view(lines).substr(begin, end - begin));
    context->insert(context->end(), ids.begin(), ids.end());
    begin = end;
  }
  if (Unknown(*context)) return context;
  std::lock_guard lock(mutex_);
  if (primer_contexts_.size() >= kMaxPrimerContexts) primer_contexts_.clear();
  return primer_contexts_[lines] = std::move(context);
}

Status FactEncoder::AppendWindow(const Fact& fact, const ScopeInfo& scope, bool bullets,
                                 TokenIds* context, std::vector<std::string>* saw) {
  if (fact.source_turns.empty()) return OkStatus();
  const TurnId first = *std::min_element(fact.source_turns.begin(), fact.source_turns.end());
  INFERSCALE_ASSIGN_OR_RETURN(const std::vector<Turn> turns,
                              catalog_.TurnsBefore(fact.scope_id, first, recipe_.count));
  for (const Turn& turn : turns) {
    Fact line;
    line.name = turn.name;
    line.text = turn.content;
    line.event_time_ms = bullets ? turn.time_ms : 0;
    const std::string served = ServedLine(line, scope.display_name);
    // The paper's windows are plain turns: no bullet, no date.
    const TokenIds ids =
        engine_.Tokenize(bullets ? std::string_view(served) : std::string_view(served).substr(2));
    context->insert(context->end(), ids.begin(), ids.end());
    saw->push_back(TurnRef(turn.id));
  }
  return OkStatus();
}

Result<std::string> FactEncoder::Partner(const Fact& fact, const std::string& subject,
                                         std::vector<std::string>* saw) {
  if (fact.source_turns.empty()) return std::string();
  const TurnId source = fact.source_turns.front();
  INFERSCALE_ASSIGN_OR_RETURN(
      const std::vector<Turn> turns,
      catalog_.TurnsBefore(fact.scope_id, source + kPartnerDistance, 2 * kPartnerDistance));
  const Turn* nearest = nullptr;
  const auto distance = [&](const Turn& turn) { return std::abs(turn.id - source); };
  for (const Turn& turn : turns) {
    if (turn.name.empty() || turn.name == subject) continue;
    if (nearest == nullptr || distance(turn) < distance(*nearest)) nearest = &turn;
  }
  if (nearest == nullptr) return std::string();
  saw->push_back(TurnRef(nearest->id));
  return nearest->name;
}

std::shared_ptr<const TokenIds> FactEncoder::OwnContext(const TokenIds& opening,
                                                        std::span<const Fact> examples,
                                                        const Fact& fact, const ScopeInfo& scope,
                                                        std::vector<std::string>* saw) {
  std::string lines;
  for (const Fact& example : examples) {
    if (example.id == fact.id) continue;
    lines += ServedLine(example, scope.display_name);
    saw->push_back(example.id);
  }
  return PrimerContext(opening, lines);
}

Result<std::shared_ptr<const TokenIds>> FactEncoder::Context(const Fact& fact,
                                                             const ScopeInfo& scope,
                                                             std::vector<std::string>* saw) {
  if (recipe_.kind == RecipeKind::kBare) return std::make_shared<const TokenIds>();
  if (recipe_.kind == RecipeKind::kWindow) {
    auto context = std::make_shared<TokenIds>();
    INFERSCALE_RETURN_IF_ERROR(AppendWindow(fact, scope, false, context.get(), saw));
    return std::shared_ptr<const TokenIds>(std::move(context));
  }
  INFERSCALE_ASSIGN_OR_RETURN(const auto opening, Opening());
  // The fact's own subject and nobody else, but for kBothPrimer: a fact's KV then depends on no
  // other fact of its owner, and nothing is encoded again when a second person turns up.
  std::vector<std::string> names{ServedName(fact, scope.display_name)};
  switch (recipe_.kind) {
    case RecipeKind::kHeader:
      return opening;
    case RecipeKind::kHeaderWindow:
    case RecipeKind::kWindowPrimer: {
      auto context = std::make_shared<TokenIds>(
          recipe_.kind == RecipeKind::kHeaderWindow
              ? *opening
              : *PrimerContext(*opening, PrimerLines(kWindowPrimerFacts, names)));
      INFERSCALE_RETURN_IF_ERROR(AppendWindow(fact, scope, true, context.get(), saw));
      return std::shared_ptr<const TokenIds>(std::move(context));
    }
    case RecipeKind::kOwnerPrimer: {
      INFERSCALE_ASSIGN_OR_RETURN(
          const std::vector<Fact> oldest,
          catalog_.OldestFacts(fact.scope_id, recipe_.count, WhichFacts::kAll));
      return OwnContext(*opening, oldest, fact, scope, saw);
    }
    case RecipeKind::kPrimer: {
      // Nobody knows how the text of a fact without a name says whom it is about: only facts of
      // the same owner say it in the same way (docs/accuracy.md).
      if (!names.front().empty()) break;
      INFERSCALE_ASSIGN_OR_RETURN(
          const std::vector<Fact> oldest,
          catalog_.OldestFacts(fact.scope_id, recipe_.count, WhichFacts::kNameless));
      if (oldest.size() < static_cast<std::size_t>(recipe_.count)) break;
      return OwnContext(*opening, oldest, fact, scope, saw);
    }
    case RecipeKind::kTurnPrimer:
      return PrimerContext(*opening, PrimerLines(recipe_.count, names, GenericTurnPrimer()));
    case RecipeKind::kBothPrimer: {
      INFERSCALE_ASSIGN_OR_RETURN(std::string partner, Partner(fact, names.front(), saw));
      if (!partner.empty()) names.push_back(std::move(partner));
      break;
    }
    default:
      break;
  }
  return PrimerContext(*opening, PrimerLines(recipe_.count, names));
}

Status FactEncoder::RequeueThinPrimers(const ScopeInfo& scope) {
  WhichFacts which = WhichFacts::kAll;
  if (recipe_.kind == RecipeKind::kPrimer) {
    which = WhichFacts::kNameless;
    if (!ServedName(Fact(), scope.display_name).empty()) return OkStatus();  // all have a name
  } else if (recipe_.kind != RecipeKind::kOwnerPrimer) {
    return OkStatus();
  }
  INFERSCALE_ASSIGN_OR_RETURN(const std::vector<Fact> oldest,
                              catalog_.OldestFacts(scope.id, recipe_.count, which));
  if (oldest.size() < static_cast<std::size_t>(recipe_.count)) return OkStatus();
  // A fact of the primer sees the others of it.
  return catalog_.DropKvThatSawFewer(scope.id, encoding_id_, recipe_.count - 1, which);
}

Result<FactEncoding> FactEncoder::Encode(const Fact& fact, const ScopeInfo& scope) {
  FactEncoding encoding;
  INFERSCALE_ASSIGN_OR_RETURN(encoding.context, Context(fact, scope, &encoding.saw));
  encoding.own = ServedIds(fact, scope);
  if (Unknown(*encoding.context) || Unknown(encoding.own)) return UnknownIds();
  INFERSCALE_ASSIGN_OR_RETURN(const std::vector<std::uint8_t> secret, Secret(scope.scope.tenant));
  encoding.key = MakeKvKey(secret, fingerprint_, codec_, ScopeText(scope.scope), *encoding.context,
                           encoding.own);
  return encoding;
}

}  // namespace inferscale
