#ifndef INFERSCALE_ENGINE_H_
#define INFERSCALE_ENGINE_H_

/// \file engine.h
/// Engine: the seam between memory and a serving engine. Implementations guarantee: a fact whose KV
/// is missing, corrupt or erased is computed from its tokens, never an error; `injected_tokens`
/// counts what was really written; the last prompt token is always computed; KV of one salt is
/// never used under another. All methods are thread-safe; callbacks run on the engine's own thread
/// and must not block.

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "inferscale/kv_block.h"
#include "inferscale/kv_store.h"
#include "inferscale/result.h"
#include "inferscale/tools.h"
#include "inferscale/types.h"

namespace inferscale {

struct ChatMessage {
  std::string role;
  std::string content;
  std::string name;
  std::vector<ToolCall> tool_calls = {};  ///< of an assistant's message
  std::string tool_call_id = {};          ///< of a message of role "tool": what it answers
};

/// A conversation as token ids, with the places where facts may stand. Message texts are tokenised
/// on their own with special tokens off; only the template's own pieces have them on.
struct RenderedChat {
  struct Span {
    std::int32_t begin = 0, end = 0;
  };

  TokenIds ids;
  std::vector<Span> contents;  ///< [messages] where each message's text stands in `ids`
  /// Where the header and the facts go: right after the system text. -1: the template has no such
  /// place, serve facts as text in front of the last question.
  std::int32_t facts_place = -1;
  std::int32_t question_place = -1;  ///< start of the last user message's text
};

/// A run of a prompt whose KV may be stored: an exact prefix (begin = 0) or a fact.
struct BlockSpan {
  KvKey key;
  std::int32_t begin = 0;  ///< first token in Composition::ids
  std::int32_t end = 0;
  bool exact = false;  ///< an exact prefix, not a fact
};

/// One prompt: its tokens, and which runs of them are blocks. Spans ascend and do not overlap.
struct Composition {
  TokenIds ids;
  std::vector<BlockSpan> blocks;
  std::string salt;                       ///< KV computed under one salt is reused under no other
  std::vector<std::uint64_t> scope_tags;  ///< of all owners in it: erase() drops cached sequences
  bool inject = true;                     ///< false: text mode, everything is computed
};

struct Sampling {
  double temperature = 0.0;  ///< 0: greedy
  std::int32_t top_k = 0;    ///< 0: off
  double top_p = 1.0;
  double min_p = 0.0;
  double repetition_penalty = 1.0;
  std::optional<std::uint32_t> seed;
  std::int32_t max_tokens = 256;
  std::vector<std::string> stop;
  std::string grammar;  ///< GBNF; empty: none
  /// Regular expressions and tokens from whose first appearance on the grammar holds, which then
  /// covers them too; none of either: from the start.
  std::vector<std::string> grammar_triggers = {};
  TokenIds grammar_trigger_tokens = {};
  TokenIds grammar_prefill = {};  ///< what the prompt already holds of the grammar's text
  TokenIds shown_tokens = {};     ///< special tokens whose names are part of the answer's text
  std::int32_t logprobs = -1;     ///< top log-probabilities a token; -1: none
};

/// How a model is told of tools and says that it calls them. Immutable; thread-safe.
class ToolFormat {
 public:
  virtual ~ToolFormat() = default;
  virtual const ToolUse& use() const = 0;
  /// Makes the sampling hold what `use` asks for.
  virtual void Constrain(Sampling& sampling) const = 0;
  /// Reads an answer. Calls' ids are the model's, and mostly empty. Text that has not the form is
  /// all content, or nothing yet if more may come.
  /// \param partial more of the text may come
  virtual ToolAnswer Parse(const std::string& text, bool partial) const = 0;
};

struct TokenEvent {
  TokenId id = 0;
  std::string text;  ///< whole UTF-8 characters only; may be empty
  float logprob = 0;
  std::vector<std::pair<TokenId, float>> top_logprobs;
};

/// Why something was computed that could have been injected, or served as text.
/// Reasons: "not_ready", "corrupt", "token_mismatch", "not_contiguous", "model_unsupported",
/// "template", "text_mode", "evicted", "no_owner", "over_budget", "accuracy_gate".
struct Fallback {
  std::string reason;
  std::int32_t count = 0;
};

enum class FinishReason { kStop, kLength, kCancelled, kDeadline, kError };

struct GenerationReport {
  Status status;
  FinishReason finish = FinishReason::kStop;
  TokenIds generated;  ///< without the end-of-generation token
  std::string text;
  std::int32_t prompt_tokens = 0;
  std::int32_t injected_tokens = 0;  ///< written from stored blocks
  std::int32_t reused_tokens = 0;    ///< already in the engine's cache for this salt
  std::int32_t computed_tokens = 0;
  std::int32_t injected_blocks = 0;
  double queue_ms = 0;  ///< waiting for a place
  double ttft_ms = 0;   ///< from Generate() to the first token, queueing included
  double inject_ms = 0;
  double total_ms = 0;
  std::vector<Fallback> fallbacks;
};

struct GenerationCallbacks {
  std::function<void(const TokenEvent&)> on_token;
  std::function<void(GenerationReport)> on_done;  ///< exactly once
};

/// Cancels its generation when asked; outliving the engine is harmless.
class Generation {
 public:
  virtual ~Generation() = default;
  virtual void Cancel() = 0;
  /// Blocks until on_done has returned. Never call from a callback.
  virtual void Wait() = 0;
};

/// One fact (or exact prefix) to encode: `context` is computed in front and thrown away.
struct EncodeRequest {
  KvBlockInfo info;                         ///< geometry and fingerprint are filled in
  std::shared_ptr<const TokenIds> context;  ///< shared between requests where equal; may be empty
  bool urgent =
      false;  ///< a request waits for this (an exact prefix): do not give way to generations
};

struct EncodeOutcome {
  KvKey key;
  Status status;
};

struct ScoreReport {
  std::vector<float> logprobs;  ///< [continuation]
  std::vector<float>
      first_logprobs;           ///< [vocabulary], of the first continuation token, if asked for
  GenerationReport generation;  ///< token counts, TTFT, fallbacks
};

struct EngineCapabilities {
  bool kv_injection = false;
  std::string kv_refusal;           ///< why not, in words, when kv_injection is false
  std::optional<KvCodec> codec;     ///< what blocks are stored in; unset: in what is asked for
  std::int32_t context_tokens = 0;  ///< longest prompt plus answer of one sequence
  std::int32_t parallel_sequences = 0;
  bool grammar = false;
  bool scoring = false;
  bool system_role = true;  ///< the template has a system message of its own
};

class Engine {
 public:
  virtual ~Engine() = default;

  /// Token ids of plain text: no special tokens are recognised, none are added.
  virtual TokenIds Tokenize(std::string_view text) const = 0;
  virtual std::string Detokenize(std::span<const TokenId> ids) const = 0;
  /// The prompt for `messages`, ending where the assistant's answer begins.
  virtual Result<RenderedChat> Render(std::span<const ChatMessage> messages) const = 0;

  /// kUnsupported: this engine's models call no tools; kInvalidArgument names the tool that is
  /// wrong.
  virtual Result<std::shared_ptr<const ToolFormat>> MakeToolFormat(const ToolUse& /*use*/) const {
    return Unsupported("this engine calls no tools");
  }
  /// Render() with the tools in front of the facts' place, and with tool calls and their results
  /// among the messages.
  /// \param tools made by this engine
  virtual Result<RenderedChat> RenderWithTools(std::span<const ChatMessage> messages,
                                               const ToolFormat& /*tools*/) const {
    return Render(messages);
  }

  /// Queues encodings; each ends in exactly one outcome. The block is in the store when its outcome
  /// is ok. Gives way to generations.
  virtual void Encode(std::vector<EncodeRequest> requests,
                      std::function<void(const EncodeOutcome&)> on_outcome) = 0;

  /// \param deadline generation ends with what it has by then.
  virtual std::shared_ptr<Generation> Generate(
      Composition composition, Sampling sampling, GenerationCallbacks callbacks,
      std::optional<std::chrono::steady_clock::time_point> deadline = std::nullopt) = 0;

  /// Log-probabilities of a given continuation (evaluation); blocking.
  virtual Result<ScoreReport> Score(Composition composition, TokenIds continuation,
                                    bool first_distribution) = 0;

  virtual std::vector<KvTier> Presence(std::span<const KvKey> keys) const = 0;
  /// Removes blocks, and every cached sequence that may contain them. Encodings asked for below
  /// `epoch` that are still under way for this scope end without a block.
  virtual Status Erase(std::span<const KvKey> keys, std::uint64_t scope_tag,
                       std::uint64_t epoch) = 0;
  virtual Status EraseScope(std::uint64_t scope_tag, std::uint64_t epoch) = 0;

  /// What these return stays as it is while the engine lives, but a later call may return something
  /// else: an engine that was started before it could store KV does so once, from when it can.
  virtual const Fingerprint& fingerprint() const = 0;
  virtual const EngineCapabilities& capabilities() const = 0;
  /// \param changed called on an engine's thread when these have changed; nullptr: never any more.
  // NOLINTNEXTLINE(performance-unnecessary-value-param)
  virtual void OnChange(std::function<void()> /*changed*/) {}
  virtual const KvGeometry& geometry() const = 0;
  virtual KvStoreStats StoreStats() const = 0;
  /// What the blocks of these scopes take in the store's files.
  virtual std::int64_t StoredBytes(std::span<const std::uint64_t> /*scope_tags*/) const {
    return 0;
  }
};

/// Runs a generation to its end and returns the report (on_token may be empty).
GenerationReport GenerateBlocking(Engine& engine, Composition composition, Sampling sampling,
                                  std::function<void(const TokenEvent&)> on_token = {});

}  // namespace inferscale

#endif  // INFERSCALE_ENGINE_H_
