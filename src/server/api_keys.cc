#include "server/api_keys.h"

#include <algorithm>
#include <cctype>
#include <span>
#include <string_view>
#include <utility>

#include <nlohmann/json.hpp>

#include "base/clock.h"
#include "base/random.h"
#include "base/utf8.h"

namespace inferscale {
namespace {

using nlohmann::json;

constexpr const char* kMetaName = "server.api_keys";
constexpr std::string_view kSecretPrefix = "isk_";
constexpr std::size_t kSecretBytes = 24, kIdBytes = 8, kShownCharacters = 10;
constexpr std::size_t kMaxLabelBytes = 200, kMaxKeys = 10'000;

/// The key of "Authorization: Bearer KEY", "Authorization: Token KEY" or "X-API-Key: KEY"; empty:
/// none.
std::string_view SecretOf(const HttpRequest& request) {
  if (const std::string* header = request.Header("authorization")) {
    const std::string_view value = *header;
    const std::size_t space = value.find(' ');
    std::string scheme(value.substr(0, space));
    for (char& c : scheme) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
    if (space != std::string_view::npos && (scheme == "bearer" || scheme == "token"))
      return TrimWhitespace(value.substr(space + 1));
    return {};
  }
  const std::string* header = request.Header("x-api-key");
  return header == nullptr ? std::string_view() : TrimWhitespace(*header);
}

json ScopeJson(const Scope& scope) {
  return {{"user", scope.user}, {"agent", scope.agent}, {"run", scope.run}, {"app", scope.app}};
}

/// Keys of earlier versions have none.
KeyLimits LimitsOf(const json& item) {
  KeyLimits limits;
  limits.max_body_bytes = item.value("max_body_bytes", std::int64_t{0});
  limits.max_facts = item.value("max_facts", std::int64_t{0});
  limits.max_kv_bytes = item.value("max_kv_bytes", std::int64_t{0});
  return limits;
}

}  // namespace

Result<std::unique_ptr<ApiKeys>> ApiKeys::Load(Catalog& catalog) {
  std::unique_ptr<ApiKeys> keys(new ApiKeys(catalog));
  INFERSCALE_ASSIGN_OR_RETURN(const std::string text, catalog.GetMeta(kMetaName));
  if (text.empty()) return keys;
  const Status corrupt = DataLoss("the stored API keys cannot be read: restore a backup");
  const json stored = json::parse(text, nullptr, false);
  if (!stored.is_array()) return corrupt;
  try {
    for (const json& item : stored) {
      Stored entry;
      ApiKey& key = entry.key;
      key.id = item.at("id");
      key.label = item.at("label");
      key.prefix = item.at("prefix");
      key.principal.key_id = key.id;
      key.principal.tenant = item.at("tenant");
      key.principal.admin = item.at("admin");
      if (item.contains("bound")) {
        const json& bound = item.at("bound");
        Scope scope;
        scope.tenant = key.principal.tenant;
        scope.user = bound.at("user");
        scope.agent = bound.at("agent");
        scope.run = bound.at("run");
        scope.app = bound.at("app");
        key.principal.bound = std::move(scope);
      }
      key.requests_per_minute = item.at("requests_per_minute");
      key.principal.limits = LimitsOf(item);
      key.created_at_ms = item.at("created_at_ms");
      INFERSCALE_ASSIGN_OR_RETURN(const std::vector<std::uint8_t> hash,
                                  HexDecode(item.at("sha256").get<std::string>()));
      if (hash.size() != entry.hash.size()) return corrupt;
      std::copy(hash.begin(), hash.end(), entry.hash.begin());
      entry.allowance = key.requests_per_minute;
      entry.refilled = std::chrono::steady_clock::now();
      keys->keys_.push_back(std::move(entry));
    }
  } catch (const json::exception&) {
    return corrupt;
  }
  return keys;
}

Status ApiKeys::Save() const {
  json stored = json::array();
  for (const Stored& entry : keys_) {
    const ApiKey& key = entry.key;
    json item = {{"id", key.id},
                 {"label", key.label},
                 {"prefix", key.prefix},
                 {"tenant", key.principal.tenant},
                 {"admin", key.principal.admin},
                 {"requests_per_minute", key.requests_per_minute},
                 {"max_body_bytes", key.principal.limits.max_body_bytes},
                 {"max_facts", key.principal.limits.max_facts},
                 {"max_kv_bytes", key.principal.limits.max_kv_bytes},
                 {"created_at_ms", key.created_at_ms},
                 {"sha256", HexEncode(entry.hash)}};
    if (key.principal.bound) item["bound"] = ScopeJson(*key.principal.bound);
    stored.push_back(std::move(item));
  }
  return catalog_.SetMeta(kMetaName, stored.dump());
}

Result<NewApiKey> ApiKeys::Create(ApiKey wanted) {
  if (wanted.label.size() > kMaxLabelBytes || !IsValidUtf8(wanted.label)) {
    return InvalidArgument("'label' must be valid UTF-8 of at most " +
                           std::to_string(kMaxLabelBytes) + " bytes");
  }
  INFERSCALE_ASSIGN_OR_RETURN(wanted.principal.tenant,
                              EntityId(json(wanted.principal.tenant), "tenant"));
  const KeyLimits& limits = wanted.principal.limits;
  if (limits.max_body_bytes < 0 || limits.max_facts < 0 || limits.max_kv_bytes < 0)
    return InvalidArgument("a key's limits must be 0 (none) or more");
  if (wanted.principal.bound) {
    if (!wanted.principal.bound->HasOwner())
      return InvalidArgument("a key bound to an owner needs a user, agent, run or app id");
    if (wanted.principal.admin)
      return InvalidArgument("a key is either bound to one owner or an admin's");
    wanted.principal.bound->tenant = wanted.principal.tenant;
  }
  NewApiKey made;
  made.secret = std::string(kSecretPrefix) + HexEncode(RandomBytes(kSecretBytes));
  made.key = std::move(wanted);
  made.key.id = "key_" + HexEncode(RandomBytes(kIdBytes));
  made.key.prefix = made.secret.substr(0, kShownCharacters);
  made.key.principal.key_id = made.key.id;
  made.key.created_at_ms = NowMs();
  const std::scoped_lock lock(mutex_);
  if (keys_.size() >= kMaxKeys) return ResourceExhausted("too many API keys: revoke some");
  keys_.push_back({made.key, Sha256(made.secret), static_cast<double>(made.key.requests_per_minute),
                   std::chrono::steady_clock::now()});
  const Status saved = Save();
  if (!saved.ok()) {
    keys_.pop_back();
    return saved;
  }
  return made;
}

std::vector<ApiKey> ApiKeys::List(const std::optional<std::string>& tenant) const {
  const std::scoped_lock lock(mutex_);
  std::vector<ApiKey> keys;
  for (const Stored& entry : keys_) {
    if (!tenant || entry.key.principal.tenant == *tenant) keys.push_back(entry.key);
  }
  return keys;
}

Status ApiKeys::Revoke(const std::string& id, const std::optional<std::string>& tenant) {
  const std::scoped_lock lock(mutex_);
  const auto found = std::find_if(keys_.begin(), keys_.end(), [&](const Stored& entry) {
    return entry.key.id == id && (!tenant || entry.key.principal.tenant == *tenant);
  });
  if (found == keys_.end()) return NotFound("no such API key");
  const Stored removed = *found;
  const auto place = keys_.erase(found);
  const Status saved = Save();
  if (!saved.ok()) keys_.insert(place, removed);
  return saved;
}

Result<Principal> ApiKeys::Authenticate(const HttpRequest& request, bool required) {
  const std::string_view secret = SecretOf(request);
  // Clients that insist on a key send any word where none is needed.
  if (!required && !secret.starts_with(kSecretPrefix)) {
    Principal everybody;
    everybody.admin = true;
    return everybody;
  }
  if (secret.empty()) {
    return InvalidArgument(
        "this server needs an API key: send Authorization: Bearer KEY, or X-API-Key: KEY");
  }
  const Sha256Digest hash = Sha256(secret);
  const std::scoped_lock lock(mutex_);
  Stored* match = nullptr;
  // All of them, so that the time does not tell where a key stands.
  for (Stored& entry : keys_) {
    if (ConstantTimeEqual(entry.hash, hash)) match = &entry;
  }
  if (match == nullptr) return NotFound("this API key is unknown or has been revoked");
  const std::int32_t rate = match->key.requests_per_minute;
  if (rate > 0) {
    const auto now = std::chrono::steady_clock::now();
    const std::chrono::duration<double> passed = now - match->refilled;
    match->allowance = std::min<double>(rate, match->allowance + passed.count() * rate / 60.0);
    match->refilled = now;
    if (match->allowance < 1) {
      return ResourceExhausted("this API key may send " + std::to_string(rate) +
                               " requests a minute: try again later");
    }
    match->allowance -= 1;
  }
  return match->key.principal;
}

nlohmann::ordered_json KeyJson(const ApiKey& key) {
  nlohmann::ordered_json json = {{"id", key.id},
                                 {"label", key.label},
                                 {"key_prefix", key.prefix},
                                 {"tenant", key.principal.tenant},
                                 {"admin", key.principal.admin},
                                 {"requests_per_minute", key.requests_per_minute},
                                 {"max_body_bytes", key.principal.limits.max_body_bytes},
                                 {"max_facts", key.principal.limits.max_facts},
                                 {"max_kv_bytes", key.principal.limits.max_kv_bytes},
                                 {"created_at", FormatIso8601(key.created_at_ms)}};
  if (const auto& bound = key.principal.bound) {
    if (!bound->user.empty()) json["user_id"] = bound->user;
    if (!bound->agent.empty()) json["agent_id"] = bound->agent;
    if (!bound->app.empty()) json["app_id"] = bound->app;
    if (!bound->run.empty()) json["run_id"] = bound->run;
  }
  return json;
}

}  // namespace inferscale
