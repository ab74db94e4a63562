#ifndef INFERSCALE_LLAMA_TOKENIZER_H_
#define INFERSCALE_LLAMA_TOKENIZER_H_

#include <memory>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "inferscale/types.h"
#include "llama/llama_model.h"

namespace inferscale {

/// Text to token ids and back, as the model sees them. Immutable; thread-safe.
class LlamaTokenizer {
 public:
  explicit LlamaTokenizer(std::shared_ptr<const LlamaModel> model);

  /// Plain text: nothing in it becomes a special token and none are added, not even where the text
  /// spells one. Text that is not UTF-8 is repaired first.
  TokenIds Tokenize(std::string_view text) const;
  /// A piece of a chat template's own text: special tokens are recognised, none are added.
  TokenIds TokenizeTemplate(std::string_view text) const;

  /// The bytes of one token as generated text; control tokens have none.
  std::string Piece(TokenId id) const;
  std::string Detokenize(std::span<const TokenId> ids) const;
  /// The token's name with control tokens spelt out ("<|im_end|>").
  std::string SpecialPiece(TokenId id) const;

  bool IsEndOfGeneration(TokenId id) const;
  TokenId bos() const { return bos_; }  ///< -1: none
  bool adds_bos() const { return adds_bos_; }
  std::int32_t vocabulary() const { return vocabulary_; }
  const llama_vocab* vocab() const { return model_->vocab(); }
  /// Names that TokenizeTemplate() turns into one token, marks and control tokens alone.
  std::vector<std::string> SpecialNames() const;
  /// The token with exactly this name, if it is special; -1: none.
  TokenId FindSpecial(std::string_view name) const;

 private:
  TokenIds Raw(std::string_view text, bool parse_special) const;
  TokenIds Continuation(std::string_view text, bool parse_special) const;

  std::shared_ptr<const LlamaModel> model_;
  TokenId bos_ = -1;
  bool adds_bos_ = false;
  std::int32_t vocabulary_ = 0;
  /// Names that llama.cpp turns into one token even with special tokens off, and that look like
  /// marks
  /// ("<think>") or stand in the chat template.
  std::vector<std::string> protected_names_;
  TokenIds
      anchor_;  ///< what precedes a text to keep the tokenizer from adding a blank; may be empty
};

}  // namespace inferscale

#endif  // INFERSCALE_LLAMA_TOKENIZER_H_
