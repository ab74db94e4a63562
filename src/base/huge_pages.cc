#include "base/huge_pages.h"

#include <sys/mman.h>

namespace inferscale {

void AdviseHugePages(void* begin, std::size_t bytes) {
  const std::size_t whole = bytes / kHugePageBytes * kHugePageBytes;
  if (whole > 0) (void)madvise(begin, whole, MADV_HUGEPAGE);
}

}  // namespace inferscale
