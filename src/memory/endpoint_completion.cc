#include <nlohmann/json.hpp>
#include <utility>

#include "base/http_client.h"
#include "memory/extractor.h"

namespace inferscale {
namespace {

using nlohmann::json;

constexpr std::int32_t kMaxAnswerTokens = 1024;
constexpr std::size_t kMaxAnswerBytes = std::size_t{4} << 20;

Result<std::string> ReadContent(const Url& url, const HttpPostResult& response) {
  const auto bad = [&](const std::string& what) {
    return Unavailable(url.ToDisplayString() + " gave no usable completion: " + what +
                       "; check that it is an OpenAI-compatible /v1/chat/completions endpoint");
  };
  const json answer = json::parse(response.body, nullptr, /*allow_exceptions=*/false);
  if (!answer.is_object()) {
    return bad("the answer is not JSON but begins " + ExcerptForMessage(response.body, 80));
  }
  const auto choices = answer.find("choices");
  if (choices == answer.end() || !choices->is_array() || choices->empty() ||
      !choices->front().is_object()) {
    return bad("the answer has no \"choices\"");
  }
  const auto message = choices->front().find("message");
  if (message == choices->front().end() || !message->is_object()) {
    return bad("the first choice has no \"message\"");
  }
  const auto content = message->find("content");
  if (content == message->end() || !content->is_string()) return bad("the message has no text");
  return content->get<std::string>();
}

}  // namespace

Result<CompletionFunction> MakeEndpointCompletion(const std::string& url_text,
                                                  const std::string& model,
                                                  const std::string& api_key,
                                                  std::chrono::milliseconds timeout) {
  INFERSCALE_ASSIGN_OR_RETURN(Url url, ParseUrl(url_text));
  if (model.empty()) {
    return InvalidArgument("no model is named for the extraction endpoint " +
                           url.ToDisplayString() + "; set the extractor's model");
  }
  const std::size_t query = url.target.find('?');
  const std::string suffix = query == std::string::npos ? "" : url.target.substr(query);
  std::string path = url.target.substr(0, query);
  while (!path.empty() && path.back() == '/') path.pop_back();
  if (!path.ends_with("/chat/completions")) {
    path += path.empty() ? "/v1/chat/completions" : "/chat/completions";
  }
  url.target = path + suffix;

  HttpPost post;
  post.url = url;
  post.bearer_token = api_key;
  post.timeout = timeout;
  post.max_response_bytes = kMaxAnswerBytes;
  return CompletionFunction([post, model](const std::vector<ChatMessage>& messages,
                                          const std::string& grammar) -> Result<std::string> {
    json request = {{"model", model}, {"messages", json::array()}};
    for (const ChatMessage& message : messages) {
      request["messages"].push_back({{"role", message.role}, {"content", message.content}});
    }
    json bounded = request;
    bounded["temperature"] = 0;
    bounded["max_tokens"] = kMaxAnswerTokens;
    if (!grammar.empty()) bounded["response_format"] = {{"type", "json_object"}};

    HttpPost attempt = post;
    const auto send = [&](const json& body) {
      attempt.body = body.dump(-1, ' ', false, json::error_handler_t::replace);
      return PostJson(attempt);
    };
    INFERSCALE_ASSIGN_OR_RETURN(HttpPostResult response, send(bounded));
    if (response.status == 400 || response.status == 422) {
      // Some models refuse one of the optional settings; what they answer without is parsed
      // leniently.
      INFERSCALE_ASSIGN_OR_RETURN(response, send(request));
    }
    if (response.status != 200) return RefusalStatus(attempt.url, response);
    return ReadContent(attempt.url, response);
  });
}

}  // namespace inferscale
