// Background work of a MemoryService: erasures, embeddings, extractions, encodings, in this order:
// what must be gone first, then what makes facts findable, then what makes more of them, then what
// makes serving fast.

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <map>
#include <mutex>
#include <thread>
#include <utility>

#include <spdlog/spdlog.h>
#include <nlohmann/json.hpp>

#include "memory/service_impl.h"
#include "retrieval/embed_pending.h"

namespace inferscale {
namespace {

/// Facts of one encode slice: enough for full batches, few enough to notice an erasure soon.
constexpr std::int32_t kEncodeSlice = 64;
constexpr std::int32_t kEmbedSlice = 64;
/// Beside chats a slice takes long: what is done is recorded this often.
constexpr std::chrono::seconds kRecordEvery{1};
/// Pending embeddings and jobs are counted up to here: their rows have to be read to be counted.
constexpr std::int32_t kCountLimit = 1000;
/// A job that failed this often is given up; its turns stay, and are served as text by nobody.
constexpr std::int32_t kMaxJobAttempts = 5;

struct Parts {
  Catalog& catalog;
  Engine& engine;
  FactEncoder& encoder;
  const ErasedMeanwhile& erased;
  const std::atomic<bool>& stopping;
};

/// Encodes one slice of the queue and waits for it. \return whether anything was done.
Result<bool> EncodeSlice(Parts parts) {
  INFERSCALE_ASSIGN_OR_RETURN(
      const std::vector<Fact> facts,
      parts.catalog.FactsWithoutKv(parts.encoder.encoding_id(), kEncodeSlice));
  if (facts.empty()) return false;
  std::map<ScopeId, ScopeInfo> scopes;
  std::vector<KvRecord> records;
  std::map<KvKey, EncodeRequest> by_key;
  for (const Fact& fact : facts) {
    if (!scopes.contains(fact.scope_id)) {
      const Result<ScopeInfo> scope = parts.catalog.GetScope(fact.scope_id);
      if (!scope.ok()) continue;  // erased a moment ago
      scopes.emplace(fact.scope_id, *scope);
      INFERSCALE_RETURN_IF_ERROR(parts.encoder.RequeueThinPrimers(*scope));
    }
    const ScopeInfo& scope = scopes.at(fact.scope_id);
    INFERSCALE_ASSIGN_OR_RETURN(FactEncoding encoding, parts.encoder.Encode(fact, scope));
    records.push_back(
        {encoding.key, fact.id, fact.version, parts.encoder.encoding_id(), encoding.saw});
    EncodeRequest request;
    request.info.key = encoding.key;
    request.info.scope_tag = scope.tag;
    request.info.epoch = scope.epoch;
    request.info.codec = parts.encoder.codec();
    request.info.tokens = std::move(encoding.own);
    request.info.saw = std::move(encoding.saw);
    request.context = std::move(encoding.context);
    by_key.emplace(encoding.key, std::move(request));
  }
  // Keys are recorded before their blocks exist: an erasure finds every block, whenever it comes.
  INFERSCALE_ASSIGN_OR_RETURN(const std::vector<KvRecord> recorded,
                              parts.catalog.RecordKv(records));
  std::vector<EncodeRequest> requests;
  std::vector<KvKey> done;
  for (const KvRecord& record : recorded) {
    const auto found = by_key.find(record.key);
    if (found == by_key.end()) continue;
    if (parts.engine.Presence(std::span(&record.key, 1))[0] != KvTier::kNone) {
      done.push_back(record.key);  // made before a kill, or under the same tokens again
    } else {
      requests.push_back(std::move(found->second));
    }
    by_key.erase(found);
  }
  struct Latch {
    std::mutex mutex;
    std::condition_variable changed;
    std::size_t open = 0;
    std::vector<KvKey> done;
    Status error, refused;
  };
  const auto latch = std::make_shared<Latch>();
  latch->open = requests.size();
  if (!requests.empty()) {
    parts.engine.Encode(std::move(requests), [latch](const EncodeOutcome& outcome) {
      std::lock_guard lock(latch->mutex);
      // What can never be encoded (too long, unsupported) is served as text and not tried again; a
      // full disk leaves the block in memory.
      const StatusCode code = outcome.status.code();
      if (outcome.status.ok() || code == StatusCode::kInvalidArgument ||
          code == StatusCode::kUnsupported || code == StatusCode::kResourceExhausted) {
        latch->done.push_back(outcome.key);
      }
      if (code == StatusCode::kFailedPrecondition || code == StatusCode::kCancelled) {
        latch->refused = outcome.status;
      } else if (!outcome.status.ok()) {
        latch->error = outcome.status;
      }
      if (--latch->open == 0) latch->changed.notify_all();
    });
  }
  bool any_done = false;
  for (bool finished = false; !finished;) {
    {
      std::unique_lock lock(latch->mutex);
      finished = latch->changed.wait_for(lock, kRecordEvery, [&] { return latch->open == 0; });
      done.insert(done.end(), latch->done.begin(), latch->done.end());
      latch->done.clear();
    }
    if (!done.empty()) {
      INFERSCALE_RETURN_IF_ERROR(parts.catalog.MarkKvReady(done));
      const std::vector<KvKey> erased = parts.erased.Among(done);
      if (!erased.empty()) INFERSCALE_RETURN_IF_ERROR(parts.catalog.DropKvRecords(erased));
      any_done = true;
      done.clear();
    }
    // What is still under way ends with the engine, and is found done or undone at the next start.
    if (parts.stopping) return false;
  }
  if (!latch->error.ok()) {
    spdlog::warn("encoding: {}", latch->error.ToString());
    if (!any_done) return latch->error;
  }
  if (any_done || latch->refused.ok()) return any_done;
  // Fenced by an erasure, the others of its scope are asked for again at once; else nothing but the
  // store refused them.
  for (const auto& [id, scope] : scopes) {
    const Result<ScopeInfo> now = parts.catalog.GetScope(id);
    if (!now.ok() || now->epoch != scope.epoch) return true;
  }
  return latch->refused;
}

}  // namespace

Result<bool> MemoryService::RunPending() {
  INFERSCALE_ASSIGN_OR_RETURN(const std::vector<Erasure> erasures,
                              impl_->catalog->PendingErasures());
  Status erased;
  if (!erasures.empty() && impl_->engine != nullptr) {
    erased = impl_->TryApply(erasures);
    if (erased.ok()) return true;
  }
  const auto add = [this]() -> Result<bool> {
    INFERSCALE_ASSIGN_OR_RETURN(const std::int64_t embedded,
                                EmbedPending(*impl_->catalog, *impl_->embedder, kEmbedSlice));
    if (embedded > 0) return true;
    INFERSCALE_ASSIGN_OR_RETURN(const std::vector<Job> jobs,
                                impl_->catalog->PendingJobs("extract", 1));
    if (!jobs.empty()) {
      const Status status = RunExtraction(jobs.front());
      if (!status.ok()) {
        const bool final = !status.retryable() || jobs.front().attempts + 1 >= kMaxJobAttempts;
        INFERSCALE_RETURN_IF_ERROR(
            impl_->catalog->FailJob(jobs.front().id, status.ToString(), final));
        if (!final) return status;
        spdlog::warn("extraction job {} failed for good: {}", jobs.front().id, status.ToString());
      }
      return true;
    }
    if (impl_->engine == nullptr) return false;
    INFERSCALE_ASSIGN_OR_RETURN(Impl::Encoding* const encoding, impl_->CurrentEncoding());
    if (!encoding->kv) return false;
    impl_->erased_meanwhile.Start();
    Result<bool> encoded = EncodeSlice({*impl_->catalog, *impl_->engine, encoding->encoder,
                                        impl_->erased_meanwhile, impl_->stopping});
    impl_->erased_meanwhile.End();
    return encoded;
  };
  // A file that cannot be removed holds up nobody's adds; it is tried again after them.
  Result<bool> more = add();
  if (!more.ok() || *more || erased.ok()) return more;
  return erased;
}

Status MemoryService::RunExtraction(const Job& job) {
  INFERSCALE_ASSIGN_OR_RETURN(const std::vector<Turn> turns, impl_->catalog->GetTurns(job.turns));
  const auto payload = nlohmann::json::parse(job.payload_json, nullptr, false);
  const auto text = [&](const char* key) {
    return payload.is_object() && payload.contains(key) && payload[key].is_string()
               ? payload[key].get<std::string>()
               : std::string();
  };
  const ExtractionMode mode =
      text("mode") == "llm" ? ExtractionMode::kLlm : ExtractionMode::kVerbatim;
  const std::string metadata = text("metadata");
  std::vector<std::string> exclude;
  if (payload.is_object() && payload.contains("served_facts") &&
      payload["served_facts"].is_array()) {
    std::vector<std::string> served;
    for (const auto& id : payload["served_facts"]) {
      if (id.is_string()) served.push_back(id.get<std::string>());
    }
    INFERSCALE_ASSIGN_OR_RETURN(const std::vector<Fact> facts, impl_->catalog->GetFacts(served));
    for (const Fact& fact : facts) exclude.push_back(fact.text);
    // One that was deleted since must not come back from what repeats it.
    for (const std::string& id : served) {
      INFERSCALE_ASSIGN_OR_RETURN(const std::vector<HistoryEntry> history,
                                  impl_->catalog->History(id));
      for (const HistoryEntry& entry : history) {
        if (entry.is_deleted && entry.old_text.has_value()) exclude.push_back(*entry.old_text);
      }
    }
  }
  IngestBatch batch;
  batch.scope_id = job.scope_id;
  batch.completes_job = job.id;
  batch.embedder_id = impl_->embedder->id();
  INFERSCALE_ASSIGN_OR_RETURN(
      batch.facts, impl_->Extract(job.scope_id, turns, mode, metadata.empty() ? "{}" : metadata,
                                  text("expiration_date"), exclude));
  // The turns are stored already: facts refer to their ids.
  const bool dated = payload.is_object() && payload.contains("created_at_ms") &&
                     payload["created_at_ms"].is_number_integer();
  for (NewFact& fact : batch.facts) {
    if (dated) fact.fact.created_at_ms = payload["created_at_ms"].get<TimeMs>();
    for (const std::int32_t index : fact.source_turn_indexes) {
      fact.fact.source_turns.push_back(turns[static_cast<std::size_t>(index)].id);
    }
    fact.source_turn_indexes.clear();
  }
  impl_->Embed(&batch.facts);
  return impl_->catalog->Ingest(batch).status();
}

Result<PendingWork> MemoryService::Pending() {
  PendingWork pending;
  INFERSCALE_ASSIGN_OR_RETURN(
      const std::vector<Fact> unembedded,
      impl_->catalog->FactsWithoutEmbedding(impl_->embedder->id(), kCountLimit));
  pending.embeddings = static_cast<std::int64_t>(unembedded.size());
  INFERSCALE_ASSIGN_OR_RETURN(const std::vector<Job> jobs,
                              impl_->catalog->PendingJobs("extract", kCountLimit));
  pending.extractions = static_cast<std::int64_t>(jobs.size());
  INFERSCALE_ASSIGN_OR_RETURN(const std::vector<Erasure> erasures,
                              impl_->catalog->PendingErasures());
  pending.erasures = static_cast<std::int64_t>(erasures.size());
  if (impl_->engine != nullptr) {
    INFERSCALE_ASSIGN_OR_RETURN(const Impl::Encoding* const encoding, impl_->CurrentEncoding());
    if (encoding->kv) {
      INFERSCALE_ASSIGN_OR_RETURN(pending.encodings,
                                  impl_->catalog->CountFactsWithoutKv(encoding->id()));
    }
  }
  return pending;
}

Status MemoryService::WaitIdle(const std::function<bool(const PendingWork&)>& progress) {
  constexpr std::chrono::milliseconds kInterval{250};
  auto next_call = std::chrono::steady_clock::now();
  while (true) {
    INFERSCALE_ASSIGN_OR_RETURN(const PendingWork pending, Pending());
    const bool idle = pending.embeddings == 0 && pending.encodings == 0 &&
                      pending.extractions == 0 && pending.erasures == 0;
    if (progress && (idle || std::chrono::steady_clock::now() >= next_call)) {
      next_call = std::chrono::steady_clock::now() + kInterval;
      if (!progress(pending))
        return Cancelled("stopped waiting; the work goes on in the background");
    }
    if (idle) return OkStatus();
    if (impl_->worker == nullptr) {
      INFERSCALE_ASSIGN_OR_RETURN(const bool more, RunPending());
      if (!more) return OkStatus();  // what is left needs an engine
    } else {
      INFERSCALE_RETURN_IF_ERROR(impl_->worker->Stuck().WithContext(
          "background work cannot go on, it is tried again later"));
      std::this_thread::sleep_for(std::chrono::milliseconds{50});
    }
  }
}

}  // namespace inferscale
