#ifndef INFERSCALE_KV_FILE_INDEX_H_
#define INFERSCALE_KV_FILE_INDEX_H_

/// \file file_index.h
/// FileIndex: what is known of the block files without opening them, and the order in which they
/// are evicted: files of other fingerprints first, then the least recently used. Does no I/O. Not
/// thread-safe: the store's directory mutex guards it.

#include <chrono>
#include <cstdint>
#include <iterator>
#include <list>
#include <optional>
#include <unordered_map>
#include <vector>

#include "inferscale/types.h"

namespace inferscale {

/// Where a block file is: <fingerprint, 16 hex>/<scope tag, 16 hex>/<key, 32 hex>.kvb
struct BlockFileId {
  std::uint64_t fingerprint_prefix =
      0;  ///< first 8 bytes, big-endian, so that it reads like the hash
  std::uint64_t scope_tag = 0;
  KvKey key;

  bool operator==(const BlockFileId&) const = default;
};

struct BlockFile {
  BlockFileId id;
  std::int64_t bytes = 0;
  std::uint64_t serial = 0;  ///< of this addition to the index; never used twice
};

class FileIndex {
 public:
  using Clock = std::chrono::steady_clock;

  /// \param own_fingerprint_prefix Find() and Touch() see files of this fingerprint only.
  explicit FileIndex(std::uint64_t own_fingerprint_prefix) : own_(own_fingerprint_prefix) {}

  /// Adds a file as the most recently used, replacing what was known under its id.
  void Add(const BlockFileId& id, std::int64_t bytes);
  /// Puts a file that could not be removed back, as the next to be evicted.
  void AddOldest(const BlockFileId& id, std::int64_t bytes);

  std::optional<BlockFile> Find(const KvKey& key) const;
  /// Makes the file the most recently used. \return its id when its time on disk should be renewed,
  /// which is at most once a minute.
  std::optional<BlockFileId> Touch(const KvKey& key, Clock::time_point now);

  /// Removes the entry if it still is this addition.
  bool Remove(const BlockFile& file);
  /// Removes a key under every fingerprint. \return what was removed.
  std::vector<BlockFile> RemoveKey(const KvKey& key);
  /// Removes a scope under every fingerprint.
  void RemoveScope(std::uint64_t scope_tag);
  /// Removes and returns the files to delete so that all bytes are at most `budget_bytes`.
  std::vector<BlockFile> RemoveToBudget(std::int64_t budget_bytes);

  std::int64_t files() const { return static_cast<std::int64_t>(by_key_.size()); }
  std::int64_t bytes() const { return bytes_; }
  /// Of a scope, under every fingerprint.
  std::int64_t BytesOf(std::uint64_t scope_tag) const;

 private:
  struct Entry {
    BlockFile file;
    std::optional<Clock::time_point> touched;
  };
  using Entries = std::list<Entry>;  // most recently used first

  Entries& ListOf(const BlockFileId& id) {
    return id.fingerprint_prefix == own_ ? own_entries_ : foreign_entries_;
  }
  std::optional<Entries::iterator> FindOwn(const KvKey& key) const;
  void Insert(const BlockFileId& id, std::int64_t bytes, bool oldest);
  void Remove(Entries::iterator entry);

  const std::uint64_t own_;
  Entries own_entries_, foreign_entries_;
  std::unordered_multimap<KvKey, Entries::iterator> by_key_;
  std::unordered_map<std::uint64_t, std::int64_t> scope_bytes_;
  std::int64_t bytes_ = 0;
  std::uint64_t next_serial_ = 1;
};

}  // namespace inferscale

#endif  // INFERSCALE_KV_FILE_INDEX_H_
