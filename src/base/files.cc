#include "base/files.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <system_error>
#include <utility>

#include "base/bytes.h"
#include "base/descriptor.h"

namespace inferscale {
namespace {

constexpr std::string_view kTemporaryInfix = ".tmp-";

int OpenRetrying(const std::filesystem::path& path, int flags, mode_t mode = 0) {
  int descriptor = -1;
  do {
    descriptor = open(path.c_str(), flags | O_CLOEXEC, mode);
  } while (descriptor < 0 && errno == EINTR);
  return descriptor;
}

// Returns 0 or an errno.
int SyncRetrying(int descriptor) {
  while (fsync(descriptor) != 0) {
    if (errno == EINTR) continue;
    return errno == EINVAL || errno == ENOTSUP ? 0 : errno;  // the file system has no such notion
  }
  return 0;
}

template <typename Container>
Result<Container> ReadInto(const std::filesystem::path& path, std::size_t max_bytes) {
  const Descriptor file(OpenRetrying(path, O_RDONLY | O_NONBLOCK));
  if (file.get() < 0) return StatusFromErrno("cannot open", path, errno);
  struct stat info {};
  if (fstat(file.get(), &info) != 0) return StatusFromErrno("cannot read", path, errno);
  if (!S_ISREG(info.st_mode)) {
    return FailedPrecondition("cannot read " + path.string() + ": it is not a regular file");
  }
  if (static_cast<std::uint64_t>(info.st_size) > max_bytes) {
    return ResourceExhausted("cannot read " + path.string() + ": it has " +
                             std::to_string(info.st_size) + " bytes, at most " +
                             std::to_string(max_bytes) + " are allowed");
  }
  Container content(static_cast<std::size_t>(info.st_size), {});
  std::size_t filled = 0;
  while (filled < content.size()) {
    const ssize_t got = read(file.get(), content.data() + filled, content.size() - filled);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return StatusFromErrno("cannot read", path, errno);
    if (got == 0) break;
    filled += static_cast<std::size_t>(got);
  }
  content.resize(filled);
  return content;
}

std::string_view Advice(int error) {
  switch (error) {
    case ENOSPC:
    case EDQUOT:
      return "; free some disk space or choose another folder";
    case EROFS:
      return "; the file system is read-only, choose another folder";
    case EACCES:
    case EPERM:
      return "; check the owner and permissions, or choose another folder";
    case EMFILE:
    case ENFILE:
      return "; too many files are open, raise the limit (ulimit -n)";
    default:
      return "";
  }
}

}  // namespace

Status StatusFromErrno(std::string_view action, const std::filesystem::path& path, int error) {
  std::string message(action);
  message.append(" ").append(path.string()).append(": ");
  message.append(std::generic_category().message(error)).append(Advice(error));
  switch (error) {
    case ENOSPC:
    case EDQUOT:
    case EFBIG:
    case ENOMEM:
    case EMFILE:
    case ENFILE:
      return ResourceExhausted(std::move(message));
    case ENOENT:
      return NotFound(std::move(message));
    default:
      return FailedPrecondition(std::move(message));
  }
}

Result<std::vector<std::uint8_t>> ReadFile(const std::filesystem::path& path,
                                           std::size_t max_bytes) {
  return ReadInto<std::vector<std::uint8_t>>(path, max_bytes);
}

Result<std::string> ReadTextFile(const std::filesystem::path& path, std::size_t max_bytes) {
  return ReadInto<std::string>(path, max_bytes);
}

Status AtomicWriteFile(const std::filesystem::path& path, std::span<const std::uint8_t> data) {
  static std::atomic<std::uint64_t> counter{0};
  std::filesystem::path temporary = path;
  temporary += std::string(kTemporaryInfix) + std::to_string(getpid()) + "-" +
               std::to_string(counter.fetch_add(1));
  int error = 0;
  {
    const Descriptor file(OpenRetrying(temporary, O_WRONLY | O_CREAT | O_TRUNC | O_NOFOLLOW, 0600));
    if (file.get() < 0) return StatusFromErrno("cannot write", path, errno);
    error = WriteAll(file.get(), data);
    if (error == 0) error = SyncRetrying(file.get());
  }
  if (error == 0 && rename(temporary.c_str(), path.c_str()) != 0) error = errno;
  if (error != 0) {
    unlink(temporary.c_str());
    return StatusFromErrno("cannot write", path, error);
  }
  return SyncFolder(path.has_parent_path() ? path.parent_path() : std::filesystem::path("."));
}

Status AtomicWriteFile(const std::filesystem::path& path, std::string_view text) {
  return AtomicWriteFile(path, AsBytes(text));
}

bool IsTemporaryFileName(std::string_view name) {
  const std::size_t place = name.rfind(kTemporaryInfix);
  if (place == std::string_view::npos) return false;
  const std::string_view suffix = name.substr(place + kTemporaryInfix.size());
  return !suffix.empty() && suffix.find('-') != std::string_view::npos &&
         std::all_of(suffix.begin(), suffix.end(),
                     [](char c) { return (c >= '0' && c <= '9') || c == '-'; });
}

Status CreatePrivateFolder(const std::filesystem::path& folder) {
  if (folder.empty()) return InvalidArgument("cannot create a folder without a name");
  std::error_code error;
  const std::filesystem::path parent = std::filesystem::absolute(folder, error).parent_path();
  if (!error) std::filesystem::create_directories(parent, error);
  if (error) return StatusFromErrno("cannot create folder", parent, error.value());
  if (mkdir(folder.c_str(), 0700) != 0) {
    if (errno != EEXIST) return StatusFromErrno("cannot create folder", folder, errno);
    if (!std::filesystem::is_directory(folder, error)) {
      return FailedPrecondition(
          "cannot create folder " + folder.string() +
          ": a file of that name is there; remove it or choose another folder");
    }
  }
  // A folder that others could read before is closed to them; one that is not ours is left as it
  // is.
  struct stat info {};
  if (stat(folder.c_str(), &info) == 0 && info.st_uid == geteuid() && (info.st_mode & 077) != 0 &&
      chmod(folder.c_str(), 0700) != 0) {
    return StatusFromErrno("cannot make private", folder, errno);
  }
  return OkStatus();
}

Status SyncFolder(const std::filesystem::path& folder) {
  const Descriptor descriptor(OpenRetrying(folder, O_RDONLY | O_DIRECTORY));
  if (descriptor.get() < 0) return StatusFromErrno("cannot open folder", folder, errno);
  const int error = SyncRetrying(descriptor.get());
  return error == 0 ? OkStatus() : StatusFromErrno("cannot sync folder", folder, error);
}

Result<std::int64_t> FreeDiskBytes(const std::filesystem::path& path) {
  std::error_code error;
  std::filesystem::path existing = std::filesystem::absolute(path, error);
  while (!error && !std::filesystem::exists(existing, error) && existing.has_relative_path()) {
    error.clear();
    existing = existing.parent_path();
  }
  const std::filesystem::space_info space = std::filesystem::space(existing, error);
  if (error) return StatusFromErrno("cannot measure the disk of", path, error.value());
  return static_cast<std::int64_t>(
      std::min<std::uintmax_t>(space.available, static_cast<std::uintmax_t>(INT64_MAX)));
}

Result<FolderLock> FolderLock::Acquire(const std::filesystem::path& folder) {
  const std::filesystem::path path = folder / ".lock";
  Descriptor file(OpenRetrying(path, O_RDWR | O_CREAT | O_NOFOLLOW, 0600));
  if (file.get() < 0) return StatusFromErrno("cannot lock folder with", path, errno);
  while (flock(file.get(), LOCK_EX | LOCK_NB) != 0) {
    if (errno == EINTR) continue;
    if (errno != EWOULDBLOCK) return StatusFromErrno("cannot lock", path, errno);
    char text[32] = {};
    const ssize_t size = pread(file.get(), text, sizeof(text) - 1, 0);
    std::string pid(text, size > 0 ? static_cast<std::size_t>(size) : 0);
    pid.erase(std::find_if(pid.begin(), pid.end(), [](char c) { return c < '0' || c > '9'; }),
              pid.end());
    return Unavailable("folder " + folder.string() + " is in use by process " +
                       (pid.empty() ? "(unknown)" : pid) +
                       "; stop it or choose another data folder");
  }
  const std::string pid = std::to_string(getpid()) + "\n";
  int error = ftruncate(file.get(), 0) == 0 ? 0 : errno;
  if (error == 0) error = WriteAll(file.get(), AsBytes(pid));
  if (error != 0) return StatusFromErrno("cannot write", path, error);
  return FolderLock(file.Release());
}

FolderLock::FolderLock(FolderLock&& other) noexcept
    : descriptor_(std::exchange(other.descriptor_, -1)) {}

FolderLock& FolderLock::operator=(FolderLock&& other) noexcept {
  std::swap(descriptor_, other.descriptor_);
  return *this;
}

// The file stays: removing it would let two processes lock two files of the same name.
FolderLock::~FolderLock() {
  if (descriptor_ >= 0) close(descriptor_);
}

}  // namespace inferscale
