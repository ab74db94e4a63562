#include "base/bytes.h"

#include <bit>
#include <cassert>

namespace inferscale {
namespace {

template <typename T>
void Append(std::vector<std::uint8_t>& bytes, T value) {
  for (std::size_t i = 0; i < sizeof(T); ++i) {
    bytes.push_back(static_cast<std::uint8_t>(value >> (8 * i)));
  }
}

}  // namespace

std::optional<std::size_t> CheckedMultiply(std::size_t a, std::size_t b) {
  std::size_t product = 0;
  if (__builtin_mul_overflow(a, b, &product)) return std::nullopt;
  return product;
}

std::optional<std::size_t> CheckedAdd(std::size_t a, std::size_t b) {
  std::size_t sum = 0;
  if (__builtin_add_overflow(a, b, &sum)) return std::nullopt;
  return sum;
}

std::span<const std::uint8_t> AsBytes(std::string_view text) {
  return {reinterpret_cast<const std::uint8_t*>(text.data()), text.size()};
}

std::string_view AsText(std::span<const std::uint8_t> bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

template <typename T>
T ByteReader::ReadInteger() {
  const std::span<const std::uint8_t> bytes = ReadBytes(sizeof(T));
  T value = 0;
  for (std::size_t i = 0; i < bytes.size(); ++i) {
    value = static_cast<T>(value | static_cast<T>(bytes[i]) << (8 * i));
  }
  return value;
}

std::uint8_t ByteReader::ReadU8() { return ReadInteger<std::uint8_t>(); }
std::uint16_t ByteReader::ReadU16() { return ReadInteger<std::uint16_t>(); }
std::uint32_t ByteReader::ReadU32() { return ReadInteger<std::uint32_t>(); }
std::uint64_t ByteReader::ReadU64() { return ReadInteger<std::uint64_t>(); }
std::int32_t ByteReader::ReadI32() { return static_cast<std::int32_t>(ReadU32()); }
std::int64_t ByteReader::ReadI64() { return static_cast<std::int64_t>(ReadU64()); }
float ByteReader::ReadF32() { return std::bit_cast<float>(ReadU32()); }

std::span<const std::uint8_t> ByteReader::ReadBytes(std::size_t size) {
  if (size > remaining()) ok_ = false;
  if (!ok_) return {};
  const auto bytes = data_.subspan(offset_, size);
  offset_ += size;
  return bytes;
}

std::span<const std::uint8_t> ByteReader::ReadArray(std::size_t count, std::size_t element_size) {
  const auto size = CheckedMultiply(count, element_size);
  if (!size) {
    ok_ = false;
    return {};
  }
  return ReadBytes(*size);
}

std::string ByteReader::ReadString(std::size_t max_size) {
  const std::size_t size = ReadU32();
  if (size > max_size) ok_ = false;
  return std::string(AsText(ReadBytes(size)));
}

bool ByteReader::CanHold(std::uint64_t count, std::size_t min_element_size) {
  assert(min_element_size > 0);
  if (count > remaining() / min_element_size) ok_ = false;
  return ok_;
}

Status ByteReader::status(std::string_view what) const {
  if (ok_) return OkStatus();
  return DataLoss(std::string(what) + " is truncated or corrupt near byte " +
                  std::to_string(offset_) + " of " + std::to_string(data_.size()));
}

void ByteWriter::WriteU16(std::uint16_t value) { Append(bytes_, value); }
void ByteWriter::WriteU32(std::uint32_t value) { Append(bytes_, value); }
void ByteWriter::WriteU64(std::uint64_t value) { Append(bytes_, value); }
void ByteWriter::WriteF32(float value) { WriteU32(std::bit_cast<std::uint32_t>(value)); }

void ByteWriter::WriteBytes(std::span<const std::uint8_t> bytes) {
  bytes_.insert(bytes_.end(), bytes.begin(), bytes.end());
}

void ByteWriter::WriteString(std::string_view text) {
  assert(text.size() <= UINT32_MAX);
  WriteU32(static_cast<std::uint32_t>(text.size()));
  WriteBytes(AsBytes(text));
}

void ByteWriter::PadTo(std::size_t alignment) {
  assert(alignment > 0);
  while (bytes_.size() % alignment != 0) bytes_.push_back(0);
}

void ByteWriter::PatchU32(std::size_t offset, std::uint32_t value) {
  assert(offset + 4 <= bytes_.size());
  for (std::size_t i = 0; i < 4; ++i) {
    bytes_[offset + i] = static_cast<std::uint8_t>(value >> (8 * i));
  }
}

}  // namespace inferscale
