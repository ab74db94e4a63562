# inferscale_embed_folder(<folder> <header> <function> <out-variable>)
#
# Generates a source file that holds the bytes of every file in <folder> and defines
# <function>(name) as <header> declares it; its path goes into <out-variable>.
find_package(Python3 3.9 REQUIRED COMPONENTS Interpreter)

function(inferscale_embed_folder folder header function out_variable)
  file(GLOB files CONFIGURE_DEPENDS "${folder}/*")
  set(output "${CMAKE_BINARY_DIR}/generated/${function}.cc")
  add_custom_command(
    OUTPUT "${output}"
    COMMAND Python3::Interpreter "${CMAKE_SOURCE_DIR}/cmake/embed_files.py" --header "${header}"
            --function "${function}" --output "${output}" ${files}
    DEPENDS ${files} "${CMAKE_SOURCE_DIR}/cmake/embed_files.py"
    COMMENT "Embedding files of ${folder}"
    VERBATIM)
  set(${out_variable} "${output}" PARENT_SCOPE)
endfunction()
