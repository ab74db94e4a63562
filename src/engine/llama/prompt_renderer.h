#ifndef INFERSCALE_ENGINE_LLAMA_PROMPT_RENDERER_H_
#define INFERSCALE_ENGINE_LLAMA_PROMPT_RENDERER_H_

#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "engine/llama/llama_tool_format.h"
#include "engine/skeleton_renderer.h"
#include "inferscale/engine.h"
#include "llama/chat_template.h"
#include "llama/tokenizer.h"

namespace inferscale {

/// SkeletonRenderer over a GGUF model's own template and tokenizer. Thread-safe.
class PromptRenderer final : public SkeletonRenderer {
 public:
  /// Falls back to ChatML, or to plain "User: …" lines, when the model has no usable template.
  /// \param source a Jinja template to use instead of the model's own; empty: that
  PromptRenderer(std::shared_ptr<const LlamaModel> model,
                 std::shared_ptr<const LlamaTokenizer> tokenizer, const std::string& source = {});

  /// The tools stand in front of the facts' place wherever the template lets them.
  Result<RenderedChat> RenderWithTools(std::span<const ChatMessage> messages,
                                       const LlamaToolFormat& tools) const;
  const ToolFormats& tool_formats() const { return *tool_formats_; }

  /// What decides the skeleton, for the fingerprint.
  const std::string& template_identity() const { return identity_; }

 protected:
  Result<std::string> RenderTemplate(const std::vector<TemplateMessage>& messages) const override;
  Result<TokenIds> TokenizeSkeleton(std::string_view text) const override;
  Result<TokenIds> TokenizeText(std::string_view text) const override;
  void BeginPrompt(TokenIds* opening) const override;

 private:
  Result<Skeleton> MakeToolSkeleton(const std::vector<std::string>& roles,
                                    std::span<const ChatMessage> messages,
                                    const LlamaToolFormat& tools) const;
  Result<std::string> TextBehindSystem(const std::vector<ToolUse::Tool>& tools) const;

  std::shared_ptr<const LlamaTokenizer> tokenizer_;
  std::unique_ptr<ChatTemplate> template_;  ///< null: plain lines
  std::unique_ptr<const SpecialNameGuard> guard_;
  std::unique_ptr<const ToolFormats> tool_formats_;
  std::string identity_;
};

}  // namespace inferscale

#endif  // INFERSCALE_ENGINE_LLAMA_PROMPT_RENDERER_H_
