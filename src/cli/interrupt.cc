#include "cli/interrupt.h"

#include <atomic>
#include <csignal>

#include <unistd.h>

namespace inferscale {
namespace {

// Lock-free, as a signal handler may touch nothing else.
std::atomic<int> count{0};
std::atomic<int> limit{0};
std::atomic<bool> flag{false};
static_assert(std::atomic<int>::is_always_lock_free);

struct sigaction previous_interrupt, previous_terminate;

void Count(int) {
  flag = true;
  if (count.fetch_add(1) + 1 >= limit.load()) _exit(130);
}

}  // namespace

InterruptScope::InterruptScope(int most) {
  Reset();
  limit = most;
  struct sigaction action = {};
  action.sa_handler = inferscale::Count;
  sigemptyset(&action.sa_mask);
  sigaction(SIGINT, &action, &previous_interrupt);
  sigaction(SIGTERM, &action, &previous_terminate);
}

InterruptScope::~InterruptScope() {
  sigaction(SIGINT, &previous_interrupt, nullptr);
  sigaction(SIGTERM, &previous_terminate, nullptr);
}

int InterruptScope::Count() { return count.load(); }

const std::atomic<bool>& InterruptScope::Flag() { return flag; }

void InterruptScope::Reset() {
  count = 0;
  flag = false;
}

}  // namespace inferscale
