#include "engine/llama/serving_loop.h"

#include <algorithm>
#include <exception>
#include <limits>
#include <utility>

#include <spdlog/spdlog.h>

namespace inferscale {
namespace {

constexpr double kSliceSeconds = 0.05;
constexpr double kLongStepSeconds = 0.1;
constexpr std::int32_t kSmallestSlice = 16;
/// A prompt's last computed run is this short, so that the same prompt, found in the cache, can
/// repeat that run exactly at little cost.
constexpr std::int32_t kTailTokens = 32;

double Milliseconds(SteadyClock::duration duration) {
  return std::chrono::duration<double, std::milli>(duration).count();
}

template <typename Callback, typename... Arguments>
void Call(const Callback& callback, Arguments&&... arguments) {
  if (!callback) return;
  try {
    callback(std::forward<Arguments>(arguments)...);
  } catch (const std::exception& error) {
    spdlog::error("a generation's callback threw: {}", error.what());
  } catch (...) {
    spdlog::error("a generation's callback threw");
  }
}

}  // namespace

ServingLoop::ServingLoop(Options options)
    : context_(std::move(options.context)),
      tokenizer_(std::move(options.tokenizer)),
      injector_(options.injection),
      window_(options.window),
      gate_(std::move(options.gate)),
      removable_(options.removable),
      cache_(context_->options().sequences) {
  if (removable_) context_->SetAbort([this] { return ShouldAbort(); });
  thread_ = std::thread([this] { Run(); });
}

ServingLoop::~ServingLoop() {
  {
    const std::scoped_lock lock(signal_->mutex);
    stop_ = true;
    signal_->pending = true;
  }
  signal_->interrupt = true;
  signal_->changed.notify_all();
  thread_.join();
}

std::shared_ptr<Generation> ServingLoop::Submit(std::unique_ptr<ServingJob> job) {
  job->handle = std::make_shared<ServingGeneration>(signal_);
  std::shared_ptr<Generation> handle = job->handle;
  gate_->Begin();
  {
    const std::scoped_lock lock(signal_->mutex);
    incoming_.push_back(std::move(job));
    signal_->pending = true;
  }
  if (long_step_) signal_->interrupt = true;
  signal_->changed.notify_all();
  return handle;
}

void ServingLoop::DropScope(std::uint64_t scope_tag) {
  if (std::this_thread::get_id() == thread_.get_id()) {
    Drop(scope_tag);
    return;
  }
  std::future<void> done;
  {
    const std::scoped_lock lock(signal_->mutex);
    if (stop_) return;
    DropRequest& request = incoming_drops_.emplace_back(DropRequest{scope_tag, {}});
    done = request.done.get_future();
    signal_->pending = true;
  }
  signal_->changed.notify_all();
  done.wait();
}

bool ServingLoop::ShouldAbort() const {
  return signal_->interrupt.load(std::memory_order_relaxed) ||
         SteadyClock::now().time_since_epoch().count() >=
             nearest_deadline_.load(std::memory_order_relaxed);
}

bool ServingLoop::TakeWork() {
  std::vector<DropRequest> drops;
  bool stop = false;
  {
    std::unique_lock lock(signal_->mutex);
    // With jobs queued and a place free for them there is nothing to wait for.
    if (active_.empty() && (queue_.empty() || no_room_)) {
      auto nearest = SteadyClock::time_point::max();
      for (const auto& job : queue_) nearest = std::min(nearest, job->deadline.value_or(nearest));
      const auto woken = [&] { return signal_->pending; };
      if (queue_.empty()) {
        signal_->changed.wait(lock, woken);
      } else if (nearest == SteadyClock::time_point::max()) {
        signal_->changed.wait(lock, woken);
      } else {
        signal_->changed.wait_until(lock, nearest, woken);
      }
    }
    signal_->pending = false;
    signal_->interrupt = false;
    for (auto& job : incoming_) queue_.push_back(std::move(job));
    incoming_.clear();
    drops.swap(incoming_drops_);
    stop = stop_;
  }
  for (DropRequest& request : drops) {
    Drop(request.scope_tag);
    request.done.set_value();
  }
  return !stop;
}

void ServingLoop::Run() {
  while (TakeWork()) {
    EndCancelled();
    AdmitQueued();
    no_room_ = active_.empty() && !queue_.empty();
    if (!active_.empty()) Step();
    Sweep();
  }
  const Status status = Cancelled("the engine is shutting down");
  for (auto& job : active_) End(*job, FinishReason::kCancelled, status);
  for (auto& job : queue_) End(*job, FinishReason::kCancelled, status);
  std::vector<DropRequest> drops;
  {
    const std::scoped_lock lock(signal_->mutex);
    drops.swap(incoming_drops_);
  }
  for (DropRequest& request : drops) request.done.set_value();
}

void ServingLoop::EndCancelled() {
  const auto now = SteadyClock::now();
  auto nearest = SteadyClock::time_point::max();
  const auto check = [&](ServingJob& job) {
    if (!job.rejected.ok()) {
      End(job, FinishReason::kError, job.rejected);
    } else if (job.handle->cancelled()) {
      End(job, FinishReason::kCancelled,
          job.scoring() ? Cancelled("scoring was cancelled") : OkStatus());
    } else if (job.deadline && now >= *job.deadline) {
      End(job, FinishReason::kDeadline,
          job.scoring() ? DeadlineExceeded("scoring took too long") : OkStatus());
    } else if (job.deadline) {
      nearest = std::min(nearest, *job.deadline);
    }
  };
  for (auto& job : queue_) check(*job);
  for (auto& job : active_) check(*job);
  std::erase_if(queue_, [](const auto& job) { return job->handle == nullptr; });
  Sweep();
  nearest_deadline_ =
      nearest == SteadyClock::time_point::max() ? INT64_MAX : nearest.time_since_epoch().count();
}

void ServingLoop::Sweep() {
  // An ended job has no handle any more.
  active_.remove_if([](const auto& job) { return job->handle == nullptr; });
}

void ServingLoop::AdmitQueued() {
  while (!queue_.empty() && Admit(*queue_.front())) {
    std::unique_ptr<ServingJob> job = std::move(queue_.front());
    queue_.pop_front();
    if (job->handle != nullptr) active_.push_back(std::move(job));
  }
}

bool ServingLoop::CanKeepPrefix(std::int32_t sequence, std::int32_t tokens) const {
  if (!removable_) return false;
  if (context_->LastPosition(sequence) + 1 < tokens) return false;
  if (window_ <= 0) return true;
  // A sliding-window layer may have forgotten what the next token has to see.
  const std::int32_t first = context_->FirstPosition(sequence);
  return first >= 0 && first <= std::max(0, tokens - window_);
}

/// \return false: no sequence is free; the job stays where it is.
bool ServingLoop::Admit(ServingJob& job) {
  const Composition& composition = job.composition;
  const std::int32_t limit = static_cast<std::int32_t>(composition.ids.size()) - 1;
  SequenceCache::Prefix prefix = cache_.FindPrefix(composition.ids, composition.salt, limit);
  if (prefix.sequence >= 0 && !CanKeepPrefix(prefix.sequence, prefix.tokens)) prefix = {};
  const std::int32_t room = cache_.FindRoom();
  if (room < 0) return false;

  const auto started = SteadyClock::now();
  job.report.queue_ms = Milliseconds(started - job.submitted);
  job.prompt_tokens = limit + 1;
  job.tokens = composition.ids;
  if (job.scoring()) {
    job.tokens.insert(job.tokens.end(), job.continuation.begin(), job.continuation.end() - 1);
  }
  const std::int32_t blocks_end = composition.blocks.empty() ? 0 : composition.blocks.back().end;
  PromptInjector::Prepared prepared;
  const bool ask = prefix.tokens < std::min(blocks_end, limit);
  if (ask) prepared = injector_.Prepare(composition, limit);

  if (prefix.tokens > 0 && prefix.tokens >= prepared.plan.covered &&
      context_->Remove(prefix.sequence, prefix.tokens, -1)) {
    job.sequence = prefix.sequence;
    cache_.Occupy(job.sequence);
    job.computed_to = job.report.reused_tokens = prefix.tokens;
    if (ask) job.fallbacks = injector_.ReasonsBeyond(composition, prefix.tokens);
    return true;
  }
  job.sequence = room;
  if (!context_->Remove(room, 0, -1)) {
    End(job, FinishReason::kError, Internal("a sequence of the engine cannot be cleared"));
    return true;
  }
  cache_.Occupy(room);
  job.fallbacks = prepared.plan.fallbacks;
  if (prepared.plan.covered > 0) {
    const Status written = injector_.Write(*context_, room, prepared);
    if (written.ok()) {
      job.computed_to = job.report.injected_tokens = prepared.plan.covered;
      job.report.injected_blocks = static_cast<std::int32_t>(prepared.plan.runs.size());
    } else {
      spdlog::debug("blocks are computed instead of injected: {}", written.ToString());
      job.fallbacks.Add("corrupt", static_cast<std::int32_t>(prepared.plan.runs.size()));
    }
    job.report.inject_ms = Milliseconds(SteadyClock::now() - started);
  }
  return true;
}

std::int32_t ServingLoop::SliceTokens(bool alone) const {
  if (alone) return context_->batch_tokens();
  const double slice = tokens_per_second_ * kSliceSeconds;
  return std::clamp(static_cast<std::int32_t>(slice), kSmallestSlice, context_->batch_tokens());
}

void ServingLoop::Step() {
  const bool alone = active_.size() == 1 && queue_.empty();
  std::vector<BatchToken> batch;
  std::int32_t outputs_left = std::max(context_->options().outputs, context_->options().sequences);
  std::int32_t prefill_left = SliceTokens(alone);
  // Running answers first: one token each. Every sequence has room for its output.
  std::vector<std::pair<ServingJob*, std::int32_t>> before;
  for (const bool decoding : {true, false}) {
    for (auto& job : active_) {
      const std::int32_t missing = job->known() - job->computed_to;
      const bool is_decoding = job->computed_to >= job->prompt_tokens && !job->scoring();
      if (is_decoding != decoding) continue;
      const std::int32_t room = context_->batch_tokens() - static_cast<std::int32_t>(batch.size());
      std::int32_t count = std::min({missing, room, decoding ? 1 : prefill_left});
      if (!decoding && count == missing && count > 2 * kTailTokens) count -= kTailTokens;
      if (count <= 0) continue;
      if (!decoding) prefill_left -= count;
      before.emplace_back(job.get(), job->computed_to);
      if (job->computed_to < job->prompt_tokens) job->starts.push_back(job->computed_to);
      std::int32_t taken = 0;
      for (; taken < count; ++taken) {
        const std::int32_t index = job->computed_to + taken;
        // Logits are wanted behind the last known token, or from the prompt's last on when scoring.
        const bool output =
            job->scoring() ? index >= job->prompt_tokens - 1 : index + 1 == job->known();
        if (output && outputs_left == 0) break;
        if (output) {
          --outputs_left;
          job->outputs.emplace_back(static_cast<std::int32_t>(batch.size()), index);
        }
        batch.push_back({job->tokens[index], index, job->sequence, output});
      }
      job->computed_to += taken;
    }
  }
  if (batch.empty()) return;

  const double expected = static_cast<double>(batch.size()) / tokens_per_second_;
  long_step_ = alone && batch.size() > 1 && expected > kLongStepSeconds;
  const auto started = SteadyClock::now();
  const Result<DecodeOutcome> outcome = context_->Decode(batch);
  const double seconds = std::chrono::duration<double>(SteadyClock::now() - started).count();
  long_step_ = false;
  if (!outcome.ok() || *outcome == DecodeOutcome::kAborted) {
    for (const auto& [job, computed_to] : before) RollBack(*job, computed_to);
    if (!outcome.ok()) {
      for (const auto& [job, computed_to] : before) {
        if (job->handle != nullptr) End(*job, FinishReason::kError, outcome.status());
      }
    }
    return;
  }
  if (batch.size() >= static_cast<std::size_t>(kSmallestSlice) && seconds > 0) {
    tokens_per_second_ += 0.3 * (static_cast<double>(batch.size()) / seconds - tokens_per_second_);
  }
  for (const auto& [job, computed_to] : before) {
    const std::int32_t prompt_part =
        std::min(job->computed_to, job->prompt_tokens) - std::min(computed_to, job->prompt_tokens);
    job->report.computed_tokens += std::max(0, prompt_part);
    AfterStep(*job);
  }
}

void ServingLoop::RollBack(ServingJob& job, std::int32_t computed_to) {
  job.outputs.clear();
  while (!job.starts.empty() && job.starts.back() >= computed_to) job.starts.pop_back();
  job.computed_to = computed_to;
  if (!context_->Remove(job.sequence, computed_to, -1)) {
    job.drop_sequence = true;
    End(job, FinishReason::kError, Internal("an interrupted computation could not be taken back"));
  }
}

void ServingLoop::AfterStep(ServingJob& job) {
  const auto outputs = std::exchange(job.outputs, {});
  for (const auto& [index, token] : outputs) {
    const float* logits = context_->Logits(index);
    if (logits == nullptr) {
      End(job, FinishReason::kError, Internal("the engine gave no logits for a token"));
      return;
    }
    if (job.report.ttft_ms == 0)
      job.report.ttft_ms = Milliseconds(SteadyClock::now() - job.submitted);
    if (job.scoring()) {
      AfterScored(job, index, token);
    } else {
      AfterSampled(job, logits);
    }
    if (job.handle == nullptr) return;
  }
}

void ServingLoop::AfterScored(ServingJob& job, std::int32_t index, std::int32_t token) {
  const float* logits = context_->Logits(index);
  const std::int32_t vocabulary = context_->vocabulary();
  const double total = LogSumExp(logits, vocabulary);
  const auto place = static_cast<std::size_t>(token - (job.prompt_tokens - 1));
  job.score.logprobs.push_back(static_cast<float>(logits[job.continuation[place]] - total));
  if (place == 0 && job.first_distribution) {
    job.score.first_logprobs.resize(static_cast<std::size_t>(vocabulary));
    for (std::int32_t i = 0; i < vocabulary; ++i) {
      job.score.first_logprobs[i] = static_cast<float>(logits[i] - total);
    }
  }
  if (job.score.logprobs.size() == job.continuation.size()) {
    End(job, FinishReason::kStop, OkStatus());
  }
}

void ServingLoop::AfterSampled(ServingJob& job, const float* logits) {
  if (job.sampling.max_tokens == 0) {
    End(job, FinishReason::kLength, OkStatus());
    return;
  }
  Result<TokenSampler::Choice> choice = job.sampler->Sample(logits);
  if (!choice.ok()) {
    End(job, FinishReason::kError, choice.status());
    return;
  }
  TokenEvent event;
  event.id = choice->id;
  event.logprob = choice->logprob;
  event.top_logprobs = std::move(choice->top);
  const bool ended = tokenizer_->IsEndOfGeneration(choice->id);
  bool full = false;
  if (!ended) {
    job.report.generated.push_back(choice->id);
    job.tokens.push_back(choice->id);
    const TokenIds& shown = job.sampling.shown_tokens;
    const bool by_name = std::find(shown.begin(), shown.end(), choice->id) != shown.end();
    event.text = job.stream->Push(by_name ? tokenizer_->SpecialPiece(choice->id)
                                          : tokenizer_->Piece(choice->id));
    full = static_cast<std::int32_t>(job.report.generated.size()) >= job.sampling.max_tokens ||
           job.known() >= context_->tokens_per_sequence();
  }
  const bool stopped = job.stream->stopped();
  if (ended || full) event.text += job.stream->Finish();
  if (!ended || !event.text.empty()) Call(job.callbacks.on_token, event);
  if (ended || stopped) {
    End(job, FinishReason::kStop, OkStatus());
  } else if (full) {
    End(job, FinishReason::kLength, OkStatus());
  }
}

void ServingLoop::End(ServingJob& job, FinishReason reason, Status status) {
  GenerationReport& report = job.report;
  if (job.stream) {
    const std::string rest = job.stream->Finish();
    if (!rest.empty()) {
      // Text that was held back because it might have begun a stop string.
      TokenEvent event;
      event.id = report.generated.empty() ? -1 : report.generated.back();
      event.text = rest;
      Call(job.callbacks.on_token, event);
    }
    report.text = job.stream->text();
  }
  if (job.sequence >= 0) {
    const bool failed = reason == FinishReason::kError || job.drop_sequence;
    if (failed || !removable_ || job.computed_to <= 0) {
      context_->Remove(job.sequence, 0, -1);
      cache_.Free(job.sequence);
    } else {
      job.tokens.resize(static_cast<std::size_t>(job.computed_to));
      cache_.Keep(job.sequence, std::move(job.tokens), std::move(job.composition.salt),
                  std::move(job.composition.scope_tags), std::move(job.starts), job.prompt_tokens);
    }
  }
  report.finish = reason;
  report.status = std::move(status);
  report.prompt_tokens = static_cast<std::int32_t>(job.composition.ids.size());
  report.total_ms = Milliseconds(SteadyClock::now() - job.submitted);
  report.fallbacks = job.fallbacks.Take();
  const std::shared_ptr<ServingGeneration> handle = std::exchange(job.handle, nullptr);
  gate_->End();
  if (job.scoring()) {
    job.score.generation = std::move(report);
    Call(job.on_score, std::move(job.score));
  } else {
    Call(job.callbacks.on_done, std::move(report));
  }
  handle->MarkDone();
}

void ServingLoop::Drop(std::uint64_t scope_tag) {
  for (const std::int32_t sequence : cache_.CachedOf(scope_tag)) {
    context_->Remove(sequence, 0, -1);
    cache_.Free(sequence);
  }
  const auto mark = [&](ServingJob& job) {
    const std::vector<std::uint64_t>& tags = job.composition.scope_tags;
    if (std::find(tags.begin(), tags.end(), scope_tag) != tags.end()) job.drop_sequence = true;
  };
  for (auto& job : active_) mark(*job);
  for (auto& job : queue_) mark(*job);
}

}  // namespace inferscale
