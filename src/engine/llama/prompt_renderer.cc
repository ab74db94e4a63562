#include "engine/llama/prompt_renderer.h"

#include <spdlog/spdlog.h>

#include "engine/prompt_roles.h"

namespace inferscale {
namespace {

constexpr const char* kChatMl =
    "{%- for message in messages -%}<|im_start|>{{ message.role }}\n{{ message.content "
    "}}<|im_end|>\n"
    "{% endfor -%}{%- if add_generation_prompt -%}<|im_start|>assistant\n{% endif -%}";

}  // namespace

PromptRenderer::PromptRenderer(std::shared_ptr<const LlamaModel> model,
                               std::shared_ptr<const LlamaTokenizer> tokenizer,
                               const std::string& source)
    : tokenizer_(std::move(tokenizer)) {
  const std::string own = source.empty() ? model->chat_template() : source;
  if (!own.empty()) {
    Result<std::unique_ptr<ChatTemplate>> created = ChatTemplate::Create(*model, own);
    if (created.ok()) {
      template_ = std::move(*created);
      if (RenderText({{"user", Sentinel(0)}}).ok()) {
        identity_ = own;
      } else {
        template_.reset();
      }
    }
    if (!template_) spdlog::warn("the model's chat template is unusable; a generic one is used");
  }
  if (!template_ && tokenizer_->FindSpecial("<|im_start|>") >= 0 &&
      tokenizer_->FindSpecial("<|im_end|>") >= 0) {
    Result<std::unique_ptr<ChatTemplate>> created = ChatTemplate::Create(*model, kChatMl);
    if (created.ok()) {
      template_ = std::move(*created);
      identity_ = kChatMl;
    }
  }
  if (identity_.empty()) identity_ = "plain lines";
  [[maybe_unused]] const Status probed = Probe();  // nothing here can be away
  // What marks places must not be spelt by a tool either.
  guard_ = std::make_unique<const SpecialNameGuard>(
      tokenizer_->SpecialNames(),
      std::vector<std::string>{std::string(kSentinelHead), std::string(SpecialNameGuard::kMark)});
  // Tools are told of in the system text: a template without one cannot take them.
  const ChatTemplate* native = system_role() ? template_.get() : nullptr;
  tool_formats_ = std::make_unique<const ToolFormats>(std::move(model), tokenizer_, native);
}

Result<std::string> PromptRenderer::RenderTemplate(
    const std::vector<TemplateMessage>& messages) const {
  if (!template_) return PlainLines(messages);
  return template_->Render(messages);
}

Result<TokenIds> PromptRenderer::TokenizeSkeleton(std::string_view text) const {
  TokenIds ids;
  while (!text.empty()) {
    const std::size_t mark = text.find(SpecialNameGuard::kMark);
    const TokenIds part = tokenizer_->TokenizeTemplate(text.substr(0, mark));
    ids.insert(ids.end(), part.begin(), part.end());
    if (mark == std::string_view::npos) break;
    text.remove_prefix(mark + SpecialNameGuard::kMark.size());
  }
  return ids;
}

Result<TokenIds> PromptRenderer::TokenizeText(std::string_view text) const {
  return tokenizer_->Tokenize(text);
}

void PromptRenderer::BeginPrompt(TokenIds* opening) const {
  if (tokenizer_->adds_bos() && (opening->empty() || opening->front() != tokenizer_->bos())) {
    opening->insert(opening->begin(), tokenizer_->bos());
  }
}

}  // namespace inferscale
