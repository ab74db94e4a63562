#ifndef INFERSCALE_KV_BLOCK_FOLDER_H_
#define INFERSCALE_KV_BLOCK_FOLDER_H_

/// \file block_folder.h
/// BlockFolder: the operations on the folder of block files. Guarantees: a name ending in ".kvb" is
/// a file that was written whole and synced. Thread-safe, but the caller orders operations that
/// change the same name (see kv_store.cc).
///
/// Errors: kResourceExhausted for a full disk, quota or file size limit; kFailedPrecondition for a
/// folder that cannot be written; kUnavailable for a read that may succeed later (memory,
/// descriptors).

#include <atomic>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>
#include <vector>

#include "inferscale/kv_block.h"
#include "inferscale/result.h"
#include "kv/file_index.h"

namespace inferscale {

/// The eight bytes of a fingerprint that name its folder.
std::uint64_t FingerprintPrefix(const Fingerprint& fingerprint);

class BlockFolder {
 public:
  struct Listed {
    BlockFileId id;
    std::int64_t bytes = 0;
    std::int64_t modified_ns = 0;
  };

  /// Creates the folder (0700), checks that it can be written, and removes temporary files.
  static Result<std::unique_ptr<BlockFolder>> Open(std::filesystem::path folder);

  /// All block files by name and size; nothing is opened. Names of another form are left alone.
  Result<std::vector<Listed>> List() const;

  /// Writes and syncs a block under a temporary name; nothing stays behind on an error.
  Result<std::filesystem::path> WriteTemporary(std::span<const std::uint8_t> header,
                                               std::span<const std::uint8_t> payload);
  /// Gives a temporary file its name. On an error the temporary file is left.
  Status Publish(const std::filesystem::path& temporary, const BlockFileId& id);
  static void DiscardTemporary(const std::filesystem::path& temporary);

  /// kNotFound; kDataLoss when it is not the whole, unchanged block `id` of `fingerprint`.
  Result<std::shared_ptr<const KvBlock>> Load(const BlockFileId& id,
                                              const Fingerprint& fingerprint) const;
  /// The header alone, checked against its own checksum; the payload is not read.
  Result<KvBlockInfo> LoadInfo(const BlockFileId& id, const Fingerprint& fingerprint) const;
  /// Renews the modification time, which is the order of use that survives a restart.
  void Touch(const BlockFileId& id) const;

  /// Removes a file, and its scope's folder when that is empty. A missing file is ok.
  Status Remove(const BlockFileId& id);
  /// Removes the folders of a scope under every fingerprint, whatever they hold.
  Status RemoveScope(std::uint64_t scope_tag);
  /// Makes earlier removals in the folders of these files durable.
  Status SyncRemovals(std::span<const BlockFileId> ids) const;

 private:
  explicit BlockFolder(std::filesystem::path folder) : folder_(std::move(folder)) {}
  std::filesystem::path ScopeFolder(const BlockFileId& id) const;
  std::filesystem::path PathOf(const BlockFileId& id) const;

  const std::filesystem::path folder_;
  std::atomic<std::uint64_t> next_temporary_{0};
};

}  // namespace inferscale

#endif  // INFERSCALE_KV_BLOCK_FOLDER_H_
