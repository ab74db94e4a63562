#ifndef INFERSCALE_RESULT_H_
#define INFERSCALE_RESULT_H_

/// \file result.h
/// Status and Result<T>: how every operation that can fail reports it. Neither ever throws; both
/// are value types and as thread-safe as std::string.

#include <cassert>
#include <string>
#include <string_view>
#include <utility>
#include <variant>

namespace inferscale {

enum class StatusCode {
  kOk = 0,
  kInvalidArgument,  ///< The caller's input is wrong; retrying the same call cannot help.
  kNotFound,
  kAlreadyExists,
  kFailedPrecondition,  ///< The system is in a state that forbids this (wrong model, read-only
                        ///< disk…).
  kResourceExhausted,   ///< A budget, limit, disk or memory is full.
  kUnsupported,         ///< This engine, model or build cannot do it.
  kDataLoss,            ///< Stored bytes are corrupt.
  kUnavailable,         ///< Another service or process is in the way now; retrying may help.
  kDeadlineExceeded,
  kCancelled,
  kInternal,  ///< A fault of ours.
};

/// Name of a code in snake_case, as printed in JSON ("invalid_argument").
std::string_view StatusCodeName(StatusCode code);

/// Outcome of an operation: a code and, when it is not kOk, a message that says what, where and
/// what to do about it.
class [[nodiscard]] Status {
 public:
  Status() = default;
  Status(StatusCode code, std::string message) : code_(code), message_(std::move(message)) {}

  bool ok() const { return code_ == StatusCode::kOk; }
  StatusCode code() const { return code_; }
  const std::string& message() const { return message_; }
  /// Whether the same call may succeed later without anybody changing anything.
  bool retryable() const {
    return code_ == StatusCode::kUnavailable || code_ == StatusCode::kDeadlineExceeded;
  }
  /// "code: message", or "ok".
  std::string ToString() const;
  /// The same code with `context` and ": " put in front of the message.
  Status WithContext(std::string_view context) const;

 private:
  StatusCode code_ = StatusCode::kOk;
  std::string message_;
};

inline Status OkStatus() { return Status(); }
Status InvalidArgument(std::string message);
Status NotFound(std::string message);
Status AlreadyExists(std::string message);
Status FailedPrecondition(std::string message);
Status ResourceExhausted(std::string message);
Status Unsupported(std::string message);
Status DataLoss(std::string message);
Status Unavailable(std::string message);
Status DeadlineExceeded(std::string message);
Status Cancelled(std::string message);
Status Internal(std::string message);

/// A value or the Status that explains its absence (never an ok one).
template <typename T>
class [[nodiscard]] Result {
 public:
  Result(T value) : state_(std::in_place_index<0>, std::move(value)) {}        // NOLINT: implicit
  Result(Status status) : state_(std::in_place_index<1>, std::move(status)) {  // NOLINT: implicit
    assert(!std::get<1>(state_).ok());
  }

  bool ok() const { return state_.index() == 0; }
  Status status() const { return ok() ? Status() : std::get<1>(state_); }

  /// The value; calling these on an error is a programming error.
  T& value() & { return std::get<0>(state_); }
  const T& value() const& { return std::get<0>(state_); }
  /// By value: `for (x : *F())` must not outlive what F returned.
  T value() && { return std::get<0>(std::move(state_)); }
  T& operator*() & { return value(); }
  const T& operator*() const& { return value(); }
  T operator*() && { return std::move(*this).value(); }
  T* operator->() { return &value(); }
  const T* operator->() const { return &value(); }

 private:
  std::variant<T, Status> state_;
};

}  // namespace inferscale

#define INFERSCALE_CONCAT_INNER_(a, b) a##b
#define INFERSCALE_CONCAT_(a, b) INFERSCALE_CONCAT_INNER_(a, b)

/// Returns from the enclosing function when `expression` (a Status) is not ok.
#define INFERSCALE_RETURN_IF_ERROR(expression)               \
  do {                                                       \
    ::inferscale::Status inferscale_status_ = (expression);  \
    if (!inferscale_status_.ok()) return inferscale_status_; \
  } while (false)

/// Evaluates a Result<T>; on success assigns its value to `declaration`, else returns its Status.
#define INFERSCALE_ASSIGN_OR_RETURN(declaration, expression)                                       \
  INFERSCALE_ASSIGN_OR_RETURN_IMPL_(INFERSCALE_CONCAT_(inferscale_result_, __LINE__), declaration, \
                                    expression)
#define INFERSCALE_ASSIGN_OR_RETURN_IMPL_(result, declaration, expression) \
  auto result = (expression);                                              \
  if (!result.ok()) return result.status();                                \
  declaration = std::move(result).value()

#endif  // INFERSCALE_RESULT_H_
