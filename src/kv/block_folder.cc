#include "kv/block_folder.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <new>
#include <optional>
#include <string>
#include <string_view>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#include "base/descriptor.h"
#include "base/files.h"
#include "base/hash.h"
#include "kv/block_format.h"

namespace inferscale {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kExtension = ".kvb";
constexpr std::string_view kTemporaryFolder = "tmp";
constexpr std::size_t kWordHexDigits = 16;
constexpr std::size_t kFewFiles = 64;
constexpr int kRemovers = 16;

std::array<std::uint8_t, 8> BigEndian(std::uint64_t value) {
  std::array<std::uint8_t, 8> bytes;
  for (std::size_t i = 0; i < bytes.size(); ++i)
    bytes[i] = static_cast<std::uint8_t>(value >> (56 - 8 * i));
  return bytes;
}

std::uint64_t FromBigEndian(std::span<const std::uint8_t> bytes) {
  std::uint64_t value = 0;
  for (const std::uint8_t byte : bytes) value = value << 8 | byte;
  return value;
}

std::string WordHex(std::uint64_t value) { return HexEncode(BigEndian(value)); }

// Some file systems let each removal wait for milliseconds, and many at once no longer than one.
// What stays is left to the caller.
void RemoveManyFiles(const fs::path& folder) {
  std::vector<fs::path> files;
  std::error_code error;
  for (fs::directory_iterator entry(folder, error), end; !error && entry != end;
       entry.increment(error)) {
    files.push_back(entry->path());
  }
  if (files.size() < kFewFiles) return;
  std::atomic<std::size_t> next{0};
  const auto remove = [&files, &next] {
    for (std::size_t i = next++; i < files.size(); i = next++) unlink(files[i].c_str());
  };
  std::vector<std::jthread> removers;
  try {
    for (int i = 1; i < kRemovers; ++i) removers.emplace_back(remove);
  } catch (const std::system_error&) {
    // With fewer threads then.
  }
  remove();
}

// Only names that this class gives: upper case would be another path.
std::optional<std::vector<std::uint8_t>> DecodeName(std::string_view name, std::size_t digits) {
  if (name.size() != digits) return std::nullopt;
  auto bytes = HexDecode(name);
  if (!bytes.ok() || HexEncode(*bytes) != name) return std::nullopt;
  return std::move(bytes).value();
}

// Returns 0 or an errno.
int ReadAll(int descriptor, std::span<std::uint8_t> out) {
  while (!out.empty()) {
    const ssize_t got = read(descriptor, out.data(), out.size());
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return errno;
    if (got == 0) return EIO;  // cut since its size was asked for
    out = out.subspan(static_cast<std::size_t>(got));
  }
  return 0;
}

// A medium that cannot give the bytes back has lost them; anything else may pass.
Status ReadError(const fs::path& path, int error) {
  if (error == EIO) return DataLoss("cannot be read to its end");
  const Status status = StatusFromErrno("cannot read", path, error);
  return status.code() == StatusCode::kNotFound ? status : Unavailable(status.message());
}

struct OpenBlock {
  Descriptor file;  // after the header
  BlockHeader header;
};

Result<OpenBlock> OpenFile(const fs::path& path) {
  Descriptor file(open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK));
  if (file.get() < 0) {
    if (errno == ELOOP) return DataLoss("is a link, not a KV block file");
    return ReadError(path, errno);
  }
  struct stat status {};
  if (fstat(file.get(), &status) != 0) return ReadError(path, errno);
  const auto file_bytes = static_cast<std::uint64_t>(status.st_size);
  if (!S_ISREG(status.st_mode) || file_bytes < kBlockPreludeBytes) {
    return DataLoss("is too short for a KV block file");
  }

  std::vector<std::uint8_t> front(kBlockPreludeBytes);
  if (const int error = ReadAll(file.get(), front); error != 0) return ReadError(path, error);
  INFERSCALE_ASSIGN_OR_RETURN(const std::size_t header_bytes, ParseBlockHeaderBytes(front));
  if (header_bytes > file_bytes) {
    return DataLoss("ends inside its header, at byte " + std::to_string(file_bytes) + " of " +
                    std::to_string(header_bytes));
  }
  front.resize(header_bytes);
  if (const int error = ReadAll(file.get(), std::span(front).subspan(kBlockPreludeBytes));
      error != 0) {
    return ReadError(path, error);
  }
  INFERSCALE_ASSIGN_OR_RETURN(BlockHeader header, ParseBlockHeader(front));
  if (header.payload_bytes != file_bytes - header_bytes) {
    return DataLoss("has " + std::to_string(file_bytes) + " bytes, its header says " +
                    std::to_string(header_bytes) + " + " + std::to_string(header.payload_bytes));
  }
  return OpenBlock{std::move(file), std::move(header)};
}

Result<std::shared_ptr<const KvBlock>> LoadFile(const fs::path& path) {
  INFERSCALE_ASSIGN_OR_RETURN(OpenBlock block, OpenFile(path));
  std::vector<std::uint8_t> payload(block.header.payload_bytes);
  if (const int error = ReadAll(block.file.get(), payload); error != 0) {
    return ReadError(path, error);
  }
  INFERSCALE_RETURN_IF_ERROR(CheckBlockPayload(block.header, payload));
  return KvBlock::Create(std::move(block.header.info), std::move(payload));
}

Status CheckIdentity(const KvBlockInfo& info, const BlockFileId& id, const Fingerprint& fingerprint,
                     const fs::path& path) {
  if (info.key == id.key && info.fingerprint == fingerprint && info.scope_tag == id.scope_tag) {
    return OkStatus();
  }
  return DataLoss(path.string() + " holds a block of another key, scope or model");
}

}  // namespace

std::uint64_t FingerprintPrefix(const Fingerprint& fingerprint) {
  return FromBigEndian(std::span(fingerprint).first(8));
}

fs::path BlockFolder::ScopeFolder(const BlockFileId& id) const {
  return folder_ / WordHex(id.fingerprint_prefix) / WordHex(id.scope_tag);
}

fs::path BlockFolder::PathOf(const BlockFileId& id) const {
  return ScopeFolder(id) / (HexEncode(id.key.bytes) + std::string(kExtension));
}

Result<std::unique_ptr<BlockFolder>> BlockFolder::Open(fs::path folder) {
  INFERSCALE_RETURN_IF_ERROR(CreatePrivateFolder(folder));
  const fs::path temporary = folder / kTemporaryFolder;
  std::error_code error;
  fs::remove_all(temporary, error);
  if (error) return StatusFromErrno("cannot empty", temporary, error.value());
  INFERSCALE_RETURN_IF_ERROR(CreatePrivateFolder(temporary));
  if (faccessat(AT_FDCWD, folder.c_str(), R_OK | W_OK | X_OK, AT_EACCESS) != 0) {
    return StatusFromErrno("cannot write to", folder, errno);
  }
  return std::unique_ptr<BlockFolder>(new BlockFolder(std::move(folder)));
}

Result<std::vector<BlockFolder::Listed>> BlockFolder::List() const {
  std::vector<Listed> files;
  std::error_code error;
  // A folder that cannot be listed fails the whole: its blocks could not be erased either.
  for (fs::directory_iterator fingerprints(folder_, error), end; !error && fingerprints != end;
       fingerprints.increment(error)) {
    const auto prefix = DecodeName(fingerprints->path().filename().native(), kWordHexDigits);
    if (!prefix || fingerprints->symlink_status(error).type() != fs::file_type::directory) continue;
    for (fs::directory_iterator scopes(fingerprints->path(), error); !error && scopes != end;
         scopes.increment(error)) {
      const auto scope = DecodeName(scopes->path().filename().native(), kWordHexDigits);
      if (!scope || scopes->symlink_status(error).type() != fs::file_type::directory) continue;
      for (fs::directory_iterator blocks(scopes->path(), error); !error && blocks != end;
           blocks.increment(error)) {
        const std::string name = blocks->path().filename().native();
        if (!name.ends_with(kExtension)) continue;
        const auto key =
            DecodeName(std::string_view(name).substr(0, name.size() - kExtension.size()),
                       2 * sizeof(KvKey::bytes));
        struct stat status {};
        if (!key || lstat(blocks->path().c_str(), &status) != 0 || S_ISDIR(status.st_mode))
          continue;
        Listed& file = files.emplace_back();
        file.id.fingerprint_prefix = FromBigEndian(*prefix);
        file.id.scope_tag = FromBigEndian(*scope);
        std::copy(key->begin(), key->end(), file.id.key.bytes.begin());
        file.bytes = status.st_size;
        file.modified_ns =
            std::int64_t{status.st_mtim.tv_sec} * 1'000'000'000 + status.st_mtim.tv_nsec;
      }
    }
  }
  if (error) return StatusFromErrno("cannot list", folder_, error.value());
  return files;
}

Result<fs::path> BlockFolder::WriteTemporary(std::span<const std::uint8_t> header,
                                             std::span<const std::uint8_t> payload) {
  fs::path path = folder_ / kTemporaryFolder / std::to_string(next_temporary_.fetch_add(1));
  int error = 0;
  {
    const Descriptor file(
        open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0600));
    if (file.get() < 0) return StatusFromErrno("cannot write", path, errno);
    error = WriteAll(file.get(), header);
    if (error == 0) error = WriteAll(file.get(), payload);
    if (error == 0 && fsync(file.get()) != 0) error = errno;
  }
  if (error != 0) {
    DiscardTemporary(path);
    return StatusFromErrno("cannot write", path, error);
  }
  return path;
}

Status BlockFolder::Publish(const fs::path& temporary, const BlockFileId& id) {
  const fs::path scope = ScopeFolder(id);
  for (const fs::path& folder : {scope.parent_path(), scope}) {
    if (mkdir(folder.c_str(), 0700) != 0 && errno != EEXIST) {
      return StatusFromErrno("cannot create folder", folder, errno);
    }
  }
  // The folder is not synced: a name that a power failure takes back is an ordinary miss.
  const fs::path path = PathOf(id);
  if (rename(temporary.c_str(), path.c_str()) != 0) {
    return StatusFromErrno("cannot write", path, errno);
  }
  return OkStatus();
}

void BlockFolder::DiscardTemporary(const fs::path& temporary) { unlink(temporary.c_str()); }

Result<std::shared_ptr<const KvBlock>> BlockFolder::Load(const BlockFileId& id,
                                                         const Fingerprint& fingerprint) const {
  const fs::path path = PathOf(id);
  try {
    auto block = LoadFile(path);
    if (!block.ok()) {
      const bool corrupt = block.status().code() == StatusCode::kDataLoss;
      return corrupt ? block.status().WithContext(path.string()) : block.status();
    }
    INFERSCALE_RETURN_IF_ERROR(CheckIdentity((*block)->info(), id, fingerprint, path));
    return block;
  } catch (const std::bad_alloc&) {
    return Unavailable("not enough memory to load " + path.string());
  }
}

Result<KvBlockInfo> BlockFolder::LoadInfo(const BlockFileId& id,
                                          const Fingerprint& fingerprint) const {
  const fs::path path = PathOf(id);
  INFERSCALE_ASSIGN_OR_RETURN(OpenBlock block, OpenFile(path));
  INFERSCALE_RETURN_IF_ERROR(CheckIdentity(block.header.info, id, fingerprint, path));
  return std::move(block.header.info);
}

void BlockFolder::Touch(const BlockFileId& id) const {
  // A lost touch only makes the file look less used after a restart.
  (void)utimensat(AT_FDCWD, PathOf(id).c_str(), nullptr, AT_SYMLINK_NOFOLLOW);
}

Status BlockFolder::Remove(const BlockFileId& id) {
  const fs::path path = PathOf(id);
  if (unlink(path.c_str()) != 0 && errno != ENOENT && errno != ENOTDIR) {
    return StatusFromErrno("cannot remove", path, errno);
  }
  rmdir(ScopeFolder(id).c_str());  // fails while it holds other files
  return OkStatus();
}

Status BlockFolder::RemoveScope(std::uint64_t scope_tag) {
  Status result;
  std::error_code error;
  for (fs::directory_iterator fingerprints(folder_, error), end; !error && fingerprints != end;
       fingerprints.increment(error)) {
    if (!DecodeName(fingerprints->path().filename().native(), kWordHexDigits)) continue;
    const fs::path scope = fingerprints->path() / WordHex(scope_tag);
    RemoveManyFiles(scope);
    std::error_code failure;
    const bool removed = fs::remove_all(scope, failure) > 0;
    Status status = failure && failure.value() != ENOENT && failure.value() != ENOTDIR
                        ? StatusFromErrno("cannot remove", scope, failure.value())
                    : removed ? SyncFolder(fingerprints->path())
                              : OkStatus();
    if (result.ok()) result = std::move(status);
  }
  if (error) return StatusFromErrno("cannot list", folder_, error.value());
  return result;
}

Status BlockFolder::SyncRemovals(std::span<const BlockFileId> ids) const {
  std::vector<fs::path> folders;
  for (const BlockFileId& id : ids) folders.push_back(ScopeFolder(id));
  std::sort(folders.begin(), folders.end());
  folders.erase(std::unique(folders.begin(), folders.end()), folders.end());
  for (const fs::path& folder : folders) {
    Status status = SyncFolder(folder);
    // The folder went with its last file: then that is what has to last.
    if (status.code() == StatusCode::kNotFound) status = SyncFolder(folder.parent_path());
    if (!status.ok() && status.code() != StatusCode::kNotFound) return status;
  }
  return OkStatus();
}

}  // namespace inferscale
