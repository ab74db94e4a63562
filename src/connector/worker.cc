#include "connector/worker.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <utility>

#include "kernels/cpu/convert.h"
#include "kv/block_folder.h"

namespace inferscale {
namespace {

// A relocated key may differ from the engine's own by the rounding of the cache's type, which is
// below 1 % of a key for bf16; a wrong base or pairing differs by more than half.
constexpr double kMostRelocationError = 0.05;

Status KernelError(kernels::KernelStatus status, std::string_view what) {
  if (status == kernels::KernelStatus::kOk) return OkStatus();
  return Internal(std::string(what) + ": the kernel refused its arguments (" +
                  std::to_string(static_cast<int>(status)) + ")");
}

// Unit roundoff of the cache that the keys come from, seen in the bits that they never use.
double CacheRounding(std::span<const RopeProbe> probes) {
  std::uint32_t used = 0;
  for (const RopeProbe& probe : probes) {
    for (const float key : probe.keys) used |= std::bit_cast<std::uint32_t>(key);
  }
  if ((used & 0xffffu) == 0) return std::ldexp(1.0, -9);   // bf16
  if ((used & 0x1fffu) == 0) return std::ldexp(1.0, -11);  // f16
  return std::ldexp(1.0, -24);
}

}  // namespace

Result<std::unique_ptr<ConnectorWorker>> ConnectorWorker::Create(ConnectorWorkerOptions options) {
  const KvGeometry& geometry = options.geometry;
  if (geometry.layers < 1 || geometry.kv_heads < 1 || geometry.key_dim < 1 ||
      geometry.value_dim < 1 || geometry.key_dim > kernels::kMaxHeadDim ||
      geometry.value_dim > kernels::kMaxHeadDim || options.block_slots < 1 ||
      options.engine_blocks < 1 || options.max_position < 1) {
    return InvalidArgument("layers, heads, dims, block size, blocks and length must be positive");
  }
  std::unique_ptr<ConnectorWorker> worker(new ConnectorWorker(std::move(options)));
  worker->report_.rank = worker->options_.rank;
  INFERSCALE_ASSIGN_OR_RETURN(worker->store_, worker->OpenStore());
  INFERSCALE_RETURN_IF_ERROR(worker->ListHeld());
  return worker;
}

Result<std::unique_ptr<KvStore>> ConnectorWorker::OpenStore() const {
  KvStoreOptions store;
  store.folder = options_.folder;
  store.host_budget_bytes = options_.host_budget_bytes;
  store.file_budget_bytes = options_.file_budget_bytes;
  store.fingerprint = options_.fingerprint;
  store.file_again_ms = options_.file_again_ms;
  return KvStore::Open(std::move(store));
}

Status ConnectorWorker::Clear() {
  if (device_ != nullptr) device_->Clear();
  store_->StopFiling();  // what is in memory alone is to go too
  if (!options_.folder.empty()) {
    INFERSCALE_ASSIGN_OR_RETURN(const auto folder, BlockFolder::Open(options_.folder));
    INFERSCALE_ASSIGN_OR_RETURN(const std::vector<BlockFolder::Listed> files, folder->List());
    std::vector<KvKey> keys;
    for (const BlockFolder::Listed& file : files) keys.push_back(file.id.key);
    INFERSCALE_RETURN_IF_ERROR(store_->Erase(keys));
  }
  INFERSCALE_ASSIGN_OR_RETURN(auto store, OpenStore());  // and nothing in memory
  if (device_ != nullptr) INFERSCALE_RETURN_IF_ERROR(device_->SetStore(*store));
  store_ = std::move(store);
  unfiled_.Clear();
  return OkStatus();
}

Status ConnectorWorker::ListHeld() {
  if (options_.folder.empty()) return OkStatus();
  INFERSCALE_ASSIGN_OR_RETURN(const auto folder, BlockFolder::Open(options_.folder));
  INFERSCALE_ASSIGN_OR_RETURN(const std::vector<BlockFolder::Listed> files, folder->List());
  for (const BlockFolder::Listed& file : files) {
    if (file.id.fingerprint_prefix != FingerprintPrefix(options_.fingerprint)) continue;
    auto info = folder->LoadInfo(file.id, options_.fingerprint);
    // A file that cannot be read, or is of another codec or shape, is not served; it is evicted.
    if (!info.ok() || info->codec != options_.codec || info->geometry != options_.geometry)
      continue;
    report_.held.push_back({info->key, info->scope_tag, info->epoch, std::move(info->tokens)});
  }
  news_ = !report_.held.empty();
  return OkStatus();
}

Status ConnectorWorker::Begin(StepPlan plan) {
  placed_.clear();
  probe_positions_.clear();
  // Of a step that did not end: the directory would wait for them, and evict them never.
  for (const CaptureItem& item : plan_.captures) report_.lost.push_back({item.key, item.serial});
  plan_ = std::move(plan);
  news_ = true;
  owed_.clear = owed_.clear || plan_.clear;
  owed_.drop.insert(owed_.drop.end(), plan_.drop.begin(), plan_.drop.end());
  owed_.erase_scopes.insert(owed_.erase_scopes.end(), plan_.erase_scopes.begin(),
                            plan_.erase_scopes.end());
  Status status = CarryOutErasures();
  if (device_ != nullptr) {
    device_->Release(to_release_);  // of a step that did not end
    to_release_ = std::move(plan_.release);
    device_->Promote(plan_.promote);
  }
  if (status.ok()) {
    owed_ = {};
    report_.sequence = plan_.sequence;
    return status;
  }
  // The next attempt would remove them.
  for (const CaptureItem& item : plan_.captures) report_.lost.push_back({item.key, item.serial});
  plan_.captures.clear();
  const bool from_before = !plan_.clear && plan_.drop.empty() && plan_.erase_scopes.empty();
  return from_before ? OkStatus() : status;
}

Status ConnectorWorker::CarryOutErasures() {
  if (owed_.clear) INFERSCALE_RETURN_IF_ERROR(Clear());
  if (!owed_.drop.empty()) {
    unfiled_.Erase(owed_.drop);
    if (device_ != nullptr) device_->Erase(owed_.drop);
    INFERSCALE_RETURN_IF_ERROR(store_->Erase(owed_.drop));
  }
  for (const ScopeErasure& erasure : owed_.erase_scopes) {
    std::uint64_t& fence = fences_[erasure.scope_tag];
    fence = std::max(fence, erasure.epoch);
    unfiled_.EraseScope(erasure.scope_tag);
    if (device_ != nullptr) device_->EraseScope(erasure.scope_tag);
    INFERSCALE_RETURN_IF_ERROR(store_->EraseScope(erasure.scope_tag, erasure.epoch));
  }
  return OkStatus();
}

std::int64_t ConnectorWorker::SlotOf(std::span<const std::int32_t> block_table,
                                     std::int64_t position) const {
  return std::int64_t{block_table[static_cast<std::size_t>(position / options_.block_slots)]} *
             options_.block_slots +
         position % options_.block_slots;
}

bool ConnectorWorker::TableCovers(std::span<const std::int32_t> block_table, std::int64_t begin,
                                  std::int64_t end) const {
  if (begin < 0 || end < begin || end > options_.max_position) return false;
  const auto blocks =
      static_cast<std::size_t>((end + options_.block_slots - 1) / options_.block_slots);
  if (blocks > block_table.size()) return false;
  return std::all_of(
      block_table.begin() + begin / options_.block_slots,
      block_table.begin() + static_cast<std::ptrdiff_t>(blocks),
      [&](std::int32_t block) { return block >= 0 && block < options_.engine_blocks; });
}

void ConnectorWorker::FailRange(std::span<const std::int32_t> block_table, std::int64_t begin,
                                std::int64_t end) {
  for (std::int64_t block = std::max<std::int64_t>(begin, 0) / options_.block_slots;
       block * options_.block_slots < end; ++block) {
    if (block < static_cast<std::int64_t>(block_table.size())) {
      failed_blocks_.push_back(block_table[static_cast<std::size_t>(block)]);
    }
  }
}

std::vector<std::int64_t> ConnectorWorker::LoadSlots() {
  std::vector<std::int64_t> slots;
  placed_.clear();
  for (const RequestLoad& load : plan_.loads) {
    if (load.pieces.empty()) continue;
    const std::int64_t end = std::int64_t{load.pieces.back().position} + load.pieces.back().count;
    InjectedTokens injected{load.request, 0};
    for (const LoadPiece& piece : load.pieces) {
      auto pin = rope_ != nullptr && TableCovers(load.block_table, piece.position,
                                                 std::int64_t{piece.position} + piece.count)
                     ? store_->Acquire(piece.key)
                     : Result<KvStore::Pin>(Internal("not possible"));
      if (!pin.ok() || piece.first < 0 || piece.count < 1 ||
          piece.first > (*pin)->tokens() - piece.count) {
        // What follows a gap was promised too: the engine computes from here on.
        FailRange(load.block_table, piece.position, end);
        report_.lost.push_back({piece.key, 0});
        break;
      }
      for (std::int32_t i = 0; i < piece.count; ++i) {
        slots.push_back(SlotOf(load.block_table, std::int64_t{piece.position} + i));
      }
      injected.tokens += piece.count;
      placed_.push_back({std::move(*pin), piece});
    }
    report_.injected.push_back(std::move(injected));
  }
  return slots;
}

kernels::CodecView ConnectorWorker::View() const {
  const KvGeometry& geometry = options_.geometry;
  return {options_.codec, geometry.layers, geometry.kv_heads, geometry.key_dim, geometry.value_dim};
}

kernels::RopeTable ConnectorWorker::Rope() const {
  const RopeSpec& spec = rope_->spec();
  return {rope_->cos_sin().data(),
          spec.layer_group.data(),
          static_cast<std::int32_t>(spec.groups.size()),
          rope_->positions(),
          spec.width,
          spec.pairing};
}

Status ConnectorWorker::LayoutOf(const Staging& staging, std::int64_t tokens,
                                 kernels::PagedLayout& layout, std::vector<void*>& bases) const {
  if (staging.keys == nullptr || staging.values == nullptr || staging.tokens != tokens) {
    return InvalidArgument("the staging area holds " + std::to_string(staging.tokens) +
                           " tokens, the step has " + std::to_string(tokens));
  }
  const KvGeometry& geometry = options_.geometry;
  const auto element = static_cast<std::int64_t>(kernels::cpu::ScalarBytes(staging.type));
  layout.type = staging.type;
  layout.slots = tokens;
  layout.key_dim_stride = layout.value_dim_stride = element;
  layout.key_head_stride = element * geometry.key_dim;
  layout.value_head_stride = element * geometry.value_dim;
  layout.key_slot_stride = layout.key_head_stride * geometry.kv_heads;
  layout.value_slot_stride = layout.value_head_stride * geometry.kv_heads;
  const auto layers = static_cast<std::size_t>(geometry.layers);
  bases.resize(2 * layers);
  for (std::size_t layer = 0; layer < layers; ++layer) {
    const auto offset = static_cast<std::int64_t>(layer) * tokens;
    bases[layer] = static_cast<std::uint8_t*>(staging.keys) + offset * layout.key_slot_stride;
    bases[layers + layer] =
        static_cast<std::uint8_t*>(staging.values) + offset * layout.value_slot_stride;
  }
  layout.key_base = bases.data();
  layout.value_base = bases.data() + layers;
  return OkStatus();
}

Status ConnectorWorker::Load(const Staging& staging) {
  std::vector<kernels::FactDescriptor> facts;
  std::int32_t slot = 0;
  for (const PlacedPiece& placed : placed_) {
    // Inject only reads a payload; the descriptor serves capture as well.
    auto* payload = const_cast<std::uint8_t*>(placed.pin->payload().data());
    facts.push_back({payload, placed.pin->tokens(), placed.piece.first, placed.piece.count,
                     placed.piece.position, slot});
    slot += placed.piece.count;
  }
  if (facts.empty()) return OkStatus();
  if (rope_ == nullptr) return FailedPrecondition("the model's rotation is not known yet");
  kernels::PagedLayout layout;
  std::vector<void*> bases;
  INFERSCALE_RETURN_IF_ERROR(LayoutOf(staging, slot, layout, bases));
  Status status = KernelError(kernels::Inject(View(), Rope(), layout, facts.data(),
                                              static_cast<std::int32_t>(facts.size())),
                              "injecting");
  placed_.clear();  // the pins go
  return status;
}

std::vector<std::int32_t> ConnectorWorker::TakeFailedBlocks() {
  return std::exchange(failed_blocks_, {});
}

std::vector<std::int64_t> ConnectorWorker::CaptureSlots() const {
  std::vector<std::int64_t> slots;
  for (const CaptureItem& item : plan_.captures) {
    const auto count = static_cast<std::int64_t>(item.tokens.size());
    if (!TableCovers(item.block_table, item.position, item.position + count)) continue;
    for (std::int64_t i = 0; i < count; ++i) {
      slots.push_back(SlotOf(item.block_table, item.position + i));
    }
  }
  return slots;
}

Status ConnectorWorker::Capture(const Staging& staging) {
  std::vector<const CaptureItem*> items;
  std::vector<std::vector<std::uint8_t>> payloads;
  std::vector<kernels::FactDescriptor> facts;
  std::int32_t slot = 0;
  for (const CaptureItem& item : plan_.captures) {
    const auto count = static_cast<std::int32_t>(item.tokens.size());
    if (count == 0 || !TableCovers(item.block_table, item.position, item.position + count)) {
      report_.lost.push_back({item.key, item.serial});
      continue;
    }
    payloads.emplace_back(kernels::PayloadBytes(View(), count));
    facts.push_back({payloads.back().data(), count, 0, count, item.position, slot});
    items.push_back(&item);
    slot += count;
  }
  Status status = rope_ == nullptr && !facts.empty()
                      ? FailedPrecondition("the model's rotation is not known yet")
                      : OkStatus();
  if (status.ok() && !facts.empty()) {
    kernels::PagedLayout layout;
    std::vector<void*> bases;
    status = LayoutOf(staging, slot, layout, bases);
    if (status.ok()) {
      status = KernelError(kernels::Capture(View(), Rope(), layout, facts.data(),
                                            static_cast<std::int32_t>(facts.size())),
                           "capturing");
    }
  }
  for (std::size_t i = 0; i < items.size(); ++i) {
    const Status stored = status.ok() ? StoreCaptured(*items[i], std::move(payloads[i])) : status;
    (stored.ok() ? report_.stored : report_.lost).push_back({items[i]->key, items[i]->serial});
  }
  plan_.captures.clear();
  news_ = true;
  return status;
}

KvBlockInfo ConnectorWorker::InfoOf(const CaptureItem& item) const {
  KvBlockInfo info;
  info.key = item.key;
  info.fingerprint = options_.fingerprint;
  info.scope_tag = item.scope_tag;
  info.epoch = item.epoch;
  info.geometry = options_.geometry;
  info.codec = options_.codec;
  info.tokens = item.tokens;
  info.saw = item.saw;
  return info;
}

Status ConnectorWorker::StoreCaptured(const CaptureItem& item, std::vector<std::uint8_t> payload) {
  INFERSCALE_ASSIGN_OR_RETURN(auto block, KvBlock::Create(InfoOf(item), std::move(payload)));
  Status stored = store_->Put(std::move(block));
  if (stored.ok() || !Holds(item.key)) return stored;
  unfiled_.Add(item.key, item.scope_tag);  // its disk is full: stored while it is in memory
  return OkStatus();
}

bool ConnectorWorker::Holds(const KvKey& key) const {
  if (device_ != nullptr) return device_->Holds(key);
  return store_->Presence(std::span(&key, 1))[0] != KvTier::kNone;
}

std::vector<std::int64_t> ConnectorWorker::ProbeSlots() {
  std::vector<std::int64_t> slots;
  probe_positions_.clear();
  if (plan_.probes.empty() || rope_ != nullptr) return slots;
  const ProbeItem& probe = plan_.probes.front();
  if (!TableCovers(probe.block_table, 0, probe.tokens)) return slots;
  // 0, 1, 4, 16, … to measure; then places between them, to check by relocation.
  for (std::int32_t position = 0; position < probe.tokens;
       position = position == 0 ? 1 : position * 4) {
    probe_positions_.push_back(position);
  }
  for (const std::int32_t position : {2, 18, 1001}) {
    if (position < probe.tokens) probe_positions_.push_back(position);
  }
  for (const std::int32_t position : probe_positions_) {
    slots.push_back(SlotOf(probe.block_table, position));
  }
  return slots;
}

Status ConnectorWorker::Probe(const Staging& staging) {
  const auto count = static_cast<std::int64_t>(probe_positions_.size());
  kernels::PagedLayout layout;
  std::vector<void*> bases;
  INFERSCALE_RETURN_IF_ERROR(LayoutOf(staging, count, layout, bases));
  const KvGeometry& geometry = options_.geometry;
  const auto heads = static_cast<std::size_t>(geometry.kv_heads);
  const auto row = heads * static_cast<std::size_t>(geometry.key_dim);
  std::vector<RopeProbe> probes(probe_positions_.size());
  for (std::size_t i = 0; i < probes.size(); ++i) {
    probes[i].position = probe_positions_[i];
    probes[i].keys.resize(static_cast<std::size_t>(geometry.layers) * row);
    for (std::int32_t layer = 0; layer < geometry.layers; ++layer) {
      const auto* keys = static_cast<const std::uint8_t*>(bases[static_cast<std::size_t>(layer)]) +
                         static_cast<std::int64_t>(i) * layout.key_slot_stride;
      kernels::cpu::FromScalars(staging.type, keys,
                                probes[i].keys.data() + static_cast<std::size_t>(layer) * row, row);
    }
  }
  const auto relocated = std::find_if(probes.begin() + 1, probes.end(), [](const auto& probe) {
    return probe.position < (&probe - 1)->position;
  });
  const auto spec = Rotation(probes, static_cast<std::size_t>(relocated - probes.begin()));
  if (!spec.ok()) {
    Refuse(spec.status().message());
    return spec.status();
  }
  INFERSCALE_ASSIGN_OR_RETURN(rope_, RopeTables::Create(*spec, options_.max_position));
  if (device_ != nullptr) INFERSCALE_RETURN_IF_ERROR(device_->SetRope(*rope_));
  report_.rotation_measured = true;
  news_ = true;
  return OkStatus();
}

// The engine's frequencies, each layer with those that move its first probe onto the others; null
// if a layer agrees with none.
std::unique_ptr<RopeSpec> ConnectorWorker::Expected(std::span<const RopeProbe> probes) const {
  if (expected_ == nullptr) return nullptr;
  const KvGeometry& geometry = options_.geometry;
  const auto row = static_cast<std::size_t>(geometry.kv_heads) * geometry.key_dim;
  auto spec = std::make_unique<RopeSpec>(*expected_);
  RopeSpec alone = *expected_;
  alone.layer_group.assign(1, -1);
  for (std::size_t layer = 0; layer < spec->layer_group.size(); ++layer) {
    double best = kMostRelocationError;
    bool found = false;
    for (std::int32_t group = -1; group < static_cast<std::int32_t>(spec->groups.size()); ++group) {
      alone.layer_group[0] = group;
      double error = 0;
      for (const RopeProbe& probe : probes.subspan(1)) {
        const std::span<const float> from(probes[0].keys), to(probe.keys);
        error = std::max(error,
                         RelocationError(alone, from.subspan(layer * row, row), probes[0].position,
                                         to.subspan(layer * row, row), probe.position, 1,
                                         geometry.kv_heads, geometry.key_dim));
      }
      if (error > best) continue;
      best = error;
      found = true;
      spec->layer_group[layer] = group;
    }
    if (!found) return nullptr;
  }
  return spec;
}

// Probes [0, measured) ascend; those behind them check what they have given.
Result<RopeSpec> ConnectorWorker::Rotation(std::span<const RopeProbe> probes,
                                           std::size_t measured) const {
  const KvGeometry& geometry = options_.geometry;
  const auto relocation_error = [&](const RopeSpec& spec, const RopeProbe& from,
                                    const RopeProbe& to) {
    return RelocationError(spec, from.keys, from.position, to.keys, to.position, geometry.layers,
                           geometry.kv_heads, geometry.key_dim);
  };
  if (const std::unique_ptr<RopeSpec> expected = Expected(probes)) return *expected;
  INFERSCALE_ASSIGN_OR_RETURN(RopeSpec spec, MeasureRope(probes.first(measured), geometry.layers,
                                                         geometry.kv_heads, geometry.key_dim));
  for (const RopeProbe& probe : probes.subspan(measured)) {
    const double error = relocation_error(spec, probes[1], probe);
    if (error > kMostRelocationError) {
      return Unsupported("keys moved from position 1 to " + std::to_string(probe.position) +
                         " differ by " + std::to_string(error) + " from the model's own");
    }
  }
  const std::int64_t positions =
      MeasuredPositions(CacheRounding(probes), std::int64_t{geometry.layers} * geometry.kv_heads,
                        probes[measured - 1].position);
  if (positions < options_.max_position) {
    return Unsupported("the rotation was measured on a coarse cache, exact enough up to position " +
                       std::to_string(positions) + " of " + std::to_string(options_.max_position) +
                       "; set --max-model-len to that or less");
  }
  return spec;
}

std::int64_t MeasuredPositions(double rounding, std::int64_t pairs, std::int32_t farthest) {
  constexpr double kFineEnough = 1e-4;
  return static_cast<std::int64_t>(farthest * std::sqrt(static_cast<double>(pairs)) *
                                   std::max(1.0, kFineEnough / rounding));
}

void ConnectorWorker::Refuse(std::string reason) {
  // The scheduler reads no report with a longer one, and every report repeats it. (base/utf8.h
  // would bring the wheel another library.)
  if (reason.size() > kMaxTextBytes) {
    std::size_t end = kMaxTextBytes;
    while (end > 0 && (static_cast<unsigned char>(reason[end]) & 0xc0) == 0x80) --end;
    reason.resize(end);
  }
  report_.refusal = std::move(reason);
  rope_ = nullptr;
  news_ = true;
}

std::vector<std::uint8_t> ConnectorWorker::TakeReport() {
  if (device_ != nullptr) EndStepOnDevice();
  for (const KvKey& key : unfiled_.TakeGone([this](const KvKey& key) { return Holds(key); })) {
    report_.lost.push_back({key, 0});
    news_ = true;
  }
  if (!news_) return {};
  news_ = false;
  std::vector<std::uint8_t> bytes = SerializeWorkerReport(report_);
  report_.held.clear();
  report_.stored.clear();
  report_.lost.clear();
  report_.injected.clear();
  report_.arena_bytes = 0;
  report_.resident.clear();
  report_.evicted.clear();
  report_.unpromoted.clear();
  return bytes;
}

}  // namespace inferscale
