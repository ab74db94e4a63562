#include "kv/block_directory.h"

#include <algorithm>
#include <iterator>
#include <string>
#include <utility>

namespace inferscale {

namespace {

bool Below(const std::unordered_map<std::uint64_t, std::uint64_t>& fences,
           const DirectoryBlock& block) {
  const auto fence = fences.find(block.scope_tag);
  return fence != fences.end() && block.epoch < fence->second;
}

}  // namespace

Result<BlockDirectory::Reservation> BlockDirectory::Reserve(DirectoryBlock block) {
  if (Below(fences_, block)) {
    return FailedPrecondition("the block's scope has been erased since it was asked for");
  }
  return Place(std::move(block));
}

Result<BlockDirectory::Reservation> BlockDirectory::Place(DirectoryBlock block) {
  if (entries_.contains(block.key)) return AlreadyExists("the block is stored or under way");

  Reservation reservation;
  std::vector<KvKey>& victims = reservation.evict;
  std::int64_t freed = 0;
  auto after = recency_.end();  // what stands from here on has been looked at
  for (auto looked_at = recency_.size();
       bytes_ - freed + block.bytes > budget_bytes_ && looked_at > 0; --looked_at) {
    const auto place = std::prev(after);
    const Entry& entry = *entries_.find(*place)->second;
    // What is still being stored stays: its ranks would store it after they were told to drop it.
    if (entry.pins > 0 || entry.stored_ranks < ranks_) {
      recency_.splice(recency_.begin(), recency_, place);  // not in the way of the next search
      continue;
    }
    victims.push_back(*place);
    freed += entry.block.bytes;
    after = place;
  }
  if (bytes_ - freed + block.bytes > budget_bytes_) {
    return ResourceExhausted("the block of " + std::to_string(block.bytes) +
                             " bytes does not fit beside what is in use in the budget of " +
                             std::to_string(budget_bytes_) + " bytes a rank");
  }
  for (const KvKey& victim : victims) Remove(entries_.find(victim));
  evictions_ += static_cast<std::int64_t>(victims.size());

  bytes_ += block.bytes;
  recency_.push_front(block.key);
  const KvKey key = block.key;
  reservation.serial = ++last_serial_;
  entries_.emplace(key, std::make_unique<Entry>(
                            Entry{std::move(block), reservation.serial, 0, 0, recency_.begin()}));
  return reservation;
}

bool BlockDirectory::Stored(const KvKey& key, std::uint64_t serial) {
  const auto entry = entries_.find(key);
  if (entry == entries_.end() || entry->second->serial != serial) return false;
  if (entry->second->stored_ranks < ranks_) ++entry->second->stored_ranks;
  return entry->second->stored_ranks == ranks_;
}

bool BlockDirectory::Restored(DirectoryBlock block) {
  const auto entry = entries_.find(block.key);
  if (entry != entries_.end()) {
    const DirectoryBlock& known = entry->second->block;
    if (known.scope_tag != block.scope_tag || known.tokens != block.tokens) return false;
    Stored(block.key, entry->second->serial);
    return true;
  }
  if (Below(erased_, block) || bytes_ + block.bytes > budget_bytes_) return false;
  const KvKey key = block.key;
  const auto place = Place(std::move(block));
  if (!place.ok()) return false;
  Stored(key, place->serial);
  return true;
}

std::vector<KvKey> BlockDirectory::DropIncomplete() {
  std::vector<KvKey> keys;
  for (const auto& [key, entry] : entries_) {
    if (entry->stored_ranks < ranks_) keys.push_back(key);
  }
  for (const KvKey& key : keys) Erase(key);
  return keys;
}

bool BlockDirectory::Lost(const KvKey& key, std::uint64_t serial) {
  const auto entry = entries_.find(key);
  if (entry == entries_.end() || (serial != 0 && entry->second->serial != serial)) return false;
  Remove(entry);
  return true;
}

const DirectoryBlock* BlockDirectory::Find(const KvKey& key,
                                           std::span<const TokenId> tokens) const {
  const auto entry = entries_.find(key);
  if (entry == entries_.end() || entry->second->stored_ranks < ranks_ ||
      !std::equal(tokens.begin(), tokens.end(), entry->second->block.tokens.begin(),
                  entry->second->block.tokens.end())) {
    return nullptr;
  }
  return &entry->second->block;
}

bool BlockDirectory::Ready(const KvKey& key) const {
  const auto entry = entries_.find(key);
  return entry != entries_.end() && entry->second->stored_ranks == ranks_;
}

const DirectoryBlock* BlockDirectory::Get(const KvKey& key) const {
  const auto entry = entries_.find(key);
  return entry == entries_.end() ? nullptr : &entry->second->block;
}

void BlockDirectory::SetInArena(const KvKey& key, std::int32_t rank, bool is_there) {
  const auto entry = entries_.find(key);
  if (entry == entries_.end() || rank < 0 || rank >= 64) return;
  const std::uint64_t bit = std::uint64_t{1} << rank;
  std::uint64_t& arenas = entry->second->block.arenas;
  arenas = is_there ? arenas | bit : arenas & ~bit;
}

std::uint64_t BlockDirectory::Pin(const KvKey& key) {
  const auto entry = entries_.find(key);
  if (entry == entries_.end() || entry->second->stored_ranks < ranks_) return 0;
  ++entry->second->pins;
  ++pins_;
  return entry->second->serial;
}

void BlockDirectory::Unpin(const KvKey& key, std::uint64_t serial) {
  const auto entry = entries_.find(key);
  if (entry == entries_.end() || entry->second->serial != serial || entry->second->pins == 0)
    return;
  --pins_;
  // Here and not when it is found: a request's end is nobody's wait.
  if (--entry->second->pins == 0) {
    recency_.splice(recency_.begin(), recency_, entry->second->place);
  }
}

void BlockDirectory::Remove(Entries::iterator place) {
  bytes_ -= place->second->block.bytes;
  pins_ -= place->second->pins;
  recency_.erase(place->second->place);
  entries_.erase(place);
}

bool BlockDirectory::Erase(const KvKey& key) {
  const auto entry = entries_.find(key);
  if (entry == entries_.end()) return false;
  Remove(entry);
  return true;
}

void BlockDirectory::Fence(std::uint64_t scope_tag, std::uint64_t epoch) {
  std::uint64_t& fence = fences_[scope_tag];
  fence = std::max(fence, epoch);
}

std::vector<KvKey> BlockDirectory::EraseScope(std::uint64_t scope_tag, std::uint64_t epoch) {
  Fence(scope_tag, epoch);
  std::uint64_t& fence = erased_[scope_tag];
  fence = std::max(fence, epoch);
  std::vector<KvKey> keys;
  for (const auto& [key, entry] : entries_) {
    if (entry->block.scope_tag == scope_tag) keys.push_back(key);
  }
  for (const KvKey& key : keys) Erase(key);
  return keys;
}

void BlockDirectory::Clear() {
  entries_.clear();
  recency_.clear();
  bytes_ = 0;
  pins_ = 0;
}

}  // namespace inferscale
