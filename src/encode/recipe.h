#ifndef INFERSCALE_ENCODE_RECIPE_H_
#define INFERSCALE_ENCODE_RECIPE_H_

/// \file recipe.h
/// Recipe: what a fact looks like when it is served, and what stands in front of it when it is
/// encoded. A recipe and its wording are part of a block's identity through the tokens it was
/// encoded behind.

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "inferscale/result.h"
#include "inferscale/types.h"

namespace inferscale {

enum class RecipeKind {
  kBare,          ///< nothing in front (the paper without windows)
  kHeader,        ///< canonical opening and header
  kPrimer,        ///< opening, header and a fixed list of example facts with the fact's name; a
                  ///< fact without one: the owner's oldest such facts, once there are enough
  kOwnerPrimer,   ///< the same with the owner's own oldest facts as the list
  kWindow,        ///< the turns before the fact, nothing else (the paper's Context-Window Encoding)
  kHeaderWindow,  ///< opening, header, and those turns written as dated bullets
  kWindowPrimer,  ///< opening, header, the generic primer, then those dated bullets
  kTurnPrimer,    ///< opening, header and a fixed list of chat turns under the owner's name
  kBothPrimer,    ///< the generic primer, about the fact's subject and its partner in turn
};

struct Recipe {
  RecipeKind kind = RecipeKind::kPrimer;
  std::int32_t count = 10;  ///< primer facts, or turns of the window

  /// "bare", "header", "primer[:N]", "owner-primer[:N]", "turn-primer[:N]", "both-primer[:N]",
  /// "window:N", "header-window:N", "window-primer:N".
  static Result<Recipe> Parse(std::string_view name);
  std::string Name() const;
  bool operator==(const Recipe&) const = default;
};

/// The text of a served prompt that is not the application's. One wording for encoding and serving.
namespace prompt_text {
/// System text of a prompt whose application gives none, and of the canonical opening.
std::string_view SystemSentence();
/// Between the system text and the first fact.
std::string_view Header();
/// After the last fact. \param today of the request, so that nothing in front depends on the clock.
std::string Footer(TimeMs today);
/// Before facts that are added in a later turn, inside that turn's message, and after them.
std::string_view LateHeader();
std::string_view LateFooter();
}  // namespace prompt_text

/// Name a fact is served under: its own, else the scope's, else empty.
std::string ServedName(const Fact& fact, std::string_view scope_name);

/// "- (7 May 2023) Name: text\n". Always one line: line breaks and control characters of text and
/// name become spaces. Without an event time the date is left out, without a name the subject: a
/// common one ("The user") in every line costs accuracy (docs/accuracy.md), and is wrong in front
/// of what an assistant said.
std::string ServedLine(const Fact& fact, std::string_view scope_name);

/// "7 May 2023"
std::string ServedDate(TimeMs time);

/// One example fact of the generic primer. `who` 0 is the fact's own subject, 1 the other person.
struct PrimerFact {
  std::string_view date;
  std::int32_t who;
  std::string_view text;
};
/// The fixed generic list (primer.cc), written for the project.
std::span<const PrimerFact> GenericPrimer();
/// The same for facts that are turns, word for word (turn_primer.cc).
std::span<const PrimerFact> GenericTurnPrimer();

/// The served lines of the first `count` primer facts with the names put in; names[who % size].
/// Without names, or under an empty one, the lines have no subject, as facts without one.
std::string PrimerLines(std::int32_t count, std::span<const std::string> names,
                        std::span<const PrimerFact> primer = GenericPrimer());

}  // namespace inferscale

#endif  // INFERSCALE_ENCODE_RECIPE_H_
