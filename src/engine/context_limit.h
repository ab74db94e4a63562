#ifndef INFERSCALE_ENGINE_CONTEXT_LIMIT_H_
#define INFERSCALE_ENGINE_CONTEXT_LIMIT_H_

#include <cstdint>

#include "inferscale/result.h"

namespace inferscale {

/// kInvalidArgument: a prompt longer than the model's context leaves room for.
Status ContextExceeded(std::int64_t tokens, std::int64_t room);
/// Whether a status is one of these: some protocols have a code for it.
bool IsContextExceeded(const Status& status);

}  // namespace inferscale

#endif  // INFERSCALE_ENGINE_CONTEXT_LIMIT_H_
