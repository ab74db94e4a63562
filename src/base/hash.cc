#include "base/hash.h"

#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>

#define XXH_INLINE_ALL
#include <xxhash.h>

#include "base/bytes.h"
#include "base/files.h"

namespace inferscale {
namespace {

// A digest that cannot be computed (memory exhausted, a broken OpenSSL) leaves no safe way on: KV
// keys and authentication codes would be wrong.
void Require(bool condition) {
  if (condition) return;
  std::fputs("inferscale: OpenSSL cannot compute SHA-256\n", stderr);
  std::abort();
}

}  // namespace

struct Sha256Stream::Impl {
  EVP_MD_CTX* context = EVP_MD_CTX_new();
  ~Impl() { EVP_MD_CTX_free(context); }
  void Start() {
    Require(context != nullptr && EVP_DigestInit_ex(context, EVP_sha256(), nullptr) == 1);
  }
};

Sha256Stream::Sha256Stream() : impl_(std::make_unique<Impl>()) { impl_->Start(); }
Sha256Stream::~Sha256Stream() = default;

void Sha256Stream::Update(std::span<const std::uint8_t> data) {
  Require(EVP_DigestUpdate(impl_->context, data.data(), data.size()) == 1);
}

void Sha256Stream::Update(std::string_view text) { Update(AsBytes(text)); }

Sha256Digest Sha256Stream::Finish() {
  Sha256Digest digest{};
  unsigned size = 0;
  Require(EVP_DigestFinal_ex(impl_->context, digest.data(), &size) == 1 && size == digest.size());
  impl_->Start();
  return digest;
}

Sha256Digest Sha256(std::span<const std::uint8_t> data) {
  Sha256Stream stream;
  stream.Update(data);
  return stream.Finish();
}

Sha256Digest Sha256(std::string_view text) { return Sha256(AsBytes(text)); }

Result<Sha256Digest> Sha256File(const std::filesystem::path& path) {
  const std::unique_ptr<std::FILE, int (*)(std::FILE*)> file(std::fopen(path.c_str(), "rbe"),
                                                             &std::fclose);
  if (!file) return StatusFromErrno("cannot open", path, errno);
  Sha256Stream stream;
  std::vector<std::uint8_t> buffer(std::size_t{1} << 20);
  while (true) {
    const std::size_t size = std::fread(buffer.data(), 1, buffer.size(), file.get());
    if (size == 0) break;
    stream.Update(std::span(buffer.data(), size));
  }
  if (std::ferror(file.get())) return StatusFromErrno("cannot read", path, errno);
  return stream.Finish();
}

Sha256Digest HmacSha256(std::span<const std::uint8_t> key, std::span<const std::uint8_t> data) {
  static constexpr std::uint8_t kEmpty = 0;  // HMAC() takes a null key for "the key used before"
  Sha256Digest digest{};
  unsigned size = 0;
  Require(HMAC(EVP_sha256(), key.empty() ? &kEmpty : key.data(), static_cast<int>(key.size()),
               data.empty() ? &kEmpty : data.data(), data.size(), digest.data(),
               &size) != nullptr &&
          size == digest.size());
  return digest;
}

std::string Md5Hex(std::string_view text) {
  // "-fips": MD5 is an identifier here, so it must exist where policy forbids it for security too.
  const std::unique_ptr<EVP_MD, void (*)(EVP_MD*)> md5(EVP_MD_fetch(nullptr, "MD5", "-fips"),
                                                       &EVP_MD_free);
  std::array<std::uint8_t, 16> digest{};
  if (!md5 ||
      EVP_Digest(text.data(), text.size(), digest.data(), nullptr, md5.get(), nullptr) != 1) {
    return {};
  }
  return HexEncode(digest);
}

std::uint64_t Xxh3_64(std::span<const std::uint8_t> data) {
  return XXH3_64bits(data.data(), data.size());
}

std::string HexEncode(std::span<const std::uint8_t> bytes) {
  static constexpr char kDigits[] = "0123456789abcdef";
  std::string text;
  text.reserve(bytes.size() * 2);
  for (const std::uint8_t byte : bytes) {
    text.push_back(kDigits[byte >> 4]);
    text.push_back(kDigits[byte & 15]);
  }
  return text;
}

Result<std::vector<std::uint8_t>> HexDecode(std::string_view text) {
  const auto digit = [](char c) -> int {
    if (c >= '0' && c <= '9') return c - '0';
    if (c >= 'a' && c <= 'f') return c - 'a' + 10;
    if (c >= 'A' && c <= 'F') return c - 'A' + 10;
    return -1;
  };
  if (text.size() % 2 != 0) return InvalidArgument("hexadecimal text has an odd length");
  std::vector<std::uint8_t> bytes;
  bytes.reserve(text.size() / 2);
  for (std::size_t i = 0; i < text.size(); i += 2) {
    const int high = digit(text[i]), low = digit(text[i + 1]);
    if (high < 0 || low < 0) {
      return InvalidArgument("hexadecimal text has a wrong digit at character " +
                             std::to_string(i));
    }
    bytes.push_back(static_cast<std::uint8_t>(high << 4 | low));
  }
  return bytes;
}

bool ConstantTimeEqual(std::span<const std::uint8_t> a, std::span<const std::uint8_t> b) {
  return a.size() == b.size() && CRYPTO_memcmp(a.data(), b.data(), a.size()) == 0;
}

}  // namespace inferscale
