#ifndef INFERSCALE_CLI_OUTPUT_H_
#define INFERSCALE_CLI_OUTPUT_H_

/// \file output.h
/// What the program writes: text made safe for terminals, JSON, errors. Not thread-safe.

#include <string>
#include <string_view>

#include <nlohmann/json_fwd.hpp>

#include "inferscale/catalog.h"
#include "inferscale/result.h"
#include "inferscale/retriever.h"
#include "inferscale/types.h"

namespace inferscale {

/// Text from outside for a terminal: control characters (C0, DEL, C1), line and paragraph
/// separators and characters that reorder text become escapes like \n, \u{1b}; what is not UTF-8
/// becomes U+FFFD. \param keep_lines line feeds and tabs stay.
std::string EscapeForTerminal(std::string_view text, bool keep_lines = false);
/// The same cut to about `characters`, ending in "…".
std::string ShortForTerminal(std::string_view text, std::size_t characters);

/// One line of UTF-8 JSON to stdout, flushed.
void PrintJson(const nlohmann::json& json);
/// "inferscale: message" to stderr; with `json`, {"error":{"code","message"}} to stdout.
void PrintError(const Status& status, bool json);
/// "inferscale: message" to stderr: worth knowing, not an error.
void PrintNote(const std::string& message);

/// A fact in Mem0's form with what we have beyond it; `scope` may be null.
nlohmann::json FactJson(const Fact& fact, const ScopeInfo* scope);
nlohmann::json HistoryJson(const HistoryEntry& entry);
nlohmann::json TurnJson(const Turn& turn);

}  // namespace inferscale

#endif  // INFERSCALE_CLI_OUTPUT_H_
