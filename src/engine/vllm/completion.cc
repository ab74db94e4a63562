#include "engine/vllm/completion.h"

#include <algorithm>
#include <charconv>
#include <limits>
#include <utility>
#include <vector>

#include "base/http_client.h"
#include "base/utf8.h"
#include "engine/vllm/vllm_server.h"

namespace inferscale {
namespace {

using nlohmann::json;

constexpr std::size_t kMostAnswerBytes = std::size_t{64} << 20;
constexpr std::size_t kMostAnswerTokens = std::size_t{16} << 20;

/// The status of an error that comes inside a stream.
Status StreamedError(const json& error) {
  const std::string message =
      "vLLM ended an answer with an error: " + ExcerptForMessage(StringOf(error, "message"));
  const std::int64_t code = IntegerOf(error, "code", 500);
  if (code >= 400 && code < 500) return InvalidArgument(message);
  return Unavailable(message + "; look at vLLM's log");
}

}  // namespace

TokenId TokenIdOf(std::string_view text) {
  constexpr std::string_view kPrefix = "token_id:";
  if (!text.starts_with(kPrefix)) return -1;
  text.remove_prefix(kPrefix.size());
  TokenId id = -1;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), id);
  return error == std::errc() && end == text.data() + text.size() ? id : -1;
}

Result<json> CompletionBody(const std::string& model, const TokenIds& prompt,
                            const Sampling& sampling, const std::string& salt,
                            std::int32_t context_tokens) {
  // vLLM reads another dialect than GBNF, and a grammar that it cannot read ends its engine core
  // with all requests in it (seen with 0.24).
  if (!sampling.grammar.empty() || !sampling.shown_tokens.empty()) {
    return Unsupported("answers of a given form are not supported with engine vllm");
  }
  const std::int32_t room = context_tokens - static_cast<std::int32_t>(prompt.size());
  json body = {{"model", model},
               {"prompt", prompt},
               {"stream", true},
               {"stream_options", {{"include_usage", true}}},
               {"cache_salt", salt},
               {"return_token_ids", true},
               // All of them, so that no default of the server's takes their place.
               {"temperature", sampling.temperature},
               {"top_k", sampling.top_k},
               {"top_p", sampling.top_p},
               {"min_p", sampling.min_p},
               {"repetition_penalty", sampling.repetition_penalty},
               {"max_tokens", std::max(1, std::min(sampling.max_tokens, room))}};
  if (sampling.seed) body["seed"] = *sampling.seed;
  if (!sampling.stop.empty()) body["stop"] = sampling.stop;
  if (sampling.logprobs >= 0) {
    body["logprobs"] = sampling.logprobs;
    body["return_tokens_as_token_ids"] = true;
  }
  return body;
}

bool CompletionReader::Take(std::string_view data) {
  if (data == "[DONE]") {
    ended_ = true;
    return false;
  }
  const json event = json::parse(data, nullptr, /*allow_exceptions=*/false);
  if (!event.is_object()) {
    status_ = DataLoss("vLLM streams something that is no JSON object: " + ExcerptForMessage(data));
    return false;
  }
  if (const json& error = FieldOf(event, "error"); !error.is_null()) {
    status_ = StreamedError(error);
    return false;
  }
  const json& details = FieldOf(FieldOf(event, "usage"), "prompt_tokens_details");
  if (details.is_object()) cached_tokens_ = IntegerOf(details, "cached_tokens", cached_tokens_);
  const json& choices = FieldOf(event, "choices");
  if (!choices.is_array() || choices.empty()) return true;  // figures alone
  status_ = TakeChoice(choices.front());
  return status_.ok();
}

Status CompletionReader::TakeChoice(const json& choice) {
  if (text_.size() > kMostAnswerBytes || generated_.size() > kMostAnswerTokens) {
    return DataLoss("vLLM streams an answer without an end; check that the URL is vLLM's");
  }
  const Status bad = DataLoss("vLLM streams an answer without text or token ids");
  const json &text = FieldOf(choice, "text"), &ids = FieldOf(choice, "token_ids");
  if (!text.is_string() || !(ids.is_array() || ids.is_null())) return bad;
  std::vector<TokenEvent> events;
  for (const json& id : ids) {
    if (!id.is_number_unsigned() ||
        id.get<std::uint64_t>() > static_cast<std::uint64_t>(std::numeric_limits<TokenId>::max())) {
      return bad;
    }
    events.emplace_back().id = id.get<TokenId>();
  }
  const json& logprobs = FieldOf(choice, "logprobs");
  const json &own = FieldOf(logprobs, "token_logprobs"), &top = FieldOf(logprobs, "top_logprobs");
  for (std::size_t i = 0; i < events.size(); ++i) {
    if (own.is_array() && i < own.size() && own[i].is_number()) {
      events[i].logprob = own[i].get<float>();
    }
    if (!top.is_array() || i >= top.size() || !top[i].is_object()) continue;
    for (const auto& [name, value] : top[i].items()) {
      const TokenId id = TokenIdOf(name);
      if (id >= 0 && value.is_number()) events[i].top_logprobs.emplace_back(id, value.get<float>());
    }
    std::sort(events[i].top_logprobs.begin(), events[i].top_logprobs.end(),
              [](const auto& a, const auto& b) { return a.second > b.second; });
  }
  const std::string reason = StringOf(choice, "finish_reason");
  if (!reason.empty()) {
    finished_ = true;
    finish_ = reason == "stop"     ? FinishReason::kStop
              : reason == "length" ? FinishReason::kLength
                                   : FinishReason::kError;
    if (finish_ == FinishReason::kError) {
      status_ = Unavailable("vLLM ended an answer early (" + ExcerptForMessage(reason, 40) +
                            "); look at vLLM's log");
    }
    // Stopped by a token, not by a text: that token ends the answer and is no part of it.
    if (reason == "stop" && !FieldOf(choice, "stop_reason").is_string() && !events.empty()) {
      events.pop_back();
    }
  }
  const std::string shown = ToValidUtf8(text.get_ref<const std::string&>());
  text_ += shown;
  if (events.empty() && !shown.empty()) {
    events.emplace_back().id = generated_.empty() ? 0 : generated_.back();
    events.back().text = shown;
    started_ = true;
    if (on_token_) on_token_(events.back());
    return status_;
  }
  if (!events.empty()) events.back().text = shown;
  for (const TokenEvent& event : events) {
    generated_.push_back(event.id);
    started_ = true;
    if (on_token_) on_token_(event);
  }
  return status_;
}

}  // namespace inferscale
