#include "connector/step.h"

#include <algorithm>

#include "base/bytes.h"

namespace inferscale {
namespace {

constexpr std::uint32_t kPlanMagic = 0x32505349;    // "ISP2"
constexpr std::uint32_t kReportMagic = 0x32525349;  // "ISR2"

// One description of each structure serves writing and reading: `Archive` is either.
class Writer {
 public:
  void operator()(std::uint64_t& value) { out_.WriteU64(value); }
  void operator()(std::int32_t& value) { out_.WriteI32(value); }
  void operator()(bool& value) { out_.WriteU8(value ? 1 : 0); }
  void operator()(std::string& value) { out_.WriteString(value); }
  void operator()(KvKey& key) { out_.WriteBytes(key.bytes); }
  template <typename T>
  bool Count(std::vector<T>& list) {
    out_.WriteU64(list.size());
    return true;
  }
  ByteWriter& out() { return out_; }

 private:
  ByteWriter out_;
};

class Reader {
 public:
  explicit Reader(std::span<const std::uint8_t> bytes) : in_(bytes) {}
  void operator()(std::uint64_t& value) { value = in_.ReadU64(); }
  void operator()(std::int32_t& value) { value = in_.ReadI32(); }
  void operator()(bool& value) { value = in_.ReadU8() != 0; }
  void operator()(std::string& value) { value = in_.ReadString(kMaxTextBytes); }
  void operator()(KvKey& key) {
    const auto bytes = in_.ReadBytes(key.bytes.size());
    if (in_.ok()) std::copy(bytes.begin(), bytes.end(), key.bytes.begin());
  }
  template <typename T>
  bool Count(std::vector<T>& list) {
    const std::uint64_t count = in_.ReadU64();
    if (!in_.CanHold(count, 4)) return false;  // no element is written in fewer bytes
    list.resize(count);
    return true;
  }
  ByteReader& in() { return in_; }

 private:
  ByteReader in_;
};

template <typename Archive>
void Describe(Archive& archive, std::int32_t& value) {
  archive(value);
}
template <typename Archive>
void Describe(Archive& archive, std::string& value) {
  archive(value);
}
template <typename Archive>
void Describe(Archive& archive, KvKey& value) {
  archive(value);
}
template <typename Archive, typename T>
void Describe(Archive& archive, std::vector<T>& list);
template <typename Archive>
void Describe(Archive& archive, LoadPiece& piece) {
  archive(piece.key), archive(piece.first), archive(piece.count), archive(piece.position);
}
template <typename Archive>
void Describe(Archive& archive, RequestLoad& load) {
  archive(load.request);
  Describe(archive, load.block_table);
  Describe(archive, load.pieces);
}
template <typename Archive>
void Describe(Archive& archive, CaptureItem& item) {
  archive(item.request), archive(item.key), archive(item.serial);
  archive(item.scope_tag), archive(item.epoch);
  Describe(archive, item.tokens);
  Describe(archive, item.saw);
  Describe(archive, item.block_table);
  archive(item.position);
}
template <typename Archive>
void Describe(Archive& archive, ProbeItem& item) {
  archive(item.request);
  Describe(archive, item.block_table);
  archive(item.tokens);
}
template <typename Archive>
void Describe(Archive& archive, PromoteItem& item) {
  archive(item.key), archive(item.scope_tag), archive(item.tokens);
}
template <typename Archive>
void Describe(Archive& archive, ScopeErasure& erasure) {
  archive(erasure.scope_tag), archive(erasure.epoch);
}
template <typename Archive>
void Describe(Archive& archive, HeldBlock& block) {
  archive(block.key), archive(block.scope_tag), archive(block.epoch);
  Describe(archive, block.tokens);
}
template <typename Archive>
void Describe(Archive& archive, StoredBlock& block) {
  archive(block.key), archive(block.serial);
}
template <typename Archive>
void Describe(Archive& archive, InjectedTokens& injected) {
  archive(injected.request), archive(injected.tokens);
}
template <typename Archive>
void Describe(Archive& archive, StepPlan& plan) {
  archive(plan.sequence), archive(plan.clear);
  Describe(archive, plan.drop);
  Describe(archive, plan.erase_scopes);
  Describe(archive, plan.loads);
  Describe(archive, plan.captures);
  Describe(archive, plan.probes);
  Describe(archive, plan.promote);
  Describe(archive, plan.release);
}
template <typename Archive>
void Describe(Archive& archive, WorkerReport& report) {
  archive(report.rank), archive(report.sequence);
  Describe(archive, report.held);
  Describe(archive, report.stored);
  Describe(archive, report.lost);
  Describe(archive, report.injected);
  archive(report.arena_bytes);
  Describe(archive, report.resident);
  Describe(archive, report.evicted);
  Describe(archive, report.unpromoted);
  archive(report.rotation_measured), archive(report.refusal);
}
// Last, so that it sees the description of every element.
template <typename Archive, typename T>
void Describe(Archive& archive, std::vector<T>& list) {
  if (!archive.Count(list)) return;
  for (T& element : list) Describe(archive, element);
}

template <typename T>
std::vector<std::uint8_t> Serialize(std::uint32_t magic, T value) {
  Writer writer;
  writer.out().WriteU32(magic);
  Describe(writer, value);
  return writer.out().Take();
}

template <typename T>
Result<T> Parse(std::uint32_t magic, std::string_view what, std::span<const std::uint8_t> bytes) {
  Reader reader(bytes);
  T value;
  if (reader.in().ReadU32() != magic) reader.in().Fail();
  if (reader.in().ok()) Describe(reader, value);
  if (reader.in().ok() && reader.in().remaining() != 0) reader.in().Fail();
  if (!reader.in().ok()) return reader.in().status(what);
  return value;
}

}  // namespace

std::vector<std::uint8_t> SerializeStepPlan(const StepPlan& plan) {
  return Serialize(kPlanMagic, plan);
}

Result<StepPlan> ParseStepPlan(std::span<const std::uint8_t> bytes) {
  return Parse<StepPlan>(kPlanMagic, "a connector's step plan", bytes);
}

std::vector<std::uint8_t> SerializeWorkerReport(const WorkerReport& report) {
  return Serialize(kReportMagic, report);
}

Result<WorkerReport> ParseWorkerReport(std::span<const std::uint8_t> bytes) {
  return Parse<WorkerReport>(kReportMagic, "a connector's worker report", bytes);
}

}  // namespace inferscale
