#ifndef INFERSCALE_CLI_BACKUP_ARCHIVE_H_
#define INFERSCALE_CLI_BACKUP_ARCHIVE_H_

/// \file backup_archive.h
/// A backup as one file: a tar (POSIX ustar, which any tar lists and unpacks) whose last member,
/// SHA256, is the digest of every byte before it. Nothing of a file is used before its digest has
/// been checked. Not thread-safe.

#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/hash.h"
#include "inferscale/result.h"

namespace inferscale {

class ArchiveWriter {
 public:
  /// Writes `target`.partial, which Finish() renames; a killed one is left and overwritten.
  static Result<ArchiveWriter> Create(std::filesystem::path target);
  ArchiveWriter(ArchiveWriter&& other) noexcept;
  ArchiveWriter& operator=(ArchiveWriter&&) = delete;
  /// Removes what has not been finished.
  ~ArchiveWriter();

  Status AddText(std::string_view name, std::string_view text);
  Status AddFile(std::string_view name, const std::filesystem::path& file);
  /// Durable and under its name when it returns. kAlreadyExists: there is such a file by now.
  Status Finish();
  std::int64_t bytes() const { return bytes_; }

 private:
  ArchiveWriter(std::filesystem::path target, int descriptor);
  Status Write(std::string_view data);
  Status Header(std::string_view name, std::uint64_t size);

  std::filesystem::path target_, partial_;
  int descriptor_ = -1;
  std::int64_t bytes_ = 0;
  Sha256Stream digest_;
};

struct ArchiveMember {
  std::string name;
  std::uint64_t offset = 0, size = 0;
};

class ArchiveReader {
 public:
  /// Checks the digest and the form of every member. kInvalidArgument: no backup; kDataLoss: a
  /// damaged or cut off one.
  static Result<ArchiveReader> Open(const std::filesystem::path& file);
  ArchiveReader(ArchiveReader&& other) noexcept;
  ArchiveReader& operator=(ArchiveReader&&) = delete;
  ~ArchiveReader();

  const std::vector<ArchiveMember>& members() const { return members_; }
  const ArchiveMember* Find(std::string_view name) const;
  Result<std::string> ReadText(const ArchiveMember& member, std::size_t max_bytes) const;
  /// Writes a new file with mode 0600; it is not synced.
  Status Extract(const ArchiveMember& member, const std::filesystem::path& target) const;

 private:
  ArchiveReader(std::filesystem::path file, int descriptor);
  Status Check();
  Status Read(std::uint64_t offset, std::span<char> into) const;

  std::filesystem::path file_;
  int descriptor_ = -1;
  std::uint64_t size_ = 0;
  std::vector<ArchiveMember> members_;
};

}  // namespace inferscale

#endif  // INFERSCALE_CLI_BACKUP_ARCHIVE_H_
