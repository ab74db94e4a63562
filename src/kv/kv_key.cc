#include <algorithm>
#include <string_view>

#include "base/bytes.h"
#include "base/hash.h"
#include "inferscale/kv_block.h"

namespace inferscale {
namespace {

// Every part is preceded by its length, so that no two lists of parts give the same message.
void WritePart(ByteWriter& writer, std::span<const std::uint8_t> part) {
  writer.WriteU64(part.size());
  writer.WriteBytes(part);
}

void WriteTokens(ByteWriter& writer, std::span<const TokenId> tokens) {
  writer.WriteU64(tokens.size());
  for (const TokenId token : tokens) writer.WriteI32(token);
}

}  // namespace

KvKey MakeKvKey(std::span<const std::uint8_t> tenant_secret, const Fingerprint& fingerprint,
                KvCodec codec, std::string_view scope, std::span<const TokenId> seen,
                std::span<const TokenId> own) {
  ByteWriter message;
  message.Reserve(128 + scope.size() + (seen.size() + own.size()) * sizeof(TokenId));
  WritePart(message, AsBytes("inferscale kv key 1"));
  WritePart(message, fingerprint);
  message.WriteU8(static_cast<std::uint8_t>(codec));
  WritePart(message, AsBytes(scope));
  WriteTokens(message, seen);
  WriteTokens(message, own);
  const Sha256Digest digest = HmacSha256(tenant_secret, message.bytes());
  KvKey key;
  std::copy_n(digest.begin(), key.bytes.size(), key.bytes.begin());
  return key;
}

}  // namespace inferscale
