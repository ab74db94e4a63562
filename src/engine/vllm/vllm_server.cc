#include "engine/vllm/vllm_server.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "base/bytes.h"
#include "base/hash.h"

namespace inferscale {
namespace {

using nlohmann::json;

constexpr std::chrono::milliseconds kFirstPause{500}, kLongestPause{15'000};
constexpr std::size_t kMostEventBytes = std::size_t{8} << 20;
/// Keys remembered as ready, some 50 MB.
constexpr std::size_t kMostKnown = 1 << 20;

json KeysOf(std::span<const KvKey> keys) {
  json list = json::array();
  for (const KvKey& key : keys) list.push_back(HexEncode(key.bytes));
  return list;
}

/// A wrong key or model name is the operator's fault, not that of the request: it is kept for
/// later, or goes to another server.
Status StatusOf(const Url& url, const Result<HttpPostResult>& answer) {
  if (!answer.ok() || answer->status == 200) return answer.status();
  Status refusal = RefusalStatus(url, *answer);
  const bool of_server = answer->status == 401 || answer->status == 403 || answer->status == 404;
  return of_server ? Unavailable(refusal.message()) : refusal;
}

}  // namespace

const json& FieldOf(const json& object, const char* name) {
  static const json kNull;
  const auto place = object.is_object() ? object.find(name) : object.end();
  return object.is_object() && place != object.end() ? *place : kNull;
}

std::int64_t IntegerOf(const json& object, const char* name, std::int64_t otherwise) {
  const json& field = FieldOf(object, name);
  if (field.is_number_unsigned()) {
    const auto value = field.get<std::uint64_t>();
    constexpr auto kMost = std::numeric_limits<std::int64_t>::max();
    return value > static_cast<std::uint64_t>(kMost) ? otherwise : static_cast<std::int64_t>(value);
  }
  return field.is_number_integer() ? field.get<std::int64_t>() : otherwise;
}

std::string StringOf(const json& object, const char* name) {
  const json& field = FieldOf(object, name);
  return field.is_string() ? field.get<std::string>() : std::string();
}

bool EventSplitter::Push(std::string_view piece,
                         const std::function<bool(std::string_view)>& on_event) {
  pending_ += piece;
  std::size_t begin = 0;
  for (std::size_t end; (end = pending_.find('\n', begin)) != std::string::npos; begin = end + 1) {
    std::string_view line = std::string_view(pending_).substr(begin, end - begin);
    if (line.ends_with('\r')) line.remove_suffix(1);
    if (!line.starts_with("data:")) continue;  // comments, empty lines
    line.remove_prefix(5);
    if (line.starts_with(' ')) line.remove_prefix(1);
    if (!on_event(line)) return false;
  }
  pending_.erase(0, begin);
  overlong_ = pending_.size() > kMostEventBytes;
  return !overlong_;
}

VllmServer::VllmServer(VllmServerOptions options) : options_(std::move(options)) {
  if (!options_.control_path.empty()) {
    control_ = std::make_unique<ControlClient>(options_.control_path, options_.secret);
  }
}

std::string VllmServer::name() const {
  return options_.url.ToDisplayString() +
         (options_.rank > 0 ? " rank " + std::to_string(options_.rank) : "");
}

std::uint64_t VllmServer::Weight(std::uint64_t scope) const {
  ByteWriter text;
  text.WriteU64(scope);
  text.WriteString(options_.url.ToDisplayString());
  text.WriteU64(static_cast<std::uint64_t>(std::max(0, options_.rank)));
  return Xxh3_64(text.bytes());
}

HttpPost VllmServer::Request(std::string_view path, const json* body) const {
  HttpPost request;
  request.url = options_.url;
  std::string& target = request.url.target;
  while (target.ends_with('/')) target.pop_back();
  target += path;
  // Text from outside may hold broken UTF-8: it must not end the program.
  if (body != nullptr) request.body = body->dump(-1, ' ', false, json::error_handler_t::replace);
  request.bearer_token = options_.api_key;
  request.ca_file = options_.ca_file;
  const bool computes = path == "/v1/completions";
  request.timeout = computes ? options_.timeout : options_.quick_timeout;
  // A rank that is not there could be gone for good, and the server would refuse its number.
  if (options_.rank >= 0 && reachable_) {
    request.headers = {{"X-data-parallel-rank", std::to_string(options_.rank)}};
  }
  return request;
}

void VllmServer::Outcome(const Status& status) const {
  // The caller's doing, which says nothing of the server.
  if (status.code() == StatusCode::kCancelled || status.code() == StatusCode::kDeadlineExceeded) {
    return;
  }
  const std::scoped_lock lock(mutex_);
  if (status.code() != StatusCode::kUnavailable) {
    failures_ = 0;
    retry_at_ = {};
    return;
  }
  const auto pause = std::min(kLongestPause, kFirstPause * (1 << std::min(failures_, 5)));
  ++failures_;
  retry_at_ = std::chrono::steady_clock::now() + pause;
}

bool VllmServer::Available() const {
  const std::scoped_lock lock(mutex_);
  return std::chrono::steady_clock::now() >= retry_at_;
}

Result<json> VllmServer::Read(const HttpPost& request, Result<HttpPostResult> answer) const {
  const Status status = StatusOf(request.url, answer);
  Outcome(status);
  INFERSCALE_RETURN_IF_ERROR(status);
  json object = json::parse(answer->body, nullptr, /*allow_exceptions=*/false);
  if (!object.is_object()) {
    return DataLoss(request.url.ToDisplayString() +
                    " answers with something that is no JSON object: " +
                    ExcerptForMessage(answer->body) + "; check that the URL is vLLM's");
  }
  return object;
}

Result<json> VllmServer::Post(std::string_view path, const json& body,
                              std::optional<SteadyTime> deadline,
                              HttpCancellation* cancellation) const {
  HttpStream stream;
  stream.post = Request(path, &body);
  const SteadyTime end = std::chrono::steady_clock::now() + stream.post.timeout;
  stream.deadline = deadline ? std::min(*deadline, end) : end;
  std::string text;
  stream.on_data = [&](std::string_view piece) {
    text += piece;
    return text.size() <= stream.post.max_response_bytes;
  };
  HttpCancellation own;
  HttpCancellation* const ends = cancellation != nullptr ? cancellation : &own;
  {
    const std::scoped_lock lock(mutex_);
    if (stopped_) return Cancelled("the gateway is stopping");
    posts_.insert(ends);
  }
  Result<HttpPostResult> answer = PostStreaming(stream, *ends);
  {
    const std::scoped_lock lock(mutex_);
    posts_.erase(ends);
  }
  const bool of_caller = cancellation != nullptr && deadline && *deadline <= end;
  if (answer.status().code() == StatusCode::kDeadlineExceeded && !of_caller) {
    answer = Unavailable(answer.status().message() + "; look whether it is overloaded");
  }
  if (answer.ok() && answer->status == 200) answer->body = std::move(text);
  return Read(stream.post, std::move(answer));
}

void VllmServer::Stop() {
  const std::scoped_lock lock(mutex_);
  stopped_ = true;
  for (HttpCancellation* post : posts_) post->Cancel();
}

Result<json> VllmServer::Get(std::string_view path) const {
  const HttpPost request = Request(path, nullptr);
  return Read(request, GetJson(request));
}

Status VllmServer::Stream(std::string_view path, const json& body,
                          std::optional<SteadyTime> deadline, HttpCancellation& cancellation,
                          const std::function<bool(std::string_view)>& on_event) const {
  HttpStream stream;
  stream.post = Request(path, &body);
  stream.post.max_response_bytes = std::size_t{64} << 10;
  stream.deadline = deadline;
  EventSplitter splitter;
  stream.on_data = [&](std::string_view piece) { return splitter.Push(piece, on_event); };
  const Result<HttpPostResult> answer = PostStreaming(stream, cancellation);
  Status status = StatusOf(stream.post.url, answer);
  if (splitter.overlong()) {
    status = DataLoss(stream.post.url.ToDisplayString() +
                      " sends an event without an end; check that the URL is vLLM's");
  }
  Outcome(status);
  return status;
}

Result<json> VllmServer::Control(std::string_view operation, json fields) {
  if (control_ == nullptr) {
    return Unsupported("no control socket is set for " + name() + "; name it with --vllm-control");
  }
  Result<json> answer = control_->Call(operation, std::move(fields));
  const bool reached = answer.ok() || answer.status().code() == StatusCode::kInvalidArgument;
  if (!reachable_.exchange(reached) && reached) MayBeAnew();
  if (!reached) SetKv(false, answer.status().message());
  const json& rotation = answer.ok() ? FieldOf(*answer, "rotation_known") : FieldOf(json(), "");
  if (rotation.is_boolean()) {
    const bool known = rotation.get<bool>();
    // An engine measures it once a start.
    if (rotation_known_.exchange(known) && !known) MayBeAnew();
    if (!known && kv_ready_) {
      SetKv(false, name() + " was started anew and its rotation is not measured yet");
    }
  }
  return answer;
}

Result<VllmHello> VllmServer::Hello() {
  INFERSCALE_ASSIGN_OR_RETURN(const json answer, Control("hello"));
  const auto bad = [&](const char* field) {
    return DataLoss("the control socket of " + name() + " gives no usable " + field +
                    "; use a gateway and a connector of one version");
  };
  if (IntegerOf(answer, "schema", 0) != 1) return bad("schema");
  VllmHello hello;
  const Result<std::vector<std::uint8_t>> bytes = HexDecode(StringOf(answer, "fingerprint"));
  if (!bytes.ok() || bytes->size() != hello.fingerprint.size()) return bad("fingerprint");
  std::copy(bytes->begin(), bytes->end(), hello.fingerprint.begin());
  const Result<KvCodec> codec = ParseKvCodec(StringOf(answer, "codec"));
  if (!codec.ok()) return bad("codec");
  hello.codec = *codec;
  const auto count = [&](const char* field, std::int32_t* value) {
    const std::int64_t number = IntegerOf(answer, field, 0);
    *value = static_cast<std::int32_t>(number);
    return number > 0 && number <= 1 << 20;
  };
  if (!count("layers", &hello.geometry.layers)) return bad("layers");
  if (!count("kv_heads", &hello.geometry.kv_heads)) return bad("kv_heads");
  if (!count("head_dim", &hello.geometry.key_dim)) return bad("head_dim");
  hello.geometry.value_dim = hello.geometry.key_dim;
  hello.refusal = StringOf(answer, "refusal");
  const json& rotation = FieldOf(answer, "rotation_known");
  hello.rotation_known = rotation.is_boolean() && rotation.get<bool>();
  return hello;
}

std::vector<bool> VllmServer::Presence(std::span<const KvKey> keys) {
  std::vector<bool> ready(keys.size(), false);
  if (control_ == nullptr || keys.empty()) return ready;
  const Result<json> answer = reachable_ ? Control("presence", {{"keys", KeysOf(keys)}})
                                         : Result<json>(Unavailable("not reached of late"));
  const json& list = answer.ok() ? FieldOf(*answer, "ready") : FieldOf(json(), "");
  const bool told = list.is_array() && list.size() == keys.size();
  const std::scoped_lock lock(mutex_);
  for (std::size_t i = 0; i < keys.size(); ++i) {
    if (!told) {
      ready[i] = known_.contains(keys[i]);
      continue;
    }
    ready[i] = list[i].is_boolean() && list[i].get<bool>();
    if (known_.size() >= kMostKnown) known_.clear();
    if (ready[i]) {
      known_.insert(keys[i]);
    } else {
      known_.erase(keys[i]);
    }
  }
  return ready;
}

void VllmServer::MayBeAnew() {
  ++start_;
  const std::scoped_lock lock(mutex_);
  failed_probes_ = 0;
  probe_at_ = {};
}

bool VllmServer::MayProbe() const {
  const std::scoped_lock lock(mutex_);
  return std::chrono::steady_clock::now() >= probe_at_;
}

void VllmServer::Probed(bool ok, std::chrono::milliseconds pause) {
  const std::scoped_lock lock(mutex_);
  probe_at_ = {};
  if (!ok)
    probe_at_ = std::chrono::steady_clock::now() + pause * (1 << std::min(failed_probes_, 5));
  failed_probes_ = ok ? 0 : failed_probes_ + 1;
}

std::string VllmServer::kv_reason() const {
  const std::scoped_lock lock(mutex_);
  return kv_reason_;
}

void VllmServer::SetKv(bool ready, std::string reason) {
  const std::scoped_lock lock(mutex_);
  kv_ready_ = ready;
  kv_reason_ = std::move(reason);
}

}  // namespace inferscale
