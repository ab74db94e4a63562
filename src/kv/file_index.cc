#include "kv/file_index.h"

namespace inferscale {
namespace {

constexpr std::chrono::minutes kTouchInterval{1};

}  // namespace

void FileIndex::Add(const BlockFileId& id, std::int64_t bytes) { Insert(id, bytes, false); }

void FileIndex::AddOldest(const BlockFileId& id, std::int64_t bytes) { Insert(id, bytes, true); }

void FileIndex::Insert(const BlockFileId& id, std::int64_t bytes, bool oldest) {
  const auto [first, last] = by_key_.equal_range(id.key);
  for (auto place = first; place != last; ++place) {
    if (place->second->file.id == id) {
      Remove(place->second);
      break;
    }
  }
  Entries& entries = ListOf(id);
  const auto entry = entries.insert(oldest ? entries.end() : entries.begin(),
                                    Entry{{id, bytes, next_serial_++}, std::nullopt});
  by_key_.emplace(id.key, entry);
  bytes_ += bytes;
  scope_bytes_[id.scope_tag] += bytes;
}

std::int64_t FileIndex::BytesOf(std::uint64_t scope_tag) const {
  const auto found = scope_bytes_.find(scope_tag);
  return found == scope_bytes_.end() ? 0 : found->second;
}

std::optional<FileIndex::Entries::iterator> FileIndex::FindOwn(const KvKey& key) const {
  const auto [first, last] = by_key_.equal_range(key);
  for (auto place = first; place != last; ++place) {
    if (place->second->file.id.fingerprint_prefix == own_) return place->second;
  }
  return std::nullopt;
}

std::optional<BlockFile> FileIndex::Find(const KvKey& key) const {
  const auto entry = FindOwn(key);
  if (!entry) return std::nullopt;
  return (*entry)->file;
}

std::optional<BlockFileId> FileIndex::Touch(const KvKey& key, Clock::time_point now) {
  const auto found = FindOwn(key);
  if (!found) return std::nullopt;
  const Entries::iterator entry = *found;
  own_entries_.splice(own_entries_.begin(), own_entries_, entry);
  if (entry->touched && now - *entry->touched < kTouchInterval) return std::nullopt;
  entry->touched = now;
  return entry->file.id;
}

bool FileIndex::Remove(const BlockFile& file) {
  const auto [first, last] = by_key_.equal_range(file.id.key);
  for (auto place = first; place != last; ++place) {
    if (place->second->file.serial == file.serial) {
      Remove(place->second);
      return true;
    }
  }
  return false;
}

std::vector<BlockFile> FileIndex::RemoveKey(const KvKey& key) {
  std::vector<BlockFile> removed;
  for (auto place = by_key_.find(key); place != by_key_.end(); place = by_key_.find(key)) {
    removed.push_back(place->second->file);
    Remove(place->second);
  }
  return removed;
}

void FileIndex::RemoveScope(std::uint64_t scope_tag) {
  for (Entries* entries : {&own_entries_, &foreign_entries_}) {
    for (auto entry = entries->begin(); entry != entries->end();) {
      const auto here = entry++;
      if (here->file.id.scope_tag == scope_tag) Remove(here);
    }
  }
}

std::vector<BlockFile> FileIndex::RemoveToBudget(std::int64_t budget_bytes) {
  std::vector<BlockFile> removed;
  for (Entries* entries : {&foreign_entries_, &own_entries_}) {
    while (bytes_ > budget_bytes && !entries->empty()) {
      removed.push_back(entries->back().file);
      Remove(std::prev(entries->end()));
    }
  }
  return removed;
}

void FileIndex::Remove(Entries::iterator entry) {
  const auto [first, last] = by_key_.equal_range(entry->file.id.key);
  for (auto place = first; place != last; ++place) {
    if (place->second == entry) {
      by_key_.erase(place);
      break;
    }
  }
  bytes_ -= entry->file.bytes;
  const auto scope = scope_bytes_.find(entry->file.id.scope_tag);
  scope->second -= entry->file.bytes;
  if (scope->second == 0) scope_bytes_.erase(scope);
  ListOf(entry->file.id).erase(entry);
}

}  // namespace inferscale
