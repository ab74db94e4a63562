// inferscale chat

#include <cerrno>
#include <chrono>
#include <condition_variable>
#include <cstdio>
#include <iostream>
#include <memory>
#include <mutex>
#include <optional>
#include <utility>

#include <poll.h>
#include <unistd.h>

#include <nlohmann/json.hpp>

#include "base/clock.h"
#include "base/utf8.h"
#include "cli/commands.h"
#include "cli/interrupt.h"
#include "cli/output.h"
#include "cli/service_factory.h"

namespace inferscale {
namespace {

using nlohmann::json;

constexpr std::chrono::milliseconds kPoll{50};  // how long Ctrl-C may go unnoticed
constexpr std::size_t kShownMemories = 5;
constexpr int kInterruptCheckMs = 100;
constexpr std::size_t kMaxMessageBytes = std::size_t{16} << 20;

struct ChatOptions {
  std::vector<std::string> words;
  std::string system;
  bool text = false, off = false, remember = false, all_memories = false;
  std::int32_t max_tokens = 256;
  double temperature = 0;
};

/// Lines of standard input; a signal ends the waiting.
class LineReader {
 public:
  /// \return nothing at the end of the input or on Ctrl-C.
  std::optional<std::string> Next() {
    while (true) {
      const std::size_t end = buffer_.find('\n');
      if (end != std::string::npos) {
        std::string line = buffer_.substr(0, end);
        buffer_.erase(0, end + 1);
        return line;
      }
      if (buffer_.size() > kMaxMessageBytes) return std::exchange(buffer_, {});
      // Looked at before each wait and again soon: a signal that comes just before read() would not
      // end it.
      pollfd input{STDIN_FILENO, POLLIN, 0};
      while (poll(&input, 1, kInterruptCheckMs) <= 0) {
        if (InterruptScope::Interrupted()) return std::nullopt;
      }
      char bytes[4096];
      const ssize_t count = read(STDIN_FILENO, bytes, sizeof(bytes));
      if (count > 0) {
        buffer_.append(bytes, static_cast<std::size_t>(count));
      } else if (count < 0 && errno == EINTR && !InterruptScope::Interrupted()) {
        continue;
      } else {
        if (count < 0 || buffer_.empty()) return std::nullopt;
        return std::exchange(buffer_, {});
      }
    }
  }

 private:
  std::string buffer_;
};

/// What the engine's thread hands to ours: its callbacks must not block on a slow terminal.
struct Stream {
  std::mutex mutex;
  std::condition_variable changed;
  std::string text;
  std::optional<ChatReport> report;
};

/// One answer to its end, printed as it comes. The first Ctrl-C cancels it.
Result<ChatReport> Answer(MemoryService& service, ChatRequest request, bool print) {
  auto stream = std::make_shared<Stream>();
  Result<std::shared_ptr<Generation>> generation = service.Chat(
      std::move(request),
      [stream](const TokenEvent& event) {
        {
          std::lock_guard lock(stream->mutex);
          stream->text += event.text;
        }
        stream->changed.notify_one();
      },
      [stream](ChatReport report) {
        {
          std::lock_guard lock(stream->mutex);
          stream->report = std::move(report);
        }
        stream->changed.notify_one();
      });
  if (!generation.ok()) return generation.status();
  bool cancelled = false;
  while (true) {
    std::string text;
    bool done = false;
    {
      std::unique_lock lock(stream->mutex);
      stream->changed.wait_for(lock, kPoll,
                               [&] { return !stream->text.empty() || stream->report.has_value(); });
      text.swap(stream->text);
      done = stream->report.has_value();
    }
    if (print && !text.empty()) std::cout << EscapeForTerminal(text, true) << std::flush;
    if (done) break;
    if (InterruptScope::Interrupted() && !std::exchange(cancelled, true)) (*generation)->Cancel();
  }
  (*generation)->Wait();
  ChatReport report = *std::move(stream->report);
  if (!report.generation.status.ok()) return report.generation.status;
  return report;
}

const char* FinishName(FinishReason reason) {
  switch (reason) {
    case FinishReason::kStop:
      return "stop";
    case FinishReason::kLength:
      return "length";
    case FinishReason::kCancelled:
      return "cancelled";
    case FinishReason::kDeadline:
      return "deadline";
    case FinishReason::kError:
      return "error";
  }
  return "error";
}

json ReportJson(const ChatReport& report) {
  const GenerationReport& generation = report.generation;
  json memories = json::array();
  for (const SearchHit& hit : report.memories) {
    json item = FactJson(hit.fact, nullptr);
    item["score"] = hit.score;
    memories.push_back(std::move(item));
  }
  json fallbacks = json::array();
  for (const Fallback& fallback : generation.fallbacks) {
    fallbacks.push_back({{"reason", fallback.reason}, {"count", fallback.count}});
  }
  return {{"answer", generation.text},
          {"finish", FinishName(generation.finish)},
          {"memories", std::move(memories)},
          {"prompt_tokens", generation.prompt_tokens},
          {"injected_tokens", generation.injected_tokens},
          {"reused_tokens", generation.reused_tokens},
          {"computed_tokens", generation.computed_tokens},
          {"generated_tokens", generation.generated.size()},
          {"ttft_ms", generation.ttft_ms},
          {"question_to_first_token_ms", report.question_to_first_token_ms},
          {"search_ms", report.search_ms},
          {"compose_ms", report.compose_ms},
          {"inject_ms", generation.inject_ms},
          {"total_ms", generation.total_ms},
          {"fallbacks", std::move(fallbacks)}};
}

/// Why something was computed, in words.
std::string ReasonText(const std::string& reason) {
  if (reason == "embedder_unavailable") return "searched by keywords alone: no embedder answers";
  if (reason == "not_ready") return "KV not computed yet";
  if (reason == "corrupt") return "stored KV was damaged";
  if (reason == "token_mismatch") return "stored KV was of other tokens";
  if (reason == "not_contiguous") return "behind something that had to be computed";
  if (reason == "model_unsupported") return "this model's KV cannot be moved";
  if (reason == "template") return "the chat template has no place for facts";
  if (reason == "text_mode") return "asked for as text";
  if (reason == "evicted") return "stored KV was evicted";
  if (reason == "no_owner") return "no owner";
  if (reason == "over_budget") return "more facts than fit";
  if (reason == "accuracy_gate") return "this model failed doctor --accuracy";
  return reason;
}

void PrintReport(const ChatReport& report, bool all_memories) {
  const GenerationReport& generation = report.generation;
  const std::size_t count = report.memories.size();
  char line[256];
  std::snprintf(
      line, sizeof(line),
      "  [%zu %s; tokens: %d injected, %d reused, %d computed; first token after %.0f ms%s]", count,
      count == 1 ? "memory" : "memories", generation.injected_tokens, generation.reused_tokens,
      generation.computed_tokens, report.question_to_first_token_ms,
      generation.finish == FinishReason::kLength      ? "; cut at --max-tokens"
      : generation.finish == FinishReason::kCancelled ? "; cancelled"
                                                      : "");
  std::cout << "\n" << line << '\n';
  const std::size_t shown = all_memories ? count : std::min(count, kShownMemories);
  for (std::size_t i = 0; i < shown; ++i) {
    const SearchHit& hit = report.memories[i];
    std::snprintf(line, sizeof(line), "    %.2f ", hit.score);
    std::cout << line;
    if (hit.fact.event_time_ms != 0) std::cout << '(' << FormatDate(hit.fact.event_time_ms) << ") ";
    if (!hit.fact.name.empty()) std::cout << ShortForTerminal(hit.fact.name, 40) << ": ";
    std::cout << ShortForTerminal(hit.fact.text, 100) << '\n';
  }
  if (shown < count) std::cout << "    … and " << count - shown << " more (--memories shows all)\n";
  for (const Fallback& fallback : generation.fallbacks) {
    if (fallback.reason == "embedder_unavailable") {
      std::cout << "    " << ReasonText(fallback.reason) << '\n';
      continue;
    }
    std::cout << "    computed: " << fallback.count << " ("
              << EscapeForTerminal(ReasonText(fallback.reason)) << ")\n";
  }
  std::cout << std::flush;
}

class Conversation {
 public:
  Conversation(const ChatOptions& options, CliContext& context, MemoryService& service)
      : options_(options), context_(context), service_(service) {
    Restart();
  }

  void Restart() {
    messages_.clear();
    if (!options_.system.empty()) messages_.push_back({"system", ToValidUtf8(options_.system), ""});
  }

  /// The message and its answer stay in the conversation unless there was an error.
  Status Say(const std::string& message) {
    messages_.push_back({"user", ToValidUtf8(message), ""});
    ChatRequest request;
    request.scope = context_.scope();
    request.messages = messages_;
    request.sampling.max_tokens = options_.max_tokens;
    request.sampling.temperature = options_.temperature;
    request.mode = options_.off    ? MemoryMode::kOff
                   : options_.text ? MemoryMode::kText
                                   : MemoryMode::kKv;
    request.top_k = context_.config().top_k;
    request.remember = options_.remember;
    Result<ChatReport> report = Answer(service_, std::move(request), !context_.json);
    if (!report.ok()) {
      cancelled_ = report.status().code() == StatusCode::kCancelled;
      messages_.pop_back();
      return report.status();
    }
    messages_.push_back({"assistant", report->generation.text, ""});
    cancelled_ = report->generation.finish == FinishReason::kCancelled;
    if (context_.json) {
      PrintJson(ReportJson(*report));
    } else {
      PrintReport(*report, options_.all_memories);
    }
    return OkStatus();
  }

  /// Whether Ctrl-C ended the last answer.
  bool cancelled() const { return cancelled_; }

 private:
  const ChatOptions& options_;
  CliContext& context_;
  MemoryService& service_;
  std::vector<ChatMessage> messages_;
  bool cancelled_ = false;
};

int Converse(Conversation& conversation, const CliContext& context) {
  const bool terminal = isatty(STDIN_FILENO) == 1;
  if (terminal) {
    std::cerr
        << "Ask something. /new starts afresh, /quit or Ctrl-D leaves, Ctrl-C cancels an answer.\n";
  }
  int exit_status = 0;
  LineReader lines;
  while (true) {
    if (terminal) std::cerr << "\n> " << std::flush;
    const std::optional<std::string> line = lines.Next();
    if (!line) break;
    const std::string_view text = TrimWhitespace(*line);
    if (text.empty()) continue;
    if (text == "/quit" || text == "/exit") break;
    if (text == "/new") {
      conversation.Restart();
      continue;
    }
    const Status status = conversation.Say(std::string(text));
    if (!status.ok()) {
      PrintError(status, context.json);
      exit_status = 1;
    }
    // A second Ctrl-C came before the answer had ended.
    if (InterruptScope::Count() > 1) break;
    if (InterruptScope::Interrupted()) {
      if (!conversation.cancelled()) break;  // it came when there was nothing left to cancel
      InterruptScope::Reset();
    }
  }
  if (terminal) std::cerr << '\n';
  return exit_status;
}

Result<int> Chat(const ChatOptions& options, CliContext& context) {
  std::string message;
  for (const std::string& word : options.words) message += (message.empty() ? "" : " ") + word;
  if (!options.words.empty() && TrimWhitespace(message).empty()) {
    return InvalidArgument("the message is blank: give some words");
  }
  INFERSCALE_ASSIGN_OR_RETURN(const OpenedService opened, OpenService(context.config(), true));
  const EngineCapabilities& capabilities = opened.service->engine()->capabilities();
  if (!capabilities.kv_injection && !options.text && !options.off) {
    PrintNote("memories are served as text with this model: " + capabilities.kv_refusal);
  }
  if (!opened.service->accuracy_refusal().empty() && !options.text && !options.off) {
    PrintNote("memories are served as text, because KV of this model " +
              opened.service->accuracy_refusal() + " (--accuracy-gate ignore serves KV)");
  }
  const InterruptScope interrupts(3);
  Conversation conversation(options, context, *opened.service);
  if (options.words.empty()) return Converse(conversation, context);
  INFERSCALE_RETURN_IF_ERROR(conversation.Say(message));
  return InterruptScope::Interrupted() ? 1 : 0;
}

}  // namespace

void AddChatCommand(CLI::App& app, std::vector<Command>* commands) {
  auto options = std::make_shared<ChatOptions>();
  CLI::App* chat = app.add_subcommand("chat", "Ask the model, with memories in its cache");
  CLI::Option* words = AddTexts(*chat, "message", "One message; without it, a conversation");
  CLI::Option* text =
      chat->add_flag("--text", options->text, "Serve memories as text, for comparison");
  chat->add_flag("--off", options->off, "Without memories")->excludes(text);
  chat->add_flag("--remember", options->remember, "Remember what is said");
  chat->add_flag("--memories", options->all_memories, "Show every memory used");
  chat->add_option("--system", options->system, "System message");
  chat->add_option("--max-tokens", options->max_tokens, "Longest answer (256)")
      ->check(CLI::Range(1, 1 << 20));
  chat->add_option("--temperature", options->temperature, "0 (default): always the likeliest token")
      ->check(CLI::Range(0.0, 5.0));
  chat->footer(
      "Examples:\n  inferscale chat\n  inferscale chat \"Where does Anna live?\" --top-k 50");
  commands->push_back({chat, [options, words](CliContext& context) {
                         options->words = words->results();
                         return Chat(*options, context);
                       }});
}

}  // namespace inferscale
