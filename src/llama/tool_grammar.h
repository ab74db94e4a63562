#ifndef INFERSCALE_LLAMA_TOOL_GRAMMAR_H_
#define INFERSCALE_LLAMA_TOOL_GRAMMAR_H_

#include <memory>
#include <string>
#include <vector>

#include "inferscale/result.h"
#include "inferscale/tools.h"
#include "inferscale/types.h"
#include "llama/chat_template.h"
#include "llama/tokenizer.h"

namespace inferscale {

/// What an answer looks like that calls tools: a grammar that holds it to that form, and the reader
/// of it. Both are llama.cpp's for a chat template. Immutable; thread-safe.
class ToolGrammar {
 public:
  /// \param chat_template must support tools
  /// \param calls_only what must call a tool says nothing else; for GenericToolTemplate()'s form
  /// kInvalidArgument: a tool's schema cannot be held by a grammar; kUnsupported: the template's
  /// form is not understood.
  static Result<std::unique_ptr<const ToolGrammar>> Create(const ChatTemplate& chat_template,
                                                           const LlamaTokenizer& tokenizer,
                                                           const ToolUse& use, bool calls_only);
  ~ToolGrammar();

  /// kInvalidArgument: no grammar holds what this JSON schema says, or none of a sensible size.
  static Status CheckSchema(const LlamaTokenizer& tokenizer, const std::string& schema_json);

  const std::string& gbnf() const { return gbnf_; }  ///< empty: answers are free
  /// From whose first appearance on the grammar holds; none of either: from the start.
  const std::vector<std::string>& trigger_patterns() const { return trigger_patterns_; }
  const TokenIds& trigger_tokens() const { return trigger_tokens_; }
  const TokenIds& prefill() const { return prefill_; }  ///< of the grammar, by the prompt
  const TokenIds& shown_tokens() const { return shown_tokens_; }
  const std::vector<std::string>& stops() const { return stops_; }

  /// Text that has not the form is all content, or nothing yet if more may come.
  /// \param partial more of the text may come
  ToolAnswer Parse(const std::string& text, bool partial) const;

 private:
  struct Parser;
  ToolGrammar();
  void RequireAtOnce(bool parallel);

  std::string gbnf_;
  std::vector<std::string> trigger_patterns_, stops_;
  TokenIds trigger_tokens_, prefill_, shown_tokens_;
  std::unique_ptr<const Parser> parser_;
};

/// A template in whose form models call tools whose own template has none: calls are JSON between
/// tags.
const char* GenericToolTemplate();

}  // namespace inferscale

#endif  // INFERSCALE_LLAMA_TOOL_GRAMMAR_H_
