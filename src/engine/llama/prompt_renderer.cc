#include "engine/llama/prompt_renderer.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>

#include <spdlog/spdlog.h>

#include "base/utf8.h"

namespace inferscale {
namespace {

constexpr std::size_t kMaxMessages = 9999;
constexpr std::size_t kMaxCachedSkeletons = 256;
constexpr const char* kChatMl =
    "{%- for message in messages -%}<|im_start|>{{ message.role }}\n{{ message.content "
    "}}<|im_end|>\n"
    "{% endfor -%}{%- if add_generation_prompt -%}<|im_start|>assistant\n{% endif -%}";

constexpr std::string_view kSentinelHead = "QzTextOfMessage";

/// Letters and digits only: no template trims, escapes or recognises it.
std::string Sentinel(std::size_t index) {
  char text[32];
  std::snprintf(text, sizeof(text), "%s%04zuzQ", kSentinelHead.data(), index);
  return text;
}

std::string NormalizedRole(const std::string& role) {
  return role == "developer" ? "system" : role;
}

/// Roles as templates demand them: one system message in front, then user and assistant in turn.
/// \return the messages with sentinels; texts of one role in a row share a message.
std::vector<TemplateMessage> Merged(const std::vector<std::string>& roles, bool system_into_user) {
  std::vector<TemplateMessage> messages;
  std::string prefix;
  for (std::size_t i = 0; i < roles.size(); ++i) {
    std::string role = roles[i];
    if (role == "system" && i > 0) role = "user";
    if (role != "system" && role != "assistant") role = "user";
    if (role == "system" && system_into_user) {
      prefix = Sentinel(i);
      continue;
    }
    if (role == "assistant" && (messages.empty() || messages.back().role == "system")) {
      messages.push_back({"user", ""});
    }
    if (!messages.empty() && messages.back().role == role) {
      messages.back().content += "\n" + Sentinel(i);
    } else {
      messages.push_back({role, Sentinel(i)});
    }
  }
  if (!prefix.empty()) {
    const auto user = std::find_if(messages.begin(), messages.end(),
                                   [](const TemplateMessage& m) { return m.role == "user"; });
    if (user == messages.end()) {
      messages.insert(messages.begin(), {"user", prefix});
    } else {
      user->content = prefix + (user->content.empty() ? "" : "\n\n" + user->content);
    }
  }
  return messages;
}

std::string PlainLines(const std::vector<TemplateMessage>& messages) {
  std::string text;
  for (const TemplateMessage& message : messages) {
    if (message.role == "system") {
      text += message.content + "\n\n";
    } else {
      text += (message.role == "assistant" ? "Assistant: " : "User: ") + message.content + "\n";
    }
  }
  return text + "Assistant:";
}

}  // namespace

PromptRenderer::PromptRenderer(std::shared_ptr<const LlamaModel> model,
                               std::shared_ptr<const LlamaTokenizer> tokenizer)
    : tokenizer_(std::move(tokenizer)) {
  const std::string own = model->chat_template();
  if (!own.empty()) {
    Result<std::unique_ptr<ChatTemplate>> created = ChatTemplate::Create(*model, own);
    if (created.ok()) {
      template_ = std::move(*created);
      if (RenderText({{"user", Sentinel(0)}}).ok()) {
        identity_ = own;
      } else {
        template_.reset();
      }
    }
    if (!template_) spdlog::warn("the model's chat template is unusable; a generic one is used");
  }
  if (!template_ && tokenizer_->FindSpecial("<|im_start|>") >= 0 &&
      tokenizer_->FindSpecial("<|im_end|>") >= 0) {
    Result<std::unique_ptr<ChatTemplate>> created = ChatTemplate::Create(*model, kChatMl);
    if (created.ok()) {
      template_ = std::move(*created);
      identity_ = kChatMl;
    }
  }
  if (identity_.empty()) identity_ = "plain lines";
  Probe();
}

Result<std::string> PromptRenderer::RenderText(const std::vector<TemplateMessage>& messages) const {
  if (!template_) return PlainLines(messages);
  INFERSCALE_ASSIGN_OR_RETURN(std::string text, template_->Render(messages));
  // A template may drop a message without a word; that is as bad as refusing it.
  for (const TemplateMessage& message : messages) {
    if (!message.content.empty() &&
        text.find(TrimWhitespace(message.content)) == std::string::npos) {
      return InvalidArgument("the chat template has no place for a message of role " +
                             message.role);
    }
  }
  return text;
}

void PromptRenderer::Probe() {
  const std::string system = Sentinel(0), user = Sentinel(1);
  const Result<std::string> with_system = RenderText({{"system", system}, {"user", user}});
  system_role_ = false;
  if (with_system.ok()) {
    const std::size_t end = with_system->find(system) + system.size();
    const std::size_t next = with_system->find(user);
    // Only white space between the two: the template put both into one message.
    system_role_ = next > end && next != std::string::npos &&
                   !TrimWhitespace(std::string_view(*with_system).substr(end, next - end)).empty();
  }
  const auto survives = [&](const std::string& role, const std::string& content) {
    std::vector<TemplateMessage> messages = {{role, content}, {"user", user}};
    if (role == "user") messages = {{role, content}};
    if (role == "assistant") messages = {{"user", user}, {role, content}, {"user", system}};
    const Result<std::string> text = RenderText(messages);
    return !text.ok() || text->find(content) != std::string::npos;
  };
  const std::string probe = Sentinel(3);
  for (const std::string role : {"system", "user", "assistant"}) {
    TrimRule& rule = trim_[role];
    rule.left = !survives(role, " " + probe)    ? Trim::kWhitespace
                : !survives(role, "\n" + probe) ? Trim::kLineBreaks
                                                : Trim::kNone;
    rule.right = !survives(role, probe + " ")    ? Trim::kWhitespace
                 : !survives(role, probe + "\n") ? Trim::kLineBreaks
                                                 : Trim::kNone;
  }
}

std::string PromptRenderer::Trimmed(const std::string& role, const std::string& content) const {
  const auto found = trim_.find(role);
  if (found == trim_.end()) return content;
  std::string_view text = content;
  const TrimRule& rule = found->second;
  if (rule.left == Trim::kWhitespace) {
    const std::string_view trimmed = TrimWhitespace(text);
    text.remove_prefix(trimmed.empty() ? text.size() : trimmed.data() - text.data());
  } else if (rule.left == Trim::kLineBreaks) {
    while (text.starts_with('\n')) text.remove_prefix(1);
  }
  if (rule.right == Trim::kWhitespace) {
    const std::string_view trimmed = TrimWhitespace(text);
    text = text.substr(0, trimmed.empty() ? 0 : trimmed.data() - text.data() + trimmed.size());
  } else if (rule.right == Trim::kLineBreaks) {
    while (text.ends_with('\n')) text.remove_suffix(1);
  }
  return std::string(text);
}

Result<PromptRenderer::Skeleton> PromptRenderer::MakeSkeleton(
    const std::vector<std::string>& roles) const {
  std::vector<TemplateMessage> messages;
  for (std::size_t i = 0; i < roles.size(); ++i) messages.push_back({roles[i], Sentinel(i)});
  const bool leads_with_system = roles.front() == "system";
  Result<std::string> text =
      leads_with_system && !system_role_ ? RenderText(Merged(roles, true)) : RenderText(messages);
  if (!text.ok()) text = RenderText(Merged(roles, leads_with_system && !system_role_));
  if (!text.ok()) return text.status();

  Skeleton skeleton;
  std::size_t from = 0;
  while (true) {
    const std::size_t at = text->find(kSentinelHead, from);
    std::size_t which = 0;
    if (at != std::string::npos) {
      which = static_cast<std::size_t>(
          std::strtoul(text->c_str() + at + kSentinelHead.size(), nullptr, 10));
      if (which >= roles.size() ||
          text->compare(at, Sentinel(which).size(), Sentinel(which)) != 0) {
        return Internal("the chat template changed a message's text");
      }
    }
    skeleton.pieces.push_back(tokenizer_->TokenizeTemplate(
        std::string_view(*text).substr(from, at == std::string::npos ? at : at - from)));
    if (at == std::string::npos) break;
    skeleton.places.push_back(which);
    from = at + Sentinel(which).size();
  }
  TokenIds& opening = skeleton.pieces.front();
  if (tokenizer_->adds_bos() && (opening.empty() || opening.front() != tokenizer_->bos())) {
    opening.insert(opening.begin(), tokenizer_->bos());
  }
  return skeleton;
}

Result<PromptRenderer::Skeleton> PromptRenderer::FindSkeleton(
    const std::vector<std::string>& roles) const {
  std::string key;
  for (const std::string& role : roles) key += role + "\n";
  {
    const std::scoped_lock lock(mutex_);
    if (const auto found = skeletons_.find(key); found != skeletons_.end()) return found->second;
  }
  INFERSCALE_ASSIGN_OR_RETURN(Skeleton skeleton, MakeSkeleton(roles));
  const std::scoped_lock lock(mutex_);
  if (skeletons_.size() >= kMaxCachedSkeletons) skeletons_.clear();
  skeletons_[key] = skeleton;
  return skeleton;
}

Result<RenderedChat> PromptRenderer::Render(std::span<const ChatMessage> messages) const {
  if (messages.empty()) return InvalidArgument("a conversation needs at least one message");
  if (messages.size() > kMaxMessages) {
    return InvalidArgument("a conversation may have at most " + std::to_string(kMaxMessages) +
                           " messages");
  }
  std::vector<std::string> roles;
  for (const ChatMessage& message : messages) {
    if (message.role.empty() || message.role.size() > 64) {
      return InvalidArgument("a message has no role, or one longer than 64 bytes");
    }
    roles.push_back(NormalizedRole(message.role));
  }
  INFERSCALE_ASSIGN_OR_RETURN(const Skeleton skeleton, FindSkeleton(roles));
  RenderedChat chat;
  chat.contents.resize(messages.size());
  const auto append = [&](const TokenIds& ids) {
    chat.ids.insert(chat.ids.end(), ids.begin(), ids.end());
  };
  for (std::size_t i = 0; i < skeleton.places.size(); ++i) {
    append(skeleton.pieces[i]);
    const std::size_t which = skeleton.places[i];
    RenderedChat::Span& span = chat.contents[which];
    span.begin = static_cast<std::int32_t>(chat.ids.size());
    append(tokenizer_->Tokenize(Trimmed(roles[which], messages[which].content)));
    span.end = static_cast<std::int32_t>(chat.ids.size());
    if (which == 0 && roles[0] == "system") chat.facts_place = span.end;
  }
  append(skeleton.pieces.back());
  for (std::size_t i = messages.size(); i-- > 0;) {
    if (roles[i] == "user") {
      chat.question_place = chat.contents[i].begin;
      break;
    }
  }
  return chat;
}

}  // namespace inferscale
