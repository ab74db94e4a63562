#ifndef INFERSCALE_LLAMA_LLAMA_RUNTIME_H_
#define INFERSCALE_LLAMA_LLAMA_RUNTIME_H_

#include <cstdint>
#include <string>

namespace inferscale {

/// Starts llama.cpp once and sends its messages to spdlog at debug level (errors at warning level
/// while a load is running are kept for TakeLlamaErrors). Thread-safe, idempotent.
void InitLlamaRuntime();

/// The error lines that llama.cpp wrote on this thread since the last call, joined by "; ".
std::string TakeLlamaErrors();

/// Physical CPU cores this process may use, at least 1.
std::int32_t PhysicalCores();

/// Memory that can be taken without swapping, in bytes, container limits included; 0 if unknown.
std::int64_t AvailableMemoryBytes();

}  // namespace inferscale

#endif  // INFERSCALE_LLAMA_LLAMA_RUNTIME_H_
