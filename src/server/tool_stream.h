#ifndef INFERSCALE_SERVER_TOOL_STREAM_H_
#define INFERSCALE_SERVER_TOOL_STREAM_H_

/// \file tool_stream.h
/// ToolStream: an answer that may call tools, while it is generated, as what is new of it. What has
/// been said is never taken back. Not thread-safe.

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "inferscale/engine.h"

namespace inferscale {

class ToolStream {
 public:
  /// Either content, or something of one call: the first of a call has its id and name.
  struct Delta {
    std::string content;
    std::int32_t call = -1;
    std::string id, name, arguments;
  };

  explicit ToolStream(std::shared_ptr<const ToolFormat> format) : format_(std::move(format)) {}

  std::vector<Delta> Push(const std::string& text);
  /// \param cut the answer ends before its end
  std::vector<Delta> Finish(bool cut);
  /// Calls that deltas have begun.
  std::size_t calls() const { return calls_.size(); }

 private:
  std::vector<Delta> News(const ToolAnswer& answer, bool last);

  std::shared_ptr<const ToolFormat> format_;
  std::string text_;             ///< all of it
  std::size_t read_ = 0;         ///< how much of it was last parsed
  std::string content_;          ///< said
  std::vector<ToolCall> calls_;  ///< said
};

/// An id for a call that the model gave none.
std::string NewToolCallId();

}  // namespace inferscale

#endif  // INFERSCALE_SERVER_TOOL_STREAM_H_
