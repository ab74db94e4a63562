// The part of PromptRenderer that puts tools, their calls and results into a prompt.

#include <algorithm>
#include <utility>

#include "base/utf8.h"
#include "engine/llama/prompt_renderer.h"
#include "engine/prompt_roles.h"

namespace inferscale {
namespace {

bool HasCalls(std::span<const ChatMessage> messages) {
  return std::any_of(messages.begin(), messages.end(), [](const ChatMessage& message) {
    return !message.tool_calls.empty() || message.role == "tool";
  });
}

}  // namespace

/// What the template writes between the system text and the first question's.
Result<std::string> PromptRenderer::TextBehindSystem(
    const std::vector<ToolUse::Tool>& tools) const {
  const std::string system = Sentinel(0), user = Sentinel(1);
  const std::vector<TemplateMessage> messages = {{"system", system}, {"user", user}};
  INFERSCALE_ASSIGN_OR_RETURN(
      const std::string text,
      tools.empty() ? template_->Render(messages) : template_->RenderWithTools(messages, tools));
  const std::size_t begin = text.find(system), end = text.find(user);
  if (begin == std::string::npos || end == std::string::npos || end < begin)
    return InvalidArgument("the chat template has no place for the system text");
  return text.substr(begin + system.size(), end - begin - system.size());
}

Result<PromptRenderer::Skeleton> PromptRenderer::MakeToolSkeleton(
    const std::vector<std::string>& roles, std::span<const ChatMessage> messages,
    const LlamaToolFormat& tools) const {
  std::vector<ToolUse::Tool> marked = tools.use().tools;
  for (ToolUse::Tool& tool : marked) {
    tool.description = guard_->MarkedText(tool.description);
    tool.parameters_json = guard_->Marked(tool.parameters_json);
  }
  std::vector<TemplateMessage> templated;
  for (std::size_t i = 0; i < roles.size(); ++i) {
    TemplateMessage& message = templated.emplace_back();
    message.role = roles[i];
    const bool silent = messages[i].content.empty() && !messages[i].tool_calls.empty();
    if (!silent) message.content = Sentinel(i);
    message.tool_call_id = guard_->MarkedText(messages[i].tool_call_id);
    for (const ToolCall& call : messages[i].tool_calls) {
      message.tool_calls.push_back(
          {guard_->MarkedText(call.id), call.name, guard_->Marked(call.arguments)});
    }
  }
  INFERSCALE_ASSIGN_OR_RETURN(const std::string text,
                              template_->RenderWithTools(templated, marked));
  for (const TemplateMessage& message : templated) {
    if (text.find(message.content) == std::string::npos)
      return InvalidArgument("the chat template has no place for a message of role " +
                             message.role);
  }
  // What the tools add behind the system text, in front of what closes it.
  std::string behind;
  if (roles.front() == "system" && !marked.empty()) {
    const Result<std::string> with = TextBehindSystem(marked), without = TextBehindSystem({});
    if (with.ok() && without.ok() && with->ends_with(*without))
      behind = with->substr(0, with->size() - without->size());
  }
  return Cut(text, roles.size(), behind);
}

Result<RenderedChat> PromptRenderer::RenderWithTools(std::span<const ChatMessage> messages,
                                                     const LlamaToolFormat& tools) const {
  const bool system_missing = messages.empty() || messages.front().role != "system";
  if (!tools.native()) {
    const std::vector<ChatMessage> texts = tools.AsText(messages);
    INFERSCALE_ASSIGN_OR_RETURN(RenderedChat chat, Render(texts));
    if (texts.size() > messages.size() && system_missing)
      chat.contents.erase(chat.contents.begin());
    return chat;
  }
  INFERSCALE_ASSIGN_OR_RETURN(const std::vector<std::string> roles, RolesOf(messages));
  std::string key = "tools\n" + tools.prompt_key() + "\n";
  for (const std::string& role : roles) key += role + "\n";
  const bool keep = !HasCalls(messages);
  if (keep) {
    const std::scoped_lock lock(mutex_);
    if (const auto found = skeletons_.find(key); found != skeletons_.end())
      return Fill(found->second, roles, messages);
  }
  INFERSCALE_ASSIGN_OR_RETURN(Skeleton skeleton, MakeToolSkeleton(roles, messages, tools));
  INFERSCALE_ASSIGN_OR_RETURN(RenderedChat chat, Fill(skeleton, roles, messages));
  if (keep) {
    const std::scoped_lock lock(mutex_);
    if (skeletons_.size() >= kMaxCachedSkeletons) skeletons_.clear();
    skeletons_[key] = std::move(skeleton);
  }
  return chat;
}

}  // namespace inferscale
