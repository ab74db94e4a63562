#include "retrieval/vector_memory.h"

#include <algorithm>
#include <charconv>
#include <string_view>
#include <utility>

#include "base/huge_pages.h"
#include "kernels/kernels.h"

namespace inferscale {
namespace {

class HostRows : public VectorRows {
 public:
  explicit HostRows(std::int32_t dimensions) : dimensions_(dimensions) {}

  Status Append(std::span<const EmbeddingRow> rows) override {
    if (vectors_.empty()) vectors_.reserve(rows.size() * static_cast<std::size_t>(dimensions_));
    for (const EmbeddingRow& row : rows) {
      vectors_.insert(vectors_.end(), row.vector.begin(), row.vector.end());
    }
    count_ += static_cast<std::int64_t>(rows.size());
    return OkStatus();
  }

  Result<std::vector<VectorMatch>> TopK(std::span<const float> query, const std::uint64_t* allowed,
                                        std::int32_t k) const override {
    const auto most = static_cast<std::size_t>(std::min<std::int64_t>(k, count_));
    std::vector<std::int64_t> rows(most);
    std::vector<float> scores(most);
    const std::int32_t found =
        kernels::TopK(vectors_.data(), count_, dimensions_, query.data(), allowed,
                      static_cast<std::int32_t>(most), rows.data(), scores.data());
    std::vector<VectorMatch> matches;
    for (std::size_t i = 0; static_cast<std::int32_t>(i) < found; ++i) {
      matches.push_back({static_cast<std::uint32_t>(rows[i]), scores[i]});
    }
    return matches;
  }

  Result<std::vector<float>> Scores(std::span<const float> query,
                                    std::span<const std::uint32_t> positions) const override {
    // One row through the same kernel, so that a fact has one score whichever way it was found.
    std::vector<float> scores;
    for (const std::uint32_t position : positions) {
      std::int64_t row = 0;
      float score = 0;
      kernels::TopK(vectors_.data() + std::size_t{position} * static_cast<std::size_t>(dimensions_),
                    1, dimensions_, query.data(), nullptr, 1, &row, &score);
      scores.push_back(score);
    }
    return scores;
  }

  std::size_t MemorySizeBytes() const override {
    return vectors_.capacity() * sizeof(std::uint16_t);
  }

 private:
  const std::int32_t dimensions_;
  std::int64_t count_ = 0;
  HugePageVector<std::uint16_t> vectors_;  // [count][dimensions] f16
};

class HostVectorMemory : public VectorMemory {
 public:
  Result<std::unique_ptr<VectorRows>> MakeRows(std::int32_t dimensions) override {
    return std::unique_ptr<VectorRows>(std::make_unique<HostRows>(dimensions));
  }
};

}  // namespace

std::shared_ptr<VectorMemory> MakeHostVectorMemory() {
  return std::make_shared<HostVectorMemory>();
}

Result<std::shared_ptr<VectorMemory>> MakeVectorMemory(const std::string& device) {
  if (device == "cpu") return MakeHostVectorMemory();
  constexpr std::string_view kCuda = "cuda";
  int ordinal = 0;
  bool good = device.starts_with(kCuda);
  if (good && device.size() > kCuda.size()) {
    const char* const end = device.data() + device.size();
    const auto [read, error] = std::from_chars(device.data() + kCuda.size() + 1, end, ordinal);
    good = device[kCuda.size()] == ':' && error == std::errc() && read == end && ordinal >= 0;
  }
  if (!good) return InvalidArgument("\"" + device + "\" is no device: give cpu, cuda or cuda:N");
  Result<std::unique_ptr<kernels::Device>> made = kernels::MakeCudaDevice(ordinal);
  if (!made.ok()) {
    return Status(made.status().code(), "retrieval on " + device + ": " + made.status().message() +
                                            "; or search on the CPU: --retrieval-device cpu");
  }
  return MakeDeviceVectorMemory(std::move(*made), [ordinal](const kernels::TopKSetup& setup) {
    return kernels::MakeCudaTopK(ordinal, setup);
  });
}

}  // namespace inferscale
