#ifndef INFERSCALE_LLAMA_CHAT_TEMPLATE_H_
#define INFERSCALE_LLAMA_CHAT_TEMPLATE_H_

#include <memory>
#include <string>
#include <vector>

#include "inferscale/result.h"
#include "inferscale/tools.h"
#include "llama/llama_model.h"

namespace inferscale {

struct TemplateMessage {
  std::string role;
  std::string content;
  std::vector<ToolCall> tool_calls = {};
  std::string tool_call_id = {};
};

/// A model's Jinja chat template, rendered by llama.cpp's engine with a pinned clock, so that the
/// same messages always give the same text. Immutable; thread-safe.
class ChatTemplate {
 public:
  /// \param source Jinja; empty: the model's own. kInvalidArgument when it does not parse.
  static Result<std::unique_ptr<ChatTemplate>> Create(const LlamaModel& model,
                                                      const std::string& source);
  ~ChatTemplate();

  /// Ends where the assistant's answer begins. The BOS text is left out when the tokenizer adds it.
  /// kInvalidArgument when the template raises.
  Result<std::string> Render(const std::vector<TemplateMessage>& messages) const;
  /// The same with tools in the prompt, and tool calls and their results among the messages, as
  /// llama.cpp prepares them for this template.
  Result<std::string> RenderWithTools(const std::vector<TemplateMessage>& messages,
                                      const std::vector<ToolUse::Tool>& tools) const;
  /// Whether it has a form of its own for tools and their calls.
  bool supports_tools() const { return supports_tools_; }

 private:
  friend class ToolGrammar;
  struct Impl;
  ChatTemplate();
  std::unique_ptr<Impl> impl_;
  bool supports_tools_ = false;
};

}  // namespace inferscale

#endif  // INFERSCALE_LLAMA_CHAT_TEMPLATE_H_
