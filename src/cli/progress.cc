#include "cli/progress.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <utility>

#include <unistd.h>

namespace inferscale {
namespace {

constexpr std::chrono::milliseconds kTerminalInterval{100};
constexpr std::chrono::seconds kFirstLine{1};
constexpr std::chrono::seconds kLineInterval{3};
constexpr std::int64_t kBarWidth = 30;

std::string Duration(double seconds) {
  const auto whole = std::llround(std::min(seconds, 1e9));
  char text[32];
  if (whole < 60) {
    std::snprintf(text, sizeof(text), "%lld s", whole);
  } else {
    std::snprintf(text, sizeof(text), "%lld min %02lld s", whole / 60, whole % 60);
  }
  return text;
}

}  // namespace

Progress::Progress(std::string verb, std::string unit, std::int64_t total)
    : verb_(std::move(verb)),
      unit_(std::move(unit)),
      total_(total),
      terminal_(isatty(STDERR_FILENO) == 1),
      start_(Clock::now()),
      // A second's work needs no line in a log.
      next_(start_ + (terminal_ ? Clock::duration::zero() : Clock::duration(kFirstLine))) {}

Progress::~Progress() {
  if (terminal_ && drawn_) std::fputc('\n', stderr);
}

std::string Progress::Estimate(Clock::time_point now, std::int64_t done) const {
  const double seconds = std::chrono::duration<double>(now - start_).count();
  const auto fresh = static_cast<double>(done - first_done_);
  if (fresh <= 0 || seconds < 0.2) return "";
  const double rate = fresh / seconds;
  char text[64];
  std::snprintf(text, sizeof(text), rate < 10 ? ", %.1f/s" : ", %.0f/s", rate);
  std::string estimate = text;
  if (done < total_)
    estimate += ", " + Duration(static_cast<double>(total_ - done) / rate) + " left";
  return estimate;
}

void Progress::Update(std::int64_t done) {
  const Clock::time_point now = Clock::now();
  if (first_done_ < 0) first_done_ = done;
  // The end is always shown on a terminal, whose bar would stop short otherwise.
  if (now < next_ && !(terminal_ && done >= total_)) return;
  next_ = now + (terminal_ ? Clock::duration(kTerminalInterval) : Clock::duration(kLineInterval));
  const std::string counts = verb_ + " " + std::to_string(done) + " of " + std::to_string(total_) +
                             " " + unit_ + Estimate(now, done);
  if (!terminal_) {
    std::fprintf(stderr, "%s\n", counts.c_str());
  } else {
    const std::int64_t filled =
        total_ > 0 ? std::clamp<std::int64_t>(done * kBarWidth / total_, 0, kBarWidth) : kBarWidth;
    const std::string bar = std::string(static_cast<std::size_t>(filled), '#') +
                            std::string(static_cast<std::size_t>(kBarWidth - filled), '.');
    std::fprintf(stderr, "\r\033[K[%s] %s", bar.c_str(), counts.c_str());
    drawn_ = true;
  }
  std::fflush(stderr);
}

}  // namespace inferscale
