#ifndef INFERSCALE_SERVER_CONSOLE_FILES_H_
#define INFERSCALE_SERVER_CONSOLE_FILES_H_

#include <string_view>

namespace inferscale {

/// The bytes of a file of src/server/console that was built into the program, or an empty view if
/// there is none of that name. The view lives as long as the program. Thread-safe.
std::string_view ConsoleFile(std::string_view name);

}  // namespace inferscale

#endif  // INFERSCALE_SERVER_CONSOLE_FILES_H_
