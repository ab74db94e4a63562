#ifndef INFERSCALE_BASE_FILES_H_
#define INFERSCALE_BASE_FILES_H_

/// \file files.h
/// Files that are whole or absent, private folders and their owner's lock. Thread-safe.

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "inferscale/result.h"

namespace inferscale {

/// A status for errno `error`: "`action` `path`: reason; advice". A full disk or quota is
/// kResourceExhausted, a missing file kNotFound, everything else kFailedPrecondition.
Status StatusFromErrno(std::string_view action, const std::filesystem::path& path, int error);

/// The content of a regular file. kResourceExhausted, reading nothing, when it is larger than
/// `max_bytes`.
Result<std::vector<std::uint8_t>> ReadFile(const std::filesystem::path& path,
                                           std::size_t max_bytes);
Result<std::string> ReadTextFile(const std::filesystem::path& path, std::size_t max_bytes);

/// Replaces `path` (mode 0600) durably: after a crash at any moment it has its old or its new
/// content. The temporary file lies in the same folder and is removed on an error.
Status AtomicWriteFile(const std::filesystem::path& path, std::span<const std::uint8_t> data);
Status AtomicWriteFile(const std::filesystem::path& path, std::string_view text);
/// Whether a file name is that of a temporary of AtomicWriteFile (left by a killed process).
bool IsTemporaryFileName(std::string_view name);

/// Creates a folder and its parents; the folder itself gets (or must already be usable with) mode
/// 0700.
Status CreatePrivateFolder(const std::filesystem::path& folder);
/// Makes renames and removals in `folder` durable.
Status SyncFolder(const std::filesystem::path& folder);
/// Bytes an ordinary user can still write where `path` is, or would be.
Result<std::int64_t> FreeDiskBytes(const std::filesystem::path& path);

/// Ownership of a folder by one process, held until the object dies, also by kill -9.
class FolderLock {
 public:
  /// Locks `folder`/.lock. kUnavailable with the owner's pid when another holder has it.
  static Result<FolderLock> Acquire(const std::filesystem::path& folder);
  FolderLock(FolderLock&& other) noexcept;
  FolderLock& operator=(FolderLock&& other) noexcept;
  ~FolderLock();

 private:
  explicit FolderLock(int descriptor) : descriptor_(descriptor) {}
  int descriptor_ = -1;
};

}  // namespace inferscale

#endif  // INFERSCALE_BASE_FILES_H_
