#ifndef INFERSCALE_ENGINE_VLLM_VLLM_CLUSTER_H_
#define INFERSCALE_ENGINE_VLLM_VLLM_CLUSTER_H_

#include <condition_variable>
#include <cstdint>
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

/// The engine cores that serve one model, and what is the same for all of them. An owner's requests
/// go to one core by rendezvous hashing, and to the next while that one is away. A core that was
/// started anew has its rotation measured in the background, and data-parallel ranks that appear
/// later are found there. All cores are asked at once, so that one that hangs costs its own time
/// alone. Thread-safe.
class VllmCluster {
 public:
  /// \return the first server's error when none of them answers; kFailedPrecondition when they
  /// serve different models.
  static Result<std::unique_ptr<VllmCluster>> Open(const VllmEngineOptions& options);
  ~VllmCluster();
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
  /// Measures a core's rotation if it is not known, and says whether its KV is usable now.
  Status Prepare(VllmServer& server) const;

  const std::string& model() const { return model_; }
  std::int32_t context_tokens() const { return context_tokens_; }
  const Fingerprint& fingerprint() const { return fingerprint_; }
  const KvGeometry& geometry() const { return geometry_; }
  KvCodec codec() const { return codec_; }
  /// Empty: facts are served as KV.
  const std::string& kv_refusal() const { return kv_refusal_; }
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
  Status AwaitErased(VllmServer& server, std::int64_t plan) const;
  void Maintain();

  const VllmEngineOptions options_;
  mutable std::mutex servers_mutex_;
  std::vector<std::unique_ptr<VllmServer>> servers_;  ///< none ever goes
  std::mutex sites_mutex_;
  std::vector<Site> sites_;
  std::string model_;
  std::int32_t context_tokens_ = 0;
  TokenId plain_token_ = 0;
  Fingerprint fingerprint_{};
  KvGeometry geometry_;
  KvCodec codec_ = KvCodec::kF16;
  std::string kv_refusal_;
  bool knows_fingerprint_ = false;

  std::mutex mutex_;
  std::condition_variable changed_;
  bool stopping_ = false;
  std::thread maintenance_;
};

/// {"keys": [hexadecimal]} of a control request.
nlohmann::json KeyList(std::span<const KvKey> keys);

}  // namespace inferscale

#endif  // INFERSCALE_ENGINE_VLLM_VLLM_CLUSTER_H_
