#include "kv/block_format.h"

#include <algorithm>
#include <array>
#include <string>
#include <string_view>

#include "base/bytes.h"
#include "base/hash.h"

namespace inferscale {
namespace {

constexpr std::array<std::uint8_t, 6> kMagic = {'I', 'S', 'K', 'V', 'B', 0};
constexpr std::uint16_t kFormatVersion = 1;
constexpr std::size_t kChecksumBytes = 8;
// Key, fingerprint, scope tag, epoch, four dimensions, codec with padding, two counts.
constexpr std::size_t kFixedBytes = kBlockPreludeBytes + 16 + 32 + 8 + 8 + 4 * 4 + 4 + 4 + 4;
constexpr std::size_t kMinHeaderBytes = kFixedBytes + kChecksumBytes;
constexpr std::size_t kMaxHeaderBytes = kFixedBytes + std::size_t{kMaxBlockTokens} * 4 +
                                        kMaxBlockSaw * (4 + kMaxBlockSawBytes) +
                                        kernels::kSegmentAlignment + kChecksumBytes;

Status Corrupt(std::size_t offset, std::string_view reason) {
  return DataLoss("KV block file is corrupt at byte " + std::to_string(offset) + ": " +
                  std::string(reason));
}

Status CheckRange(std::string_view name, std::int64_t value, std::int64_t max) {
  if (value >= 1 && value <= max) return OkStatus();
  return InvalidArgument("KV block has " + std::to_string(value) + " for " + std::string(name) +
                         ", which must be 1 to " + std::to_string(max));
}

bool IsKnownCodec(KvCodec codec) {
  return static_cast<std::uint8_t>(codec) <= static_cast<std::uint8_t>(KvCodec::kInt4);
}

template <std::size_t size>
void ReadInto(ByteReader& reader, std::array<std::uint8_t, size>& out) {
  const auto bytes = reader.ReadBytes(size);
  std::copy(bytes.begin(), bytes.end(), out.begin());
}

}  // namespace

kernels::CodecView MakeCodecView(const KvBlockInfo& info) {
  return {info.codec, info.geometry.layers, info.geometry.kv_heads, info.geometry.key_dim,
          info.geometry.value_dim};
}

Status CheckBlockInfo(const KvBlockInfo& info) {
  INFERSCALE_RETURN_IF_ERROR(CheckRange("layers", info.geometry.layers, kMaxBlockLayers));
  INFERSCALE_RETURN_IF_ERROR(CheckRange("kv_heads", info.geometry.kv_heads, kMaxBlockHeads));
  INFERSCALE_RETURN_IF_ERROR(CheckRange("key_dim", info.geometry.key_dim, kMaxBlockDim));
  INFERSCALE_RETURN_IF_ERROR(CheckRange("value_dim", info.geometry.value_dim, kMaxBlockDim));
  INFERSCALE_RETURN_IF_ERROR(
      CheckRange("tokens", static_cast<std::int64_t>(info.tokens.size()), kMaxBlockTokens));
  if (!IsKnownCodec(info.codec)) {
    return InvalidArgument("KV block has the unknown codec " +
                           std::to_string(static_cast<int>(info.codec)));
  }
  if (std::any_of(info.tokens.begin(), info.tokens.end(), [](TokenId id) { return id < 0; })) {
    return InvalidArgument("KV block has a negative token id");
  }
  if (info.saw.size() > kMaxBlockSaw) {
    return InvalidArgument("KV block has seen " + std::to_string(info.saw.size()) +
                           " facts and turns; at most " + std::to_string(kMaxBlockSaw) +
                           " can be recorded");
  }
  for (const std::string& id : info.saw) {
    if (id.size() > kMaxBlockSawBytes) {
      return InvalidArgument("KV block has seen an id of " + std::to_string(id.size()) +
                             " bytes; at most " + std::to_string(kMaxBlockSawBytes) +
                             " can be recorded");
    }
  }
  return OkStatus();
}

Result<std::size_t> ParseBlockHeaderBytes(std::span<const std::uint8_t> prelude) {
  ByteReader reader(prelude);
  const auto magic = reader.ReadBytes(kMagic.size());
  const std::uint16_t version = reader.ReadU16();
  const std::uint32_t header_bytes = reader.ReadU32();
  if (!reader.ok()) return reader.status("KV block file");
  if (!std::equal(magic.begin(), magic.end(), kMagic.begin(), kMagic.end())) {
    return Corrupt(0, "it does not begin with ISKVB");
  }
  if (version != kFormatVersion) {
    return Corrupt(kMagic.size(), "format version " + std::to_string(version) +
                                      " is unknown, this program reads version " +
                                      std::to_string(kFormatVersion));
  }
  if (header_bytes < kMinHeaderBytes || header_bytes > kMaxHeaderBytes ||
      header_bytes % kernels::kSegmentAlignment != 0) {
    return Corrupt(kMagic.size() + 2,
                   "a header of " + std::to_string(header_bytes) + " bytes is impossible");
  }
  return std::size_t{header_bytes};
}

Result<BlockHeader> ParseBlockHeader(std::span<const std::uint8_t> front) {
  BlockHeader header;
  INFERSCALE_ASSIGN_OR_RETURN(header.header_bytes, ParseBlockHeaderBytes(front));
  if (header.header_bytes > front.size()) {
    return Corrupt(front.size(), "the file ends inside its header of " +
                                     std::to_string(header.header_bytes) + " bytes");
  }
  // The checksum stands last, over everything in front of it.
  const std::size_t checksum_at = header.header_bytes - kChecksumBytes;
  ByteReader checksum(front.subspan(checksum_at, kChecksumBytes));
  if (checksum.ReadU64() != Xxh3_64(front.first(checksum_at))) {
    return Corrupt(checksum_at, "the header does not match its checksum");
  }

  ByteReader reader(front.first(checksum_at));
  KvBlockInfo& info = header.info;
  reader.Skip(kMagic.size() + 2 + 4);
  if (reader.ReadU32() != 0) return Corrupt(reader.offset() - 4, "reserved bytes are not zero");
  header.payload_bytes = reader.ReadU64();
  header.payload_checksum = reader.ReadU64();
  ReadInto(reader, info.key.bytes);
  ReadInto(reader, info.fingerprint);
  info.scope_tag = reader.ReadU64();
  info.epoch = reader.ReadU64();
  info.geometry.layers = reader.ReadI32();
  info.geometry.kv_heads = reader.ReadI32();
  info.geometry.key_dim = reader.ReadI32();
  info.geometry.value_dim = reader.ReadI32();
  const std::uint32_t codec = reader.ReadU32();
  if (codec > static_cast<std::uint32_t>(KvCodec::kInt4)) {
    return Corrupt(reader.offset() - 4, "codec " + std::to_string(codec) + " is unknown");
  }
  info.codec = static_cast<KvCodec>(codec);
  const std::uint32_t token_count = reader.ReadU32();
  const std::uint32_t saw_count = reader.ReadU32();
  if (token_count > static_cast<std::uint32_t>(kMaxBlockTokens) ||
      !reader.CanHold(token_count, sizeof(TokenId))) {
    return Corrupt(reader.offset() - 8, std::to_string(token_count) + " tokens do not fit");
  }
  info.tokens.reserve(token_count);
  for (std::uint32_t i = 0; i < token_count; ++i) info.tokens.push_back(reader.ReadI32());
  if (saw_count > kMaxBlockSaw || !reader.CanHold(saw_count, sizeof(std::uint32_t))) {
    return Corrupt(reader.offset(), std::to_string(saw_count) + " seen ids do not fit");
  }
  info.saw.reserve(saw_count);
  for (std::uint32_t i = 0; i < saw_count && reader.ok(); ++i) {
    info.saw.push_back(reader.ReadString(kMaxBlockSawBytes));
  }
  if (!reader.ok()) return Corrupt(reader.offset(), "a seen id does not fit");
  const std::size_t end = reader.offset();
  const auto padding = reader.ReadBytes(reader.remaining());
  if (padding.size() >= kernels::kSegmentAlignment ||
      std::any_of(padding.begin(), padding.end(), [](std::uint8_t byte) { return byte != 0; })) {
    return Corrupt(end, "the header's end is not where its fields end");
  }
  if (const Status status = CheckBlockInfo(info); !status.ok()) {
    return Corrupt(kBlockPreludeBytes, status.message());
  }
  const std::size_t expected = kernels::PayloadBytes(MakeCodecView(info), info.tokens.size());
  if (expected == 0 || header.payload_bytes != expected) {
    return Corrupt(16, "a payload of " + std::to_string(header.payload_bytes) +
                           " bytes does not belong to this geometry, codec and token count, " +
                           std::to_string(expected) + " do");
  }
  return header;
}

std::vector<std::uint8_t> SerializeBlockHeader(const KvBlockInfo& info,
                                               std::span<const std::uint8_t> payload) {
  std::size_t fields_end = kFixedBytes + info.tokens.size() * sizeof(TokenId);
  for (const std::string& id : info.saw) fields_end += sizeof(std::uint32_t) + id.size();
  constexpr std::size_t kAlignment = kernels::kSegmentAlignment;
  const std::size_t header_bytes =
      (fields_end + kChecksumBytes + kAlignment - 1) / kAlignment * kAlignment;

  ByteWriter writer;
  writer.Reserve(header_bytes);
  writer.WriteBytes(kMagic);
  writer.WriteU16(kFormatVersion);
  writer.WriteU32(static_cast<std::uint32_t>(header_bytes));
  writer.WriteU32(0);
  writer.WriteU64(payload.size());
  writer.WriteU64(Xxh3_64(payload));
  writer.WriteBytes(info.key.bytes);
  writer.WriteBytes(info.fingerprint);
  writer.WriteU64(info.scope_tag);
  writer.WriteU64(info.epoch);
  writer.WriteI32(info.geometry.layers);
  writer.WriteI32(info.geometry.kv_heads);
  writer.WriteI32(info.geometry.key_dim);
  writer.WriteI32(info.geometry.value_dim);
  writer.WriteU32(static_cast<std::uint32_t>(info.codec));
  writer.WriteU32(static_cast<std::uint32_t>(info.tokens.size()));
  writer.WriteU32(static_cast<std::uint32_t>(info.saw.size()));
  for (const TokenId token : info.tokens) writer.WriteI32(token);
  for (const std::string& id : info.saw) writer.WriteString(id);
  while (writer.size() < header_bytes - kChecksumBytes) writer.WriteU8(0);
  writer.WriteU64(Xxh3_64(writer.bytes()));
  return writer.Take();
}

Status CheckBlockPayload(const BlockHeader& header, std::span<const std::uint8_t> payload) {
  if (payload.size() != header.payload_bytes) {
    return Corrupt(header.header_bytes, "the payload has " + std::to_string(payload.size()) +
                                            " bytes, the header says " +
                                            std::to_string(header.payload_bytes));
  }
  if (Xxh3_64(payload) != header.payload_checksum) {
    return Corrupt(header.header_bytes, "the payload does not match its checksum");
  }
  return OkStatus();
}

}  // namespace inferscale
