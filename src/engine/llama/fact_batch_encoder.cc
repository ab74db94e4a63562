#include "engine/llama/fact_batch_encoder.h"

#include <algorithm>
#include <exception>
#include <string>
#include <utility>

#include <spdlog/spdlog.h>

namespace inferscale {
namespace {

using Clock = std::chrono::steady_clock;

constexpr double kSliceSeconds = 0.05;
/// While generations never cease, encoding still gets one slice this often.
constexpr std::chrono::milliseconds kForcedSliceEvery{500};
constexpr std::size_t kRememberedKeys = 1 << 20;

bool SameContext(const EncodeRequest& a, const EncodeRequest& b) {
  static const TokenIds kEmpty;
  const TokenIds& left = a.context ? *a.context : kEmpty;
  const TokenIds& right = b.context ? *b.context : kEmpty;
  return a.context == b.context || left == right;
}

std::int32_t Size(const TokenIds& ids) { return static_cast<std::int32_t>(ids.size()); }

}  // namespace

FactBatchEncoder::FactBatchEncoder(Options options)
    : context_(std::move(options.context)),
      transfer_(std::move(options.transfer)),
      store_(options.store),
      gate_(std::move(options.gate)),
      fingerprint_(options.fingerprint),
      sections_(options.sections),
      window_(options.window),
      can_abort_(options.can_abort) {
  if (can_abort_) {
    context_->SetAbort([this] { return stopping_ || (giving_way_ && gate_->busy()); });
  }
  thread_ = std::thread([this] { Run(); });
}

FactBatchEncoder::~FactBatchEncoder() {
  {
    const std::scoped_lock lock(mutex_);
    stop_ = true;
  }
  stopping_ = true;
  gate_->Interrupt();
  changed_.notify_all();
  thread_.join();
}

Status FactBatchEncoder::Check(const EncodeRequest& request) const {
  const std::int32_t own = Size(request.info.tokens);
  const std::int64_t behind = request.context ? Size(*request.context) : 0;
  if (own == 0) return InvalidArgument("a block needs at least one token");
  const std::int64_t room =
      std::min({context_->tokens_per_sequence(), transfer_->positions(), 1 << 24});
  // The context's cells are shared, but the fact's own come on top.
  if (behind + own > room) {
    return InvalidArgument("a fact of " + std::to_string(own) + " tokens behind " +
                           std::to_string(behind) +
                           " tokens does not fit the encoding context of " + std::to_string(room) +
                           " tokens; shorten the fact");
  }
  if (window_ > 0 && own > window_) {
    return InvalidArgument("a fact of " + std::to_string(own) +
                           " tokens is longer than the model's sliding window of " +
                           std::to_string(window_) + " tokens; shorten it");
  }
  const auto known = [&](TokenId id) { return id >= 0 && id < context_->vocabulary(); };
  if (!std::all_of(request.info.tokens.begin(), request.info.tokens.end(), known) ||
      (request.context && !std::all_of(request.context->begin(), request.context->end(), known))) {
    return InvalidArgument("a fact has token ids that this model's vocabulary does not have");
  }
  return OkStatus();
}

void FactBatchEncoder::Encode(std::vector<EncodeRequest> requests, OnOutcome on_outcome) {
  const auto shared = std::make_shared<const OnOutcome>(std::move(on_outcome));
  {
    const std::scoped_lock lock(mutex_);
    std::vector<Item> urgent;
    for (EncodeRequest& request : requests) {
      if (request.urgent) {
        urgent.push_back({std::move(request), shared});
      } else {
        queue_.push_back({std::move(request), shared});
      }
    }
    const auto place = std::find_if(queue_.begin(), queue_.end(),
                                    [](const Item& item) { return !item.request.urgent; });
    queue_.insert(place, std::make_move_iterator(urgent.begin()),
                  std::make_move_iterator(urgent.end()));
  }
  changed_.notify_all();
  gate_->Nudge();
}

void FactBatchEncoder::Cancel(std::span<const KvKey> keys) {
  const std::unordered_set<KvKey> wanted(keys.begin(), keys.end());
  std::vector<Item> ended;
  {
    const std::scoped_lock lock(mutex_);
    std::erase_if(queue_, [&](Item& item) {
      if (!wanted.contains(item.request.info.key)) return false;
      ended.push_back(std::move(item));
      return true;
    });
    for (const KvKey& key : running_) {
      if (wanted.contains(key)) cancelled_.insert(key);
    }
    for (const KvKey& key : keys) stored_.erase(key);
  }
  for (const Item& item : ended)
    Report(item, Cancelled("the fact was erased before it was encoded"));
}

bool FactBatchEncoder::WasStored(const KvKey& key) const {
  const std::scoped_lock lock(mutex_);
  return stored_.contains(key);
}

void FactBatchEncoder::Report(const Item& item, Status status) {
  if (!item.on_outcome || !*item.on_outcome) return;
  try {
    (*item.on_outcome)(EncodeOutcome{item.request.info.key, std::move(status)});
  } catch (const std::exception& error) {
    spdlog::error("an encoding's callback threw: {}", error.what());
  } catch (...) {
    spdlog::error("an encoding's callback threw");
  }
}

bool FactBatchEncoder::MayRun(bool& forced_slice) {
  forced_slice = false;
  while (gate_->busy()) {
    {
      const std::scoped_lock lock(mutex_);
      if (stop_) return false;
      if (!queue_.empty() && queue_.front().request.urgent) return true;
    }
    if (Clock::now() - last_slice_ >= kForcedSliceEvery) {
      forced_slice = true;
      return true;
    }
    gate_->WaitIdle(std::chrono::duration_cast<std::chrono::milliseconds>(
                        kForcedSliceEvery - (Clock::now() - last_slice_)) +
                    std::chrono::milliseconds(1));
  }
  return true;
}

/// The front of the queue and what shares its context, as much as fits the cells and the time.
std::vector<FactBatchEncoder::Item> FactBatchEncoder::TakeBatch(bool slice) {
  std::vector<Item> batch;
  const std::scoped_lock lock(mutex_);
  if (stop_ || queue_.empty()) return batch;
  const EncodeRequest front = queue_.front().request;
  const std::int32_t cells =
      context_->tokens_per_sequence() - (front.context ? Size(*front.context) : 0);
  const bool small = slice || !can_abort_;
  const std::int32_t most_tokens =
      small ? std::clamp(static_cast<std::int32_t>(tokens_per_second_ * kSliceSeconds), 1, cells)
            : std::min(cells, context_->batch_tokens() * 2);
  const std::int32_t most_facts = context_->options().sequences - 1;
  std::int32_t tokens = 0;
  for (auto item = queue_.begin();
       item != queue_.end() && static_cast<std::int32_t>(batch.size()) < most_facts;) {
    const std::int32_t own = Size(item->request.info.tokens);
    const bool same = item->request.urgent == front.urgent && SameContext(item->request, front);
    const bool fits = batch.empty() || tokens + own <= most_tokens;
    if (same && !fits) break;
    if (!same) {
      ++item;
      continue;
    }
    tokens += own;
    running_.insert(item->request.info.key);
    batch.push_back(std::move(*item));
    item = queue_.erase(item);
  }
  return batch;
}

void FactBatchEncoder::Requeue(std::vector<Item> batch) {
  std::vector<Item> ended;
  {
    const std::scoped_lock lock(mutex_);
    for (auto item = batch.rbegin(); item != batch.rend(); ++item) {
      const KvKey& key = item->request.info.key;
      running_.erase(key);
      if (cancelled_.erase(key) > 0) {
        ended.push_back(std::move(*item));
      } else {
        queue_.push_front(std::move(*item));
      }
    }
  }
  for (const Item& item : ended)
    Report(item, Cancelled("the fact was erased before it was encoded"));
}

void FactBatchEncoder::Run() {
  while (true) {
    {
      std::unique_lock lock(mutex_);
      changed_.wait(lock, [&] { return stop_ || !queue_.empty(); });
      if (stop_) break;
    }
    bool forced_slice = false;
    if (!MayRun(forced_slice)) break;
    std::vector<Item> batch = TakeBatch(forced_slice);
    std::vector<Item> good;
    for (Item& item : batch) {
      const Status status = Check(item.request);
      if (status.ok()) {
        good.push_back(std::move(item));
        continue;
      }
      {
        const std::scoped_lock lock(mutex_);
        running_.erase(item.request.info.key);
      }
      Report(item, status);
    }
    if (good.empty()) continue;
    const bool give_way = !forced_slice && !good.front().request.urgent;
    Process(std::move(good), give_way);
    last_slice_ = Clock::now();
  }
  std::deque<Item> left;
  {
    const std::scoped_lock lock(mutex_);
    left.swap(queue_);
  }
  for (const Item& item : left) Report(item, Cancelled("the engine is shutting down"));
}

Result<bool> FactBatchEncoder::Compute(std::span<const BatchToken> tokens) {
  const auto most = static_cast<std::size_t>(context_->batch_tokens());
  for (std::size_t from = 0; from < tokens.size(); from += most) {
    const auto part = tokens.subspan(from, std::min(most, tokens.size() - from));
    const auto started = Clock::now();
    INFERSCALE_ASSIGN_OR_RETURN(const DecodeOutcome outcome, context_->Decode(part));
    if (outcome == DecodeOutcome::kAborted) return false;
    const double seconds = std::chrono::duration<double>(Clock::now() - started).count();
    if (part.size() >= 8 && seconds > 0) {
      tokens_per_second_ += 0.3 * (static_cast<double>(part.size()) / seconds - tokens_per_second_);
    }
  }
  return true;
}

Result<bool> FactBatchEncoder::ComputeContext(const TokenIds& context) {
  const auto differ = std::mismatch(shared_.begin(), shared_.end(), context.begin(), context.end());
  auto keep = static_cast<std::int32_t>(differ.first - shared_.begin());
  // A sliding-window layer may have forgotten what the next token has to see.
  if (window_ > 0 && keep < Size(shared_) &&
      context_->FirstPosition(0) > std::max(0, keep - window_)) {
    keep = 0;
  }
  if (keep < Size(shared_) && !context_->Remove(0, keep, -1)) {
    keep = 0;
    context_->ClearAll();
  }
  shared_.resize(static_cast<std::size_t>(keep));
  std::vector<BatchToken> tokens;
  for (std::int32_t i = keep; i < Size(context); ++i) tokens.push_back({context[i], i, 0, false});
  if (tokens.empty()) return true;
  const Result<bool> computed = Compute(tokens);
  if (computed.ok() && *computed) {
    shared_ = context;
  } else {
    context_->Remove(0, keep, -1);
  }
  return computed;
}

Result<bool> FactBatchEncoder::ComputeFacts(const std::vector<Item>& batch,
                                            std::int32_t context_tokens) {
  std::vector<BatchToken> tokens;
  for (std::size_t i = 0; i < batch.size(); ++i) {
    const auto sequence = static_cast<std::int32_t>(i) + 1;
    if (context_tokens > 0) context_->CopySequence(0, sequence, 0, context_tokens);
    const TokenIds& own = batch[i].request.info.tokens;
    for (std::int32_t t = 0; t < Size(own); ++t) {
      tokens.push_back({own[t], context_tokens + t, sequence, false});
    }
  }
  return Compute(tokens);
}

void FactBatchEncoder::Process(std::vector<Item> batch, bool give_way) {
  static const TokenIds kEmpty;
  const std::shared_ptr<const TokenIds> held = batch.front().request.context;
  const TokenIds& context = held ? *held : kEmpty;
  giving_way_ = give_way;
  Result<bool> computed = ComputeContext(context);
  if (computed.ok() && *computed) computed = ComputeFacts(batch, Size(context));
  giving_way_ = false;
  const auto clear = [&] {
    for (std::size_t i = 0; i < batch.size(); ++i) {
      context_->Remove(static_cast<std::int32_t>(i) + 1, 0, -1);
    }
  };
  if (computed.ok() && !*computed) {
    clear();
    Requeue(std::move(batch));
    return;
  }
  for (std::size_t i = 0; i < batch.size(); ++i) {
    Status status = computed.ok() ? Store(batch[i], static_cast<std::int32_t>(i) + 1, Size(context))
                                  : computed.status();
    Report(batch[i], std::move(status));
  }
  clear();
  if (!computed.ok()) {
    context_->ClearAll();
    shared_.clear();
  }
}

Status FactBatchEncoder::Store(Item& item, std::int32_t sequence, std::int32_t context_tokens) {
  KvBlockInfo& info = item.request.info;
  const KvKey key = info.key;
  const auto make = [&]() -> Result<std::shared_ptr<const KvBlock>> {
    // Only the fact's own cells are to be read; the others keep the shared ones.
    if (context_tokens > 0) context_->Remove(sequence, 0, context_tokens);
    INFERSCALE_RETURN_IF_ERROR(context_->GetState(sequence, blob_));
    INFERSCALE_ASSIGN_OR_RETURN(const ParsedState state, ParseState(blob_, sections_));
    INFERSCALE_ASSIGN_OR_RETURN(
        std::vector<std::uint8_t> payload,
        transfer_->Capture(blob_, state, context_tokens, Size(info.tokens), info.codec));
    KvBlockInfo block_info = info;
    block_info.geometry = transfer_->geometry();
    block_info.fingerprint = fingerprint_;
    return KvBlock::Create(std::move(block_info), std::move(payload));
  };
  Result<std::shared_ptr<const KvBlock>> block = make();
  // Storing under the lock: a cancelled key is either never stored or stored before Cancel returns.
  const std::scoped_lock lock(mutex_);
  running_.erase(key);
  if (cancelled_.erase(key) > 0) return Cancelled("the fact was erased before it was encoded");
  if (!block.ok()) return block.status();
  const Status stored = store_->Put(std::move(*block));
  if (stored.ok()) {
    if (stored_.size() >= kRememberedKeys) stored_.clear();
    stored_.insert(key);
  }
  return stored;
}

}  // namespace inferscale
