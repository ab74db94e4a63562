#include "engine/llama/llama_tool_format.h"

#include <algorithm>
#include <utility>

#include <nlohmann/json.hpp>

namespace inferscale {
namespace {

using Json = nlohmann::ordered_json;

constexpr std::size_t kMaxKept = 64;

std::string Dump(const Json& json) {
  return json.dump(-1, ' ', false, Json::error_handler_t::replace);
}

Json ParsedOr(const std::string& text, Json otherwise) {
  Json parsed = Json::parse(text, nullptr, false);
  return parsed.is_discarded() ? std::move(otherwise) : std::move(parsed);
}

std::string ToolsAsText(const std::vector<ToolUse::Tool>& tools) {
  std::string text =
      "# Tools\n\nYou may call functions to help with what the user asks. These are the functions, "
      "one in a line:\n<tools>\n";
  for (const ToolUse::Tool& tool : tools) {
    Json function = {{"name", tool.name}};
    if (!tool.description.empty()) function["description"] = tool.description;
    function["parameters"] = ParsedOr(tool.parameters_json, Json::object());
    text += Dump({{"type", "function"}, {"function", std::move(function)}}) + "\n";
  }
  return text +
         "</tools>\n\nTo call a function, answer with its name and arguments as JSON between "
         "tags:\n<tool_call>\n{\"name\": \"function name\", \"arguments\": {\"argument\": "
         "\"value\"}}\n</tool_call>";
}

std::string CallAsText(const ToolCall& call) {
  return "<tool_call>\n{\"name\": " + Dump(call.name) +
         ", \"arguments\": " + Dump(ParsedOr(call.arguments, Json(call.arguments))) +
         "}\n</tool_call>";
}

void AddPart(std::string& key, std::string_view part) {
  key += std::to_string(part.size());
  key += ':';
  key += part;
}

}  // namespace

LlamaToolFormat::LlamaToolFormat(ToolUse use, std::unique_ptr<const ToolGrammar> grammar,
                                 bool native)
    : use_(std::move(use)), grammar_(std::move(grammar)), native_(native) {
  for (const ToolUse::Tool& tool : use_.tools) {
    for (const std::string* part : {&tool.name, &tool.description, &tool.parameters_json})
      AddPart(prompt_key_, *part);
  }
}

void LlamaToolFormat::Constrain(Sampling& sampling) const {
  sampling.grammar = grammar_->gbnf();
  sampling.grammar_triggers = grammar_->trigger_patterns();
  sampling.grammar_trigger_tokens = grammar_->trigger_tokens();
  sampling.grammar_prefill = grammar_->prefill();
  sampling.shown_tokens = grammar_->shown_tokens();
  sampling.stop.insert(sampling.stop.end(), grammar_->stops().begin(), grammar_->stops().end());
}

std::vector<ChatMessage> LlamaToolFormat::AsText(std::span<const ChatMessage> messages) const {
  std::vector<ChatMessage> texts;
  texts.reserve(messages.size());
  for (const ChatMessage& message : messages) {
    ChatMessage& text = texts.emplace_back(message);
    for (const ToolCall& call : message.tool_calls) {
      if (!text.content.empty()) text.content += '\n';
      text.content += CallAsText(call);
    }
    if (message.role == "tool") {
      text.role = "user";
      text.content = "<tool_response>\n" + message.content + "\n</tool_response>";
    }
  }
  if (use_.tools.empty()) return texts;
  const std::string tools = ToolsAsText(use_.tools);
  if (!texts.empty() && texts.front().role == "system") {
    std::string& system = texts.front().content;
    system += (system.empty() ? "" : "\n\n") + tools;
  } else {
    texts.insert(texts.begin(), ChatMessage{"system", tools, ""});
  }
  return texts;
}

ToolFormats::ToolFormats(std::shared_ptr<const LlamaModel> model,
                         std::shared_ptr<const LlamaTokenizer> tokenizer,
                         const ChatTemplate* chat_template)
    : tokenizer_(std::move(tokenizer)),
      native_(chat_template != nullptr && chat_template->supports_tools() ? chat_template
                                                                          : nullptr) {
  Result<std::unique_ptr<ChatTemplate>> generic =
      ChatTemplate::Create(*model, GenericToolTemplate());
  if (generic.ok()) generic_ = *std::move(generic);
}

Result<std::shared_ptr<const LlamaToolFormat>> ToolFormats::Make(const ToolUse& use) const {
  std::string key = use.choice == ToolUse::Choice::kRequired ? "required" : "auto";
  key += use.parallel ? " many " : " one ";
  AddPart(key, use.only);
  for (const ToolUse::Tool& tool : use.tools) {
    for (const std::string* part : {&tool.name, &tool.description, &tool.parameters_json})
      AddPart(key, *part);
  }
  {
    const std::scoped_lock lock(mutex_);
    if (const auto found = made_.find(key); found != made_.end()) return found->second;
  }
  for (std::size_t i = 0; i < use.tools.size(); ++i) {
    const Status held = ToolGrammar::CheckSchema(*tokenizer_, use.tools[i].parameters_json);
    if (!held.ok()) {
      return held.WithContext("'tools[" + std::to_string(i) + "].function.parameters'");
    }
  }
  bool native = native_ != nullptr;
  Result<std::unique_ptr<const ToolGrammar>> grammar =
      native ? ToolGrammar::Create(*native_, *tokenizer_, use, false)
             : Result<std::unique_ptr<const ToolGrammar>>(Unsupported("no form of its own"));
  if (!grammar.ok() || (!use.tools.empty() && (*grammar)->gbnf().empty())) {
    native = false;
    if (generic_ == nullptr) return Unsupported("this model's tokenizer knows no tool calls");
    grammar = ToolGrammar::Create(*generic_, *tokenizer_, use, true);
    if (!grammar.ok()) return grammar.status().WithContext("'tools'");
  }
  auto format = std::make_shared<const LlamaToolFormat>(use, *std::move(grammar), native);
  const std::scoped_lock lock(mutex_);
  if (made_.size() >= kMaxKept) made_.clear();
  made_[key] = format;
  return format;
}

SpecialNameGuard::SpecialNameGuard(std::vector<std::string> names, std::vector<std::string> words)
    : names_(std::move(names)), words_(std::move(words)) {
  std::erase_if(names_, [](const std::string& name) { return name.size() < 2; });
  for (const std::string& name : names_) {
    if (first_.find(name.front()) == std::string::npos) first_ += name.front();
    if (last_.find(name.back()) == std::string::npos) last_ += name.back();
  }
}

std::string SpecialNameGuard::MarkedText(std::string_view text) const {
  std::vector<std::size_t> cuts;
  const auto cut_in = [&](const std::string& name, std::size_t after) {
    for (std::size_t at = text.find(name); at != std::string_view::npos;
         at = text.find(name, at + 1)) {
      std::size_t cut = at + after;
      while (cut < text.size() && (static_cast<unsigned char>(text[cut]) & 0xC0) == 0x80) ++cut;
      cuts.push_back(cut);
    }
  };
  // In the middle: the mark itself ends as they begin.
  for (const std::string& word : words_) cut_in(word, word.size() / 2);
  // What stands before or after a text is the template's: a name may begin or end there.
  bool mark_before = false, mark_after = false;
  const bool may_hold = text.find_first_of(first_) != std::string_view::npos ||
                        text.find_first_of(last_) != std::string_view::npos;
  for (std::size_t i = 0; may_hold && i < names_.size(); ++i) {
    cut_in(names_[i], 1);
    const std::string_view whole = names_[i];
    for (std::size_t length = 1; length < whole.size(); ++length) {
      mark_after = mark_after || text.ends_with(whole.substr(0, length));
      mark_before = mark_before || text.starts_with(whole.substr(length));
    }
  }
  std::sort(cuts.begin(), cuts.end());
  cuts.erase(std::unique(cuts.begin(), cuts.end()), cuts.end());
  std::string marked = mark_before ? std::string(kMark) : std::string();
  std::size_t from = 0;
  for (const std::size_t cut : cuts) {
    marked += text.substr(from, cut - from);
    marked += kMark;
    from = cut;
  }
  marked += text.substr(from);
  if (mark_after) marked += kMark;
  return marked;
}

std::string SpecialNameGuard::Marked(const std::string& json) const {
  const Json parsed = Json::parse(json, nullptr, false);
  if (parsed.is_discarded()) return json;
  const auto mark = [this](const auto& self, const Json& value) -> Json {
    if (value.is_string()) return MarkedText(value.get_ref<const std::string&>());
    if (value.is_object()) {
      Json object = Json::object();
      for (const auto& [key, item] : value.items()) object[MarkedText(key)] = self(self, item);
      return object;
    }
    if (value.is_array()) {
      Json array = Json::array();
      for (const Json& item : value) array.push_back(self(self, item));
      return array;
    }
    return value;
  };
  return Dump(mark(mark, parsed));
}

}  // namespace inferscale
