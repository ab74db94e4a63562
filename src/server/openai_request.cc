#include "server/openai_request.h"

#include <algorithm>
#include <cstdint>
#include <optional>
#include <string_view>
#include <utility>

#include "llama/json_schema_grammar.h"
#include "server/tool_request.h"

namespace inferscale {
namespace {

using nlohmann::json;

constexpr std::int64_t kMaxChoices = 16, kMaxTopLogprobs = 20, kMaxTextLogprobs = 5;
constexpr std::int64_t kMaxTokens = 1 << 20, kMaxTopK = 1000;
constexpr std::int64_t kTextTokens = 16;  // what OpenAI gives a text completion that does not say
constexpr std::int64_t kMaxSeed = std::int64_t{1} << 53;
constexpr std::size_t kMaxStops = 16, kMaxPrompts = 64;

/// nullptr: missing or null.
const json* Field(const json& body, std::string_view name) {
  const auto found = body.find(name);
  return found == body.end() || found->is_null() ? nullptr : &*found;
}

Status Wrong(std::string_view name, std::string_view expected) {
  return InvalidArgument("'" + std::string(name) + "' must be " + std::string(expected));
}

Status CannotDo(std::string_view name, std::string_view why) {
  return Unsupported("'" + std::string(name) + "' is not supported here: " + std::string(why));
}

/// Fields that would change the answer if this server could do what they say.
Status RefuseUnsupported(const json& body) {
  for (const char* name : {"frequency_penalty", "presence_penalty"}) {
    INFERSCALE_ASSIGN_OR_RETURN(const std::optional<double> penalty,
                                NumberField(body, name, -2, 2));
    if (penalty.value_or(0) != 0) return CannotDo(name, "use repetition_penalty");
  }
  if (const json* bias = Field(body, "logit_bias")) {
    if (!bias->is_object()) return Wrong("logit_bias", "an object");
    if (!bias->empty()) return CannotDo("logit_bias", "tokens cannot be weighted one by one");
  }
  if (const json* modalities = Field(body, "modalities")) {
    if (!modalities->is_array()) return Wrong("modalities", "a list");
    for (const json& modality : *modalities) {
      if (modality != "text") return CannotDo("modalities", "answers are text");
    }
  }
  if (Field(body, "audio") != nullptr) return CannotDo("audio", "answers are text");
  if (Field(body, "web_search_options") != nullptr)
    return CannotDo("web_search_options", "nothing is searched but memory");
  INFERSCALE_ASSIGN_OR_RETURN(const std::optional<std::string> effort,
                              StringField(body, "reasoning_effort"));
  if (effort && *effort != "none")
    return CannotDo("reasoning_effort", "the model does not reason on demand");
  return OkStatus();
}

Result<std::vector<std::string>> Stops(const json& body) {
  const json* value = Field(body, "stop");
  std::vector<std::string> stops;
  if (value == nullptr) return stops;
  const json list = value->is_string() ? json::array({*value}) : *value;
  const std::string expected =
      "a string, or a list of at most " + std::to_string(kMaxStops) + " strings, none empty";
  if (!list.is_array() || list.size() > kMaxStops) return Wrong("stop", expected);
  for (const json& item : list) {
    if (!item.is_string() || item.get_ref<const std::string&>().empty())
      return Wrong("stop", expected);
    stops.push_back(item.get<std::string>());
  }
  return stops;
}

Result<std::string> Grammar(const json& body, const Engine& engine) {
  const json* format = Field(body, "response_format");
  if (format == nullptr) return std::string();
  if (!format->is_object()) return Wrong("response_format", "an object");
  INFERSCALE_ASSIGN_OR_RETURN(const std::optional<std::string> type, StringField(*format, "type"));
  if (!type) return Wrong("response_format.type", "text, json_object or json_schema");
  if (*type == "text") return std::string();
  json schema = {{"type", "object"}};
  if (*type == "json_schema") {
    const json* given = Field(*format, "json_schema");
    const json* inner = given != nullptr && given->is_object() ? Field(*given, "schema") : nullptr;
    if (inner == nullptr || !inner->is_object())
      return Wrong("response_format.json_schema.schema", "an object");
    schema = *inner;
  } else if (*type != "json_object") {
    return Wrong("response_format.type", "text, json_object or json_schema");
  }
  if (!engine.capabilities().grammar)
    return CannotDo("response_format", "this engine takes no grammar");
  Result<std::string> grammar = JsonSchemaGrammar(schema.dump());
  if (!grammar.ok()) return grammar.status().WithContext("'response_format.json_schema.schema'");
  return grammar;
}

Result<Sampling> SamplingOf(const json& body, const Engine& engine, bool chat) {
  Sampling sampling;
  INFERSCALE_ASSIGN_OR_RETURN(const auto temperature, NumberField(body, "temperature", 0, 2));
  sampling.temperature = temperature.value_or(1.0);
  INFERSCALE_ASSIGN_OR_RETURN(const auto top_p, NumberField(body, "top_p", 0, 1));
  constexpr double kLikeliestOnly = 1e-9;  // what OpenAI's 0 means
  sampling.top_p = std::max(top_p.value_or(1.0), kLikeliestOnly);
  INFERSCALE_ASSIGN_OR_RETURN(const auto min_p, NumberField(body, "min_p", 0, 0.999));
  sampling.min_p = min_p.value_or(0.0);
  INFERSCALE_ASSIGN_OR_RETURN(const auto top_k, IntegerField(body, "top_k", -1, kMaxTokens));
  sampling.top_k = static_cast<std::int32_t>(std::max<std::int64_t>(top_k.value_or(0), 0));
  INFERSCALE_ASSIGN_OR_RETURN(const auto penalty,
                              NumberField(body, "repetition_penalty", 0.01, 10));
  sampling.repetition_penalty = penalty.value_or(1.0);
  INFERSCALE_ASSIGN_OR_RETURN(const auto seed, IntegerField(body, "seed", -kMaxSeed, kMaxSeed));
  if (seed) sampling.seed = static_cast<std::uint32_t>(*seed);
  INFERSCALE_ASSIGN_OR_RETURN(auto tokens, IntegerField(body, "max_tokens", 1, kMaxTokens));
  if (chat) {
    INFERSCALE_ASSIGN_OR_RETURN(const auto newer,
                                IntegerField(body, "max_completion_tokens", 1, kMaxTokens));
    if (newer) tokens = newer;
  }
  const std::int64_t context = engine.capabilities().context_tokens;
  sampling.max_tokens =
      static_cast<std::int32_t>(std::min(tokens.value_or(chat ? context : kTextTokens), context));
  INFERSCALE_ASSIGN_OR_RETURN(sampling.stop, Stops(body));
  INFERSCALE_ASSIGN_OR_RETURN(sampling.grammar, Grammar(body, engine));
  return sampling;
}

Result<CompletionOptions> OptionsOf(const json& body, bool chat) {
  CompletionOptions options;
  options.chat = chat;
  INFERSCALE_RETURN_IF_ERROR(StringField(body, "model").status());
  INFERSCALE_ASSIGN_OR_RETURN(const auto stream, BooleanField(body, "stream"));
  options.stream = stream.value_or(false);
  if (const json* given = Field(body, "stream_options")) {
    if (!given->is_object()) return Wrong("stream_options", "an object");
    if (!options.stream) return InvalidArgument("'stream_options' needs 'stream': true");
    INFERSCALE_ASSIGN_OR_RETURN(const auto usage, BooleanField(*given, "include_usage"));
    options.include_usage = usage.value_or(false);
  }
  INFERSCALE_ASSIGN_OR_RETURN(const auto n, IntegerField(body, "n", 1, kMaxChoices));
  options.n = static_cast<std::int32_t>(n.value_or(1));
  if (chat) {
    INFERSCALE_ASSIGN_OR_RETURN(const auto wanted, BooleanField(body, "logprobs"));
    INFERSCALE_ASSIGN_OR_RETURN(const auto top,
                                IntegerField(body, "top_logprobs", 0, kMaxTopLogprobs));
    if (top && !wanted.value_or(false))
      return InvalidArgument("'top_logprobs' needs 'logprobs': true");
    if (wanted.value_or(false)) options.logprobs = static_cast<std::int32_t>(top.value_or(0));
  } else {
    INFERSCALE_ASSIGN_OR_RETURN(const auto top,
                                IntegerField(body, "logprobs", 0, kMaxTextLogprobs));
    if (top) options.logprobs = static_cast<std::int32_t>(*top);
  }
  return options;
}

/// At least one, by which CompletionAnswer tells tokens from text that was held back.
std::int32_t EngineLogprobs(const CompletionOptions& options) {
  return options.logprobs < 0 ? -1 : std::max(options.logprobs, 1);
}

Result<std::string> ContentText(const json& content, const std::string& where) {
  if (content.is_string()) return content.get<std::string>();
  if (!content.is_array()) return Wrong(where, "a string, or a list of parts");
  std::string text;
  for (const json& part : content) {
    if (!part.is_object()) return Wrong(where, "a list of objects");
    INFERSCALE_ASSIGN_OR_RETURN(const auto type, StringField(part, "type"));
    if (!type) return Wrong(where, "a list of parts that have a type");
    if (*type != "text" && *type != "refusal")
      return CannotDo(where, "the model reads text, not parts of type " + *type);
    INFERSCALE_ASSIGN_OR_RETURN(const auto words, StringField(part, *type));
    if (!words) return Wrong(where, "a list of parts that hold their text");
    if (!text.empty()) text += '\n';
    text += *words;
  }
  return text;
}

Result<ChatMessage> MessageOf(const json& given, const std::string& where) {
  if (!given.is_object()) return Wrong(where, "an object");
  ChatMessage message;
  INFERSCALE_ASSIGN_OR_RETURN(const auto role, StringField(given, "role"));
  if (!role) return Wrong(where + ".role", "a string");
  if (*role == "function") return CannotDo(where + ".role", "send role tool");
  if (*role != "system" && *role != "developer" && *role != "user" && *role != "assistant" &&
      *role != "tool") {
    return Wrong(where + ".role", "system, developer, user, assistant or tool");
  }
  message.role = *role == "developer" ? "system" : *role;
  if (message.role == "assistant") {
    INFERSCALE_ASSIGN_OR_RETURN(message.tool_calls, ToolCallsOf(given, where));
  }
  if (message.role == "tool") {
    INFERSCALE_ASSIGN_OR_RETURN(const auto answers, StringField(given, "tool_call_id"));
    if (!answers) return Wrong(where + ".tool_call_id", "a string");
    message.tool_call_id = *answers;
  }
  const json* content = Field(given, "content");
  if (content == nullptr && !message.tool_calls.empty()) return message;
  if (content == nullptr) return Wrong(where + ".content", "a string, or a list of parts");
  INFERSCALE_ASSIGN_OR_RETURN(message.content, ContentText(*content, where + ".content"));
  INFERSCALE_ASSIGN_OR_RETURN(const auto name, StringField(given, "name"));
  message.name = name.value_or("");
  return message;
}

/// The owner: ids in the body, else `user`, else headers.
Result<Scope> OwnerOf(const json& body, const ApiCall& call) {
  json ids = json::object();
  for (const char* name : {"user_id", "agent_id", "app_id", "run_id"}) {
    if (const json* value = Field(body, name)) ids[name] = *value;
  }
  if (ids.empty()) {
    if (const json* user = Field(body, "user")) {
      if (*user != "") ids["user_id"] = *user;
    }
  }
  if (ids.empty()) ids = OwnerHeaders(call.request());
  return ScopeOf(call.principal, ids);
}

Status ReadMemory(const json& body, const ApiCall& call, const ApiContext& context,
                  ChatCall* chat) {
  ChatRequest& request = chat->request;
  request.mode = context.settings->memory_mode(call.principal.tenant);
  request.top_k = context.options.top_k;
  request.remember = request.scope.HasOwner();
  const json* memory = Field(body, "memory");
  if (memory == nullptr) {
    request.remember = request.remember && request.mode != MemoryMode::kOff;
    return OkStatus();
  }
  if (!memory->is_object()) return Wrong("memory", "an object");
  INFERSCALE_ASSIGN_OR_RETURN(const auto mode, StringField(*memory, "mode"));
  if (mode) {
    const std::optional<MemoryMode> parsed = ParseMemoryMode(*mode);
    if (!parsed) return Wrong("memory.mode", "kv, text or off");
    request.mode = *parsed;
  }
  INFERSCALE_ASSIGN_OR_RETURN(const auto top_k, IntegerField(*memory, "top_k", 0, kMaxTopK));
  if (top_k) request.top_k = static_cast<std::int32_t>(*top_k);
  INFERSCALE_ASSIGN_OR_RETURN(const auto recipe, StringField(*memory, "recipe"));
  const std::string& own = context.service->options().recipe;
  if (recipe && *recipe != own)
    return CannotDo("memory.recipe", "this server encodes memories with " + own);
  INFERSCALE_ASSIGN_OR_RETURN(const auto remember, BooleanField(*memory, "remember"));
  request.remember =
      request.scope.HasOwner() && remember.value_or(request.mode != MemoryMode::kOff);
  if (const json* filters = Field(*memory, "filters")) {
    if (!filters->is_object()) return Wrong("memory.filters", "an object");
    if (!filters->empty()) {
      Result<std::unique_ptr<const Filter>> filter = Filter::Parse(filters->dump());
      if (!filter.ok()) return filter.status().WithContext("'memory.filters'");
      chat->filter = *std::move(filter);
      request.filter = chat->filter.get();
    }
  }
  return OkStatus();
}

Result<const Engine*> EngineOf(const ApiContext& context) {
  if (const Engine* engine = context.service->engine()) return engine;
  return Unavailable("this server has no model: start it with --model");
}

Result<std::vector<TokenIds>> PromptsOf(const json& body, const Engine& engine) {
  const std::string expected =
      "a string, a list of at most " + std::to_string(kMaxPrompts) + " strings, or token ids";
  const json* prompt = Field(body, "prompt");
  if (prompt == nullptr) return Wrong("prompt", expected);
  const bool one = prompt->is_string() ||
                   (prompt->is_array() && !prompt->empty() && prompt->front().is_number_integer());
  const json list = one ? json::array({*prompt}) : *prompt;
  if (!list.is_array() || list.empty() || list.size() > kMaxPrompts)
    return Wrong("prompt", expected);
  std::vector<TokenIds> prompts;
  for (const json& item : list) {
    TokenIds ids;
    if (item.is_string()) {
      ids = engine.Tokenize(item.get_ref<const std::string&>());
    } else if (item.is_array()) {
      for (const json& id : item) {
        if (!id.is_number_integer() || id < 0 || id > INT32_MAX) return Wrong("prompt", expected);
        ids.push_back(id.get<TokenId>());
      }
    } else {
      return Wrong("prompt", expected);
    }
    if (ids.empty()) return InvalidArgument("'prompt' must not be empty");
    prompts.push_back(std::move(ids));
  }
  return prompts;
}

}  // namespace

Result<ChatCall> ParseChatCall(const json& body, const ApiCall& call, const ApiContext& context) {
  ChatCall chat;
  INFERSCALE_ASSIGN_OR_RETURN(const Engine* engine, EngineOf(context));
  INFERSCALE_ASSIGN_OR_RETURN(chat.options, OptionsOf(body, true));
  const json* messages = Field(body, "messages");
  if (messages == nullptr || !messages->is_array() || messages->empty())
    return Wrong("messages", "a list of at least one message");
  for (std::size_t i = 0; i < messages->size(); ++i) {
    INFERSCALE_ASSIGN_OR_RETURN(ChatMessage message,
                                MessageOf((*messages)[i], "messages[" + std::to_string(i) + "]"));
    chat.request.messages.push_back(std::move(message));
  }
  INFERSCALE_RETURN_IF_ERROR(CheckToolResults(chat.request.messages));
  INFERSCALE_ASSIGN_OR_RETURN(chat.request.sampling, SamplingOf(body, *engine, true));
  chat.request.sampling.logprobs = EngineLogprobs(chat.options);
  INFERSCALE_RETURN_IF_ERROR(RefuseUnsupported(body));
  INFERSCALE_ASSIGN_OR_RETURN(chat.request.tools, ToolsOf(body, chat.request.messages, *engine));
  if (chat.request.tools != nullptr && !chat.request.tools->use().tools.empty()) {
    chat.request.tools->Constrain(chat.request.sampling);
    chat.options.tools = chat.request.tools;
  }
  INFERSCALE_ASSIGN_OR_RETURN(chat.request.scope, OwnerOf(body, call));
  INFERSCALE_RETURN_IF_ERROR(ReadMemory(body, call, context, &chat));
  return chat;
}

Result<TextCall> ParseTextCall(const json& body, const ApiCall& call, const ApiContext& context) {
  TextCall text;
  INFERSCALE_ASSIGN_OR_RETURN(const Engine* engine, EngineOf(context));
  INFERSCALE_ASSIGN_OR_RETURN(text.options, OptionsOf(body, false));
  INFERSCALE_ASSIGN_OR_RETURN(text.sampling, SamplingOf(body, *engine, false));
  text.sampling.logprobs = EngineLogprobs(text.options);
  INFERSCALE_RETURN_IF_ERROR(RefuseUnsupported(body));
  INFERSCALE_ASSIGN_OR_RETURN(const auto suffix, StringField(body, "suffix"));
  if (suffix && !suffix->empty()) return CannotDo("suffix", "the model writes forward only");
  INFERSCALE_ASSIGN_OR_RETURN(const auto echo, BooleanField(body, "echo"));
  if (echo.value_or(false)) return CannotDo("echo", "the prompt is not sent back");
  INFERSCALE_ASSIGN_OR_RETURN(const auto best_of, IntegerField(body, "best_of", 1, kMaxChoices));
  if (best_of.value_or(text.options.n) != text.options.n)
    return CannotDo("best_of", "all choices that are made are sent");
  INFERSCALE_ASSIGN_OR_RETURN(text.prompts, PromptsOf(body, *engine));
  if (static_cast<std::int64_t>(text.prompts.size()) * text.options.n >
      static_cast<std::int64_t>(kMaxPrompts))
    return InvalidArgument("'n' times the number of prompts may be at most " +
                           std::to_string(kMaxPrompts));
  INFERSCALE_ASSIGN_OR_RETURN(const Scope owner, OwnerOf(body, call));
  text.has_owner = owner.HasOwner();
  return text;
}

}  // namespace inferscale
