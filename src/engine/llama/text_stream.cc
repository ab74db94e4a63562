#include "engine/llama/text_stream.h"

#include <algorithm>

#include "base/utf8.h"

namespace inferscale {
namespace {

/// Length of the prefix of `bytes` that is not the beginning of an unfinished character.
std::size_t CompleteLength(std::string_view bytes) {
  const std::size_t size = bytes.size();
  for (std::size_t back = 1; back <= std::min<std::size_t>(3, size); ++back) {
    const auto byte = static_cast<unsigned char>(bytes[size - back]);
    if ((byte & 0xC0) == 0x80) continue;
    const std::size_t needed = byte >= 0xF0 && byte < 0xF8   ? 4
                               : byte >= 0xE0 && byte < 0xF0 ? 3
                               : byte >= 0xC2 && byte < 0xE0 ? 2
                                                             : 1;
    return needed > back ? size - back : size;
  }
  return size;
}

}  // namespace

TextStream::TextStream(std::vector<std::string> stops) : stops_(std::move(stops)) {
  std::erase_if(stops_, [](const std::string& stop) { return stop.empty(); });
}

std::string TextStream::Release(std::string_view text) {
  std::string released(text);
  text_ += released;
  return released;
}

std::string TextStream::Push(std::string_view bytes) {
  if (stopped_) return {};
  bytes_ += bytes;
  const std::size_t complete = CompleteLength(bytes_);
  pending_ += ToValidUtf8(std::string_view(bytes_).substr(0, complete));
  bytes_.erase(0, complete);

  std::size_t stop_at = std::string::npos;
  for (const std::string& stop : stops_) stop_at = std::min(stop_at, pending_.find(stop));
  if (stop_at != std::string::npos) {
    stopped_ = true;
    std::string released = Release(std::string_view(pending_).substr(0, stop_at));
    pending_.clear();
    bytes_.clear();
    return released;
  }
  std::size_t held = 0;
  for (const std::string& stop : stops_) {
    for (std::size_t length = std::min(stop.size() - 1, pending_.size()); length > held; --length) {
      if (pending_.ends_with(std::string_view(stop).substr(0, length))) {
        held = length;
        break;
      }
    }
  }
  std::string released = Release(std::string_view(pending_).substr(0, pending_.size() - held));
  pending_.erase(0, pending_.size() - held);
  return released;
}

std::string TextStream::Finish() {
  if (stopped_) return {};
  pending_ += ToValidUtf8(bytes_);
  bytes_.clear();
  std::string released = Release(pending_);
  pending_.clear();
  return released;
}

}  // namespace inferscale
