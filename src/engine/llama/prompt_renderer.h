#ifndef INFERSCALE_ENGINE_LLAMA_PROMPT_RENDERER_H_
#define INFERSCALE_ENGINE_LLAMA_PROMPT_RENDERER_H_

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <vector>

#include "engine/llama/llama_tool_format.h"
#include "inferscale/engine.h"
#include "llama/chat_template.h"
#include "llama/tokenizer.h"

namespace inferscale {

/// Renders conversations to token ids. The template only ever sees sentinels in the place of
/// message texts; the output is cut there, so that no text can become a special token or change the
/// skeleton. Thread-safe.
class PromptRenderer {
 public:
  /// Falls back to ChatML, or to plain "User: …" lines, when the model has no usable template.
  /// \param source a Jinja template to use instead of the model's own; empty: that
  PromptRenderer(std::shared_ptr<const LlamaModel> model,
                 std::shared_ptr<const LlamaTokenizer> tokenizer, const std::string& source = {});

  Result<RenderedChat> Render(std::span<const ChatMessage> messages) const;
  /// The tools stand in front of the facts' place wherever the template lets them.
  Result<RenderedChat> RenderWithTools(std::span<const ChatMessage> messages,
                                       const LlamaToolFormat& tools) const;
  const ToolFormats& tool_formats() const { return *tool_formats_; }

  bool system_role() const { return system_role_; }
  /// What decides the skeleton, for the fingerprint.
  const std::string& template_identity() const { return identity_; }

 private:
  enum class Trim { kNone, kLineBreaks, kWhitespace };
  struct TrimRule {
    Trim left = Trim::kNone, right = Trim::kNone;
  };
  /// The template's own text around the messages' places. pieces.size() = places.size() + 1.
  struct Skeleton {
    std::vector<TokenIds> pieces;
    std::vector<std::size_t> places;  ///< message index
    /// Tokens of tools that follow the system text, in front of everything else.
    std::int32_t tool_tokens = 0;
  };

  Result<std::string> RenderText(const std::vector<TemplateMessage>& messages) const;
  Result<Skeleton> MakeSkeleton(const std::vector<std::string>& roles) const;
  Result<Skeleton> FindSkeleton(const std::vector<std::string>& roles) const;
  Result<Skeleton> MakeToolSkeleton(const std::vector<std::string>& roles,
                                    std::span<const ChatMessage> messages,
                                    const LlamaToolFormat& tools) const;
  Result<std::string> TextBehindSystem(const std::vector<ToolUse::Tool>& tools) const;
  Result<Skeleton> Cut(std::string_view text, std::size_t messages,
                       std::string_view behind_system) const;
  RenderedChat Fill(const Skeleton& skeleton, const std::vector<std::string>& roles,
                    std::span<const ChatMessage> messages) const;
  TokenIds TokenizeMarked(std::string_view text) const;
  void Probe();
  std::string Trimmed(const std::string& role, const std::string& content) const;

  std::shared_ptr<const LlamaTokenizer> tokenizer_;
  std::unique_ptr<ChatTemplate> template_;  ///< null: plain lines
  std::unique_ptr<const SpecialNameGuard> guard_;
  std::unique_ptr<const ToolFormats> tool_formats_;
  std::string identity_;
  bool system_role_ = true;
  std::map<std::string, TrimRule> trim_;
  mutable std::mutex mutex_;
  mutable std::map<std::string, Skeleton> skeletons_;
};

}  // namespace inferscale

#endif  // INFERSCALE_ENGINE_LLAMA_PROMPT_RENDERER_H_
