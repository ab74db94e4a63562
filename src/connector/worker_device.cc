// ConnectorWorker's work on a cache in a device's memory.

#include <algorithm>
#include <utility>

#include "connector/worker.h"

namespace inferscale {

Status ConnectorWorker::AttachDevice(std::unique_ptr<kernels::Device> device, DeviceCache cache,
                                     std::int64_t arena_bytes, std::int64_t pinned_bytes) {
  DevicePathOptions options;
  options.cache = std::move(cache);
  options.view = View();
  options.block_slots = options_.block_slots;
  options.engine_blocks = options_.engine_blocks;
  options.max_position = options_.max_position;
  options.arena_bytes = arena_bytes;
  options.pinned_bytes = pinned_bytes;
  INFERSCALE_ASSIGN_OR_RETURN(device_,
                              DevicePath::Create(std::move(device), std::move(options), *store_));
  report_.arena_bytes = static_cast<std::uint64_t>(arena_bytes);
  news_ = true;
  return rope_ != nullptr ? device_->SetRope(*rope_) : OkStatus();
}

Status ConnectorWorker::ExpectRotation(RopeSpec spec) {
  INFERSCALE_RETURN_IF_ERROR(spec.Validate(options_.geometry.layers, options_.geometry.key_dim));
  expected_ = std::make_unique<const RopeSpec>(std::move(spec));
  return OkStatus();
}

Status ConnectorWorker::LoadOnDevice(std::uintptr_t stream) {
  if (device_ == nullptr) return FailedPrecondition("no device is attached");
  device_->Discard();  // of a step that ended with an exception
  const std::size_t injected_before = report_.injected.size();
  Status status;
  for (const RequestLoad& load : plan_.loads) {
    if (load.pieces.empty()) continue;
    const std::int64_t end = std::int64_t{load.pieces.back().position} + load.pieces.back().count;
    const std::int32_t first_block = load.pieces.front().position / options_.block_slots;
    InjectedTokens injected{load.request, 0};
    device_->PrepareLoads(load.pieces);
    for (const LoadPiece& piece : load.pieces) {
      Status added = NotFound("the range cannot be written");
      if (rope_ != nullptr && piece.position >= load.pieces.front().position &&
          TableCovers(load.block_table, piece.position,
                      std::int64_t{piece.position} + piece.count)) {
        added = device_->AddLoad(
            piece, std::span(load.block_table).subspan(static_cast<std::size_t>(first_block)),
            first_block * options_.block_slots, stream);
      }
      if (!added.ok()) {
        const StatusCode code = added.code();
        if (code != StatusCode::kNotFound && code != StatusCode::kDataLoss &&
            code != StatusCode::kResourceExhausted) {  // not this block, but the device
          status = std::move(added);
          break;
        }
        // What follows a gap was promised too: the engine computes from here on.
        FailRange(load.block_table, piece.position, end);
        report_.lost.push_back({piece.key, 0});
        break;
      }
      injected.tokens += piece.count;
    }
    report_.injected.push_back(std::move(injected));
    if (!status.ok()) break;
  }
  if (status.ok()) status = device_->LaunchInject(stream);
  if (!status.ok()) {
    device_->Discard();
    report_.injected.resize(injected_before);
  }
  plan_.loads.clear();
  return status;
}

Status ConnectorWorker::CaptureOnDevice(std::uintptr_t stream) {
  if (device_ == nullptr) return FailedPrecondition("no device is attached");
  device_->Discard();
  Status status;
  std::vector<const CaptureItem*> added;
  for (const CaptureItem& item : plan_.captures) {
    const auto count = static_cast<std::int64_t>(item.tokens.size());
    const auto fence = fences_.find(item.scope_tag);
    const bool erased = fence != fences_.end() && item.epoch < fence->second;
    if (erased || count == 0 || rope_ == nullptr ||
        !TableCovers(item.block_table, item.position, item.position + count)) {
      report_.lost.push_back({item.key, item.serial});
      continue;
    }
    const Status placed = device_->AddCapture(item, InfoOf(item), stream);
    if (placed.ok()) {
      added.push_back(&item);
    } else {
      report_.lost.push_back({item.key, item.serial});
      // One fact too long for the arena is no reason to give up on the others.
      if (status.ok() && placed.code() != StatusCode::kResourceExhausted) status = placed;
    }
  }
  const Status launched = device_->LaunchCapture(stream);
  if (!launched.ok()) status = launched;
  for (const CaptureItem* item : added) {
    const bool stored = device_->Holds(item->key);
    (stored ? report_.stored : report_.lost).push_back({item->key, item->serial});
  }
  plan_.captures.clear();
  news_ = true;
  return status;
}

Growth ConnectorWorker::TakeGrowth() {
  Growth out;
  if (device_ == nullptr) return out;
  const DeviceTierStats arena = DeviceStats();
  growth_.Add("gpu_hits", arena.hits, out);
  growth_.Add("gpu_promotions", arena.promotions, out);
  growth_.Add("gpu_promoted_bytes", arena.promoted_bytes, out);
  growth_.Add("gpu_evictions", arena.evictions, out);
  growth_.Add("pinned_hits", PinnedStats().hits, out);
  return out;
}

void ConnectorWorker::Flush() {
  if (device_ != nullptr) device_->Flush();
}

void ConnectorWorker::EndStepOnDevice() {
  device_->Release(to_release_);
  to_release_.clear();
  device_->Advance();
  ArenaChanges changes = device_->TakeChanges();
  for (const KvKey& key : changes.lost) report_.lost.push_back({key, 0});
  for (const DeviceBlockInfo& block : changes.unfiled) unfiled_.Add(block.key, block.scope_tag);
  unfiled_.Erase(changes.lost);
  news_ = news_ || !changes.lost.empty() || !changes.resident.empty() || !changes.evicted.empty() ||
          !changes.unpromoted.empty();
  report_.resident = std::move(changes.resident);
  report_.evicted = std::move(changes.evicted);
  report_.unpromoted = std::move(changes.unpromoted);
}

DeviceTierStats ConnectorWorker::DeviceStats() const {
  return device_ != nullptr ? device_->Stats() : DeviceTierStats{};
}

DeviceTierStats ConnectorWorker::PinnedStats() const {
  return device_ != nullptr ? device_->PinnedStats() : DeviceTierStats{};
}

}  // namespace inferscale
