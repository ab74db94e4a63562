#include "llama/json_schema_grammar.h"

#include <exception>

#include "json-schema-to-grammar.h"
#include "json.h"

namespace inferscale {

Result<std::string> JsonSchemaGrammar(const std::string& schema_json) {
  try {
    return json_schema_to_grammar(common_json::parse(schema_json));
  } catch (const std::exception& error) {
    return InvalidArgument("the JSON schema cannot be enforced: " + std::string(error.what()));
  }
}

}  // namespace inferscale
