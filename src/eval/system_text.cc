#include "eval/system_text.h"

#include <algorithm>
#include <charconv>

#include "base/files.h"
#include "base/hash.h"
#include "base/utf8.h"
#include "eval/embedded_data.h"

namespace inferscale {
namespace {

constexpr std::size_t kMaxFileBytes = std::size_t{1} << 20;
constexpr std::int32_t kMaxTokens = 100'000;
constexpr std::string_view kTokensPrefix = "tokens:";

}  // namespace

Result<SystemTextSpec> SystemTextSpec::Parse(const std::string& argument) {
  SystemTextSpec spec;
  if (argument.empty()) return spec;
  if (argument.starts_with(kTokensPrefix)) {
    const std::string_view digits = std::string_view(argument).substr(kTokensPrefix.size());
    const auto [end, error] =
        std::from_chars(digits.data(), digits.data() + digits.size(), spec.tokens);
    if (error != std::errc() || end != digits.data() + digits.size() || spec.tokens < 0 ||
        spec.tokens > kMaxTokens) {
      return InvalidArgument("--system " + argument + ": the number of tokens must be 0 to " +
                             std::to_string(kMaxTokens));
    }
    return spec;
  }
  Result<std::string> text = ReadTextFile(argument, kMaxFileBytes);
  if (!text.ok()) {
    return InvalidArgument("--system takes a text file or tokens:N: " + text.status().message());
  }
  if (!IsValidUtf8(*text)) return InvalidArgument("--system " + argument + ": not valid UTF-8");
  if (TrimWhitespace(*text).empty())
    return InvalidArgument("--system " + argument + ": the file is empty");
  spec.text = std::move(*text);
  return spec;
}

std::string SystemTextSpec::Identity() const {
  if (text.empty()) return std::string(kTokensPrefix) + std::to_string(tokens);
  return "sha256:" + HexEncode(Sha256(text)).substr(0, 16);
}

std::int32_t SystemTextSpec::MostTokens() const {
  return tokens + static_cast<std::int32_t>(text.size());
}

std::string SystemTextSpec::Build(const Engine& engine) const {
  if (tokens == 0) return text;
  TokenIds ids = engine.Tokenize(EmbeddedFile("system.txt"));
  for (int section = 2; ids.size() < static_cast<std::size_t>(tokens); ++section) {
    const std::string more =
        "\n# Section " + std::to_string(section) + "\n" + std::string(EmbeddedFile("system.txt"));
    const TokenIds more_ids = engine.Tokenize(more);
    if (more_ids.empty()) break;
    ids.insert(ids.end(), more_ids.begin(), more_ids.end());
  }
  ids.resize(std::min(ids.size(), static_cast<std::size_t>(tokens)));
  return ToValidUtf8(engine.Detokenize(ids));
}

}  // namespace inferscale
