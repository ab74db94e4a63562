# inferscale_add_room(<room> [ROOMS <room>...] [LINKS <target>...] [EXCLUDE <file>...]
#                     [EMBED <folder> NAMES_HEADER <header> FUNCTION <function>])
#
# Makes the static library inferscale_<room> of src/<room>/**/*.cc (with INFERSCALE_CUDA *.cu
# too, but not no_cuda.cc) and of the files of a folder, which a function gives by name.
# A room without sources becomes an interface library, so that others can name it all the same.
function(inferscale_add_room room)
  cmake_parse_arguments(PARSE_ARGV 1 arg "" "EMBED;NAMES_HEADER;FUNCTION" "ROOMS;LINKS;EXCLUDE")
  set(target inferscale_${room})
  file(GLOB_RECURSE sources CONFIGURE_DEPENDS "${CMAKE_SOURCE_DIR}/src/${room}/*.cc")
  if(INFERSCALE_CUDA)
    file(GLOB_RECURSE cuda_sources CONFIGURE_DEPENDS "${CMAKE_SOURCE_DIR}/src/${room}/*.cu")
    list(APPEND sources ${cuda_sources})
    list(FILTER sources EXCLUDE REGEX "/no_cuda.cc$")
  else()
    list(FILTER sources EXCLUDE REGEX "/src/[^/]+/cuda/")
  endif()
  foreach(file IN LISTS arg_EXCLUDE)
    list(REMOVE_ITEM sources "${CMAKE_SOURCE_DIR}/src/${room}/${file}")
  endforeach()

  if(arg_EMBED)
    inferscale_embed_folder("${CMAKE_SOURCE_DIR}/${arg_EMBED}" "${arg_NAMES_HEADER}"
                            "${arg_FUNCTION}" embedded_source)
    list(APPEND sources "${embedded_source}")
  endif()

  set(links inferscale_options ${arg_LINKS})
  foreach(dependency IN LISTS arg_ROOMS)
    list(APPEND links inferscale_${dependency})
  endforeach()
  if(sources)
    add_library(${target} STATIC ${sources})
    target_link_libraries(${target} PUBLIC ${links})
    if(INFERSCALE_CUDA AND sources MATCHES "\\.cu")
      target_link_libraries(${target} PUBLIC CUDA::cudart_static PRIVATE inferscale_cuda_options)
    endif()
  else()
    add_library(${target} INTERFACE)
    target_link_libraries(${target} INTERFACE ${links})
  endif()
endfunction()
