#include "llama/tokenizer.h"

#include <algorithm>
#include <exception>
#include <limits>

#include <spdlog/spdlog.h>

#include "base/utf8.h"
#include "llama.h"

namespace inferscale {
namespace {

/// llama.cpp's pre-tokenizer may recurse once per character of a long run, so long texts go through
/// in parts of at most this many bytes, cut before white space where there is some.
constexpr std::size_t kPartBytes = 8192;
/// A byte that starts no word: in front of a text it takes the blank that SentencePiece adds.
constexpr std::string_view kAnchor = "\x01";

std::size_t PartEnd(std::string_view text) {
  if (text.size() <= kPartBytes) return text.size();
  for (std::size_t end = kPartBytes; end > kPartBytes / 2; --end) {
    const bool space = text[end] == ' ' || text[end] == '\n';
    const bool after_space = text[end - 1] == ' ' || text[end - 1] == '\n';
    if (space && !after_space) return end;
  }
  return std::max<std::size_t>(1, TruncateUtf8(text, kPartBytes).size());
}

}  // namespace

LlamaTokenizer::LlamaTokenizer(std::shared_ptr<const LlamaModel> model) : model_(std::move(model)) {
  const llama_vocab* vocab = model_->vocab();
  vocabulary_ = llama_vocab_n_tokens(vocab);
  bos_ = llama_vocab_bos(vocab) == LLAMA_TOKEN_NULL ? -1 : llama_vocab_bos(vocab);
  adds_bos_ = llama_vocab_get_add_bos(vocab) && bos_ >= 0;
  const std::string chat_template = model_->chat_template();
  for (TokenId id = 0; id < vocabulary_; ++id) {
    if ((llama_vocab_get_attr(vocab, id) & LLAMA_TOKEN_ATTR_USER_DEFINED) == 0) continue;
    const std::string name = SpecialPiece(id);
    const bool marker = name.size() > 2 && ((name.front() == '<' && name.back() == '>') ||
                                            (name.front() == '[' && name.back() == ']'));
    const bool has_word =
        std::any_of(name.begin(), name.end(), [](unsigned char c) { return c > 32; });
    if (marker || (has_word && name.size() > 1 && chat_template.find(name) != std::string::npos)) {
      protected_names_.push_back(name);
    }
  }
  std::sort(protected_names_.begin(), protected_names_.end(),
            [](const std::string& a, const std::string& b) { return a.size() > b.size(); });
  if (llama_vocab_type(vocab) == LLAMA_VOCAB_TYPE_SPM) {
    const TokenIds plain = Raw("a", false);
    anchor_ = Raw(kAnchor, false);
    const bool adds_blank = !plain.empty() && Piece(plain.front()).starts_with(' ');
    if (!adds_blank) anchor_.clear();
  }
}

TokenIds LlamaTokenizer::Raw(std::string_view text, bool parse_special) const {
  TokenIds ids;
  if (text.empty()) return ids;
  const llama_vocab* vocab = model_->vocab();
  try {
    ids.resize(text.size() + 8);
    const auto length = static_cast<std::int32_t>(text.size());
    std::int32_t count =
        llama_tokenize(vocab, text.data(), length, ids.data(),
                       static_cast<std::int32_t>(ids.size()), false, parse_special);
    if (count < 0 && count != std::numeric_limits<std::int32_t>::min()) {
      ids.resize(static_cast<std::size_t>(-static_cast<std::int64_t>(count)));
      count = llama_tokenize(vocab, text.data(), length, ids.data(),
                             static_cast<std::int32_t>(ids.size()), false, parse_special);
    }
    ids.resize(static_cast<std::size_t>(std::max(0, count)));
  } catch (const std::exception& error) {
    spdlog::warn("the tokenizer cannot handle a text of {} bytes: {}", text.size(), error.what());
    ids.clear();
  }
  return ids;
}

TokenIds LlamaTokenizer::Continuation(std::string_view text, bool parse_special) const {
  TokenIds ids;
  while (!text.empty()) {
    const std::string_view part = text.substr(0, PartEnd(text));
    text.remove_prefix(part.size());
    TokenIds part_ids;
    if (!anchor_.empty()) {
      part_ids = Raw(std::string(kAnchor) + std::string(part), parse_special);
      if (part_ids.size() >= anchor_.size() &&
          std::equal(anchor_.begin(), anchor_.end(), part_ids.begin())) {
        part_ids.erase(part_ids.begin(),
                       part_ids.begin() + static_cast<std::ptrdiff_t>(anchor_.size()));
      } else {
        part_ids = Raw(part, parse_special);
      }
    } else {
      part_ids = Raw(part, parse_special);
    }
    ids.insert(ids.end(), part_ids.begin(), part_ids.end());
  }
  return ids;
}

TokenIds LlamaTokenizer::Tokenize(std::string_view text) const {
  const std::string valid = ToValidUtf8(text);
  TokenIds ids;
  std::string_view rest = valid;
  const auto append = [&](std::string_view part) {
    const TokenIds part_ids = Continuation(part, false);
    ids.insert(ids.end(), part_ids.begin(), part_ids.end());
  };
  // A protected name is cut after its first character, so that neither half is a token of its own.
  while (!rest.empty()) {
    std::size_t first = std::string_view::npos;
    for (const std::string& name : protected_names_) {
      first = std::min(first, rest.find(name));
    }
    if (first == std::string_view::npos) break;
    std::size_t end = first + 1;
    while (end < rest.size() && (static_cast<unsigned char>(rest[end]) & 0xC0) == 0x80) ++end;
    append(rest.substr(0, end));
    rest.remove_prefix(end);
  }
  append(rest);
  return ids;
}

TokenIds LlamaTokenizer::TokenizeTemplate(std::string_view text) const {
  return Continuation(text, true);
}

std::string LlamaTokenizer::Piece(TokenId id) const {
  if (id < 0 || id >= vocabulary_) return {};
  std::string piece(64, '\0');
  std::int32_t size = llama_token_to_piece(model_->vocab(), id, piece.data(),
                                           static_cast<std::int32_t>(piece.size()), 0, false);
  if (size < 0) {
    piece.resize(static_cast<std::size_t>(-size));
    size = llama_token_to_piece(model_->vocab(), id, piece.data(),
                                static_cast<std::int32_t>(piece.size()), 0, false);
  }
  piece.resize(static_cast<std::size_t>(std::max(0, size)));
  return piece;
}

std::string LlamaTokenizer::SpecialPiece(TokenId id) const {
  if (id < 0 || id >= vocabulary_) return {};
  const char* text = llama_vocab_get_text(model_->vocab(), id);
  return text == nullptr ? std::string() : std::string(text);
}

std::string LlamaTokenizer::Detokenize(std::span<const TokenId> ids) const {
  std::string text;
  for (const TokenId id : ids) text += Piece(id);
  return ToValidUtf8(text);
}

bool LlamaTokenizer::IsEndOfGeneration(TokenId id) const {
  return id >= 0 && id < vocabulary_ && llama_vocab_is_eog(model_->vocab(), id);
}

std::vector<std::string> LlamaTokenizer::SpecialNames() const {
  std::vector<std::string> names = protected_names_;
  constexpr int kControl = LLAMA_TOKEN_ATTR_CONTROL | LLAMA_TOKEN_ATTR_UNKNOWN;
  for (TokenId id = 0; id < vocabulary_; ++id) {
    if ((llama_vocab_get_attr(model_->vocab(), id) & kControl) != 0)
      names.push_back(SpecialPiece(id));
  }
  return names;
}

TokenId LlamaTokenizer::FindSpecial(std::string_view name) const {
  const TokenIds ids = Raw(name, true);
  if (ids.size() == 1 && SpecialPiece(ids[0]) == name) return ids[0];
  return -1;
}

}  // namespace inferscale
