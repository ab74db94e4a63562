#ifndef INFERSCALE_BASE_DESCRIPTOR_H_
#define INFERSCALE_BASE_DESCRIPTOR_H_

#include <cstdint>
#include <span>
#include <utility>

namespace inferscale {

/// A file descriptor that closes itself.
class Descriptor {
 public:
  explicit Descriptor(int value) : value_(value) {}
  ~Descriptor();
  Descriptor(Descriptor&& other) noexcept : value_(other.Release()) {}
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;
  int get() const { return value_; }
  int Release() { return std::exchange(value_, -1); }

 private:
  int value_;
};

/// Writes all of `data`. \return 0 or an errno.
int WriteAll(int descriptor, std::span<const std::uint8_t> data);

}  // namespace inferscale

#endif  // INFERSCALE_BASE_DESCRIPTOR_H_
