// What the connector's two sides cost the host before a launch, without an engine and without a
// GPU: a request of k facts among thousands is opened, matched, planned and handed to a device that
// does nothing. As in an engine, where some milliseconds of other work lie between two requests,
// nothing of it is in the processor's cache: both sides are measured after 64 MiB have been read.
// Prints the medians in microseconds by hook.

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <memory>
#include <numeric>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "connector/scheduler.h"
#include "connector/worker.h"
#include "kernels/device.h"
#include "kernels/transfer_setup.h"

namespace inferscale {
namespace {

constexpr std::int32_t kDim = 16, kBlockSlots = 16, kEngineBlocks = 40960, kMaxPosition = 16384;
constexpr std::int32_t kProbeTokens = 1100, kFacts = 8000, kTailTokens = 64;
constexpr std::uintptr_t kStream = 1;
constexpr int kRuns = 101;

/// Everything but the kernel.
class NoTransfer : public kernels::DeviceTransfer {
 public:
  explicit NoTransfer(kernels::OwnedSetup setup) : setup_(std::move(setup)) {}
  kernels::KernelStatus Inject(const kernels::FactDescriptor* facts, std::int32_t count,
                               const std::int32_t* table, std::int32_t blocks,
                               std::uintptr_t) override {
    return setup_.Check(facts, count, table, blocks, kernels::Direction::kInject);
  }
  kernels::KernelStatus Capture(const kernels::FactDescriptor* facts, std::int32_t count,
                                const std::int32_t* table, std::int32_t blocks,
                                std::uintptr_t) override {
    return setup_.Check(facts, count, table, blocks, kernels::Direction::kCapture);
  }

 private:
  kernels::OwnedSetup setup_;
};

class NoDevice : public kernels::Device {
 public:
  Result<std::uint8_t*> Allocate(std::int64_t bytes) override { return host_->Allocate(bytes); }
  void Free(std::uint8_t* memory) override { host_->Free(memory); }
  Result<std::uint8_t*> AllocatePinned(std::int64_t bytes) override { return Allocate(bytes); }
  void FreePinned(std::uint8_t* memory) override { Free(memory); }
  Status CopyToDevice(std::uint8_t*, const std::uint8_t*, std::int64_t, std::uintptr_t) override {
    return OkStatus();
  }
  Status CopyToHost(std::uint8_t*, const std::uint8_t*, std::int64_t, std::uintptr_t) override {
    return OkStatus();
  }
  Status CopyOnDevice(std::uint8_t*, const std::uint8_t*, std::int64_t, std::uintptr_t) override {
    return OkStatus();
  }
  Result<std::uint64_t> Record(std::uintptr_t) override { return ++events_; }
  Result<bool> Done(std::uint64_t) override { return true; }
  Status Wait(std::uint64_t) override { return OkStatus(); }
  Status StreamWait(std::uintptr_t, std::uint64_t) override { return OkStatus(); }
  std::uintptr_t copy_stream() override { return 2; }
  Result<std::int64_t> FreeBytes() override { return host_->FreeBytes(); }
  Result<std::unique_ptr<kernels::DeviceTransfer>> MakeTransfer(
      const kernels::TransferSetup& setup) override {
    INFERSCALE_ASSIGN_OR_RETURN(auto owned, kernels::OwnedSetup::Copy(setup));
    return std::unique_ptr<kernels::DeviceTransfer>(new NoTransfer(std::move(owned)));
  }

 private:
  std::unique_ptr<kernels::Device> host_ = *kernels::MakeHostDevice();
  std::atomic<std::uint64_t> events_ = 0;
};

template <typename T>
T Need(Result<T> result) {
  if (result.ok()) return std::move(*result);
  std::fprintf(stderr, "inferscale: error: %s\n", result.status().ToString().c_str());
  std::exit(1);
}

void Need(const Status& status) {
  if (!status.ok()) Need(Result<int>(status));
}

class Bench {
 public:
  Bench() : flushed_(std::size_t{64} << 20, 1) {
    ConnectorSchedulerOptions scheduler;
    scheduler.secret.assign(32, 7);
    scheduler.budget_bytes = std::int64_t{1} << 40;
    scheduler.token_bytes = std::int64_t{4} * kDim;
    scheduler_ = Need(ConnectorScheduler::Create(std::move(scheduler)));
    ConnectorWorkerOptions worker;
    worker.geometry = {1, 1, kDim, kDim};
    worker.codec = KvCodec::kBF16;
    worker.host_budget_bytes = std::int64_t{1} << 30;
    worker.block_slots = kBlockSlots;
    worker.engine_blocks = kEngineBlocks;
    worker.max_position = kMaxPosition;
    worker_ = Need(ConnectorWorker::Create(std::move(worker)));
    cache_.resize(std::size_t{2} * kEngineBlocks * kBlockSlots * kDim);
    DeviceCache cache;
    cache.type = kernels::ScalarType::kBF16;
    cache.key_base = {reinterpret_cast<std::uintptr_t>(cache_.data())};
    cache.value_base = {reinterpret_cast<std::uintptr_t>(cache_.data() + cache_.size() / 2)};
    cache.key_dim_stride = cache.value_dim_stride = 2;
    cache.key_head_stride = cache.value_head_stride = std::int64_t{2} * kDim;
    cache.key_slot_stride = cache.value_slot_stride = std::int64_t{2} * kDim;
    cache.key_block_stride = cache.value_block_stride = std::int64_t{2} * kDim * kBlockSlots;
    Need(worker_->AttachDevice(std::make_unique<NoDevice>(), std::move(cache),
                               std::int64_t{1} << 26, 0));
    Report();
    scheduler_->StartComplete();
    Probe();
    for (int first = 0; first < kFacts; first += 200) {
      std::vector<int> batch(200);
      std::iota(batch.begin(), batch.end(), first);
      for (std::size_t i = 0; i < batch.size(); ++i) AddFact();
      Step(TransferOperation::kCapture, batch);
    }
    worker_->Flush();
  }

  void Measure(int k) {
    times_.clear();
    std::vector<int> chosen(kFacts);
    std::iota(chosen.begin(), chosen.end(), 0);
    for (int run = 0; run < kRuns; ++run) {
      std::shuffle(chosen.begin(), chosen.end(), random_);
      Step(TransferOperation::kInject, {chosen.begin(), chosen.begin() + k});
    }
    std::printf("%4d", k);
    double sum = 0;
    for (const char* hook : {"add", "match", "allocated", "plan", "begin", "load"}) {
      sum += Median(hook);
      std::printf(" %9.1f", Median(hook));
    }
    std::printf(" %9.1f | %7.1f %7.1f\n", sum, Median("report"), Median("finished"));
  }

 private:
  struct Fact {
    KvKey key;
    TokenIds tokens;
  };

  void AddFact() {
    Fact fact;
    for (std::uint8_t& byte : fact.key.bytes) byte = static_cast<std::uint8_t>(random_());
    fact.tokens.resize(15 + random_() % 31);
    for (TokenId& id : fact.tokens) id = static_cast<TokenId>(random_() % 128000);
    facts_.push_back(std::move(fact));
  }

  void Probe() {
    requested_ = TokenIds(kProbeTokens, 5);
    Open(TransferOperation::kProbe, {});
    Place();
    scheduler_->Scheduled("r", kProbeTokens, table_, true);
    Need(worker_->Begin(scheduler_->TakePlan()));
    const auto slots = worker_->ProbeSlots();
    std::vector<float> keys, values(slots.size() * kDim, 1);
    for (const std::int64_t slot : slots) {
      const std::int64_t position = slot - std::int64_t{table_.front()} * kBlockSlots;
      for (int i = 0; i < kDim; ++i) {
        const double angle =
            static_cast<double>(position) * std::pow(1e4, -2.0 * (i % (kDim / 2)) / kDim);
        keys.push_back(static_cast<float>(i < kDim / 2 ? std::cos(angle) - std::sin(angle)
                                                       : std::cos(angle) + std::sin(angle)));
      }
    }
    Need(worker_->Probe({kernels::ScalarType::kF32, keys.data(), values.data(),
                         static_cast<std::int64_t>(slots.size())}));
    Report();
    scheduler_->Finished("r");
    if (!scheduler_->rotation_known()) Need(Internal("the rotation was not measured"));
  }

  void Open(TransferOperation operation, std::vector<TransferBlock> blocks) {
    TransferRequest request;
    request.operation = operation;
    request.scope_tag = 7;
    request.epoch = 1;
    request.salt = "salt";
    request.expires_ms = 10;
    request.blocks = std::move(blocks);
    const CarriedTransfer carried =
        SignTransferRequest(request, requested_, std::vector<std::uint8_t>(32, 7));
    Flush();
    Timed("add", [&] { scheduler_->Add("r", carried, requested_, "salt", 5); });
  }

  void Place() {
    table_.resize((requested_.size() + kBlockSlots - 1) / kBlockSlots);
    std::iota(table_.begin(), table_.end(),
              1 + static_cast<std::int32_t>(random_() % (kEngineBlocks / 2)));
  }

  void Step(TransferOperation operation, const std::vector<int>& chosen) {
    requested_.clear();
    std::vector<TransferBlock> blocks;
    for (const int i : chosen) {
      const Fact& fact = facts_[static_cast<std::size_t>(i)];
      const auto begin = static_cast<std::int32_t>(requested_.size());
      requested_.insert(requested_.end(), fact.tokens.begin(), fact.tokens.end());
      blocks.push_back({fact.key, begin, static_cast<std::int32_t>(requested_.size()), {}});
    }
    const auto covered = static_cast<std::int32_t>(requested_.size());
    requested_.resize(requested_.size() + kTailTokens, 9);
    Open(operation, std::move(blocks));
    std::int32_t matched = 0;
    Timed("match", [&] { matched = scheduler_->MatchedTokens("r", 0).value_or(-1); });
    const bool capture = operation == TransferOperation::kCapture;
    if (matched != (capture ? 0 : covered)) Need(Internal("not all of it matched"));
    Place();
    std::vector<std::int32_t> table = table_;
    Timed("allocated", [&] { scheduler_->Allocated("r", matched, std::move(table)); });
    if (scheduler_->Follows("r")) {
      scheduler_->Scheduled("r", static_cast<std::int32_t>(requested_.size()), table_, true);
    }
    StepPlan plan;
    Timed("plan", [&] { plan = scheduler_->TakePlan(); });
    Flush();
    Timed("begin", [&] { Need(worker_->Begin(plan)); });
    Timed("load", [&] { Need(worker_->LoadOnDevice(kStream)); });
    if (capture) Need(worker_->CaptureOnDevice(kStream));
    Timed("report", [&] { Report(); });
    TransferOutcome outcome;
    Timed("finished", [&] { outcome = scheduler_->Finished("r"); });
    if (capture ? outcome.captured_blocks != static_cast<std::int32_t>(chosen.size())
                : outcome.injected_tokens != covered) {
      Need(Internal("not all of it was transferred"));
    }
  }

  void Report() {
    const auto report = worker_->TakeReport();
    if (!report.empty()) Need(scheduler_->TakeReport(report));
  }

  void Flush() { sum_ += std::accumulate(flushed_.begin(), flushed_.end(), std::uint64_t{0}); }

  template <typename Work>
  void Timed(const char* hook, Work work) {
    const auto began = std::chrono::steady_clock::now();
    work();
    times_[hook].push_back(
        std::chrono::duration<double, std::micro>(std::chrono::steady_clock::now() - began)
            .count());
  }

  double Median(const char* hook) {
    std::vector<double>& times = times_[hook];
    std::nth_element(times.begin(), times.begin() + kRuns / 2, times.end());
    return times[kRuns / 2];
  }

  std::mt19937_64 random_{20261130};
  std::vector<std::uint8_t> flushed_;
  std::uint64_t sum_ = 0;
  std::vector<std::uint16_t> cache_;
  std::unique_ptr<ConnectorScheduler> scheduler_;
  std::unique_ptr<ConnectorWorker> worker_;
  std::vector<Fact> facts_;
  TokenIds requested_;
  std::vector<std::int32_t> table_;
  std::map<std::string, std::vector<double>> times_;
};

}  // namespace
}  // namespace inferscale

int main() {
  inferscale::Bench bench;
  std::printf("%4s %9s %9s %9s %9s %9s %9s %9s | %7s %7s\n", "k", "add", "match", "allocated",
              "plan", "begin", "load", "sum", "report", "finish");
  for (const int k : {1, 5, 20, 50, 100, 200}) bench.Measure(k);
  return 0;
}
