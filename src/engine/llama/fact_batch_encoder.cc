#include "engine/llama/fact_batch_encoder.h"

#include <algorithm>
#include <exception>
#include <iterator>
#include <map>
#include <string>
#include <utility>

#include <spdlog/spdlog.h>

namespace inferscale {
namespace {

using Clock = std::chrono::steady_clock;

/// Beside running generations: slices this long, with pauses that leave encoding this share of
/// time.
constexpr double kSliceSeconds = 0.05;
constexpr double kShareBesideGenerations = 0.5;
/// When nothing else runs. What a generation interrupts is computed again, so not for ever.
constexpr double kPieceSeconds = 0.5;
constexpr std::size_t kRememberedKeys = 1 << 20;
constexpr std::size_t kRememberedFailures = 1 << 12;

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
  const std::string what =
      (request.urgent ? "a prompt's opening of " : "a fact of ") + std::to_string(own);
  // The context's cells are shared, but the fact's own come on top.
  if (behind + own > room) {
    return InvalidArgument(what + " tokens behind " + std::to_string(behind) +
                           " tokens does not fit the encoding context of " + std::to_string(room) +
                           " tokens; shorten " +
                           (request.urgent ? "the system text or the tools" : "the fact"));
  }
  if (window_ > 0 && own > window_) {
    return InvalidArgument(what + " tokens is longer than the model's sliding window of " +
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
  std::vector<std::pair<Item, Status>> ended;
  {
    const std::scoped_lock lock(mutex_);
    std::vector<Item> urgent;
    for (EncodeRequest& request : requests) {
      if (const auto known = impossible_.find(request.info.key); known != impossible_.end()) {
        ended.push_back({{std::move(request), shared}, known->second});
      } else if (request.urgent) {
        urgent.push_back({std::move(request), shared});
      } else {
        queue_.push_back({std::move(request), shared});
      }
    }
    queue_.insert(FirstOrdinary(), std::make_move_iterator(urgent.begin()),
                  std::make_move_iterator(urgent.end()));
  }
  changed_.notify_all();
  gate_->Nudge();
  for (const auto& [item, status] : ended) Report(item, status);
}

void FactBatchEncoder::RememberImpossible(const EncodeRequest& request, const Status& status) {
  if (impossible_.size() >= kRememberedFailures) impossible_.clear();
  const bool is_new = impossible_.try_emplace(request.info.key, status).second;
  // Whoever asks for facts logs what becomes of them.
  if (is_new && request.urgent) {
    spdlog::warn("chats of one system text are served as text: {}", status.message());
  }
}

std::deque<FactBatchEncoder::Item>::iterator FactBatchEncoder::FirstOrdinary() {
  return std::find_if(queue_.begin(), queue_.end(),
                      [](const Item& item) { return !item.request.urgent; });
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
    for (const KvKey& key : keys) {
      stored_.erase(key);
      impossible_.erase(key);
    }
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

bool FactBatchEncoder::AwaitTurn(bool urgent, bool& beside_generations) {
  beside_generations = false;
  while (true) {
    {
      const std::scoped_lock lock(mutex_);
      if (stop_) return false;
      if (!urgent && !queue_.empty() && queue_.front().request.urgent) return false;
    }
    if (urgent || !gate_->busy()) return true;
    const Clock::time_point now = Clock::now();
    if (now >= pause_until_) {
      beside_generations = true;
      return true;
    }
    gate_->WaitIdle(std::chrono::ceil<std::chrono::milliseconds>(pause_until_ - now));
  }
}

/// The front of the queue and what shares its context, as much as fits the cells.
std::vector<FactBatchEncoder::Item> FactBatchEncoder::TakeBatch() {
  std::vector<Item> batch;
  const std::scoped_lock lock(mutex_);
  if (stop_ || queue_.empty()) return batch;
  const EncodeRequest front = queue_.front().request;
  const std::int32_t cells =
      context_->tokens_per_sequence() - (front.context ? Size(*front.context) : 0);
  const std::int32_t most_tokens = std::min(cells, context_->batch_tokens() * 2);
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

void FactBatchEncoder::Requeue(std::span<Item> batch) {
  std::vector<Item> ended;
  {
    const std::scoped_lock lock(mutex_);
    const bool urgent = !batch.empty() && batch.front().request.urgent;
    // Behind the urgent ones, which may be why it was interrupted.
    auto place = urgent ? queue_.begin() : FirstOrdinary();
    for (Item& item : batch) {
      const KvKey& key = item.request.info.key;
      running_.erase(key);
      if (cancelled_.erase(key) > 0) {
        ended.push_back(std::move(item));
      } else {
        place = std::next(queue_.insert(place, std::move(item)));
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
    std::vector<Item> batch = TakeBatch();
    std::vector<Item> good;
    for (Item& item : batch) {
      Status status = Check(item.request);
      {
        const std::scoped_lock lock(mutex_);
        const KvKey& key = item.request.info.key;
        // Chats that came at once ask for the same.
        const auto known = impossible_.find(key);
        if (known != impossible_.end()) status = known->second;
        if (!status.ok()) {
          running_.erase(key);
          if (cancelled_.erase(key) > 0) {
            status = Cancelled("the fact was erased before it was encoded");
          } else {
            RememberImpossible(item.request, status);
          }
        }
      }
      if (status.ok()) {
        good.push_back(std::move(item));
        continue;
      }
      Report(item, status);
    }
    if (good.empty()) continue;
    Process(std::move(good));
  }
  std::deque<Item> left;
  {
    const std::scoped_lock lock(mutex_);
    left.swap(queue_);
  }
  for (const Item& item : left) Report(item, Cancelled("the engine is shutting down"));
}

Result<std::size_t> FactBatchEncoder::Compute(std::span<const BatchToken> tokens, bool urgent,
                                              const std::function<void(std::size_t)>& on_computed) {
  const auto most = static_cast<std::size_t>(context_->batch_tokens());
  std::size_t done = 0;
  while (done < tokens.size()) {
    bool beside_generations = false;
    if (!AwaitTurn(urgent, beside_generations)) return done;
    // What cannot be stopped must be short before it starts.
    const bool slice = beside_generations || (!can_abort_ && !urgent);
    double& rate = slice ? slice_rate_ : rate_;
    const auto affordable =
        static_cast<std::size_t>(std::max(rate * (slice ? kSliceSeconds : kPieceSeconds), 1.0));
    const auto piece =
        tokens.subspan(done, std::min({urgent ? most : affordable, most, tokens.size() - done}));
    giving_way_ = !slice && !urgent;
    const auto started = Clock::now();
    const Result<DecodeOutcome> outcome = context_->Decode(piece);
    giving_way_ = false;
    if (!outcome.ok()) return outcome.status();
    if (*outcome == DecodeOutcome::kAborted) {
      // Only this piece is lost.
      std::map<std::int32_t, std::int32_t> first_positions;
      for (const BatchToken& token : piece)
        first_positions.try_emplace(token.sequence, token.position);
      for (const auto& [sequence, position] : first_positions)
        context_->Remove(sequence, position, -1);
      continue;
    }
    const Clock::duration took = Clock::now() - started;
    const double seconds = std::chrono::duration<double>(took).count();
    if (seconds > 0 && (slice || piece.size() >= 8)) {
      rate += 0.3 * (static_cast<double>(piece.size()) / seconds - rate);
    }
    pause_until_ = Clock::now() + std::chrono::duration_cast<Clock::duration>(
                                      took * (1 / kShareBesideGenerations - 1));
    done += piece.size();
    if (on_computed) on_computed(done);
  }
  return done;
}

Result<bool> FactBatchEncoder::ComputeContext(const TokenIds& context, bool urgent) {
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
  INFERSCALE_ASSIGN_OR_RETURN(const std::size_t computed, Compute(tokens, urgent, nullptr));
  shared_.assign(context.begin(), context.begin() + keep + static_cast<std::ptrdiff_t>(computed));
  return computed == tokens.size();
}

void FactBatchEncoder::Process(std::vector<Item> batch) {
  static const TokenIds kEmpty;
  const std::shared_ptr<const TokenIds> held = batch.front().request.context;
  const TokenIds& context = held ? *held : kEmpty;
  const bool urgent = batch.front().request.urgent;
  std::size_t ended = 0;
  const auto sequence = [](std::size_t index) { return static_cast<std::int32_t>(index) + 1; };
  const auto compute = [&]() -> Status {
    INFERSCALE_ASSIGN_OR_RETURN(const bool context_computed, ComputeContext(context, urgent));
    if (!context_computed) return OkStatus();
    std::vector<BatchToken> tokens;
    std::vector<std::size_t> ends;
    for (std::size_t i = 0; i < batch.size(); ++i) {
      if (!context.empty()) context_->CopySequence(0, sequence(i), 0, Size(context));
      const TokenIds& own = batch[i].request.info.tokens;
      for (std::int32_t t = 0; t < Size(own); ++t) {
        tokens.push_back({own[t], Size(context) + t, sequence(i), false});
      }
      ends.push_back(tokens.size());
    }
    return Compute(tokens, urgent,
                   [&](std::size_t computed) {
                     for (; ended < batch.size() && ends[ended] <= computed; ++ended) {
                       Report(batch[ended], Store(batch[ended], sequence(ended), Size(context)));
                       context_->Remove(sequence(ended), 0, -1);
                     }
                   })
        .status();
  };
  const Status status = compute();
  if (!status.ok()) {
    for (; ended < batch.size(); ++ended) {
      {
        const std::scoped_lock lock(mutex_);
        running_.erase(batch[ended].request.info.key);
        cancelled_.erase(batch[ended].request.info.key);
      }
      Report(batch[ended], status);
    }
    context_->ClearAll();
    shared_.clear();
    return;
  }
  for (std::size_t i = ended; i < batch.size(); ++i) context_->Remove(sequence(i), 0, -1);
  Requeue(std::span(batch).subspan(ended));
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
  const Status stored = store_->Put(*block);
  if (stored.ok()) {
    if (stored_.size() >= kRememberedKeys) stored_.clear();
    stored_.insert(key);
  } else if (stored.code() == StatusCode::kResourceExhausted && !store_->CanHold(**block)) {
    RememberImpossible(item.request, stored);  // a full disk may have room again
  }
  return stored;
}

}  // namespace inferscale
