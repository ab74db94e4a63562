#ifndef INFERSCALE_KV_BLOCK_FORMAT_H_
#define INFERSCALE_KV_BLOCK_FORMAT_H_

/// \file block_format.h
/// The header of a block file (docs/kv-format.md), apart from its payload, so that a file can be
/// checked before its payload is read and written without copying the payload. Pure functions.

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "inferscale/kv_block.h"
#include "inferscale/result.h"
#include "kernels/kernels.h"

namespace inferscale {

/// Bytes at the front that say how long the header and the payload are.
inline constexpr std::size_t kBlockPreludeBytes = 32;

inline constexpr std::int32_t kMaxBlockTokens = 1 << 20;
inline constexpr std::int32_t kMaxBlockLayers = 1024;
inline constexpr std::int32_t kMaxBlockHeads = 1024;
inline constexpr std::int32_t kMaxBlockDim = 4096;
inline constexpr std::size_t kMaxBlockSaw = 65536;
inline constexpr std::size_t kMaxBlockSawBytes = 256;

struct BlockHeader {
  KvBlockInfo info;
  std::size_t header_bytes = 0;  ///< the payload starts here
  std::uint64_t payload_bytes = 0;
  std::uint64_t payload_checksum = 0;
};

kernels::CodecView MakeCodecView(const KvBlockInfo& info);

/// kInvalidArgument, naming the field, when a field is outside the limits above.
Status CheckBlockInfo(const KvBlockInfo& info);

/// Length of the whole header, from the first kBlockPreludeBytes of a file.
Result<std::size_t> ParseBlockHeaderBytes(std::span<const std::uint8_t> prelude);
/// \param front the file's first bytes, at least its header. kDataLoss with offset and reason.
Result<BlockHeader> ParseBlockHeader(std::span<const std::uint8_t> front);
/// \param info has passed CheckBlockInfo
std::vector<std::uint8_t> SerializeBlockHeader(const KvBlockInfo& info,
                                               std::span<const std::uint8_t> payload);
/// kDataLoss when the payload is not the one the header was made for.
Status CheckBlockPayload(const BlockHeader& header, std::span<const std::uint8_t> payload);

}  // namespace inferscale

#endif  // INFERSCALE_KV_BLOCK_FORMAT_H_
