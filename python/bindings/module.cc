/// The native half of the vLLM connector. Addresses and counts come as integers; plans and reports
/// travel as bytes. Every failure is an exception of Python's: the connector turns it into a
/// request that is computed as text.

#include <nanobind/nanobind.h>
#include <nanobind/stl/map.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/string_view.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/unique_ptr.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <chrono>
#include <optional>
#include <stdexcept>
#include <tuple>

#include "base/bytes.h"
#include "base/hash.h"
#include "connector/scheduler.h"
#include "connector/transfer_request.h"
#include "connector/worker.h"

namespace nb = nanobind;

namespace inferscale {
namespace {

void Check(const Status& status) {
  if (status.ok()) return;
  if (status.code() == StatusCode::kInvalidArgument)
    throw nb::value_error(status.message().c_str());
  throw std::runtime_error(status.message());
}

template <typename T>
T Check(Result<T> result) {
  Check(result.status());
  return std::move(*result);
}

std::span<const std::uint8_t> Bytes(const nb::bytes& bytes) {
  return {static_cast<const std::uint8_t*>(bytes.data()), bytes.size()};
}

nb::bytes ToPython(std::span<const std::uint8_t> bytes) {
  return nb::bytes(reinterpret_cast<const char*>(bytes.data()), bytes.size());
}

template <std::size_t kSize>
std::array<std::uint8_t, kSize> Fixed(const nb::bytes& bytes, const char* what) {
  std::array<std::uint8_t, kSize> out{};
  if (bytes.size() != kSize) throw nb::value_error(what);
  std::copy_n(static_cast<const std::uint8_t*>(bytes.data()), kSize, out.begin());
  return out;
}

KvKey Key(const nb::bytes& bytes) { return {Fixed<16>(bytes, "a KV key has 16 bytes")}; }

TimeMs Now() {
  return std::chrono::duration_cast<std::chrono::milliseconds>(
             std::chrono::system_clock::now().time_since_epoch())
      .count();
}

kernels::ScalarType Scalar(std::string_view name) {
  if (name == "float32") return kernels::ScalarType::kF32;
  if (name == "float16") return kernels::ScalarType::kF16;
  if (name == "bfloat16") return kernels::ScalarType::kBF16;
  throw nb::value_error("the cache's type must be float32, float16 or bfloat16");
}

Staging StagingAt(std::string_view type, std::uintptr_t keys, std::uintptr_t values,
                  std::int64_t tokens) {
  return {Scalar(type), reinterpret_cast<void*>(keys), reinterpret_cast<void*>(values), tokens};
}

/// kv_transfer_params["inferscale"], signed, as a gateway writes it.
nb::dict SignTransfer(std::string_view operation, const std::string& salt, std::uint64_t scope_tag,
                      std::uint64_t epoch, TimeMs expires_ms,
                      const std::vector<std::tuple<nb::bytes, int, int>>& blocks,
                      const TokenIds& prompt, const nb::bytes& secret) {
  TransferRequest request;
  request.operation = operation == "inject"    ? TransferOperation::kInject
                      : operation == "capture" ? TransferOperation::kCapture
                      : operation == "probe"
                          ? TransferOperation::kProbe
                          : throw nb::value_error("operation must be inject, capture or probe");
  request.salt = salt;
  request.scope_tag = scope_tag;
  request.epoch = epoch;
  request.expires_ms = expires_ms;
  for (const auto& [key, begin, end] : blocks) request.blocks.push_back({Key(key), begin, end, {}});
  const CarriedTransfer carried = SignTransferRequest(request, prompt, Bytes(secret));
  nb::dict out;
  out["schema"] = carried.schema;
  out["request"] = carried.request;
  out["mac"] = carried.mac;
  return out;
}

/// \param transfer whatever a client has sent; what is of another type counts as malformed.
CarriedTransfer Carried(nb::handle transfer) {
  CarriedTransfer carried;
  carried.mac = "?";  // malformed
  if (!nb::isinstance<nb::dict>(transfer)) return carried;
  const nb::dict fields = nb::borrow<nb::dict>(transfer);
  const auto field = [&](const char* name) -> nb::object {
    return fields.contains(name) ? nb::object(fields[name]) : nb::none();
  };
  std::string request, mac;
  std::int64_t schema = 0;
  if (!nb::try_cast(field("schema"), schema, /*convert=*/false) ||
      !nb::try_cast(field("request"), request, /*convert=*/false) ||
      !nb::try_cast(field("mac"), mac, /*convert=*/false)) {
    return carried;
  }
  return {schema, std::move(request), std::move(mac)};
}

std::unique_ptr<ConnectorScheduler> MakeScheduler(const nb::bytes& secret,
                                                  std::int64_t budget_bytes,
                                                  std::int64_t token_bytes, std::int32_t ranks,
                                                  std::int32_t window, std::int32_t block_slots,
                                                  bool frees_ahead) {
  ConnectorSchedulerOptions options;
  const auto bytes = Bytes(secret);
  options.secret.assign(bytes.begin(), bytes.end());
  options.budget_bytes = budget_bytes;
  options.token_bytes = token_bytes;
  options.ranks = ranks;
  options.window = window;
  options.block_slots = block_slots;
  options.frees_ahead = frees_ahead;
  return Check(ConnectorScheduler::Create(std::move(options)));
}

std::unique_ptr<ConnectorWorker> MakeWorker(std::int32_t layers, std::int32_t kv_heads,
                                            std::int32_t head_dim, const std::string& codec,
                                            const nb::bytes& fingerprint, const std::string& folder,
                                            std::int64_t host_budget_bytes,
                                            std::int64_t file_budget_bytes,
                                            std::int32_t block_slots, std::int64_t engine_blocks,
                                            std::int32_t max_position, std::int32_t rank) {
  ConnectorWorkerOptions options;
  options.geometry = {layers, kv_heads, head_dim, head_dim};
  options.codec = Check(ParseKvCodec(codec));
  options.fingerprint = Fixed<32>(fingerprint, "a fingerprint has 32 bytes");
  options.folder = folder;
  options.host_budget_bytes = host_budget_bytes;
  options.file_budget_bytes = file_budget_bytes;
  options.block_slots = block_slots;
  options.engine_blocks = engine_blocks;
  options.max_position = max_position;
  options.rank = rank;
  return Check(ConnectorWorker::Create(std::move(options)));
}

using Strides = std::tuple<std::int64_t, std::int64_t, std::int64_t, std::int64_t>;

/// \param ordinal of the GPU; -1: this process's own memory, for tests.
/// \param key_strides in bytes: block, slot, head, element.
void AttachDevice(ConnectorWorker& worker, int ordinal, std::string_view type,
                  std::vector<std::uintptr_t> keys, std::vector<std::uintptr_t> values,
                  const Strides& key_strides, const Strides& value_strides,
                  std::int64_t arena_bytes, std::int64_t pinned_bytes) {
  DeviceCache cache;
  cache.type = Scalar(type);
  cache.key_base = std::move(keys);
  cache.value_base = std::move(values);
  std::tie(cache.key_block_stride, cache.key_slot_stride, cache.key_head_stride,
           cache.key_dim_stride) = key_strides;
  std::tie(cache.value_block_stride, cache.value_slot_stride, cache.value_head_stride,
           cache.value_dim_stride) = value_strides;
  auto device = Check(ordinal < 0 ? kernels::MakeHostDevice() : kernels::MakeCudaDevice(ordinal));
  Check(worker.AttachDevice(std::move(device), std::move(cache), arena_bytes, pinned_bytes));
}

/// \param inverse_frequencies groups of equal length; a probe finds each layer's own.
void ExpectRotation(ConnectorWorker& worker, std::string_view pairing, std::int32_t layers,
                    std::vector<std::vector<double>> inverse_frequencies) {
  RopeSpec spec;
  spec.pairing = pairing == "half" ? RopePairing::kHalf
                 : pairing == "interleaved"
                     ? RopePairing::kInterleaved
                     : throw nb::value_error("pairing must be half or interleaved");
  for (std::vector<double>& frequencies : inverse_frequencies) {
    spec.width = static_cast<std::int32_t>(2 * frequencies.size());
    spec.groups.push_back({std::move(frequencies)});
  }
  spec.layer_group.assign(static_cast<std::size_t>(std::max(layers, 0)), -1);
  Check(worker.ExpectRotation(std::move(spec)));
}

nb::dict DeviceCounters(const ConnectorWorker& worker) {
  const DeviceTierStats stats = worker.DeviceStats();
  nb::dict out;
  out["budget_bytes"] = stats.budget_bytes;
  out["blocks"] = stats.blocks;
  out["payload_bytes"] = stats.payload_bytes;
  out["free_bytes"] = stats.free_bytes;
  out["hits"] = stats.hits;
  out["promotions"] = stats.promotions;
  out["promoted_bytes"] = stats.promoted_bytes;
  out["evictions"] = stats.evictions;
  out["moved_bytes"] = stats.moved_bytes;
  const DeviceTierStats pinned = worker.PinnedStats();
  out["pinned_blocks"] = pinned.blocks;
  out["pinned_hits"] = pinned.hits;
  out["pinned_misses"] = pinned.misses;
  out["pinned_evictions"] = pinned.evictions;
  return out;
}

std::int64_t TokenBytes(const std::string& codec, std::int32_t layers, std::int32_t kv_heads,
                        std::int32_t head_dim) {
  // A short block has the most overhead a token: scales and zeros of its only group.
  constexpr std::int32_t kShort = 8;
  const kernels::CodecView view{Check(ParseKvCodec(codec)), layers, kv_heads, head_dim, head_dim};
  return static_cast<std::int64_t>(kernels::PayloadBytes(view, kShort)) / kShort + 64;
}

nb::dict Counters(const ConnectorScheduler& scheduler) {
  const ConnectorCounters& counters = scheduler.counters();
  nb::dict out;
  out["requests"] = counters.requests;
  out["injected_tokens"] = counters.injected_tokens;
  out["captured_blocks"] = counters.captured_blocks;
  out["load_failures"] = counters.load_failures;
  out["fallbacks"] = counters.fallbacks;
  out["blocks"] = scheduler.directory().blocks();
  out["bytes"] = scheduler.directory().bytes();
  out["pins"] = scheduler.directory().pins();
  out["evictions"] = scheduler.directory().evictions();
  out["waits"] = scheduler.promotions().counters().waits;
  out["waits_given_up"] = scheduler.promotions().counters().given_up;
  out["waiting"] = scheduler.promotions().waiting();
  out["kept_bytes"] = scheduler.promotions().kept_bytes();
  out["refusal"] = scheduler.refusal();
  return out;
}

/// A plan on its way to a rank: as it is, or from another process. Bytes are parsed where a fault
/// in them is caught: unpickling is the engine's, which would end.
struct CarriedPlan {
  std::optional<StepPlan> plan;
  std::vector<std::uint8_t> bytes;
};

nb::dict Outcome(const TransferOutcome& outcome) {
  nb::dict out;
  out["injected_tokens"] = outcome.injected_tokens;
  out["captured_blocks"] = outcome.captured_blocks;
  out["fallback"] = outcome.fallbacks;
  return out;
}

}  // namespace
}  // namespace inferscale

NB_MODULE(_native, module) {
  using namespace inferscale;  // NOLINT(google-build-using-namespace): one function, all names
  // Engines live until the interpreter ends, and vLLM keeps its connectors.
  nb::set_leak_warnings(false);
  module.def("sign_transfer", &SignTransfer, nb::arg("operation"), nb::kw_only(), nb::arg("salt"),
             nb::arg("scope_tag"), nb::arg("epoch"), nb::arg("expires_ms"), nb::arg("blocks"),
             nb::arg("prompt"), nb::arg("secret"));
  module.def("token_bytes", &TokenBytes, nb::arg("codec"), nb::arg("layers"), nb::arg("kv_heads"),
             nb::arg("head_dim"));
  module.def("sha256", [](const nb::bytes& data) { return ToPython(Sha256(Bytes(data))); });
  module.def(
      "sha256_file", [](const std::string& path) { return ToPython(Check(Sha256File(path))); },
      nb::call_guard<nb::gil_scoped_acquire>());

  nb::class_<CarriedPlan>(module, "StepPlan")
      .def("__getstate__",
           [](const CarriedPlan& carried) {
             return ToPython(carried.plan ? SerializeStepPlan(*carried.plan) : carried.bytes);
           })
      .def("__setstate__", [](CarriedPlan& carried, const nb::bytes& state) {
        const auto bytes = Bytes(state);
        new (&carried) CarriedPlan{std::nullopt, {bytes.begin(), bytes.end()}};
      });

  nb::class_<ConnectorScheduler>(module, "Scheduler")
      .def(nb::new_(&MakeScheduler), nb::kw_only(), nb::arg("secret"), nb::arg("budget_bytes"),
           nb::arg("token_bytes"), nb::arg("ranks"), nb::arg("window") = 0,
           nb::arg("block_slots") = 0, nb::arg("frees_ahead") = false)
      .def("add",
           [](ConnectorScheduler& self, const std::string& request, nb::handle transfer,
              TokenIds prompt, std::string_view salt) {
             return self.Add(request, Carried(transfer), std::move(prompt), salt, Now());
           })
      .def("knows", &ConnectorScheduler::Knows)
      .def("matched_tokens", &ConnectorScheduler::MatchedTokens, nb::arg("request"),
           nb::arg("computed"), nb::arg("tokens") = 0)
      .def("allocated", &ConnectorScheduler::Allocated)
      .def("follows", &ConnectorScheduler::Follows)
      .def("scheduled",
           [](ConnectorScheduler& self, const std::string& request, std::int32_t computed,
              const std::vector<std::int32_t>& blocks, bool replace,
              std::int32_t begin) { self.Scheduled(request, computed, blocks, replace, begin); })
      .def("discard_plan", &ConnectorScheduler::DiscardPlan)
      .def("take_plan",
           [](ConnectorScheduler& self) {
             StepPlan plan = self.TakePlan();
             return plan.empty() ? std::nullopt : std::optional(CarriedPlan{std::move(plan), {}});
           })
      .def("take_report", [](ConnectorScheduler& self,
                             const nb::bytes& report) { Check(self.TakeReport(Bytes(report))); })
      .def("start_complete", &ConnectorScheduler::StartComplete)
      .def("finished", [](ConnectorScheduler& self,
                          const std::string& request) { return Outcome(self.Finished(request)); })
      .def(
          "erase",
          [](ConnectorScheduler& self, const std::vector<nb::bytes>& keys, std::uint64_t scope,
             std::uint64_t epoch) {
            std::vector<KvKey> list;
            for (const nb::bytes& key : keys) list.push_back(Key(key));
            return self.Erase(list, scope, epoch);
          },
          nb::arg("keys"), nb::arg("scope") = 0, nb::arg("epoch") = 0)
      .def("erase_scope", &ConnectorScheduler::EraseScope)
      .def("clear", &ConnectorScheduler::Clear)
      .def("ready", [](const ConnectorScheduler& self,
                       const nb::bytes& key) { return self.Ready(Key(key)); })
      .def_prop_ro("rotation_known", &ConnectorScheduler::rotation_known)
      .def_prop_ro("acknowledged_plan", &ConnectorScheduler::AcknowledgedPlan)
      .def("take_growth", &ConnectorScheduler::TakeGrowth)
      .def("counters", &Counters);

  nb::class_<ConnectorWorker>(module, "Worker")
      .def(nb::new_(&MakeWorker), nb::kw_only(), nb::arg("layers"), nb::arg("kv_heads"),
           nb::arg("head_dim"), nb::arg("codec"), nb::arg("fingerprint"), nb::arg("folder"),
           nb::arg("host_budget_bytes"), nb::arg("file_budget_bytes"), nb::arg("block_slots"),
           nb::arg("engine_blocks"), nb::arg("max_position"), nb::arg("rank"))
      .def("begin",
           [](ConnectorWorker& self, const CarriedPlan& carried) {
             Check(self.Begin(carried.plan ? *carried.plan : Check(ParseStepPlan(carried.bytes))));
             return self.HasWorkAfterPass();
           })
      .def("load_slots", &ConnectorWorker::LoadSlots)
      .def("load",
           [](ConnectorWorker& self, std::string_view type, std::uintptr_t keys,
              std::uintptr_t values,
              std::int64_t tokens) { Check(self.Load(StagingAt(type, keys, values, tokens))); })
      .def("take_failed_blocks", &ConnectorWorker::TakeFailedBlocks)
      .def("capture_slots", &ConnectorWorker::CaptureSlots)
      .def("capture",
           [](ConnectorWorker& self, std::string_view type, std::uintptr_t keys,
              std::uintptr_t values,
              std::int64_t tokens) { Check(self.Capture(StagingAt(type, keys, values, tokens))); })
      .def("probe_slots", &ConnectorWorker::ProbeSlots)
      .def("probe",
           [](ConnectorWorker& self, std::string_view type, std::uintptr_t keys,
              std::uintptr_t values,
              std::int64_t tokens) { Check(self.Probe(StagingAt(type, keys, values, tokens))); })
      .def("attach_device", &AttachDevice, nb::kw_only(), nb::arg("ordinal"), nb::arg("type"),
           nb::arg("keys"), nb::arg("values"), nb::arg("key_strides"), nb::arg("value_strides"),
           nb::arg("arena_bytes"), nb::arg("pinned_bytes"))
      .def("expect_rotation", &ExpectRotation, nb::kw_only(), nb::arg("pairing"), nb::arg("layers"),
           nb::arg("inverse_frequencies"))
      .def("load_on_device",
           [](ConnectorWorker& self, std::uintptr_t stream) { Check(self.LoadOnDevice(stream)); })
      .def("capture_on_device", [](ConnectorWorker& self,
                                   std::uintptr_t stream) { Check(self.CaptureOnDevice(stream)); })
      .def("flush", &ConnectorWorker::Flush)
      .def("take_growth", &ConnectorWorker::TakeGrowth)
      .def("device_counters", &DeviceCounters)
      .def("take_report", [](ConnectorWorker& self) { return ToPython(self.TakeReport()); })
      .def("refuse", &ConnectorWorker::Refuse)
      .def_prop_ro("rotation_known", &ConnectorWorker::rotation_known);
}
