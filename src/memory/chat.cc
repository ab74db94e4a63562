// The chat path of a MemoryService: retrieve, compose, make sure of the exact prefix, generate, and
// keep the ledger.

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <map>
#include <mutex>
#include <utility>

#include <spdlog/spdlog.h>

#include "base/clock.h"
#include "base/hash.h"
#include "compose/conversation_hash.h"
#include "memory/service_impl.h"

namespace inferscale {
namespace {

using SteadyClock = std::chrono::steady_clock;

double MillisecondsSince(SteadyClock::time_point start) {
  return std::chrono::duration<double, std::milli>(SteadyClock::now() - start).count();
}

/// A generation that may not have reached the engine yet, whose on_done the service finishes.
class ChatGeneration : public Generation {
 public:
  void Cancel() override {
    std::shared_ptr<Generation> inner;
    {
      std::lock_guard lock(mutex_);
      cancelled_ = true;
      inner = inner_;
    }
    if (inner != nullptr) inner->Cancel();
  }
  void Wait() override {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [this] { return done_; });
  }
  void Started(const std::shared_ptr<Generation>& inner) {
    bool cancel = false;
    {
      std::lock_guard lock(mutex_);
      inner_ = inner;
      cancel = cancelled_;
    }
    if (cancel) inner->Cancel();
  }
  void Done() {
    {
      std::lock_guard lock(mutex_);
      done_ = true;
    }
    changed_.notify_all();
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::shared_ptr<Generation> inner_;
  bool cancelled_ = false, done_ = false;
};

/// One chat in flight, kept alive by its callbacks.
struct ChatState {
  ChatRequest request;
  ScopeInfo ledger_scope;  // id 0: no ledger
  Composed composed;
  ChatReport report;
  SteadyClock::time_point start;
  std::atomic<bool> first_token{false};
  std::atomic<double> first_token_ms{0};
  std::function<void(const TokenEvent&)> on_token;
  std::function<void(ChatReport)> on_done;
  std::shared_ptr<ChatGeneration> generation = std::make_shared<ChatGeneration>();
};

const ChatMessage* LastUserMessage(const std::vector<ChatMessage>& messages) {
  for (auto message = messages.rbegin(); message != messages.rend(); ++message) {
    if (message->role == "user") return &*message;
  }
  return nullptr;
}

/// Whether everything an earlier prompt says is still true.
Result<bool> StillTrue(Catalog& catalog, const LedgerEntry& entry, TimeMs now) {
  std::vector<std::string> ids;
  std::map<std::string, std::int64_t> versions;
  for (const LedgerEntry::Placement& fact : entry.facts) {
    ids.push_back(fact.fact_id);
    versions[fact.fact_id] = fact.version;
  }
  INFERSCALE_ASSIGN_OR_RETURN(const std::vector<Fact> facts, catalog.GetFacts(ids));
  if (facts.size() != entry.facts.size()) return false;
  const std::string today = FormatDate(now);
  return std::all_of(facts.begin(), facts.end(), [&](const Fact& fact) {
    const bool expired = !fact.expiration_date.empty() && fact.expiration_date < today;
    return fact.superseded_by.empty() && versions[fact.id] == fact.version && !expired;
  });
}

void KeepLedger(Catalog& catalog, const ChatState& chat, const std::string& encoding_id) {
  const GenerationReport& generation = chat.report.generation;
  const bool whole =
      generation.finish == FinishReason::kStop || generation.finish == FinishReason::kLength;
  // What a tool returns changes the next prompt from the call on: it is composed anew.
  const bool called = !chat.report.tool_calls.empty();
  if (chat.ledger_scope.id == 0 || !whole || called || !generation.status.ok()) return;
  LedgerEntry entry;
  entry.ids = chat.composed.composition.ids;
  entry.ids.insert(entry.ids.end(), generation.generated.begin(), generation.generated.end());
  for (const PlacedFact& fact : chat.composed.facts) {
    entry.facts.push_back({fact.id, fact.version, fact.key, fact.begin, fact.end});
  }
  std::vector<ChatMessage> messages = chat.request.messages;
  messages.push_back({"assistant", generation.text, ""});
  entry.messages = static_cast<std::int32_t>(messages.size());
  entry.prefix_tokens = chat.composed.prefix_tokens;
  entry.epoch = chat.ledger_scope.epoch;
  entry.encoding_id = encoding_id;
  const Status status = catalog.PutLedger(
      chat.ledger_scope.id, ConversationHash(messages, chat.request.tools.get()), entry);
  if (!status.ok())
    spdlog::warn("the next turn of this conversation will be composed anew: {}", status.ToString());
}

/// Tells the calls in an answer from what it says.
void ReadToolCalls(ChatState& chat) {
  if (chat.request.tools == nullptr) return;
  GenerationReport& generation = chat.report.generation;
  ToolAnswer answer =
      chat.request.tools->Parse(generation.text, generation.finish != FinishReason::kStop);
  // An answer cut off may be no form yet.
  if (answer.content.empty() && answer.calls.empty()) return;
  generation.text = std::move(answer.content);
  chat.report.tool_calls = std::move(answer.calls);
}

}  // namespace

Result<std::vector<ServableFact>> MemoryService::Impl::Servable(Encoding& by,
                                                                std::span<const Fact> facts,
                                                                std::span<const ScopeInfo> scopes,
                                                                MemoryMode mode) {
  std::map<ScopeId, const ScopeInfo*> by_id;
  for (const ScopeInfo& scope : scopes) by_id[scope.id] = &scope;
  std::vector<ServableFact> servable;
  std::vector<std::string> ids;
  for (const Fact& fact : facts) {
    const auto scope = by_id.find(fact.scope_id);
    if (scope == by_id.end()) continue;  // never a fact of somebody else
    servable.push_back({fact.id,
                        fact.version,
                        by.encoder.ServedIds(fact, *scope->second),
                        {},
                        false,
                        false,
                        ServedName(fact, scope->second->display_name).empty()});
    ids.push_back(fact.id);
  }
  if (mode != MemoryMode::kKv || ids.empty() || !by.kv) return servable;
  INFERSCALE_ASSIGN_OR_RETURN(const std::vector<std::optional<KvRecord>> records,
                              catalog->GetKvRecords(ids, by.id()));
  std::vector<KvKey> keys;
  std::vector<std::size_t> owners;
  for (std::size_t i = 0; i < servable.size(); ++i) {
    if (!records[i].has_value() || records[i]->fact_version != servable[i].version) continue;
    servable[i].key = records[i]->key;
    servable[i].has_key = true;
    keys.push_back(records[i]->key);
    owners.push_back(i);
  }
  const std::vector<KvTier> tiers = engine->Presence(keys);
  std::vector<KvKey> missing;
  for (std::size_t i = 0; i < keys.size(); ++i) {
    servable[owners[i]].ready = tiers[i] != KvTier::kNone;
    if (!servable[owners[i]].ready) missing.push_back(keys[i]);
  }
  if (!missing.empty()) {
    // Evicted or lost: what is asked for is encoded again.
    INFERSCALE_RETURN_IF_ERROR(catalog->DropKvRecords(missing));
    if (worker != nullptr) worker->Wake();
  }
  return servable;
}

void MemoryService::Impl::EncodeLost(const Composition& composition,
                                     const GenerationReport& generation) {
  const bool lost = std::any_of(
      generation.fallbacks.begin(), generation.fallbacks.end(), [](const Fallback& fallback) {
        return fallback.reason == "corrupt" || fallback.reason == "evicted";
      });
  if (!lost) return;
  std::vector<KvKey> keys, missing;
  for (const BlockSpan& block : composition.blocks) {
    if (!block.exact) keys.push_back(block.key);
  }
  const std::vector<KvTier> tiers = engine->Presence(keys);
  for (std::size_t i = 0; i < keys.size(); ++i) {
    if (tiers[i] == KvTier::kNone) missing.push_back(keys[i]);
  }
  const Status dropped = catalog->DropKvRecords(missing);
  if (!dropped.ok())
    spdlog::warn("lost KV is made again when it is asked for next: {}", dropped.ToString());
  if (worker != nullptr) worker->Wake();
}

Result<Composed> MemoryService::Impl::ComposePrompt(
    Encoding& by, const std::string& tenant, std::span<const ScopeInfo> scopes,
    std::span<const ChatMessage> messages, std::span<const Fact> facts, MemoryMode mode,
    std::int32_t compute_best, std::int32_t answer_tokens, const LedgerEntry* ledger,
    const ToolFormat* tools) {
  ComposeRequest request;
  request.tools = tools;
  request.messages.assign(messages.begin(), messages.end());
  if (request.messages.empty() || request.messages.front().role != "system") {
    request.messages.insert(request.messages.begin(),
                            ChatMessage{"system", std::string(prompt_text::SystemSentence()), ""});
  }
  LedgerEntry shifted;
  if (ledger != nullptr && request.messages.size() != messages.size()) {
    shifted = *ledger;  // counted without the system message that is put in front here
    ++shifted.messages;
    ledger = &shifted;
  }
  INFERSCALE_ASSIGN_OR_RETURN(request.facts, Servable(by, facts, scopes, mode));
  const EngineCapabilities& capabilities = engine->capabilities();
  request.inject = mode == MemoryMode::kKv && by.kv;
  request.today = Now();
  request.max_fact_tokens = options.max_fact_tokens;
  request.max_prompt_tokens =
      capabilities.context_tokens - std::min(answer_tokens, capabilities.context_tokens / 4) - 1;
  request.compute_best = compute_best;
  request.ledger = ledger;
  INFERSCALE_ASSIGN_OR_RETURN(Composed composed,
                              Compose(*engine, request, [&](std::span<const TokenId> ids) {
                                return by.encoder.PrefixKey(tenant, ids);
                              }));
  for (const ScopeInfo& scope : scopes) composed.composition.scope_tags.push_back(scope.tag);
  if (mode == MemoryMode::kKv && !by.kv && !composed.facts.empty()) {
    composed.fallbacks.push_back(
        {"model_unsupported", static_cast<std::int32_t>(composed.facts.size())});
  }
  return composed;
}

Result<std::string> MemoryService::Impl::Salt(const Encoding& by, const Scope& scope,
                                              std::span<const ScopeInfo> scopes, MemoryMode mode) {
  INFERSCALE_ASSIGN_OR_RETURN(const std::vector<std::uint8_t> secret,
                              catalog->TenantSecret(scope.tenant));
  std::string text = ScopeText(scope) + by.id() + (mode == MemoryMode::kKv ? "kv" : "text");
  for (const ScopeInfo& info : scopes) {
    text += ";" + std::to_string(info.id) + "," + std::to_string(info.epoch);
  }
  return HexEncode(HmacSha256(
      secret, std::span(reinterpret_cast<const std::uint8_t*>(text.data()), text.size())));
}

void MemoryService::Impl::WithPrefix(const Composition& composition, std::function<void()> then) {
  const bool wanted =
      composition.inject && composition.blocks.size() > 1 && composition.blocks.front().exact;
  if (!wanted ||
      engine->Presence(std::span(&composition.blocks.front().key, 1))[0] != KvTier::kNone) {
    then();
    return;
  }
  const BlockSpan& prefix = composition.blocks.front();
  EncodeRequest request;
  request.info.key = prefix.key;
  request.info.scope_tag = kPrefixScopeTag;
  request.info.epoch = prefix_epoch;
  request.info.codec = KvCodec::kF16;  // exact: stored as the cache holds it
  request.info.tokens.assign(composition.ids.begin() + prefix.begin,
                             composition.ids.begin() + prefix.end);
  request.context = std::make_shared<const TokenIds>();
  request.urgent = true;
  std::vector<EncodeRequest> requests;
  requests.push_back(std::move(request));
  engine->Encode(std::move(requests), [then = std::move(then)](const EncodeOutcome& outcome) {
    if (!outcome.status.ok())
      spdlog::debug("exact prefix not stored: {}", outcome.status.ToString());
    then();
  });
}

Result<std::shared_ptr<Generation>> MemoryService::Chat(
    ChatRequest request, std::function<void(const TokenEvent&)> on_token,
    std::function<void(ChatReport)> on_done) {
  if (impl_->engine == nullptr)
    return FailedPrecondition("chat needs a model: pass --model with a GGUF file");
  const ChatMessage* question = LastUserMessage(request.messages);
  if (question == nullptr) return InvalidArgument("the conversation has no user message");
  auto chat = std::make_shared<ChatState>();
  chat->start = SteadyClock::now();
  chat->on_token = std::move(on_token);
  chat->on_done = std::move(on_done);
  std::vector<Fallback> fallbacks;
  INFERSCALE_ASSIGN_OR_RETURN(Impl::Encoding* const by, impl_->CurrentEncoding());
  const bool memory = request.mode != MemoryMode::kOff;
  if (memory && !request.scope.HasOwner()) fallbacks.push_back({"no_owner", 1});
  if (request.mode == MemoryMode::kText) fallbacks.push_back({"text_mode", 1});
  if (request.mode == MemoryMode::kKv && !by->accuracy_refusal.empty()) {
    request.mode = MemoryMode::kText;
    fallbacks.push_back({"accuracy_gate", 1});
  }

  std::vector<ScopeInfo> scopes;
  if (memory) {
    INFERSCALE_ASSIGN_OR_RETURN(scopes, impl_->ReadableScopes(request.scope));
  }
  std::vector<Fact> facts;
  if (!scopes.empty() && request.top_k > 0) {
    SearchRequest search;
    for (const ScopeInfo& scope : scopes) search.scopes.push_back(scope.id);
    search.query = question->content;
    search.top_k = request.top_k;
    search.filter = request.filter;
    Status embedding;
    INFERSCALE_ASSIGN_OR_RETURN(chat->report.memories,
                                impl_->retriever->Search(search, &embedding));
    if (!embedding.ok()) {
      fallbacks.push_back(
          {"embedder_unavailable", static_cast<std::int32_t>(chat->report.memories.size())});
    }
    for (const SearchHit& hit : chat->report.memories) facts.push_back(hit.fact);
  }
  chat->report.search_ms = MillisecondsSince(chat->start);

  const auto compose_start = SteadyClock::now();
  for (const ScopeInfo& scope : scopes) {
    if (scope.scope == request.scope) chat->ledger_scope = scope;
  }
  std::optional<LedgerEntry> ledger;
  // What earlier turns sent was chosen by other filters: with one, the prompt is made anew.
  if (request.use_ledger && chat->ledger_scope.id != 0 && request.filter == nullptr) {
    // The longest prefix that ends with an answer: edited or branched history has another hash.
    for (std::size_t count = request.messages.size(); count-- > 1 && !ledger.has_value();) {
      if (request.messages[count - 1].role != "assistant") continue;
      INFERSCALE_ASSIGN_OR_RETURN(
          ledger,
          impl_->catalog->GetLedger(chat->ledger_scope.id,
                                    ConversationHash(std::span(request.messages).subspan(0, count),
                                                     request.tools.get())));
      break;
    }
    if (ledger.has_value()) {
      INFERSCALE_ASSIGN_OR_RETURN(const bool still_true,
                                  StillTrue(*impl_->catalog, *ledger, impl_->Now()));
      if (!still_true || ledger->encoding_id != by->id()) ledger.reset();
    }
  }
  INFERSCALE_ASSIGN_OR_RETURN(
      chat->composed,
      impl_->ComposePrompt(*by, request.scope.tenant, scopes, request.messages, facts, request.mode,
                           request.compute_best, request.sampling.max_tokens,
                           ledger.has_value() ? &*ledger : nullptr, request.tools.get()));
  INFERSCALE_ASSIGN_OR_RETURN(chat->composed.composition.salt,
                              impl_->Salt(*by, request.scope, scopes, request.mode));
  if (!request.use_ledger) chat->ledger_scope = {};
  std::erase_if(chat->report.memories, [&](const SearchHit& hit) {
    return std::none_of(chat->composed.facts.begin(), chat->composed.facts.end(),
                        [&](const PlacedFact& fact) { return fact.id == hit.fact.id; });
  });
  std::vector<std::string> sent_before;
  for (const PlacedFact& fact : chat->composed.facts) {
    const auto found = [&](const SearchHit& hit) { return hit.fact.id == fact.id; };
    if (std::none_of(chat->report.memories.begin(), chat->report.memories.end(), found)) {
      sent_before.push_back(fact.id);
    }
  }
  INFERSCALE_ASSIGN_OR_RETURN(std::vector<Fact> earlier, impl_->catalog->GetFacts(sent_before));
  for (Fact& fact : earlier) {
    SearchHit hit;
    hit.fact = std::move(fact);
    chat->report.memories.push_back(std::move(hit));
  }
  fallbacks.insert(fallbacks.end(), chat->composed.fallbacks.begin(),
                   chat->composed.fallbacks.end());
  chat->report.compose_ms = MillisecondsSince(compose_start);
  chat->request = std::move(request);

  GenerationCallbacks callbacks;
  callbacks.on_token = [chat](const TokenEvent& event) {
    if (!chat->first_token.exchange(true)) chat->first_token_ms = MillisecondsSince(chat->start);
    if (chat->on_token) chat->on_token(event);
  };
  callbacks.on_done = [this, chat, by, fallbacks](GenerationReport generation) {
    generation.fallbacks.insert(generation.fallbacks.end(), fallbacks.begin(), fallbacks.end());
    chat->report.generation = std::move(generation);
    chat->report.question_to_first_token_ms = chat->first_token_ms;
    // The ledger must be kept before the client can send its next turn, and not on the engine's
    // thread.
    const auto finish = [this, chat, by] {
      ReadToolCalls(*chat);
      KeepLedger(*impl_->catalog, *chat, by->id());
      impl_->EncodeLost(chat->composed.composition, chat->report.generation);
      // A call is no answer yet: the turn is remembered with what is said after its result.
      const bool answered = chat->report.tool_calls.empty();
      if (chat->request.remember && answered && chat->request.scope.HasOwner())
        Remember(chat->request, chat->report);
      chat->on_done(std::move(chat->report));
      {
        std::lock_guard lock(impl_->chats_mutex);
        impl_->chats.erase(chat->generation);
      }
      chat->generation->Done();
    };
    if (impl_->worker != nullptr) {
      impl_->worker->Post(finish);
    } else {
      finish();
    }
  };
  {
    std::lock_guard lock(impl_->chats_mutex);
    impl_->chats.insert(chat->generation);
  }
  Engine* const engine = impl_->engine.get();
  impl_->WithPrefix(
      chat->composed.composition, [engine, chat, callbacks = std::move(callbacks)]() mutable {
        Composition composition = chat->composed.composition;
        chat->generation->Started(engine->Generate(std::move(composition), chat->request.sampling,
                                                   std::move(callbacks), chat->request.deadline));
      });
  return std::shared_ptr<Generation>(chat->generation);
}

void MemoryService::Remember(const ChatRequest& request, const ChatReport& report) {
  AddRequest add;
  add.scope = request.scope;
  add.background = true;
  const ChatMessage* question = LastUserMessage(request.messages);
  add.turns.push_back({0, "user", question->name, question->content, 0});
  add.turns.push_back({0, "assistant", "", report.generation.text, 0});
  for (const SearchHit& hit : report.memories) add.served_facts.push_back(hit.fact.id);
  const Result<AddOutcome> outcome = Add(add);
  if (!outcome.ok())
    spdlog::warn("a conversation turn was not remembered: {}", outcome.status().ToString());
}

Result<ChatReport> MemoryService::ChatBlocking(ChatRequest request,
                                               std::function<void(const TokenEvent&)> on_token) {
  auto result = std::make_shared<ChatReport>();
  INFERSCALE_ASSIGN_OR_RETURN(const std::shared_ptr<Generation> generation,
                              Chat(std::move(request), std::move(on_token),
                                   [result](ChatReport report) { *result = std::move(report); }));
  generation->Wait();
  INFERSCALE_RETURN_IF_ERROR(result->generation.status);
  return *result;
}

Result<Composition> MemoryService::ComposeFor(const Scope& scope,
                                              std::span<const ChatMessage> messages,
                                              std::span<const Fact> facts, MemoryMode mode,
                                              std::int32_t compute_best,
                                              std::vector<Fallback>* fallbacks) {
  if (impl_->engine == nullptr)
    return FailedPrecondition("composing needs a model: pass --model with a GGUF file");
  constexpr std::int32_t kAnswerTokens = 256;
  INFERSCALE_ASSIGN_OR_RETURN(const std::vector<ScopeInfo> scopes, impl_->ReadableScopes(scope));
  INFERSCALE_ASSIGN_OR_RETURN(Impl::Encoding* const by, impl_->CurrentEncoding());
  INFERSCALE_ASSIGN_OR_RETURN(Composed composed,
                              impl_->ComposePrompt(*by, scope.tenant, scopes, messages, facts, mode,
                                                   compute_best, kAnswerTokens, nullptr, nullptr));
  if (fallbacks != nullptr) *fallbacks = composed.fallbacks;
  INFERSCALE_ASSIGN_OR_RETURN(composed.composition.salt, impl_->Salt(*by, scope, scopes, mode));
  std::mutex mutex;
  std::condition_variable changed;
  bool ready = false;
  impl_->WithPrefix(composed.composition, [&] {
    std::lock_guard lock(mutex);
    ready = true;
    changed.notify_all();
  });
  std::unique_lock lock(mutex);
  changed.wait(lock, [&] { return ready; });
  return std::move(composed.composition);
}

}  // namespace inferscale
