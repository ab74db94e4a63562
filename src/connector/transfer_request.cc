#include "connector/transfer_request.h"

#include <algorithm>
#include <bit>
#include <limits>
#include <utility>

#include <nlohmann/json.hpp>

#include "base/bytes.h"
#include "base/hash.h"

namespace inferscale {
namespace {

using Json = nlohmann::json;

constexpr std::size_t kMaxJsonBytes = std::size_t{16} << 20;
constexpr std::size_t kMaxBlocks = 65536;
constexpr std::size_t kMaxSaw = 65536;
constexpr std::size_t kMaxText = 1024;
constexpr std::string_view kOperations[] = {"inject", "capture", "probe"};

Status Malformed(std::string_view field, std::string_view expected) {
  return InvalidArgument("kv_transfer_params.inferscale." + std::string(field) + " must be " +
                         std::string(expected));
}

Result<std::string> Text(const Json& object, std::string_view field, std::size_t max_bytes) {
  const auto place = object.find(field);
  if (place == object.end() || !place->is_string() ||
      place->get_ref<const std::string&>().size() > max_bytes) {
    return Malformed(field, "a string of at most " + std::to_string(max_bytes) + " bytes");
  }
  return place->get<std::string>();
}

Result<std::uint64_t> Unsigned(const Json& object, std::string_view field) {
  const auto place = object.find(field);
  if (place == object.end() || !place->is_number_unsigned()) {
    return Malformed(field, "an integer from 0");
  }
  return place->get<std::uint64_t>();
}

Result<std::vector<std::uint8_t>> Hex(const Json& object, std::string_view field,
                                      std::size_t bytes) {
  const auto text = Text(object, field, bytes * 2);
  auto decoded = text.ok() ? HexDecode(*text) : text.status();
  if (!decoded.ok() || decoded->size() != bytes) {
    return Malformed(field, std::to_string(bytes * 2) + " hexadecimal digits");
  }
  return decoded;
}

Result<TransferBlock> ReadBlock(const Json& object, std::int64_t prompt_tokens,
                                std::int32_t after) {
  if (!object.is_object()) return Malformed("blocks", "a list of objects");
  TransferBlock block;
  INFERSCALE_ASSIGN_OR_RETURN(const std::vector<std::uint8_t> key, Hex(object, "key", 16));
  std::copy(key.begin(), key.end(), block.key.bytes.begin());
  INFERSCALE_ASSIGN_OR_RETURN(const std::uint64_t begin, Unsigned(object, "begin"));
  INFERSCALE_ASSIGN_OR_RETURN(const std::uint64_t end, Unsigned(object, "end"));
  if (begin < static_cast<std::uint64_t>(after) || end <= begin ||
      end > static_cast<std::uint64_t>(prompt_tokens)) {
    return Malformed("blocks", "ascending ranges inside the prompt of " +
                                   std::to_string(prompt_tokens) + " tokens");
  }
  block.begin = static_cast<std::int32_t>(begin);
  block.end = static_cast<std::int32_t>(end);
  if (const auto saw = object.find("saw"); saw != object.end()) {
    if (!saw->is_array() || saw->size() > kMaxSaw) return Malformed("saw", "a list of strings");
    for (const Json& id : *saw) {
      if (!id.is_string() || id.get_ref<const std::string&>().size() > kMaxText) {
        return Malformed("saw", "a list of strings");
      }
      block.saw.push_back(id.get<std::string>());
    }
  }
  return block;
}

}  // namespace

Result<TransferRequest> ParseTransferRequest(std::string_view json, std::int64_t prompt_tokens) {
  if (json.size() > kMaxJsonBytes) return Malformed("", "at most 16 MiB of JSON");
  if (prompt_tokens > std::numeric_limits<std::int32_t>::max()) {
    return InvalidArgument("the prompt is too long");
  }
  const Json object = Json::parse(json, nullptr, /*allow_exceptions=*/false);
  if (!object.is_object())
    return InvalidArgument("kv_transfer_params.inferscale must be an object");
  INFERSCALE_ASSIGN_OR_RETURN(const std::uint64_t schema, Unsigned(object, "schema"));
  if (schema != static_cast<std::uint64_t>(kTransferSchema)) {
    return Unsupported("kv_transfer_params.inferscale has schema " + std::to_string(schema) +
                       ", this connector reads " + std::to_string(kTransferSchema) +
                       "; use a gateway and a connector of one version");
  }
  TransferRequest request;
  INFERSCALE_ASSIGN_OR_RETURN(const std::string operation, Text(object, "operation", 16));
  const auto* known = std::find(std::begin(kOperations), std::end(kOperations), operation);
  if (known == std::end(kOperations)) return Malformed("operation", "inject, capture or probe");
  request.operation = static_cast<TransferOperation>(known - std::begin(kOperations));
  INFERSCALE_ASSIGN_OR_RETURN(const std::vector<std::uint8_t> scope, Hex(object, "scope", 8));
  for (const std::uint8_t byte : scope) request.scope_tag = request.scope_tag << 8 | byte;
  INFERSCALE_ASSIGN_OR_RETURN(request.epoch, Unsigned(object, "epoch"));
  INFERSCALE_ASSIGN_OR_RETURN(const std::uint64_t expires, Unsigned(object, "expires_ms"));
  if (expires > static_cast<std::uint64_t>(std::numeric_limits<TimeMs>::max())) {
    return Malformed("expires_ms", "milliseconds since 1970");
  }
  request.expires_ms = static_cast<TimeMs>(expires);
  INFERSCALE_ASSIGN_OR_RETURN(request.salt, Text(object, "salt", kMaxText));
  INFERSCALE_ASSIGN_OR_RETURN(request.mac, Text(object, "mac", 64));
  const auto blocks = object.find("blocks");
  if (blocks == object.end() || !blocks->is_array() || blocks->size() > kMaxBlocks) {
    return Malformed("blocks", "a list of at most " + std::to_string(kMaxBlocks) + " objects");
  }
  std::int32_t after = 0;
  for (const Json& item : *blocks) {
    INFERSCALE_ASSIGN_OR_RETURN(TransferBlock block, ReadBlock(item, prompt_tokens, after));
    after = block.end;
    request.blocks.push_back(std::move(block));
  }
  return request;
}

std::string SerializeTransferRequest(const TransferRequest& request) {
  Json blocks = Json::array();
  for (const TransferBlock& block : request.blocks) {
    Json item = {{"key", HexEncode(block.key.bytes)}, {"begin", block.begin}, {"end", block.end}};
    if (!block.saw.empty()) item["saw"] = block.saw;
    blocks.push_back(std::move(item));
  }
  std::array<std::uint8_t, 8> scope{};
  for (std::size_t i = 0; i < scope.size(); ++i) {
    scope[i] = static_cast<std::uint8_t>(request.scope_tag >> (56 - 8 * i));
  }
  return Json{{"schema", kTransferSchema},
              {"operation", kOperations[static_cast<std::size_t>(request.operation)]},
              {"scope", HexEncode(scope)},
              {"epoch", request.epoch},
              {"expires_ms", request.expires_ms},
              {"salt", request.salt},
              {"blocks", std::move(blocks)},
              {"mac", request.mac}}
      .dump();
}

std::string TransferMac(const TransferRequest& request, std::span<const TokenId> prompt,
                        std::span<const std::uint8_t> secret) {
  // Every part is of a fixed size or preceded by its length, so that no two requests give the same
  // message.
  ByteWriter message;
  message.Reserve(256 + request.salt.size() + request.blocks.size() * 32 +
                  prompt.size() * sizeof(TokenId));
  message.WriteString("inferscale transfer 1");
  message.WriteU8(static_cast<std::uint8_t>(request.operation));
  message.WriteU64(request.scope_tag);
  message.WriteU64(request.epoch);
  message.WriteI64(request.expires_ms);
  message.WriteString(request.salt);
  message.WriteU64(request.blocks.size());
  for (const TransferBlock& block : request.blocks) {
    message.WriteBytes(block.key.bytes);
    message.WriteI32(block.begin);
    message.WriteI32(block.end);
    message.WriteU64(block.saw.size());
    for (const std::string& id : block.saw) message.WriteString(id);
  }
  message.WriteU64(prompt.size());
  if constexpr (std::endian::native == std::endian::little && sizeof(TokenId) == 4) {
    message.WriteBytes({reinterpret_cast<const std::uint8_t*>(prompt.data()), prompt.size_bytes()});
  } else {
    for (const TokenId id : prompt) message.WriteI32(id);
  }
  return HexEncode(HmacSha256(secret, message.bytes()));
}

Status VerifyTransferRequest(const TransferRequest& request, std::span<const TokenId> prompt,
                             std::string_view salt, std::span<const std::uint8_t> secret,
                             TimeMs now) {
  const std::string mac = TransferMac(request, prompt, secret);
  if (!ConstantTimeEqual(AsBytes(mac), AsBytes(request.mac))) {
    return FailedPrecondition("the MAC does not agree; give gateway and vLLM the same secret");
  }
  if (request.salt.empty() || request.salt != salt) {
    return FailedPrecondition("the request's cache_salt is not the one that was signed");
  }
  if (request.expires_ms < now) {
    return FailedPrecondition("the request has expired; check the clocks of gateway and vLLM");
  }
  return OkStatus();
}

}  // namespace inferscale
