#ifndef INFERSCALE_SERVER_OPENAI_REQUEST_H_
#define INFERSCALE_SERVER_OPENAI_REQUEST_H_

/// \file openai_request.h
/// From the body of a chat or text completion to what the service is asked. Unknown fields are
/// ignored; known ones that cannot be done are kUnsupported; wrong ones kInvalidArgument with the
/// field's name. Free functions; thread-safe.

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "catalog/filter.h"
#include "inferscale/memory_service.h"
#include "server/server.h"

namespace inferscale {

struct CompletionOptions {
  bool chat = true;  ///< /v1/chat/completions, else /v1/completions
  bool stream = false, include_usage = false;
  std::int32_t n = 1;
  std::int32_t logprobs = -1;               ///< top alternatives a token; -1: none
  std::string not_remembered;               ///< the limit that keeps the turn from being stored
  std::shared_ptr<const ToolFormat> tools;  ///< null: the answer calls nothing
};

struct ChatCall {
  CompletionOptions options;
  std::unique_ptr<const Filter> filter;  ///< request.filter points here
  ChatRequest request;
};

struct TextCall {
  CompletionOptions options;
  std::vector<TokenIds> prompts;
  Sampling sampling;
  bool has_owner = false;  ///< whose memory a text without a chat template has no place for
};

Result<ChatCall> ParseChatCall(const nlohmann::json& body, const ApiCall& call,
                               const ApiContext& context);
Result<TextCall> ParseTextCall(const nlohmann::json& body, const ApiCall& call,
                               const ApiContext& context);

}  // namespace inferscale

#endif  // INFERSCALE_SERVER_OPENAI_REQUEST_H_
