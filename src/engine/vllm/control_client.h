#ifndef INFERSCALE_ENGINE_VLLM_CONTROL_CLIENT_H_
#define INFERSCALE_ENGINE_VLLM_CONTROL_CLIENT_H_

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <nlohmann/json.hpp>

#include "base/descriptor.h"
#include "inferscale/result.h"

namespace inferscale {

/// The control socket of one engine core, as inferscale.vllm.control serves it: a line of signed
/// JSON each way. Every operation can be repeated without harm, so a connection that has gone is
/// opened anew once. Thread-safe: one call at a time. A call takes `timeout` at most, waiting for
/// others included.
class ControlClient {
 public:
  ControlClient(std::string path, std::vector<std::uint8_t> secret,
                std::chrono::milliseconds timeout = std::chrono::seconds(10))
      : path_(std::move(path)), secret_(std::move(secret)), timeout_(timeout) {}

  /// \param fields an object, sent with the operation's name and an expiry.
  /// \return the answer's object. kUnavailable: nobody serves the socket, it closed without an
  /// answer (which is how an engine treats another secret), or took too long. kDataLoss: an answer
  /// that is not signed. kInvalidArgument: the engine refused the request, in its words.
  Result<nlohmann::json> Call(std::string_view operation,
                              nlohmann::json fields = nlohmann::json::object());

  const std::string& path() const { return path_; }

 private:
  Status Connect();
  Result<std::string> Exchange(const std::string& line,
                               std::chrono::steady_clock::time_point deadline);
  Status Late() const;

  const std::string path_;
  const std::vector<std::uint8_t> secret_;
  const std::chrono::milliseconds timeout_;
  std::mutex mutex_;
  std::condition_variable freed_;
  bool busy_ = false;  ///< with a call, which alone uses what follows
  std::optional<Descriptor> socket_;
};

}  // namespace inferscale

#endif  // INFERSCALE_ENGINE_VLLM_CONTROL_CLIENT_H_
