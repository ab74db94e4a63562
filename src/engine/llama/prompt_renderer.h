#ifndef INFERSCALE_ENGINE_LLAMA_PROMPT_RENDERER_H_
#define INFERSCALE_ENGINE_LLAMA_PROMPT_RENDERER_H_

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <vector>

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
  PromptRenderer(std::shared_ptr<const LlamaModel> model,
                 std::shared_ptr<const LlamaTokenizer> tokenizer);

  Result<RenderedChat> Render(std::span<const ChatMessage> messages) const;

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
  };

  Result<std::string> RenderText(const std::vector<TemplateMessage>& messages) const;
  Result<Skeleton> MakeSkeleton(const std::vector<std::string>& roles) const;
  Result<Skeleton> FindSkeleton(const std::vector<std::string>& roles) const;
  void Probe();
  std::string Trimmed(const std::string& role, const std::string& content) const;

  std::shared_ptr<const LlamaTokenizer> tokenizer_;
  std::unique_ptr<ChatTemplate> template_;  ///< null: plain lines
  std::string identity_;
  bool system_role_ = true;
  std::map<std::string, TrimRule> trim_;
  mutable std::mutex mutex_;
  mutable std::map<std::string, Skeleton> skeletons_;
};

}  // namespace inferscale

#endif  // INFERSCALE_ENGINE_LLAMA_PROMPT_RENDERER_H_
