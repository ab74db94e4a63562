#include "server/tool_stream.h"

#include <string_view>
#include <utility>

#include "base/hash.h"
#include "base/random.h"

namespace inferscale {
namespace {

/// The text is read again when it has grown by this part of itself: reading a whole answer token by
/// token must not cost its length squared.
constexpr std::size_t kGrowth = 64;
constexpr std::size_t kIdBytes = 12;

std::string_view WithoutTrailingSpace(std::string_view text) {
  while (!text.empty() && std::string_view(" \t\r\n").find(text.back()) != std::string_view::npos)
    text.remove_suffix(1);
  return text;
}

}  // namespace

std::string NewToolCallId() { return "call_" + HexEncode(RandomBytes(kIdBytes)); }

std::vector<ToolStream::Delta> ToolStream::Push(const std::string& text) {
  text_ += text;
  if (text_.size() - read_ <= text_.size() / kGrowth) return {};
  read_ = text_.size();
  return News(format_->Parse(text_, true), false);
}

std::vector<ToolStream::Delta> ToolStream::Finish(bool cut) {
  ToolAnswer answer = format_->Parse(text_, cut);
  // Cut off before anything can be told of it.
  if (cut && answer.content.empty() && answer.calls.empty()) answer.content = text_;
  return News(answer, true);
}

std::vector<ToolStream::Delta> ToolStream::News(const ToolAnswer& answer, bool last) {
  std::vector<Delta> news;
  // Space between what is said and a call belongs to neither.
  const bool all = last && answer.calls.empty();
  const std::string_view content =
      all ? std::string_view(answer.content) : WithoutTrailingSpace(answer.content);
  if (content.size() > content_.size() && content.starts_with(content_)) {
    Delta& delta = news.emplace_back();
    delta.content = content.substr(content_.size());
    content_ = content;
  }
  for (std::size_t i = 0; i < answer.calls.size(); ++i) {
    const ToolCall& call = answer.calls[i];
    const bool begun = i < calls_.size();
    if (!begun) {
      // A name is whole once something follows it.
      const bool named = last || !call.arguments.empty() || i + 1 < answer.calls.size();
      if (call.name.empty() || !named) break;
      calls_.push_back({call.id.empty() ? NewToolCallId() : call.id, call.name, ""});
    }
    ToolCall& said = calls_[i];
    const bool longer =
        call.arguments.size() > said.arguments.size() && call.arguments.starts_with(said.arguments);
    if (begun && !longer) continue;
    Delta& delta = news.emplace_back();
    delta.call = static_cast<std::int32_t>(i);
    if (!begun) {
      delta.id = said.id;
      delta.name = said.name;
    }
    if (longer) {
      delta.arguments = call.arguments.substr(said.arguments.size());
      said.arguments = call.arguments;
    }
  }
  return news;
}

}  // namespace inferscale
