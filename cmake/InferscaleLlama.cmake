# Defines inferscale_llama_cpp: llama.cpp's static libraries from the cache outside the build
# folder, or with INFERSCALE_DISPATCH its shared ones with a CPU backend for each generation of
# processors. tools/setup/build_llama.sh builds them there first if this commit, these flags, this
# compiler and this CPU have none yet.
find_package(Threads REQUIRED)

set(llama_arguments)
if(NOT INFERSCALE_FUZZ)
  # The fuzz targets' clang links the library that the other builds share.
  list(APPEND llama_arguments --cc "${CMAKE_C_COMPILER}" --cxx "${CMAKE_CXX_COMPILER}")
endif()
if(INFERSCALE_LLAMA_SOURCE_DIR)
  list(APPEND llama_arguments --source "${INFERSCALE_LLAMA_SOURCE_DIR}")
endif()
if(INFERSCALE_LLAMA_CUDA)
  list(APPEND llama_arguments --cuda)
endif()
if(INFERSCALE_DISPATCH)
  list(APPEND llama_arguments --dispatch)
elseif(NOT INFERSCALE_NATIVE)
  list(APPEND llama_arguments --portable)
endif()
execute_process(
  COMMAND "${CMAKE_SOURCE_DIR}/tools/setup/build_llama.sh" ${llama_arguments}
  OUTPUT_VARIABLE llama_prefix
  OUTPUT_STRIP_TRAILING_WHITESPACE
  RESULT_VARIABLE llama_result)
if(NOT llama_result EQUAL 0)
  message(FATAL_ERROR "llama.cpp could not be prepared; see the message above")
endif()
message(STATUS "llama.cpp: ${llama_prefix}")
set_property(DIRECTORY "${CMAKE_SOURCE_DIR}" APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS
             "${llama_prefix}/share/complete" third_party/llama/CMakeLists.txt
             third_party/llama/dispatch/CMakeLists.txt tools/setup/pins.sh)

add_library(inferscale_llama_cpp INTERFACE)
# Part of every KV block's fingerprint. A source tree of one's own is named by its path.
file(STRINGS "${CMAKE_SOURCE_DIR}/tools/setup/pins.sh" llama_commit REGEX "^readonly LLAMA_COMMIT=")
string(REGEX REPLACE "^.*=" "" llama_commit "${llama_commit}")
if(INFERSCALE_LLAMA_SOURCE_DIR)
  set(llama_commit "${INFERSCALE_LLAMA_SOURCE_DIR}")
endif()
target_compile_definitions(inferscale_llama_cpp INTERFACE INFERSCALE_LLAMA_COMMIT="${llama_commit}")
target_include_directories(inferscale_llama_cpp SYSTEM INTERFACE "${llama_prefix}/include"
                                                                 "${llama_prefix}/include/common")
if(INFERSCALE_DISPATCH)
  set(llama_libraries llama-common llama ggml ggml-base)
  list(TRANSFORM llama_libraries REPLACE "(.+)" "${llama_prefix}/lib/lib\\1.so")
  target_link_libraries(inferscale_llama_cpp INTERFACE ${llama_libraries} Threads::Threads)
  # For the one file that loads them, so that ccache serves all the others.
  set_source_files_properties("${CMAKE_SOURCE_DIR}/src/llama/llama_runtime.cc" PROPERTIES
                              COMPILE_DEFINITIONS INFERSCALE_BACKENDS="${llama_prefix}/lib/backends")
  return()
endif()
set(llama_archives llama-common llama-common-base cpp-httplib llama ggml)
if(INFERSCALE_LLAMA_CUDA)
  list(APPEND llama_archives ggml-cuda)
endif()
list(APPEND llama_archives ggml-cpu ggml-base)
list(TRANSFORM llama_archives REPLACE "(.+)" "${llama_prefix}/lib/lib\\1.a")
target_link_libraries(inferscale_llama_cpp INTERFACE ${llama_archives} Threads::Threads
                                                     ${CMAKE_DL_LIBS} m)
if(INFERSCALE_LLAMA_CUDA)
  find_package(CUDAToolkit REQUIRED)
  target_link_libraries(inferscale_llama_cpp INTERFACE CUDA::cudart_static CUDA::cublas
                                                       CUDA::cublasLt CUDA::cuda_driver)
endif()
