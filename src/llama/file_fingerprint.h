#ifndef INFERSCALE_LLAMA_FILE_FINGERPRINT_H_
#define INFERSCALE_LLAMA_FILE_FINGERPRINT_H_

#include <filesystem>

#include "base/hash.h"
#include "inferscale/result.h"

namespace inferscale {

/// SHA-256 of a file, read whole once and then remembered in `<cache_folder>/fingerprints.json`
/// under its absolute path, size and modification time. An unwritable cache folder only costs time.
Result<Sha256Digest> FileFingerprint(const std::filesystem::path& file,
                                     const std::filesystem::path& cache_folder);

}  // namespace inferscale

#endif  // INFERSCALE_LLAMA_FILE_FINGERPRINT_H_
