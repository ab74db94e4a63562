#ifndef INFERSCALE_LLAMA_CHAT_TEMPLATE_H_
#define INFERSCALE_LLAMA_CHAT_TEMPLATE_H_

#include <memory>
#include <string>
#include <vector>

#include "inferscale/result.h"
#include "llama/llama_model.h"

namespace inferscale {

struct TemplateMessage {
  std::string role;
  std::string content;
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

 private:
  struct Impl;
  ChatTemplate();
  std::unique_ptr<Impl> impl_;
};

}  // namespace inferscale

#endif  // INFERSCALE_LLAMA_CHAT_TEMPLATE_H_
