#ifndef INFERSCALE_CLI_PROGRESS_H_
#define INFERSCALE_CLI_PROGRESS_H_

#include <chrono>
#include <cstdint>
#include <string>

namespace inferscale {

/// Progress of long work on stderr: a bar with rate and time left on a terminal, else a line
/// every few seconds. Not thread-safe.
class Progress {
 public:
  /// \param verb "stored"; \param unit "turns".
  Progress(std::string verb, std::string unit, std::int64_t total);
  /// Ends the bar's line.
  ~Progress();
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

  void Update(std::int64_t done);

 private:
  using Clock = std::chrono::steady_clock;
  std::string Estimate(Clock::time_point now, std::int64_t done) const;

  const std::string verb_, unit_;
  const std::int64_t total_;
  const bool terminal_;
  const Clock::time_point start_;
  std::int64_t first_done_ = -1;
  Clock::time_point next_;
  bool drawn_ = false;
};

}  // namespace inferscale

#endif  // INFERSCALE_CLI_PROGRESS_H_
