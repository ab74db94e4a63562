// Files and texts that a user gives the program: each is read or refused, and what is read is
// UTF-8.

#include <cstdint>
#include <cstdlib>
#include <string>
#include <string_view>

#include "base/utf8.h"
#include "cli/output.h"
#include "cli/portable_facts.h"
#include "cli/turn_reader.h"

namespace {

void Check(bool condition) {
  if (!condition) std::abort();
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace inferscale;
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  for (const TurnFormat format :
       {TurnFormat::kMessages, TurnFormat::kJsonLines, TurnFormat::kPlainText}) {
    const Result<ReadTurns> read = ParseTurns(text, format, "input", {});
    if (!read.ok()) continue;
    for (const Turn& turn : read->turns) {
      Check(IsValidUtf8(turn.content) && IsValidUtf8(turn.name));
      Check(!TrimWhitespace(turn.content).empty());
    }
  }
  GuessTurnFormat("-", text);
  const Result<std::vector<PortableFact>> facts = ParsePortableFacts(text, "input");
  if (facts.ok()) {
    Check(IsValidUtf8(text));
    for (const PortableFact& fact : *facts) Check(!TrimWhitespace(fact.fact.text).empty());
  }
  const std::string shown = EscapeForTerminal(text);
  Check(IsValidUtf8(shown) && shown.find('\x1b') == std::string::npos);
  Check(ShortForTerminal(text, 10).size() <= 200);
  return 0;
}
