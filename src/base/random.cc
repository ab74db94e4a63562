#include "base/random.h"

#include <sys/random.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>

#include "base/hash.h"

namespace inferscale {

std::vector<std::uint8_t> RandomBytes(std::size_t count) {
  std::vector<std::uint8_t> bytes(count);
  std::size_t filled = 0;
  while (filled < count) {
    const ssize_t got = getrandom(bytes.data() + filled, count - filled, 0);
    if (got > 0) {
      filled += static_cast<std::size_t>(got);
    } else if (errno != EINTR) {
      // Without randomness a secret would be guessable: there is no safe way on.
      std::fputs("inferscale: the system gives no random bytes\n", stderr);
      std::abort();
    }
  }
  return bytes;
}

std::string NewUuid() {
  std::vector<std::uint8_t> bytes = RandomBytes(16);
  bytes[6] = static_cast<std::uint8_t>((bytes[6] & 0x0f) | 0x40);
  bytes[8] = static_cast<std::uint8_t>((bytes[8] & 0x3f) | 0x80);
  std::string text = HexEncode(bytes);
  for (const std::size_t place : {20, 16, 12, 8}) text.insert(place, 1, '-');
  return text;
}

}  // namespace inferscale
