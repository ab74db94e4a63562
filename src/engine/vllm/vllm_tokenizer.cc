#include "engine/vllm/vllm_tokenizer.h"

#include <algorithm>
#include <limits>
#include <set>

#include <spdlog/spdlog.h>

#include "engine/prompt_roles.h"
#include "engine/vllm/vllm_server.h"

namespace inferscale {
namespace {

using nlohmann::json;

/// What an entry takes beside its text and ids.
constexpr std::size_t kEntryBytes = 160;

/// Templates that print today's date would change all keys at midnight.
constexpr const char* kPinnedDate = "01 Jan 2026";

/// Whether a token may be a special one: names such as <|im_start|>, </s>, [INST].
bool LooksSpecial(const std::string& spelling) {
  return spelling.size() > 2 && ((spelling.front() == '<' && spelling.back() == '>') ||
                                 (spelling.front() == '[' && spelling.back() == ']'));
}

bool MaySpellSpecial(std::string_view text) {
  return (text.find('<') != std::string_view::npos && text.find('>') != std::string_view::npos) ||
         (text.find('[') != std::string_view::npos && text.find(']') != std::string_view::npos);
}

void Append(TokenIds* ids, const TokenIds& more) {
  ids->insert(ids->end(), more.begin(), more.end());
}

}  // namespace

Result<VllmTokenizer::Tokens> VllmTokenizer::AskTokens(json body, bool spellings) const {
  body["add_special_tokens"] = false;
  if (spellings) body["return_token_strs"] = true;
  INFERSCALE_ASSIGN_OR_RETURN(const json answer, ask_("/tokenize", body));
  const Status bad =
      DataLoss("vLLM's /tokenize gives no list of token ids; check that the URL is vLLM's");
  const json& list = FieldOf(answer, "tokens");
  if (!list.is_array()) return bad;
  Tokens tokens;
  tokens.ids.reserve(list.size());
  for (const json& id : list) {
    if (!id.is_number_unsigned() ||
        id.get<std::uint64_t>() > static_cast<std::uint64_t>(std::numeric_limits<TokenId>::max())) {
      return bad;
    }
    tokens.ids.push_back(id.get<TokenId>());
  }
  if (!spellings) return tokens;
  const json& strings = FieldOf(answer, "token_strs");
  if (!strings.is_array() || strings.size() != tokens.ids.size()) return bad;
  for (const json& text : strings) {
    tokens.spellings.push_back(text.is_string() ? text.get<std::string>() : std::string());
  }
  return tokens;
}

Result<TokenIds> VllmTokenizer::Guarded(std::string_view text) const {
  if (text.empty()) return TokenIds();
  const bool suspicious = MaySpellSpecial(text);
  INFERSCALE_ASSIGN_OR_RETURN(Tokens tokens, AskTokens({{"prompt", text}}, suspicious));
  // Each name once: a text may repeat it a hundred thousand times.
  std::set<std::string_view> names;
  for (const std::string& spelling : tokens.spellings) {
    if (LooksSpecial(spelling)) names.insert(spelling);
  }
  std::vector<std::size_t> cuts;
  for (const std::string_view spelling : names) {
    for (std::size_t at = text.find(spelling); at != std::string_view::npos;
         at = text.find(spelling, at + spelling.size())) {
      cuts.push_back(at + 1);
    }
  }
  if (cuts.empty()) return std::move(tokens.ids);
  std::sort(cuts.begin(), cuts.end());
  cuts.erase(std::unique(cuts.begin(), cuts.end()), cuts.end());
  cuts.push_back(text.size());
  TokenIds ids;
  std::unordered_map<std::string_view, TokenIds> known;
  std::size_t from = 0;
  for (const std::size_t cut : cuts) {
    const std::string_view piece = text.substr(from, cut - from);
    auto found = known.find(piece);
    if (found == known.end()) {
      // Shorter than the text, so this ends. A piece may spell another name.
      INFERSCALE_ASSIGN_OR_RETURN(TokenIds piece_ids, Guarded(piece));
      found = known.emplace(piece, std::move(piece_ids)).first;
    }
    Append(&ids, found->second);
    from = cut;
  }
  return ids;
}

Result<TokenIds> VllmTokenizer::Tokenize(std::string_view text) const {
  {
    const std::scoped_lock lock(mutex_);
    if (const auto found = cache_.find(text); found != cache_.end()) {
      recency_.splice(recency_.begin(), recency_, found->second);
      return found->second->ids;
    }
  }
  INFERSCALE_ASSIGN_OR_RETURN(TokenIds ids, Guarded(text));
  const auto size = [](const CacheEntry& entry) {
    return entry.text.size() + entry.ids.size() * sizeof(TokenId) + kEntryBytes;
  };
  const std::scoped_lock lock(mutex_);
  if (cache_.contains(text)) return ids;
  recency_.push_front({std::string(text), ids});
  cache_.emplace(recency_.front().text, recency_.begin());
  used_ += size(recency_.front());
  while (used_ > cache_bytes_ && !recency_.empty()) {
    used_ -= size(recency_.back());
    cache_.erase(recency_.back().text);
    recency_.pop_back();
  }
  return ids;
}

std::size_t VllmTokenizer::cached_bytes() const {
  const std::scoped_lock lock(mutex_);
  return used_;
}

Result<TokenIds> VllmTokenizer::TokenizeSkeleton(std::string_view text) const {
  if (text.empty()) return TokenIds();
  INFERSCALE_ASSIGN_OR_RETURN(Tokens tokens, AskTokens({{"prompt", text}}, false));
  return std::move(tokens.ids);
}

Result<std::string> VllmTokenizer::Detokenize(std::span<const TokenId> ids) const {
  if (ids.empty()) return std::string();
  INFERSCALE_ASSIGN_OR_RETURN(const json answer, ask_("/detokenize", {{"tokens", ids}}));
  const json& text = FieldOf(answer, "prompt");
  if (!text.is_string()) {
    return DataLoss("vLLM's /detokenize gives no text; check that the URL is vLLM's");
  }
  return text.get<std::string>();
}

Result<std::string> VllmTokenizer::Render(const std::vector<TemplateMessage>& messages) const {
  json list = json::array();
  for (const TemplateMessage& message : messages) {
    list.push_back({{"role", message.role}, {"content", message.content}});
  }
  INFERSCALE_ASSIGN_OR_RETURN(const Tokens tokens,
                              AskTokens({{"messages", std::move(list)},
                                         {"add_generation_prompt", true},
                                         {"chat_template_kwargs", {{"date_string", kPinnedDate}}}},
                                        false));
  return Detokenize(tokens.ids);
}

Status VllmRenderer::Start() {
  const Result<std::string> text = tokenizer_->Render({{"user", Sentinel(0)}});
  if (text.status().retryable()) return text.status();
  plain_ = !text.ok() || text->find(Sentinel(0)) == std::string::npos;
  if (plain_) {
    spdlog::warn("vLLM renders no chat template, so that plain lines are used: {}",
                 text.status().ToString());
  }
  return Probe();
}

Result<std::string> VllmRenderer::RenderTemplate(
    const std::vector<TemplateMessage>& messages) const {
  return plain_ ? PlainLines(messages) : tokenizer_->Render(messages);
}

Result<TokenIds> VllmRenderer::TokenizeSkeleton(std::string_view text) const {
  return tokenizer_->TokenizeSkeleton(text);
}

Result<TokenIds> VllmRenderer::TokenizeText(std::string_view text) const {
  return tokenizer_->Tokenize(text);
}

}  // namespace inferscale
