#include "base/descriptor.h"

#include <unistd.h>

#include <cerrno>
#include <cstddef>

namespace inferscale {

Descriptor::~Descriptor() {
  if (value_ >= 0) close(value_);
}

int WriteAll(int descriptor, std::span<const std::uint8_t> data) {
  while (!data.empty()) {
    const ssize_t written = write(descriptor, data.data(), data.size());
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) return errno;
    if (written == 0) return ENOSPC;
    data = data.subspan(static_cast<std::size_t>(written));
  }
  return 0;
}

}  // namespace inferscale
