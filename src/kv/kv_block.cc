#include "inferscale/kv_block.h"

#include <array>
#include <utility>

#include "kv/block_format.h"

namespace inferscale {
namespace {

// In the order of KvCodec.
constexpr std::array<std::string_view, 5> kCodecNames = {"f32", "f16", "bf16", "int8", "int4"};

}  // namespace

std::string_view KvCodecName(KvCodec codec) {
  const auto index = static_cast<std::size_t>(codec);
  return index < kCodecNames.size() ? kCodecNames[index] : "unknown";
}

Result<KvCodec> ParseKvCodec(std::string_view name) {
  for (std::size_t index = 0; index < kCodecNames.size(); ++index) {
    if (kCodecNames[index] == name) return static_cast<KvCodec>(index);
  }
  return InvalidArgument("unknown KV codec \"" + std::string(name) +
                         "\"; use f32, f16, bf16, int8 or int4");
}

std::int64_t KvGeometry::TokenBytes(std::int32_t bytes_per_element) const {
  return std::int64_t{layers} * kv_heads * (std::int64_t{key_dim} + value_dim) * bytes_per_element;
}

Result<std::shared_ptr<const KvBlock>> KvBlock::Create(KvBlockInfo info,
                                                       std::vector<std::uint8_t> payload) {
  INFERSCALE_RETURN_IF_ERROR(CheckBlockInfo(info));
  const std::size_t expected = kernels::PayloadBytes(MakeCodecView(info), info.tokens.size());
  if (expected == 0 || payload.size() != expected) {
    return InvalidArgument("KV block payload has " + std::to_string(payload.size()) + " bytes; " +
                           std::to_string(info.tokens.size()) + " tokens of this geometry in " +
                           std::string(KvCodecName(info.codec)) + " have " +
                           std::to_string(expected));
  }
  std::shared_ptr<KvBlock> block(new KvBlock());
  block->info_ = std::move(info);
  block->payload_ = std::move(payload);
  return std::shared_ptr<const KvBlock>(std::move(block));
}

Result<std::shared_ptr<const KvBlock>> KvBlock::Parse(std::span<const std::uint8_t> file) {
  INFERSCALE_ASSIGN_OR_RETURN(BlockHeader header, ParseBlockHeader(file));
  const auto payload = file.subspan(header.header_bytes);
  INFERSCALE_RETURN_IF_ERROR(CheckBlockPayload(header, payload));
  return Create(std::move(header.info), {payload.begin(), payload.end()});
}

Result<KvBlockInfo> KvBlock::ParseInfo(std::span<const std::uint8_t> file) {
  INFERSCALE_ASSIGN_OR_RETURN(BlockHeader header, ParseBlockHeader(file));
  return std::move(header.info);
}

std::vector<std::uint8_t> KvBlock::Serialize() const {
  std::vector<std::uint8_t> file = SerializeBlockHeader(info_, payload_);
  file.insert(file.end(), payload_.begin(), payload_.end());
  return file;
}

std::size_t KvBlock::MemorySizeBytes() const {
  std::size_t bytes = sizeof(*this) + payload_.capacity() + info_.tokens.size() * sizeof(TokenId);
  for (const std::string& id : info_.saw) bytes += sizeof(id) + id.size();
  return bytes;
}

}  // namespace inferscale
