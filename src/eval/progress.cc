#include "eval/progress.h"

#include <ostream>

#include "eval/table.h"

namespace inferscale {
namespace {

std::string Duration(double seconds) {
  const auto whole = static_cast<std::int64_t>(seconds + 0.5);
  if (whole < 60) return std::to_string(whole) + " s";
  if (whole < 3600) return std::to_string(whole / 60) + " min " + std::to_string(whole % 60) + " s";
  return std::to_string(whole / 3600) + " h " + std::to_string(whole / 60 % 60) + " min";
}

}  // namespace

EvalProgress::EvalProgress(EvalContext& context, std::string what, std::int64_t total)
    : context_(context), what_(std::move(what)), total_(total), drawn_(start_) {}

EvalProgress::~EvalProgress() { Draw(true); }

double EvalProgress::Seconds() const {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start_).count();
}

void EvalProgress::Set(std::int64_t done) {
  done_ = done;
  const auto now = std::chrono::steady_clock::now();
  if (now - drawn_ <
      (context_.progress_is_terminal ? std::chrono::milliseconds(200) : std::chrono::seconds(10)))
    return;
  drawn_ = now;
  Draw(false);
}

void EvalProgress::Draw(bool last) {
  std::string line = what_ + " " + std::to_string(done_);
  if (total_ > 0) line += "/" + std::to_string(total_);
  const double seconds = Seconds();
  if (last) {
    line += " in " + Duration(seconds);
  } else if (done_ > 0 && seconds > 0.5) {
    const double rate = static_cast<double>(done_) / seconds;
    line += ", " + Decimal(rate, rate < 10 ? 1 : 0) + " a second";
    if (total_ > done_)
      line += ", " + Duration(static_cast<double>(total_ - done_) / rate) + " left";
  }
  std::ostream& out = *context_.progress;
  if (context_.progress_is_terminal) {
    out << "\r\x1b[K" << line << (last ? "\n" : "") << std::flush;
  } else {
    out << line << "\n" << std::flush;
  }
}

void Say(EvalContext& context, const std::string& line) {
  *context.progress << line << "\n" << std::flush;
}

Status CheckStop(const EvalContext& context) {
  if (context.stop != nullptr && context.stop->load()) return Cancelled("interrupted");
  return OkStatus();
}

}  // namespace inferscale
