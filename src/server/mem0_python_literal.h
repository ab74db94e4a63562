#ifndef INFERSCALE_SERVER_MEM0_PYTHON_LITERAL_H_
#define INFERSCALE_SERVER_MEM0_PYTHON_LITERAL_H_

/// \file mem0_python_literal.h
/// A dict written by Python's repr(), as Mem0's client puts one into a query string. Thread-safe.

#include <string_view>

#include <nlohmann/json.hpp>

#include "inferscale/result.h"

namespace inferscale::mem0 {

/// The value of a JSON text, or of a Python literal made of dicts with text keys, lists, tuples,
/// text, numbers, True, False and None. kInvalidArgument for anything else: what is not wholly
/// understood is never taken for less than it says.
Result<nlohmann::json> ParseLiteral(std::string_view text);

}  // namespace inferscale::mem0

#endif  // INFERSCALE_SERVER_MEM0_PYTHON_LITERAL_H_
