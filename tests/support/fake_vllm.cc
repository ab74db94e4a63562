#include "support/fake_vllm.h"

#include <cmath>
#include <cstring>
#include <span>
#include <utility>

#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "base/bytes.h"
#include "base/clock.h"
#include "base/hash.h"
#include "connector/transfer_request.h"

namespace inferscale::testing {
namespace {

using nlohmann::json;

constexpr const char* kSpecials[] = {"<|im_start|>", "<|im_end|>"};

std::string Mac(const std::string& secret, const std::string& text) {
  return HexEncode(HmacSha256(AsBytes(secret), AsBytes(text)));
}

std::string TextOf(TokenId id) {
  return id >= 256 ? kSpecials[id - 256] : std::string(1, static_cast<char>(id));
}

TokenIds IdsOf(std::string_view text) {
  TokenIds ids;
  while (!text.empty()) {
    TokenId id = static_cast<unsigned char>(text.front());
    for (TokenId special = 0; special < 2; ++special) {
      if (text.starts_with(kSpecials[special])) id = 256 + special;
    }
    ids.push_back(id);
    text.remove_prefix(TextOf(id).size());
  }
  return ids;
}

HttpReply Refuse(int status, const std::string& message) {
  return {.status = status, .body = json{{"error", {{"message", message}}}}.dump()};
}

}  // namespace

FakeConnector::FakeConnector(std::filesystem::path path, std::string secret)
    : path(std::move(path)), secret(std::move(secret)) {
  Listen();
}

void FakeConnector::Listen() {
  listener_ = socket(AF_UNIX, SOCK_STREAM, 0);
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  std::strncpy(address.sun_path, path.c_str(), sizeof(address.sun_path) - 1);
  unlink(path.c_str());
  if (bind(listener_, reinterpret_cast<sockaddr*>(&address), sizeof(address)) != 0 ||
      listen(listener_, 16) != 0) {
    return;
  }
  accepting_ = std::thread([this] {
    while (!stopping_) {
      const int accepted = accept(listener_, nullptr, nullptr);
      if (accepted < 0) return;
      const std::scoped_lock lock(mutex);
      sockets_.push_back(accepted);
      threads_.emplace_back([this, accepted] { Serve(accepted); });
    }
  });
}

FakeConnector::~FakeConnector() {
  stopping_ = true;
  shutdown(listener_, SHUT_RDWR);
  close(listener_);
  if (accepting_.joinable()) accepting_.join();
  {
    const std::scoped_lock lock(mutex);
    for (const int accepted : sockets_) shutdown(accepted, SHUT_RDWR);
  }
  for (std::thread& thread : threads_) thread.join();
  for (const int accepted : sockets_) close(accepted);
  unlink(path.c_str());
}

void FakeConnector::Serve(int socket) {
  std::string pending;
  char piece[65536];
  while (true) {
    const ssize_t n = recv(socket, piece, sizeof(piece), 0);
    if (n <= 0) return;
    pending.append(piece, static_cast<std::size_t>(n));
    for (std::size_t end; (end = pending.find('\n')) != std::string::npos;) {
      const json frame = json::parse(pending.substr(0, end));
      pending.erase(0, end + 1);
      const std::string text = frame["body"];
      const std::scoped_lock lock(mutex);
      if (frame["mac"] != Mac(secret, "inferscale control 1\n" + text)) {
        shutdown(socket, SHUT_RDWR);
        return;
      }
      const std::string body = Answer(json::parse(text)).dump();
      const json answer = {
          {"body", body},
          {"mac", Mac(secret, "inferscale answer 1\n" + frame["mac"].get<std::string>() + body)}};
      const std::string line = broken.empty() ? answer.dump() + "\n" : broken;
      send(socket, line.data(), line.size(), MSG_NOSIGNAL);
    }
  }
}

json FakeConnector::Answer(const json& request) {
  const std::string operation = request["operation"];
  json answer = {{"acknowledged", acknowledged}, {"rotation_known", rotation_known}};
  if (operation == "hello") {
    answer.update({{"schema", 1},
                   {"fingerprint", fingerprint},
                   {"codec", codec},
                   {"layers", 2},
                   {"kv_heads", 1},
                   {"head_dim", 4},
                   {"refusal", refusal}});
  } else if (operation == "presence") {
    json list = json::array();
    for (const json& key : request["keys"]) list.push_back(ready.contains(key));
    answer["ready"] = list;
  } else if (operation == "erase") {
    for (const json& key : request["keys"]) ready.erase(key.get<std::string>());
    fences[request["scope"]] = request["epoch"];
    answer["plan"] = ++plan;
  } else if (operation == "erase_scope") {
    fences[request["scope"]] = request["epoch"];
    answer["plan"] = ++plan;
  } else if (operation == "report") {
    const auto found = reports.find(request["mac"]);
    answer = {{"found", found != reports.end()}};
    if (found != reports.end()) answer.update(found->second);
  } else if (operation == "stats") {
    answer.update({{"blocks", ready.size()}, {"bytes", 100 * ready.size()}});
  } else {
    answer = {{"error", "what?"}};
  }
  return answer;
}

void FakeConnector::Step() {
  const std::scoped_lock lock(mutex);
  acknowledged = plan;
}

bool FakeConnector::Holds(const KvKey& key) {
  const std::scoped_lock lock(mutex);
  return ready.contains(HexEncode(key.bytes));
}

json FakeConnector::Take(const json& body) {
  const json& named = body["kv_transfer_params"]["inferscale"];
  const TokenIds prompt = body["prompt"];
  json outcome = {{"injected_tokens", 0}, {"captured_blocks", 0}, {"fallback", json::object()}};
  const auto transfer = OpenTransferRequest(
      {named.value("schema", std::int64_t{0}), named.value("request", ""), named.value("mac", "")},
      prompt, body["cache_salt"].get<std::string>(), AsBytes(secret), NowMs());
  const std::scoped_lock lock(mutex);
  if (!transfer.ok()) {
    const bool unsigned_one = transfer.status().code() == StatusCode::kFailedPrecondition;
    outcome["fallback"][unsigned_one ? "unauthorised" : "malformed"] = 1;
  } else if (transfer->operation == TransferOperation::kProbe) {
    rotation_known = prompt.size() == 1025;
  } else if (transfer->operation == TransferOperation::kCapture && capture_fallback.empty()) {
    for (const TransferBlock& block : transfer->blocks) ready.insert(HexEncode(block.key.bytes));
    outcome["captured_blocks"] = transfer->blocks.size();
  } else if (transfer->operation == TransferOperation::kCapture) {
    outcome["fallback"][capture_fallback] = 1;
  } else {
    std::int32_t covered = 0;
    for (const TransferBlock& block : transfer->blocks) {
      if (block.begin != covered || !ready.contains(HexEncode(block.key.bytes))) break;
      covered = block.end;
    }
    outcome["injected_tokens"] = covered;
  }
  if (named.contains("mac")) reports[named["mac"]] = outcome;
  return {{"inferscale", outcome}};
}

FakeVllm::FakeVllm(FakeConnector* connector)
    : connector_(connector),
      server_(std::make_unique<HttpServer>(
          [this](const HttpExchange& exchange) { return Answer(exchange); })) {}

HttpReply FakeVllm::Answer(const HttpExchange& exchange) {
  {
    const std::scoped_lock lock(mutex);
    if (instead) {
      if (auto reply = instead(exchange)) return *reply;
    }
  }
  const json body = exchange.body.empty() ? json::object() : json::parse(exchange.body);
  const std::scoped_lock lock(mutex);
  authorizations.push_back(exchange.authorization);
  if (exchange.target == "/v1/models") {
    return {.body = json{{"data", {{{"id", model}, {"max_model_len", 4096}}}}}.dump()};
  }
  if (exchange.target == "/tokenize") {
    std::string text;
    if (body.contains("messages")) {
      if (!has_template) return Refuse(400, "no chat template");
      for (const json& message : body["messages"]) {
        text += "<|im_start|>" + message["role"].get<std::string>() + "\n" +
                message["content"].get<std::string>() + "<|im_end|>\n";
      }
      text += "<|im_start|>assistant\n";
    } else {
      text = body["prompt"];
    }
    ++tokenized;
    const TokenIds ids = IdsOf(text);
    json answer = {{"tokens", ids}, {"count", ids.size()}};
    for (const TokenId id : ids) answer["token_strs"].push_back(TextOf(id));
    return {.body = answer.dump(-1, ' ', false, json::error_handler_t::replace)};
  }
  if (exchange.target == "/detokenize") {
    std::string text;
    for (const TokenId id : body["tokens"].get<TokenIds>()) text += TextOf(id);
    return {.body = json{{"prompt", text}}.dump(-1, ' ', false, json::error_handler_t::replace)};
  }
  if (exchange.target == "/v1/completions") {
    completions.push_back(body);
    return Complete(body);
  }
  return Refuse(404, "not found");
}

HttpReply FakeVllm::Complete(const json& body) {
  json said;
  if (connector_ != nullptr) {
    if (body.contains("kv_transfer_params")) said = connector_->Take(body);
    connector_->Step();
  }
  const std::chrono::milliseconds delay(delay_ms.load());
  if (!body.value("stream", false)) {
    if (body.value("logprobs", 0) > max_logprobs) {
      return Refuse(400, "greater than max allowed: " + std::to_string(max_logprobs));
    }
    json choice = {{"text", "f"}, {"finish_reason", "length"}, {"token_ids", {'f'}}};
    if (body.contains("allowed_token_ids")) {
      choice["token_ids"] = body["allowed_token_ids"];
      choice["logprobs"] = {{"token_logprobs", {-0.5}}};
      json& top = choice["logprobs"]["top_logprobs"];
      for (int id = 0; id < body.value("logprobs", 0); ++id) {
        top[0]["token_id:" + std::to_string(id)] = -std::log(max_logprobs);
      }
    }
    return {.body = json{{"choices", {choice}}, {"kv_transfer_params", said}}.dump(),
            .delay = delay};
  }
  std::string events;
  const std::string answer = "fine";
  for (const char letter : answer) {
    const json choice = {{"text", std::string(1, letter)},
                         {"token_ids", {letter}},
                         {"finish_reason", nullptr},
                         {"stop_reason", nullptr}};
    events += "data: " + json{{"choices", {choice}}}.dump() + "\n\n";
  }
  const json end = {
      {"text", ""}, {"token_ids", {257}}, {"finish_reason", "stop"}, {"stop_reason", nullptr}};
  events += "data: " + json{{"choices", {end}}}.dump() + "\n\n";
  events += "data: [DONE]\n\n";
  return {.body = events, .content_type = "text/event-stream", .delay = delay};
}

}  // namespace inferscale::testing
