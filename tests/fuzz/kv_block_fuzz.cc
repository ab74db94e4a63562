// KV block files: whatever the bytes are, Parse and ParseInfo end with a value or kDataLoss, and a
// value is written back as the same bytes.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <span>
#include <vector>

#include "base/hash.h"
#include "inferscale/kv_block.h"

namespace {

using inferscale::KvBlock;
using inferscale::StatusCode;

void Check(bool holds) {
  if (!holds) std::abort();
}

void ParseBoth(std::span<const uint8_t> file) {
  const auto info = KvBlock::ParseInfo(file);
  Check(info.ok() || info.status().code() == StatusCode::kDataLoss);
  const auto block = KvBlock::Parse(file);
  if (!block.ok()) {
    Check(block.status().code() == StatusCode::kDataLoss);
    return;
  }
  Check(info.ok());
  const std::vector<uint8_t> written = (*block)->Serialize();
  Check(written.size() == file.size() && std::equal(written.begin(), written.end(), file.begin()));
}

void WriteU64(std::vector<uint8_t>& file, size_t offset, uint64_t value) {
  for (size_t i = 0; i < 8; ++i) file[offset + i] = static_cast<uint8_t>(value >> (8 * i));
}

// Makes both checksums match, so that changes reach the checks behind them.
bool Seal(std::vector<uint8_t>& file) {
  if (file.size() < 32) return false;
  size_t header_bytes = 0;
  for (size_t i = 0; i < 4; ++i) header_bytes |= size_t{file[8 + i]} << (8 * i);
  if (header_bytes < 40 || header_bytes > file.size()) return false;
  WriteU64(file, 24, inferscale::Xxh3_64(std::span(file).subspan(header_bytes)));
  WriteU64(file, header_bytes - 8, inferscale::Xxh3_64(std::span(file).first(header_bytes - 8)));
  return true;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  ParseBoth({data, size});
  std::vector<uint8_t> sealed(data, data + size);
  if (Seal(sealed)) ParseBoth(sealed);
  return 0;
}
