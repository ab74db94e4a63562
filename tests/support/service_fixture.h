#ifndef INFERSCALE_TESTS_SUPPORT_SERVICE_FIXTURE_H_
#define INFERSCALE_TESTS_SUPPORT_SERVICE_FIXTURE_H_

/// \file service_fixture.h
/// A MemoryService as it runs: a real catalog and a real LlamaEngine with a tiny model in one data
/// folder, which can be closed, damaged and opened again.

#include <atomic>
#include <filesystem>
#include <fstream>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "base/hash.h"
#include "inferscale/memory_service.h"
#include "support/engine_fixture.h"
#include "support/fake_embedder.h"
#include "support/recording_engine.h"

namespace inferscale::testing {

inline std::string ReadBytes(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

inline void WriteBytes(const std::filesystem::path& path, std::string_view bytes) {
  std::ofstream(path, std::ios::binary | std::ios::trunc).write(bytes.data(), std::ssize(bytes));
}

inline std::vector<std::filesystem::path> FilesUnder(const std::filesystem::path& folder) {
  std::vector<std::filesystem::path> files;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(folder)) {
    if (entry.is_regular_file()) files.push_back(entry.path());
  }
  return files;
}

/// Files whose bytes, or whose name, contain one of `needles`.
inline std::vector<std::string> FilesWith(const std::filesystem::path& folder,
                                          const std::vector<std::string>& needles) {
  std::vector<std::string> found;
  for (const auto& path : FilesUnder(folder)) {
    const std::string bytes = ReadBytes(path);
    for (const std::string& needle : needles) {
      if (bytes.find(needle) == std::string::npos &&
          path.string().find(needle) == std::string::npos) {
        continue;
      }
      found.push_back(path.string());
      break;
    }
  }
  return found;
}

inline std::vector<std::filesystem::path> BlockFiles(const std::filesystem::path& folder) {
  std::vector<std::filesystem::path> files = FilesUnder(folder / "kv");
  std::erase_if(files, [](const auto& path) { return path.extension() != ".kvb"; });
  return files;
}

/// Every run of six of the text's token ids, as their bytes stand in a file.
inline std::vector<std::string> TokenRuns(const Engine& engine, std::string_view text) {
  constexpr std::size_t kRun = 6;
  const TokenIds ids = engine.Tokenize(text);
  std::vector<std::string> runs;
  for (std::size_t i = 0; i + kRun <= ids.size(); ++i) {
    runs.emplace_back(reinterpret_cast<const char*>(ids.data() + i), kRun * sizeof(TokenId));
  }
  return runs;
}

inline Scope User(const std::string& user, const std::string& agent = "") {
  Scope scope;
  scope.user = user;
  scope.agent = agent;
  return scope;
}

class ServiceTest : public ::testing::Test {
 protected:
  void TearDown() override { Close(); }

  std::filesystem::path data() const { return folder_.path() / "data"; }

  void Close() {
    service_.reset();
    engine_.reset();
  }

  void Open() {
    Close();
    ASSERT_NO_FATAL_FAILURE(OpenAt(data()));
  }

  void OpenAt(const std::filesystem::path& data_folder) {
    LlamaEngineOptions options = TestOptions(TinyModel(model_));
    options.context_tokens = context_tokens_;
    options.parallel_sequences = parallel_sequences_;
    options.store.host_budget_bytes = host_budget_bytes_;
    options.store.folder = data_folder / "kv";
    CatalogOptions catalog_options;
    catalog_options.folder = data_folder;
    catalog_options.clock = [this] { return now_.load(); };
    Result<std::unique_ptr<Catalog>> catalog = OpenSqliteCatalog(catalog_options);
    ASSERT_TRUE(catalog.ok()) << catalog.status().ToString();
    Result<std::unique_ptr<LlamaEngine>> engine = LlamaEngine::Create(options);
    ASSERT_TRUE(engine.ok()) << engine.status().ToString();
    engine_ = std::make_shared<RecordingEngine>(std::shared_ptr<Engine>(std::move(*engine)));
    MemoryServiceOptions service_options;
    service_options.recipe = recipe_;
    service_options.codec = codec_;
    service_options.clock = [this] { return now_.load(); };
    service_options.background = background_;
    Result<std::unique_ptr<MemoryService>> service = MemoryService::Create(
        std::move(*catalog), embedder_, engine_, nullptr, std::move(service_options));
    ASSERT_TRUE(service.ok()) << service.status().ToString();
    service_ = std::move(*service);
  }

  /// Waits for all background work; fails instead of waiting for ever.
  void WaitIdle() {
    const auto start = std::chrono::steady_clock::now();
    const Status idle = service_->WaitIdle([&](const PendingWork&) {
      return std::chrono::steady_clock::now() - start < std::chrono::seconds(30);
    });
    ASSERT_TRUE(idle.ok()) << "pending work does not end: " << idle.ToString();
  }

  Fact Add(const Scope& scope, const std::string& text, const std::string& name = "Ada") {
    AddRequest request;
    request.scope = scope;
    request.turns = {{0, "user", name, text, 0}};
    const Result<AddOutcome> outcome = service_->Add(request);
    EXPECT_TRUE(outcome.ok()) << outcome.status().ToString();
    if (!outcome.ok() || outcome->facts.empty()) return {};
    return outcome->facts.front();
  }

  static ChatRequest Ask(const Scope& scope, const std::string& question) {
    ChatRequest request;
    request.scope = scope;
    request.messages = {{"user", question, ""}};
    request.sampling.max_tokens = 8;
    return request;
  }

  /// A chat that must succeed.
  ChatReport Chat(ChatRequest request) {
    const Result<ChatReport> report = service_->ChatBlocking(std::move(request));
    EXPECT_TRUE(report.ok()) << report.status().ToString();
    if (!report.ok()) return {};
    const GenerationReport& generation = report->generation;
    EXPECT_EQ(generation.injected_tokens + generation.reused_tokens + generation.computed_tokens,
              generation.prompt_tokens);
    return *report;
  }
  ChatReport Chat(const Scope& scope, const std::string& question) {
    return Chat(Ask(scope, question));
  }

  std::string Prompt() const { return engine_->Detokenize(engine_->LastPrompt().ids); }
  bool PromptHas(const std::string& text) const { return Prompt().find(text) != std::string::npos; }

  /// The fact's KV record under the present encoding.
  std::optional<KvRecord> Record(const std::string& fact_id) {
    auto records = service_->catalog().GetKvRecords({&fact_id, 1}, service_->encoding_id());
    return records.ok() ? records->front() : std::nullopt;
  }
  /// Name of the fact's block file.
  std::string BlockName(const std::string& fact_id) {
    const auto record = Record(fact_id);
    EXPECT_TRUE(record.has_value()) << "no KV is ready for " << fact_id;
    return record ? HexEncode(record->key.bytes) : std::string("none");
  }
  std::filesystem::path BlockPath(const std::string& name) const {
    for (const auto& path : BlockFiles(data())) {
      if (path.stem() == name) return path;
    }
    return {};
  }

  TemporaryFolder folder_;
  std::string model_ = "llama_norm";
  std::string recipe_ = "primer:2";
  KvCodec codec_ = KvCodec::kInt4;
  std::int32_t context_tokens_ = 2048;
  std::int32_t parallel_sequences_ = 1;
  std::int64_t host_budget_bytes_ = std::int64_t{64} << 20;
  bool background_ = true;
  std::atomic<TimeMs> now_{1'760'000'000'000};
  std::shared_ptr<FakeEmbedder> embedder_ = std::make_shared<FakeEmbedder>();
  std::shared_ptr<RecordingEngine> engine_;
  std::unique_ptr<MemoryService> service_;
};

}  // namespace inferscale::testing

#endif  // INFERSCALE_TESTS_SUPPORT_SERVICE_FIXTURE_H_
