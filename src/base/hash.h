#ifndef INFERSCALE_BASE_HASH_H_
#define INFERSCALE_BASE_HASH_H_

/// \file hash.h
/// Hashes and message authentication. All functions are thread-safe.

#include <array>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "inferscale/result.h"

namespace inferscale {

using Sha256Digest = std::array<std::uint8_t, 32>;

Sha256Digest Sha256(std::span<const std::uint8_t> data);
Sha256Digest Sha256(std::string_view text);
/// Hash of a file's content, read in pieces. kNotFound or kFailedPrecondition when it cannot be
/// read.
Result<Sha256Digest> Sha256File(const std::filesystem::path& path);

/// SHA-256 of data that comes in pieces. Not thread-safe.
class Sha256Stream {
 public:
  Sha256Stream();
  ~Sha256Stream();
  Sha256Stream(const Sha256Stream&) = delete;
  Sha256Stream& operator=(const Sha256Stream&) = delete;
  void Update(std::span<const std::uint8_t> data);
  void Update(std::string_view text);
  /// The digest of everything given; the stream then starts afresh.
  Sha256Digest Finish();

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

/// Of `data` with `more` behind it.
Sha256Digest HmacSha256(std::span<const std::uint8_t> key, std::span<const std::uint8_t> data,
                        std::span<const std::uint8_t> more = {});

/// MD5 in hexadecimal: an API field's format, never a safeguard.
std::string Md5Hex(std::string_view text);

/// Fast checksum against accidental corruption; not against an attacker.
std::uint64_t Xxh3_64(std::span<const std::uint8_t> data);

/// Lower case, two digits a byte.
std::string HexEncode(std::span<const std::uint8_t> bytes);
/// kInvalidArgument for an odd length or another character than 0-9, a-f, A-F.
Result<std::vector<std::uint8_t>> HexDecode(std::string_view text);

/// Whether two byte strings are equal, in time that depends on their lengths alone.
bool ConstantTimeEqual(std::span<const std::uint8_t> a, std::span<const std::uint8_t> b);

}  // namespace inferscale

#endif  // INFERSCALE_BASE_HASH_H_
