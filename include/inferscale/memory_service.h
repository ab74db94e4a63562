#ifndef INFERSCALE_MEMORY_SERVICE_H_
#define INFERSCALE_MEMORY_SERVICE_H_

/// \file memory_service.h
/// MemoryService: add, search, update, delete, forget, chat. The one place where catalog, embedder,
/// retriever, composer and engine meet. Guarantees: an answered write is durable and can be served
/// as text at once, as KV when its block is ready; an answered update, delete or forget is seen by
/// every later search and chat; no memory without an owner. Background work (embedding, extraction,
/// encoding, erasures) gives way to chats and goes on after a restart. Thread-safe.

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "inferscale/catalog.h"
#include "inferscale/embedder.h"
#include "inferscale/engine.h"
#include "inferscale/result.h"
#include "inferscale/retriever.h"
#include "inferscale/types.h"

namespace inferscale {

class Extractor;  // memory/extractor.h

/// How facts are made of turns.
enum class ExtractionMode { kVerbatim, kLlm };

struct AddRequest {
  Scope scope;
  std::vector<Turn> turns;  ///< time_ms 0: now
  std::string metadata_json = "{}";
  std::string expiration_date;         ///< "YYYY-MM-DD" or empty
  std::optional<ExtractionMode> mode;  ///< unset: the service's
  bool background = false;             ///< return once the turns are durable, extract later
  /// Ids of facts that were in the prompt these turns come from: their texts are no news
  /// (background).
  std::vector<std::string> served_facts;
  TimeMs created_at_ms = 0;  ///< of the facts; 0: now
  std::string event_id;      ///< not empty: Catalog::GetEvent() tells what became of it
};

struct AddOutcome {
  std::vector<Fact> facts;  ///< new ones
  std::int32_t duplicates = 0;
  std::optional<std::int64_t> job_id;  ///< background extraction
};

enum class MemoryMode { kKv, kText, kOff };

/// What a chat in KV mode does when `doctor --accuracy` found the encoding's answers worse than
/// text's: serve text, reason "accuracy_gate", or KV all the same. An encoding that was never
/// checked is served as KV.
enum class AccuracyGate { kEnforce, kIgnore };

struct ChatRequest {
  Scope scope;
  std::vector<ChatMessage> messages;
  Sampling sampling;
  MemoryMode mode = MemoryMode::kKv;
  std::int32_t top_k = 20;
  const Filter* filter = nullptr;
  std::int32_t compute_best = 0;
  bool remember = false;  ///< store the question and the answer as turns
  bool use_ledger = true;
  std::optional<std::chrono::steady_clock::time_point> deadline;
  /// What the answer may call; null: nothing, and no message has tool calls. Made by engine().
  std::shared_ptr<const ToolFormat> tools = nullptr;
};

struct ChatReport {
  GenerationReport generation;       ///< its fallbacks include those of retrieval and composition
  std::vector<ToolCall> tool_calls;  ///< generation.text is what is said beside them
  std::vector<SearchHit> memories;   ///< those in the prompt, best first
  double search_ms = 0, compose_ms = 0;  ///< search_ms includes embedding the question
  double question_to_first_token_ms = 0;
};

struct PendingWork {
  std::int64_t embeddings = 0, encodings = 0, extractions = 0, erasures = 0;
};

struct MemoryServiceOptions {
  std::string recipe = "primer";
  KvCodec codec = KvCodec::kInt4;
  ExtractionMode extraction = ExtractionMode::kVerbatim;
  std::int32_t max_fact_tokens = 0;  ///< 0: half of the engine's context
  std::function<TimeMs()> clock;     ///< empty: the system's
  bool background = true;            ///< false: no worker; work is done by RunPending()
  AccuracyGate accuracy_gate = AccuracyGate::kEnforce;
  std::shared_ptr<VectorMemory> vectors;  ///< of the retriever; null: this process's memory
  std::size_t vector_bytes = std::size_t{1} << 30;
};

/// Under this name the catalog keeps the encoding that last stored KV
/// (MemoryService::encoding_id()), for whoever looks at a data folder without a model.
inline constexpr const char* kLastEncodingMeta = "cli.encoding_id";

class MemoryService {
 public:
  /// `engine` may be null: memory without chat and KV (search, list, export on a machine without a
  /// model). `extractor` may be null: verbatim.
  static Result<std::unique_ptr<MemoryService>> Create(std::unique_ptr<Catalog> catalog,
                                                       std::shared_ptr<Embedder> embedder,
                                                       std::shared_ptr<Engine> engine,
                                                       std::shared_ptr<Extractor> extractor,
                                                       MemoryServiceOptions options);
  ~MemoryService();
  MemoryService(const MemoryService&) = delete;
  MemoryService& operator=(const MemoryService&) = delete;

  Result<AddOutcome> Add(const AddRequest& request);
  /// Stores facts as they are (import, given observations).
  Result<IngestOutcome> AddFacts(const Scope& scope, std::vector<Turn> turns,
                                 std::vector<NewFact> facts, std::string event_id = {});

  /// \param embedding if not null: why keywords alone were searched, or OK.
  Result<std::vector<SearchHit>> Search(const Scope& scope, const std::string& query,
                                        std::int32_t top_k, const Filter* filter = nullptr,
                                        double threshold = 0.0, bool show_expired = false,
                                        Status* embedding = nullptr);
  /// The same over scopes that the caller has chosen and checked.
  Result<std::vector<SearchHit>> Search(const SearchRequest& request, Status* embedding = nullptr);
  Result<std::vector<Fact>> List(const Scope& scope, std::int64_t offset, std::int64_t limit,
                                 const Filter* filter = nullptr, bool show_expired = false);
  Result<std::int64_t> Count(const Scope& scope);
  Result<Fact> Get(const std::string& id);
  Result<std::vector<HistoryEntry>> History(const std::string& id);
  Result<Fact> Update(const std::string& id, FactUpdate update);
  Status Delete(const std::string& id);
  /// \return facts deleted.
  Result<std::int64_t> DeleteAll(const Scope& scope);
  /// The same of scopes that the caller has chosen and checked; all or, after an error, none.
  Status DeleteScopes(std::span<const ScopeId> scopes);
  Status Forget(const std::string& id);
  Result<std::int64_t> ForgetAll(const Scope& scope);
  Status SetDisplayName(const Scope& scope, const std::string& name);

  /// Starts an answer; on_done has been or will be called exactly once if a Generation is returned.
  Result<std::shared_ptr<Generation>> Chat(ChatRequest request,
                                           std::function<void(const TokenEvent&)> on_token,
                                           std::function<void(ChatReport)> on_done);
  /// Chat() to its end.
  Result<ChatReport> ChatBlocking(ChatRequest request,
                                  std::function<void(const TokenEvent&)> on_token = {});

  /// The prompt a chat would send for these facts, without retrieval (evaluation, benchmarks).
  /// \param facts best first.
  /// \param compute_best this many of the best are computed although their KV is there.
  /// \param fallbacks if not null, gets what composing could not do ("over_budget", "template").
  Result<Composition> ComposeFor(const Scope& scope, std::span<const ChatMessage> messages,
                                 std::span<const Fact> facts, MemoryMode mode,
                                 std::int32_t compute_best = 0,
                                 std::vector<Fallback>* fallbacks = nullptr);

  Result<PendingWork> Pending();
  /// Waits until no work is pending; `progress` is called about four times a second and returns
  /// false to stop waiting. Ends with the error that keeps the work from going on, if one does.
  Status WaitIdle(const std::function<bool(const PendingWork&)>& progress = {});
  /// Does one slice of pending work on the calling thread. \return whether there was any.
  Result<bool> RunPending();

  Catalog& catalog();
  Embedder& embedder();
  Engine* engine();  ///< may be null
  const MemoryServiceOptions& options() const;
  const std::string& encoding_id() const;  ///< of recipe, codec and model; empty without an engine
  /// Why chats in KV mode are served as text by the accuracy gate, in words; empty: they are not.
  const std::string& accuracy_refusal() const;

 private:
  Status RunExtraction(const Job& job);
  void Remember(const ChatRequest& request, const ChatReport& report);

  struct Impl;
  explicit MemoryService(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace inferscale

#endif  // INFERSCALE_MEMORY_SERVICE_H_
