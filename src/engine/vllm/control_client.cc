#include "engine/vllm/control_client.h"

#include <cerrno>
#include <cstring>
#include <utility>

#include <poll.h>
#include <sys/socket.h>
#include <sys/un.h>

#include "base/bytes.h"
#include "base/clock.h"
#include "base/hash.h"

namespace inferscale {
namespace {

using nlohmann::json;
using SteadyTime = std::chrono::steady_clock::time_point;

constexpr std::size_t kMostLineBytes = std::size_t{16} << 20;
constexpr TimeMs kValidMs = 30'000;

std::string Mac(std::span<const std::uint8_t> secret, const std::string& text) {
  return HexEncode(HmacSha256(secret, AsBytes(text)));
}

/// Waits until the socket is ready for `events`. false: not before the deadline.
bool WaitFor(int socket, short events, SteadyTime deadline) {
  while (true) {
    const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(
        deadline - std::chrono::steady_clock::now());
    if (left.count() <= 0) return false;
    pollfd waiting{socket, events, 0};
    const int ready = poll(&waiting, 1, static_cast<int>(left.count()));
    if (ready > 0) return true;
    if (ready < 0 && errno != EINTR) return false;
  }
}

}  // namespace

Status ControlClient::Connect() {
  const std::string what = "vLLM's control socket " + path_;
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  if (path_.size() >= sizeof(address.sun_path)) {
    return InvalidArgument(what + " has a path of more than " +
                           std::to_string(sizeof(address.sun_path) - 1) + " bytes");
  }
  std::memcpy(address.sun_path, path_.data(), path_.size());
  // Not blocking: connect() would wait without end for an engine that hangs and accepts nobody.
  socket_.emplace(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (connect(socket_->get(), reinterpret_cast<const sockaddr*>(&address), sizeof(address)) == 0) {
    return OkStatus();
  }
  const int error = errno;
  socket_.reset();
  return Unavailable(what + " cannot be opened: " + std::strerror(error) +
                     "; check that vLLM runs, under this user, with control_socket set to it");
}

Status ControlClient::Late() const {
  return Unavailable("vLLM's control socket " + path_ + " did not answer within " +
                     std::to_string(timeout_.count()) + " ms; look at vLLM's log");
}

Result<std::string> ControlClient::Exchange(const std::string& line, SteadyTime deadline) {
  const Status closed =
      Unavailable("vLLM closed its control socket " + path_ +
                  " without an answer; check that both sides have the same secret");
  for (std::size_t sent = 0; sent < line.size();) {
    if (!WaitFor(socket_->get(), POLLOUT, deadline)) return Late();
    const ssize_t n =
        send(socket_->get(), line.data() + sent, line.size() - sent, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (n < 0 && (errno == EINTR || errno == EAGAIN)) continue;
    if (n <= 0) return closed;
    sent += static_cast<std::size_t>(n);
  }
  std::string answer;
  std::vector<char> piece(std::size_t{64} << 10);
  while (answer.empty() || answer.back() != '\n') {
    if (!WaitFor(socket_->get(), POLLIN, deadline)) return Late();
    const ssize_t n = recv(socket_->get(), piece.data(), piece.size(), MSG_DONTWAIT);
    if (n < 0 && (errno == EINTR || errno == EAGAIN)) continue;
    if (n <= 0) return closed;
    answer.append(piece.data(), static_cast<std::size_t>(n));
    if (answer.size() > kMostLineBytes) {
      return DataLoss("vLLM's control socket " + path_ + " answers without an end");
    }
  }
  return answer;
}

Result<json> ControlClient::Call(std::string_view operation, json fields) {
  fields["operation"] = operation;
  fields["expires_ms"] = NowMs() + kValidMs;
  const std::string text = fields.dump();
  const std::string mac = Mac(secret_, "inferscale control 1\n" + text);
  const std::string line = json{{"body", text}, {"mac", mac}}.dump() + "\n";

  const SteadyTime deadline = std::chrono::steady_clock::now() + timeout_;
  {
    std::unique_lock lock(mutex_);
    if (!freed_.wait_until(lock, deadline, [&] { return !busy_; })) return Late();
    busy_ = true;
  }
  struct Turn {
    ControlClient& client;
    ~Turn() {
      const std::scoped_lock lock(client.mutex_);
      client.busy_ = false;
      client.freed_.notify_one();
    }
  } const turn{*this};
  const bool was_open = socket_.has_value();
  if (!was_open) INFERSCALE_RETURN_IF_ERROR(Connect());
  Result<std::string> answer = Exchange(line, deadline);
  if (!answer.ok() && was_open) {  // idle for too long, or another engine serves it by now
    INFERSCALE_RETURN_IF_ERROR(Connect());
    answer = Exchange(line, deadline);
  }
  const auto fail = [&](Status status) {
    socket_.reset();  // what may still come is no answer to the next call
    return status;
  };
  if (!answer.ok()) return fail(answer.status());
  const json frame = json::parse(*answer, nullptr, /*allow_exceptions=*/false);
  const auto part = [&](const char* name) -> const std::string* {
    const auto place = frame.is_object() ? frame.find(name) : frame.end();
    return place == frame.end() ? nullptr : place->get_ptr<const std::string*>();
  };
  const std::string *const body = part("body"), *const signature = part("mac");
  if (body == nullptr || signature == nullptr ||
      !ConstantTimeEqual(AsBytes(*signature),
                         AsBytes(Mac(secret_, "inferscale answer 1\n" + mac + *body)))) {
    return fail(DataLoss("an answer of vLLM's control socket " + path_ +
                         " is not signed with the secret; give both sides the same one"));
  }
  json object = json::parse(*body, nullptr, /*allow_exceptions=*/false);
  if (!object.is_object()) {
    return fail(DataLoss("an answer of vLLM's control socket " + path_ + " is no JSON object"));
  }
  if (const auto error = object.find("error"); error != object.end()) {
    return InvalidArgument("vLLM's control socket " + path_ + ": " +
                           (error->is_string() ? error->get<std::string>() : error->dump()));
  }
  return object;
}

}  // namespace inferscale
