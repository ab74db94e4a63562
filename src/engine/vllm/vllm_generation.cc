#include "engine/vllm/vllm_generation.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <thread>
#include <utility>
#include <vector>

#include "base/bytes.h"
#include "base/hash.h"
#include "engine/llama/composition_match.h"
#include "engine/vllm/completion.h"

namespace inferscale {
namespace {

using nlohmann::json;
using SteadyClock = std::chrono::steady_clock;

constexpr std::chrono::milliseconds kReportPause{5};
constexpr int kReportTries = 10;
/// Fewer log-probabilities a token are a server's limit, not its vocabulary.
constexpr std::int32_t kLeastVocabulary = 257;

double MillisecondsSince(SteadyClock::time_point start) {
  return std::chrono::duration<double, std::milli>(SteadyClock::now() - start).count();
}

/// Whom a prompt's requests are hashed by.
std::uint64_t OwnerOf(const Composition& composition) {
  return composition.scope_tags.empty() ? Xxh3_64(AsBytes(composition.salt))
                                        : composition.scope_tags.front();
}

/// Tokens from position 0 that a core can inject, if it has the exact prefix, which it can be
/// given.
std::int32_t Covered(VllmServer& server, const Composition& composition) {
  std::vector<KvKey> keys;
  for (const BlockSpan& block : composition.blocks) keys.push_back(block.key);
  const std::vector<bool> ready = server.Presence(keys);
  std::int32_t covered = 0;
  for (std::size_t i = 0; i < keys.size() && (ready[i] || composition.blocks[i].exact); ++i) {
    if (composition.blocks[i].begin != covered) break;
    covered = composition.blocks[i].end;
  }
  return covered;
}

/// The cores to try, in order: among those that answer, first who has the owner's KV.
std::vector<VllmServer*> Candidates(const VllmCluster& cluster, const Composition& composition) {
  std::vector<VllmServer*> order = cluster.Order(OwnerOf(composition));
  if (order.size() < 2 || !composition.inject || composition.blocks.empty()) return order;
  std::vector<std::pair<std::int32_t, VllmServer*>> ranked;
  for (VllmServer* server : order) {
    const bool usable = server->kv_ready() && server->Available();
    ranked.emplace_back(usable ? Covered(*server, composition) : 0, server);
  }
  std::stable_sort(ranked.begin(), ranked.end(),
                   [](const auto& a, const auto& b) { return a.first > b.first; });
  for (std::size_t i = 0; i < ranked.size(); ++i) order[i] = ranked[i].second;
  return order;
}

/// What a request carries beside its prompt.
struct Carried {
  std::string salt;
  json transfer;    ///< null: nothing
  std::string mac;  ///< by which its report is asked for
  std::string reason;
};

/// \param lost the server has just failed to load the facts' KV.
Carried Prepare(const VllmCluster& cluster, const VllmServer& server,
                const Composition& composition, const TokenIds& prompt, bool lost = false) {
  Carried carried;
  const bool inject = composition.inject && !composition.blocks.empty();
  if (!inject || lost || !server.kv_ready()) {
    carried.salt = cluster.Salt("text", composition.salt);
    if (inject) carried.reason = lost ? "evicted" : "not_ready";
    return carried;
  }
  TransferRequest request;
  request.operation = TransferOperation::kInject;
  request.scope_tag = OwnerOf(composition);
  request.salt = cluster.Salt("facts", composition.salt);
  for (const BlockSpan& block : composition.blocks) {
    request.blocks.push_back({block.key, block.begin, block.end, {}});
  }
  json transfer = cluster.Sign(&request, prompt);
  carried.mac = transfer["mac"];
  carried.transfer = {{"inferscale", std::move(transfer)}};
  carried.salt = request.salt;
  return carried;
}

/// What the connector did, by its control socket: 0.24's streams carry no transfer parameters.
json ReportOf(VllmServer& server, const std::string& mac) {
  for (int i = 0; i < kReportTries; ++i) {
    Result<json> answer = server.Control("report", {{"mac", mac}});
    if (!answer.ok()) return {};
    const json& found = FieldOf(*answer, "found");
    if (found.is_boolean() && found.get<bool>()) return *std::move(answer);
    std::this_thread::sleep_for(kReportPause);
  }
  return {};
}

void TakeReport(const json& said, const Composition& composition, std::int64_t cached,
                GenerationReport* report) {
  const std::int64_t most = report->prompt_tokens;
  const std::int64_t injected =
      std::clamp<std::int64_t>(IntegerOf(said, "injected_tokens", 0), 0, most);
  report->injected_tokens = static_cast<std::int32_t>(injected);
  report->reused_tokens = static_cast<std::int32_t>(std::clamp<std::int64_t>(
      std::clamp<std::int64_t>(cached, 0, most) - injected, 0, most - injected));
  report->computed_tokens = report->prompt_tokens - report->injected_tokens - report->reused_tokens;
  const std::int32_t covered = report->injected_tokens + report->reused_tokens;
  for (const BlockSpan& block : composition.blocks) {
    report->injected_blocks += injected > 0 && block.begin < covered ? 1 : 0;
  }
  FallbackCounter fallbacks;
  const json& reasons = FieldOf(said, "fallback");
  if (reasons.is_object()) {
    for (const auto& [reason, count] : reasons.items()) {
      if (count.is_number_integer()) {
        fallbacks.Add(reason.substr(0, 40), static_cast<std::int32_t>(std::clamp<std::int64_t>(
                                                count.get<std::int64_t>(), 0, 1 << 20)));
      }
    }
  }
  report->fallbacks = fallbacks.Take();
}

/// How many log-probabilities a token the server gives: its refusal of too many says so.
Result<std::int32_t> LogprobLimit(const VllmCluster& cluster, const VllmServer& server) {
  const Result<json> answer =
      server.Post("/v1/completions", {{"model", cluster.model()},
                                      {"prompt", TokenIds{cluster.plain_token()}},
                                      {"max_tokens", 1},
                                      {"logprobs", 1 << 30}});
  const std::string message = answer.status().message();
  constexpr std::string_view kBefore = "max allowed: ";
  const std::size_t at = message.find(kBefore);
  std::int32_t limit = 0;
  if (at != std::string::npos) {
    const char* const begin = message.data() + at + kBefore.size();
    std::from_chars(begin, message.data() + message.size(), limit);
  }
  if (limit >= kLeastVocabulary) return limit;
  if (answer.status().retryable()) return answer.status();
  return Unsupported(server.name() +
                     " gives no distribution over its whole vocabulary; start vLLM with "
                     "--max-logprobs -1 to evaluate with it");
}

/// Reads the distribution of one token. \return whether it is whole.
bool ReadDistribution(const json& logprobs, std::int32_t vocabulary, std::vector<float>* values) {
  constexpr float kImpossible = -9999;
  const json& list = FieldOf(logprobs, "top_logprobs");
  if (!list.is_array() || list.size() != 1 || !list[0].is_object()) return false;
  values->assign(static_cast<std::size_t>(vocabulary), kImpossible);
  double sum = 0;
  for (const auto& [name, value] : list[0].items()) {
    const TokenId id = TokenIdOf(name);
    if (id < 0 || id >= vocabulary || !value.is_number()) return false;
    (*values)[static_cast<std::size_t>(id)] = std::max(value.get<float>(), kImpossible);
    sum += std::exp(value.get<double>());
  }
  return std::abs(sum - 1) < 0.01;
}

/// The class of a failure that another core may not have.
bool WorthAnother(const Status& status) {
  return status.code() == StatusCode::kUnavailable || status.code() == StatusCode::kDataLoss;
}

class ForegroundScope {
 public:
  explicit ForegroundScope(VllmServer& server) : server_(server) { ++server_.foreground; }
  ~ForegroundScope() { --server_.foreground; }
  ForegroundScope(const ForegroundScope&) = delete;
  ForegroundScope& operator=(const ForegroundScope&) = delete;

 private:
  VllmServer& server_;
};

}  // namespace

void VllmGeneration::Wait() {
  std::unique_lock lock(mutex_);
  finished_.wait(lock, [&] { return done_; });
}

void VllmGeneration::MarkDone() {
  const std::scoped_lock lock(mutex_);
  done_ = true;
  finished_.notify_all();
}

GenerationReport CarryOut(const VllmCluster& cluster, VllmEncoder* encoder, VllmPrompt& prompt,
                          HttpCancellation& cancellation) {
  const Composition& composition = prompt.composition;
  GenerationReport report;
  report.prompt_tokens = static_cast<std::int32_t>(composition.ids.size());
  report.computed_tokens = report.prompt_tokens;
  const auto on_token = [&](const TokenEvent& event) {
    if (report.ttft_ms == 0) report.ttft_ms = MillisecondsSince(prompt.submitted);
    if (prompt.on_token) prompt.on_token(event);
  };
  const std::vector<VllmServer*> candidates = Candidates(cluster, composition);
  bool lost = false;
  for (std::size_t next = 0; next < candidates.size();) {
    VllmServer* const server = candidates[next];
    Result<json> body = CompletionBody(cluster.model(), composition.ids, prompt.sampling, "",
                                       cluster.context_tokens());
    if (!body.ok()) {
      report.status = body.status();
      break;
    }
    // With one core the prompt's composer has seen to it.
    if (encoder != nullptr && composition.inject && !lost && candidates.size() > 1) {
      encoder->HoldPrefix(*server, composition, prompt.deadline, &cancellation);
    }
    const Carried carried = Prepare(cluster, *server, composition, composition.ids, lost);
    (*body)["cache_salt"] = carried.salt;
    if (!carried.transfer.is_null()) (*body)["kv_transfer_params"] = carried.transfer;
    CompletionReader reader(on_token);
    const ForegroundScope scope(*server);
    Status status = server->Stream("/v1/completions", *body, prompt.deadline, cancellation,
                                   [&](std::string_view data) { return reader.Take(data); });
    if (status.ok()) status = reader.status();
    if (status.ok() && !reader.ended()) {
      status = Unavailable(server->name() +
                           " cut its answer short; look whether it was stopped, and at its log");
    }
    report.status = status;
    report.text = reader.text();
    report.generated = reader.generated();
    report.finish = reader.finish();
    if (status.code() == StatusCode::kCancelled || status.code() == StatusCode::kDeadlineExceeded) {
      report.finish = status.code() == StatusCode::kCancelled ? FinishReason::kCancelled
                                                              : FinishReason::kDeadline;
      report.status = OkStatus();
    } else if (!status.ok()) {
      report.finish = FinishReason::kError;
      if (WorthAnother(status) && !reader.started()) {
        // A load that failed ends the request where vLLM cannot compute it again: text, once.
        lost = !lost && !reader.status().ok() && !carried.transfer.is_null();
        if (!lost) ++next;
        continue;
      }
    }
    const json said = carried.mac.empty() ? json() : ReportOf(*server, carried.mac);
    TakeReport(said, composition, reader.cached_tokens(), &report);
    if (!carried.reason.empty()) {
      report.fallbacks.push_back(
          {carried.reason, static_cast<std::int32_t>(composition.blocks.size())});
    }
    break;
  }
  report.total_ms = MillisecondsSince(prompt.submitted);
  return report;
}

Result<ScoreReport> ScoreContinuation(const VllmCluster& cluster, VllmEncoder* encoder,
                                      const Composition& composition, const TokenIds& continuation,
                                      bool first_distribution) {
  ScoreReport score;
  GenerationReport& report = score.generation;
  report.prompt_tokens = static_cast<std::int32_t>(composition.ids.size());
  report.computed_tokens = report.prompt_tokens;
  const auto start = SteadyClock::now();
  TokenIds prompt = composition.ids;
  const std::vector<VllmServer*> order = Candidates(cluster, composition);
  if (order.empty()) return Unavailable("no vLLM server is there");
  VllmServer& server = *order.front();
  const ForegroundScope scope(server);
  if (encoder != nullptr && composition.inject && order.size() > 1) {
    encoder->HoldPrefix(server, composition, std::nullopt, nullptr);
  }
  std::int32_t vocabulary = 0;
  if (first_distribution) {
    INFERSCALE_ASSIGN_OR_RETURN(vocabulary, LogprobLimit(cluster, server));
  }
  for (const TokenId wanted : continuation) {
    const bool whole = first_distribution && score.logprobs.empty();
    const Carried carried = Prepare(cluster, server, composition, prompt);
    // The log-probability is the one before the choice is narrowed (vLLM's raw_logprobs).
    json body = {{"model", cluster.model()},
                 {"prompt", prompt},
                 {"cache_salt", carried.salt},
                 {"max_tokens", 1},
                 {"temperature", 0},
                 {"repetition_penalty", 1.0},
                 {"allowed_token_ids", TokenIds{wanted}},
                 {"logprobs", whole ? vocabulary : 0},
                 {"return_tokens_as_token_ids", true},
                 {"return_token_ids", true}};
    if (!carried.transfer.is_null()) body["kv_transfer_params"] = carried.transfer;
    INFERSCALE_ASSIGN_OR_RETURN(const json answer, server.Post("/v1/completions", body));
    const json& choices = FieldOf(answer, "choices");
    const json& choice =
        choices.is_array() && !choices.empty() ? choices.front() : FieldOf(json(), "");
    const json& values = FieldOf(FieldOf(choice, "logprobs"), "token_logprobs");
    const json& ids = FieldOf(choice, "token_ids");
    if (!values.is_array() || values.size() != 1 || !values[0].is_number() || !ids.is_array() ||
        ids.size() != 1 || ids[0] != wanted) {
      return DataLoss(server.name() + " gives no log-probability of the token that was asked for");
    }
    if (whole &&
        !ReadDistribution(FieldOf(choice, "logprobs"), vocabulary, &score.first_logprobs)) {
      return DataLoss(server.name() + " gives a distribution that is not whole");
    }
    score.logprobs.push_back(values[0].get<float>());
    if (score.logprobs.size() == 1) {
      report.ttft_ms = MillisecondsSince(start);
      json said = FieldOf(FieldOf(answer, "kv_transfer_params"), "inferscale");
      if (said.is_null() && !carried.mac.empty()) said = ReportOf(server, carried.mac);
      const json& details = FieldOf(FieldOf(answer, "usage"), "prompt_tokens_details");
      TakeReport(said, composition, IntegerOf(details, "cached_tokens", -1), &report);
    }
    prompt.push_back(wanted);
  }
  report.generated = continuation;
  report.total_ms = MillisecondsSince(start);
  return score;
}

}  // namespace inferscale
