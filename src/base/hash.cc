#include "base/hash.h"

#include <openssl/core_names.h>
#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <openssl/params.h>

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

// Looking an algorithm up by its name takes OpenSSL longer than hashing a chat's request: each is
// looked up once.
const EVP_MD* Sha256Algorithm() {
  static const EVP_MD* const kAlgorithm = EVP_MD_fetch(nullptr, "SHA256", nullptr);
  Require(kAlgorithm != nullptr);
  return kAlgorithm;
}

class HmacContext {
 public:
  HmacContext()
      : algorithm_(EVP_MAC_fetch(nullptr, "HMAC", nullptr)), context_(EVP_MAC_CTX_new(algorithm_)) {
    char digest[] = "SHA256";
    const OSSL_PARAM parameters[] = {
        OSSL_PARAM_construct_utf8_string(OSSL_MAC_PARAM_DIGEST, digest, 0),
        OSSL_PARAM_construct_end()};
    Require(context_ != nullptr && EVP_MAC_CTX_set_params(context_, parameters) == 1);
  }
  ~HmacContext() {
    EVP_MAC_CTX_free(context_);
    EVP_MAC_free(algorithm_);
  }
  HmacContext(const HmacContext&) = delete;
  HmacContext& operator=(const HmacContext&) = delete;

  Sha256Digest Compute(std::span<const std::uint8_t> key, std::span<const std::uint8_t> data,
                       std::span<const std::uint8_t> more) {
    static constexpr std::uint8_t kEmpty = 0;  // a null key is taken for "the key used before"
    Sha256Digest digest{};
    std::size_t size = 0;
    Require(EVP_MAC_init(context_, key.empty() ? &kEmpty : key.data(), key.size(), nullptr) == 1 &&
            EVP_MAC_update(context_, data.empty() ? &kEmpty : data.data(), data.size()) == 1 &&
            (more.empty() || EVP_MAC_update(context_, more.data(), more.size()) == 1) &&
            EVP_MAC_final(context_, digest.data(), &size, digest.size()) == 1 &&
            size == digest.size());
    return digest;
  }

 private:
  EVP_MAC* const algorithm_;
  EVP_MAC_CTX* const context_;
};

}  // namespace

struct Sha256Stream::Impl {
  EVP_MD_CTX* context = EVP_MD_CTX_new();
  ~Impl() { EVP_MD_CTX_free(context); }
  void Start() {
    Require(context != nullptr && EVP_DigestInit_ex(context, Sha256Algorithm(), nullptr) == 1);
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

Sha256Digest HmacSha256(std::span<const std::uint8_t> key, std::span<const std::uint8_t> data,
                        std::span<const std::uint8_t> more) {
  thread_local HmacContext context;
  return context.Compute(key, data, more);
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
  static constexpr std::uint8_t kNone = 0xff;
  static constexpr std::array<std::uint8_t, 256> kDigits = [] {
    std::array<std::uint8_t, 256> digits{};
    digits.fill(kNone);
    for (std::uint8_t i = 0; i < 10; ++i) digits[std::size_t{'0'} + i] = i;
    for (std::uint8_t i = 0; i < 6; ++i) {
      digits[std::size_t{'a'} + i] = digits[std::size_t{'A'} + i] =
          static_cast<std::uint8_t>(10 + i);
    }
    return digits;
  }();
  if (text.size() % 2 != 0) return InvalidArgument("hexadecimal text has an odd length");
  std::vector<std::uint8_t> bytes(text.size() / 2);
  for (std::size_t i = 0; i < bytes.size(); ++i) {
    const std::uint8_t high = kDigits[static_cast<std::uint8_t>(text[2 * i])];
    const std::uint8_t low = kDigits[static_cast<std::uint8_t>(text[2 * i + 1])];
    if (high == kNone || low == kNone) {
      return InvalidArgument("hexadecimal text has a wrong digit at character " +
                             std::to_string(2 * i));
    }
    bytes[i] = static_cast<std::uint8_t>(high << 4 | low);
  }
  return bytes;
}

bool ConstantTimeEqual(std::span<const std::uint8_t> a, std::span<const std::uint8_t> b) {
  return a.size() == b.size() && CRYPTO_memcmp(a.data(), b.data(), a.size()) == 0;
}

}  // namespace inferscale
