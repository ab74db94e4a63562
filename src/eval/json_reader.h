#ifndef INFERSCALE_EVAL_JSON_READER_H_
#define INFERSCALE_EVAL_JSON_READER_H_

#include <string>
#include <string_view>
#include <vector>

#include <nlohmann/json.hpp>

#include "inferscale/result.h"

namespace inferscale {

/// JSON nested at most 32 deep, of valid UTF-8; kInvalidArgument with the byte where it is wrong.
Result<nlohmann::json> ParseCheckedJson(std::string_view text, std::string_view what);

/// A member that must be there and of this type; `where` names the object in the message.
Result<std::string> RequiredString(const nlohmann::json& object, const char* name,
                                   const std::string& where);
/// A null pointer in no case: an absent member or another type is kInvalidArgument.
Result<const nlohmann::json*> RequiredArray(const nlohmann::json& object, const char* name,
                                            const std::string& where);
/// A string that is not blank, or a number as its text.
Result<std::string> RequiredText(const nlohmann::json& object, const char* name,
                                 const std::string& where);
/// Strings of an array, a lone string, or nothing; other elements are left out.
std::vector<std::string> OptionalStrings(const nlohmann::json& object, const char* name);

}  // namespace inferscale

#endif  // INFERSCALE_EVAL_JSON_READER_H_
