#include "base/utf8.h"
#include "memory/extractor.h"
#include "memory/injected_texts.h"
#include "memory/sentence_splitter.h"

namespace inferscale {

Result<std::vector<ExtractedFact>> VerbatimExtractor::Extract(const ExtractRequest& request) {
  const InjectedTexts injected(request.exclude);
  std::vector<ExtractedFact> facts;
  for (std::size_t i = 0; i < request.turns.size(); ++i) {
    const Turn& turn = request.turns[i];
    if (turn.role != "user" && turn.role != "assistant") continue;
    if (injected.Contains(turn.content)) continue;
    const std::string text = injected.RemoveLines(turn.content);
    if (TrimWhitespace(text).empty()) continue;
    for (const std::string_view piece : SplitSentences(text, kMaxFactCharacters)) {
      if (injected.Contains(piece)) continue;
      ExtractedFact fact;
      fact.text = std::string(piece);
      fact.name = turn.name;
      fact.event_time_ms = turn.time_ms;
      fact.source_turn_indexes = {static_cast<std::int32_t>(i)};
      facts.push_back(std::move(fact));
    }
  }
  return facts;
}

}  // namespace inferscale
