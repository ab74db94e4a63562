#include "llama/chat_template.h"

#include <chrono>
#include <exception>
#include <mutex>

#include "llama/chat_template_impl.h"
#include "log.h"

namespace inferscale {

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
    const auto caps = common_chat_templates_get_caps(chat_template->impl_->templates.get());
    const auto has = [&](const char* name) {
      const auto found = caps.find(name);
      return found != caps.end() && found->second;
    };
    chat_template->supports_tools_ = has("supports_tools") && has("supports_tool_calls");
  } catch (const std::exception& error) {
    return InvalidArgument(std::string("the model's chat template does not parse: ") +
                           error.what());
  } catch (...) {
    return InvalidArgument("the model's chat template does not parse");
  }
  return chat_template;
}

common_chat_templates_inputs ChatTemplate::Impl::Inputs(
    const std::vector<TemplateMessage>& messages, const std::vector<ToolUse::Tool>& tools) {
  common_chat_templates_inputs inputs;
  for (const TemplateMessage& message : messages) {
    common_chat_msg& added = inputs.messages.emplace_back();
    added.role = message.role;
    added.content = message.content;
    added.tool_call_id = message.tool_call_id;
    for (const ToolCall& call : message.tool_calls)
      added.tool_calls.push_back({call.name, call.arguments, call.id});
  }
  for (const ToolUse::Tool& tool : tools)
    inputs.tools.push_back({tool.name, tool.description, tool.parameters_json});
  inputs.add_generation_prompt = true;
  inputs.use_jinja = true;
  inputs.enable_thinking = false;
  // 2024-07-26, the date that Llama's own templates fall back to.
  inputs.now = std::chrono::system_clock::time_point(std::chrono::seconds(1721952000));
  return inputs;
}

Result<common_chat_params> ChatTemplate::Impl::Apply(
    const common_chat_templates_inputs& inputs) const {
  const std::scoped_lock lock(mutex);
  try {
    return common_chat_templates_apply(templates.get(), inputs);
  } catch (const std::exception& error) {
    return InvalidArgument(std::string("the chat template refused the messages: ") + error.what());
  } catch (...) {
    return InvalidArgument("the chat template refused the messages");
  }
}

Result<std::string> ChatTemplate::Render(const std::vector<TemplateMessage>& messages) const {
  common_chat_templates_inputs inputs = Impl::Inputs(messages, {});
  inputs.force_pure_content = true;
  INFERSCALE_ASSIGN_OR_RETURN(common_chat_params rendered, impl_->Apply(inputs));
  return std::move(rendered.prompt);
}

Result<std::string> ChatTemplate::RenderWithTools(const std::vector<TemplateMessage>& messages,
                                                  const std::vector<ToolUse::Tool>& tools) const {
  common_chat_templates_inputs inputs = Impl::Inputs(messages, tools);
  // Llama's templates else put them in front of the first question, behind the facts.
  inputs.chat_template_kwargs["tools_in_user_message"] = "false";
  INFERSCALE_ASSIGN_OR_RETURN(common_chat_params rendered, impl_->Apply(inputs));
  return std::move(rendered.prompt);
}

}  // namespace inferscale
