#ifndef INFERSCALE_CATALOG_ERASURE_LOG_H_
#define INFERSCALE_CATALOG_ERASURE_LOG_H_

/// \file erasure_log.h
/// ErasureLog: what was deleted and forgotten, appended to a file beside the catalog and never
/// rewritten, so that a backup made before can be restored without bringing it back. It holds
/// random numbers and hashes of random ids, no text and nobody's name. Guarantees: an entry is
/// durable before its erasure is committed; a crash leaves whole entries (a torn last line belongs
/// to an erasure that never happened). Not thread-safe: the catalog's writer guards it.

#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "inferscale/result.h"
#include "inferscale/types.h"

namespace inferscale::catalog {

inline constexpr std::string_view kErasureLogName = "erasures.log";

struct ErasureEntry {
  enum class Kind { kDeleteFact, kForgetFact, kDeleteScope, kForgetScope };
  std::string id;  ///< random; tells entries of two logs apart. Empty: made by Append()
  TimeMs at_ms = 0;
  Kind kind = Kind::kDeleteFact;
  std::string fact_hash;        ///< of a fact's: FactIdHash()
  std::vector<TurnId> turns;    ///< of a fact's: those that it came from, or that repeated it
  std::uint64_t scope_tag = 0;  ///< of a scope's: ScopeInfo::tag
};

std::string FactIdHash(std::string_view fact_id);

class ErasureLog {
 public:
  /// \param file made by the first Append()
  explicit ErasureLog(std::filesystem::path file) : file_(std::move(file)) {}
  ~ErasureLog();
  ErasureLog(const ErasureLog&) = delete;
  ErasureLog& operator=(const ErasureLog&) = delete;

  /// All or, after an error, none.
  Status Append(std::span<const ErasureEntry> entries);

 private:
  Status Open();

  const std::filesystem::path file_;
  int descriptor_ = -1;
};

/// A missing file has no entries. kDataLoss names the line that cannot be read; a torn last one is
/// left out.
Result<std::vector<ErasureEntry>> ReadErasureLog(const std::filesystem::path& file);

/// The entries of `entries` that `known` does not have, in order.
std::vector<ErasureEntry> EntriesBeyond(std::span<const ErasureEntry> entries,
                                        std::span<const ErasureEntry> known);

}  // namespace inferscale::catalog

#endif  // INFERSCALE_CATALOG_ERASURE_LOG_H_
