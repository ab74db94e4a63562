#include "server/tenant_settings.h"

#include <utility>

#include <nlohmann/json.hpp>

namespace inferscale {
namespace {

constexpr const char* kMetaName = "server.memory_modes";

}  // namespace

std::string_view MemoryModeName(MemoryMode mode) {
  switch (mode) {
    case MemoryMode::kKv:
      return "kv";
    case MemoryMode::kText:
      return "text";
    case MemoryMode::kOff:
      break;
  }
  return "off";
}

std::optional<MemoryMode> ParseMemoryMode(std::string_view name) {
  for (const MemoryMode mode : {MemoryMode::kKv, MemoryMode::kText, MemoryMode::kOff}) {
    if (MemoryModeName(mode) == name) return mode;
  }
  return std::nullopt;
}

Result<std::unique_ptr<TenantSettings>> TenantSettings::Load(Catalog& catalog) {
  std::unique_ptr<TenantSettings> settings(new TenantSettings(catalog));
  INFERSCALE_ASSIGN_OR_RETURN(const std::string text, catalog.GetMeta(kMetaName));
  if (text.empty()) return settings;
  const nlohmann::json stored = nlohmann::json::parse(text, nullptr, false);
  if (!stored.is_object())
    return DataLoss("the stored memory modes of tenants cannot be read: restore a backup");
  for (const auto& [tenant, name] : stored.items()) {
    const std::optional<MemoryMode> mode =
        name.is_string() ? ParseMemoryMode(name.get<std::string>()) : std::nullopt;
    if (mode) settings->modes_[tenant] = *mode;
  }
  return settings;
}

MemoryMode TenantSettings::memory_mode(const std::string& tenant) const {
  const std::scoped_lock lock(mutex_);
  const auto found = modes_.find(tenant);
  return found == modes_.end() ? MemoryMode::kKv : found->second;
}

Status TenantSettings::SetMemoryMode(const std::string& tenant, MemoryMode mode) {
  const std::scoped_lock lock(mutex_);
  std::map<std::string, MemoryMode> changed = modes_;
  changed[tenant] = mode;
  nlohmann::json stored = nlohmann::json::object();
  for (const auto& [name, value] : changed) stored[name] = MemoryModeName(value);
  INFERSCALE_RETURN_IF_ERROR(catalog_.SetMeta(kMetaName, stored.dump()));
  modes_ = std::move(changed);
  return OkStatus();
}

}  // namespace inferscale
