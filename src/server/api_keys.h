#ifndef INFERSCALE_SERVER_API_KEYS_H_
#define INFERSCALE_SERVER_API_KEYS_H_

/// \file api_keys.h
/// ApiKeys: who may ask. Guarantees: a key itself is stored nowhere, only its SHA-256; what is
/// looked up takes the same time whatever the key; an answered revocation holds for every later
/// call and after a restart. Thread-safe.

#include <chrono>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "base/hash.h"
#include "inferscale/catalog.h"
#include "server/api.h"

namespace inferscale {

struct ApiKey {
  std::string id;      ///< names the key in lists and logs, opens nothing
  std::string label;   ///< what its owner calls it
  std::string prefix;  ///< the key's first characters, to recognise it by
  Principal principal;
  std::int32_t requests_per_minute = 0;  ///< 0: unlimited
  TimeMs created_at_ms = 0;
};

struct NewApiKey {
  ApiKey key;
  std::string secret;  ///< shown once
};

class ApiKeys {
 public:
  /// \param catalog outlives this; keeps the hashes
  static Result<std::unique_ptr<ApiKeys>> Load(Catalog& catalog);

  /// Makes a key with the label, principal, limits and rate of `wanted`.
  Result<NewApiKey> Create(ApiKey wanted);
  /// Keys of a tenant; none named: all. Oldest first.
  std::vector<ApiKey> List(const std::optional<std::string>& tenant) const;
  /// kNotFound, also for a key of another tenant than the one named.
  Status Revoke(const std::string& id, const std::optional<std::string>& tenant);

  /// \param required false: a call without one of our keys comes from the default tenant's admin.
  /// kInvalidArgument: no key; kNotFound: an unknown one; kResourceExhausted: over its rate.
  Result<Principal> Authenticate(const HttpRequest& request, bool required);

 private:
  struct Stored {
    ApiKey key;
    Sha256Digest hash{};
    double allowance = 0;  // calls that may come now
    std::chrono::steady_clock::time_point refilled;
  };
  explicit ApiKeys(Catalog& catalog) : catalog_(catalog) {}
  Status Save() const;

  Catalog& catalog_;
  mutable std::mutex mutex_;
  std::vector<Stored> keys_;
};

/// A key as it is shown, without its secret; only the ids of its owner that it has.
nlohmann::ordered_json KeyJson(const ApiKey& key);

}  // namespace inferscale

#endif  // INFERSCALE_SERVER_API_KEYS_H_
