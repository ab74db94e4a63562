#ifndef INFERSCALE_EVAL_PROGRESS_H_
#define INFERSCALE_EVAL_PROGRESS_H_

#include <chrono>
#include <cstdint>
#include <string>

#include "eval/commands.h"

namespace inferscale {

/// One line of progress with rate and time left: redrawn in place on a terminal, else printed at
/// most every ten seconds. Nothing is left behind half-drawn: the destructor ends the line. Not
/// thread-safe.
class EvalProgress {
 public:
  /// \param total 0: unknown
  EvalProgress(EvalContext& context, std::string what, std::int64_t total);
  ~EvalProgress();
  EvalProgress(const EvalProgress&) = delete;
  EvalProgress& operator=(const EvalProgress&) = delete;

  void Set(std::int64_t done);
  void Add(std::int64_t count = 1) { Set(done_ + count); }
  /// \return seconds since construction
  double Seconds() const;

 private:
  void Draw(bool last);

  EvalContext& context_;
  const std::string what_;
  const std::int64_t total_;
  std::int64_t done_ = 0;
  const std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
  std::chrono::steady_clock::time_point drawn_{};
};

/// A line of plain text for people, never on the stream that carries the JSON.
void Say(EvalContext& context, const std::string& line);
/// kCancelled once Ctrl-C was pressed.
Status CheckStop(const EvalContext& context);

}  // namespace inferscale

#endif  // INFERSCALE_EVAL_PROGRESS_H_
