#ifndef INFERSCALE_ENGINE_LLAMA_LLAMA_TOOL_FORMAT_H_
#define INFERSCALE_ENGINE_LLAMA_LLAMA_TOOL_FORMAT_H_

#include <map>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "inferscale/engine.h"
#include "llama/chat_template.h"
#include "llama/tokenizer.h"
#include "llama/tool_grammar.h"

namespace inferscale {

/// Tools in the model's own form, if its template has one, else in a generic one: described in the
/// system text, called by JSON between tags. Immutable; thread-safe.
class LlamaToolFormat final : public ToolFormat {
 public:
  LlamaToolFormat(ToolUse use, std::unique_ptr<const ToolGrammar> grammar, bool native);

  const ToolUse& use() const override { return use_; }
  void Constrain(Sampling& sampling) const override;
  ToolAnswer Parse(const std::string& text, bool partial) const override {
    return grammar_->Parse(text, partial);
  }

  bool native() const { return native_; }
  /// What of `use` the prompt says, for caches.
  const std::string& prompt_key() const { return prompt_key_; }
  /// The messages with tools, calls and results as text, for a template that knows of none.
  std::vector<ChatMessage> AsText(std::span<const ChatMessage> messages) const;

 private:
  const ToolUse use_;
  const std::unique_ptr<const ToolGrammar> grammar_;
  const bool native_;
  std::string prompt_key_;
};

/// Makes tool formats, and keeps the latest: analysing a template takes milliseconds. Thread-safe.
class ToolFormats {
 public:
  /// \param chat_template the model's; may be null
  ToolFormats(std::shared_ptr<const LlamaModel> model,
              std::shared_ptr<const LlamaTokenizer> tokenizer, const ChatTemplate* chat_template);

  Result<std::shared_ptr<const LlamaToolFormat>> Make(const ToolUse& use) const;

 private:
  const std::shared_ptr<const LlamaTokenizer> tokenizer_;
  const ChatTemplate* const native_;  ///< null: the model's has no form for tools
  std::unique_ptr<ChatTemplate> generic_;
  mutable std::mutex mutex_;
  mutable std::map<std::string, std::shared_ptr<const LlamaToolFormat>> made_;
};

/// Puts a mark into every name of a special token in JSON's strings, so that a template's text may
/// be tokenised with special tokens on, part by part between the marks.
class SpecialNameGuard {
 public:
  /// \param names of special tokens; what a text and a template's text around it spell together is
  /// one, too
  /// \param words that are cut where a text spells them whole
  SpecialNameGuard(std::vector<std::string> names, std::vector<std::string> words);
  /// \param json of an object; anything else comes back as it is
  std::string Marked(const std::string& json) const;
  std::string MarkedText(std::string_view text) const;

  static constexpr std::string_view kMark = "QzPartOfTextzQ";

 private:
  std::vector<std::string> names_, words_;
  std::string first_, last_;  ///< characters that names begin and end with
};

}  // namespace inferscale

#endif  // INFERSCALE_ENGINE_LLAMA_LLAMA_TOOL_FORMAT_H_
