#include "connector/scheduler.h"

#include <algorithm>
#include <chrono>
#include <unordered_set>
#include <utility>

namespace inferscale {
namespace {

/// The engine's block that stands for one that is not there, in every table of a windowed group.
constexpr std::int32_t kNullBlock = 0;

std::int64_t SteadyMs() {
  return std::chrono::duration_cast<std::chrono::milliseconds>(
             std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

}  // namespace

Result<std::unique_ptr<ConnectorScheduler>> ConnectorScheduler::Create(
    ConnectorSchedulerOptions options) {
  if (options.secret.size() < 16) {
    return InvalidArgument(
        "the secret shared with the gateway must have at least 16 bytes; set secret_file in "
        "kv_connector_extra_config");
  }
  if (options.ranks < 1 || options.budget_bytes < 0 || options.token_bytes < 1) {
    return InvalidArgument("ranks, budget and bytes a token must be positive");
  }
  if (options.window < 0 || (options.window > 0 && options.block_slots < 1)) {
    return InvalidArgument("a window and the block size that goes with it must be positive");
  }
  return std::unique_ptr<ConnectorScheduler>(new ConnectorScheduler(std::move(options)));
}

ConnectorScheduler::ConnectorScheduler(ConnectorSchedulerOptions options)
    : options_(std::move(options)),
      directory_(options_.budget_bytes, options_.ranks),
      promotions_(options_.ranks, options_.steady_ms ? options_.steady_ms : SteadyMs),
      acknowledged_(static_cast<std::size_t>(options_.ranks), 0),
      rotation_measured_(static_cast<std::size_t>(options_.ranks), false) {
  plan_.sequence = 1;
  every_arena_ = options_.ranks < 64 ? (std::uint64_t{1} << options_.ranks) - 1 : ~std::uint64_t{0};
}

void ConnectorScheduler::Fall(Active& active, const std::string& reason, std::int32_t blocks) {
  active.outcome.fallbacks[reason] += blocks;
  counters_.fallbacks[reason] += blocks;
}

bool ConnectorScheduler::Add(const std::string& request, const CarriedTransfer& carried,
                             TokenIds prompt, std::string_view cache_salt, TimeMs now) {
  const auto [place, is_new] = requests_.try_emplace(request);
  if (!is_new) return true;
  ++counters_.requests;
  Active& active = place->second;
  active.outcome.request = request;
  // A client may choose its request's name, and no rank would read it.
  auto transfer = request.size() > kMaxTextBytes
                      ? Result<TransferRequest>(InvalidArgument("the request's name is too long"))
                      : OpenTransferRequest(carried, prompt, cache_salt, options_.secret, now);
  if (!transfer.ok()) {
    const StatusCode code = transfer.status().code();
    Fall(active,
         code == StatusCode::kUnsupported       ? "schema"
         : code == StatusCode::kInvalidArgument ? "malformed"
                                                : "unauthorised",
         1);
    return false;
  }
  active.transfer = std::move(*transfer);
  active.prompt = std::move(prompt);
  active.pins.resize(active.transfer.blocks.size());
  return true;
}

bool ConnectorScheduler::rotation_known() const {
  return refusal_.empty() && std::all_of(rotation_measured_.begin(), rotation_measured_.end(),
                                         [](bool x) { return x; });
}

std::optional<std::int32_t> ConnectorScheduler::MatchedTokens(const std::string& request,
                                                              std::int32_t computed,
                                                              std::int32_t tokens) {
  if (promotions_.StillWaiting(request)) return std::nullopt;
  const auto found = requests_.find(request);
  if (found == requests_.end()) return 0;
  Active& active = found->second;
  if (active.transfer.operation != TransferOperation::kInject || active.prompt.empty()) return 0;
  active.unmatched.clear();
  if (!rotation_known()) {
    active.unmatched[refusal_.empty() ? "rotation_unknown" : "model_unsupported"] =
        static_cast<std::int32_t>(active.transfer.blocks.size());
    return 0;
  }
  std::int32_t covered = 0;
  bool resident = true;
  directory_.Prefetch(active.transfer.blocks);
  for (std::size_t i = 0; i < active.transfer.blocks.size(); ++i) {
    const TransferBlock& block = active.transfer.blocks[i];
    const auto own = std::span(active.prompt)
                         .subspan(static_cast<std::size_t>(block.begin),
                                  static_cast<std::size_t>(block.end - block.begin));
    const DirectoryBlock* const known = directory_.Find(block.key, own);
    if (known == nullptr) {
      ++active.unmatched[directory_.Ready(block.key) ? "token_mismatch" : "not_ready"];
      continue;
    }
    if (block.begin != covered) {  // a gap in the request, or a missing block in front
      ++active.unmatched["not_contiguous"];
      continue;
    }
    Pinned& pin = active.pins[i];
    if (pin.serial == 0) pin = {block.key, directory_.Pin(block.key)};
    covered = block.end;
    resident = resident && (known->arenas == every_arena_ || block.end <= computed);
  }
  active.matched_from = computed;
  const auto most = static_cast<std::int32_t>(active.prompt.size()) - 1;
  const std::int32_t end = std::min(covered, most);
  if (end > computed && FailsUnseen(end, std::max(tokens, most + 1))) {
    active.unmatched["outside_window"] = static_cast<std::int32_t>(std::count_if(
        active.pins.begin(), active.pins.end(), [](const Pinned& pin) { return pin.serial != 0; }));
    return 0;
  }
  // What lies behind the window of the first computed token is not loaded: the engine gives it null
  // blocks. It need not come up.
  const std::int32_t begin = std::max(computed, FreedTokens(end));
  if (!resident && promotions_.enabled() && MustWait(request, active, begin, end)) {
    return std::nullopt;
  }
  return std::max(0, end - computed);
}

bool ConnectorScheduler::MustWait(const std::string& request, const Active& active,
                                  std::int32_t begin, std::int32_t end) {
  std::vector<PromotionPlanner::Wanted> wanted;
  bool resident = true;
  for (std::size_t i = 0; i < active.transfer.blocks.size(); ++i) {
    const TransferBlock& block = active.transfer.blocks[i];
    if (block.begin >= end || block.end <= begin || active.pins[i].serial == 0) continue;
    const DirectoryBlock* const known = directory_.Get(block.key);
    if (known == nullptr) continue;
    const bool here = known->arenas == every_arena_;
    resident = resident && here;
    wanted.push_back({{block.key, known->scope_tag, known->tokens.count},
                      active.pins[i].serial,
                      known->bytes,
                      here});
  }
  return !resident && promotions_.MustWait(request, wanted, plan_);
}

std::int32_t ConnectorScheduler::NullTokens(std::span<const std::int32_t> block_table) const {
  if (options_.window == 0) return 0;
  const auto first = std::find_if(block_table.begin(), block_table.end(),
                                  [](std::int32_t block) { return block != kNullBlock; });
  return static_cast<std::int32_t>(first - block_table.begin()) * options_.block_slots;
}

std::int32_t ConnectorScheduler::FreedTokens(std::int32_t begin) const {
  if (options_.window == 0) return 0;
  const std::int32_t seen = std::max(0, begin - options_.window + 1);
  return seen / options_.block_slots * options_.block_slots;
}

bool ConnectorScheduler::FailsUnseen(std::int32_t end, std::int32_t tokens) const {
  // The pass behind the load may reach the request's end, and the next one begins there.
  return options_.frees_ahead && FreedTokens(tokens) >= end;
}

bool ConnectorScheduler::IsWhole(const Active& active, std::int32_t first, std::int32_t last,
                                 std::int32_t begin) const {
  if (options_.window == 0) return true;
  const std::int32_t slots = options_.block_slots;
  const std::int32_t first_block = first / slots, end_block = (last + slots - 1) / slots;
  // The request's own table is not told of what is freed.
  if (first < FreedTokens(begin) ||
      static_cast<std::size_t>(end_block) > active.block_table.size()) {
    return false;
  }
  return std::none_of(active.block_table.begin() + first_block,
                      active.block_table.begin() + end_block,
                      [](std::int32_t block) { return block == kNullBlock; });
}

void ConnectorScheduler::Allocated(const std::string& request, std::int32_t external,
                                   std::vector<std::int32_t> block_table) {
  const auto found = requests_.find(request);
  if (found == requests_.end()) return;
  Active& active = found->second;
  active.block_table = std::move(block_table);
  promotions_.Release(request, plan_);  // the ranks do it after this plan's loads
  if (external <= 0) return;
  RequestLoad load{request, active.block_table, {}};
  const std::int32_t end = active.matched_from + external;
  const std::int32_t begin =
      std::min(std::max(active.matched_from, NullTokens(active.block_table)), end);
  for (const TransferBlock& block : active.transfer.blocks) {
    const std::int32_t first = std::max(block.begin, begin), last = std::min(block.end, end);
    if (first < last) load.pieces.push_back({block.key, first - block.begin, last - first, first});
  }
  active.external += external;
  active.promised = external;
  active.unseen = begin - active.matched_from;
  plan_.loads.push_back(std::move(load));
}

bool ConnectorScheduler::Follows(const std::string& request) const {
  const auto found = requests_.find(request);
  return found != requests_.end() && found->second.transfer.operation != TransferOperation::kInject;
}

void ConnectorScheduler::Scheduled(const std::string& request, std::int32_t computed,
                                   std::span<const std::int32_t> new_blocks, bool replace,
                                   std::int32_t begin) {
  const auto found = requests_.find(request);
  if (found == requests_.end()) return;
  Active& active = found->second;
  if (replace) active.block_table.clear();
  active.block_table.insert(active.block_table.end(), new_blocks.begin(), new_blocks.end());
  if (active.transfer.operation == TransferOperation::kCapture) {
    Capture(request, active, begin, computed);
  }
  const auto tokens = static_cast<std::int32_t>(active.prompt.size());
  if (active.transfer.operation == TransferOperation::kProbe && !active.probed &&
      computed >= tokens) {
    active.probed = true;
    if (IsWhole(active, 0, tokens, begin)) {
      plan_.probes.push_back({request, active.block_table, tokens});
    } else {  // perhaps because of others in its passes: no refusal for good
      Fall(active, "outside_window", 1);
    }
  }
}

void ConnectorScheduler::Capture(const std::string& request, Active& active, std::int32_t begin,
                                 std::int32_t computed) {
  const std::vector<TransferBlock>& blocks = active.transfer.blocks;
  for (; active.next_capture < blocks.size() && blocks[active.next_capture].end <= computed;
       ++active.next_capture) {
    const TransferBlock& block = blocks[active.next_capture];
    if (!rotation_known()) {
      Fall(active, refusal_.empty() ? "rotation_unknown" : "model_unsupported", 1);
      continue;
    }
    if (!IsWhole(active, block.begin, block.end, begin)) {
      Fall(active, "outside_window", 1);
      continue;
    }
    const std::int64_t bytes = options_.token_bytes * (block.end - block.begin);
    TokenIds tokens(active.prompt.begin() + block.begin, active.prompt.begin() + block.end);
    const DirectoryBlock entry{block.key, active.transfer.scope_tag, active.transfer.epoch, bytes,
                               TokenDigest::Of(tokens)};
    CaptureItem item{request,         block.key,          0,
                     entry.scope_tag, entry.epoch,        std::move(tokens),
                     block.saw,       active.block_table, block.begin};
    auto place = directory_.Reserve(entry);
    if (!place.ok()) {
      const StatusCode code = place.status().code();
      if (code == StatusCode::kAlreadyExists) continue;
      Fall(active,
           code != StatusCode::kResourceExhausted ? "erased"
           : bytes > options_.budget_bytes        ? "too_large"
                                                  : "over_budget",
           1);
      continue;
    }
    plan_.drop.insert(plan_.drop.end(), place->evict.begin(), place->evict.end());
    item.serial = place->serial;
    plan_.captures.push_back(std::move(item));
  }
}

StepPlan ConnectorScheduler::TakePlan() {
  promotions_.StepPlanned();
  if (plan_.empty()) return {};
  StepPlan next;
  next.sequence = plan_.sequence + 1;
  return std::exchange(plan_, std::move(next));
}

Result<WorkerReport> ConnectorScheduler::ReadReport(std::span<const std::uint8_t> bytes) const {
  INFERSCALE_ASSIGN_OR_RETURN(WorkerReport report, ParseWorkerReport(bytes));
  if (report.rank < 0 || report.rank >= options_.ranks) {
    return DataLoss("a worker's report names rank " + std::to_string(report.rank) + " of " +
                    std::to_string(options_.ranks));
  }
  return report;
}

Status ConnectorScheduler::TakeReport(std::span<const std::uint8_t> bytes) {
  const Result<WorkerReport> read = ReadReport(bytes);
  if (!read.ok()) {
    // No other report will tell of what this one did: such a block would never be ready, captured
    // again or evicted. Those whose reports are still to come are captured again when asked for.
    Erase(directory_.DropIncomplete());
    return read.status();
  }
  const WorkerReport& report = *read;
  const auto rank = static_cast<std::size_t>(report.rank);
  acknowledged_[rank] = std::max(acknowledged_[rank], report.sequence);
  if (report.rotation_measured) rotation_measured_[rank] = true;
  if (!report.refusal.empty()) refusal_ = report.refusal;
  for (const HeldBlock& held : report.held) {
    const auto tokens = static_cast<std::int64_t>(held.tokens.size());
    if (!directory_.Restored({held.key, held.scope_tag, held.epoch, options_.token_bytes * tokens,
                              TokenDigest::Of(held.tokens)})) {
      plan_.drop.push_back(held.key);
    }
  }
  for (const StoredBlock& block : report.stored) {
    if (directory_.Stored(block.key, block.serial)) ++counters_.captured_blocks;
  }
  for (const StoredBlock& block : report.lost) {
    if (block.serial == 0) ++counters_.load_failures;
    if (directory_.Lost(block.key, block.serial)) plan_.drop.push_back(block.key);
  }
  TakeArenas(report);
  if (report.rank == 0) {  // every rank injects the same tokens, each its heads
    for (const InjectedTokens& injected : report.injected) {
      const auto active = requests_.find(injected.request);
      std::int32_t tokens = injected.tokens;
      if (active != requests_.end() && tokens > 0) tokens += active->second.unseen;
      counters_.injected_tokens += tokens;
      if (active == requests_.end()) continue;
      active->second.outcome.injected_tokens += tokens;
      active->second.promised = active->second.unseen = 0;
    }
  }
  return OkStatus();
}

void ConnectorScheduler::TakeArenas(const WorkerReport& report) {
  if (report.arena_bytes > 0) {
    promotions_.SetArena(report.rank, static_cast<std::int64_t>(report.arena_bytes));
  }
  if (!promotions_.enabled()) return;
  for (const StoredBlock& block : report.stored) {
    directory_.SetInArena(block.key, report.rank, true);
  }
  for (const KvKey& key : report.evicted) directory_.SetInArena(key, report.rank, false);
  for (const KvKey& key : report.resident) directory_.SetInArena(key, report.rank, true);
  for (const KvKey& key : report.unpromoted) promotions_.Failed(key);
  if (!report.stored.empty() || !report.lost.empty() || !report.evicted.empty() ||
      !report.resident.empty() || !report.unpromoted.empty()) {
    promotions_.Changed(!report.resident.empty());
  }
}

void ConnectorScheduler::Unpin(Active& active) {
  directory_.Prefetch(active.pins);
  for (Pinned& pin : active.pins) {
    if (pin.serial != 0) directory_.Unpin(pin.key, pin.serial);
    pin.serial = 0;
  }
}

TransferOutcome ConnectorScheduler::Finished(const std::string& request) {
  const auto found = requests_.find(request);
  if (found == requests_.end()) return {};
  Active& active = found->second;
  const auto is_of_request = [&](const auto& item) { return item.request == request; };
  if (std::erase_if(plan_.loads, is_of_request) == 0) {
    // A request that ends with its first pass ends before that pass is reported. Had its load
    // failed, the engine would have computed it again and not ended it.
    active.outcome.injected_tokens += active.promised;
  }
  for (const auto& [reason, blocks] : active.unmatched) Fall(active, reason, blocks);
  if (active.outcome.injected_tokens < active.external) {
    const auto lost = std::count_if(active.pins.begin(), active.pins.end(), [&](const Pinned& pin) {
      return pin.serial != 0 && !directory_.Ready(pin.key);
    });
    if (lost > 0) Fall(active, "evicted", static_cast<std::int32_t>(lost));
  }
  Unpin(active);
  promotions_.Release(request, plan_);
  // Its engine blocks may be another's by the next pass.
  for (const CaptureItem& item : plan_.captures) {
    if (item.request == request) directory_.Lost(item.key, item.serial);
  }
  std::erase_if(plan_.captures, is_of_request);
  std::erase_if(plan_.probes, is_of_request);
  TransferOutcome outcome = std::move(active.outcome);
  const TransferRequest& transfer = active.transfer;
  for (const TransferBlock& block : transfer.blocks) {
    outcome.captured_blocks +=
        transfer.operation == TransferOperation::kCapture && directory_.Contains(block.key);
  }
  requests_.erase(found);
  return outcome;
}

void ConnectorScheduler::Drop(std::span<const KvKey> keys) {
  plan_.drop.insert(plan_.drop.end(), keys.begin(), keys.end());
}

void ConnectorScheduler::DiscardPlan() {
  for (const RequestLoad& load : plan_.loads) {
    const auto active = requests_.find(load.request);
    if (active != requests_.end()) active->second.promised = 0;
  }
  for (const CaptureItem& item : plan_.captures) directory_.Lost(item.key, item.serial);
  plan_.loads.clear();
  plan_.captures.clear();
  plan_.probes.clear();
}

std::uint64_t ConnectorScheduler::Erase(std::span<const KvKey> keys, std::uint64_t scope_tag,
                                        std::uint64_t epoch) {
  if (epoch > 0) directory_.Fence(scope_tag, epoch);
  for (const KvKey& key : keys) directory_.Erase(key);
  promotions_.Changed(false);
  // A plan's erasures come before its captures.
  if (!plan_.captures.empty()) {
    const std::unordered_set<KvKey> erased(keys.begin(), keys.end());
    std::erase_if(plan_.captures,
                  [&](const CaptureItem& item) { return erased.contains(item.key); });
  }
  // Also what the directory does not know: a rank may hold a file of it.
  Drop(keys);
  return plan_.sequence;
}

std::uint64_t ConnectorScheduler::EraseScope(std::uint64_t scope_tag, std::uint64_t epoch) {
  directory_.EraseScope(scope_tag, epoch);
  promotions_.Changed(false);
  std::erase_if(plan_.captures,
                [&](const CaptureItem& item) { return item.scope_tag == scope_tag; });
  plan_.erase_scopes.push_back({scope_tag, epoch});
  return plan_.sequence;
}

void ConnectorScheduler::Clear() {
  directory_.Clear();
  promotions_.Clear();
  StepPlan cleared;
  cleared.sequence = plan_.sequence;
  cleared.clear = true;
  cleared.erase_scopes = std::move(plan_.erase_scopes);
  cleared.loads = std::move(plan_.loads);  // each fails on its rank, and the engine computes it
  plan_ = std::move(cleared);
}

Growth ConnectorScheduler::TakeGrowth() {
  Growth out;
  growth_.Add("requests", counters_.requests, out);
  growth_.Add("injected_tokens", counters_.injected_tokens, out);
  growth_.Add("captured_blocks", counters_.captured_blocks, out);
  growth_.Add("load_failures", counters_.load_failures, out);
  growth_.Add("evictions", directory_.evictions(), out);
  growth_.Add("waits", promotions_.counters().waits, out);
  growth_.Add("waits_given_up", promotions_.counters().given_up, out);
  for (const auto& [reason, count] : counters_.fallbacks) {
    growth_.Add("fallback:" + reason, count, out);
  }
  return out;
}

std::uint64_t ConnectorScheduler::AcknowledgedPlan() const {
  return *std::min_element(acknowledged_.begin(), acknowledged_.end());
}

}  // namespace inferscale
