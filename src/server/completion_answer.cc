#include "server/completion_answer.h"

#include <algorithm>
#include <span>
#include <utility>

#include "base/clock.h"
#include "base/random.h"
#include "base/utf8.h"
#include "engine/context_limit.h"

namespace inferscale {
namespace {

using Json = nlohmann::ordered_json;

std::string NewId(bool chat) {
  std::string id = NewUuid();
  std::erase(id, '-');
  return (chat ? "chatcmpl-" : "cmpl-") + id;
}

std::string Dump(const Json& json) {
  return json.dump(-1, ' ', false, Json::error_handler_t::replace);
}

void AddToolCalls(const ChatReport& report, Json& message) {
  Json calls = Json::array();
  for (const ToolCall& call : report.tool_calls) {
    calls.push_back({{"id", call.id.empty() ? NewToolCallId() : call.id},
                     {"type", "function"},
                     {"function", {{"name", call.name}, {"arguments", call.arguments}}}});
  }
  message["tool_calls"] = std::move(calls);
  const std::string& said = report.generation.text;
  const std::size_t end = said.find_last_not_of(" \t\r\n");
  message["content"] = end == std::string::npos ? Json(nullptr) : Json(said.substr(0, end + 1));
}

Json Bytes(const std::string& text) {
  Json bytes = Json::array();
  for (const char c : text) bytes.push_back(static_cast<unsigned char>(c));
  return bytes;
}

}  // namespace

HttpResponse OpenAiError(const HttpRequest& request, const Status& status) {
  if (status.code() == StatusCode::kUnsupported) {
    return ErrorResponse(request, ErrorDialect::kOpenAi, status, 400, "unsupported_parameter");
  }
  if (IsContextExceeded(status)) {
    return ErrorResponse(request, ErrorDialect::kOpenAi, status, 400, "context_length_exceeded");
  }
  return ErrorResponse(request, ErrorDialect::kOpenAi, status);
}

std::shared_ptr<CompletionAnswer> CompletionAnswer::Make(Parts parts) {
  std::shared_ptr<CompletionAnswer> answer(new CompletionAnswer(std::move(parts)));
  answer->parts_.exchange->OnGone([weak = answer->weak_from_this()] {
    if (const auto alive = weak.lock()) alive->CancelAll();
  });
  return answer;
}

CompletionAnswer::CompletionAnswer(Parts parts)
    : parts_(std::move(parts)),
      id_(NewId(parts_.options.chat)),
      created_(NowMs() / 1000),
      choices_(static_cast<std::size_t>(parts_.choices)),
      left_(choices_.size()) {
  if (parts_.options.tools == nullptr || !parts_.options.stream) return;
  for (Choice& choice : choices_) choice.tools.emplace(parts_.options.tools);
}

CompletionAnswer::~CompletionAnswer() { --*parts_.in_flight; }

bool CompletionAnswer::failed() const {
  const std::scoped_lock lock(mutex_);
  return over_;
}

void CompletionAnswer::Started(std::size_t choice, std::shared_ptr<Generation> generation) {
  bool wanted = !parts_.exchange->gone();
  {
    const std::scoped_lock lock(mutex_);
    wanted = wanted && !over_;
    // One that is done already needs no cancelling, and would keep its parts alive.
    if (wanted && !choices_[choice].done) choices_[choice].generation = generation;
  }
  // Again: the client may have gone between the look and the keeping.
  if (!wanted || parts_.exchange->gone()) generation->Cancel();
}

void CompletionAnswer::CancelAll() {
  std::vector<std::shared_ptr<Generation>> generations;
  {
    const std::scoped_lock lock(mutex_);
    for (const Choice& choice : choices_) {
      if (choice.generation != nullptr) generations.push_back(choice.generation);
    }
  }
  // Not under the lock: an engine may answer at once.
  for (const auto& generation : generations) generation->Cancel();
}

bool CompletionAnswer::Begin() {
  if (begun_) return true;
  begun_ = true;
  HttpResponse head;
  head.content_type = "text/event-stream; charset=utf-8";
  head.headers = {{"Cache-Control", "no-cache"}, {"X-Accel-Buffering", "no"}};
  return parts_.exchange->BeginStream(std::move(head));
}

bool CompletionAnswer::Send(const Json& chunk) {
  return Begin() && parts_.exchange->Write("data: " + Dump(chunk) + "\n\n");
}

Json CompletionAnswer::Envelope() const {
  const CompletionOptions& options = parts_.options;
  const char* object = !options.chat    ? "text_completion"
                       : options.stream ? "chat.completion.chunk"
                                        : "chat.completion";
  return {{"id", id_}, {"object", object}, {"created", created_}, {"model", parts_.model}};
}

Json CompletionAnswer::Chunk(std::size_t choice, const std::string& text, Json logprobs,
                             const Json& finish_reason) const {
  Json delta = Json::object();
  if (finish_reason.is_null()) delta[parts_.options.chat ? "content" : "text"] = text;
  return ChunkOf(choice, std::move(delta), std::move(logprobs), finish_reason);
}

Json CompletionAnswer::ChunkOf(std::size_t choice, Json delta, Json logprobs,
                               const Json& finish_reason) const {
  Json item = {{"index", choice}};
  if (parts_.options.chat) {
    Json whole = Json::object();
    if (!choices_[choice].role_sent) whole["role"] = "assistant";
    whole.update(delta);
    item["delta"] = std::move(whole);
  } else {
    item["text"] = delta.value("text", "");
  }
  item["logprobs"] = std::move(logprobs);
  item["finish_reason"] = finish_reason;
  Json chunk = Envelope();
  chunk["choices"] = Json::array({std::move(item)});
  if (parts_.options.include_usage) chunk["usage"] = nullptr;
  return chunk;
}

bool CompletionAnswer::SendDeltas(std::size_t index, const std::vector<ToolStream::Delta>& deltas) {
  Choice& choice = choices_[index];
  for (const ToolStream::Delta& news : deltas) {
    Json delta = Json::object();
    if (news.call < 0) {
      delta["content"] = news.content;
    } else {
      Json call = {{"index", news.call}};
      if (!news.id.empty()) {
        call["id"] = news.id;
        call["type"] = "function";
        call["function"]["name"] = news.name;
      }
      call["function"]["arguments"] = news.arguments;
      if (!choice.role_sent) delta["content"] = nullptr;
      delta["tool_calls"] = Json::array({std::move(call)});
    }
    Json logprobs = nullptr;
    if (!choice.logprobs.empty())
      logprobs = LogprobsOf(std::exchange(choice.logprobs, Json::array()));
    if (!Send(ChunkOf(index, std::move(delta), std::move(logprobs), nullptr))) return false;
    choice.role_sent = true;
  }
  return true;
}

const char* CompletionAnswer::FinishName(std::size_t index) const {
  const Choice& choice = choices_[index];
  if (choice.report.generation.finish != FinishReason::kStop) return "length";
  const std::size_t calls = choice.tools ? choice.tools->calls() : choice.report.tool_calls.size();
  return calls > 0 ? "tool_calls" : "stop";
}

Json CompletionAnswer::TokenLogprob(const Choice& choice, const TokenEvent& event) const {
  const auto entry = [&](TokenId id, float logprob) {
    const std::string piece = parts_.engine->Detokenize(std::span(&id, 1));
    return Json{{"token", ToValidUtf8(piece)}, {"logprob", logprob}, {"bytes", Bytes(piece)}};
  };
  Json token = entry(event.id, event.logprob);
  if (!parts_.options.chat) token["text_offset"] = choice.text.size();
  Json top = Json::array();
  const auto wanted = static_cast<std::size_t>(parts_.options.logprobs);
  for (const auto& [id, logprob] : event.top_logprobs) {
    if (top.size() < wanted) top.push_back(entry(id, logprob));
  }
  token["top_logprobs"] = std::move(top);
  return token;
}

Json CompletionAnswer::LogprobsOf(const Json& entries) const {
  if (parts_.options.logprobs < 0) return nullptr;
  if (parts_.options.chat) return {{"content", entries}, {"refusal", nullptr}};
  Json legacy = {{"tokens", Json::array()},
                 {"token_logprobs", Json::array()},
                 {"top_logprobs", Json::array()},
                 {"text_offset", Json::array()}};
  for (const Json& entry : entries) {
    legacy["tokens"].push_back(entry["token"]);
    legacy["token_logprobs"].push_back(entry["logprob"]);
    legacy["text_offset"].push_back(entry["text_offset"]);
    Json top = Json::object();
    for (const Json& other : entry["top_logprobs"])
      top[other["token"].get<std::string>()] = other["logprob"];
    legacy["top_logprobs"].push_back(std::move(top));
  }
  return legacy;
}

void CompletionAnswer::OnToken(std::size_t index, const TokenEvent& event) {
  bool heard = true;
  {
    const std::scoped_lock lock(mutex_);
    if (over_) return;
    Choice& choice = choices_[index];
    Json logprobs = nullptr;
    // Text that was held back for a stop string comes in an event that is no token, and has none.
    if (parts_.options.logprobs >= 0 && !event.top_logprobs.empty()) {
      Json entry = TokenLogprob(choice, event);
      if (parts_.options.stream && !choice.tools) {
        logprobs = LogprobsOf(Json::array({std::move(entry)}));
      } else {
        choice.logprobs.push_back(std::move(entry));
      }
    }
    choice.text += event.text;
    if (!parts_.options.stream || (event.text.empty() && logprobs.is_null())) return;
    if (choice.tools) {
      heard = SendDeltas(index, choice.tools->Push(event.text));
    } else {
      heard = Send(Chunk(index, event.text, std::move(logprobs), nullptr));
      choice.role_sent = true;
    }
  }
  if (!heard) CancelAll();
}

void CompletionAnswer::CountMetrics(const ChatReport& report) {
  const GenerationReport& generation = report.generation;
  Metrics& metrics = *parts_.metrics;
  constexpr const char* kPrompt = "inferscale_prompt_tokens_total";
  metrics.Count(kPrompt, {{"source", "injected"}}, generation.injected_tokens);
  metrics.Count(kPrompt, {{"source", "reused"}}, generation.reused_tokens);
  metrics.Count(kPrompt, {{"source", "computed"}}, generation.computed_tokens);
  metrics.Count("inferscale_generated_tokens_total", {},
                static_cast<double>(generation.generated.size()));
  for (const Fallback& fallback : generation.fallbacks) {
    metrics.Count("inferscale_fallbacks_total", {{"reason", fallback.reason}}, fallback.count);
  }
  if (!generation.generated.empty()) {
    metrics.ObserveSeconds("inferscale_time_to_first_token_seconds", {},
                           report.question_to_first_token_ms / 1000);
  }
}

void CompletionAnswer::OnDone(std::size_t index, ChatReport report) {
  CountMetrics(report);
  const GenerationReport& generation = report.generation;
  Status status = generation.status;
  if (status.ok() && generation.finish == FinishReason::kCancelled)
    status = Unavailable("the answer was cut short: the server is stopping, or the client is slow");
  if (status.ok() && generation.finish == FinishReason::kError)
    status = Internal("a generation ended with an error that it does not name");
  std::shared_ptr<Generation> released;
  bool heard = true;
  {
    const std::scoped_lock lock(mutex_);
    Choice& choice = choices_[index];
    choice.done = true;
    released = std::move(choice.generation);
    --left_;
    choice.report = std::move(report);
    if (over_) return;
    if (status.ok()) {
      if (parts_.options.stream) {
        FinishStream(index);
      } else if (left_ == 0) {
        FinishWhole();
      }
      over_ = left_ == 0;
      return;
    }
    heard = !parts_.exchange->gone();
  }
  if (status.code() == StatusCode::kCancelled)
    status = Unavailable("the answer was cut short: the server is stopping");
  if (heard) Fail(status);
}

void CompletionAnswer::Fail(const Status& status) {
  {
    const std::scoped_lock lock(mutex_);
    if (over_) return;
    over_ = true;
    HttpResponse response = OpenAiError(parts_.exchange->request(), status);
    if (begun_) {
      parts_.exchange->Write("data: " + response.body + "\n\n");
      parts_.exchange->End();
    } else {
      parts_.exchange->Respond(std::move(response));
    }
  }
  CancelAll();
}

Json CompletionAnswer::Usage() const {
  std::int64_t prompt = 0, completion = 0, injected = 0;
  for (std::size_t i = 0; i < choices_.size(); ++i) {
    const GenerationReport& generation = choices_[i].report.generation;
    completion += static_cast<std::int64_t>(generation.generated.size());
    // A prompt counts once, however many answers it gets.
    if (i % static_cast<std::size_t>(parts_.options.n) != 0) continue;
    prompt += generation.prompt_tokens;
    injected += generation.injected_tokens;
  }
  return {{"prompt_tokens", prompt},
          {"completion_tokens", completion},
          {"total_tokens", prompt + completion},
          {"prompt_tokens_details", {{"cached_tokens", injected}}}};
}

Json CompletionAnswer::Memory() const {
  const ChatReport& report = choices_.front().report;
  const GenerationReport& generation = report.generation;
  Json facts = Json::array(), fallbacks = Json::array();
  for (const SearchHit& hit : report.memories) {
    facts.push_back({{"id", hit.fact.id}, {"memory", hit.fact.text}, {"score", hit.score}});
  }
  std::vector<Fallback> merged;
  for (const Fallback& fallback : generation.fallbacks) {
    const auto known = std::find_if(merged.begin(), merged.end(), [&](const Fallback& other) {
      return other.reason == fallback.reason;
    });
    if (known == merged.end()) {
      merged.push_back(fallback);
    } else {
      known->count += fallback.count;
    }
  }
  for (const Fallback& fallback : merged)
    fallbacks.push_back({{"reason", fallback.reason}, {"count", fallback.count}});
  Json memory = {{"facts", std::move(facts)},
                 {"injected_tokens", generation.injected_tokens},
                 {"reused_tokens", generation.reused_tokens},
                 {"computed_tokens", generation.computed_tokens},
                 {"ttft_ms", report.question_to_first_token_ms},
                 {"fallback", std::move(fallbacks)}};
  const std::string& reason = parts_.options.not_remembered;
  if (!reason.empty()) memory["not_remembered"] = reason;
  return memory;
}

void CompletionAnswer::FinishStream(std::size_t index) {
  Choice& choice = choices_[index];
  Json logprobs = nullptr;
  if (choice.tools) {
    const bool cut = choice.report.generation.finish != FinishReason::kStop;
    SendDeltas(index, choice.tools->Finish(cut));
    if (!choice.logprobs.empty())
      logprobs = LogprobsOf(std::exchange(choice.logprobs, Json::array()));
  }
  Json chunk = Chunk(index, "", std::move(logprobs), FinishName(index));
  choice.role_sent = true;
  const bool last = left_ == 0;
  if (last && !parts_.options.include_usage) chunk["memory"] = Memory();
  Send(chunk);
  if (!last) return;
  if (parts_.options.include_usage) {
    Json final = Envelope();
    final["choices"] = Json::array();
    final["usage"] = Usage();
    final["memory"] = Memory();
    Send(final);
  }
  parts_.exchange->Write("data: [DONE]\n\n");
  parts_.exchange->End();
}

void CompletionAnswer::FinishWhole() {
  Json body = Envelope();
  Json list = Json::array();
  for (std::size_t i = 0; i < choices_.size(); ++i) {
    Choice& choice = choices_[i];
    const GenerationReport& generation = choice.report.generation;
    Json item = {{"index", i}};
    if (parts_.options.chat) {
      item["message"] = {{"role", "assistant"}, {"content", generation.text}, {"refusal", nullptr}};
      if (!choice.report.tool_calls.empty()) AddToolCalls(choice.report, item["message"]);
    } else {
      item["text"] = generation.text;
    }
    item["logprobs"] = LogprobsOf(choice.logprobs);
    item["finish_reason"] = FinishName(i);
    list.push_back(std::move(item));
  }
  body["choices"] = std::move(list);
  body["usage"] = Usage();
  body["memory"] = Memory();
  parts_.exchange->Respond(JsonResponse(body));
}

}  // namespace inferscale
