#include "connector/transfer_request.h"

#include <algorithm>
#include <bit>
#include <limits>
#include <utility>

#include "base/bytes.h"
#include "base/hash.h"

namespace inferscale {
namespace {

constexpr std::size_t kMaxBytes = std::size_t{8} << 20;
constexpr std::size_t kMaxBlocks = 65536;
constexpr std::size_t kMaxText = 1024;
constexpr std::size_t kLeastBlockBytes = sizeof(KvKey::bytes) + 4 + 4 + 4;

void WriteFields(const TransferRequest& request, ByteWriter& out) {
  out.Reserve(64 + request.salt.size() + request.blocks.size() * kLeastBlockBytes);
  out.WriteU8(static_cast<std::uint8_t>(request.operation));
  out.WriteU64(request.scope_tag);
  out.WriteU64(request.epoch);
  out.WriteI64(request.expires_ms);
  out.WriteString(request.salt);
  out.WriteU32(static_cast<std::uint32_t>(request.blocks.size()));
  for (const TransferBlock& block : request.blocks) {
    out.WriteBytes(block.key.bytes);
    out.WriteI32(block.begin);
    out.WriteI32(block.end);
    out.WriteU32(static_cast<std::uint32_t>(block.saw.size()));
    for (const std::string& id : block.saw) out.WriteString(id);
  }
}

Status Malformed(std::string_view what) {
  return InvalidArgument("kv_transfer_params.inferscale: " + std::string(what));
}

Result<TransferRequest> ReadFields(std::span<const std::uint8_t> bytes, std::size_t prompt_tokens) {
  ByteReader in(bytes);
  TransferRequest request;
  const std::uint8_t operation = in.ReadU8();
  if (operation > static_cast<std::uint8_t>(TransferOperation::kProbe)) {
    return Malformed("the operation must be inject, capture or probe");
  }
  request.operation = static_cast<TransferOperation>(operation);
  request.scope_tag = in.ReadU64();
  request.epoch = in.ReadU64();
  request.expires_ms = in.ReadI64();
  request.salt = in.ReadString(kMaxText);
  const std::uint32_t count = in.ReadU32();
  if (count > kMaxBlocks || !in.CanHold(count, kLeastBlockBytes)) {
    return Malformed("cut short, or more than " + std::to_string(kMaxBlocks) + " blocks");
  }
  request.blocks.resize(count);
  std::int32_t after = 0;
  for (TransferBlock& block : request.blocks) {
    const auto key = in.ReadBytes(block.key.bytes.size());
    if (in.ok()) std::copy(key.begin(), key.end(), block.key.bytes.begin());
    block.begin = in.ReadI32();
    block.end = in.ReadI32();
    const std::uint32_t saw = in.ReadU32();
    if (!in.CanHold(saw, sizeof(std::uint32_t))) return Malformed("cut short");
    for (std::uint32_t i = 0; i < saw; ++i) block.saw.push_back(in.ReadString(kMaxText));
    if (in.ok() && (block.begin < after || block.end <= block.begin ||
                    static_cast<std::size_t>(block.end) > prompt_tokens)) {
      return Malformed("blocks must be ascending ranges inside the prompt of " +
                       std::to_string(prompt_tokens) + " tokens");
    }
    after = block.end;
  }
  if (!in.ok() || in.remaining() != 0) return Malformed("cut short, or bytes at its end");
  return request;
}

Sha256Digest MacOf(std::span<const std::uint8_t> fields, std::span<const TokenId> prompt,
                   std::span<const std::uint8_t> secret) {
  // Every part is preceded by its length, so that no two requests give the same message.
  ByteWriter message;
  message.Reserve(64 + fields.size());
  message.WriteString("inferscale transfer 2");
  message.WriteU64(fields.size());
  message.WriteBytes(fields);
  message.WriteU64(prompt.size());
  if constexpr (std::endian::native == std::endian::little && sizeof(TokenId) == 4) {
    return HmacSha256(secret, message.bytes(),
                      {reinterpret_cast<const std::uint8_t*>(prompt.data()), prompt.size_bytes()});
  }
  for (const TokenId id : prompt) message.WriteI32(id);
  return HmacSha256(secret, message.bytes());
}

}  // namespace

CarriedTransfer SignTransferRequest(const TransferRequest& request, std::span<const TokenId> prompt,
                                    std::span<const std::uint8_t> secret) {
  ByteWriter fields;
  WriteFields(request, fields);
  return {kTransferSchema, HexEncode(fields.bytes()),
          HexEncode(MacOf(fields.bytes(), prompt, secret))};
}

Result<TransferRequest> OpenTransferRequest(const CarriedTransfer& carried,
                                            std::span<const TokenId> prompt, std::string_view salt,
                                            std::span<const std::uint8_t> secret, TimeMs now) {
  if (carried.schema != kTransferSchema) {
    return Unsupported("kv_transfer_params.inferscale has schema " +
                       std::to_string(carried.schema) + ", this connector reads " +
                       std::to_string(kTransferSchema) +
                       "; use a gateway and a connector of one version");
  }
  if (carried.request.size() > 2 * kMaxBytes) return Malformed("more than 16 MiB");
  if (prompt.size() > static_cast<std::size_t>(std::numeric_limits<std::int32_t>::max())) {
    return Malformed("the prompt is too long");
  }
  const auto fields = HexDecode(carried.request);
  const auto mac = HexDecode(carried.mac);
  if (!fields.ok() || !mac.ok()) return Malformed("request and mac must be hexadecimal digits");
  if (!ConstantTimeEqual(MacOf(*fields, prompt, secret), *mac)) {
    return FailedPrecondition("the MAC does not agree; give gateway and vLLM the same secret");
  }
  INFERSCALE_ASSIGN_OR_RETURN(TransferRequest request, ReadFields(*fields, prompt.size()));
  if (request.salt.empty() || request.salt != salt) {
    return FailedPrecondition("the request's cache_salt is not the one that was signed");
  }
  if (request.expires_ms < now) {
    return FailedPrecondition("the request has expired; check the clocks of gateway and vLLM");
  }
  return request;
}

}  // namespace inferscale
