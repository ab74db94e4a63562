#ifndef INFERSCALE_KERNELS_CUDA_PTX_CUH_
#define INFERSCALE_KERNELS_CUDA_PTX_CUH_

/// \file ptx.cuh
/// Instructions that CUDA C++ has no name for.

#include <cuda_runtime_api.h>

#include <cstdint>

namespace inferscale::kernels::cuda {

/// Asks for the sector of global memory that holds `from`, into the L2 alone.
__device__ inline void PrefetchL2(const std::uint8_t* from) {
  asm volatile("prefetch.global.L2 [%0];" ::"l"(__cvta_generic_to_global(from)));
}

/// A store to global memory. The compiler cannot tell of an address that was itself loaded that it
/// is global, and would store by the slower generic instruction.
__device__ inline void StoreGlobal(std::uint8_t* to, const uint4& value) {
  asm volatile("st.global.v4.u32 [%0], {%1, %2, %3, %4};" ::"l"(__cvta_generic_to_global(to)),
               "r"(value.x), "r"(value.y), "r"(value.z), "r"(value.w)
               : "memory");
}

/// Starts a copy from global to shared memory, whose sizes are 4, 8 or 16 bytes.
template <typename T>
__device__ inline void CopyAsync(T& to, const std::uint8_t* from) {
  asm volatile("cp.async.ca.shared.global [%0], [%1], %2;" ::"r"(
                   static_cast<unsigned>(__cvta_generic_to_shared(&to))),
               "l"(__cvta_generic_to_global(from)), "n"(sizeof(T))
               : "memory");
}

/// Ends a group of the copies that the thread has started.
__device__ inline void CommitCopies() { asm volatile("cp.async.commit_group;" ::: "memory"); }

/// Waits until no more than the latest `kGroups` groups are under way.
template <int kGroups>
__device__ inline void WaitForCopies() {
  asm volatile("cp.async.wait_group %0;" ::"n"(kGroups) : "memory");
}

/// The smaller and the larger number; a NaN where one is.
__device__ inline float MinNan(float a, float b) {
  float least;
  asm("min.NaN.f32 %0, %1, %2;" : "=f"(least) : "f"(a), "f"(b));
  return least;
}
__device__ inline float MaxNan(float a, float b) {
  float most;
  asm("max.NaN.f32 %0, %1, %2;" : "=f"(most) : "f"(a), "f"(b));
  return most;
}

/// `word & kMask | kOr` in one instruction, of which the compiler makes two.
template <std::uint32_t kMask, std::uint32_t kOr>
__device__ inline std::uint32_t MaskedOr(std::uint32_t word) {
  std::uint32_t made;
  asm("lop3.b32 %0, %1, %2, %3, 0xea;" : "=r"(made) : "r"(word), "n"(kMask), "n"(kOr));
  return made;
}

}  // namespace inferscale::kernels::cuda

#endif  // INFERSCALE_KERNELS_CUDA_PTX_CUH_
