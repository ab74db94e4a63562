#ifndef INFERSCALE_CLI_INTERRUPT_H_
#define INFERSCALE_CLI_INTERRUPT_H_

/// \file interrupt.h
/// InterruptScope: while it lives, Ctrl-C (SIGINT) and SIGTERM are counted instead of ending the
/// process. System calls that wait return EINTR. One at a time.

#include <atomic>

namespace inferscale {

class InterruptScope {
 public:
  /// \param limit this many end the process at once: nothing acknowledged is lost by that.
  explicit InterruptScope(int limit);
  ~InterruptScope();
  InterruptScope(const InterruptScope&) = delete;
  InterruptScope& operator=(const InterruptScope&) = delete;

  static bool Interrupted() { return Count() > 0; }
  static int Count();
  /// True from the first one on.
  static const std::atomic<bool>& Flag();
  static void Reset();
};

}  // namespace inferscale

#endif  // INFERSCALE_CLI_INTERRUPT_H_
