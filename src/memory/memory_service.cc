#include "inferscale/memory_service.h"

#include <algorithm>
#include <utility>

#include <spdlog/spdlog.h>
#include <nlohmann/json.hpp>

#include "memory/accuracy_verdict.h"
#include "memory/service_impl.h"
#include "retrieval/embed_pending.h"

namespace inferscale {
namespace {

constexpr std::int32_t kNearestExisting = 10;  // facts an extractor is shown, as Mem0's does
/// Facts embedded before a write is answered. The others of a huge one are found by keyword at once
/// and by meaning when the background work has come to them.
constexpr std::size_t kEmbedAtOnce = 256;

std::string JoinedTexts(const std::vector<Turn>& turns) {
  std::string text;
  for (const Turn& turn : turns) {
    if (!text.empty()) text += '\n';
    text += turn.content;
  }
  return text;
}

Status CheckMetadata(const std::string& metadata_json) {
  const auto metadata = nlohmann::json::parse(metadata_json, nullptr, false);
  if (metadata.is_object()) return OkStatus();
  return InvalidArgument("metadata must be a JSON object");
}

}  // namespace

MemoryService::MemoryService(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}

MemoryService::~MemoryService() {
  // Generations end before the worker that finishes them, the worker before the catalog.
  std::set<std::shared_ptr<Generation>> chats;
  {
    std::lock_guard lock(impl_->chats_mutex);
    chats = impl_->chats;
  }
  for (const auto& chat : chats) chat->Cancel();
  for (const auto& chat : chats) chat->Wait();
  impl_->stopping = true;
  if (impl_->worker != nullptr && impl_->engine != nullptr) impl_->engine->OnChange(nullptr);
  impl_->worker.reset();
}

Result<std::unique_ptr<MemoryService>> MemoryService::Create(std::unique_ptr<Catalog> catalog,
                                                             std::shared_ptr<Embedder> embedder,
                                                             std::shared_ptr<Engine> engine,
                                                             std::shared_ptr<Extractor> extractor,
                                                             MemoryServiceOptions options) {
  auto impl = std::make_unique<Impl>();
  INFERSCALE_ASSIGN_OR_RETURN(impl->recipe, Recipe::Parse(options.recipe));
  impl->catalog = std::move(catalog);
  impl->embedder = std::move(embedder);
  impl->engine = std::move(engine);
  impl->extractor = std::move(extractor);
  impl->options = std::move(options);
  impl->retriever =
      std::make_unique<Retriever>(*impl->catalog, *impl->embedder,
                                  RetrieverOptions{.budget_bytes = impl->options.vector_bytes,
                                                   .vectors = impl->options.vectors,
                                                   .clock = impl->options.clock});
  if (impl->engine != nullptr) {
    if (impl->options.max_fact_tokens == 0) {
      impl->options.max_fact_tokens = impl->engine->capabilities().context_tokens / 2;
    }
    INFERSCALE_RETURN_IF_ERROR(impl->CurrentEncoding().status());
  }
  const bool background = impl->options.background;
  std::unique_ptr<MemoryService> service(new MemoryService(std::move(impl)));
  if (background) {
    MemoryService* const raw = service.get();
    service->impl_->worker =
        std::make_unique<BackgroundWorker>([raw] { return raw->RunPending(); });
    // What has been added while no KV could be stored is encoded without anybody asking for it.
    if (raw->impl_->engine != nullptr) {
      raw->impl_->engine->OnChange([worker = raw->impl_->worker.get()] { worker->Wake(); });
    }
  }
  return service;
}

Result<MemoryService::Impl::Encoding*> MemoryService::Impl::CurrentEncoding() {
  // Read first: what the engine is called has changed with what it can.
  const EngineCapabilities& able = engine->capabilities();
  const KvCodec codec = able.codec.value_or(options.codec);
  const auto serves = [&](const Encoding& one) {
    return one.kv == able.kv_injection && one.encoder.codec() == codec &&
           one.encoder.fingerprint() == engine->fingerprint();
  };
  Encoding* const now = encoding;
  if (now != nullptr && serves(*now)) return now;
  const std::lock_guard lock(encodings_mutex);
  for (const auto& one : encodings) {
    if (!serves(*one)) continue;
    RememberEncoding(*one);  // the engine is again what it was before
    return encoding = one.get();
  }
  std::unique_ptr<Encoding> made(
      new Encoding{{*engine, *catalog, recipe, codec}, able.kv_injection, {}});
  INFERSCALE_RETURN_IF_ERROR(ApplyAccuracyGate(*made));
  RememberEncoding(*made);
  encodings.push_back(std::move(made));
  return encoding = encodings.back().get();
}

void MemoryService::Impl::RememberEncoding(const Encoding& of) {
  if (!of.kv) return;  // it stores nothing to be looked for
  const Result<std::string> known = catalog->GetMeta(kLastEncodingMeta);
  if (known.ok() && *known == of.id()) return;
  const Status kept = catalog->SetMeta(kLastEncodingMeta, of.id());
  if (!kept.ok()) spdlog::warn("inferscale status may count KV wrongly: {}", kept.ToString());
}

Status MemoryService::Impl::ApplyAccuracyGate(Encoding& of) {
  if (!of.kv) return OkStatus();
  INFERSCALE_ASSIGN_OR_RETURN(const std::optional<AccuracyVerdict> verdict,
                              LoadAccuracyVerdict(*catalog, of.id()));
  if (!verdict.has_value()) {
    spdlog::info(
        "accuracy of KV: never checked for this model, recipe and codec; run inferscale doctor "
        "--accuracy");
  } else if (verdict->passed) {
    spdlog::info("accuracy of KV: {}", verdict->ToString());
  } else if (options.accuracy_gate == AccuracyGate::kIgnore) {
    spdlog::warn("accuracy of KV: {}; served as KV all the same, as configured",
                 verdict->ToString());
  } else {
    of.accuracy_refusal = verdict->ToString();
    spdlog::warn("accuracy of KV: {}; memories are served as text", of.accuracy_refusal);
  }
  return OkStatus();
}

Result<std::vector<ScopeInfo>> MemoryService::Impl::ReadableScopes(const Scope& scope) {
  if (!scope.HasOwner()) return std::vector<ScopeInfo>();
  return catalog->FindScopes(scope);
}

Status MemoryService::Impl::Apply(const Erasure& erasure) {
  if (engine == nullptr) return OkStatus();  // recorded: done when an engine opens the folder
  if (erasure.whole_scope) {
    INFERSCALE_RETURN_IF_ERROR(engine->EraseScope(erasure.scope_tag, erasure.epoch));
  }
  if (erasure.prefixes)
    INFERSCALE_RETURN_IF_ERROR(engine->EraseScope(kPrefixScopeTag, ++prefix_epoch));
  INFERSCALE_RETURN_IF_ERROR(engine->Erase(erasure.keys, erasure.scope_tag, erasure.epoch));
  if (!erasure.keys.empty()) {
    // Facts of such a key may have come since it was erased from the catalog.
    erased_meanwhile.Note(erasure.keys);
    INFERSCALE_RETURN_IF_ERROR(catalog->DropKvRecords(erasure.keys));
  }
  return catalog->CompleteErasure(erasure.id);
}

Status MemoryService::Impl::TryApply(const std::vector<Erasure>& erasures) {
  Status status;
  for (const Erasure& erasure : erasures) {
    if (stopping) return Cancelled("the service is stopping");
    const Status applied = Apply(erasure);
    if (status.ok()) status = applied;
  }
  if (worker != nullptr) worker->Wake();
  return status;
}

Status MemoryService::Impl::Apply(const std::vector<Erasure>& erasures) {
  Status status = TryApply(erasures);
  if (status.ok()) return status;
  spdlog::error("stored KV of erased memories could not be removed and will be later: {}",
                status.ToString());
  return Unavailable(
      "what was erased is no longer served, but its stored KV could not be removed yet; the server "
      "tries again by itself, and its log says what is in the way");
}

void MemoryService::Impl::Embed(std::vector<NewFact>* facts) {
  if (facts->empty()) return;
  std::vector<std::string> texts;
  for (const NewFact& fact : std::span(*facts).first(std::min(facts->size(), kEmbedAtOnce))) {
    texts.push_back(EmbeddingText(fact.fact));
  }
  Result<std::vector<std::vector<float>>> vectors = embedder->Embed(texts);
  if (!vectors.ok()) {
    spdlog::warn("embedding failed, the facts are found by keyword until it works: {}",
                 vectors.status().ToString());
    return;
  }
  for (std::size_t i = 0; i < texts.size(); ++i) (*facts)[i].embedding = std::move((*vectors)[i]);
}

Result<std::vector<NewFact>> MemoryService::Impl::Extract(ScopeId scope,
                                                          const std::vector<Turn>& turns,
                                                          ExtractionMode mode,
                                                          const std::string& metadata_json,
                                                          const std::string& expiration_date,
                                                          const std::vector<std::string>& exclude) {
  ExtractRequest request;
  request.turns = turns;
  request.exclude = exclude;
  VerbatimExtractor verbatim;
  Extractor* chosen = &verbatim;
  if (mode == ExtractionMode::kLlm && extractor != nullptr) {
    chosen = extractor.get();
    SearchRequest nearest;
    nearest.scopes = {scope};
    nearest.query = JoinedTexts(turns);
    nearest.top_k = kNearestExisting;
    INFERSCALE_ASSIGN_OR_RETURN(const std::vector<SearchHit> hits, retriever->Search(nearest));
    for (const SearchHit& hit : hits) request.existing.push_back({hit.fact.id, hit.fact.text});
  }
  Result<std::vector<ExtractedFact>> extracted = chosen->Extract(request);
  // What the model's server takes for a wrong request (a key, a model's name) is the set-up's
  // fault, not that of whoever adds.
  if (extracted.status().code() == StatusCode::kInvalidArgument)
    return FailedPrecondition(extracted.status().message());
  INFERSCALE_RETURN_IF_ERROR(extracted.status());
  std::vector<NewFact> facts;
  for (ExtractedFact& fact : *extracted) {
    NewFact added;
    added.fact.text = std::move(fact.text);
    added.fact.name = std::move(fact.name);
    added.fact.event_time_ms = fact.event_time_ms;
    added.fact.metadata_json = metadata_json;
    added.fact.expiration_date = expiration_date;
    if (!fact.source_turn_indexes.empty()) {
      const Turn& source = turns[static_cast<std::size_t>(fact.source_turn_indexes.front())];
      added.fact.role = source.role;
      added.fact.actor_id = source.name;
    }
    added.source_turn_indexes = std::move(fact.source_turn_indexes);
    added.supersedes = std::move(fact.supersedes);
    facts.push_back(std::move(added));
  }
  return facts;
}

Result<AddOutcome> MemoryService::Add(const AddRequest& request) {
  if (!request.scope.HasOwner()) {
    return InvalidArgument("a memory needs an owner: give a user, agent, run or app id");
  }
  if (request.turns.empty()) return InvalidArgument("nothing to add: there is no message");
  INFERSCALE_RETURN_IF_ERROR(CheckMetadata(request.metadata_json));
  INFERSCALE_ASSIGN_OR_RETURN(const ScopeInfo scope, impl_->catalog->EnsureScope(request.scope));
  const ExtractionMode mode = request.mode.value_or(impl_->options.extraction);
  IngestBatch batch;
  batch.scope_id = scope.id;
  batch.turns = request.turns;
  for (Turn& turn : batch.turns) {
    if (turn.time_ms == 0) turn.time_ms = impl_->Now();
  }
  batch.embedder_id = impl_->embedder->id();
  batch.event_id = request.event_id;
  AddOutcome outcome;
  if (request.background) {
    batch.extract_later = true;
    batch.job_payload_json = nlohmann::json{
        {"mode", mode == ExtractionMode::kLlm ? "llm" : "verbatim"},
        {"metadata", request.metadata_json},
        {"expiration_date", request.expiration_date},
        {"created_at_ms", request.created_at_ms},
        {"served_facts",
         request.served_facts}}.dump();
  } else {
    INFERSCALE_ASSIGN_OR_RETURN(batch.facts,
                                impl_->Extract(scope.id, batch.turns, mode, request.metadata_json,
                                               request.expiration_date, {}));
    for (NewFact& fact : batch.facts) fact.fact.created_at_ms = request.created_at_ms;
    impl_->Embed(&batch.facts);
  }
  INFERSCALE_ASSIGN_OR_RETURN(const IngestOutcome ingested, impl_->catalog->Ingest(batch));
  if (impl_->worker != nullptr) impl_->worker->Wake();
  outcome.job_id = ingested.job_id;
  std::vector<std::string> added;
  for (const IngestOutcome::Entry& entry : ingested.facts) {
    if (entry.added) {
      added.push_back(entry.fact_id);
    } else {
      ++outcome.duplicates;
    }
  }
  INFERSCALE_ASSIGN_OR_RETURN(outcome.facts, impl_->catalog->GetFacts(added));
  return outcome;
}

Result<IngestOutcome> MemoryService::AddFacts(const Scope& scope, std::vector<Turn> turns,
                                              std::vector<NewFact> facts, std::string event_id) {
  for (const NewFact& fact : facts)
    INFERSCALE_RETURN_IF_ERROR(CheckMetadata(fact.fact.metadata_json));
  INFERSCALE_ASSIGN_OR_RETURN(const ScopeInfo info, impl_->catalog->EnsureScope(scope));
  IngestBatch batch;
  batch.scope_id = info.id;
  batch.turns = std::move(turns);
  batch.facts = std::move(facts);
  batch.event_id = std::move(event_id);
  batch.embedder_id = impl_->embedder->id();
  impl_->Embed(&batch.facts);
  Result<IngestOutcome> outcome = impl_->catalog->Ingest(batch);
  if (impl_->worker != nullptr) impl_->worker->Wake();
  return outcome;
}

Result<std::vector<SearchHit>> MemoryService::Search(const Scope& scope, const std::string& query,
                                                     std::int32_t top_k, const Filter* filter,
                                                     double threshold, bool show_expired,
                                                     Status* embedding) {
  if (!scope.HasOwner())
    return InvalidArgument("a search needs an owner: give a user, agent, run or app id");
  INFERSCALE_ASSIGN_OR_RETURN(const std::vector<ScopeInfo> scopes, impl_->ReadableScopes(scope));
  SearchRequest request;
  for (const ScopeInfo& info : scopes) request.scopes.push_back(info.id);
  request.query = query;
  request.top_k = top_k;
  request.filter = filter;
  request.threshold = threshold;
  request.show_expired = show_expired;
  return Search(request, embedding);
}

Result<std::vector<SearchHit>> MemoryService::Search(const SearchRequest& request,
                                                     Status* embedding) {
  if (embedding != nullptr) *embedding = OkStatus();
  if (request.scopes.empty()) return std::vector<SearchHit>();
  return impl_->retriever->Search(request, embedding);
}

Result<std::vector<Fact>> MemoryService::List(const Scope& scope, std::int64_t offset,
                                              std::int64_t limit, const Filter* filter,
                                              bool show_expired) {
  INFERSCALE_ASSIGN_OR_RETURN(const std::vector<ScopeInfo> scopes, impl_->ReadableScopes(scope));
  FactQuery query;
  for (const ScopeInfo& info : scopes) query.scopes.push_back(info.id);
  if (query.scopes.empty()) return std::vector<Fact>();
  query.offset = offset;
  query.limit = limit;
  query.filter = filter;
  query.show_expired = show_expired;
  return impl_->catalog->ListFacts(query);
}

Result<std::int64_t> MemoryService::Count(const Scope& scope) {
  INFERSCALE_ASSIGN_OR_RETURN(const std::vector<ScopeInfo> scopes, impl_->ReadableScopes(scope));
  std::int64_t facts = 0;
  for (const ScopeInfo& info : scopes) facts += info.facts;
  return facts;
}

Result<Fact> MemoryService::Get(const std::string& id) { return impl_->catalog->GetFact(id); }

Result<std::vector<HistoryEntry>> MemoryService::History(const std::string& id) {
  return impl_->catalog->History(id);
}

Result<Fact> MemoryService::Update(const std::string& id, FactUpdate update) {
  if (update.metadata_json.has_value())
    INFERSCALE_RETURN_IF_ERROR(CheckMetadata(*update.metadata_json));
  if (update.text.has_value() || update.name.has_value()) {
    INFERSCALE_ASSIGN_OR_RETURN(Fact changed, impl_->catalog->GetFact(id));
    changed.text = update.text.value_or(changed.text);
    changed.name = update.name.value_or(changed.name);
    const std::string text = EmbeddingText(changed);
    const Result<std::vector<std::vector<float>>> vectors =
        impl_->embedder->Embed(std::span(&text, 1));
    if (vectors.ok()) {
      update.embedding = vectors->front();
      update.embedder_id = impl_->embedder->id();
    }
  }
  INFERSCALE_ASSIGN_OR_RETURN(const Erasure erasure, impl_->catalog->UpdateFact(id, update));
  INFERSCALE_RETURN_IF_ERROR(impl_->Apply(std::vector{erasure}));
  return impl_->catalog->GetFact(id);
}

Status MemoryService::Delete(const std::string& id) {
  INFERSCALE_ASSIGN_OR_RETURN(const Erasure erasure, impl_->catalog->DeleteFact(id));
  return impl_->Apply(std::vector{erasure});
}

Status MemoryService::Forget(const std::string& id) {
  INFERSCALE_ASSIGN_OR_RETURN(const Erasure erasure, impl_->catalog->ForgetFact(id));
  return impl_->Apply(std::vector{erasure});
}

namespace {

struct Owned {
  std::vector<ScopeId> ids;
  std::int64_t facts = 0;
};

Result<Owned> Owners(Catalog& catalog, const Scope& scope) {
  if (!scope.HasOwner())
    return InvalidArgument("this would erase everybody: give a user, agent, run or app id");
  INFERSCALE_ASSIGN_OR_RETURN(const std::vector<ScopeInfo> scopes, catalog.FindScopes(scope));
  Owned owned;
  for (const ScopeInfo& info : scopes) {
    owned.ids.push_back(info.id);
    owned.facts += info.facts;
  }
  return owned;
}

}  // namespace

Result<std::int64_t> MemoryService::DeleteAll(const Scope& scope) {
  INFERSCALE_ASSIGN_OR_RETURN(const Owned owned, Owners(*impl_->catalog, scope));
  INFERSCALE_ASSIGN_OR_RETURN(const std::vector<Erasure> erasures,
                              impl_->catalog->DeleteScopes(owned.ids));
  INFERSCALE_RETURN_IF_ERROR(impl_->Apply(erasures));
  return owned.facts;
}

Status MemoryService::DeleteScopes(std::span<const ScopeId> scopes) {
  INFERSCALE_ASSIGN_OR_RETURN(const std::vector<Erasure> erasures,
                              impl_->catalog->DeleteScopes(scopes));
  return impl_->Apply(erasures);
}

Result<std::int64_t> MemoryService::ForgetAll(const Scope& scope) {
  INFERSCALE_ASSIGN_OR_RETURN(const Owned owned, Owners(*impl_->catalog, scope));
  INFERSCALE_ASSIGN_OR_RETURN(const std::vector<Erasure> erasures,
                              impl_->catalog->ForgetScopes(owned.ids));
  INFERSCALE_RETURN_IF_ERROR(impl_->Apply(erasures));
  return owned.facts;
}

Status MemoryService::SetDisplayName(const Scope& scope, const std::string& name) {
  INFERSCALE_ASSIGN_OR_RETURN(const ScopeInfo info, impl_->catalog->EnsureScope(scope));
  INFERSCALE_RETURN_IF_ERROR(impl_->catalog->SetDisplayName(info.id, name));
  INFERSCALE_ASSIGN_OR_RETURN(const std::vector<Erasure> erasures,
                              impl_->catalog->PendingErasures());
  return impl_->Apply(erasures);
}

Catalog& MemoryService::catalog() { return *impl_->catalog; }
Embedder& MemoryService::embedder() { return *impl_->embedder; }
Engine* MemoryService::engine() { return impl_->engine.get(); }
const MemoryServiceOptions& MemoryService::options() const { return impl_->options; }
const std::string& MemoryService::encoding_id() const {
  static const std::string kNone;
  const Impl::Encoding* const encoding = impl_->encoding;
  return encoding != nullptr ? encoding->id() : kNone;
}
const std::string& MemoryService::accuracy_refusal() const {
  static const std::string kNone;
  const Impl::Encoding* const encoding = impl_->encoding;
  return encoding != nullptr ? encoding->accuracy_refusal : kNone;
}

}  // namespace inferscale
