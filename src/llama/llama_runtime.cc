#include "llama/llama_runtime.h"

#include <sched.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <limits>
#include <mutex>
#include <set>
#include <sstream>
#include <string_view>
#include <thread>
#include <utility>

#include <spdlog/spdlog.h>

#include "ggml-backend.h"
#include "llama.h"

namespace inferscale {
namespace {

thread_local std::string thread_errors;
thread_local std::string thread_line;

void OnLlamaLog(ggml_log_level level, const char* text, void*) {
  if (text == nullptr) return;
  thread_line += text;
  if (thread_line.empty() || thread_line.back() != '\n') return;
  std::string line = std::exchange(thread_line, {});
  while (!line.empty() && (line.back() == '\n' || line.back() == ' ')) line.pop_back();
  if (line.empty()) return;
  spdlog::debug("llama.cpp: {}", line);
  if (level == GGML_LOG_LEVEL_ERROR && thread_errors.size() < 2000) {
    if (!thread_errors.empty()) thread_errors += "; ";
    thread_errors += line;
  }
}

/// Bytes left below a cgroup's limit, or the maximum.
std::int64_t CgroupHeadroom() {
  const auto read = [](const char* path) -> std::int64_t {
    std::ifstream file(path);
    std::int64_t value = -1;
    file >> value;
    return file ? value : -1;
  };
  for (const auto& [limit_path, usage_path] :
       {std::pair{"/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory.current"},
        std::pair{"/sys/fs/cgroup/memory/memory.limit_in_bytes",
                  "/sys/fs/cgroup/memory/memory.usage_in_bytes"}}) {
    const std::int64_t limit = read(limit_path);
    const std::int64_t usage = read(usage_path);
    if (limit > 0 && usage >= 0) return std::max<std::int64_t>(0, limit - usage);
  }
  return std::numeric_limits<std::int64_t>::max();
}

#ifdef INFERSCALE_BACKENDS
/// The best CPU backend that this machine has, from beside the program or, for a program that has
/// not been installed, from where it was built. From nowhere else: what is loaded is run.
void LoadBackends() {
  std::error_code error;
  const std::filesystem::path program = std::filesystem::read_symlink("/proc/self/exe", error);
  const std::filesystem::path beside = program.parent_path().parent_path() / "lib/backends";
  const bool installed = !error && std::filesystem::is_directory(beside, error);
  ggml_backend_load_all_from_path(installed ? beside.c_str() : INFERSCALE_BACKENDS);
}
#else
void LoadBackends() {}
#endif

}  // namespace

void InitLlamaRuntime() {
  static std::once_flag once;
  std::call_once(once, [] {
    llama_log_set(OnLlamaLog, nullptr);
    LoadBackends();
    llama_backend_init();
  });
}

std::string TakeLlamaErrors() { return std::exchange(thread_errors, {}); }

std::int32_t PhysicalCores() {
  std::int32_t logical = static_cast<std::int32_t>(std::thread::hardware_concurrency());
  cpu_set_t allowed;
  CPU_ZERO(&allowed);
  std::set<std::string> cores;
  if (sched_getaffinity(0, sizeof(allowed), &allowed) == 0) {
    logical = CPU_COUNT(&allowed);
    for (int cpu = 0; cpu < CPU_SETSIZE; ++cpu) {
      if (!CPU_ISSET(cpu, &allowed)) continue;
      std::ifstream siblings("/sys/devices/system/cpu/cpu" + std::to_string(cpu) +
                             "/topology/thread_siblings");
      std::string mask;
      if (siblings >> mask) cores.insert(mask);
    }
  }
  const std::int32_t physical = static_cast<std::int32_t>(cores.size());
  return std::max(1, physical > 0 ? std::min(physical, std::max(1, logical)) : logical);
}

std::int64_t AvailableMemoryBytes() {
  std::ifstream file("/proc/meminfo");
  std::string line;
  while (std::getline(file, line)) {
    std::istringstream fields(line);
    std::string name;
    std::int64_t kib = 0;
    if (fields >> name >> kib && name == "MemAvailable:")
      return std::min(kib * 1024, CgroupHeadroom());
  }
  return 0;
}

}  // namespace inferscale
