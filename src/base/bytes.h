#ifndef INFERSCALE_BASE_BYTES_H_
#define INFERSCALE_BASE_BYTES_H_

/// \file bytes.h
/// Checked little-endian reading and writing. ByteReader never reads outside its span: the first
/// read that does not fit makes the reader fail for good, and every later read gives zeros or
/// nothing, so that a parser checks ok() once at its end and before it trusts a count. Neither is
/// thread-safe.

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "inferscale/result.h"

namespace inferscale {

/// Product or sum of sizes; nullopt on overflow.
std::optional<std::size_t> CheckedMultiply(std::size_t a, std::size_t b);
std::optional<std::size_t> CheckedAdd(std::size_t a, std::size_t b);

/// The bytes of a text, and a text's view of bytes; neither copies.
std::span<const std::uint8_t> AsBytes(std::string_view text);
std::string_view AsText(std::span<const std::uint8_t> bytes);

class ByteReader {
 public:
  /// \param data must outlive the reader and every span it returns.
  explicit ByteReader(std::span<const std::uint8_t> data) : data_(data) {}

  std::uint8_t ReadU8();
  std::uint16_t ReadU16();
  std::uint32_t ReadU32();
  std::uint64_t ReadU64();
  std::int32_t ReadI32();
  std::int64_t ReadI64();
  float ReadF32();
  /// The next `size` bytes, without copying; empty after a failure.
  std::span<const std::uint8_t> ReadBytes(std::size_t size);
  /// The next `count` · `element_size` bytes; an overflowing product fails.
  std::span<const std::uint8_t> ReadArray(std::size_t count, std::size_t element_size);
  /// A u32 length and that many bytes; fails when the length exceeds `max_size`.
  std::string ReadString(std::size_t max_size);
  void Skip(std::size_t size) { ReadBytes(size); }

  /// Whether `count` elements of at least `min_element_size` (> 0) bytes can still follow: the
  /// check to make before reserving memory for a count that was read. Fails the reader when they
  /// cannot.
  bool CanHold(std::uint64_t count, std::size_t min_element_size);

  bool ok() const { return ok_; }
  std::size_t offset() const { return offset_; }
  std::size_t remaining() const { return ok_ ? data_.size() - offset_ : 0; }
  /// Marks the data as wrong for a reason of the parser's own.
  void Fail() { ok_ = false; }
  /// kDataLoss naming `what` and the offset when a read has failed.
  Status status(std::string_view what) const;

 private:
  template <typename T>
  T ReadInteger();

  std::span<const std::uint8_t> data_;
  std::size_t offset_ = 0;
  bool ok_ = true;
};

class ByteWriter {
 public:
  void WriteU8(std::uint8_t value) { bytes_.push_back(value); }
  void WriteU16(std::uint16_t value);
  void WriteU32(std::uint32_t value);
  void WriteU64(std::uint64_t value);
  void WriteI32(std::int32_t value) { WriteU32(static_cast<std::uint32_t>(value)); }
  void WriteI64(std::int64_t value) { WriteU64(static_cast<std::uint64_t>(value)); }
  void WriteF32(float value);
  void WriteBytes(std::span<const std::uint8_t> bytes);
  /// A u32 length and the bytes. \param text shorter than 4 GiB.
  void WriteString(std::string_view text);
  /// Zero bytes up to a multiple of `alignment`.
  void PadTo(std::size_t alignment);
  /// Overwrites a u32 written earlier; `offset` + 4 must not exceed size().
  void PatchU32(std::size_t offset, std::uint32_t value);

  void Reserve(std::size_t size) { bytes_.reserve(size); }
  std::size_t size() const { return bytes_.size(); }
  const std::vector<std::uint8_t>& bytes() const { return bytes_; }
  std::vector<std::uint8_t> Take() { return std::move(bytes_); }

 private:
  std::vector<std::uint8_t> bytes_;
};

}  // namespace inferscale

#endif  // INFERSCALE_BASE_BYTES_H_
