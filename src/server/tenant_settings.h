#ifndef INFERSCALE_SERVER_TENANT_SETTINGS_H_
#define INFERSCALE_SERVER_TENANT_SETTINGS_H_

/// \file tenant_settings.h
/// TenantSettings: what a tenant may switch while the server runs. Durable before a setter returns.
/// Thread-safe.

#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>

#include "inferscale/catalog.h"
#include "inferscale/memory_service.h"
#include "inferscale/result.h"

namespace inferscale {

/// "kv", "text", "off".
std::string_view MemoryModeName(MemoryMode mode);
std::optional<MemoryMode> ParseMemoryMode(std::string_view name);

class TenantSettings {
 public:
  /// \param catalog outlives this; keeps the settings
  static Result<std::unique_ptr<TenantSettings>> Load(Catalog& catalog);
  /// How chats of the tenant use memory that do not say; kKv unless set.
  MemoryMode memory_mode(const std::string& tenant) const;
  Status SetMemoryMode(const std::string& tenant, MemoryMode mode);

 private:
  explicit TenantSettings(Catalog& catalog) : catalog_(catalog) {}

  Catalog& catalog_;
  mutable std::mutex mutex_;
  std::map<std::string, MemoryMode> modes_;
};

}  // namespace inferscale

#endif  // INFERSCALE_SERVER_TENANT_SETTINGS_H_
