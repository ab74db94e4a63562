#ifndef INFERSCALE_CONNECTOR_WORKER_H_
#define INFERSCALE_CONNECTOR_WORKER_H_

/// \file worker.h
/// ConnectorWorker: one rank's side of the vLLM connector. It keeps the rank's shard of every KV
/// block, and moves KV between blocks and a staging area: keys and values of a step's tokens, laid
/// out [layers][tokens][heads][dim], which the caller copies to or from the engine's cache. It
/// obeys the scheduler's plans and reports. With a device attached it works on the engine's cache
/// itself, without staging. Guarantees: a range whose block is missing is reported
/// as failed and never written in part; no key is moved before the model's rotation is known. Not
/// thread-safe: the worker's own thread calls it.

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

#include "connector/device_path.h"
#include "connector/growth.h"
#include "connector/step.h"
#include "inferscale/kv_block.h"
#include "inferscale/kv_store.h"
#include "inferscale/result.h"
#include "inferscale/rope.h"
#include "kernels/kernels.h"
#include "kv/unfiled_blocks.h"

namespace inferscale {

struct ConnectorWorkerOptions {
  KvGeometry geometry;  ///< of this rank
  KvCodec codec = KvCodec::kF16;
  Fingerprint fingerprint{};
  std::string folder;  ///< empty: memory alone
  std::int64_t host_budget_bytes = 0;
  std::int64_t file_budget_bytes = 0;
  std::int32_t block_slots = 0;  ///< tokens an engine block
  std::int64_t engine_blocks = 0;
  std::int32_t max_position = 0;  ///< longest sequence of the engine
  std::int32_t rank = 0;
  std::int64_t file_again_ms = KvStoreOptions{}.file_again_ms;
};

/// Contiguous keys and values, [layers][tokens][heads][dim] each.
struct Staging {
  kernels::ScalarType type = kernels::ScalarType::kF32;
  void* keys = nullptr;
  void* values = nullptr;
  std::int64_t tokens = 0;
};

class ConnectorWorker {
 public:
  static Result<std::unique_ptr<ConnectorWorker>> Create(ConnectorWorkerOptions options);

  /// From now on LoadOnDevice and CaptureOnDevice are used instead of the staging area. Allocates
  /// the arena, and host memory that the device copies from. \return kResourceExhausted if the
  /// device has too little left.
  Status AttachDevice(std::unique_ptr<kernels::Device> device, DeviceCache cache,
                      std::int64_t arena_bytes, std::int64_t pinned_bytes);
  /// What the engine says of its rotation: groups of frequencies, of which a probe finds each
  /// layer's own, or none for one that does not rotate; whatever groups the spec gives the layers.
  /// It measures only if a layer agrees with nothing. A measurement on a 16-bit cache serves no
  /// long contexts (see MeasuredPositions).
  Status ExpectRotation(RopeSpec spec);

  /// Takes a plan: erasures and evictions are carried out at once. Erasures that fail are tried
  /// again with each plan; until they succeed none is acknowledged, and captures are reported as
  /// lost.
  Status Begin(StepPlan plan);
  /// Whether the plan leaves something to do after the pass: captures or a probe.
  bool HasWorkAfterPass() const { return !plan_.captures.empty() || !plan_.probes.empty(); }

  /// Engine slots (block · block_slots + offset) of the tokens to load, in staging order. Ranges
  /// whose blocks are missing are left out and reported.
  std::vector<std::int64_t> LoadSlots();
  /// Decodes and rotates the tokens of LoadSlots() into the staging area.
  Status Load(const Staging& staging);
  /// Engine blocks that were to be loaded and were not, since the last call.
  std::vector<std::int32_t> TakeFailedBlocks();

  /// Engine slots of the tokens to capture, in staging order.
  std::vector<std::int64_t> CaptureSlots() const;
  /// Un-rotates, encodes and stores the tokens of CaptureSlots().
  Status Capture(const Staging& staging);

  /// Writes the plan's loads into the engine's cache on `stream`: one launch, unless they are more
  /// than the arena or a launch holds. An error says that nothing may count as written.
  Status LoadOnDevice(std::uintptr_t stream);
  /// Captures the plan's runs on `stream`. They can be loaded from then on; host memory and files
  /// get them from another thread.
  Status CaptureOnDevice(std::uintptr_t stream);
  /// Waits until that thread has nothing left to do.
  void Flush();
  DeviceTierStats DeviceStats() const;
  DeviceTierStats PinnedStats() const;
  /// Of a device's tiers, for metrics.
  Growth TakeGrowth();

  /// Engine slots of the probe's tokens at the positions that a measurement needs; empty: no probe.
  std::vector<std::int64_t> ProbeSlots();
  /// Measures the rotation from them, and checks it by relocation. A model whose keys are no
  /// rotation is refused for good.
  Status Probe(const Staging& staging);

  /// The account since the last call; empty bytes when there is nothing to say. It ends a step:
  /// what the plan promotes and releases is seen to, without waiting.
  std::vector<std::uint8_t> TakeReport();
  /// Nothing is injected or captured any more, and the reason is reported.
  void Refuse(std::string reason);

  KvStoreStats StoreStats() const { return store_->Stats(); }
  bool rotation_known() const { return rope_ != nullptr; }

 private:
  struct PlacedPiece {
    KvStore::Pin pin;
    LoadPiece piece;
  };

  explicit ConnectorWorker(ConnectorWorkerOptions options) : options_(std::move(options)) {}
  Result<std::unique_ptr<KvStore>> OpenStore() const;
  Status Clear();
  Status CarryOutErasures();
  void EndStepOnDevice();
  Status ListHeld();
  kernels::CodecView View() const;
  kernels::RopeTable Rope() const;
  Result<RopeSpec> Rotation(std::span<const RopeProbe> probes, std::size_t measured) const;
  std::unique_ptr<RopeSpec> Expected(std::span<const RopeProbe> probes) const;
  Status LayoutOf(const Staging& staging, std::int64_t tokens, kernels::PagedLayout& layout,
                  std::vector<void*>& bases) const;
  std::int64_t SlotOf(std::span<const std::int32_t> block_table, std::int64_t position) const;
  bool TableCovers(std::span<const std::int32_t> block_table, std::int64_t begin,
                   std::int64_t end) const;
  void FailRange(std::span<const std::int32_t> block_table, std::int64_t begin, std::int64_t end);
  KvBlockInfo InfoOf(const CaptureItem& item) const;
  Status StoreCaptured(const CaptureItem& item, std::vector<std::uint8_t> payload);
  bool Holds(const KvKey& key) const;

  const ConnectorWorkerOptions options_;
  std::unique_ptr<KvStore> store_;
  std::unique_ptr<DevicePath> device_;
  std::unordered_map<std::uint64_t, std::uint64_t> fences_;  ///< scope -> least epoch
  std::unique_ptr<const RopeSpec> expected_;
  std::shared_ptr<const RopeTables> rope_;
  StepPlan plan_;
  StepPlan owed_;                    ///< erasures that have not succeeded yet
  std::vector<PlacedPiece> placed_;  ///< pieces to load, in staging order
  std::vector<std::int32_t> probe_positions_;
  std::vector<std::int32_t> failed_blocks_;
  std::vector<KvKey> to_release_;  ///< when the step ends
  UnfiledBlocks unfiled_;
  WorkerReport report_;
  CounterGrowth growth_;
  bool news_ = false;
};

/// Positions up to which a rotation measured up to position `farthest` is as exact as a cache of
/// `rounding` (its unit roundoff) can hold. A frequency is fitted over `pairs` = layers · heads
/// keys, each rounded on its own, so it is off by about rounding / (farthest · √pairs) radians a
/// position; at position p the angle is off by p times that, which stays below the rounding itself,
/// or below 1e-4 where the cache is finer, up to p = farthest · √pairs · max(1, 1e-4 / rounding).
/// With bf16 and 32 layers of 8 heads: 16,384 from a probe of 1,024.
std::int64_t MeasuredPositions(double rounding, std::int64_t pairs, std::int32_t farthest);

}  // namespace inferscale

#endif  // INFERSCALE_CONNECTOR_WORKER_H_
