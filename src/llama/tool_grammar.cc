#include "llama/tool_grammar.h"

#include <algorithm>
#include <exception>
#include <string_view>
#include <utility>

#include "llama.h"
#include "llama/chat_template_impl.h"
#include "llama/json_schema_grammar.h"

namespace inferscale {
namespace {

constexpr std::size_t kMaxGrammarBytes = std::size_t{1} << 20;
constexpr const char* kGenericTemplate =
    R"J({%- if tools -%}<|im_start|>system
{% if messages[0].role == 'system' %}{{ messages[0].content }}

{% endif %}# Tools
<tools>{% for tool in tools %}
{{ tool | tojson }}{% endfor %}
</tools><|im_end|>
{% elif messages[0].role == 'system' -%}<|im_start|>system
{{ messages[0].content }}<|im_end|>
{% endif -%}
{%- for message in messages -%}
{%- if message.role == 'tool' -%}<|im_start|>user
<tool_response>
{{ message.content }}
</tool_response><|im_end|>
{% elif message.role == 'assistant' -%}<|im_start|>assistant
{{ message.content }}{% for tool_call in message.tool_calls %}
<tool_call>
{"name": "{{ tool_call.function.name }}", "arguments": {{ tool_call.function.arguments | tojson }}}
</tool_call>{% endfor %}<|im_end|>
{% elif message.role == 'user' or not loop.first -%}<|im_start|>{{ message.role }}
{{ message.content }}<|im_end|>
{% endif -%}
{%- endfor -%}
{%- if add_generation_prompt -%}<|im_start|>assistant
{% endif -%})J";

std::string EscapedForRegex(std::string_view text) {
  std::string escaped;
  for (const char c : text) {
    if (std::string_view(R"(.^$|()*+?[]{}\/-)").find(c) != std::string_view::npos) escaped += '\\';
    escaped += c;
  }
  return escaped;
}

std::string Anchored(const std::string& pattern) {
  std::string anchored = pattern;
  if (!anchored.starts_with('^')) anchored.insert(0, 1, '^');
  if (!anchored.ends_with('$')) anchored += '$';
  return anchored;
}

}  // namespace

const char* GenericToolTemplate() { return kGenericTemplate; }

struct ToolGrammar::Parser {
  common_chat_parser_params params;
};

Status ToolGrammar::CheckSchema(const LlamaTokenizer& tokenizer, const std::string& schema_json) {
  INFERSCALE_ASSIGN_OR_RETURN(const std::string gbnf, JsonSchemaGrammar(schema_json));
  llama_sampler* sampler = nullptr;
  if (gbnf.size() <= kMaxGrammarBytes) {
    try {
      sampler = llama_sampler_init_grammar(tokenizer.vocab(), gbnf.c_str(), "root");
    } catch (const std::exception&) {
      sampler = nullptr;
    }
  }
  if (sampler == nullptr)
    return InvalidArgument("the JSON schema cannot be enforced: it is too large for a grammar");
  llama_sampler_free(sampler);
  return OkStatus();
}

ToolGrammar::ToolGrammar() = default;
ToolGrammar::~ToolGrammar() = default;

Result<std::unique_ptr<const ToolGrammar>> ToolGrammar::Create(const ChatTemplate& chat_template,
                                                               const LlamaTokenizer& tokenizer,
                                                               const ToolUse& use,
                                                               bool calls_only) {
  std::vector<ToolUse::Tool> tools = use.tools;
  if (!use.only.empty())
    std::erase_if(tools, [&](const ToolUse::Tool& tool) { return tool.name != use.only; });
  common_chat_templates_inputs inputs = ChatTemplate::Impl::Inputs(
      {{"system", "You are a helpful assistant."}, {"user", "Hello"}}, tools);
  inputs.tool_choice = use.choice == ToolUse::Choice::kRequired ? COMMON_CHAT_TOOL_CHOICE_REQUIRED
                                                                : COMMON_CHAT_TOOL_CHOICE_AUTO;
  inputs.parallel_tool_calls = use.parallel;
  inputs.chat_template_kwargs["tools_in_user_message"] = "false";
  INFERSCALE_ASSIGN_OR_RETURN(const common_chat_params applied, chat_template.impl_->Apply(inputs));

  auto made = std::unique_ptr<ToolGrammar>(new ToolGrammar());
  auto parser = std::make_unique<Parser>();
  parser->params = common_chat_parser_params(applied);
  try {
    if (!applied.parser.empty()) parser->params.parser.load(applied.parser);
  } catch (const std::exception& error) {
    return Unsupported(std::string("the model's form of tool calls is not understood: ") +
                       error.what());
  }
  made->parser_ = std::move(parser);
  made->stops_ = applied.additional_stops;
  for (const std::string& name : applied.preserved_tokens) {
    if (const TokenId id = tokenizer.FindSpecial(name); id >= 0) made->shown_tokens_.push_back(id);
  }
  if (tools.empty()) return std::unique_ptr<const ToolGrammar>(std::move(made));
  made->gbnf_ = applied.grammar;
  if (!applied.grammar_lazy) {
    made->prefill_ = tokenizer.TokenizeTemplate(applied.generation_prompt);
    if (calls_only) made->RequireAtOnce(use.parallel);
    return std::unique_ptr<const ToolGrammar>(std::move(made));
  }
  for (const common_grammar_trigger& trigger : applied.grammar_triggers) {
    if (trigger.type == COMMON_GRAMMAR_TRIGGER_TYPE_TOKEN) {
      made->trigger_tokens_.push_back(trigger.token);
    } else if (trigger.type == COMMON_GRAMMAR_TRIGGER_TYPE_PATTERN) {
      made->trigger_patterns_.push_back(trigger.value);
    } else if (trigger.type == COMMON_GRAMMAR_TRIGGER_TYPE_PATTERN_FULL) {
      made->trigger_patterns_.push_back(Anchored(trigger.value));
    } else if (const TokenId id = tokenizer.FindSpecial(trigger.value); id >= 0) {
      made->trigger_tokens_.push_back(id);
    } else {
      made->trigger_patterns_.push_back(EscapedForRegex(trigger.value));
    }
  }
  // Without a sign of where a call begins the grammar would hold from the start: no free answers.
  if (made->trigger_patterns_.empty() && made->trigger_tokens_.empty()) made->gbnf_.clear();
  return std::unique_ptr<const ToolGrammar>(std::move(made));
}

/// Lets a call begin at the answer's start alone, and no answer end without one.
void ToolGrammar::RequireAtOnce(bool parallel) {
  constexpr std::string_view kRoot = "root ::= ";
  const std::size_t root = gbnf_.starts_with(kRoot) ? 0 : gbnf_.find("\nroot ::= ");
  if (root == std::string::npos || gbnf_.find("\ntool-call ::= ") == std::string::npos) return;
  const std::size_t begin = root == 0 ? 0 : root + 1;
  const std::size_t end = std::min(gbnf_.find('\n', begin), gbnf_.size());
  gbnf_.replace(begin, end - begin,
                std::string(kRoot) + (parallel ? R"(tool-call ("\n" tool-call)*)" : "tool-call"));
  prefill_.clear();
}

ToolAnswer ToolGrammar::Parse(const std::string& text, bool partial) const {
  ToolAnswer answer;
  try {
    const common_chat_msg message = common_chat_parse(text, partial, parser_->params);
    answer.content = message.render_content();
    for (const common_chat_tool_call& call : message.tool_calls)
      answer.calls.push_back({call.id, call.name, call.arguments});
  } catch (const std::exception&) {
    answer = {};
    if (!partial) answer.content = text;
  }
  return answer;
}

}  // namespace inferscale
