#ifndef INFERSCALE_ENGINE_VLLM_VLLM_CLUSTER_H_
#define INFERSCALE_ENGINE_VLLM_VLLM_CLUSTER_H_

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include <nlohmann/json.hpp>

#include "connector/transfer_request.h"
#include "engine/vllm/vllm_engine_options.h"
#include "engine/vllm/vllm_server.h"
#include "inferscale/result.h"

namespace inferscale {

/// What KV is of, and how it is stored: the same on all cores.
struct VllmIdentity {
  Fingerprint fingerprint{};
  KvGeometry geometry;
  KvCodec codec = KvCodec::kF16;
};

/// The engine cores that serve one model, and what is the same for all of them. An owner's requests
/// go to one core by rendezvous hashing, and to the next while that one is away. A core whose KV
/// cannot be used, at the start or later, is looked at again in the background, where its rotation
/// is measured and data-parallel ranks that appear later are found. The first connector that
/// answers says what KV is of; a core of another model than that is text. All cores are asked at
/// once, so that one that hangs costs its own time alone. Thread-safe.
class VllmCluster {
 public:
  /// \return the first server's error when none of them answers; kFailedPrecondition when they
  /// serve different models.
  static Result<std::unique_ptr<VllmCluster>> Open(const VllmEngineOptions& options);
  ~VllmCluster();
  /// Begins to look at cores in the background. \param on_usable is called there once, when KV has
  /// become usable that was not when Open() returned. To be called once at most.
  void StartMaintenance(std::function<void()> on_usable = {});
  /// Ends requests under way other than generations, and later ones at once.
  void Stop();

  /// Asks any server that answers.
  Result<nlohmann::json> Ask(std::string_view path, const nlohmann::json& body) const;
  /// The cores, best first for this owner. Those that did not answer of late come last.
  std::vector<VllmServer*> Order(std::uint64_t scope) const;
  /// Where keys are ready, on any core.
  std::vector<KvTier> Presence(std::span<const KvKey> keys) const;
  /// Sends an erasure to every core, and waits until all their ranks have carried it out.
  Status Erase(std::string_view operation, const nlohmann::json& fields);
  KvStoreStats Stats() const;

  /// A cache salt: KV under one is reached under no other.
  std::string Salt(std::string_view purpose, std::string_view text) const;
  /// A signed object for kv_transfer_params; completes `request`.
  nlohmann::json Sign(TransferRequest* request, std::span<const TokenId> prompt) const;
  /// Measures a core's rotation if it is not known, unless that has failed of late, and says
  /// whether its KV is usable now.
  Status Prepare(VllmServer& server);

  const std::string& model() const { return model_; }
  std::int32_t context_tokens() const { return context_tokens_; }
  /// Of texts alone, until a connector has answered.
  const VllmIdentity& identity() const { return *identity_; }
  bool identity_known() const { return identity_ == &learnt_; }
  /// Whether the KV of any core has ever been usable.
  bool usable() const { return usable_; }
  /// Why it was not when Open() returned; empty: it was.
  const std::string& kv_refusal() const { return kv_refusal_; }
  /// Whether KV that is not usable may become so without another set-up of this gateway.
  bool may_become_usable() const;
  TokenId plain_token() const { return plain_token_; }

 private:
  /// One of the URLs.
  struct Site {
    VllmServerOptions options;  ///< of its first core
    std::int32_t next_rank = 1;
    std::string told;  ///< of a rank that does not answer, logged once
  };

  explicit VllmCluster(VllmEngineOptions options) : options_(std::move(options)) {}
  Status AddServers();
  /// Adds ranks whose sockets answer. \return kUnavailable for a socket that does not.
  Status FindRanks();
  std::vector<VllmServer*> Servers() const;
  Status Introduce();
  Status ReadModels();
  /// Takes the first connector's word for what KV is of. \return kFailedPrecondition for another
  /// one that says something else.
  Status Learn(const VllmServer& server, const VllmHello& hello);
  Status Probe(VllmServer& server, VllmHello& hello) const;
  Status AwaitErased(VllmServer& server, std::int64_t plan) const;
  void Maintain(const std::function<void()>& on_usable);

  const VllmEngineOptions options_;
  mutable std::mutex servers_mutex_;
  std::vector<std::unique_ptr<VllmServer>> servers_;  ///< none ever goes
  std::mutex sites_mutex_;
  std::vector<Site> sites_;
  std::string model_;
  std::int32_t context_tokens_ = 0;
  TokenId plain_token_ = 0;
  VllmIdentity of_texts_, learnt_;  ///< each is written once, before identity_ names it
  std::atomic<const VllmIdentity*> identity_{&of_texts_};
  std::atomic<bool> usable_{false};
  std::mutex learning_mutex_;
  std::string kv_refusal_;

  std::mutex mutex_;
  std::condition_variable changed_;
  bool stopping_ = false;
  std::thread maintenance_;
};

/// {"keys": [hexadecimal]} of a control request.
nlohmann::json KeyList(std::span<const KvKey> keys);

}  // namespace inferscale

#endif  // INFERSCALE_ENGINE_VLLM_VLLM_CLUSTER_H_
