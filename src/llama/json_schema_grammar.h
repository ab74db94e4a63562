#ifndef INFERSCALE_LLAMA_JSON_SCHEMA_GRAMMAR_H_
#define INFERSCALE_LLAMA_JSON_SCHEMA_GRAMMAR_H_

#include <string>

#include "inferscale/result.h"

namespace inferscale {

/// GBNF of the JSON texts that a JSON schema allows. kInvalidArgument: the schema is no JSON, says
/// something that no grammar can express, or is so large that its grammar would take seconds to
/// make (time grows with the square of an object's properties). Thread-safe.
Result<std::string> JsonSchemaGrammar(const std::string& schema_json);

}  // namespace inferscale

#endif  // INFERSCALE_LLAMA_JSON_SCHEMA_GRAMMAR_H_
