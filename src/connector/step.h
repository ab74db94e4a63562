#ifndef INFERSCALE_CONNECTOR_STEP_H_
#define INFERSCALE_CONNECTOR_STEP_H_

/// \file step.h
/// What passes between the scheduler's side of the connector and its workers, once an engine step:
/// StepPlan down, WorkerReport up. Plain values; they travel as bytes between processes, and are
/// checked when they are read.

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "inferscale/result.h"
#include "inferscale/types.h"

namespace inferscale {

/// A run of a stored block to write: its tokens [first, first + count) to `position` and onwards.
struct LoadPiece {
  KvKey key;
  std::int32_t first = 0;
  std::int32_t count = 0;
  std::int32_t position = 0;
};

/// All that one request loads in this step.
struct RequestLoad {
  std::string request;
  std::vector<std::int32_t> block_table;  ///< engine blocks of the request, in order
  std::vector<LoadPiece> pieces;          ///< one contiguous range of positions
};

/// A run of a request's tokens to store after this step's pass.
struct CaptureItem {
  std::string request;
  KvKey key;
  std::uint64_t serial = 0;  ///< the directory's, reported back
  std::uint64_t scope_tag = 0;
  std::uint64_t epoch = 0;
  TokenIds tokens;
  std::vector<std::string> saw;
  std::vector<std::int32_t> block_table;
  std::int32_t position = 0;  ///< of the first token
};

/// A prompt of one repeated token, whole in the cache after this step: measure the rotation.
struct ProbeItem {
  std::string request;
  std::vector<std::int32_t> block_table;
  std::int32_t tokens = 0;
};

/// A block to have in the device's memory, and to keep there until it is released.
struct PromoteItem {
  KvKey key;
  std::uint64_t scope_tag = 0;
  std::int32_t tokens = 0;
};

/// Of a request's name, and any other text in a plan or a report.
constexpr std::size_t kMaxTextBytes = std::size_t{1} << 16;

struct ScopeErasure {
  std::uint64_t scope_tag = 0;
  std::uint64_t epoch = 0;
};

struct StepPlan {
  std::uint64_t sequence = 0;
  bool clear = false;       ///< drop every block first
  std::vector<KvKey> drop;  ///< evicted or erased blocks
  std::vector<ScopeErasure> erase_scopes;
  std::vector<RequestLoad> loads;
  std::vector<CaptureItem> captures;
  std::vector<ProbeItem> probes;
  std::vector<PromoteItem> promote;
  std::vector<KvKey> release;  ///< promoted before, after this step's loads; none is in `promote`

  bool empty() const {
    return !clear && drop.empty() && erase_scopes.empty() && loads.empty() && captures.empty() &&
           probes.empty() && promote.empty() && release.empty();
  }
};

struct StoredBlock {
  KvKey key;
  std::uint64_t serial = 0;
};

struct InjectedTokens {
  std::string request;
  std::int32_t tokens = 0;
};

/// A block that a rank holds from before it started.
struct HeldBlock {
  KvKey key;
  std::uint64_t scope_tag = 0;
  std::uint64_t epoch = 0;
  TokenIds tokens;
};

/// One rank's account of the steps since its last report.
struct WorkerReport {
  std::int32_t rank = 0;
  std::uint64_t sequence = 0;   ///< of the last plan it carried out, erasures included
  std::vector<HeldBlock> held;  ///< in a rank's first report
  std::vector<StoredBlock> stored;
  std::vector<StoredBlock> lost;  ///< not stored (serial given), or missing at a load (serial 0)
  std::vector<InjectedTokens> injected;
  std::uint64_t arena_bytes = 0;         ///< of its device; what is stored is in there at first
  std::vector<KvKey> resident, evicted;  ///< came into the arena and are there; left it
  std::vector<KvKey> unpromoted;         ///< could not be promoted
  bool rotation_measured = false;
  std::string refusal;  ///< why this rank cannot inject; empty: it can, or does not know yet
};

// As bytes, between a scheduler's process and its ranks'.
std::vector<std::uint8_t> SerializeStepPlan(const StepPlan& plan);
/// kDataLoss for anything that SerializeStepPlan has not written.
Result<StepPlan> ParseStepPlan(std::span<const std::uint8_t> bytes);
std::vector<std::uint8_t> SerializeWorkerReport(const WorkerReport& report);
Result<WorkerReport> ParseWorkerReport(std::span<const std::uint8_t> bytes);

}  // namespace inferscale

#endif  // INFERSCALE_CONNECTOR_STEP_H_
