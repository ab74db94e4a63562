// /v1/chat/completions, /v1/completions, /v1/models, /v1/embeddings

#include <bit>
#include <cstring>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <openssl/evp.h>

#include "base/clock.h"
#include "base/utf8.h"
#include "server/completion_answer.h"
#include "server/key_limits.h"
#include "server/openai_request.h"
#include "server/openai_schemas.h"
#include "server/server.h"

namespace inferscale {
namespace {

using nlohmann::json;
using nlohmann::ordered_json;
using Context = std::shared_ptr<ApiContext>;

constexpr std::size_t kMaxEmbeddingInputs = 2048;

/// nullptr when the error has been sent.
std::optional<json> BodyOrError(ApiCall& call) {
  Result<json> body = JsonBody(call.request());
  if (body.ok()) return *std::move(body);
  call.exchange->Respond(OpenAiError(call.request(), body.status()));
  return std::nullopt;
}

/// Makes the answer if there is room for one more; an overloaded server says so at once.
std::shared_ptr<CompletionAnswer> NewAnswer(const Context& context, ApiCall& call,
                                            const CompletionOptions& options,
                                            std::int32_t choices) {
  const auto& in_flight = context->chats;
  if (++*in_flight > context->options.max_chats) {
    --*in_flight;
    call.exchange->Respond(ErrorResponse(
        call.request(), ErrorDialect::kOpenAi,
        Unavailable("too many answers are under way: try again in a second"), 503, "overloaded"));
    return nullptr;
  }
  CompletionAnswer::Parts parts;
  parts.exchange = call.exchange;
  parts.options = options;
  parts.choices = choices;
  parts.model = context->options.model_name;
  parts.engine = context->service->engine();
  parts.metrics = context->metrics;
  parts.in_flight = in_flight;
  return CompletionAnswer::Make(std::move(parts));
}

/// Choices differ although the request has one seed.
Sampling ForChoice(Sampling sampling, std::int32_t choice) {
  if (sampling.seed) *sampling.seed += static_cast<std::uint32_t>(choice);
  return sampling;
}

void Chat(const Context& context, ApiCall& call) {
  const std::optional<json> body = BodyOrError(call);
  if (!body) return;
  Result<ChatCall> parsed = ParseChatCall(*body, call, *context);
  if (!parsed.ok()) {
    call.exchange->Respond(OpenAiError(call.request(), parsed.status()));
    return;
  }
  if (parsed->request.remember) {
    const Status room = CheckRoom(*context->service, call.principal, 1);
    // A full memory is no reason not to answer.
    if (!room.ok()) {
      parsed->request.remember = false;
      parsed->options.not_remembered = room.message();
    }
  }
  const std::int32_t n = parsed->options.n;
  const auto answer = NewAnswer(context, call, parsed->options, n);
  if (answer == nullptr) return;
  for (std::int32_t i = 0; i < n && !answer->failed(); ++i) {
    ChatRequest request = parsed->request;
    request.sampling = ForChoice(std::move(request.sampling), i);
    // One answer is what was said; the others are alternatives.
    request.remember = request.remember && i == 0;
    const auto index = static_cast<std::size_t>(i);
    Result<std::shared_ptr<Generation>> generation = context->service->Chat(
        std::move(request),
        [answer, index](const TokenEvent& event) { answer->OnToken(index, event); },
        [answer, index](ChatReport report) { answer->OnDone(index, std::move(report)); });
    if (!generation.ok()) {
      answer->Fail(generation.status());
      return;
    }
    answer->Started(index, *std::move(generation));
  }
}

void Complete(const Context& context, ApiCall& call) {
  const std::optional<json> body = BodyOrError(call);
  if (!body) return;
  Result<TextCall> parsed = ParseTextCall(*body, call, *context);
  if (!parsed.ok()) {
    call.exchange->Respond(OpenAiError(call.request(), parsed.status()));
    return;
  }
  const std::int32_t n = parsed->options.n;
  const auto choices = static_cast<std::int32_t>(parsed->prompts.size()) * n;
  const auto answer = NewAnswer(context, call, parsed->options, choices);
  if (answer == nullptr) return;
  // A raw text has no place for memories; "template" is the reason that chats give for that.
  const Fallback reason{parsed->has_owner ? "template" : "no_owner", 1};
  for (std::int32_t i = 0; i < choices && !answer->failed(); ++i) {
    const auto index = static_cast<std::size_t>(i);
    Composition composition;
    composition.ids = parsed->prompts[static_cast<std::size_t>(i / n)];
    composition.salt = "text completion\n" + call.principal.tenant + "\n" + call.principal.key_id;
    composition.inject = false;
    GenerationCallbacks callbacks;
    callbacks.on_token = [answer, index](const TokenEvent& event) {
      answer->OnToken(index, event);
    };
    callbacks.on_done = [answer, index, reason](GenerationReport generation) {
      ChatReport report;
      report.generation = std::move(generation);
      report.generation.fallbacks.push_back(reason);
      report.question_to_first_token_ms = report.generation.ttft_ms;
      answer->OnDone(index, std::move(report));
    };
    answer->Started(index, context->service->engine()->Generate(std::move(composition),
                                                                ForChoice(parsed->sampling, i % n),
                                                                std::move(callbacks)));
  }
}

ordered_json ModelJson(const std::string& name, std::int64_t created) {
  return {{"id", name}, {"object", "model"}, {"created", created}, {"owned_by", "inferscale"}};
}

std::vector<std::string> ModelNames(const ApiContext& context) {
  std::vector<std::string> names;
  if (context.service->engine() != nullptr) names.push_back(context.options.model_name);
  names.push_back(context.options.embedder_name);
  return names;
}

/// Little-endian floats in base64, the form that OpenAI's client asks for.
std::string Base64(const std::vector<float>& vector) {
  static_assert(std::endian::native == std::endian::little);
  const std::size_t bytes = vector.size() * sizeof(float);
  std::string text(4 * ((bytes + 2) / 3) + 1, '\0');
  const int length = EVP_EncodeBlock(reinterpret_cast<unsigned char*>(text.data()),
                                     reinterpret_cast<const unsigned char*>(vector.data()),
                                     static_cast<int>(bytes));
  text.resize(static_cast<std::size_t>(length));
  return text;
}

Result<std::vector<std::string>> EmbeddingInputs(const json& body) {
  const std::string expected =
      "a string, or a list of 1 to " + std::to_string(kMaxEmbeddingInputs) + " strings, none blank";
  const auto input = body.find("input");
  if (input == body.end()) return InvalidArgument("'input' must be " + expected);
  const json list = input->is_string() ? json::array({*input}) : *input;
  if (!list.is_array() || list.empty() || list.size() > kMaxEmbeddingInputs)
    return InvalidArgument("'input' must be " + expected);
  std::vector<std::string> texts;
  for (const json& item : list) {
    if (item.is_number() || item.is_array())
      return Unsupported("'input' as token ids is not supported here: send texts");
    if (!item.is_string() || TrimWhitespace(item.get_ref<const std::string&>()).empty())
      return InvalidArgument("'input' must be " + expected);
    texts.push_back(item.get<std::string>());
  }
  return texts;
}

Result<ordered_json> Embeddings(const ApiContext& context, const json& body) {
  INFERSCALE_RETURN_IF_ERROR(StringField(body, "model").status());
  INFERSCALE_ASSIGN_OR_RETURN(const auto format, StringField(body, "encoding_format"));
  if (format && *format != "float" && *format != "base64")
    return InvalidArgument("'encoding_format' must be float or base64");
  Embedder& embedder = context.service->embedder();
  INFERSCALE_ASSIGN_OR_RETURN(const auto dimensions, IntegerField(body, "dimensions", 1, 1 << 20));
  if (dimensions && *dimensions != embedder.dimensions())
    return Unsupported("'dimensions' is not supported here: the model makes vectors of " +
                       std::to_string(embedder.dimensions()));
  INFERSCALE_ASSIGN_OR_RETURN(const std::vector<std::string> texts, EmbeddingInputs(body));
  INFERSCALE_ASSIGN_OR_RETURN(const std::vector<std::vector<float>> vectors, embedder.Embed(texts));
  ordered_json data = ordered_json::array();
  for (std::size_t i = 0; i < vectors.size(); ++i) {
    ordered_json item = {{"object", "embedding"}, {"index", i}};
    if (format && *format == "base64") {
      item["embedding"] = Base64(vectors[i]);
    } else {
      item["embedding"] = vectors[i];
    }
    data.push_back(std::move(item));
  }
  const std::int64_t tokens = embedder.CountTokens(texts).value_or(0);
  return ordered_json{{"object", "list"},
                      {"data", std::move(data)},
                      {"model", context.options.embedder_name},
                      {"usage", {{"prompt_tokens", tokens}, {"total_tokens", tokens}}}};
}

}  // namespace

void AddOpenAiRoutes(Routes& routes, const Context& context) {
  const auto dialect = ErrorDialect::kOpenAi;
  routes.Add("POST", "/v1/chat/completions", dialect,
             [context](ApiCall& call) { Chat(context, call); });
  RouteDetails chat;
  chat.summary = "Answers a conversation, with the owner's memories";
  chat.body_schema_json = kChatSchema;
  chat.may_stream = true;
  routes.Describe("POST", "/v1/chat/completions", std::move(chat));
  routes.Add("POST", "/v1/completions", dialect,
             [context](ApiCall& call) { Complete(context, call); });
  RouteDetails completion;
  completion.summary = "Continues a text, without memories";
  completion.body_schema_json = kCompletionSchema;
  completion.may_stream = true;
  routes.Describe("POST", "/v1/completions", std::move(completion));
  const std::int64_t created = NowMs() / 1000;
  routes.Add("GET", "/v1/models", dialect, [context, created](ApiCall& call) {
    ordered_json data = ordered_json::array();
    for (const std::string& name : ModelNames(*context)) data.push_back(ModelJson(name, created));
    call.exchange->Respond(JsonResponse({{"object", "list"}, {"data", std::move(data)}}));
  });
  routes.Describe("GET", "/v1/models", "The chat model and the embedding model");
  routes.Add("GET", "/v1/models/{model}", dialect, [context, created](ApiCall& call) {
    for (const std::string& name : ModelNames(*context)) {
      if (name != call.parameter("model")) continue;
      call.exchange->Respond(JsonResponse(ModelJson(name, created)));
      return;
    }
    call.exchange->Respond(ErrorResponse(call.request(), ErrorDialect::kOpenAi,
                                         NotFound("no such model; /v1/models lists them"), 404,
                                         "model_not_found"));
  });
  routes.Describe("GET", "/v1/models/{model}", "One model");
  routes.Add("POST", "/v1/embeddings", dialect, [context](ApiCall& call) {
    const std::optional<json> body = BodyOrError(call);
    if (!body) return;
    const Result<ordered_json> answer = Embeddings(*context, *body);
    call.exchange->Respond(answer.ok() ? JsonResponse(*answer)
                                       : OpenAiError(call.request(), answer.status()));
  });
  routes.Describe("POST", "/v1/embeddings", "Vectors of texts, by the memory's embedder",
                  kEmbeddingSchema);
}

}  // namespace inferscale
