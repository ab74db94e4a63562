#include "llama/chat_template.h"

#include <chrono>
#include <exception>
#include <mutex>

#include "chat.h"
#include "log.h"

namespace inferscale {

struct ChatTemplate::Impl {
  common_chat_templates_ptr templates;
  mutable std::mutex mutex;  // the engine's thread-safety is not documented
};

ChatTemplate::ChatTemplate() : impl_(std::make_unique<Impl>()) {}
ChatTemplate::~ChatTemplate() = default;

Result<std::unique_ptr<ChatTemplate>> ChatTemplate::Create(const LlamaModel& model,
                                                           const std::string& source) {
  // llama-common logs through a thread of its own; its messages say nothing that our errors do not.
  static std::once_flag once;
  std::call_once(once, [] { common_log_set_verbosity_thold(-1); });
  auto chat_template = std::unique_ptr<ChatTemplate>(new ChatTemplate());
  try {
    chat_template->impl_->templates = common_chat_templates_init(model.get(), source);
  } catch (const std::exception& error) {
    return InvalidArgument(std::string("the model's chat template does not parse: ") +
                           error.what());
  } catch (...) {
    return InvalidArgument("the model's chat template does not parse");
  }
  return chat_template;
}

Result<std::string> ChatTemplate::Render(const std::vector<TemplateMessage>& messages) const {
  common_chat_templates_inputs inputs;
  for (const TemplateMessage& message : messages) {
    common_chat_msg& added = inputs.messages.emplace_back();
    added.role = message.role;
    added.content = message.content;
  }
  inputs.add_generation_prompt = true;
  inputs.use_jinja = true;
  inputs.enable_thinking = false;
  inputs.force_pure_content = true;
  const common_chat_templates* templates = impl_->templates.get();
  // 2024-07-26, the date that Llama's own templates fall back to.
  inputs.now = std::chrono::system_clock::time_point(std::chrono::seconds(1721952000));
  const std::scoped_lock lock(impl_->mutex);
  try {
    return common_chat_templates_apply(templates, inputs).prompt;
  } catch (const std::exception& error) {
    return InvalidArgument(std::string("the chat template refused the messages: ") + error.what());
  } catch (...) {
    return InvalidArgument("the chat template refused the messages");
  }
}

}  // namespace inferscale
