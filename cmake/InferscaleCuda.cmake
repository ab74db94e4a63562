# Enables CUDA as a language. Defaults: the toolkit in /usr/local/cuda where nvcc is not on PATH,
# and Hopper GPUs; set CMAKE_CUDA_COMPILER and CMAKE_CUDA_ARCHITECTURES for others.
set(CMAKE_CUDA_ARCHITECTURES 90 CACHE STRING "GPU architectures to build the CUDA kernels for")
if(NOT CMAKE_CUDA_COMPILER AND NOT DEFINED ENV{CUDACXX})
  find_program(CMAKE_CUDA_COMPILER nvcc HINTS ENV CUDA_PATH PATHS /usr/local/cuda PATH_SUFFIXES bin)
endif()
if(CCACHE_PROGRAM AND NOT CMAKE_CUDA_COMPILER_LAUNCHER)
  set(CMAKE_CUDA_COMPILER_LAUNCHER "${CCACHE_PROGRAM}")
endif()
enable_language(CUDA)
find_package(CUDAToolkit REQUIRED)
# After enable_language, whose own checks CMake 3.25 fails for a standard that it knows no flag of.
if(NOT DEFINED CMAKE_CUDA20_STANDARD_COMPILE_OPTION)
  set(CMAKE_CUDA20_STANDARD_COMPILE_OPTION "-std=c++20")
endif()
set(CMAKE_CUDA_STANDARD 20)
set(CMAKE_CUDA_STANDARD_REQUIRED ON)
set(CMAKE_CUDA_EXTENSIONS OFF)
add_library(inferscale_cuda_options INTERFACE)
target_compile_options(
  inferscale_cuda_options INTERFACE $<$<COMPILE_LANGUAGE:CUDA>:--expt-relaxed-constexpr>
                                    $<$<COMPILE_LANGUAGE:CUDA>:-Xcompiler=-Wall>)
