#ifndef INFERSCALE_LLAMA_CHAT_TEMPLATE_IMPL_H_
#define INFERSCALE_LLAMA_CHAT_TEMPLATE_IMPL_H_

#include <mutex>

#include "chat.h"
#include "llama/chat_template.h"

namespace inferscale {

/// llama.cpp's side of a ChatTemplate, shared with what is made of it.
struct ChatTemplate::Impl {
  common_chat_templates_ptr templates;
  mutable std::mutex mutex;  // the engine's thread-safety is not documented

  Result<common_chat_params> Apply(const common_chat_templates_inputs& inputs) const;
  /// What every rendering has in common.
  static common_chat_templates_inputs Inputs(const std::vector<TemplateMessage>& messages,
                                             const std::vector<ToolUse::Tool>& tools);
};

}  // namespace inferscale

#endif  // INFERSCALE_LLAMA_CHAT_TEMPLATE_IMPL_H_
