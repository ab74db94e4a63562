#include "server/exchange.h"

#include <utility>

namespace inferscale {

Exchange::Exchange(HttpRequest request, std::function<void()> signal)
    : request_(std::move(request)), signal_(std::move(signal)) {}

void Exchange::SetKeyId(std::string id) {
  const std::scoped_lock lock(mutex_);
  key_id_ = std::move(id);
}

std::string Exchange::key_id() const {
  const std::scoped_lock lock(mutex_);
  return key_id_;
}

void Exchange::Respond(HttpResponse response) {
  bool heard = true;
  {
    const std::scoped_lock lock(mutex_);
    if (answered_) return;
    answered_ = ended_ = true;
    status_ = response.status;
    head_ = std::move(response);
    heard = !gone_;
  }
  if (heard) signal_();
  Finish(status_);
}

bool Exchange::BeginStream(HttpResponse head) {
  {
    const std::scoped_lock lock(mutex_);
    if (answered_) return false;
    answered_ = streamed_ = true;
    status_ = head.status;
    head_ = std::move(head);
    if (gone_) return false;
  }
  signal_();
  return true;
}

bool Exchange::Write(std::string piece) {
  {
    const std::scoped_lock lock(mutex_);
    if (!streamed_ || ended_ || gone_ || pieces_.size() > kMaxWaitingBytes) return false;
    pieces_ += piece;
  }
  signal_();
  return true;
}

void Exchange::End() {
  bool heard = true;
  {
    const std::scoped_lock lock(mutex_);
    if (!streamed_ || ended_) return;
    ended_ = true;
    heard = !gone_;
  }
  if (heard) signal_();
  Finish(status_);
}

void Exchange::OnEnd(std::function<void(int)> callback) {
  std::optional<int> finished;
  {
    const std::scoped_lock lock(mutex_);
    finished = finished_;
    if (!finished) on_end_ = std::move(callback);
  }
  if (finished) callback(*finished);
}

void Exchange::Finish(int status) {
  std::function<void(int)> callback;
  {
    const std::scoped_lock lock(mutex_);
    if (!finished_) finished_ = status;
    callback = std::exchange(on_end_, nullptr);
  }
  if (callback) callback(status);
}

void Exchange::OnGone(std::function<void()> callback) {
  {
    const std::scoped_lock lock(mutex_);
    if (!gone_) {
      on_gone_ = std::move(callback);
      return;
    }
  }
  callback();
}

bool Exchange::gone() const {
  const std::scoped_lock lock(mutex_);
  return gone_;
}

Exchange::Next Exchange::Take() {
  const std::scoped_lock lock(mutex_);
  Next next;
  next.streamed = streamed_;
  if (answered_ && !head_taken_) {
    next.begun = head_taken_ = true;
    next.head = std::move(head_);
  }
  next.pieces.swap(pieces_);
  next.ended = ended_ && !end_taken_;
  end_taken_ = end_taken_ || next.ended;
  return next;
}

void Exchange::SetGone() {
  std::function<void()> callback;
  {
    const std::scoped_lock lock(mutex_);
    if (gone_) return;
    gone_ = true;
    if (!ended_) callback = std::move(on_gone_);
  }
  if (callback) callback();
  constexpr int kClientClosed = 499;
  Finish(kClientClosed);
}

ExchangePtr Guarded(std::shared_ptr<Exchange> exchange) {
  Exchange* plain = exchange.get();
  return ExchangePtr(plain, [held = std::move(exchange)](Exchange*) {
    HttpResponse response;
    response.status = 500;
    response.body = R"({"error":{"message":"the server dropped this request; see its log under )"
                    R"(the request id","type":"server_error","code":"internal"}})";
    held->Respond(std::move(response));
    held->End();
  });
}

}  // namespace inferscale
