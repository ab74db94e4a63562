#ifndef INFERSCALE_SERVER_EXCHANGE_H_
#define INFERSCALE_SERVER_EXCHANGE_H_

/// \file exchange.h
/// Exchange: one request and its answer, whole or streamed, given from any thread. Guarantees that
/// exactly one answer is sent: the first of Respond and BeginStream wins, and an exchange dropped
/// without one answers 500. Thread-safe.

#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>

#include "server/http_message.h"

namespace inferscale {

class Exchange {
 public:
  /// \param signal called, from any thread, when there is something new for the connection
  Exchange(HttpRequest request, std::function<void()> signal);

  const HttpRequest& request() const { return request_; }

  void Respond(HttpResponse response);

  /// Sends status and headers; the body follows in pieces. \return false: the client has gone.
  bool BeginStream(HttpResponse head);
  /// \return false: the client has gone, or reads so slowly that more than kMaxWaiting bytes wait
  bool Write(std::string piece);
  void End();

  /// Called once, on the connection's thread, if the client goes away before the answer's end; at
  /// once if it has gone already.
  void OnGone(std::function<void()> callback);
  bool gone() const;
  /// Called once, from any thread, when the answer is complete or the client has gone (499);
  /// at once if that has been already.
  void OnEnd(std::function<void(int status)> callback);

  /// The API key that the request came with, for the log; it names the key and opens nothing.
  void SetKeyId(std::string id);
  std::string key_id() const;

  static constexpr std::size_t kMaxWaitingBytes = std::size_t{4} << 20;

  // The connection's side.
  struct Next {
    bool begun = false;     ///< `head` is to be sent
    bool streamed = false;  ///< pieces follow the head
    HttpResponse head;
    std::string pieces;  ///< what waits, joined
    bool ended = false;
    bool empty() const { return !begun && pieces.empty() && !ended; }
  };
  Next Take();
  void SetGone();

 private:
  HttpRequest request_;
  std::function<void()> signal_;
  mutable std::mutex mutex_;
  bool answered_ = false, streamed_ = false, head_taken_ = false, ended_ = false,
       end_taken_ = false;
  bool gone_ = false;
  HttpResponse head_;
  std::string pieces_, key_id_;
  std::function<void()> on_gone_;
  std::function<void(int)> on_end_;
  std::optional<int> finished_;
  int status_ = 0;

  void Finish(int status);
};

/// The handler's hold on an exchange: the last copy to go answers 500 if nobody has answered.
using ExchangePtr = std::shared_ptr<Exchange>;
ExchangePtr Guarded(std::shared_ptr<Exchange> exchange);

}  // namespace inferscale

#endif  // INFERSCALE_SERVER_EXCHANGE_H_
