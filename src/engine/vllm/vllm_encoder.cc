#include "engine/vllm/vllm_encoder.h"

#include <algorithm>
#include <chrono>

#include <spdlog/spdlog.h>

namespace inferscale {
namespace {

using nlohmann::json;

/// Encodings under way: alone, and beside generations.
constexpr std::size_t kAlone = 4, kBeside = 1;
/// How often a queued encoding looks whether generations have ended.
constexpr std::chrono::milliseconds kLook{20};
constexpr std::chrono::milliseconds kStoredPause{5}, kStoredWait{5'000};
constexpr std::chrono::seconds kFenceWait{30};

/// What a captured block's absence means to who asked for it.
Status StatusOf(const std::string& reason, const VllmServer& server) {
  const std::string what = "vLLM stored no KV (" + reason + "): ";
  if (reason == "over_budget") {
    return ResourceExhausted(what + "raise host_bytes or file_bytes in kv_connector_extra_config");
  }
  if (reason == "too_large") {
    return Unsupported(what + "it is larger than all that host_bytes or file_bytes allow");
  }
  if (reason == "erased") return FailedPrecondition(what + "its owner was erased meanwhile");
  if (reason == "unauthorised") {
    return FailedPrecondition(what + "give gateway and vLLM the same secret, and check the clocks");
  }
  if (reason == "rotation_unknown") {
    return Unavailable(what + server.name() + " was started anew and measures its rotation first");
  }
  if (reason == "schema" || reason == "malformed") {
    return Unsupported(what + "use a gateway and a connector of one version");
  }
  if (reason == "outside_window") {
    return Unsupported(what +
                       "it is longer than the model's sliding window; shorten it, or raise vLLM's "
                       "--max-num-batched-tokens");
  }
  return Unsupported(what + "this model's facts are served as text");
}

}  // namespace

VllmEncoder::VllmEncoder(const VllmCluster& cluster) : cluster_(cluster) {
  for (std::size_t i = 0; i < kAlone; ++i) threads_.emplace_back([this] { Work(); });
}

VllmEncoder::~VllmEncoder() {
  std::deque<Item> left;
  {
    const std::scoped_lock lock(mutex_);
    stopping_ = true;
    left.swap(queue_);
    for (Item& item : urgent_) left.push_back(std::move(item));
    urgent_.clear();
  }
  work_.notify_all();
  for (std::thread& thread : threads_) thread.join();
  for (const Item& item : left) {
    (*item.on_outcome)({item.request.info.key, Cancelled("the engine is shutting down")});
  }
}

void VllmEncoder::Encode(std::vector<EncodeRequest> requests,
                         std::function<void(const EncodeOutcome&)> on_outcome) {
  const auto shared = std::make_shared<const std::function<void(const EncodeOutcome&)>>(
      on_outcome ? std::move(on_outcome) : [](const EncodeOutcome&) {});
  {
    const std::scoped_lock lock(mutex_);
    for (EncodeRequest& request : requests) {
      std::deque<Item>& queue = request.urgent ? urgent_ : queue_;
      queue.push_back({std::move(request), shared});
    }
  }
  work_.notify_all();
}

bool VllmEncoder::Fenced(const KvBlockInfo& info) const {
  const auto fence = fences_.find(info.scope_tag);
  return fence != fences_.end() && info.epoch < fence->second;
}

bool VllmEncoder::Foreground() const {
  const std::vector<VllmServer*> servers = cluster_.Order(0);
  return std::any_of(servers.begin(), servers.end(),
                     [](const VllmServer* server) { return server->foreground > 0; });
}

bool VllmEncoder::MayStart() const {
  if (!urgent_.empty()) return true;
  return !queue_.empty() && running_.size() < (Foreground() ? kBeside : kAlone);
}

void VllmEncoder::Work() {
  std::unique_lock lock(mutex_);
  while (true) {
    // Generations end without telling the encoder: it looks now and then while something waits.
    while (!stopping_ && !MayStart()) {
      if (queue_.empty()) {
        work_.wait(lock);
      } else {
        work_.wait_for(lock, kLook);
      }
    }
    if (stopping_) return;
    std::deque<Item>& from = urgent_.empty() ? queue_ : urgent_;
    const Item item = std::move(from.front());
    from.pop_front();
    const KvBlockInfo& info = item.request.info;
    Status status = FailedPrecondition("its owner was erased after the encoding was asked for");
    if (!Fenced(info)) {
      const auto place = running_.insert({info.scope_tag, info.epoch});
      lock.unlock();
      status = Carry(item.request);
      lock.lock();
      running_.erase(place);
      // Whoever fences waits for this one and then erases what it has stored.
      if (status.ok() && Fenced(info)) {
        status = FailedPrecondition("its owner was erased while it was encoded");
      }
      ended_.notify_all();
    }
    lock.unlock();
    (*item.on_outcome)({info.key, std::move(status)});
    lock.lock();
  }
}

void VllmEncoder::HoldPrefix(VllmServer& server, const Composition& composition,
                             std::optional<VllmServer::SteadyTime> deadline,
                             HttpCancellation* cancellation) {
  if (composition.blocks.empty() || !composition.blocks.front().exact || !server.kv_ready()) return;
  const BlockSpan& prefix = composition.blocks.front();
  if (prefix.begin != 0 || server.Presence(std::span(&prefix.key, 1))[0]) return;
  EncodeRequest request;
  request.info.key = prefix.key;
  request.info.scope_tag = kPrefixScopeTag;
  request.info.tokens.assign(composition.ids.begin(), composition.ids.begin() + prefix.end);
  std::unique_lock lock(mutex_);
  request.info.epoch = fences_[kPrefixScopeTag];
  const auto place = running_.insert({request.info.scope_tag, request.info.epoch});
  lock.unlock();
  const Status status = Capture(server, request, request.info.tokens, deadline, cancellation);
  if (!status.ok()) spdlog::debug("exact prefix not stored: {}", status.ToString());
  lock.lock();
  running_.erase(place);
  ended_.notify_all();
}

Status VllmEncoder::Fence(std::uint64_t scope_tag, std::uint64_t epoch) {
  std::unique_lock lock(mutex_);
  std::uint64_t& fence = fences_[scope_tag];
  fence = std::max(fence, epoch);
  const auto under_way = [&] {
    return std::any_of(running_.begin(), running_.end(), [&](const Running& running) {
      return running.scope_tag == scope_tag && running.epoch < epoch;
    });
  };
  if (ended_.wait_for(lock, kFenceWait, [&] { return !under_way(); })) return OkStatus();
  return Unavailable("an encoding of this owner has not ended within " +
                     std::to_string(kFenceWait.count()) + " s; look at vLLM's log");
}

Status VllmEncoder::Carry(const EncodeRequest& request) const {
  TokenIds prompt;
  if (request.context != nullptr) prompt = *request.context;
  const TokenIds& own = request.info.tokens;
  prompt.insert(prompt.end(), own.begin(), own.end());
  if (own.empty()) return InvalidArgument("a fact without tokens cannot be encoded");
  if (std::any_of(prompt.begin(), prompt.end(), [](TokenId id) { return id < 0; })) {
    return Unavailable("vLLM could not be asked for token ids; see the message about /tokenize");
  }
  std::string reason = "no vLLM server with KV can be reached";
  for (VllmServer* server : cluster_.Order(request.info.scope_tag)) {
    if (!server->kv_ready()) {
      if (server->has_control()) reason = server->kv_reason();
      continue;
    }
    Status status = Capture(*server, request, prompt);
    if (status.code() != StatusCode::kUnavailable) return status;
    reason = status.message();
  }
  return Unavailable(reason);
}

Status VllmEncoder::Capture(VllmServer& server, const EncodeRequest& request,
                            const TokenIds& prompt, std::optional<VllmServer::SteadyTime> deadline,
                            HttpCancellation* cancellation) const {
  if (prompt.size() >= static_cast<std::size_t>(cluster_.context_tokens())) {
    return InvalidArgument("what is to be encoded, with its context of " +
                           std::to_string(prompt.size()) + " tokens, exceeds the model's " +
                           std::to_string(cluster_.context_tokens()));
  }
  const KvBlockInfo& info = request.info;
  CaptureHistory::Attempt attempt{&server, server.start(), info.key, 0};
  {
    const std::scoped_lock lock(mutex_);
    const auto fence = fences_.find(info.scope_tag);
    if (fence != fences_.end()) attempt.epoch = fence->second;
  }
  INFERSCALE_RETURN_IF_ERROR(history_.MayTry(attempt, std::chrono::steady_clock::now()));
  Status status = CaptureNow(server, request, prompt, deadline, cancellation);
  const StatusCode code = status.code();
  const bool broken_off = code == StatusCode::kCancelled || code == StatusCode::kDeadlineExceeded;
  // Facts of a server that is away are asked for again by a queue that pauses by itself, and that
  // is to go on as soon as the server is back.
  const bool of_queue = code == StatusCode::kUnavailable && info.scope_tag != kPrefixScopeTag;
  if (!broken_off && !of_queue) history_.Ended(attempt, status, std::chrono::steady_clock::now());
  return status;
}

Status VllmEncoder::CaptureNow(VllmServer& server, const EncodeRequest& request,
                               const TokenIds& prompt,
                               std::optional<VllmServer::SteadyTime> deadline,
                               HttpCancellation* cancellation) const {
  const KvBlockInfo& info = request.info;
  TransferRequest transfer;
  transfer.operation = TransferOperation::kCapture;
  transfer.scope_tag = info.scope_tag;
  transfer.epoch = info.epoch;
  transfer.salt =
      cluster_.Salt("encode", std::to_string(info.scope_tag) + " " + std::to_string(info.epoch));
  const auto end = static_cast<std::int32_t>(prompt.size());
  transfer.blocks.push_back(
      {info.key, end - static_cast<std::int32_t>(info.tokens.size()), end, info.saw});
  const json signed_request = cluster_.Sign(&transfer, prompt);
  INFERSCALE_ASSIGN_OR_RETURN(
      const json answer, server.Post("/v1/completions",
                                     {{"model", cluster_.model()},
                                      {"prompt", prompt},
                                      {"max_tokens", 1},
                                      {"temperature", 0},
                                      {"cache_salt", transfer.salt},
                                      {"kv_transfer_params", {{"inferscale", signed_request}}}},
                                     deadline, cancellation));
  const json& said = FieldOf(FieldOf(answer, "kv_transfer_params"), "inferscale");
  const json& reasons = FieldOf(said, "fallback");
  if (reasons.is_object() && !reasons.empty()) return StatusOf(reasons.begin().key(), server);
  if (IntegerOf(said, "captured_blocks", 0) < 1) {
    return Unavailable(server.name() +
                       " did not capture a fact's KV; check that the connector is loaded "
                       "(--kv-transfer-config), and look at vLLM's log");
  }
  // The answer may come before the report of the ranks.
  const auto stored_by = std::chrono::steady_clock::now() + kStoredWait;
  while (!server.Presence(std::span(&info.key, 1))[0]) {
    if (std::chrono::steady_clock::now() >= stored_by) {
      return Unavailable(server.name() + " captured a fact's KV and does not hold it");
    }
    std::this_thread::sleep_for(kStoredPause);
  }
  return OkStatus();
}

}  // namespace inferscale
