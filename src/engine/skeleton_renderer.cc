#include "engine/skeleton_renderer.h"

#include <algorithm>
#include <cstdlib>
#include <utility>

#include "base/utf8.h"
#include "engine/prompt_roles.h"

namespace inferscale {
namespace {

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

}  // namespace

std::string SkeletonRenderer::PlainLines(const std::vector<TemplateMessage>& messages) {
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

Result<std::string> SkeletonRenderer::RenderText(
    const std::vector<TemplateMessage>& messages) const {
  INFERSCALE_ASSIGN_OR_RETURN(std::string text, RenderTemplate(messages));
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

Status SkeletonRenderer::Probe() {
  const std::string system = Sentinel(0), user = Sentinel(1);
  const Result<std::string> with_system = RenderText({{"system", system}, {"user", user}});
  if (with_system.status().retryable()) return with_system.status();
  system_role_ = false;
  if (with_system.ok()) {
    const std::size_t end = with_system->find(system) + system.size();
    const std::size_t next = with_system->find(user);
    // Only white space between the two: the template put both into one message.
    system_role_ = next > end && next != std::string::npos &&
                   !TrimWhitespace(std::string_view(*with_system).substr(end, next - end)).empty();
  }
  Status away;
  const auto survives = [&](const std::string& role, const std::string& content) {
    std::vector<TemplateMessage> messages = {{role, content}, {"user", user}};
    if (role == "user") messages = {{role, content}};
    if (role == "assistant") messages = {{"user", user}, {role, content}, {"user", system}};
    const Result<std::string> text = RenderText(messages);
    if (text.status().retryable()) away = text.status();
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
  return away;
}

std::string SkeletonRenderer::Trimmed(const std::string& role, const std::string& content) const {
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

Result<SkeletonRenderer::Skeleton> SkeletonRenderer::MakeSkeleton(
    const std::vector<std::string>& roles) const {
  std::vector<TemplateMessage> messages;
  for (std::size_t i = 0; i < roles.size(); ++i) messages.push_back({roles[i], Sentinel(i)});
  const bool leads_with_system = roles.front() == "system";
  Result<std::string> text =
      leads_with_system && !system_role_ ? RenderText(Merged(roles, true)) : RenderText(messages);
  if (!text.ok() && !text.status().retryable())
    text = RenderText(Merged(roles, leads_with_system && !system_role_));
  if (!text.ok()) return text.status();

  return Cut(*text, roles.size(), "");
}

/// \param behind_system text that follows the system text and belongs in front of the facts
Result<SkeletonRenderer::Skeleton> SkeletonRenderer::Cut(std::string_view text,
                                                         std::size_t messages,
                                                         std::string_view behind_system) const {
  Skeleton skeleton;
  std::size_t from = 0;
  while (true) {
    const std::size_t at = text.find(kSentinelHead, from);
    std::size_t which = 0;
    if (at != std::string_view::npos) {
      const std::string digits(text.substr(at + kSentinelHead.size(), kSentinelDigits));
      which = static_cast<std::size_t>(std::strtoul(digits.c_str(), nullptr, 10));
      if (which >= messages || text.substr(at, Sentinel(which).size()) != Sentinel(which)) {
        return Internal("the chat template changed a message's text");
      }
    }
    std::string_view piece = text.substr(from, at == std::string_view::npos ? at : at - from);
    TokenIds& ids = skeleton.pieces.emplace_back();
    const bool after_system = !skeleton.places.empty() && skeleton.places.back() == 0;
    if (after_system && piece.starts_with(behind_system)) {
      INFERSCALE_ASSIGN_OR_RETURN(ids, TokenizeSkeleton(behind_system));
      skeleton.tool_tokens = static_cast<std::int32_t>(ids.size());
      piece.remove_prefix(behind_system.size());
    }
    INFERSCALE_ASSIGN_OR_RETURN(const TokenIds rest, TokenizeSkeleton(piece));
    ids.insert(ids.end(), rest.begin(), rest.end());
    if (at == std::string_view::npos) break;
    skeleton.places.push_back(which);
    from = at + Sentinel(which).size();
  }
  BeginPrompt(&skeleton.pieces.front());
  return skeleton;
}

Result<SkeletonRenderer::Skeleton> SkeletonRenderer::FindSkeleton(
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

Result<RenderedChat> SkeletonRenderer::Render(std::span<const ChatMessage> messages) const {
  INFERSCALE_ASSIGN_OR_RETURN(const std::vector<std::string> roles, RolesOf(messages));
  INFERSCALE_ASSIGN_OR_RETURN(const Skeleton skeleton, FindSkeleton(roles));
  return Fill(skeleton, roles, messages);
}

Result<RenderedChat> SkeletonRenderer::Fill(const Skeleton& skeleton,
                                            const std::vector<std::string>& roles,
                                            std::span<const ChatMessage> messages) const {
  RenderedChat chat;
  chat.contents.resize(messages.size(), {-1, -1});
  const auto append = [&](const TokenIds& ids) {
    chat.ids.insert(chat.ids.end(), ids.begin(), ids.end());
  };
  for (std::size_t i = 0; i < skeleton.places.size(); ++i) {
    append(skeleton.pieces[i]);
    const std::size_t which = skeleton.places[i];
    RenderedChat::Span& span = chat.contents[which];
    span.begin = static_cast<std::int32_t>(chat.ids.size());
    INFERSCALE_ASSIGN_OR_RETURN(const TokenIds text,
                                TokenizeText(Trimmed(roles[which], messages[which].content)));
    append(text);
    span.end = static_cast<std::int32_t>(chat.ids.size());
    if (which == 0 && roles[0] == "system") chat.facts_place = span.end + skeleton.tool_tokens;
  }
  append(skeleton.pieces.back());
  // A message without text stands where the one before it ends.
  for (std::size_t i = 0; i < messages.size(); ++i) {
    if (chat.contents[i].begin >= 0) continue;
    const std::int32_t at = i == 0 ? 0 : chat.contents[i - 1].end;
    chat.contents[i] = {at, at};
  }
  for (std::size_t i = messages.size(); i-- > 0;) {
    if (roles[i] == "user") {
      chat.question_place = chat.contents[i].begin;
      break;
    }
  }
  return chat;
}

}  // namespace inferscale
