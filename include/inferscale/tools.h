#ifndef INFERSCALE_TOOLS_H_
#define INFERSCALE_TOOLS_H_

/// \file tools.h
/// What an application lets a model call, and what the model calls. Value types.

#include <string>
#include <vector>

namespace inferscale {

/// A call that a model made of an application's function.
struct ToolCall {
  std::string id;  ///< given by whoever answered; may be empty
  std::string name;
  std::string arguments;  ///< JSON text of an object; cut off where the answer was
};

/// What an application lets a model call, and how this answer must use it.
struct ToolUse {
  struct Tool {
    std::string name, description;
    std::string parameters_json;  ///< JSON schema of the arguments
  };
  enum class Choice { kAuto, kRequired };
  std::vector<Tool> tools;  ///< may be empty: only the history has calls
  Choice choice = Choice::kAuto;
  std::string only;  ///< with kRequired: the tool to call; empty: any
  bool parallel = true;
};

/// What a model's answer says beside its text.
struct ToolAnswer {
  std::string content;
  std::vector<ToolCall> calls;
};

}  // namespace inferscale

#endif  // INFERSCALE_TOOLS_H_
