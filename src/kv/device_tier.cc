#include "kv/device_tier.h"

#include <algorithm>
#include <string>

namespace inferscale {
namespace {

constexpr std::int64_t kAlignment = 256;
constexpr std::int64_t kMostBounceBytes = std::int64_t{8} << 20;
constexpr std::int64_t kStagingBytes = std::int64_t{16} << 20;
constexpr std::size_t kStagingSlots = 4;
// Free bytes that are kept before anything is evicted for want of a gap: with them, a run of
// neighbours of about 20 times the wanted size has enough gaps, so little has to be moved.
constexpr std::int64_t kSlackShare = 20;

std::int64_t RoundUp(std::int64_t bytes) {
  return (bytes + kAlignment - 1) / kAlignment * kAlignment;
}

/// Of a block's place.
template <typename Block>
std::int64_t SizeOf(const Block& block) {
  return RoundUp(block.info.bytes);
}

}  // namespace

DeviceTier::Pin& DeviceTier::Pin::operator=(Pin&& other) noexcept {
  if (this != &other) {
    Reset();
    tier_ = other.tier_;
    block_ = std::exchange(other.block_, nullptr);
  }
  return *this;
}

const DeviceBlockInfo& DeviceTier::Pin::info() const { return block_->info; }
std::uint8_t* DeviceTier::Pin::payload() const { return tier_->memory_ + block_->offset; }
void DeviceTier::Pin::MarkBacked() { block_->backed = true; }

void DeviceTier::Pin::Reset() {
  if (block_ != nullptr) tier_->Unpin(std::exchange(block_, nullptr));
}

Result<std::unique_ptr<DeviceTier>> DeviceTier::Create(kernels::Device& device,
                                                       std::int64_t budget_bytes, bool promotes) {
  budget_bytes = budget_bytes / kAlignment * kAlignment;
  if (budget_bytes <= 0) return InvalidArgument("the GPU tier's budget must be positive");
  std::unique_ptr<DeviceTier> tier(new DeviceTier(device, budget_bytes));
  INFERSCALE_RETURN_IF_ERROR(tier->Allocate(promotes));
  return tier;
}

Status DeviceTier::Allocate(bool promotes) {
  bounce_bytes_ = std::min(kMostBounceBytes, RoundUp(budget_bytes_ / 16));
  INFERSCALE_ASSIGN_OR_RETURN(memory_, device_.Allocate(budget_bytes_ + bounce_bytes_));
  if (promotes) {
    INFERSCALE_ASSIGN_OR_RETURN(
        staging_,
        PinnedRing::Create(device_, kStagingSlots, std::min(kStagingBytes, budget_bytes_)));
  }
  AddGap(0, budget_bytes_);
  return OkStatus();
}

DeviceTier::~DeviceTier() {
  // Memory must not go while a stream still works on it.
  for (const std::uint64_t event : {copied_, used_}) {
    if (event != 0) static_cast<void>(device_.Wait(event));
  }
  staging_ = nullptr;
  Clear();
  while (!blocks_.empty()) Free(blocks_.begin()->second);
  if (memory_ != nullptr) device_.Free(memory_);
}

void DeviceTier::AddGap(std::int64_t offset, std::int64_t size) {
  free_bytes_ += size;
  auto after = gaps_.lower_bound(offset);
  if (after != gaps_.end() && after->first == offset + size) {
    size += after->second;
    sizes_.erase({after->second, after->first});
    after = gaps_.erase(after);
  }
  if (after != gaps_.begin()) {
    const auto before = std::prev(after);
    if (before->first + before->second == offset) {
      offset = before->first;
      size += before->second;
      sizes_.erase({before->second, before->first});
      gaps_.erase(before);
    }
  }
  gaps_.emplace(offset, size);
  sizes_.emplace(size, offset);
}

void DeviceTier::RemoveGap(std::map<std::int64_t, std::int64_t>::iterator gap) {
  free_bytes_ -= gap->second;
  sizes_.erase({gap->second, gap->first});
  gaps_.erase(gap);
}

void DeviceTier::Free(Block* block) {
  const std::int64_t offset = block->offset, bytes = block->info.bytes;
  counters_.payload_bytes -= bytes;
  blocks_.erase(offset);
  std::pmr::polymorphic_allocator<>(&pool_).delete_object(block);
  AddGap(offset, RoundUp(bytes));
}

DeviceTier::Pin DeviceTier::Acquire(const KvKey& key) {
  Pin pin = Hold(key);
  ++(pin ? counters_.hits : counters_.misses);
  return pin;
}

DeviceTier::Pin DeviceTier::Hold(const KvKey& key) {
  Block* const found = directory_.Find(key);
  if (found == nullptr) return {};
  ++found->pins;
  return {this, found};
}

void DeviceTier::Unpin(Block* block) {
  if (--block->pins > 0) return;
  if (block->hidden) {
    Free(block);
  } else {
    recency_.Use(*block);
  }
}

bool DeviceTier::EvictOne() {
  const Block* oldest = nullptr;
  recency_.FromOldest([](const Block& block) { return block.pins > 0; },
                      [&](const Block& block) {
                        oldest = &block;
                        return false;
                      });
  if (oldest == nullptr) return false;
  const KvKey key = oldest->key();
  if (!oldest->backed) lost_.push_back(key);
  evicted_.push_back(key);
  ++counters_.evictions;
  Erase(key);
  return true;
}

Result<DeviceTier::Pin> DeviceTier::Reserve(const DeviceBlockInfo& info) {
  if (info.bytes > 0 && RoundUp(info.bytes) <= budget_bytes_) Erase(info.key);
  INFERSCALE_ASSIGN_OR_RETURN(Block* const block, Place(info));
  Show(block);
  return Pin(this, block);
}

Result<DeviceTier::Pin> DeviceTier::ReserveHidden(const DeviceBlockInfo& info) {
  INFERSCALE_ASSIGN_OR_RETURN(Block* const block, Place(info));
  return Pin(this, block);
}

void DeviceTier::Publish(const Pin& pin) {
  if (!pin.block_->hidden || Contains(pin.info().key)) return;
  Show(pin.block_);
  pin.block_->backed = true;
  ++counters_.promotions;
  counters_.promoted_bytes += pin.info().bytes;
}

void DeviceTier::Show(Block* block) {
  block->hidden = false;
  recency_.Insert(*block);
  directory_.Insert(*block);
}

Result<DeviceTier::Block*> DeviceTier::Place(const DeviceBlockInfo& info) {
  if (info.bytes <= 0 || info.tokens <= 0) {
    return InvalidArgument("a KV block has at least one token and one byte");
  }
  const std::int64_t size = RoundUp(info.bytes);
  if (size > budget_bytes_) {
    return ResourceExhausted("a KV block of " + std::to_string(info.bytes) +
                             " bytes does not fit in the GPU tier of " +
                             std::to_string(budget_bytes_) + "; raise gpu_bytes");
  }
  auto fit = sizes_.lower_bound({size, 0});
  bool evictable = true;
  while (fit == sizes_.end()) {
    if (free_bytes_ >= size + budget_bytes_ / kSlackShare || (!evictable && free_bytes_ >= size)) {
      INFERSCALE_ASSIGN_OR_RETURN(const bool compacted, Compact(size));
      fit = sizes_.lower_bound({size, 0});
      if (compacted) continue;
    }
    if (!evictable) {
      return ResourceExhausted("the GPU tier has no room for a KV block of " +
                               std::to_string(info.bytes) + " bytes beside those in use");
    }
    evictable = EvictOne();
    fit = sizes_.lower_bound({size, 0});
  }
  const std::int64_t offset = fit->second, gap = fit->first;
  RemoveGap(gaps_.find(offset));
  if (gap > size) AddGap(offset + size, gap - size);
  Block* const block = std::pmr::polymorphic_allocator<>(&pool_).new_object<Block>();
  block->info = info;
  block->offset = offset;
  block->pins = 1;
  block->hidden = true;
  counters_.payload_bytes += info.bytes;
  blocks_.emplace(offset, block);
  return block;
}

Result<bool> DeviceTier::Compact(std::int64_t size) {
  std::vector<Block*> order;
  order.reserve(blocks_.size());
  for (const auto& [offset, block] : blocks_) order.push_back(block);
  const auto begin_of = [&](std::size_t i) {
    return i < order.size() ? order[i]->offset : budget_bytes_;
  };
  const auto end_before = [&](std::size_t i) {
    return i == 0 ? 0 : order[i - 1]->offset + SizeOf(*order[i - 1]);
  };
  // The run [first, last) of blocks that can be moved, whose gaps suffice, with the least to move.
  std::size_t best_first = 0, best_last = 0, first = 0;
  std::int64_t best_bytes = -1, bytes = 0;
  for (std::size_t last = 0; last <= order.size(); ++last) {
    if (last > 0) {
      if (order[last - 1]->pins > 0) {
        first = last;
        bytes = 0;
        continue;
      }
      bytes += SizeOf(*order[last - 1]);
    }
    while (first < last &&
           begin_of(last) - end_before(first + 1) - (bytes - SizeOf(*order[first])) >= size) {
      bytes -= SizeOf(*order[first]);
      ++first;
    }
    if (begin_of(last) - end_before(first) - bytes >= size &&
        (best_bytes < 0 || bytes < best_bytes)) {
      best_first = first;
      best_last = last;
      best_bytes = bytes;
    }
  }
  if (best_bytes < 0) return false;
  const std::int64_t end = begin_of(best_last);
  std::int64_t to = end_before(best_first);
  for (auto gap = gaps_.lower_bound(to); gap != gaps_.end() && gap->first < end;) {
    RemoveGap(gap++);
  }
  Status status = BeginCopies();
  for (std::size_t i = best_first; i < best_last; ++i) {
    Block* const block = order[i];
    if (block->offset != to) {
      if (status.ok()) status = Move(block->offset, to, SizeOf(*block));
      auto node = blocks_.extract(block->offset);
      node.key() = to;
      block->offset = to;
      blocks_.insert(std::move(node));
    }
    to += SizeOf(*block);
  }
  AddGap(to, end - to);
  if (status.ok()) status = EndCopies();
  if (!status.ok()) {
    // Nobody knows what the moved blocks hold now.
    recency_.ForEach([&](const Block& block) {
      lost_.push_back(block.key());
      evicted_.push_back(block.key());
    });
    Clear();
    return status;
  }
  return true;
}

Status DeviceTier::Move(std::int64_t from, std::int64_t to, std::int64_t size) {
  counters_.moved_bytes += size;
  const std::uintptr_t stream = device_.copy_stream();
  const std::int64_t distance = from - to;
  // The two sides of a copy must not overlap.
  const bool direct = distance >= std::min(size, bounce_bytes_);
  const std::int64_t piece = direct ? distance : bounce_bytes_;
  std::uint8_t* const bounce = memory_ + budget_bytes_;
  for (std::int64_t done = 0; done < size; done += piece) {
    const std::int64_t count = std::min(piece, size - done);
    std::uint8_t* const source = memory_ + from + done;
    std::uint8_t* const target = memory_ + to + done;
    if (direct) {
      INFERSCALE_RETURN_IF_ERROR(device_.CopyOnDevice(target, source, count, stream));
    } else {
      INFERSCALE_RETURN_IF_ERROR(device_.CopyOnDevice(bounce, source, count, stream));
      INFERSCALE_RETURN_IF_ERROR(device_.CopyOnDevice(target, bounce, count, stream));
    }
  }
  return OkStatus();
}

Status DeviceTier::BeginCopies() {
  if (used_ > copies_wait_for_) {
    INFERSCALE_RETURN_IF_ERROR(device_.StreamWait(device_.copy_stream(), used_));
    copies_wait_for_ = used_;
  }
  return OkStatus();
}

Status DeviceTier::EndCopies() {
  INFERSCALE_ASSIGN_OR_RETURN(copied_, device_.Record(device_.copy_stream()));
  return OkStatus();
}

Status DeviceTier::BeforeUse(std::uintptr_t stream) {
  if (stream != user_) {
    if (used_ != 0) INFERSCALE_RETURN_IF_ERROR(device_.StreamWait(stream, used_));
    user_ = stream;
    user_waits_for_ = 0;
  }
  if (copied_ > user_waits_for_) {
    INFERSCALE_RETURN_IF_ERROR(device_.StreamWait(stream, copied_));
    user_waits_for_ = copied_;
  }
  return OkStatus();
}

Status DeviceTier::AfterUse(std::uintptr_t stream) {
  INFERSCALE_ASSIGN_OR_RETURN(used_, device_.Record(stream));
  return OkStatus();
}

Result<DeviceTier::Pin> DeviceTier::Promote(const DeviceBlockInfo& info,
                                            std::span<const std::uint8_t> payload) {
  if (static_cast<std::int64_t>(payload.size()) != info.bytes) {
    return InvalidArgument("the payload has " + std::to_string(payload.size()) +
                           " bytes, the block " + std::to_string(info.bytes));
  }
  INFERSCALE_ASSIGN_OR_RETURN(Pin pin, Reserve(info));
  const Status status = Fill(*pin.block_, payload);
  if (!status.ok()) {
    Erase(info.key);
    return status;
  }
  pin.MarkBacked();
  ++counters_.promotions;
  counters_.promoted_bytes += info.bytes;
  return pin;
}

Status DeviceTier::Fill(const Block& block, std::span<const std::uint8_t> payload) {
  INFERSCALE_RETURN_IF_ERROR(BeginCopies());
  if (staging_ == nullptr) return FailedPrecondition("this tier was made without staging buffers");
  INFERSCALE_RETURN_IF_ERROR(staging_->Copy(memory_ + block.offset, payload));
  copied_ = staging_->last_event();
  return OkStatus();
}

void DeviceTier::Erase(const KvKey& key) {
  Block* const block = directory_.Find(key);
  if (block == nullptr) return;
  directory_.Erase(*block);
  recency_.Erase(*block);
  block->hidden = true;
  if (block->pins == 0) Free(block);
}

void DeviceTier::EraseScope(std::uint64_t scope_tag) {
  std::vector<KvKey> keys;
  recency_.ForEach([&](const Block& block) {
    if (block.info.scope_tag == scope_tag) keys.push_back(block.key());
  });
  for (const KvKey& key : keys) Erase(key);
}

void DeviceTier::Clear() {
  std::vector<KvKey> keys;
  recency_.ForEach([&](const Block& block) { keys.push_back(block.key()); });
  for (const KvKey& key : keys) Erase(key);
}

DeviceTierStats DeviceTier::Stats() const {
  DeviceTierStats stats = counters_;
  stats.budget_bytes = budget_bytes_;
  stats.blocks = static_cast<std::int64_t>(directory_.size());
  stats.free_bytes = free_bytes_;
  return stats;
}

}  // namespace inferscale
