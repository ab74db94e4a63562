#include "engine/vllm/vllm_cluster.h"

#include <algorithm>
#include <filesystem>
#include <map>
#include <system_error>
#include <utility>

#include <spdlog/spdlog.h>

#include "base/bytes.h"
#include "base/clock.h"
#include "base/hash.h"
#include "base/random.h"

namespace inferscale {
namespace {

using nlohmann::json;

/// A request may wait this long in vLLM's queue before the connector checks its signature.
constexpr TimeMs kSignedForMs = 10 * 60'000;
/// Positions that the connector reads for its measurement: 0, 1, 4, … 1024.
constexpr std::int32_t kProbeTokens = 1025;
constexpr std::chrono::milliseconds kPollPause{20}, kMostWait{20'000};
constexpr std::int32_t kMostRanks = 1024;
/// Looks at all cores, also those that were well, every so many looks at the others.
constexpr std::int32_t kLookAtAll = 4;

std::string WithoutVersion(std::string target) {
  while (target.ends_with('/')) target.pop_back();
  if (target.ends_with("/v1")) target.resize(target.size() - 3);
  return target.empty() ? "/" : target;
}

json OneToken(const std::string& model, json prompt, const std::string& salt) {
  return {{"model", model},
          {"prompt", std::move(prompt)},
          {"max_tokens", 1},
          {"temperature", 0},
          {"cache_salt", salt}};
}

/// Calls `call` with each number below `count`, all at the same time.
template <typename Call>
void AtOnce(std::size_t count, const Call& call) {
  std::vector<std::jthread> threads;
  for (std::size_t i = 1; i < count; ++i) {
    try {
      threads.emplace_back([&call, i] { call(i); });
    } catch (const std::system_error&) {  // no thread to be had
      call(i);
    }
  }
  if (count > 0) call(0);
}

}  // namespace

json KeyList(std::span<const KvKey> keys) {
  json list = json::array();
  for (const KvKey& key : keys) list.push_back(HexEncode(key.bytes));
  return {{"keys", std::move(list)}};
}

Status VllmCluster::AddServers() {
  if (options_.urls.empty()) {
    return InvalidArgument("no server is named; give vLLM's address with --vllm-url");
  }
  if (!options_.control_paths.empty() && options_.control_paths.size() != options_.urls.size()) {
    return InvalidArgument("there are " + std::to_string(options_.urls.size()) + " URLs and " +
                           std::to_string(options_.control_paths.size()) +
                           " control sockets; --vllm-control takes one for each --vllm-url");
  }
  if (!options_.secret.empty() && options_.secret.size() < 16) {
    return InvalidArgument("the secret shared with vLLM has less than 16 bytes");
  }
  for (std::size_t i = 0; i < options_.urls.size(); ++i) {
    Result<Url> url = ParseUrl(options_.urls[i]);
    if (!url.ok()) return url.status().WithContext("--vllm-url");
    VllmServerOptions server;
    server.url = *url;
    server.url.target = WithoutVersion(url->target);
    server.api_key = options_.api_key;
    server.ca_file = options_.ca_file;
    server.secret = options_.secret;
    server.timeout = options_.timeout;
    server.quick_timeout = options_.quick_timeout;
    const bool kv = !options_.secret.empty() && !options_.force_text;
    if (kv && !options_.control_paths.empty()) server.control_path = options_.control_paths[i];
    // Also a server of one rank knows number 0; of one with more, not all sockets may be there yet.
    if (!server.control_path.empty()) server.rank = 0;
    servers_.push_back(std::make_unique<VllmServer>(server));
    if (!server.control_path.empty()) sites_.push_back({std::move(server), 1, ""});
  }
  return OkStatus();
}

Status VllmCluster::FindRanks() {
  const std::scoped_lock lock(sites_mutex_);
  Status silent;
  for (Site& site : sites_) {
    for (; site.next_rank < kMostRanks; ++site.next_rank) {
      VllmServerOptions options = site.options;
      options.rank = site.next_rank;
      options.control_path += "-" + std::to_string(site.next_rank);
      const std::vector<std::string>& named = options_.control_paths;
      std::error_code ignored;
      if (!std::filesystem::exists(options.control_path, ignored) ||
          std::find(named.begin(), named.end(), options.control_path) != named.end()) {
        break;
      }
      auto server = std::make_unique<VllmServer>(options);
      const Result<VllmHello> hello = server->Hello();
      if (!hello.ok()) {
        silent = Unavailable(
            "a data-parallel rank of " + options.url.ToDisplayString() +
            " does not answer, so that nothing is erased there: " + hello.status().message() +
            "; if the server has fewer ranks now, remove that socket and the rank's files of KV");
        if (site.told != silent.message()) spdlog::warn("vLLM: {}", silent.message());
        site.told = silent.message();
        break;
      }
      site.told.clear();
      spdlog::info("vLLM: {} found", server->name());
      const std::scoped_lock servers_lock(servers_mutex_);
      servers_.push_back(std::move(server));
    }
  }
  return silent;
}

std::vector<VllmServer*> VllmCluster::Servers() const {
  std::vector<VllmServer*> servers;
  const std::scoped_lock lock(servers_mutex_);
  for (const auto& server : servers_) servers.push_back(server.get());
  return servers;
}

Status VllmCluster::ReadModels() {
  Status first;
  for (const auto& server : servers_) {
    const Result<json> answer = server->Get("/v1/models");
    if (!answer.ok()) {
      if (first.ok()) first = answer.status();
      spdlog::warn("vLLM: {}", answer.status().ToString());
      continue;
    }
    const json& list = FieldOf(*answer, "data");
    // No copy: those of deeply nested JSON recurse.
    const json& model = list.is_array() && !list.empty() ? list.front() : FieldOf(json(), "");
    const std::string id = StringOf(model, "id");
    const std::int64_t length = IntegerOf(model, "max_model_len", 0);
    if (id.empty() || length < 2 || length > 1 << 30) {
      return DataLoss(server->name() +
                      "/v1/models names no model with its length; check that the URL is vLLM's");
    }
    if (!model_.empty() && id != model_) {
      return FailedPrecondition(server->name() + " serves " + id + ", another one " + model_ +
                                "; all servers of --vllm-url must serve one model");
    }
    model_ = id;
    const auto tokens = static_cast<std::int32_t>(length);
    context_tokens_ = context_tokens_ == 0 ? tokens : std::min(context_tokens_, tokens);
  }
  return model_.empty() ? first : OkStatus();
}

Status VllmCluster::Introduce() {
  INFERSCALE_RETURN_IF_ERROR(ReadModels());
  const Status ignored = FindRanks();  // has logged it
  // Any token that is an ordinary one.
  INFERSCALE_ASSIGN_OR_RETURN(
      const json tokens,
      Ask("/tokenize", {{"model", model_}, {"prompt", " the"}, {"add_special_tokens", false}}));
  const json& ids = FieldOf(tokens, "tokens");
  if (ids.is_array() && !ids.empty() && ids.back().is_number_unsigned() &&
      ids.back().get<std::uint64_t>() < 1u << 30) {
    plain_token_ = ids.back().get<TokenId>();
  }
  of_texts_.fingerprint = Sha256("vLLM as text\n" + model_);
  for (VllmServer* const server : Servers()) {
    if (!server->has_control()) continue;
    const Result<VllmHello> hello = server->Hello();
    Status status = hello.status();
    if (status.ok()) {
      // Told at the start, two models are a mistake; later, one of them is being replaced.
      INFERSCALE_RETURN_IF_ERROR(Learn(*server, *hello));
      status = Prepare(*server);
    }
    if (status.ok()) {
      usable_ = true;
    } else {
      kv_refusal_ = status.message();
      spdlog::warn("vLLM: {}", kv_refusal_);
    }
  }
  if (usable_) {
    kv_refusal_.clear();
  } else if (options_.force_text) {
    kv_refusal_ = "facts are served as text by request";
  } else if (!may_become_usable()) {
    kv_refusal_ =
        "no control socket or no secret is set: name both with --vllm-control and "
        "--vllm-secret-file";
  }
  return OkStatus();
}

bool VllmCluster::may_become_usable() const {
  const std::vector<VllmServer*> servers = Servers();
  return std::any_of(servers.begin(), servers.end(),
                     [](const VllmServer* server) { return server->has_control(); });
}

Status VllmCluster::Learn(const VllmServer& server, const VllmHello& hello) {
  const std::scoped_lock lock(learning_mutex_);
  if (!identity_known()) {
    learnt_ = {hello.fingerprint, hello.geometry, hello.codec};
    identity_ = &learnt_;
    return OkStatus();
  }
  if (hello.fingerprint != learnt_.fingerprint) {
    return FailedPrecondition(
        server.name() +
        " has another model, type or configuration than the first server, or than when this "
        "gateway started; all servers of --vllm-url must be the same, and after a change of model "
        "the gateway is started anew");
  }
  if (hello.codec != learnt_.codec) {
    return FailedPrecondition(
        server.name() +
        " stores KV in another codec than the first server, or than when this gateway started; set "
        "one codec in all kv_connector_extra_config, and after a change start the gateway anew");
  }
  return OkStatus();
}

Result<std::unique_ptr<VllmCluster>> VllmCluster::Open(const VllmEngineOptions& options) {
  std::unique_ptr<VllmCluster> cluster(new VllmCluster(options));
  INFERSCALE_RETURN_IF_ERROR(cluster->AddServers());
  INFERSCALE_RETURN_IF_ERROR(cluster->Introduce());
  return cluster;
}

void VllmCluster::StartMaintenance(std::function<void()> on_usable) {
  if (!may_become_usable()) return;
  maintenance_ = std::thread([this, told = std::move(on_usable)] { Maintain(told); });
}

VllmCluster::~VllmCluster() {
  {
    const std::scoped_lock lock(mutex_);
    stopping_ = true;
  }
  changed_.notify_all();
  Stop();
  if (maintenance_.joinable()) maintenance_.join();
}

void VllmCluster::Stop() {
  for (VllmServer* const server : Servers()) server->Stop();
}

void VllmCluster::Maintain(const std::function<void()>& on_usable) {
  std::map<const VllmServer*, std::string> told;  // why KV is not usable, as the log says already
  for (VllmServer* const server : Servers()) told[server] = server->kv_reason();
  for (std::int32_t look = 1;; ++look) {
    {
      std::unique_lock lock(mutex_);
      if (changed_.wait_for(lock, options_.recheck, [&] { return stopping_; })) return;
    }
    const Status ignored = FindRanks();  // has logged it
    for (VllmServer* const server : Servers()) {
      if (!server->has_control() || (server->kv_ready() && look % kLookAtAll != 0)) continue;
      const bool was_ready = server->kv_ready();
      const Status status = Prepare(*server);
      std::string& reason = told[server];
      if (!status.ok()) {
        if (reason != status.message()) spdlog::warn("vLLM: {}", status.message());
        reason = status.message();
        continue;
      }
      if (!was_ready) spdlog::info("vLLM: {} serves KV", server->name());
      reason.clear();
      if (usable_.exchange(true)) continue;
      spdlog::info("vLLM: facts are served as KV from now on");
      if (on_usable) on_usable();
    }
  }
}

Status VllmCluster::Prepare(VllmServer& server) {
  Status status = [&]() -> Status {
    INFERSCALE_ASSIGN_OR_RETURN(VllmHello hello, server.Hello());
    INFERSCALE_RETURN_IF_ERROR(Learn(server, hello));
    if (hello.refusal.empty() && !hello.rotation_known) {
      // A probe is a long prompt: an engine that cannot carry one out is not given one after the
      // other.
      if (!server.MayProbe()) return Unavailable(server.kv_reason());
      const Status probed = Probe(server, hello);
      server.Probed(probed.ok(), options_.recheck);
      INFERSCALE_RETURN_IF_ERROR(probed);
    }
    if (!hello.refusal.empty()) return Unsupported(server.name() + ": " + hello.refusal);
    return OkStatus();
  }();
  server.SetKv(status.ok(), status.message());
  return status;
}

Status VllmCluster::Probe(VllmServer& server, VllmHello& hello) const {
  if (context_tokens_ <= kProbeTokens) {
    return Unsupported("a context of " + std::to_string(context_tokens_) +
                       " tokens is too short to measure the model's rotation in; raise "
                       "--max-model-len above " +
                       std::to_string(kProbeTokens));
  }
  TransferRequest probe;
  probe.operation = TransferOperation::kProbe;
  probe.salt = Salt("probe", NewUuid());
  const TokenIds prompt(kProbeTokens, plain_token_);
  json body = OneToken(model_, prompt, probe.salt);
  body["kv_transfer_params"] = {{"inferscale", Sign(&probe, prompt)}};
  INFERSCALE_ASSIGN_OR_RETURN(const json answer, server.Post("/v1/completions", body));
  const json& said = FieldOf(FieldOf(answer, "kv_transfer_params"), "inferscale");
  if (!FieldOf(FieldOf(said, "fallback"), "outside_window").is_null()) {
    return Unavailable(server.name() + ": the model's sliding window holds a prompt of " +
                       std::to_string(kProbeTokens) +
                       " tokens, which measures its rotation, in one pass alone; set vLLM's "
                       "--max-num-batched-tokens to that or more, and if it is, more for the "
                       "requests beside it");
  }
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(5);
  while (hello.refusal.empty() && !hello.rotation_known) {
    if (std::chrono::steady_clock::now() >= deadline) {
      return Unavailable(server.name() +
                         " did not measure its rotation; look at vLLM's log, and whether both "
                         "sides have the same secret");
    }
    std::this_thread::sleep_for(kPollPause);
    INFERSCALE_ASSIGN_OR_RETURN(hello, server.Hello());
  }
  return OkStatus();
}

Result<json> VllmCluster::Ask(std::string_view path, const json& body) const {
  Status last;
  for (const bool available : {true, false}) {  // those that failed of late only if no other does
    for (VllmServer* const server : Servers()) {
      if (server->Available() != available) continue;
      Result<json> answer = server->Post(path, body);
      if (answer.ok() || !answer.status().retryable()) return answer;
      last = answer.status();
    }
    // One that has failed a moment ago was just tried.
    if (!last.ok()) return last;
  }
  return Unavailable("no vLLM server is there");
}

std::vector<VllmServer*> VllmCluster::Order(std::uint64_t scope) const {
  std::vector<VllmServer*> order = Servers();
  const auto rank = [&](const VllmServer* server) {
    return std::make_pair(server->Available(), server->Weight(scope));
  };
  std::vector<std::pair<std::pair<bool, std::uint64_t>, VllmServer*>> ranked;
  for (VllmServer* server : order) ranked.emplace_back(rank(server), server);
  std::sort(ranked.begin(), ranked.end(),
            [](const auto& a, const auto& b) { return a.first > b.first; });
  for (std::size_t i = 0; i < ranked.size(); ++i) order[i] = ranked[i].second;
  return order;
}

std::vector<KvTier> VllmCluster::Presence(std::span<const KvKey> keys) const {
  std::vector<KvTier> tiers(keys.size(), KvTier::kNone);
  const std::vector<VllmServer*> servers = Servers();
  std::vector<std::vector<bool>> ready(servers.size());
  AtOnce(servers.size(), [&](std::size_t at) { ready[at] = servers[at]->Presence(keys); });
  const bool any_reachable = std::any_of(servers.begin(), servers.end(),
                                         [](const VllmServer* s) { return s->reachable(); });
  for (std::size_t at = 0; at < servers.size(); ++at) {
    // While others can take over, what a core that is away holds must be made there again.
    if (!servers[at]->reachable() && any_reachable) continue;
    for (std::size_t i = 0; i < keys.size(); ++i) {
      if (ready[at][i]) tiers[i] = KvTier::kHost;
    }
  }
  return tiers;
}

Status VllmCluster::AwaitErased(VllmServer& server, std::int64_t plan) const {
  const auto deadline = std::chrono::steady_clock::now() + kMostWait;
  while (true) {
    INFERSCALE_ASSIGN_OR_RETURN(const json answer, server.Control("hello"));
    if (IntegerOf(answer, "acknowledged", -1) >= plan) return OkStatus();
    if (std::chrono::steady_clock::now() >= deadline) {
      return Unavailable(server.name() + " has not removed erased KV from all ranks within " +
                         std::to_string(kMostWait.count() / 1000) + " s; look at vLLM's log");
    }
    // Ranks are told with a step, and an idle engine makes none.
    if (server.foreground > 0) {
      std::this_thread::sleep_for(kPollPause);
      continue;
    }
    const Result<json> step = server.Post(
        "/v1/completions", OneToken(model_, json::array({plain_token_}), Salt("step", NewUuid())),
        deadline);
    if (!step.ok()) return step.status();
  }
}

Status VllmCluster::Erase(std::string_view operation, const json& fields) {
  Status status = FindRanks();
  const std::vector<VllmServer*> servers = Servers();
  std::vector<Status> done(servers.size());
  AtOnce(servers.size(), [&](std::size_t at) {
    VllmServer& server = *servers[at];
    if (!server.has_control()) return;
    const Result<json> answer = server.Control(operation, fields);
    done[at] = answer.ok() ? AwaitErased(server, IntegerOf(*answer, "plan", 0)) : answer.status();
  });
  for (const Status& one : done) {
    if (status.ok()) status = one;
  }
  return status;
}

KvStoreStats VllmCluster::Stats() const {
  const std::vector<VllmServer*> servers = Servers();
  std::vector<json> answers(servers.size());
  AtOnce(servers.size(), [&](std::size_t at) {
    if (!servers[at]->has_control() || !servers[at]->reachable()) return;
    Result<json> answer = servers[at]->Control("stats");
    if (answer.ok()) answers[at] = *std::move(answer);
  });
  KvStoreStats stats;
  for (const json& answer : answers) {
    stats.file_blocks += IntegerOf(answer, "blocks", 0);
    stats.file_bytes += IntegerOf(answer, "bytes", 0);
    stats.pinned_blocks += IntegerOf(answer, "pins", 0);
    stats.evictions_file += IntegerOf(answer, "evictions", 0);
    stats.corrupt += IntegerOf(answer, "load_failures", 0);
  }
  return stats;
}

std::string VllmCluster::Salt(std::string_view purpose, std::string_view text) const {
  ByteWriter message;
  message.WriteString("inferscale salt 1");
  message.WriteString(purpose);
  message.WriteBytes(identity().fingerprint);
  message.WriteString(text);
  return HexEncode(HmacSha256(options_.secret, message.bytes()));
}

json VllmCluster::Sign(TransferRequest* request, std::span<const TokenId> prompt) const {
  request->expires_ms = NowMs() + kSignedForMs;
  const CarriedTransfer carried = SignTransferRequest(*request, prompt, options_.secret);
  return {{"schema", carried.schema}, {"request", carried.request}, {"mac", carried.mac}};
}

}  // namespace inferscale
