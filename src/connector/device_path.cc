#include "connector/device_path.h"

#include <algorithm>
#include <iterator>
#include <string>
#include <unordered_set>
#include <utility>

namespace inferscale {
namespace {

// What one launch takes; a step with more is several launches.
constexpr std::int32_t kMaxFacts = 16384;
constexpr std::int32_t kLeastTableBlocks = 1 << 16;
// The share of the arena that captures may hold until they are written behind. Nothing else can go
// meanwhile: if facts are captured faster than they can be written, those of chats would.
constexpr std::int64_t kUnwrittenShare = 2;

std::int32_t MaxTableBlocks(const DevicePathOptions& options) {
  return std::max(kLeastTableBlocks, options.max_position / options.block_slots + 2);
}

}  // namespace

void DevicePath::Batch::Clear() {
  facts.clear();
  table.clear();
  pins.clear();
  last_table = nullptr;
}

Result<std::unique_ptr<DevicePath>> DevicePath::Create(std::unique_ptr<kernels::Device> device,
                                                       DevicePathOptions options, KvStore& store) {
  const auto layers = static_cast<std::size_t>(options.view.layers);
  if (device == nullptr) return InvalidArgument("no device was given");
  if (options.cache.key_base.size() != layers || options.cache.value_base.size() != layers) {
    return InvalidArgument("the cache has " + std::to_string(options.cache.key_base.size()) +
                           " layers, the model " + std::to_string(layers));
  }
  std::unique_ptr<DevicePath> path(new DevicePath(std::move(device), std::move(options), store));
  INFERSCALE_ASSIGN_OR_RETURN(path->tier_,
                              DeviceTier::Create(*path->device_, path->options_.arena_bytes));
  if (path->options_.pinned_bytes > 0) {
    Result<std::unique_ptr<PinnedTier>> pinned =
        PinnedTier::Create(*path->device_, path->options_.pinned_bytes);
    if (!pinned.ok()) {
      return ResourceExhausted(std::string(pinned.status().message()) + "; lower pinned_bytes");
    }
    path->pinned_ = std::move(*pinned);
  }
  INFERSCALE_RETURN_IF_ERROR(path->SetStore(store));
  return path;
}

DevicePath::~DevicePath() {
  writer_ = nullptr;  // finish first: they use the arena
  promoter_ = nullptr;
  under_way_.clear();
  promoting_.clear();
  kept_.clear();
  batch_.Clear();
  used_.clear();
}

Status DevicePath::SetStore(KvStore& store) {
  INFERSCALE_ASSIGN_OR_RETURN(auto writer, WriteBehind::Create(*device_, store, pinned_.get()));
  INFERSCALE_ASSIGN_OR_RETURN(auto promoter,
                              Promoter::Create(*device_, store, pinned_.get(), options_.view));
  writer_ = std::move(writer);
  promoter_ = std::move(promoter);
  promoting_.clear();  // called off, and their copies have ended with their thread
  store_ = &store;
  return OkStatus();
}

Status DevicePath::SetRope(const RopeTables& rope) {
  const RopeSpec& spec = rope.spec();
  kernels::TransferSetup setup;
  setup.view = options_.view;
  setup.rope = {rope.cos_sin().data(),
                spec.layer_group.data(),
                static_cast<std::int32_t>(spec.groups.size()),
                rope.positions(),
                spec.width,
                spec.pairing};
  const DeviceCache& cache = options_.cache;
  const auto pointers = [](const std::vector<std::uintptr_t>& addresses) {
    std::vector<void*> out;
    for (const std::uintptr_t address : addresses) {
      out.push_back(reinterpret_cast<void*>(address));  // NOLINT(performance-no-int-to-ptr)
    }
    return out;
  };
  const std::vector<void*> keys = pointers(cache.key_base), values = pointers(cache.value_base);
  kernels::PagedLayout& layout = setup.layout;
  layout.type = cache.type;
  layout.key_base = keys.data();
  layout.value_base = values.data();
  layout.block_slots = options_.block_slots;
  layout.slots = options_.engine_blocks * options_.block_slots;
  layout.key_block_stride = cache.key_block_stride;
  layout.key_slot_stride = cache.key_slot_stride;
  layout.key_head_stride = cache.key_head_stride;
  layout.key_dim_stride = cache.key_dim_stride;
  layout.value_block_stride = cache.value_block_stride;
  layout.value_slot_stride = cache.value_slot_stride;
  layout.value_head_stride = cache.value_head_stride;
  layout.value_dim_stride = cache.value_dim_stride;
  setup.max_facts = kMaxFacts;
  setup.max_table_blocks = MaxTableBlocks(options_);
  INFERSCALE_ASSIGN_OR_RETURN(transfer_, device_->MakeTransfer(setup));
  return OkStatus();
}

bool DevicePath::Fits(std::int64_t table_blocks) const {
  return batch_.facts.size() < static_cast<std::size_t>(kMaxFacts) &&
         static_cast<std::int64_t>(batch_.table.size()) + table_blocks <= MaxTableBlocks(options_);
}

std::int32_t DevicePath::Place(std::span<const std::int32_t> table, std::int32_t table_begin,
                               std::int32_t position, std::int32_t count) {
  // Consecutive pieces of one request share its blocks in the batch's table.
  if (batch_.last_table != table.data() || batch_.last_begin != table_begin) {
    batch_.last_table = table.data();
    batch_.last_begin = table_begin;
    batch_.last_start = static_cast<std::int32_t>(batch_.table.size());
  }
  const std::int32_t end = position + count - table_begin;
  const auto blocks =
      static_cast<std::size_t>((end + options_.block_slots - 1) / options_.block_slots);
  const std::size_t present = batch_.table.size() - static_cast<std::size_t>(batch_.last_start);
  if (blocks > present) {
    batch_.table.insert(batch_.table.end(), table.begin() + static_cast<std::ptrdiff_t>(present),
                        table.begin() + static_cast<std::ptrdiff_t>(blocks));
  }
  return batch_.last_start * options_.block_slots + position - table_begin;
}

// The arena may be full of what this step uses, or of what is still being written behind or
// promoted: that ends by itself. What is kept for later steps goes last, and nobody is to wait for
// it any longer.
template <typename Attempt>
Result<DeviceTier::Pin> DevicePath::WithRoom(Attempt attempt, std::uintptr_t stream) {
  for (;;) {
    Result<DeviceTier::Pin> pin = attempt();
    if (pin.ok() || pin.status().code() != StatusCode::kResourceExhausted) return pin;
    if (!used_.empty()) {
      used_.clear();
    } else if (!batch_.facts.empty()) {
      INFERSCALE_RETURN_IF_ERROR(Launch(stream));
    } else if (writer_->WaitForResult()) {
      TakeWritten();
    } else if (promoter_->WaitForResult()) {
      TakePromoted();
    } else if (!kept_.empty()) {
      for (const auto& [key, pin] : kept_) changes_.unpromoted.push_back(key);
      kept_.clear();
    } else {
      return pin;
    }
  }
}

Status DevicePath::AwaitWrites(std::int64_t bytes, std::uintptr_t stream) {
  for (;;) {
    std::int64_t unwritten = under_way_bytes_ + bytes;
    for (const DeviceTier::Pin& pin : batch_.pins) unwritten += pin.info().bytes;
    if (unwritten <= options_.arena_bytes / kUnwrittenShare) return OkStatus();
    if (writer_->WaitForResult()) {
      TakeWritten();
    } else if (!batch_.facts.empty()) {
      INFERSCALE_RETURN_IF_ERROR(Launch(stream));
    } else {
      return OkStatus();  // it alone is more
    }
  }
}

Result<DeviceTier::Pin> DevicePath::PromoteNow(const KvKey& key) {
  if (pinned_ != nullptr) {
    if (const PinnedTier::Pin pin = pinned_->Acquire(key)) {
      return tier_->Promote(pin.info(), pin.payload());
    }
  }
  INFERSCALE_ASSIGN_OR_RETURN(const KvStore::Pin stored, store_->Acquire(key));
  const KvBlockInfo& info = stored->info();
  const kernels::CodecView& view = options_.view;
  const KvGeometry geometry{view.layers, view.kv_heads, view.key_dim, view.value_dim};
  if (info.geometry != geometry || info.codec != view.codec) {
    return NotFound("the KV block is of another shape or codec");
  }
  const auto bytes = static_cast<std::int64_t>(stored->payload().size());
  // No room can be made for it: nothing else is to go for the attempt.
  if (!tier_->CanHold(bytes)) return NotFound("the KV block is larger than the arena");
  return tier_->Promote({key, info.scope_tag, stored->tokens(), bytes}, stored->payload());
}

Status DevicePath::AddLoad(const LoadPiece& piece, std::span<const std::int32_t> table,
                           std::int32_t table_begin, std::uintptr_t stream) {
  if (transfer_ == nullptr) return FailedPrecondition("the model's rotation is not known yet");
  capturing_ = false;
  if (!Fits(static_cast<std::int64_t>(table.size()))) INFERSCALE_RETURN_IF_ERROR(Launch(stream));
  DeviceTier::Pin pin = tier_->Acquire(piece.key);
  if (!pin) {
    INFERSCALE_ASSIGN_OR_RETURN(pin, WithRoom([&] { return PromoteNow(piece.key); }, stream));
    changes_.resident.push_back(piece.key);
  }
  if (piece.first < 0 || piece.count < 1 || piece.first > pin.info().tokens - piece.count) {
    return NotFound("the KV block is shorter than the piece of it that was asked for");
  }
  batch_.facts.push_back({pin.payload(), pin.info().tokens, piece.first, piece.count,
                          piece.position, Place(table, table_begin, piece.position, piece.count)});
  batch_.pins.push_back(std::move(pin));
  return OkStatus();
}

Status DevicePath::AddCapture(const CaptureItem& item, const KvBlockInfo& info,
                              std::uintptr_t stream) {
  if (transfer_ == nullptr) return FailedPrecondition("the model's rotation is not known yet");
  capturing_ = true;
  const auto tokens = static_cast<std::int32_t>(item.tokens.size());
  // Of the table, what the run stands in.
  const std::int32_t first_block = item.position / options_.block_slots;
  const auto table = std::span(item.block_table).subspan(static_cast<std::size_t>(first_block));
  if (!Fits(tokens / options_.block_slots + 2)) INFERSCALE_RETURN_IF_ERROR(Launch(stream));
  const auto bytes = static_cast<std::int64_t>(kernels::PayloadBytes(options_.view, tokens));
  if (!tier_->CanHold(bytes)) return ResourceExhausted("the KV block is larger than the arena");
  INFERSCALE_RETURN_IF_ERROR(AwaitWrites(bytes, stream));
  INFERSCALE_ASSIGN_OR_RETURN(
      DeviceTier::Pin pin, WithRoom(
                               [&] {
                                 return tier_->Reserve({item.key, item.scope_tag, tokens, bytes});
                               },
                               stream));
  batch_.facts.push_back({pin.payload(), tokens, 0, tokens, item.position,
                          Place(table, first_block * options_.block_slots, item.position, tokens)});
  batch_.pins.push_back(std::move(pin));
  captured_.push_back(info);
  return OkStatus();
}

void DevicePath::Discard() {
  if (capturing_) {
    for (const DeviceTier::Pin& pin : batch_.pins) tier_->Erase(pin.info().key);
  }
  captured_.clear();
  batch_.Clear();
  used_.clear();
}

Status DevicePath::LaunchInject(std::uintptr_t stream) { return Launch(stream); }
Status DevicePath::LaunchCapture(std::uintptr_t stream) { return Launch(stream); }

bool DevicePath::Holds(const KvKey& key) const { return tier_->Contains(key) || Stored(key); }

bool DevicePath::Stored(const KvKey& key) const {
  return store_->Presence(std::span(&key, 1))[0] != KvTier::kNone;
}

Status DevicePath::Launch(std::uintptr_t stream) {
  if (batch_.facts.empty()) return OkStatus();
  Status status = tier_->BeforeUse(stream);
  if (status.ok()) {
    const auto facts = static_cast<std::int32_t>(batch_.facts.size());
    const auto blocks = static_cast<std::int32_t>(batch_.table.size());
    const kernels::KernelStatus launched =
        capturing_
            ? transfer_->Capture(batch_.facts.data(), facts, batch_.table.data(), blocks, stream)
            : transfer_->Inject(batch_.facts.data(), facts, batch_.table.data(), blocks, stream);
    if (launched != kernels::KernelStatus::kOk) {
      status = Internal("the kernel refused its arguments (" +
                        std::to_string(static_cast<int>(launched)) + ")");
    }
  }
  if (status.ok()) status = tier_->AfterUse(stream);
  if (capturing_) {
    const Result<std::uint64_t> event =
        status.ok() ? device_->Record(stream) : Result<std::uint64_t>(status);
    for (std::size_t i = 0; i < captured_.size(); ++i) {
      DeviceTier::Pin& pin = batch_.pins[i];
      if (!event.ok()) {
        status = event.status();
        tier_->Erase(pin.info().key);
        continue;
      }
      const std::uint64_t id = ++next_job_;
      writer_->Add({id, pin.payload(), pin.info().bytes, *event, std::move(captured_[i])});
      under_way_bytes_ += pin.info().bytes;
      under_way_.emplace(id, std::move(pin));
    }
    captured_.clear();
  } else {
    // The stream's order suffices from here on. They go when the step ends: the engine is waiting
    // now.
    std::move(batch_.pins.begin(), batch_.pins.end(), std::back_inserter(used_));
  }
  batch_.Clear();
  // Facts of earlier calls have gone with the batch: no caller may take it for the lack of one.
  return status.ok() ? status : Internal(std::string(status.message()));
}

void DevicePath::TakeWritten() {
  for (const WriteBehindResult& result : writer_->TakeFinished()) {
    const auto found = under_way_.find(result.id);
    if (found == under_way_.end()) continue;
    if (result.status.ok()) {
      found->second.MarkBacked();
    } else if (!result.abandoned && Stored(found->second.info().key)) {
      // Its disk is full: backed as long as it is there.
      changes_.unfiled.push_back(found->second.info());
    }
    // Otherwise it is served from the arena until it is evicted, and then reported as lost.
    under_way_bytes_ -= found->second.info().bytes;
    under_way_.erase(found);
  }
}

void DevicePath::Promote(std::span<const PromoteItem> items) {
  for (const PromoteItem& item : items) {
    DeviceTier::Pin& kept = kept_[item.key];
    if (!kept) kept = tier_->Hold(item.key);
    if (kept) {
      changes_.resident.push_back(item.key);  // whatever the scheduler believed
    } else {
      to_promote_.push_back(item);
    }
  }
}

void DevicePath::Release(std::span<const KvKey> keys) {
  for (const KvKey& key : keys) kept_.erase(key);
}

void DevicePath::Advance() {
  used_.clear();  // before room is looked for: a full arena has none while every step loads from it
  if (!promoting_.empty()) TakePromoted();
  std::vector<PromotionJob> jobs;
  for (; !to_promote_.empty(); to_promote_.pop_front()) {
    const PromoteItem& item = to_promote_.front();
    const auto kept = kept_.find(item.key);
    if (kept == kept_.end() || kept->second) continue;
    if ((kept->second = tier_->Hold(item.key))) {  // has been loaded meanwhile
      changes_.resident.push_back(item.key);
      continue;
    }
    const DeviceBlockInfo info{
        item.key, item.scope_tag, item.tokens,
        static_cast<std::int64_t>(kernels::PayloadBytes(options_.view, item.tokens))};
    Result<DeviceTier::Pin> place = tier_->ReserveHidden(info);
    if (!place.ok()) {
      if (place.status().code() == StatusCode::kResourceExhausted)
        break;  // there may be room later
      changes_.unpromoted.push_back(item.key);
      kept_.erase(kept);
      continue;
    }
    jobs.push_back({++next_job_, info, place->payload()});
    promoting_.emplace(next_job_, Promotion{std::move(*place)});
  }
  if (jobs.empty()) return;
  const Status status = tier_->BeforeCopies();
  for (const PromotionJob& job : jobs) {
    if (status.ok()) {
      promoter_->Add(job);
    } else {
      changes_.unpromoted.push_back(job.info.key);
      kept_.erase(job.info.key);
      promoting_.erase(job.id);
    }
  }
}

void DevicePath::TakePromoted() {
  for (const PromotionResult& result : promoter_->TakeFinished()) {
    auto promotion = promoting_.extract(result.id);
    if (promotion.empty() || promotion.mapped().called_off) continue;
    DeviceTier::Pin place = std::move(promotion.mapped().place);
    const KvKey key = place.info().key;
    if (result.status.ok()) {
      tier_->Publish(place);
      changes_.resident.push_back(key);
      const auto kept = kept_.find(key);
      if (kept != kept_.end() && !kept->second) {
        place.Reset();  // it may not be the one that is found
        kept->second = tier_->Hold(key);
      }
      continue;
    }
    const StatusCode code = result.status.code();
    const bool lost = code == StatusCode::kNotFound || code == StatusCode::kDataLoss;
    (lost ? changes_.lost : changes_.unpromoted).push_back(key);
    kept_.erase(key);
  }
}

// What matches does not come any more, and is not kept.
template <typename Predicate>
void DevicePath::CallOff(Predicate matches) {
  std::erase_if(to_promote_, matches);
  for (auto& [id, promotion] : promoting_) {
    if (!matches(promotion.place.info())) continue;
    promotion.called_off = true;
    kept_.erase(promotion.place.info().key);
  }
  promoter_->Abandon(matches);
  TakePromoted();
}

ArenaChanges DevicePath::TakeChanges() {
  TakeWritten();
  if (!promoting_.empty()) TakePromoted();
  ArenaChanges changes = std::exchange(changes_, {});
  for (const KvKey& key : tier_->TakeLost()) {
    if (!Holds(key)) changes.lost.push_back(key);
  }
  for (const KvKey& key : tier_->TakeEvicted()) {
    if (!tier_->Contains(key)) changes.evicted.push_back(key);
  }
  std::erase_if(changes.resident, [&](const KvKey& key) { return !tier_->Contains(key); });
  return changes;
}

void DevicePath::Flush() {
  writer_->Flush();
  TakeWritten();
}

void DevicePath::Erase(std::span<const KvKey> keys) {
  if (keys.empty()) return;
  const std::unordered_set<KvKey> erased(keys.begin(), keys.end());
  const auto matches = [&](const auto& block) { return erased.contains(block.key); };
  writer_->Abandon(matches);
  CallOff(matches);
  for (const KvKey& key : erased) {
    kept_.erase(key);
    tier_->Erase(key);
    if (pinned_ != nullptr) pinned_->Erase(key);
  }
  TakeWritten();
  std::erase_if(changes_.unfiled, matches);
}

void DevicePath::EraseScope(std::uint64_t scope_tag) {
  const auto matches = [&](const auto& block) { return block.scope_tag == scope_tag; };
  writer_->Abandon(matches);
  CallOff(matches);
  std::erase_if(kept_, [&](const auto& kept) {
    return kept.second && kept.second.info().scope_tag == scope_tag;
  });
  tier_->EraseScope(scope_tag);
  if (pinned_ != nullptr) pinned_->EraseScope(scope_tag);
  TakeWritten();
  std::erase_if(changes_.unfiled, matches);
}

void DevicePath::Clear() {
  const auto all = [](const auto&) { return true; };
  writer_->Abandon(all);
  CallOff(all);
  TakeWritten();
  changes_.unfiled.clear();
  kept_.clear();
  used_.clear();
  tier_->Clear();
  if (pinned_ != nullptr) pinned_->Clear();
}

}  // namespace inferscale
