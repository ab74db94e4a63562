#ifndef INFERSCALE_ENGINE_SKELETON_RENDERER_H_
#define INFERSCALE_ENGINE_SKELETON_RENDERER_H_

#include <cstdint>
#include <map>
#include <mutex>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "inferscale/engine.h"
#include "llama/chat_template.h"

namespace inferscale {

/// Renders conversations to token ids, over some template and some tokenizer. The template only
/// ever sees sentinels in the place of message texts; the output is cut there, so that no text can
/// become a special token or change the skeleton. Thread-safe if what its subclass gives is.
class SkeletonRenderer {
 public:
  virtual ~SkeletonRenderer() = default;

  Result<RenderedChat> Render(std::span<const ChatMessage> messages) const;
  bool system_role() const { return system_role_; }

 protected:
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

  /// The prompt's text. A retryable status: whoever knows the template is away; others: it refuses.
  virtual Result<std::string> RenderTemplate(
      const std::vector<TemplateMessage>& messages) const = 0;
  /// Ids of the template's own text, special tokens on.
  virtual Result<TokenIds> TokenizeSkeleton(std::string_view text) const = 0;
  /// Ids of a message's text, special tokens off.
  virtual Result<TokenIds> TokenizeText(std::string_view text) const = 0;
  /// A conversation for models without a template.
  static std::string PlainLines(const std::vector<TemplateMessage>& messages);
  /// Completes the ids that open a prompt.
  virtual void BeginPrompt(TokenIds* /*opening*/) const {}

  /// Learns what the template does to texts; to be called before anything is rendered. \return a
  /// retryable status of RenderTemplate().
  Status Probe();
  Result<std::string> RenderText(const std::vector<TemplateMessage>& messages) const;
  Result<Skeleton> Cut(std::string_view text, std::size_t messages,
                       std::string_view behind_system) const;
  Result<RenderedChat> Fill(const Skeleton& skeleton, const std::vector<std::string>& roles,
                            std::span<const ChatMessage> messages) const;

  mutable std::mutex mutex_;
  mutable std::map<std::string, Skeleton> skeletons_;

 private:
  Result<Skeleton> MakeSkeleton(const std::vector<std::string>& roles) const;
  Result<Skeleton> FindSkeleton(const std::vector<std::string>& roles) const;
  std::string Trimmed(const std::string& role, const std::string& content) const;

  bool system_role_ = true;
  std::map<std::string, TrimRule> trim_;
};

}  // namespace inferscale

#endif  // INFERSCALE_ENGINE_SKELETON_RENDERER_H_
