#include "retrieval/vector_memory.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <filesystem>
#include <random>
#include <thread>

#include "inferscale/retriever.h"
#include "kernels/kernels.h"
#include "support/fake_embedder.h"

namespace inferscale {
namespace {

constexpr std::int32_t kDimensions = 37;

/// A device of this process that counts searches, and fails when told to.
struct TwinState {
  std::atomic<int> made = 0, searches = 0;
  std::atomic<bool> fail = false;
};

class CountingTopK : public kernels::DeviceTopK {
 public:
  CountingTopK(std::unique_ptr<kernels::DeviceTopK> inner, std::shared_ptr<TwinState> state)
      : inner_(std::move(inner)), state_(std::move(state)) {}
  Result<std::int32_t> Search(std::span<const kernels::TopKQuery> queries,
                              std::uintptr_t stream) override {
    ++state_->searches;
    if (state_->fail) return Internal("the GPU fell off the bus");
    return inner_->Search(queries, stream);
  }
  std::int32_t Hits(std::int32_t search, std::int32_t query, std::int64_t* rows,
                    float* scores) const override {
    return inner_->Hits(search, query, rows, scores);
  }

 private:
  const std::unique_ptr<kernels::DeviceTopK> inner_;
  const std::shared_ptr<TwinState> state_;
};

std::shared_ptr<VectorMemory> MakeTwin(const std::shared_ptr<TwinState>& state) {
  auto device = kernels::MakeHostDevice();
  EXPECT_TRUE(device.ok());
  return MakeDeviceVectorMemory(
      std::move(*device),
      [state](const kernels::TopKSetup& setup) -> Result<std::unique_ptr<kernels::DeviceTopK>> {
        ++state->made;
        INFERSCALE_ASSIGN_OR_RETURN(auto made, kernels::MakeHostTopK(setup));
        return std::unique_ptr<kernels::DeviceTopK>(
            std::make_unique<CountingTopK>(std::move(made), state));
      });
}

class VectorMemoryTest : public ::testing::Test {
 protected:
  void SetUp() override {
    for (const auto& memory : {MakeHostVectorMemory(), MakeTwin(state_)}) {
      auto rows = memory->MakeRows(kDimensions);
      ASSERT_TRUE(rows.ok()) << rows.status().ToString();
      rows_.push_back(std::move(*rows));
    }
  }

  std::vector<float> MakeVector() {
    std::normal_distribution<float> normal;
    std::vector<float> vector(kDimensions);
    for (float& x : vector) x = normal(random_);
    return vector;
  }

  void Append(int count) {
    std::vector<EmbeddingRow> added(static_cast<std::size_t>(count));
    for (EmbeddingRow& row : added) {
      row.vector.resize(kDimensions);
      kernels::FloatToHalf(MakeVector().data(), row.vector.data(), kDimensions);
    }
    size_ += added.size();
    for (const auto& rows : rows_) ASSERT_TRUE(rows->Append(added).ok());
  }

  void ExpectSame(const std::uint64_t* allowed, std::int32_t k) {
    const std::vector<float> query = MakeVector();
    const auto host = rows_[0]->TopK(query, allowed, k), device = rows_[1]->TopK(query, allowed, k);
    ASSERT_TRUE(host.ok() && device.ok()) << device.status().ToString();
    ASSERT_EQ(host->size(), device->size());
    for (std::size_t i = 0; i < host->size(); ++i) {
      ASSERT_EQ((*host)[i].position, (*device)[i].position) << i;
      ASSERT_NEAR((*host)[i].score, (*device)[i].score, 1e-4) << i;
    }
  }

  std::mt19937 random_{11};
  std::shared_ptr<TwinState> state_ = std::make_shared<TwinState>();
  std::vector<std::unique_ptr<VectorRows>> rows_;
  std::size_t size_ = 0;
};

TEST_F(VectorMemoryTest, ADeviceFindsWhatMemoryFindsWhileRowsAreAppended) {
  for (const int added : {1, 2, 30, 500, 7}) {
    Append(added);
    std::vector<std::uint64_t> allowed((size_ + 63) / 64);
    for (auto& word : allowed) word = std::uint64_t{random_()} << 32 | random_();
    for (const std::int32_t k : {0, 1, 20, 300, 1000}) {
      ExpectSame(nullptr, k);
      ExpectSame(allowed.data(), k);
    }
  }
}

TEST_F(VectorMemoryTest, MoreHitsThanADeviceSelectsAreStillFound) {
  Append(kernels::kMaxDeviceTopK + 500);
  ExpectSame(nullptr, kernels::kMaxDeviceTopK);
  const int before = state_->searches;
  ExpectSame(nullptr, kernels::kMaxDeviceTopK + 100);
  EXPECT_EQ(state_->searches, before) << "a device was asked for more than it can";
}

TEST_F(VectorMemoryTest, AFactHasOneScoreHoweverItWasFound) {
  Append(200);
  const std::vector<float> query = MakeVector();
  for (const auto& rows : rows_) {
    const auto best = rows->TopK(query, nullptr, 200);
    ASSERT_TRUE(best.ok());
    std::vector<std::uint32_t> positions;
    for (const VectorMatch& match : *best) positions.push_back(match.position);
    std::shuffle(positions.begin(), positions.end(), random_);
    positions.resize(50);
    const auto scores = rows->Scores(query, positions);
    ASSERT_TRUE(scores.ok());
    for (std::size_t i = 0; i < positions.size(); ++i) {
      const auto match = std::find_if(best->begin(), best->end(), [&](const VectorMatch& one) {
        return one.position == positions[i];
      });
      EXPECT_EQ((*scores)[i], match->score);
    }
    EXPECT_TRUE(rows->Scores(query, {})->empty());
  }
}

TEST_F(VectorMemoryTest, SearchesOfManyThreadsAreAllAnswered) {
  Append(300);
  std::vector<std::vector<float>> queries;
  std::vector<std::vector<VectorMatch>> expected;
  for (int i = 0; i < 8; ++i) {
    queries.push_back(MakeVector());
    expected.push_back(*rows_[0]->TopK(queries.back(), nullptr, 10));
  }
  std::vector<std::thread> threads;
  std::atomic<int> wrong = 0;
  for (std::size_t t = 0; t < queries.size(); ++t) {
    threads.emplace_back([&, t] {
      for (int round = 0; round < 50; ++round) {
        const auto found = rows_[1]->TopK(queries[t], nullptr, 10);
        if (!found.ok() || found->size() != 10 || (*found)[0].position != expected[t][0].position) {
          ++wrong;
        }
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(wrong, 0);
  EXPECT_LE(state_->searches, 8 * 50);
}

TEST_F(VectorMemoryTest, AFailedSearchIsReportedAndTheNextOneWorks) {
  Append(10);
  state_->fail = true;
  const auto failed = rows_[1]->TopK(MakeVector(), nullptr, 3);
  ASSERT_FALSE(failed.ok());
  EXPECT_EQ(failed.status().code(), StatusCode::kInternal);
  state_->fail = false;
  ExpectSame(nullptr, 3);
}

TEST(VectorMemory, MemoryForALargerRangeIsMadeOnceItIsNeeded) {
  const auto state = std::make_shared<TwinState>();
  const auto memory = MakeTwin(state);
  auto rows = memory->MakeRows(1);
  ASSERT_TRUE(rows.ok());
  const std::vector<float> query = {1.0f};
  std::vector<EmbeddingRow> added(70'000);
  for (EmbeddingRow& row : added) row.vector = {0x3c00};
  ASSERT_TRUE((*rows)->Append(std::span(added).first(10)).ok());
  ASSERT_TRUE((*rows)->TopK(query, nullptr, 5).ok());
  ASSERT_TRUE((*rows)->TopK(query, nullptr, 5).ok());
  EXPECT_EQ(state->made, 1);
  ASSERT_TRUE((*rows)->Append(added).ok());
  const auto found = (*rows)->TopK(query, nullptr, 5);
  ASSERT_TRUE(found.ok());
  EXPECT_EQ(found->size(), 5u);
  EXPECT_EQ(state->made, 2);
  EXPECT_GE((*rows)->MemorySizeBytes(), std::size_t{70'010} * 64);
}

TEST(VectorMemory, NamesItsDevicesAndSaysWhatToDoWithoutAGpu) {
  EXPECT_TRUE(MakeVectorMemory("cpu").ok());
  for (const char* bad : {"", "gpu", "cuda:", "cuda:x", "cuda1", "cuda:-1", "CPU"}) {
    const auto made = MakeVectorMemory(bad);
    ASSERT_FALSE(made.ok()) << bad;
    EXPECT_EQ(made.status().code(), StatusCode::kInvalidArgument) << bad;
  }
  // No machine has that many.
  const auto made = MakeVectorMemory("cuda:999");
  ASSERT_FALSE(made.ok());
  EXPECT_EQ(made.status().code(), StatusCode::kUnsupported);
  EXPECT_NE(made.status().message().find("--retrieval-device cpu"), std::string::npos)
      << made.status().message();
}

/// Two retrievers over one catalog: what one finds, the other does.
class DeviceRetrieverTest : public ::testing::Test {
 protected:
  void SetUp() override {
    folder_ = std::filesystem::path(::testing::TempDir()) /
              ("device_retriever_" +
               std::string(::testing::UnitTest::GetInstance()->current_test_info()->name()));
    std::filesystem::remove_all(folder_);
    CatalogOptions options;
    options.folder = folder_;
    auto catalog = OpenSqliteCatalog(options);
    ASSERT_TRUE(catalog.ok()) << catalog.status().ToString();
    catalog_ = std::move(*catalog);
    host_ = std::make_unique<Retriever>(*catalog_, embedder_);
    MakeDeviceRetriever(std::size_t{1} << 30);
  }
  void TearDown() override {
    host_.reset();
    device_.reset();
    catalog_.reset();
    std::filesystem::remove_all(folder_);
  }

  void MakeDeviceRetriever(std::size_t budget_bytes) {
    RetrieverOptions options;
    options.budget_bytes = budget_bytes;
    options.vectors = MakeTwin(std::make_shared<TwinState>());
    device_ = std::make_unique<Retriever>(*catalog_, embedder_, options);
  }

  ScopeId MakeScope(const std::string& user) {
    Scope scope;
    scope.user = user;
    return catalog_->EnsureScope(scope)->id;
  }

  std::vector<std::string> Add(ScopeId scope, int count) {
    IngestBatch batch;
    batch.scope_id = scope;
    batch.embedder_id = embedder_.id();
    for (int i = 0; i < count; ++i) {
      NewFact fact;
      fact.fact.text = "fact" + std::to_string(facts_++) + (i % 3 == 0 ? " tea" : " bread") +
                       (i % 2 == 0 ? " in Bern" : " by train");
      fact.embedding = embedder_.EmbedOne(fact.fact.text);
      batch.facts.push_back(std::move(fact));
    }
    const auto outcome = catalog_->Ingest(batch);
    EXPECT_TRUE(outcome.ok()) << outcome.status().ToString();
    std::vector<std::string> ids;
    for (const auto& entry : outcome->facts) ids.push_back(entry.fact_id);
    return ids;
  }

  /// \return how many were found.
  std::size_t ExpectSame(ScopeId scope, const std::string& query) {
    SearchRequest request;
    request.scopes = {scope};
    request.query = query;
    const auto expected = host_->Search(request), found = device_->Search(request);
    EXPECT_TRUE(expected.ok() && found.ok()) << found.status().ToString();
    if (!expected.ok() || !found.ok()) return 0;
    EXPECT_EQ(expected->size(), found->size());
    for (std::size_t i = 0; i < std::min(expected->size(), found->size()); ++i) {
      EXPECT_EQ((*expected)[i].fact.id, (*found)[i].fact.id) << query << ", place " << i;
      EXPECT_NEAR((*expected)[i].score, (*found)[i].score, 1e-5) << query << ", place " << i;
    }
    return found->size();
  }

  std::filesystem::path folder_;
  testing::FakeEmbedder embedder_;
  std::unique_ptr<Catalog> catalog_;
  std::unique_ptr<Retriever> host_, device_;
  int facts_ = 0;
};

TEST_F(DeviceRetrieverTest, SeesAdditionsUpdatesAndDeletionsAtOnce) {
  const ScopeId scope = MakeScope("ana");
  EXPECT_EQ(ExpectSame(scope, "tea in Bern"), 0u);
  std::vector<std::string> ids = Add(scope, 30);
  EXPECT_GT(ExpectSame(scope, "tea in Bern"), 0u);
  for (const std::string& id : Add(scope, 100)) ids.push_back(id);
  EXPECT_GT(ExpectSame(scope, "bread by train"), 0u);
  EXPECT_GT(ExpectSame(scope, "fact31 bread"), 0u);

  FactUpdate update;
  update.text = "fact5000 a violin";
  update.embedding = embedder_.EmbedOne(*update.text);
  update.embedder_id = embedder_.id();
  ASSERT_TRUE(catalog_->UpdateFact(ids[3], update).ok());
  EXPECT_GT(ExpectSame(scope, "a violin"), 0u);
  ASSERT_TRUE(catalog_->DeleteFact(ids[4]).ok());
  EXPECT_GT(ExpectSame(scope, "fact4 bread"), 0u);
}

TEST_F(DeviceRetrieverTest, KeepsToItsBytes) {
  constexpr std::size_t kBudget = 64 << 10;
  MakeDeviceRetriever(kBudget);
  std::vector<ScopeId> scopes;
  for (int user = 0; user < 6; ++user) {
    scopes.push_back(MakeScope("user" + std::to_string(user)));
    Add(scopes.back(), 150);
  }
  for (int round = 0; round < 2; ++round) {
    for (const ScopeId scope : scopes) {
      EXPECT_GT(ExpectSame(scope, "tea in Bern"), 0u);
      EXPECT_LE(device_->MemorySizeBytes(), kBudget);
    }
  }
}

}  // namespace
}  // namespace inferscale
