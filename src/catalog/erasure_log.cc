#include "catalog/erasure_log.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <optional>
#include <set>
#include <utility>

#include <nlohmann/json.hpp>

#include "base/files.h"
#include "base/hash.h"
#include "base/random.h"

namespace inferscale::catalog {
namespace {

using nlohmann::ordered_json;

constexpr std::size_t kMaxLogBytes = std::size_t{1} << 30;
constexpr std::size_t kHashBytes = 16;
constexpr std::array<std::pair<ErasureEntry::Kind, const char*>, 4> kKinds = {{
    {ErasureEntry::Kind::kDeleteFact, "delete_fact"},
    {ErasureEntry::Kind::kForgetFact, "forget_fact"},
    {ErasureEntry::Kind::kDeleteScope, "delete_owner"},
    {ErasureEntry::Kind::kForgetScope, "forget_owner"},
}};

bool IsOfFact(ErasureEntry::Kind kind) {
  return kind == ErasureEntry::Kind::kDeleteFact || kind == ErasureEntry::Kind::kForgetFact;
}

std::string LineOf(const ErasureEntry& entry) {
  ordered_json line = {{"id", entry.id.empty() ? NewUuid() : entry.id}, {"at", entry.at_ms}};
  for (const auto& [kind, name] : kKinds) {
    if (kind == entry.kind) line["kind"] = name;
  }
  if (IsOfFact(entry.kind)) {
    line["fact"] = entry.fact_hash;
    if (!entry.turns.empty()) line["turns"] = entry.turns;
  } else {
    line["owner"] = entry.scope_tag;
  }
  return line.dump() + "\n";
}

std::optional<ErasureEntry> ParseLine(std::string_view text) {
  const ordered_json line = ordered_json::parse(text, nullptr, false);
  if (!line.is_object()) return std::nullopt;
  try {
    ErasureEntry entry;
    entry.id = line.at("id").get<std::string>();
    entry.at_ms = line.at("at").get<TimeMs>();
    const std::string name = line.at("kind").get<std::string>();
    bool known = false;
    for (const auto& [kind, kind_name] : kKinds) {
      if (name != kind_name) continue;
      entry.kind = kind;
      known = true;
    }
    if (!known || entry.id.empty()) return std::nullopt;
    if (IsOfFact(entry.kind)) {
      entry.fact_hash = line.at("fact").get<std::string>();
      if (line.contains("turns")) entry.turns = line.at("turns").get<std::vector<TurnId>>();
    } else {
      entry.scope_tag = line.at("owner").get<std::uint64_t>();
    }
    return entry;
  } catch (const ordered_json::exception&) {
    return std::nullopt;
  }
}

/// Where the last whole line ends.
std::size_t WholeLines(std::string_view text) {
  const std::size_t last = text.rfind('\n');
  return last == std::string_view::npos ? 0 : last + 1;
}

Result<std::string> ReadLog(const std::filesystem::path& file) {
  Result<std::string> text = ReadTextFile(file, kMaxLogBytes);
  if (!text.ok() && text.status().code() == StatusCode::kNotFound) return std::string();
  return text;
}

}  // namespace

std::string FactIdHash(std::string_view fact_id) {
  const Sha256Digest digest = Sha256(fact_id);
  return HexEncode(std::span(digest).first(kHashBytes));
}

ErasureLog::~ErasureLog() {
  if (descriptor_ >= 0) close(descriptor_);
}

Status ErasureLog::Open() {
  if (descriptor_ >= 0) return OkStatus();
  INFERSCALE_ASSIGN_OR_RETURN(const std::string text, ReadLog(file_));
  descriptor_ = open(file_.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC | O_NOFOLLOW, 0600);
  if (descriptor_ < 0) return StatusFromErrno("cannot open", file_, errno);
  const auto whole = static_cast<off_t>(WholeLines(text));
  if (whole != static_cast<off_t>(text.size()) && ftruncate(descriptor_, whole) != 0)
    return StatusFromErrno("cannot write", file_, errno);
  return SyncFolder(file_.parent_path());
}

Status ErasureLog::Append(std::span<const ErasureEntry> entries) {
  if (entries.empty()) return OkStatus();
  INFERSCALE_RETURN_IF_ERROR(Open());
  std::string lines;
  for (const ErasureEntry& entry : entries) lines += LineOf(entry);
  struct stat before {};
  if (fstat(descriptor_, &before) != 0) return StatusFromErrno("cannot write", file_, errno);
  std::string_view rest = lines;
  int error = 0;
  while (!rest.empty() && error == 0) {
    const ssize_t written = write(descriptor_, rest.data(), rest.size());
    if (written > 0) {
      rest.remove_prefix(static_cast<std::size_t>(written));
    } else if (errno != EINTR) {
      error = written == 0 ? EIO : errno;
    }
  }
  if (error == 0 && fdatasync(descriptor_) != 0) error = errno;
  if (error == 0) return OkStatus();
  // What is left of the lines would be joined to the next ones.
  if (ftruncate(descriptor_, before.st_size) != 0) {
    close(descriptor_);
    descriptor_ = -1;
  }
  return StatusFromErrno("cannot write", file_, error);
}

Result<std::vector<ErasureEntry>> ReadErasureLog(const std::filesystem::path& file) {
  INFERSCALE_ASSIGN_OR_RETURN(const std::string text, ReadLog(file));
  std::vector<ErasureEntry> entries;
  std::string_view rest = std::string_view(text).substr(0, WholeLines(text));
  for (std::size_t number = 1; !rest.empty(); ++number) {
    const std::size_t end = rest.find('\n');
    std::optional<ErasureEntry> entry = ParseLine(rest.substr(0, end));
    if (!entry) {
      return DataLoss(file.string() + " cannot be read at line " + std::to_string(number) +
                      ": what it says was erased there may come back; remove that line to go on");
    }
    entries.push_back(*std::move(entry));
    rest.remove_prefix(end + 1);
  }
  return entries;
}

std::vector<ErasureEntry> EntriesBeyond(std::span<const ErasureEntry> entries,
                                        std::span<const ErasureEntry> known) {
  std::set<std::string_view> ids;
  for (const ErasureEntry& entry : known) ids.insert(entry.id);
  std::vector<ErasureEntry> beyond;
  for (const ErasureEntry& entry : entries) {
    if (ids.insert(entry.id).second) beyond.push_back(entry);
  }
  return beyond;
}

}  // namespace inferscale::catalog
