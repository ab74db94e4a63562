#ifndef INFERSCALE_LLAMA_GGUF_METADATA_H_
#define INFERSCALE_LLAMA_GGUF_METADATA_H_

#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "inferscale/result.h"

namespace inferscale {

/// What a GGUF file says about its model, read without its weights: enough to plan memory before
/// anything is allocated. A plain value.
struct GgufMetadata {
  std::int64_t file_bytes = 0;
  std::string architecture;
  std::map<std::string, double> numbers;  ///< scalar numbers and truth values, by full key
  std::map<std::string, std::string> strings;
  /// Arrays of integers (per-layer head counts and the like); token lists are left out.
  std::map<std::string, std::vector<std::int64_t>> arrays;
  std::set<std::string> tensors;  ///< tensor names
  std::int64_t vocabulary = 0;    ///< number of tokens

  /// A number under "<architecture>.<suffix>".
  std::optional<double> Number(const std::string& suffix) const;
  std::int64_t Integer(const std::string& suffix, std::int64_t fallback) const;
  bool HasKeyContaining(const std::string& part) const;
};

/// kNotFound: no such file. kInvalidArgument: not a GGUF file, or cut short; says what to do.
Result<GgufMetadata> ReadGgufMetadata(const std::filesystem::path& path);

}  // namespace inferscale

#endif  // INFERSCALE_LLAMA_GGUF_METADATA_H_
