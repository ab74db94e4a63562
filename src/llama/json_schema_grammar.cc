#include "llama/json_schema_grammar.h"

#include <exception>

#include <nlohmann/json.hpp>

#include "json-schema-to-grammar.h"
#include "json.h"

namespace inferscale {
namespace {

constexpr std::size_t kMaxProperties = 256, kMaxAlternatives = 1024, kMaxNodes = 20'000;

/// Counts every value of the schema into `nodes`.
Status CheckSize(const nlohmann::json& schema, std::size_t* nodes) {
  if (++*nodes > kMaxNodes)
    return InvalidArgument("the JSON schema has more than " + std::to_string(kMaxNodes) + " parts");
  for (const auto& [name, part] : schema.items()) {
    if (name == "properties" && part.is_object() && part.size() > kMaxProperties) {
      return InvalidArgument("an object of the JSON schema has more than " +
                             std::to_string(kMaxProperties) + " properties");
    }
    if (part.is_array() && part.size() > kMaxAlternatives) {
      return InvalidArgument("a list in the JSON schema has more than " +
                             std::to_string(kMaxAlternatives) + " items");
    }
    if (part.is_structured()) INFERSCALE_RETURN_IF_ERROR(CheckSize(part, nodes));
  }
  return OkStatus();
}

}  // namespace

Result<std::string> JsonSchemaGrammar(const std::string& schema_json) {
  const nlohmann::json schema = nlohmann::json::parse(schema_json, nullptr, false);
  if (schema.is_discarded()) return InvalidArgument("the JSON schema is no JSON");
  std::size_t nodes = 0;
  INFERSCALE_RETURN_IF_ERROR(CheckSize(schema, &nodes));
  try {
    return json_schema_to_grammar(common_json::parse(schema_json));
  } catch (const std::exception& error) {
    return InvalidArgument("the JSON schema cannot be enforced: " + std::string(error.what()));
  }
}

}  // namespace inferscale
