#ifndef INFERSCALE_CONNECTOR_TRANSFER_REQUEST_H_
#define INFERSCALE_CONNECTOR_TRANSFER_REQUEST_H_

/// \file transfer_request.h
/// TransferRequest: what a gateway asks of the connector inside a vLLM request. It travels as three
/// plain values, `kv_transfer_params["inferscale"] = {"schema", "request", "mac"}`: engines copy
/// the parameters of every request several times, object by object, so that a list of blocks as
/// JSON costs more than the injection. Guarantees: no request comes out of OpenTransferRequest that
/// was not signed for this prompt, salt and time; anything else is served as plain text. The
/// functions are thread-safe.

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "inferscale/result.h"
#include "inferscale/types.h"

namespace inferscale {

/// The schema this version reads and writes.
inline constexpr std::int64_t kTransferSchema = 2;

enum class TransferOperation : std::uint8_t {
  kInject = 0,   ///< write stored KV of the named ranges where it is ready
  kCapture = 1,  ///< store the KV of the named ranges after they are computed
  kProbe = 2,    ///< the prompt is one token again and again: measure the rotation
};

/// A run of the prompt whose KV may be stored: [begin, end) in tokens.
struct TransferBlock {
  KvKey key;
  std::int32_t begin = 0;
  std::int32_t end = 0;
  std::vector<std::string> saw;  ///< capture: ids of the facts and turns in front of it
};

struct TransferRequest {
  TransferOperation operation = TransferOperation::kInject;
  std::uint64_t scope_tag = 0;
  std::uint64_t epoch = 0;
  TimeMs expires_ms = 0;              ///< refused later than this
  std::string salt;                   ///< must be vLLM's cache_salt of the same request
  std::vector<TransferBlock> blocks;  ///< ascending, not overlapping
};

/// A request as it travels.
struct CarriedTransfer {
  std::int64_t schema = kTransferSchema;
  std::string request;  ///< its fields in hexadecimal
  std::string mac;      ///< HMAC-SHA-256 over them and the prompt's ids, 64 hexadecimal digits
};

CarriedTransfer SignTransferRequest(const TransferRequest& request, std::span<const TokenId> prompt,
                                    std::span<const std::uint8_t> secret);

/// \param salt the cache salt of the vLLM request that carries it.
/// \return kUnsupported for another schema; kInvalidArgument for anything malformed, out of order,
/// or outside the prompt; kFailedPrecondition if the MAC (compared in constant time), the salt or
/// the time does not agree.
Result<TransferRequest> OpenTransferRequest(const CarriedTransfer& carried,
                                            std::span<const TokenId> prompt, std::string_view salt,
                                            std::span<const std::uint8_t> secret, TimeMs now);

}  // namespace inferscale

#endif  // INFERSCALE_CONNECTOR_TRANSFER_REQUEST_H_
