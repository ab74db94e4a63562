#ifndef INFERSCALE_ENGINE_VLLM_VLLM_SERVER_H_
#define INFERSCALE_ENGINE_VLLM_VLLM_SERVER_H_

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <unordered_set>
#include <vector>

#include <nlohmann/json.hpp>

#include "base/http_client.h"
#include "engine/vllm/control_client.h"
#include "inferscale/engine.h"
#include "inferscale/result.h"

namespace inferscale {

struct VllmServerOptions {
  Url url;                   ///< of the server; the API's paths are put behind its own
  std::string api_key;       ///< empty: none
  std::string ca_file;       ///< PEM, of certificates trusted beside the system's; empty: none
  std::string control_path;  ///< empty: none, so no KV
  std::int32_t rank = -1;    ///< data-parallel rank; -1: the server chooses
  std::vector<std::uint8_t> secret;
  std::chrono::milliseconds timeout{120'000};       ///< longest silence of a completion
  std::chrono::milliseconds quick_timeout{15'000};  ///< of any other answer
};

/// What a core's connector says of itself.
struct VllmHello {
  Fingerprint fingerprint{};
  KvGeometry geometry;
  KvCodec codec = KvCodec::kF16;
  std::string refusal;
  bool rotation_known = false;
};

/// One engine core of vLLM: its HTTP API, its control socket, and whether either is to be used now.
/// Thread-safe.
class VllmServer {
 public:
  using SteadyTime = std::chrono::steady_clock::time_point;

  explicit VllmServer(VllmServerOptions options);

  /// \return the answer's JSON object. Statuses as RefusalStatus() and PostJson(); kDataLoss for an
  /// answer that is none; kCancelled after Stop(). \param cancellation of somebody who waits for
  /// it: then a deadline that passes is theirs (kDeadlineExceeded) and says nothing of the server.
  Result<nlohmann::json> Post(std::string_view path, const nlohmann::json& body,
                              std::optional<SteadyTime> deadline = std::nullopt,
                              HttpCancellation* cancellation = nullptr) const;
  Result<nlohmann::json> Get(std::string_view path) const;
  /// An answer of server-sent events. \param on_event gets each event's data; false: hang up.
  Status Stream(std::string_view path, const nlohmann::json& body,
                std::optional<SteadyTime> deadline, HttpCancellation& cancellation,
                const std::function<bool(std::string_view)>& on_event) const;

  /// Ends every Post() under way, and later ones at once.
  void Stop();

  /// false for a while after connections failed, longer each time.
  bool Available() const;

  bool has_control() const { return control_ != nullptr; }
  Result<nlohmann::json> Control(std::string_view operation,
                                 nlohmann::json fields = nlohmann::json::object());
  Result<VllmHello> Hello();
  /// Whether each key is ready. An engine that cannot be reached still counts as having what it had
  /// when it last answered: its files may come back with it. One that did not answer is not asked
  /// again before a Hello() reaches it, so that nobody waits for one that hangs.
  std::vector<bool> Presence(std::span<const KvKey> keys);

  /// Whether facts may be captured and injected there, and if not, why.
  bool kv_ready() const { return kv_ready_; }
  std::string kv_reason() const;
  void SetKv(bool ready, std::string reason);
  bool reachable() const { return reachable_; }  ///< by its control socket, when last asked
  /// Goes up when the core may have been started anew: what was learnt of it does not hold any
  /// more.
  std::uint64_t start() const { return start_; }
  /// false for a while after a probe failed, longer each time.
  bool MayProbe() const;
  void Probed(bool ok, std::chrono::milliseconds pause);

  std::string name() const;  ///< for messages
  std::uint64_t Weight(std::uint64_t scope) const;

  std::atomic<std::int32_t> foreground{0};  ///< generations under way

 private:
  HttpPost Request(std::string_view path, const nlohmann::json* body) const;
  Result<nlohmann::json> Read(const HttpPost& request, Result<HttpPostResult> answer) const;
  void Outcome(const Status& status) const;
  void MayBeAnew();

  const VllmServerOptions options_;
  std::unique_ptr<ControlClient> control_;
  std::atomic<bool> kv_ready_{false}, reachable_{false}, rotation_known_{false};
  std::atomic<std::uint64_t> start_{0};
  mutable std::mutex mutex_;
  mutable std::int32_t failures_ = 0;
  mutable SteadyTime retry_at_{};
  std::int32_t failed_probes_ = 0;
  SteadyTime probe_at_{};
  mutable std::set<HttpCancellation*> posts_;  ///< under way
  bool stopped_ = false;
  std::string kv_reason_;
  std::unordered_set<KvKey> known_;  ///< keys that were ready when last asked for
};

/// Cuts server-sent events out of pieces of a stream. Not thread-safe.
class EventSplitter {
 public:
  /// Calls `on_event` with the data of each event that is complete. false: it has returned false,
  /// or a line is longer than any answer's.
  bool Push(std::string_view piece, const std::function<bool(std::string_view)>& on_event);
  bool overlong() const { return overlong_; }

 private:
  std::string pending_;
  bool overlong_ = false;
};

/// A field of a JSON object, or null: of any type, for a key that is absent or an object that is
/// none.
const nlohmann::json& FieldOf(const nlohmann::json& object, const char* name);
std::int64_t IntegerOf(const nlohmann::json& object, const char* name, std::int64_t otherwise);
std::string StringOf(const nlohmann::json& object, const char* name);

}  // namespace inferscale

#endif  // INFERSCALE_ENGINE_VLLM_VLLM_SERVER_H_
