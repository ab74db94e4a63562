#include <algorithm>
#include <cctype>
#include <utility>

#include "eval/dataset.h"

namespace inferscale {
namespace {

constexpr std::string_view kUser = "the user";

bool IsWordByte(char c) {
  const auto byte = static_cast<unsigned char>(c);
  return byte >= 0x80 || std::isalnum(byte) != 0 || byte == '_';
}

/// Whether a sentence begins at `at`.
bool BeginsSentence(std::string_view text, std::size_t at) {
  while (at > 0 && (text[at - 1] == ' ' || text[at - 1] == '\n' || text[at - 1] == '"')) --at;
  return at == 0 || text[at - 1] == '.' || text[at - 1] == '!' || text[at - 1] == '?';
}

/// Every whole word `name` becomes "the user".
void ReplaceName(std::string_view name, std::string* text) {
  if (name.empty()) return;
  for (std::size_t at = 0; (at = text->find(name, at)) != std::string::npos;) {
    const std::size_t end = at + name.size();
    const bool whole = (at == 0 || !IsWordByte((*text)[at - 1])) &&
                       (end == text->size() || !IsWordByte((*text)[end]));
    if (!whole) {
      at = end;
      continue;
    }
    std::string user(kUser);
    if (BeginsSentence(*text, at)) user.front() = 'T';
    text->replace(at, name.size(), user);
    at += user.size();
  }
}

}  // namespace

Result<EvalNames> ParseEvalNames(std::string_view name) {
  constexpr std::pair<std::string_view, EvalNames> kForms[] = {{"given", EvalNames::kGiven},
                                                               {"text", EvalNames::kText},
                                                               {"user", EvalNames::kUser},
                                                               {"none", EvalNames::kNone}};
  for (const auto& [word, form] : kForms) {
    if (word == name) return form;
  }
  return InvalidArgument("names \"" + std::string(name) + "\": must be given, text, user or none");
}

void ApplyNames(EvalNames names, EvalDataset* dataset) {
  for (EvalConversation& conversation : dataset->conversations) {
    if (names == EvalNames::kText || names == EvalNames::kUser) {
      for (EvalFact& fact : conversation.facts) {
        if (!fact.sentence.empty()) fact.text = fact.sentence;
      }
    }
    if (names != EvalNames::kUser) continue;
    for (const std::string& speaker : conversation.speakers) {
      for (EvalTurn& turn : conversation.turns) ReplaceName(speaker, &turn.text);
      for (EvalFact& fact : conversation.facts) ReplaceName(speaker, &fact.text);
      for (EvalQuestion& question : conversation.questions) {
        ReplaceName(speaker, &question.question);
        ReplaceName(speaker, &question.answer);
      }
    }
  }
}

}  // namespace inferscale
