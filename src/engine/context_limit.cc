#include "engine/context_limit.h"

#include <string>
#include <string_view>

namespace inferscale {
namespace {

constexpr std::string_view kRoom = " tokens, the model's context has room for ";

}  // namespace

Status ContextExceeded(std::int64_t tokens, std::int64_t room) {
  return InvalidArgument("the prompt takes " + std::to_string(tokens) + std::string(kRoom) +
                         std::to_string(room) +
                         ": shorten the messages, serve fewer memories or raise the context size");
}

bool IsContextExceeded(const Status& status) {
  return status.code() == StatusCode::kInvalidArgument &&
         status.message().find(kRoom) != std::string::npos;
}

}  // namespace inferscale
