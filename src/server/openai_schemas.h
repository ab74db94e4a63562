#ifndef INFERSCALE_SERVER_OPENAI_SCHEMAS_H_
#define INFERSCALE_SERVER_OPENAI_SCHEMAS_H_

/// \file openai_schemas.h
/// JSON schemas of the bodies that the OpenAI routes take, for /openapi.json. Unknown fields are
/// ignored.

namespace inferscale {

inline constexpr const char* kChatSchema = R"({
  "type": "object", "required": ["messages"],
  "properties": {
    "model": {"type": "string"},
    "messages": {"type": "array", "minItems": 1, "items": {
      "type": "object", "required": ["role", "content"],
      "properties": {
        "role": {"type": "string",
                 "enum": ["system", "developer", "user", "assistant", "tool"]},
        "content": {"oneOf": [{"type": "string"}, {"type": "array", "items": {
          "type": "object", "required": ["type", "text"],
          "properties": {"type": {"type": "string", "enum": ["text"]},
                         "text": {"type": "string"}}}}]},
        "tool_calls": {"type": "array", "description": "of an assistant's message",
          "items": {"type": "object", "required": ["id", "type", "function"], "properties": {
            "id": {"type": "string"}, "type": {"type": "string", "enum": ["function"]},
            "function": {"type": "object", "required": ["name", "arguments"], "properties": {
              "name": {"type": "string"}, "arguments": {"type": "string"}}}}}},
        "tool_call_id": {"type": "string", "description": "of a tool's result"},
        "name": {"type": "string"}}}},
    "tools": {"type": "array", "maxItems": 128, "items": {
      "type": "object", "required": ["type", "function"], "properties": {
        "type": {"type": "string", "enum": ["function"]},
        "function": {"type": "object", "required": ["name"], "properties": {
          "name": {"type": "string", "pattern": "^[a-zA-Z0-9_-]{1,64}$"},
          "description": {"type": "string"},
          "parameters": {"type": "object"}}}}}},
    "tool_choice": {"oneOf": [
      {"type": "string", "enum": ["none", "auto", "required"]},
      {"type": "object", "required": ["type", "function"], "properties": {
        "type": {"type": "string", "enum": ["function"]},
        "function": {"type": "object", "required": ["name"],
                     "properties": {"name": {"type": "string"}}}}}]},
    "parallel_tool_calls": {"type": "boolean"},
    "stream": {"type": "boolean"},
    "stream_options": {"type": "object",
                       "properties": {"include_usage": {"type": "boolean"}}},
    "n": {"type": "integer", "minimum": 1, "maximum": 16},
    "stop": {"oneOf": [{"type": "string", "minLength": 1},
                       {"type": "array", "maxItems": 16,
                        "items": {"type": "string", "minLength": 1}}]},
    "seed": {"type": "integer"},
    "temperature": {"type": "number", "minimum": 0, "maximum": 2},
    "top_p": {"type": "number", "minimum": 0, "maximum": 1},
    "top_k": {"type": "integer", "minimum": -1},
    "min_p": {"type": "number", "minimum": 0, "maximum": 0.999},
    "repetition_penalty": {"type": "number", "minimum": 0.01, "maximum": 10},
    "max_tokens": {"type": "integer", "minimum": 1},
    "max_completion_tokens": {"type": "integer", "minimum": 1},
    "logprobs": {"type": "boolean"},
    "top_logprobs": {"type": "integer", "minimum": 0, "maximum": 20},
    "response_format": {"type": "object", "required": ["type"], "properties": {
      "type": {"type": "string", "enum": ["text", "json_object", "json_schema"]},
      "json_schema": {"type": "object", "properties": {"schema": {"type": "object"}}}}},
    "user": {"type": "string", "description": "whose memories, unless an id is given"},
    "user_id": {"type": "string"}, "agent_id": {"type": "string"},
    "app_id": {"type": "string"}, "run_id": {"type": "string"},
    "memory": {"type": "object", "properties": {
      "top_k": {"type": "integer", "minimum": 0, "maximum": 1000},
      "filters": {"type": "object"},
      "recipe": {"type": "string"},
      "mode": {"type": "string", "enum": ["kv", "text", "off"]},
      "remember": {"type": "boolean"}}}}})";

inline constexpr const char* kCompletionSchema = R"({
  "type": "object", "required": ["prompt"],
  "properties": {
    "model": {"type": "string"},
    "prompt": {"oneOf": [{"type": "string", "minLength": 1},
                         {"type": "array", "minItems": 1, "maxItems": 64,
                          "items": {"type": "string", "minLength": 1}}]},
    "stream": {"type": "boolean"},
    "n": {"type": "integer", "minimum": 1, "maximum": 16},
    "stop": {"oneOf": [{"type": "string", "minLength": 1},
                       {"type": "array", "maxItems": 16,
                        "items": {"type": "string", "minLength": 1}}]},
    "seed": {"type": "integer"},
    "temperature": {"type": "number", "minimum": 0, "maximum": 2},
    "top_p": {"type": "number", "minimum": 0, "maximum": 1},
    "max_tokens": {"type": "integer", "minimum": 1},
    "logprobs": {"type": "integer", "minimum": 0, "maximum": 5}}})";

inline constexpr const char* kEmbeddingSchema = R"({
  "type": "object", "required": ["input"],
  "properties": {
    "model": {"type": "string"},
    "input": {"oneOf": [{"type": "string", "minLength": 1},
                        {"type": "array", "minItems": 1, "maxItems": 2048,
                         "items": {"type": "string", "minLength": 1}}]},
    "encoding_format": {"type": "string", "enum": ["float", "base64"]},
    "dimensions": {"type": "integer", "minimum": 1}}})";

}  // namespace inferscale

#endif  // INFERSCALE_SERVER_OPENAI_SCHEMAS_H_
