#pragma once

#include <string_view>

namespace inferscale {

/// The bytes of a file of src/eval/data that was built into the program, or an empty view if there
/// is none of that name. `name` is the file's name without folders. The view lives as long as the
/// program and is followed by a NUL byte. Thread-safe.
std::string_view EmbeddedFile(std::string_view name);

}  // namespace inferscale
