#include "cli/backup_archive.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <unordered_set>
#include <utility>

#include "base/files.h"

namespace inferscale {
namespace {

constexpr std::size_t kBlock = 512, kBuffer = std::size_t{1} << 20;
constexpr std::string_view kDigestName = "SHA256";
constexpr std::size_t kMaxMembers = 50'000'000;

struct TarHeader {
  char name[100], mode[8], uid[8], gid[8], size[12], mtime[12], checksum[8], type, link[100],
      magic[6], version[2], owner[32], group[32], device_major[8], device_minor[8], prefix[155],
      rest[12];
};
static_assert(sizeof(TarHeader) == kBlock);

template <std::size_t Size>
void Octal(char (&field)[Size], std::uint64_t value) {
  std::snprintf(field, Size, "%0*llo", static_cast<int>(Size) - 1,
                static_cast<unsigned long long>(value));
}

/// Eleven octal digits, or for 8 GiB and more the base-256 form that tar programs understand.
void PutSize(TarHeader& header, std::uint64_t size) {
  if (size < (std::uint64_t{1} << 33)) {
    Octal(header.size, size);
    return;
  }
  std::memset(header.size, 0, sizeof(header.size));
  header.size[0] = static_cast<char>(0x80);
  for (int i = 0; i < 8; ++i) header.size[11 - i] = static_cast<char>((size >> (8 * i)) & 0xFF);
}

bool GetSize(const TarHeader& header, std::uint64_t* size) {
  *size = 0;
  if (static_cast<unsigned char>(header.size[0]) == 0x80) {
    for (int i = 1; i < 4; ++i) {
      if (header.size[i] != 0) return false;
    }
    for (int i = 4; i < 12; ++i) *size = (*size << 8) | static_cast<unsigned char>(header.size[i]);
    return *size < (std::uint64_t{1} << 62);
  }
  for (int i = 0; i < 11; ++i) {
    if (header.size[i] < '0' || header.size[i] > '7') return false;
    *size = *size * 8 + static_cast<std::uint64_t>(header.size[i] - '0');
  }
  return true;
}

std::uint64_t Checksum(TarHeader header) {
  std::memset(header.checksum, ' ', sizeof(header.checksum));
  std::uint64_t sum = 0;
  const auto* bytes = reinterpret_cast<const unsigned char*>(&header);
  for (std::size_t i = 0; i < sizeof(header); ++i) sum += bytes[i];
  return sum;
}

std::uint64_t Padded(std::uint64_t size) { return (size + kBlock - 1) / kBlock * kBlock; }

bool IsHex(std::string_view text, std::size_t size) {
  return text.size() == size && std::all_of(text.begin(), text.end(), [](char c) {
           return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'f');
         });
}

/// Only what a backup has: no name can lead out of a folder.
bool IsMemberName(std::string_view name) {
  constexpr std::array<std::string_view, 4> kFiles = {"backup.json", "catalog.db", "erasures.log",
                                                      kDigestName};
  if (std::find(kFiles.begin(), kFiles.end(), name) != kFiles.end()) return true;
  // kv/<fingerprint>/<scope>/<key>.kvb
  return name.size() == 3 + 17 + 17 + 36 && name.starts_with("kv/") &&
         IsHex(name.substr(3, 16), 16) && name[19] == '/' && IsHex(name.substr(20, 16), 16) &&
         name[36] == '/' && IsHex(name.substr(37, 32), 32) && name.ends_with(".kvb");
}

}  // namespace

ArchiveWriter::ArchiveWriter(std::filesystem::path target, int descriptor)
    : target_(std::move(target)), partial_(target_), descriptor_(descriptor) {
  partial_ += ".partial";
}

ArchiveWriter::ArchiveWriter(ArchiveWriter&& other) noexcept
    : target_(std::move(other.target_)),
      partial_(std::move(other.partial_)),
      descriptor_(std::exchange(other.descriptor_, -1)),
      bytes_(other.bytes_) {}

ArchiveWriter::~ArchiveWriter() {
  if (descriptor_ < 0) return;
  close(descriptor_);
  unlink(partial_.c_str());
}

Result<ArchiveWriter> ArchiveWriter::Create(std::filesystem::path target) {
  std::filesystem::path partial = target;
  partial += ".partial";
  const int descriptor =
      open(partial.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC | O_NOFOLLOW, 0600);
  if (descriptor < 0) return StatusFromErrno("cannot write", partial, errno);
  return ArchiveWriter(std::move(target), descriptor);
}

Status ArchiveWriter::Write(std::string_view data) {
  digest_.Update(data);
  bytes_ += static_cast<std::int64_t>(data.size());
  while (!data.empty()) {
    const ssize_t written = write(descriptor_, data.data(), data.size());
    if (written > 0) {
      data.remove_prefix(static_cast<std::size_t>(written));
    } else if (written == 0 || errno != EINTR) {
      return StatusFromErrno("cannot write", partial_, written == 0 ? EIO : errno);
    }
  }
  return OkStatus();
}

Status ArchiveWriter::Header(std::string_view name, std::uint64_t size) {
  TarHeader header{};
  if (name.size() >= sizeof(header.name) || !IsMemberName(name))
    return Internal("a backup has no member " + std::string(name));
  std::memcpy(header.name, name.data(), name.size());
  Octal(header.mode, 0600);
  Octal(header.uid, 0);
  Octal(header.gid, 0);
  PutSize(header, size);
  Octal(header.mtime, 0);
  header.type = '0';
  std::memcpy(header.magic, "ustar", 6);
  std::memcpy(header.version, "00", 2);
  std::snprintf(header.checksum, 7, "%06llo", static_cast<unsigned long long>(Checksum(header)));
  header.checksum[7] = ' ';
  return Write(std::string_view(reinterpret_cast<const char*>(&header), sizeof(header)));
}

Status ArchiveWriter::AddText(std::string_view name, std::string_view text) {
  INFERSCALE_RETURN_IF_ERROR(Header(name, text.size()));
  INFERSCALE_RETURN_IF_ERROR(Write(text));
  return Write(std::string(Padded(text.size()) - text.size(), '\0'));
}

Status ArchiveWriter::AddFile(std::string_view name, const std::filesystem::path& file) {
  const int source = open(file.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW);
  if (source < 0) return StatusFromErrno("cannot read", file, errno);
  const auto copy = [&]() -> Status {
    struct stat info {};
    if (fstat(source, &info) != 0) return StatusFromErrno("cannot read", file, errno);
    const auto size = static_cast<std::uint64_t>(info.st_size);
    INFERSCALE_RETURN_IF_ERROR(Header(name, size));
    std::string buffer(kBuffer, '\0');
    for (std::uint64_t left = size; left > 0;) {
      const ssize_t got = read(source, buffer.data(),
                               static_cast<std::size_t>(std::min<std::uint64_t>(left, kBuffer)));
      if (got < 0 && errno == EINTR) continue;
      if (got < 0) return StatusFromErrno("cannot read", file, errno);
      if (got == 0) return Unavailable(file.string() + " became shorter while it was read");
      INFERSCALE_RETURN_IF_ERROR(
          Write(std::string_view(buffer).substr(0, static_cast<std::size_t>(got))));
      left -= static_cast<std::uint64_t>(got);
    }
    return Write(std::string(Padded(size) - size, '\0'));
  };
  const Status copied = copy();
  close(source);
  return copied;
}

Status ArchiveWriter::Finish() {
  // The digest's own header and text are not part of it.
  const std::string digest = HexEncode(digest_.Finish()) + "\n";
  INFERSCALE_RETURN_IF_ERROR(AddText(kDigestName, digest));
  INFERSCALE_RETURN_IF_ERROR(Write(std::string(2 * kBlock, '\0')));
  if (fsync(descriptor_) != 0) return StatusFromErrno("cannot write", partial_, errno);
  // A link and not a rename: what is there is not replaced.
  if (link(partial_.c_str(), target_.c_str()) != 0) {
    if (errno == EEXIST)
      return AlreadyExists(target_.string() + " exists: choose another name or remove it");
    // Some file systems have no links.
    if (std::filesystem::exists(target_) || rename(partial_.c_str(), target_.c_str()) != 0)
      return StatusFromErrno("cannot write", target_, errno);
  }
  close(std::exchange(descriptor_, -1));
  unlink(partial_.c_str());
  return SyncFolder(target_.has_parent_path() ? target_.parent_path() : ".");
}

ArchiveReader::ArchiveReader(std::filesystem::path file, int descriptor)
    : file_(std::move(file)), descriptor_(descriptor) {}

ArchiveReader::ArchiveReader(ArchiveReader&& other) noexcept
    : file_(std::move(other.file_)),
      descriptor_(std::exchange(other.descriptor_, -1)),
      size_(other.size_),
      members_(std::move(other.members_)) {}

ArchiveReader::~ArchiveReader() {
  if (descriptor_ >= 0) close(descriptor_);
}

Result<ArchiveReader> ArchiveReader::Open(const std::filesystem::path& file) {
  const int descriptor = open(file.c_str(), O_RDONLY | O_CLOEXEC);
  if (descriptor < 0) return StatusFromErrno("cannot read", file, errno);
  ArchiveReader reader(file, descriptor);
  struct stat info {};
  if (fstat(descriptor, &info) != 0) return StatusFromErrno("cannot read", file, errno);
  if (!S_ISREG(info.st_mode)) return InvalidArgument(file.string() + " is not a file");
  reader.size_ = static_cast<std::uint64_t>(info.st_size);
  INFERSCALE_RETURN_IF_ERROR(reader.Check());
  return reader;
}

Status ArchiveReader::Read(std::uint64_t offset, std::span<char> into) const {
  while (!into.empty()) {
    const ssize_t got = pread(descriptor_, into.data(), into.size(), static_cast<off_t>(offset));
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return StatusFromErrno("cannot read", file_, errno);
    if (got == 0) return DataLoss(file_.string() + " is cut off: use another copy of this backup");
    into = into.subspan(static_cast<std::size_t>(got));
    offset += static_cast<std::uint64_t>(got);
  }
  return OkStatus();
}

Status ArchiveReader::Check() {
  const Status damaged =
      DataLoss(file_.string() + " is damaged or cut off: use another copy of this backup");
  const Status foreign = InvalidArgument(file_.string() + " is no backup of inferscale");
  std::uint64_t at = 0;
  std::unordered_set<std::string> names;
  while (members_.empty() || members_.back().name != kDigestName) {
    if (at + kBlock > size_) return members_.empty() ? foreign : damaged;
    TarHeader header{};
    INFERSCALE_RETURN_IF_ERROR(
        Read(at, std::span(reinterpret_cast<char*>(&header), sizeof(header))));
    header.name[sizeof(header.name) - 1] = '\0';
    char sum[8] = {};
    std::snprintf(sum, 7, "%06llo", static_cast<unsigned long long>(Checksum(header)));
    ArchiveMember member;
    member.name = header.name;
    const bool sound = std::memcmp(header.magic, "ustar", 6) == 0 &&
                       std::memcmp(sum, header.checksum, 7) == 0 && header.type == '0' &&
                       IsMemberName(member.name) && GetSize(header, &member.size);
    if (!sound) return members_.empty() ? foreign : damaged;
    member.offset = at + kBlock;
    if (member.size > size_ || Padded(member.size) > size_ - member.offset) return damaged;
    if (members_.size() >= kMaxMembers || !names.insert(member.name).second) return damaged;
    if (members_.empty() && member.name != "backup.json") return foreign;
    at = member.offset + Padded(member.size);
    members_.push_back(std::move(member));
  }
  const ArchiveMember digest = members_.back();
  members_.pop_back();
  INFERSCALE_ASSIGN_OR_RETURN(const std::string expected, ReadText(digest, 2 * 64));
  Sha256Stream stream;
  std::string buffer(kBuffer, '\0');
  for (std::uint64_t done = 0; done < digest.offset - kBlock;) {
    const std::uint64_t part = std::min<std::uint64_t>(kBuffer, digest.offset - kBlock - done);
    INFERSCALE_RETURN_IF_ERROR(Read(done, std::span(buffer).first(static_cast<std::size_t>(part))));
    stream.Update(std::string_view(buffer).substr(0, static_cast<std::size_t>(part)));
    done += part;
  }
  return HexEncode(stream.Finish()) + "\n" == expected ? OkStatus() : damaged;
}

const ArchiveMember* ArchiveReader::Find(std::string_view name) const {
  const auto found = std::find_if(members_.begin(), members_.end(),
                                  [&](const ArchiveMember& member) { return member.name == name; });
  return found == members_.end() ? nullptr : &*found;
}

Result<std::string> ArchiveReader::ReadText(const ArchiveMember& member,
                                            std::size_t max_bytes) const {
  if (member.size > max_bytes)
    return DataLoss(file_.string() + ": " + member.name + " is larger than it can be");
  std::string text(static_cast<std::size_t>(member.size), '\0');
  INFERSCALE_RETURN_IF_ERROR(Read(member.offset, text));
  return text;
}

Status ArchiveReader::Extract(const ArchiveMember& member,
                              const std::filesystem::path& target) const {
  const int descriptor =
      open(target.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0600);
  if (descriptor < 0) return StatusFromErrno("cannot write", target, errno);
  const auto copy = [&]() -> Status {
    std::string buffer(kBuffer, '\0');
    for (std::uint64_t done = 0; done < member.size;) {
      const auto part =
          static_cast<std::size_t>(std::min<std::uint64_t>(kBuffer, member.size - done));
      INFERSCALE_RETURN_IF_ERROR(Read(member.offset + done, std::span(buffer).first(part)));
      std::string_view rest = std::string_view(buffer).substr(0, part);
      while (!rest.empty()) {
        const ssize_t written = write(descriptor, rest.data(), rest.size());
        if (written > 0) {
          rest.remove_prefix(static_cast<std::size_t>(written));
        } else if (written == 0 || errno != EINTR) {
          return StatusFromErrno("cannot write", target, written == 0 ? EIO : errno);
        }
      }
      done += part;
    }
    return OkStatus();
  };
  Status copied = copy();
  if (close(descriptor) != 0 && copied.ok())
    copied = StatusFromErrno("cannot write", target, errno);
  return copied;
}

}  // namespace inferscale
