#ifndef INFERSCALE_BASE_HUGE_PAGES_H_
#define INFERSCALE_BASE_HUGE_PAGES_H_

#include <cstddef>
#include <new>
#include <vector>

namespace inferscale {

inline constexpr std::size_t kHugePageBytes = std::size_t{2} << 20;

/// Asks the kernel for huge pages behind whole ones of a range; only a hint.
void AdviseHugePages(void* begin, std::size_t bytes);

/// Large arrays that are read from end to end: with ordinary pages a scan waits for the page
/// tables.
template <typename T>
struct HugePageAllocator {
  using value_type = T;

  HugePageAllocator() = default;
  template <typename U>
  // NOLINTNEXTLINE(google-explicit-constructor): allocators convert to those of other types.
  HugePageAllocator(const HugePageAllocator<U>&) {}

  T* allocate(std::size_t count) {
    if (count > static_cast<std::size_t>(-1) / sizeof(T)) throw std::bad_array_new_length();
    void* memory = ::operator new(count * sizeof(T), Alignment(count));
    if (count * sizeof(T) >= kHugePageBytes) AdviseHugePages(memory, count * sizeof(T));
    return static_cast<T*>(memory);
  }
  void deallocate(T* memory, std::size_t count) { ::operator delete(memory, Alignment(count)); }

  template <typename U>
  bool operator==(const HugePageAllocator<U>&) const {
    return true;
  }

 private:
  static std::align_val_t Alignment(std::size_t count) {
    constexpr std::size_t kCacheLineBytes = 64;
    return std::align_val_t{count * sizeof(T) >= kHugePageBytes ? kHugePageBytes : kCacheLineBytes};
  }
};

template <typename T>
using HugePageVector = std::vector<T, HugePageAllocator<T>>;

}  // namespace inferscale

#endif  // INFERSCALE_BASE_HUGE_PAGES_H_
