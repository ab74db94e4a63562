#include "kv/host_tier.h"

#include <utility>

namespace inferscale {

void HostTier::Insert(std::shared_ptr<const KvBlock> block) { Insert(std::move(block), 0); }

void HostTier::InsertPinned(std::shared_ptr<const KvBlock> block) { Insert(std::move(block), 1); }

void HostTier::Insert(std::shared_ptr<const KvBlock> block, std::int64_t pins) {
  const KvKey key = block->info().key;
  if (const auto old = entries_.find(key); old != entries_.end()) {
    if (old->second.block == block) {
      if (pins > 0) {
        Pin(key);
      } else if (old->second.pins == 0) {
        unpinned_.splice(unpinned_.begin(), unpinned_, old->second.unpinned_place);
      }
      return;
    }
    Remove(old);
  }
  const auto bytes = static_cast<std::int64_t>(block->MemorySizeBytes());
  // Evicting everything else could not make room for it.
  if (pins == 0 && bytes > budget_bytes_) return;

  // The same object may still be pinned from before an erasure: it is counted once.
  if (const auto detached = detached_.find(block.get()); detached != detached_.end()) {
    pins += detached->second.pins;
    bytes_ -= detached->second.bytes;
    --pinned_blocks_;
    detached_.erase(detached);
  }
  Entry entry{std::move(block), bytes, pins, unpinned_.end(), unfiled_.end()};
  if (pins == 0) {
    unpinned_.push_front(key);
    entry.unpinned_place = unpinned_.begin();
  } else {
    ++pinned_blocks_;
  }
  bytes_ += bytes;
  entries_.emplace(key, std::move(entry));
  EvictToBudget();
}

std::shared_ptr<const KvBlock> HostTier::Pin(const KvKey& key) {
  const auto place = entries_.find(key);
  if (place == entries_.end()) return nullptr;
  Entry& entry = place->second;
  if (entry.pins++ == 0) {
    unpinned_.erase(entry.unpinned_place);
    ++pinned_blocks_;
  }
  return entry.block;
}

void HostTier::Unpin(const KvBlock& block) {
  if (const auto detached = detached_.find(&block); detached != detached_.end()) {
    if (--detached->second.pins == 0) {
      bytes_ -= detached->second.bytes;
      --pinned_blocks_;
      detached_.erase(detached);
    }
    return;
  }
  const auto place = entries_.find(block.info().key);
  if (place == entries_.end() || place->second.block.get() != &block) return;
  Entry& entry = place->second;
  if (--entry.pins > 0) return;
  --pinned_blocks_;
  unpinned_.push_front(place->first);
  entry.unpinned_place = unpinned_.begin();
  if (entry.bytes > budget_bytes_) {
    Remove(place);
    ++evictions_;
  }
  EvictToBudget();
}

void HostTier::Erase(const KvKey& key) {
  if (const auto place = entries_.find(key); place != entries_.end()) Remove(place);
}

void HostTier::EraseExactly(const KvBlock& block) {
  const auto place = entries_.find(block.info().key);
  if (place != entries_.end() && place->second.block.get() == &block) Remove(place);
}

void HostTier::EraseScope(std::uint64_t scope_tag) {
  for (auto place = entries_.begin(); place != entries_.end();) {
    const auto here = place++;
    if (here->second.block->info().scope_tag == scope_tag) Remove(here);
  }
}

HostTier::Entry* HostTier::FindExactly(const KvBlock& block) {
  const auto place = entries_.find(block.info().key);
  if (place == entries_.end() || place->second.block.get() != &block) return nullptr;
  return &place->second;
}

void HostTier::MarkUnfiled(const KvBlock& block) {
  Entry* const entry = FindExactly(block);
  if (entry == nullptr) return;
  if (entry->unfiled_place == unfiled_.end()) {
    entry->unfiled_place = unfiled_.insert(unfiled_.end(), block.info().key);
  } else {
    unfiled_.splice(unfiled_.end(), unfiled_, entry->unfiled_place);
  }
}

void HostTier::MarkFiled(const KvBlock& block) {
  Entry* const entry = FindExactly(block);
  if (entry == nullptr || entry->unfiled_place == unfiled_.end()) return;
  unfiled_.erase(entry->unfiled_place);
  entry->unfiled_place = unfiled_.end();
}

std::shared_ptr<const KvBlock> HostTier::OldestUnfiled() const {
  return unfiled_.empty() ? nullptr : entries_.at(unfiled_.front()).block;
}

void HostTier::Remove(Entries::iterator place) {
  Entry& entry = place->second;
  if (entry.unfiled_place != unfiled_.end()) unfiled_.erase(entry.unfiled_place);
  if (entry.pins > 0) {
    detached_.emplace(entry.block.get(), Detached{entry.bytes, entry.pins});
  } else {
    unpinned_.erase(entry.unpinned_place);
    bytes_ -= entry.bytes;
  }
  entries_.erase(place);
}

void HostTier::EvictToBudget() {
  while (bytes_ > budget_bytes_ && !unpinned_.empty()) {
    Remove(entries_.find(unpinned_.back()));
    ++evictions_;
  }
}

}  // namespace inferscale
