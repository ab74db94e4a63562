#include "kv/block_directory.h"

#include <algorithm>
#include <iterator>
#include <string>
#include <utility>

#include "base/hash.h"

namespace inferscale {

namespace {

bool Below(const std::unordered_map<std::uint64_t, std::uint64_t>& fences,
           const DirectoryBlock& block) {
  const auto fence = fences.find(block.scope_tag);
  return fence != fences.end() && block.epoch < fence->second;
}

}  // namespace

TokenDigest TokenDigest::Of(std::span<const TokenId> tokens) {
  return {Xxh3_64({reinterpret_cast<const std::uint8_t*>(tokens.data()), tokens.size_bytes()}),
          static_cast<std::int32_t>(tokens.size())};
}

Result<BlockDirectory::Reservation> BlockDirectory::Reserve(const DirectoryBlock& block) {
  if (Below(fences_, block)) {
    return FailedPrecondition("the block's scope has been erased since it was asked for");
  }
  return Place(block);
}

Result<BlockDirectory::Reservation> BlockDirectory::Place(const DirectoryBlock& block) {
  if (entries_.Contains(block.key)) return AlreadyExists("the block is stored or under way");

  Reservation reservation;
  std::vector<KvKey>& victims = reservation.evict;
  std::int64_t freed = 0;
  const auto is_too_much = [&] { return bytes_ - freed + block.bytes > budget_bytes_; };
  if (is_too_much()) {
    recency_.FromOldest(
        // What is still being stored stays: its ranks would store it after they were told to drop
        // it.
        [&](const Entry& entry) { return entry.pins > 0 || entry.stored_ranks < ranks_; },
        [&](const Entry& entry) {
          victims.push_back(entry.key());
          freed += entry.block.bytes;
          return is_too_much();
        });
  }
  if (is_too_much()) {
    return ResourceExhausted("the block of " + std::to_string(block.bytes) +
                             " bytes does not fit beside what is in use in the budget of " +
                             std::to_string(budget_bytes_) + " bytes a rank");
  }
  for (const KvKey& victim : victims) Remove(*entries_.Find(victim));
  evictions_ += static_cast<std::int64_t>(victims.size());

  bytes_ += block.bytes;
  reservation.serial = ++last_serial_;
  Entry* const entry = std::pmr::polymorphic_allocator<>(&pool_).new_object<Entry>();
  entry->block = block;
  entry->serial = reservation.serial;
  recency_.Insert(*entry);
  entries_.Insert(*entry);
  return reservation;
}

bool BlockDirectory::Stored(const KvKey& key, std::uint64_t serial) {
  Entry* const entry = entries_.Find(key);
  if (entry == nullptr || entry->serial != serial) return false;
  if (entry->stored_ranks < ranks_) ++entry->stored_ranks;
  return entry->stored_ranks == ranks_;
}

bool BlockDirectory::Restored(const DirectoryBlock& block) {
  const Entry* const entry = entries_.Find(block.key);
  if (entry != nullptr) {
    const DirectoryBlock& known = entry->block;
    if (known.scope_tag != block.scope_tag || known.tokens != block.tokens) return false;
    Stored(block.key, entry->serial);
    return true;
  }
  if (Below(erased_, block) || bytes_ + block.bytes > budget_bytes_) return false;
  const KvKey key = block.key;
  const auto place = Place(block);
  if (!place.ok()) return false;
  Stored(key, place->serial);
  return true;
}

std::vector<KvKey> BlockDirectory::DropIncomplete() {
  std::vector<KvKey> keys;
  recency_.ForEach([&](const Entry& entry) {
    if (entry.stored_ranks < ranks_) keys.push_back(entry.key());
  });
  for (const KvKey& key : keys) Erase(key);
  return keys;
}

bool BlockDirectory::Lost(const KvKey& key, std::uint64_t serial) {
  Entry* const entry = entries_.Find(key);
  if (entry == nullptr || (serial != 0 && entry->serial != serial)) return false;
  Remove(*entry);
  return true;
}

const DirectoryBlock* BlockDirectory::Find(const KvKey& key,
                                           std::span<const TokenId> tokens) const {
  const Entry* const entry = entries_.Find(key);
  if (entry == nullptr || entry->stored_ranks < ranks_ ||
      entry->block.tokens != TokenDigest::Of(tokens)) {
    return nullptr;
  }
  return &entry->block;
}

bool BlockDirectory::Ready(const KvKey& key) const {
  const Entry* const entry = entries_.Find(key);
  return entry != nullptr && entry->stored_ranks == ranks_;
}

const DirectoryBlock* BlockDirectory::Get(const KvKey& key) const {
  const Entry* const entry = entries_.Find(key);
  return entry == nullptr ? nullptr : &entry->block;
}

void BlockDirectory::SetInArena(const KvKey& key, std::int32_t rank, bool is_there) {
  Entry* const entry = entries_.Find(key);
  if (entry == nullptr || rank < 0 || rank >= 64) return;
  const std::uint64_t bit = std::uint64_t{1} << rank;
  std::uint64_t& arenas = entry->block.arenas;
  arenas = is_there ? arenas | bit : arenas & ~bit;
}

std::uint64_t BlockDirectory::Pin(const KvKey& key) {
  Entry* const entry = entries_.Find(key);
  if (entry == nullptr || entry->stored_ranks < ranks_) return 0;
  ++entry->pins;
  ++pins_;
  return entry->serial;
}

void BlockDirectory::Unpin(const KvKey& key, std::uint64_t serial) {
  Entry* const entry = entries_.Find(key);
  if (entry == nullptr || entry->serial != serial || entry->pins == 0) return;
  --pins_;
  // Here and not when it is found: a request's end is nobody's wait.
  if (--entry->pins == 0) recency_.Use(*entry);
}

void BlockDirectory::Remove(Entry& entry) {
  bytes_ -= entry.block.bytes;
  pins_ -= entry.pins;
  recency_.Erase(entry);
  entries_.Erase(entry);
  std::pmr::polymorphic_allocator<>(&pool_).delete_object(&entry);
}

bool BlockDirectory::Erase(const KvKey& key) {
  Entry* const entry = entries_.Find(key);
  if (entry == nullptr) return false;
  Remove(*entry);
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
  recency_.ForEach([&](const Entry& entry) {
    if (entry.block.scope_tag == scope_tag) keys.push_back(entry.key());
  });
  for (const KvKey& key : keys) Erase(key);
  return keys;
}

void BlockDirectory::Clear() {
  std::vector<KvKey> keys;
  recency_.ForEach([&](const Entry& entry) { keys.push_back(entry.key()); });
  for (const KvKey& key : keys) Erase(key);
  bytes_ = 0;
  pins_ = 0;
}

}  // namespace inferscale
