#ifndef INFERSCALE_KV_BLOCK_H_
#define INFERSCALE_KV_BLOCK_H_

/// \file kv_block.h
/// KvBlock: the keys (before rotation) and values of a run of tokens, all layers, for one model
/// fingerprint. Immutable after creation; safe to share between threads.

#include <array>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "inferscale/kv_formats.h"
#include "inferscale/result.h"
#include "inferscale/types.h"

namespace inferscale {

std::string_view KvCodecName(KvCodec codec);  ///< "f32", "f16", "bf16", "int8", "int4"
Result<KvCodec> ParseKvCodec(std::string_view name);

/// Shape of one token's KV.
struct KvGeometry {
  std::int32_t layers = 0;
  std::int32_t kv_heads = 0;
  std::int32_t key_dim = 0;    ///< elements per head
  std::int32_t value_dim = 0;  ///< elements per head

  bool operator==(const KvGeometry&) const = default;
  /// Bytes of a token before compression at `bytes_per_element`.
  std::int64_t TokenBytes(std::int32_t bytes_per_element) const;
};

/// SHA-256 over everything of the engine that decides a block's bytes: weights, tokenizer,
/// template, LoRA, RoPE, geometry, cache type. Recipe and codec are in the key: the recipe as the
/// tokens seen.
using Fingerprint = std::array<std::uint8_t, 32>;

/// Scope tag of exact prefixes, which belong to no owner.
inline constexpr std::uint64_t kPrefixScopeTag = 0;

/// What a block is and whose; everything but the payload.
struct KvBlockInfo {
  KvKey key;
  Fingerprint fingerprint{};
  std::uint64_t scope_tag = 0;  ///< opaque tag of the owner scope, for erasing by owner
  std::uint64_t epoch = 0;      ///< the scope's epoch when encoding was asked for
  KvGeometry geometry;
  KvCodec codec = KvCodec::kF16;
  TokenIds tokens;               ///< the ids the block stands for
  std::vector<std::string> saw;  ///< ids of facts and turns it was encoded behind
};

class KvBlock {
 public:
  /// \param payload arranged as kernels::CodecView says; its size is checked.
  static Result<std::shared_ptr<const KvBlock>> Create(KvBlockInfo info,
                                                       std::vector<std::uint8_t> payload);

  /// Parses a block file (docs/kv-format.md): magic, version, sizes and checksum are checked before
  /// anything is allocated. kDataLoss on any mismatch.
  static Result<std::shared_ptr<const KvBlock>> Parse(std::span<const std::uint8_t> file);
  /// Parses the header alone; no payload is needed, its checksum is not checked.
  static Result<KvBlockInfo> ParseInfo(std::span<const std::uint8_t> file);
  std::vector<std::uint8_t> Serialize() const;

  const KvBlockInfo& info() const { return info_; }
  std::int32_t tokens() const { return static_cast<std::int32_t>(info_.tokens.size()); }
  std::span<const std::uint8_t> payload() const { return payload_; }
  std::size_t MemorySizeBytes() const;

 private:
  KvBlock() = default;
  KvBlockInfo info_;
  std::vector<std::uint8_t> payload_;
};

/// \brief The key of a block: HMAC-SHA-256 under the tenant's secret, first 128 bits, over
/// fingerprint, codec, scope, the tokens seen in front and the block's own tokens, each
/// length-prefixed.
KvKey MakeKvKey(std::span<const std::uint8_t> tenant_secret, const Fingerprint& fingerprint,
                KvCodec codec, std::string_view scope, std::span<const TokenId> seen,
                std::span<const TokenId> own);

}  // namespace inferscale

#endif  // INFERSCALE_KV_BLOCK_H_
