// Vectors on a device, and searches that several threads put together.

#include <algorithm>
#include <cmath>
#include <condition_variable>
#include <cstring>
#include <limits>
#include <mutex>
#include <unordered_map>
#include <utility>

#include "kernels/kernels.h"
#include "retrieval/vector_memory.h"

namespace inferscale {
namespace {

constexpr std::int64_t kStagingBytes = std::int64_t{4} << 20;
constexpr std::int32_t kQueriesAtOnce = 64;
constexpr std::int32_t kLeastK = 128;
constexpr std::int64_t kLeastRows = 1 << 16;

template <typename Size>
Size AtLeast(Size least, Size wanted) {
  while (least < wanted) least *= 2;
  return least;
}

/// Pinned memory of a device for as long as this lives.
class PinnedBuffer {
 public:
  explicit PinnedBuffer(kernels::Device& device) : device_(device) {}
  ~PinnedBuffer() {
    if (memory_ != nullptr) device_.FreePinned(memory_);
  }
  PinnedBuffer(const PinnedBuffer&) = delete;
  PinnedBuffer& operator=(const PinnedBuffer&) = delete;

  Result<std::uint8_t*> Get(std::int64_t bytes) {
    if (bytes <= bytes_) return memory_;
    INFERSCALE_ASSIGN_OR_RETURN(std::uint8_t* const larger, device_.AllocatePinned(bytes));
    if (memory_ != nullptr) device_.FreePinned(memory_);
    memory_ = larger;
    bytes_ = bytes;
    return memory_;
  }

 private:
  kernels::Device& device_;
  std::uint8_t* memory_ = nullptr;
  std::int64_t bytes_ = 0;
};

struct DeviceSearch {
  kernels::TopKQuery query;
  std::vector<VectorMatch> matches;
  Status status;
  bool done = false;
};

/// Copies to, and searches on, a device for vectors of one length.
class DeviceSearcher {
 public:
  DeviceSearcher(std::shared_ptr<kernels::Device> device, TopKFactory make_top_k,
                 std::int32_t dimensions)
      : device_(std::move(device)),
        make_top_k_(std::move(make_top_k)),
        dimensions_(dimensions),
        staging_(*device_) {}

  kernels::Device& device() { return *device_; }
  std::int32_t dimensions() const { return dimensions_; }
  std::int64_t row_bytes() const {
    return std::int64_t{kernels::RowPitch(dimensions_)} * std::int64_t{sizeof(std::uint16_t)};
  }

  /// Takes part in a batch, or runs one for others too.
  Status Run(DeviceSearch& search) {
    std::unique_lock lock(mutex_);
    waiting_.push_back(&search);
    while (!search.done) {
      if (running_) {
        changed_.wait(lock);
        continue;
      }
      running_ = true;
      const std::size_t count = std::min<std::size_t>(waiting_.size(), kQueriesAtOnce);
      const auto end = waiting_.begin() + static_cast<std::ptrdiff_t>(count);
      const std::vector<DeviceSearch*> batch(waiting_.begin(), end);
      waiting_.erase(waiting_.begin(), end);
      lock.unlock();
      const Status status = RunBatch(batch);
      lock.lock();
      for (DeviceSearch* one : batch) {
        one->status = status;
        one->done = true;
      }
      running_ = false;
      changed_.notify_all();
    }
    return search.status;
  }

  /// Rows as they lie on the device, through pinned memory.
  Status Upload(std::uint8_t* to, std::span<const EmbeddingRow> rows) {
    std::lock_guard lock(staging_mutex_);
    INFERSCALE_ASSIGN_OR_RETURN(std::uint8_t* const staged,
                                staging_.Get(std::max(kStagingBytes, row_bytes())));
    const auto at_once =
        static_cast<std::size_t>(std::max(kStagingBytes, row_bytes()) / row_bytes());
    const auto bytes = static_cast<std::size_t>(row_bytes());
    for (std::size_t first = 0; first < rows.size(); first += at_once) {
      const auto part = rows.subspan(first, std::min(at_once, rows.size() - first));
      std::memset(staged, 0, part.size() * bytes);
      for (std::size_t i = 0; i < part.size(); ++i) {
        std::memcpy(staged + i * bytes, part[i].vector.data(),
                    part[i].vector.size() * sizeof(std::uint16_t));
      }
      INFERSCALE_RETURN_IF_ERROR(device_->CopyToDevice(
          to + first * bytes, staged, static_cast<std::int64_t>(part.size() * bytes), stream()));
      INFERSCALE_RETURN_IF_ERROR(WaitForAll());
    }
    return OkStatus();
  }

  Status WaitForAll() {
    INFERSCALE_ASSIGN_OR_RETURN(const std::uint64_t event, device_->Record(stream()));
    return device_->Wait(event);
  }
  std::uintptr_t stream() { return device_->copy_stream(); }

 private:
  /// Only the thread that set `running_` is here.
  Status RunBatch(const std::vector<DeviceSearch*>& batch) {
    std::vector<kernels::TopKQuery> queries;
    std::int32_t most_k = kLeastK;
    std::int64_t most_rows = kLeastRows;
    for (const DeviceSearch* search : batch) {
      queries.push_back(search->query);
      most_k = AtLeast(most_k, search->query.k);
      most_rows = AtLeast(most_rows, search->query.range.count);
    }
    if (top_k_ == nullptr || most_k > setup_.max_k || most_rows > setup_.max_rows) {
      kernels::TopKSetup setup;
      setup.dim = dimensions_;
      setup.max_queries = kQueriesAtOnce;
      setup.max_k = std::max(most_k, setup_.max_k);
      setup.max_rows = std::max(most_rows, setup_.max_rows);
      top_k_.reset();
      INFERSCALE_ASSIGN_OR_RETURN(top_k_, make_top_k_(setup));
      setup_ = setup;
    }
    INFERSCALE_ASSIGN_OR_RETURN(const std::int32_t started, top_k_->Search(queries, stream()));
    INFERSCALE_RETURN_IF_ERROR(WaitForAll());
    std::vector<std::int64_t> rows(static_cast<std::size_t>(setup_.max_k));
    std::vector<float> scores(rows.size());
    for (std::size_t q = 0; q < batch.size(); ++q) {
      const std::int32_t found =
          top_k_->Hits(started, static_cast<std::int32_t>(q), rows.data(), scores.data());
      for (std::size_t i = 0; static_cast<std::int32_t>(i) < found; ++i) {
        batch[q]->matches.push_back({static_cast<std::uint32_t>(rows[i]), scores[i]});
      }
    }
    return OkStatus();
  }

  const std::shared_ptr<kernels::Device> device_;
  const TopKFactory make_top_k_;
  const std::int32_t dimensions_;

  std::mutex staging_mutex_;
  PinnedBuffer staging_;

  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<DeviceSearch*> waiting_;
  bool running_ = false;
  std::unique_ptr<kernels::DeviceTopK> top_k_;
  kernels::TopKSetup setup_{.max_k = 0, .max_rows = 0};
};

class DeviceRows : public VectorRows {
 public:
  explicit DeviceRows(std::shared_ptr<DeviceSearcher> searcher) : searcher_(std::move(searcher)) {}
  ~DeviceRows() override {
    if (memory_ != nullptr) searcher_->device().Free(memory_);
  }
  DeviceRows(const DeviceRows&) = delete;
  DeviceRows& operator=(const DeviceRows&) = delete;

  Status Append(std::span<const EmbeddingRow> rows) override {
    if (rows.empty()) return OkStatus();
    const std::int64_t row_bytes = searcher_->row_bytes();
    const std::int64_t needed = count_ + static_cast<std::int64_t>(rows.size());
    if (needed > capacity_) INFERSCALE_RETURN_IF_ERROR(Grow(std::max(needed, 2 * capacity_)));
    INFERSCALE_RETURN_IF_ERROR(searcher_->Upload(memory_ + count_ * row_bytes, rows));
    std::vector<float> elements(static_cast<std::size_t>(searcher_->dimensions()));
    for (const EmbeddingRow& row : rows) {
      kernels::HalfToFloat(row.vector.data(), elements.data(), elements.size());
      double squares = 0;
      for (const float x : elements) squares += double{x} * x;
      if (!std::isfinite(squares)) squares = std::numeric_limits<double>::infinity();
      longest_ = std::max(longest_, squares);
    }
    count_ = needed;
    return OkStatus();
  }

  Result<std::vector<VectorMatch>> TopK(std::span<const float> query, const std::uint64_t* allowed,
                                        std::int32_t k) const override {
    k = static_cast<std::int32_t>(std::min<std::int64_t>(k, count_));
    if (k <= 0) return std::vector<VectorMatch>();
    if (k > kernels::kMaxDeviceTopK) return TopKOnHost(query, allowed, k);
    constexpr double kRoundedUp = 1 + 1e-6;
    DeviceSearch search;
    search.query.range = {memory_, nullptr, count_,
                          static_cast<float>(std::sqrt(longest_) * kRoundedUp)};
    search.query.vector = query.data();
    search.query.allowed = allowed;
    search.query.k = k;
    INFERSCALE_RETURN_IF_ERROR(searcher_->Run(search));
    return std::move(search.matches);
  }

  Result<std::vector<float>> Scores(std::span<const float> query,
                                    std::span<const std::uint32_t> positions) const override {
    if (positions.empty()) return std::vector<float>();
    std::vector<std::uint64_t> allowed(static_cast<std::size_t>((count_ + 63) / 64), 0);
    for (const std::uint32_t position : positions) {
      allowed[position / 64] |= std::uint64_t{1} << (position % 64);
    }
    INFERSCALE_ASSIGN_OR_RETURN(
        const std::vector<VectorMatch> matches,
        TopK(query, allowed.data(), static_cast<std::int32_t>(positions.size())));
    std::unordered_map<std::uint32_t, float> by_position;
    for (const VectorMatch& match : matches) by_position[match.position] = match.score;
    std::vector<float> scores;
    for (const std::uint32_t position : positions) scores.push_back(by_position[position]);
    return scores;
  }

  std::size_t MemorySizeBytes() const override {
    return static_cast<std::size_t>(capacity_ * searcher_->row_bytes());
  }

 private:
  Status Grow(std::int64_t capacity) {
    kernels::Device& device = searcher_->device();
    const std::int64_t row_bytes = searcher_->row_bytes();
    INFERSCALE_ASSIGN_OR_RETURN(std::uint8_t* const larger, device.Allocate(capacity * row_bytes));
    Status copied;
    if (count_ > 0) {
      copied = device.CopyOnDevice(larger, memory_, count_ * row_bytes, searcher_->stream());
      if (copied.ok()) copied = searcher_->WaitForAll();
    }
    if (!copied.ok()) {
      device.Free(larger);
      return copied;
    }
    if (memory_ != nullptr) device.Free(memory_);
    memory_ = larger;
    capacity_ = capacity;
    return OkStatus();
  }

  /// More hits than a device selects: rare, and only slow.
  Result<std::vector<VectorMatch>> TopKOnHost(std::span<const float> query,
                                              const std::uint64_t* allowed, std::int32_t k) const {
    const std::int64_t bytes = count_ * searcher_->row_bytes();
    PinnedBuffer pinned(searcher_->device());
    INFERSCALE_ASSIGN_OR_RETURN(std::uint8_t* const copy, pinned.Get(bytes));
    INFERSCALE_RETURN_IF_ERROR(
        searcher_->device().CopyToHost(copy, memory_, bytes, searcher_->stream()));
    INFERSCALE_RETURN_IF_ERROR(searcher_->WaitForAll());
    const std::int32_t pitch = kernels::RowPitch(searcher_->dimensions());
    std::vector<float> padded(static_cast<std::size_t>(pitch), 0.0f);
    std::copy(query.begin(), query.end(), padded.begin());
    std::vector<std::int64_t> rows(static_cast<std::size_t>(k));
    std::vector<float> scores(rows.size());
    const std::int32_t found =
        kernels::TopK(reinterpret_cast<const std::uint16_t*>(copy), count_, pitch, padded.data(),
                      allowed, k, rows.data(), scores.data());
    std::vector<VectorMatch> matches;
    for (std::size_t i = 0; static_cast<std::int32_t>(i) < found; ++i) {
      matches.push_back({static_cast<std::uint32_t>(rows[i]), scores[i]});
    }
    return matches;
  }

  const std::shared_ptr<DeviceSearcher> searcher_;
  std::uint8_t* memory_ = nullptr;  // [capacity][row_bytes]
  std::int64_t count_ = 0, capacity_ = 0;
  double longest_ = 0;  // the largest sum of squares
};

class DeviceVectorMemory : public VectorMemory {
 public:
  DeviceVectorMemory(std::unique_ptr<kernels::Device> device, TopKFactory make_top_k)
      : device_(std::move(device)), make_top_k_(std::move(make_top_k)) {}

  Result<std::unique_ptr<VectorRows>> MakeRows(std::int32_t dimensions) override {
    if (dimensions <= 0 || dimensions > kernels::kMaxDeviceDim) {
      return Unsupported(
          "vectors of " + std::to_string(dimensions) + " dimensions on a GPU, which takes up to " +
          std::to_string(kernels::kMaxDeviceDim) + "; search on the CPU: --retrieval-device cpu");
    }
    std::lock_guard lock(mutex_);
    if (searcher_ == nullptr || searcher_->dimensions() != dimensions) {
      searcher_ = std::make_shared<DeviceSearcher>(device_, make_top_k_, dimensions);
    }
    return std::unique_ptr<VectorRows>(std::make_unique<DeviceRows>(searcher_));
  }

 private:
  const std::shared_ptr<kernels::Device> device_;
  const TopKFactory make_top_k_;
  std::mutex mutex_;
  std::shared_ptr<DeviceSearcher> searcher_;
};

}  // namespace

std::shared_ptr<VectorMemory> MakeDeviceVectorMemory(std::unique_ptr<kernels::Device> device,
                                                     TopKFactory make_top_k) {
  return std::make_shared<DeviceVectorMemory>(std::move(device), std::move(make_top_k));
}

}  // namespace inferscale
